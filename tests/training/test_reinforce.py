"""Hard attention's objectives against exact gradients, by enumerating all paths of locations."""

import itertools
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from captioner.errors import UsageError
from captioner.language.vocabulary import END, PAD, START
from captioner.models import Annotations, Attention, LSTMDecoder
from captioner.models.distributions import Distribution, Hard, QueryContext, Soft, Weights
from captioner.models.scores import Additive
from captioner.models.tensors import map_tensors
from captioner.training import VIMCO, Likelihood, Reinforce, SelfCritical
from gradients import gradient, is_unbiased

L, D, V = 4, 5, 9
WORDS = [6, 8, END]  # the caption y; T = 3
T = len(WORDS)
ROWS, GROUP, BATCHES = 400, 4, 50  # 20,000 samples
BASELINES = ("none", "moving_average", "leave_one_out")
CREDITS = ("caption", "to_go")


class Path(Distribution, abstract=True):
    """Row r attends to ``paths[r, t]`` at step t; stores the scores."""

    def __init__(self, paths):
        super().__init__(0)
        self.paths, self.scores = paths, []

    def forward(self, scores, mask, context):
        index = self.paths[:, len(self.scores)].view(1, -1, 1)
        self.scores.append(scores[0])
        return Weights(torch.zeros_like(scores).scatter(-1, index, 1.0))


def toy(seed=1, distribution=Hard, decoder=LSTMDecoder, **options):
    """A small decoder in training mode that depends on its attention, and one image."""
    torch.manual_seed(seed)
    attention = partial(Attention, score=partial(Additive, dim=3), distribution=distribution)
    model = decoder(V, D, attention=attention, hidden=4, embedding=3, dropout=0.0, **options)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.8)
    image = Annotations(2 * torch.randn(1, L, D, dtype=torch.double), (2, 2))
    return model.double().train(), image


def inputs(rows):
    return torch.tensor([[START, *WORDS[:-1]]]).expand(rows, -1).unsqueeze(0)


def targets(rows):
    return torch.tensor([WORDS]).expand(rows, -1).unsqueeze(0)


def objective(make=Reinforce, **options):
    return make(**{"samples": GROUP, "entropy_weight": 0.0, "doubly_stochastic": 0.0, **options})


def enumerated(decoder, image, words=WORDS):
    """log p(s | a), log p(y | s, a) and the entropy H[s] of every path, word by word."""
    paths = torch.tensor(list(itertools.product(range(L), repeat=len(words))))
    decoder.attention.distribution = Path(paths)
    state = decoder.init_state(image, rows=len(paths))
    log_prob = likelihood = entropy = 0.0
    for t, (before, word) in enumerate(zip([START, *words[:-1]], words, strict=True)):
        logits, weights, state = decoder.step(torch.full((1, len(paths)), before), state)
        index = paths[:, t].unsqueeze(-1)
        assert torch.equal(weights[0].argmax(-1, keepdim=True), index)
        log_probs = decoder.attention.distribution.scores[t].log_softmax(-1)
        log_prob = log_prob + log_probs.gather(-1, index).squeeze(-1)
        likelihood = likelihood + logits[0].log_softmax(-1)[:, word]
        entropy = entropy - (log_probs.exp() * log_probs).sum(-1)
    assert log_prob.exp().sum().item() == pytest.approx(1.0)
    return log_prob, likelihood, entropy


# ── The estimator of the bound's gradient ─────────────────────────────────────────────────────────


def estimates(decoder, image, *objectives):
    """(BATCHES, P) gradients of the bound for each objective, all from the same samples."""
    torch.manual_seed(2)
    gradients = []
    for _ in range(BATCHES + 1):
        decoded = decoder(image, inputs(ROWS))
        losses = [objective(decoded, targets(ROWS)).total for objective in objectives]
        gradients.append(torch.stack([-T * gradient(loss, decoder) for loss in losses]))
    return torch.stack(gradients[1:], 1)  # the first batch initialises the running means


@pytest.fixture(scope="module")
def exact():
    decoder, image = toy()
    log_prob, likelihood, _ = enumerated(decoder, image)
    bound = (log_prob.exp() * likelihood).sum()
    assert bound < torch.logsumexp(log_prob + likelihood, 0)  # Jensen's inequality
    return gradient(bound, decoder)


@pytest.fixture(scope="module")
def sampled():
    """The estimates for every baseline and credit."""
    pairs = list(itertools.product(BASELINES, CREDITS))
    objectives = [objective(baseline=baseline, credit=credit) for baseline, credit in pairs]
    return dict(zip(pairs, estimates(*toy(), *objectives), strict=True))


