"""Adversarial attention: other weights with the same output (Jain, Wallace 2019, arXiv 1902.10186).

If a word's probabilities stay the same with weights that are far from the model's own, the map of the
word is not the only one that explains it.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from captioner.evaluation.interventions import (
    Intervened,
    IntervenedState,
    Plan,
    Tokens,
    record,
    region_masks,
)
from captioner.models.annotations import Annotations
from captioner.models.decoder import Decoder
from captioner.models.distributions import Sampling, masked_softmax

EPSILON = 0.05  # largest change of the next word's probabilities, in total variation
ITERATIONS = 40  # steps of Adam for each word
RATE = 0.3  # of Adam, on the logits of the weights
PENALTY = 20.0  # of a distance above ``EPSILON``
FURTHEST = math.log(2)
"""The Jensen-Shannon divergence of distributions that have no region in common, in nats."""


class Adversary(NamedTuple):
    """The weights furthest from a decoder's own that were found, for every step of C captions."""

    plan: Plan
    divergence: Float[Tensor, "C T"]  # Jensen-Shannon, to ``FURTHEST``; mean over layers and heads
    distance: Float[Tensor, "C T"]  # total variation of the next word's probabilities, at most ε


def find(
    decoder: Decoder,
    annotations: Annotations,
    tokens: Tokens,
    epsilon: float = EPSILON,
    iterations: int = ITERATIONS,
) -> Adversary:
    """Maximise the divergence of the weights of a step while its output stays within ``epsilon``.

    Each step is attacked alone: the steps before it have the decoder's own weights. Gradient ascent
    starts from even weights. The result is the furthest weights on its path whose output stays within
    ``epsilon``, or the decoder's own weights if there are none.

    Args:
        decoder: in eval mode.
        annotations: after the neck, of the image of each caption; not inference tensors.
        tokens: the captions.
    """
    with torch.no_grad():
        own = record(decoder, annotations, tokens)
        state = decoder.init_state(annotations, sampling=Sampling("argmax"))
    masks = region_masks(own, annotations.mask)
    found = []
    for t, words in enumerate(tokens[:, :-1].unbind(1)):
        step = tuple(part[..., t : t + 1, :] for part in own)
        with torch.no_grad():
            logits, _, after = decoder.step(words, state)

        def distance(
            plan: Plan, words: Tensor = words, state: Any = state, own_logits: Tensor = logits
        ) -> Tensor:
            other, _, _ = Intervened(decoder, plan).step(words, IntervenedState(state, plan))
            return (other.softmax(-1) - own_logits.softmax(-1)).abs().sum(-1) / 2

        found.append(_attack(step, masks, distance, epsilon, iterations))
        state = after
    plans, *numbers = zip(*found, strict=True)
    plan = tuple(torch.cat(of_call, -2) for of_call in zip(*plans, strict=True))
    return Adversary(plan, *(torch.stack(of_step, 1) for of_step in numbers))


def _attack(
    own: Plan,
    masks: Sequence[Tensor | None],
    distance: Callable[[Plan], Tensor],
    epsilon: float,
    iterations: int,
) -> Adversary:
    """Attack one step; ``distance`` maps other weights to the change of the output."""
    logits = [torch.zeros_like(part, requires_grad=True) for part in own]
    optimizer = torch.optim.Adam(logits, RATE)
    plan, furthest = own, own[0].new_zeros(len(own[0]))
    nearest = torch.zeros_like(furthest)
    for _ in range(iterations):
        tried = tuple(masked_softmax(x, mask) for x, mask in zip(logits, masks, strict=True))
        far, change = divergence(own, tried), distance(tried)
        better = (far > furthest) & (change <= epsilon)
        plan = tuple(
            torch.where(better.view(-1, *[1] * (old.ndim - 1)), new.detach(), old)
            for new, old in zip(tried, plan, strict=True)
        )
        furthest = torch.where(better, far.detach(), furthest)
        nearest = torch.where(better, change.detach(), nearest)
        loss = (PENALTY * (change - epsilon).clamp(min=0) - far).sum()
        for part, gradient in zip(logits, torch.autograd.grad(loss, logits), strict=True):
            part.grad = gradient
        optimizer.step()
    return Adversary(plan, furthest, nearest)


def divergence(one: Plan, other: Plan) -> Float[Tensor, " C"]:
    """Return the Jensen-Shannon divergence of weights, averaged over calls, heads and steps, in nats."""
    means = []
    for p, q in zip(one, other, strict=True):
        middle = (p + q) / 2
        both = (_entropy(middle) - (_entropy(p) + _entropy(q)) / 2).flatten(1)
        means.append(both.mean(1))
    return torch.stack(means).mean(0)


def _entropy(weights: Tensor) -> Tensor:
    return torch.special.entr(weights.clamp(min=torch.finfo(weights.dtype).tiny)).sum(-1)
