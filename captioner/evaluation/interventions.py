"""Interventions: what does a decoder say if its attention weights are replaced?

A plan holds the attention weights of every step. It is recorded from a decoder, changed, and imposed on
the same decoder or on another one. The scores of that decoder then have no effect:

    plan = record(decoder, annotations, tokens)
    blind = Intervened(decoder, even(plan, annotations.mask))
    log_probs(blind, annotations, tokens), search(blind, annotations, decoding)

The code in ``captioner.models`` is not changed: a forward hook of every distribution returns the
weights of the plan.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from captioner.errors import EvaluationError
from captioner.models.annotations import Annotations
from captioner.models.decoder import Decoder, StepResult
from captioner.models.distributions import Distribution, Sampling, Weights, masked_softmax
from captioner.models.recurrent import IntraAttention
from captioner.models.scores import at_least_float32

Plan = tuple[Float[Tensor, "... L"], ...]
"""The weights (C, *h, T, L) of T steps of C captions, for every call of a distribution within a step:
one call in an LSTM decoder, one for each layer of a Transformer."""
Tokens = Int[Tensor, "C S"]
"""Captions with ``<start>`` and ``<end>``, padded: S - 1 steps."""

_MODE = Sampling("argmax")  # hard attention looks at its most probable region


@contextmanager
def intercepted(decoder: Decoder, function: Callable[[Weights], Weights]) -> Iterator[None]:
    """Within the context, apply a function to all weights of the decoder's attention to regions."""
    words = {
        part
        for module in decoder.modules()
        if isinstance(module, IntraAttention)
        for part in module.modules()
    }
    with ExitStack() as stack:
        for part in decoder.modules():
            if isinstance(part, Distribution) and part not in words:
                handle = part.register_forward_hook(lambda _module, _inputs, out: function(out))
                stack.callback(handle.remove)
        yield


@torch.no_grad()
def record(decoder: Decoder, annotations: Annotations, tokens: Tokens) -> Plan:
    """Return the decoder's own weights; hard attention looks at its most probable region.

    Args:
        decoder: in eval mode.
        annotations: after the neck, of the image of each caption.
        tokens: the captions. The weights of steps after the end are those of a step on padding.
    """
    state = decoder.init_state(annotations, sampling=_MODE)
    steps: list[list[Tensor]] = []
    for words in tokens[:, :-1].unbind(1):
        calls: list[Tensor] = []

        def keep(weights: Weights, calls: list[Tensor] = calls) -> Weights:
            calls.append(weights.weights)
            return weights

        with intercepted(decoder, keep):
            _, _, state = decoder.step(words, state)
        steps.append(calls)
    return tuple(torch.cat(of_call, -2) for of_call in zip(*steps, strict=True))


@dataclass(frozen=True)
class IntervenedState:
    """The state of ``Intervened`` between two words."""

    inner: Any
    plan: Plan
    words: int = 0

    def reorder(self, rows: Int[Tensor, "B K"]) -> "IntervenedState":
        """Return the state whose row k of image b continues row ``rows[b, k]``."""
        return replace(self, inner=self.inner.reorder(rows))


class Intervened(Decoder, abstract=True):
    """A decoder with the attention weights of a plan, instead of its own.

    Args:
        decoder: the decoder, which is not changed.
        plan: the weights of the images that the decoder will be given, in their order, with as many
            regions. All rows of an image use the same weights. A step after the last one uses the first
            one again.
    """

    def __init__(self, decoder: Decoder, plan: Plan) -> None:
        super().__init__()
        self.decoder, self.plan = decoder, plan

    def init_state(
        self, annotations: Annotations, rows: int = 1, sampling: Sampling | None = None
    ) -> IntervenedState:
        """Return the state before the first word."""
        inner = self.decoder.init_state(annotations, rows, sampling or _MODE)
        return IntervenedState(inner, self.plan)

    def read(self, tokens: Int[Tensor, "B R"], state: IntervenedState) -> StepResult:
        """Run a step of the decoder with the weights of the plan."""
        step = state.words % state.plan[0].shape[-2]
        planned = iter(state.plan)

        def impose(own: Weights) -> Weights:
            weights = next(planned)[..., step : step + 1, :]
            return Weights(weights.expand_as(own.weights))

        with intercepted(self.decoder, impose):
            logits, weights, inner = self.decoder.step(tokens, state.inner)
        return logits, weights, replace(state, inner=inner, words=state.words + 1)