@pytest.mark.parametrize("credit", CREDITS)
@pytest.mark.parametrize("baseline", BASELINES)
def test_the_estimator_is_unbiased(baseline, credit, exact, sampled):
    assert is_unbiased(sampled[baseline, credit], exact)


def bound_of(log_prob, likelihood, samples):
    """E log 1/N Σ_n p(y | sⁿ, a) over all N-tuples of paths."""
    tuples = torch.tensor(list(itertools.product(range(len(log_prob)), repeat=samples)))
    value = likelihood[tuples].logsumexp(-1) - math.log(samples)
    return (log_prob[tuples].sum(-1).exp() * value).sum()


def test_vimco_is_unbiased_for_its_own_bound(exact):
    """All 4,096 pairs of paths are enumerated; the bound of one sample has another gradient."""
    decoder, image = toy()
    log_prob, likelihood, _ = enumerated(decoder, image)
    single, pair = (bound_of(log_prob, likelihood, samples) for samples in (1, 2))
    truth = torch.logsumexp(log_prob + likelihood, 0)
    assert single < pair < truth
    torch.testing.assert_close(gradient(single, decoder), exact)
    expected, goal = gradient(pair, decoder), gradient(truth, decoder)
    [estimated] = estimates(*toy(), objective(VIMCO, samples=2))
    assert is_unbiased(estimated, expected)
    assert not is_unbiased(estimated, exact)
    [four] = estimates(*toy(), objective(VIMCO))
    one, two, more = ((of - goal).norm() for of in (exact, expected, four.mean(0)))
    assert one > two > more


def test_vimco_equals_a_plain_loop():
    decoder, image = toy()
    torch.manual_seed(3)
    decoded = decoder(image, inputs(2 * GROUP))
    computed = -T * objective(VIMCO)(decoded, targets(2 * GROUP)).total * 2
    log_probs = decoded.logits[0].log_softmax(-1).gather(-1, targets(2 * GROUP)[0, ..., None])
    of_caption, of_path = log_probs.sum((1, 2)), decoded.choice.log_prob[0].sum(-1)
    surrogate = 0.0
    for first in (0, GROUP):
        probs = of_caption[first : first + GROUP].exp().tolist()
        for n in range(GROUP):
            others = [p for m, p in enumerate(probs) if m != n]
            replaced = [*others, math.prod(others) ** (1 / (GROUP - 1))]
            signal = math.log(sum(probs) / GROUP) - math.log(sum(replaced) / GROUP)
            share = probs[n] / sum(probs)
            surrogate = surrogate + share * of_caption[first + n] + signal * of_path[first + n]
    difference = gradient(computed, decoder) - gradient(surrogate, decoder)
    assert difference.abs().max() < 1e-10


def test_baselines_reduce_the_variance(sampled):
    variance = {key: ROWS * values.var(0).sum().item() for key, values in sampled.items()}
    print(variance)  # of the gradient of one sample; shown with pytest -rP
    for credit in CREDITS:
        for baseline in BASELINES[1:]:
            assert variance[baseline, credit] < 0.8 * variance["none", credit]
    # Not moving_average: with to_go, rewards shrink with every step, but the baseline is one number.
    for baseline in ("none", "leave_one_out"):
        assert variance[baseline, "to_go"] < variance[baseline, "caption"]


@pytest.mark.parametrize("name", ["straight_through", "gumbel_softmax"])
def test_relaxed_gradients_are_biased_with_less_variance(name, exact, sampled):
    """The table of docs/training.md: 20,000 samples of every estimator; shown with pytest -rP."""
    model = toy(distribution=partial(Hard, gradient=name))
    [relaxed] = estimates(*model, Likelihood(0.0, 0.0))
    found = {name: relaxed} | {" ".join(key): values for key, values in sampled.items()}
    bias = {key: ((v.mean(0) - exact).norm() / exact.norm()).item() for key, v in found.items()}
    variance = {key: ROWS * values.var(0).sum().item() for key, values in found.items()}
    for key in found:
        print(f"{key}: bias {100 * bias[key]:.1f} %, variance {variance[key]:.1f}")
    assert not is_unbiased(relaxed, exact)
    assert bias[name] > 3 * bias["leave_one_out to_go"]
    assert variance[name] < 0.8 * min(v for key, v in variance.items() if key != name)


def test_the_entropy_term_is_that_of_the_sampled_path():
    """The expectation of λ_e ∂H[s̃] is Σ p(s) ∂H[s]; the likelihood gives Σ p(s) ∂ log p(y | s)."""
    decoder, image = toy()
    log_prob, likelihood, entropy = enumerated(decoder, image)
    expected = gradient((log_prob.exp().detach() * (likelihood + 2.0 * entropy)).sum(), decoder)
    [estimated] = estimates(*toy(), objective(entropy_weight=2.0, reward_weight=0.0))
    assert is_unbiased(estimated, expected)


