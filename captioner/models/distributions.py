"""Distributions α = p(e): from scores to attention weights over the annotations."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from captioner.models.registry import Component, check_choice, require
from captioner.models.scores import at_least_float32

SamplingMode = Literal["argmax", "sample", "expectation"]
GradientName = Literal["score_function", "straight_through", "gumbel_softmax"]
Scores = Float[Tensor, "B *h T L"]  # h exists with several heads
Mask = Bool[Tensor, "B *#h 1 L"] | None
Rows = Float[Tensor, "*rows L"]

# Of Newton's method in ``entmax``; each step reduces (Σ p − 1) · |slope| to a quarter or less.
STEPS = 16


@dataclass(frozen=True)
class Sampling:
    """How ``Hard`` chooses positions; other distributions ignore it."""

    # None for the distribution's options: ``gradient`` in training mode, else ``test_time``.
    mode: SamplingMode | None = None
    # From probabilities (B, *h, T, L) to drawn indices (B, *h, T, 1); None choices rows independently.
    sampler: Callable[[Tensor], Tensor] | None = None
    # True for images whose samples are replaced by their expectation in training.
    expected: Bool[Tensor, " B"] | None = None


@dataclass(frozen=True)
class QueryContext:
    """The inputs of a distribution besides the scores and the mask."""

    query: Float[Tensor, "B *h T n"]  # the queries that were scored
    grid: tuple[int, int]  # (rows, columns) of the positions in raster order; (1, L) for a sequence
    # Index of the word each query predicts, from 0: one for all, (T,) or (B, *h, T); None if unknown.
    step: int | Int[Tensor, "*images T"] | None
    sampling: Sampling | None = None


@dataclass(frozen=True)
class Choice:
    """What ``Hard`` knows about the position that it drew."""

    probs: Float[Tensor, "B *T L"]  # the distribution drawn from
    entropy: Float[Tensor, " B *T"]  # of that distribution, in nats
    log_prob: Float[Tensor, " B *T"] | None = None  # of the position, if its weight has no gradient

    def joint(self, axis: int) -> "Choice":
        """Return the joint choice of independent ones along an axis, and the mean of ``probs``."""
        log_prob = None if self.log_prob is None else self.log_prob.sum(axis)
        return Choice(self.probs.mean(axis), self.entropy.sum(axis), log_prob)


@dataclass(frozen=True)
class Weights:
    """The result of a distribution."""

    weights: Float[Tensor, "B *T L"]  # α, in [0, 1]; exactly 0 where masked. T may follow h.
    centre: Float[Tensor, "B *T 2"] | None = None  # (row, column) of a local window, in cells
    choice: Choice | None = None  # of hard attention


class Distribution(Component, kind="distribution"):
    """Base of all distributions; ``query_dim`` is n, the width of a query, which some of them need."""

    sparse = False  # whether unmasked weights can be exactly 0, whose logarithm trains nothing

    def __init__(self, query_dim: int) -> None:
        super().__init__()

    @property
    def name(self) -> str:
        """The name shown to users."""
        return type(self).__name__

    def set_heads(self, heads: int) -> None:
        """Give every head parameters of its own; called once, before the first use."""

    def start(self, sampling: Sampling | None, annotations: Tensor) -> Sampling | None:
        """Decide what is the same for all words of an image; ``annotations`` are (B, L, D)."""
        return sampling

    def forward(self, scores: Scores, mask: Mask, context: QueryContext) -> Weights:
        """Turn scores into weights that sum to 1, or are all 0 where every position is masked."""
        raise NotImplementedError


class Soft(Distribution):
    """``α = softmax(e)``: deterministic and differentiable (Xu et al. 2015 §4.2)."""

    def forward(self, scores: Scores, mask: Mask, context: QueryContext) -> Weights:
        return Weights(masked_softmax(scores, mask))


class Uniform(Distribution):
    """``α = 1 / L``: the same weight everywhere, to learn what attention is worth.

    Wiegreffe, Pinter 2019 (arXiv 1908.04626, §3.2): a model trained with these weights does as well as
    one with attention if where it looks does not matter.
    """

    def forward(self, scores: Scores, mask: Mask, context: QueryContext) -> Weights:
        # The factor 0 keeps the scores in the graph: several processes need every gradient.
        return Weights(masked_softmax(0 * scores, mask))


class Sparsemax(Distribution):
    """``α = argmin_p ‖p − e‖²`` over the simplex: exact zeros (Martins, Astudillo 2016)."""

    sparse = True

    def forward(self, scores: Scores, mask: Mask, context: QueryContext) -> Weights:
        """Compute ``max(e − τ(e), 0)`` by algorithm 1 of the paper."""
        scores = block_masked(scores, mask)
        # A score 1 or more below the largest has weight 0, so -2 stands for everything lower.
        scores = (scores - scores.amax(-1, keepdim=True)).clamp(min=-2.0)
        ordered = scores.sort(-1, descending=True).values
        count = torch.arange(1, scores.shape[-1] + 1, device=scores.device)
        excess = ordered.cumsum(-1) - 1
        support = (count * ordered > excess).sum(-1, keepdim=True).clamp(min=1)  # k(e)
        threshold = excess.gather(-1, support - 1) / support  # τ(e)
        return Weights(clear_masked((scores - threshold).clamp(min=0.0), mask))


class Entmax(Distribution):
    """``p = [(α − 1) e − τ]₊^(1 / (α − 1))`` with τ such that Σ p = 1 (Peters et al. 2019, §3).

    This α is the order of Tsallis' entropy and not the weights. α → 1 is the softmax, and α = 2 is
    sparsemax. A larger α gives more exact zeros.

    Args:
        alpha: α, a number above 1 and at most 2; ``learned`` starts at 1.5 and stays between 1 and 2
            (Correia, Niculae, Martins 2019, arXiv 1909.00015). With ``MultiHead``, every head has its
            own, as in that paper.
    """

    sparse = True

    def __init__(self, query_dim: int, alpha: float | Literal["learned"] = 1.5) -> None:
        super().__init__(query_dim)
        known = alpha == "learned" if isinstance(alpha, str) else 1 < alpha <= 2
        require(known, f"alpha must be above 1 and at most 2, or learned, got {alpha}")
        self.alpha = alpha
        if alpha == "learned":
            self.logit = nn.Parameter(torch.zeros(()))  # α = 1 + σ(logit)

    def set_heads(self, heads: int) -> None:
        if self.alpha == "learned":
            self.logit = nn.Parameter(torch.zeros(heads, 1, 1))

    def forward(self, scores: Scores, mask: Mask, context: QueryContext) -> Weights:
        scores = block_masked(scores, mask)
        if isinstance(self.alpha, str):
            curvature = self.logit.to(scores.dtype).sigmoid()
        else:
            curvature = scores.new_full((), self.alpha - 1)
        return Weights(clear_masked(entmax(scores, curvature), mask))


class Hard(Distribution):
    """Attend to one drawn position, ``s ~ Multinoulli(softmax(e))`` (Xu et al. 2015 §4.1).

    ``gradient`` selects how the scores are trained:

    - ``score_function``: the one-hot weights have no gradient; an objective (``Reinforce``) trains the
      scores through ``Choice.log_prob`` and ``Choice.entropy``.
    - ``straight_through``: the one-hot weights get the gradient of a softmax of scores plus Gumbel
      noise (Jang et al. 2017, arXiv 1611.01144; Maddison et al. 2017, arXiv 1611.00712). It is biased
      and has less variance.
    - ``gumbel_softmax``: this softmax itself gives the weights in training, with an exact gradient. In
      use, the decoder gets single regions.

    Args:
        test_time: the mode outside training: ``argmax``, the most probable position; ``sample``;
            or ``expectation``, the probabilities themselves as in soft attention.
        gradient: see above.
        temperature: the scores are divided by it; above 0.
        expectation: probability in training that the expectation replaces the samples of an image
            (0.5 in the paper).
    """

    def __init__(
        self,
        query_dim: int,
        test_time: SamplingMode = "argmax",
        gradient: GradientName = "score_function",
        temperature: float = 1.0,
        expectation: float = 0.0,
    ) -> None:
        super().__init__(query_dim)
        check_choice("test_time", test_time, SamplingMode)
        check_choice("gradient", gradient, GradientName)
        self.test_time, self.gradient = test_time, gradient
        self.temperature, self.expectation = temperature, expectation

    @property
    def name(self) -> str:
        return f"Hard ({self.test_time})"

    def start(self, sampling: Sampling | None, annotations: Tensor) -> Sampling | None:
        """Draw the images whose expectation replaces their samples."""
        if not (self.training and self.expectation):
            return sampling
        expected = torch.rand(len(annotations), device=annotations.device) < self.expectation
        return replace(sampling or Sampling(), expected=expected)

    def forward(self, scores: Scores, mask: Mask, context: QueryContext) -> Weights:
        """Compute the weights of the chosen position; see ``gradient`` and ``Sampling``."""
        sampling = context.sampling or Sampling()
        probs = masked_softmax(scores / self.temperature, mask)
        if not self.training or sampling.mode is not None:
            return self.choose(sampling.mode or self.test_time, probs, mask, sampling.sampler)
        if self.gradient == "score_function":
            output = self.choose("sample", probs, mask, sampling.sampler)
        else:
            output = self.relax(probs, mask)
        return output if sampling.expected is None else _expect(output, sampling.expected)

    def choose(
        self,
        mode: SamplingMode,
        probs: Scores,
        mask: Mask,
        sampler: Callable[[Tensor], Tensor] | None,
    ) -> Weights:
        """Return one-hot weights, or the probabilities themselves; none of them trains the scores."""
        if mode == "expectation":
            return Weights(probs, choice=Choice(probs, entropy(probs)))
        if mode == "argmax":
            index = probs.argmax(-1, keepdim=True)
        elif sampler is not None:
            index = sampler(probs)
        else:
            index = gumbel_perturbed(probs).argmax(-1, keepdim=True)
        log_prob = safe_log(probs).gather(-1, index).squeeze(-1)
        return Weights(one_hot(index, probs, mask), choice=Choice(probs, entropy(probs), log_prob))

    def relax(self, probs: Scores, mask: Mask) -> Weights:
        """Return weights that are differentiable in the scores, by ``gumbel_softmax`` or through it."""
        perturbed = gumbel_perturbed(probs)
        weights = masked_softmax(perturbed / self.temperature, mask)
        if self.gradient == "straight_through":  # the values of the one, the gradient of the other
            hard = one_hot(perturbed.argmax(-1, keepdim=True), probs, mask)
            weights = hard + weights - weights.detach()
        return Weights(weights, choice=Choice(probs, entropy(probs)))


def _expect(output: Weights, expected: Bool[Tensor, " B"]) -> Weights:
    """Replace the weights of some images by the probabilities that they were drawn from."""
    choice = output.choice
    assert choice is not None
    images = expected.view(-1, *[1] * (choice.entropy.ndim - 1))
    weights = torch.where(images.unsqueeze(-1), choice.probs, output.weights)
    log_prob = None if choice.log_prob is None else choice.log_prob.masked_fill(images, 0.0)
    return Weights(weights, choice=replace(choice, log_prob=log_prob))


def safe_log(probs: Rows) -> Rows:
    """Compute the logarithm, that of the smallest positive number for 0."""
    return probs.clamp(min=torch.finfo(probs.dtype).tiny).log()


def entropy(probs: Rows) -> Float[Tensor, "*rows"]:
    """Compute ``H = − Σ p log p`` in nats."""
    return -(probs * safe_log(probs)).sum(-1)


def gumbel_perturbed(probs: Rows) -> Rows:
    """Compute ``log p + g`` with Gumbel noise g; the position of its maximum is distributed as p."""
    return safe_log(probs) - torch.empty_like(probs).exponential_().log()


def one_hot(index: Int[Tensor, "*rows 1"], probs: Rows, mask: Tensor | None) -> Rows:
    """Return weight 1 at each index, if it is not masked, and 0 elsewhere."""
    return clear_masked(torch.zeros_like(probs).scatter(-1, index, 1.0), mask)


def hard_attention(decoder: nn.Module) -> list[Hard]:
    """Return all hard distributions of a decoder."""
    return [part for part in decoder.modules() if isinstance(part, Hard)]


def samples_locations(decoder: nn.Module) -> bool:
    """Return True if the decoder samples positions at test time, so that calls differ."""
    return any(distribution.test_time == "sample" for distribution in hard_attention(decoder))


def masked_softmax(scores: Rows, mask: Bool[Tensor, " *#rows L"] | None) -> Rows:
    """Compute the softmax over the unmasked positions; zeros in a row without such a position."""
    return clear_masked(block_masked(scores, mask).softmax(-1), mask)


def clear_masked(weights: Tensor, mask: Tensor | None) -> Tensor:
    """Set masked weights to 0."""
    return weights if mask is None else weights.masked_fill(~mask, 0.0)


def block_masked(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Fill masked scores with the smallest finite number, since a row of -inf would give NaN."""
    scores = at_least_float32(scores)
    return scores if mask is None else scores.masked_fill(~mask, torch.finfo(scores.dtype).min)