@torch.no_grad()
def log_probs(decoder: Decoder, annotations: Annotations, tokens: Tokens) -> Float[Tensor, "C T"]:
    """Return the log-probability of every token after ``<start>``, in nats; undefined after the end."""
    decoded = decoder(annotations, tokens[:, :-1], sampling=_MODE)
    return (
        at_least_float32(decoded.logits).log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
    )


def even(plan: Plan, mask: Bool[Tensor, "C L"] | None) -> Plan:
    """Return the plan that gives the same weight to all unmasked regions."""
    masks = region_masks(plan, mask)
    return tuple(masked_softmax(0 * part, of) for part, of in zip(plan, masks, strict=True))


def region_masks(plan: Plan, mask: Bool[Tensor, "C L"] | None) -> list[Tensor | None]:
    """Return the mask for every part of a plan, (C, *1, 1, L)."""
    return [None if mask is None else mask.view(len(mask), *[1] * (p.ndim - 2), -1) for p in plan]


def select(plan: Plan, captions: Int[Tensor, "K T"], steps: Int[Tensor, "K T"]) -> Plan:
    """Return the plan whose step t of caption k is step ``steps[k, t]`` of ``captions[k, t]``."""
    return tuple(part.movedim(-2, 1)[captions, steps].movedim(1, -2) for part in plan)


def own(plan: Plan, lengths: Sequence[int], steps: int) -> Plan:
    """Return the plan with a number of steps: after its last step, a caption starts again.

    Args:
        plan: of C captions.
        lengths: the number of steps of each caption, its end included.
        steps: the number of steps of the result.
    """
    captions = torch.arange(len(lengths))
    return select(plan, *_cycled(captions, [torch.arange(length) for length in lengths], steps))


def between_words(
    plan: Plan, lengths: Sequence[int], steps: int, generator: torch.Generator
) -> Plan:
    """Permute the weights between the words of each caption; see ``own``."""
    captions = torch.arange(len(lengths))
    orders = [torch.randperm(length, generator=generator) for length in lengths]
    return select(plan, *_cycled(captions, orders, steps))


def between_photos(
    plan: Plan,
    lengths: Sequence[int],
    steps: int,
    generator: torch.Generator,
    photos: Sequence[int],
) -> Plan:
    """Give each caption the weights of a caption of another photo; see ``own``.

    The photos are put into a random order. Each one takes the weights of the next one, and the last
    takes those of the first. Caption r of a photo takes the weights of caption r of the other photo.
    ``photos`` has the number of each caption's photo; photos are counted from 0 in order.

    Raises:
        EvaluationError: there is only one photo.
    """
    members: list[list[int]] = [[] for _ in range(max(photos) + 1)]
    for caption, photo in enumerate(photos):
        members[photo].append(caption)
    if len(members) < 2:
        raise EvaluationError("weights of another photo need at least two photos, got one")
    ring = torch.randperm(len(members), generator=generator)
    other = torch.empty_like(ring).index_copy(0, ring, ring.roll(-1)).tolist()
    source = []
    for caption, photo in enumerate(photos):
        number, donors = members[photo].index(caption), members[other[photo]]
        source.append(donors[number % len(donors)])
    orders = [torch.arange(lengths[caption]) for caption in source]
    return select(plan, *_cycled(torch.tensor(source), orders, steps))


def _cycled(
    captions: Int[Tensor, " C"], orders: Sequence[Tensor], steps: int
) -> tuple[Int[Tensor, "C S"], Int[Tensor, "C S"]]:
    """Return the indices for ``select`` that repeat the given order of steps of each caption."""
    numbers = torch.arange(steps)
    chosen = torch.stack([order[numbers % len(order)] for order in orders])
    return captions.unsqueeze(1).expand(-1, steps), chosen
