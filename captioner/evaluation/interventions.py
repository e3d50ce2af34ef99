"""What does a decoder say if its attention weights are replaced?

    plan = record(decoder, annotations, tokens)
    blind = Intervened(decoder, even(plan, annotations.mask))
    log_probs(blind, annotations, tokens), search(blind, annotations, decoding)

A forward hook of every distribution returns the weights of the plan.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from captioner.models.annotations import Annotations
from captioner.models.decoder import Decoder, StepResult
from captioner.models.distributions import Distribution, Sampling, Weights, masked_softmax
from captioner.models.recurrent import IntraAttention
from captioner.models.scores import at_least_float32

Plan = tuple[Float[Tensor, "... L"], ...]
"""The weights (C, *h, T, L) of T steps of C captions: one tensor in an LSTM decoder, one for each layer
of a Transformer."""
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
    calls: list[Tensor] = []

    def keep(weights: Weights) -> Weights:
        calls.append(weights.weights)
        return weights

    with intercepted(decoder, keep):
        for words in tokens[:, :-1].unbind(1):
            _, _, state = decoder.step(words, state)
    per_step = len(calls) // (tokens.shape[1] - 1)
    return tuple(torch.cat(calls[layer::per_step], -2) for layer in range(per_step))


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
    """A decoder with the attention weights of a plan, instead of its own; the decoder is not changed.

    The plan has the weights of the images that the decoder will be given, in their order. All rows of
    an image use the same weights. A step after the last one uses the first one again.
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