# ── Other ways to train hard attention ────────────────────────────────────────────────────────────


def test_an_expectation_is_soft_attention():
    """If the expectation always replaces samples: the loss and gradient of Soft, no score term."""
    hard, image = toy(distribution=partial(Hard, expectation=1.0))
    soft, _ = toy(distribution=Soft)
    one = objective(doubly_stochastic=0.5)(hard(image, inputs(GROUP)), targets(GROUP))
    two = Likelihood(0.5, 0.0)(soft(image, inputs(1)), targets(1))
    assert one.terms["reinforce"] == 0
    torch.testing.assert_close(one.total, two.total)
    torch.testing.assert_close(gradient(one.total, hard), gradient(two.total, soft))


def test_the_expectation_is_drawn_once_per_image():
    decoder, _ = toy(distribution=partial(Hard, expectation=0.5))
    images = Annotations(torch.randn(400, L, D, dtype=torch.double), (2, 2))
    tokens = inputs(3).expand(400, -1, -1)
    one_hot = (decoder(images, tokens).weights.amax(-1) == 1).flatten(1)  # (400, R·T)
    assert (one_hot.all(1) | ~one_hot.any(1)).all()
    assert one_hot.all(1).double().mean().item() == pytest.approx(0.5, abs=0.08)
    assert (decoder.eval()(images, tokens).weights.amax(-1) == 1).all()


def test_samples_follow_the_probabilities_at_the_temperature():
    scores = torch.tensor([2.0, 1.0, 0.0, -1.0], dtype=torch.double)
    hard = Hard(1, gradient="straight_through", temperature=2.0).train()
    query = torch.zeros(1, 40_000, 1, dtype=torch.double)
    torch.manual_seed(4)
    output = hard(scores.expand(1, 40_000, L), None, QueryContext(query, (2, 2), None))
    expected = (scores / 2).softmax(-1)
    torch.testing.assert_close(output.weights.mean((0, 1)), expected, atol=0.01, rtol=0)
    torch.testing.assert_close(output.choice.probs[0, 0], expected)


# ── The objective's bookkeeping ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("credit", CREDITS)
@pytest.mark.parametrize("baseline", BASELINES)
def test_padding_does_not_count(baseline, credit):
    decoder, image = toy()
    torch.manual_seed(5)
    decoded = decoder(image, inputs(GROUP))
    options = {"baseline": baseline, "credit": credit, "doubly_stochastic": 1.0}
    one = objective(entropy_weight=0.1, **options)(decoded, targets(GROUP))
    assert set(one.terms) == {"likelihood", "reinforce", "entropy", "doubly_stochastic"}
    padded = map_tensors(
        lambda part: F.pad(part, (0,) * (2 * (part.ndim - 3)) + (0, 2), value=7.0),
        replace(decoded, packed_logits=decoded.logits, valid_mask=None),
    )
    words = F.pad(targets(GROUP), (0, 2), value=PAD)
    two = objective(entropy_weight=0.1, **options)(padded, words)
    torch.testing.assert_close(two.terms | two.measures, one.terms | one.measures)


def test_the_moving_average_starts_from_the_first_batch():
    decoder, image = toy()
    moving = objective(baseline="moving_average")
    torch.manual_seed(6)
    first, second = (
        moving(decoder(image, inputs(GROUP)), targets(GROUP)).measures for _ in range(2)
    )
    assert first["baseline"].item() == pytest.approx(first["reward"].item())
    assert second["baseline"].item() == pytest.approx(first["reward"].item())
    expected = 0.9 * first["reward"].item() + 0.1 * second["reward"].item()
    third = moving(decoder(image, inputs(GROUP)), targets(GROUP)).measures
    assert third["baseline"].item() == pytest.approx(expected, rel=1e-6)


def test_impossible_options_are_refused():
    for make, options in (
        (Reinforce, {"baseline": "leave_one_out", "samples": 1}),
        (VIMCO, {"samples": 1}),
        (SelfCritical, {"samples": 1}),
    ):
        with pytest.raises(UsageError, match="a whole number of 2 or more, got 1"):
            make(**options)


def test_objectives_refuse_decoders_that_they_cannot_train():
    straight_through = toy(distribution=partial(Hard, gradient="straight_through"))[0]
    for decoder in (toy(distribution=Soft)[0], straight_through):
        with pytest.raises(UsageError, match="samples no locations"):
            Reinforce().check(decoder)
        Likelihood().check(decoder)
    for other in (Likelihood(), SelfCritical()):
        with pytest.raises(UsageError, match="choose the objective Reinforce"):
            other.check(toy()[0])
    Reinforce().check(toy()[0])