def entmax(scores: Rows, curvature: Float[Tensor, "*heads"]) -> Rows:
    """Compute the entmax of every row; ``curvature`` is α − 1 of each head, above 0 and at most 1.

    Newton's method finds τ; the papers use bisection, which takes more steps. Σ p is convex and falls
    as τ rises, so steps that start below the solution never pass it. The last step has gradients: it
    differentiates τ as an implicit function of e and α, as Peters et al. and Correia et al. do.
    """
    # Shifting all scores of a row changes no weight. -inf would turn the gradient of α into NaN.
    scores = scores - scores.amax(-1, keepdim=True).detach()
    scores = scores.clamp(min=torch.finfo(scores.dtype).min)
    with torch.no_grad():
        threshold = torch.zeros_like(scores[..., :1])  # the largest weight is 1, so that Σ p ≥ 1
        for _ in range(STEPS):
            threshold = _newton(scores, threshold, curvature)
    weights = _exponential(scores - _newton(scores, threshold, curvature), curvature)
    return weights / weights.sum(-1, keepdim=True)


def _newton(scores: Tensor, threshold: Tensor, curvature: Tensor) -> Tensor:
    """Take one step towards Σ p = 1; dp / dτ = −p^(2 − α), a constant in the gradient."""
    weights = _exponential(scores - threshold, curvature)
    slope = weights.detach().pow(1 - curvature.detach()).masked_fill(weights == 0, 0.0)
    return threshold + (weights.sum(-1, keepdim=True) - 1) / slope.sum(-1, keepdim=True)


def _exponential(exponent: Tensor, curvature: Tensor) -> Tensor:
    """Compute p of ``Entmax``, ``[1 + (α − 1) x]₊^(1 / (α − 1))`` with x = e − (τ + 1) / (α − 1)."""
    change = curvature * exponent
    positive = change > -1
    change = change.where(positive, 0.0)  # log(0) has no gradient
    return (change.log1p() / curvature).exp().where(positive, 0.0)
