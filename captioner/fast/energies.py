"""Additive attention that evaluates exponentials of queries and keys instead of a tanh per pair."""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from captioner.models import scores

# Pairs are processed in chunks of this many numbers, which fit into a processor's cache.
CHUNK = 2**19
# tanh(19) is 1 in double precision. Clamping at ±40 keeps the exponentials finite in float32. It
# changes the result only where a query and a key are both beyond ±40 with opposite signs.
LIMIT = 40.0


class Additive(scores.Additive, abstract=True):
    """``scores.Additive``, computed by ``energies``."""

    def prepare(self, keys: Float[Tensor, "B L D"]) -> scores.PreparedKeys:
        """Compute ``exp(2 (U k + b))``."""
        return exponential(self.key(keys))

    def forward(self, query: scores.Queries, keys: scores.PreparedKeys) -> scores.Scores:
        """Compute ``vᵀ tanh(W q + U k + b)`` for every pair, in at least float32."""
        return energies(self.query(query), keys, self.energy.weight[0])


def exponential(vectors: Float[Tensor, "*rows A"]) -> Float[Tensor, "*rows A"]:
    """Compute ``exp(2 x)`` in at least float32."""
    dtype = torch.promote_types(vectors.dtype, torch.float32)
    return (2 * vectors.to(dtype).clamp(-LIMIT, LIMIT)).exp()


def energies(
    query: Float[Tensor, "B T A"], key: Float[Tensor, "B L A"], weight: Float[Tensor, " A"]
) -> Float[Tensor, "B T L"]:
    """Compute ``Σ_a weight_a tanh(query_a + k_a)`` for every pair of an image, in at least float32.

    ``key`` is ``exponential(k)``. With s = 1 / (1 + e^{2q} e^{2k}), tanh(q + k) = 1 - 2 s: one
    exponential per query and per key instead of one tanh per pair. No tensor of size B · T · L · A is
    kept; the backward pass, where 1 - tanh² = 4 s (1 - s), computes s again. No double backward.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    return _Energies.apply(query.to(dtype), key.to(dtype), weight.to(dtype))


class _Energies(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
        query = exponential(query)
        ctx.save_for_backward(query, key, weight)
        total = query.new_empty(*query.shape[:2], key.shape[1])
        for images, s in _chunks(query, key):
            torch.mv(s.flatten(0, 2), weight, out=total[images].view(-1))
        return weight.sum() - 2 * total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, weight = ctx.saved_tensors
        grad_query, grad_key = torch.empty_like(query), torch.empty_like(key)
        grad_weight = torch.zeros_like(weight)
        for images, s in _chunks(query, key):
            upstream = grad[images]
            grad_weight += upstream.flatten() @ s.flatten(0, 2)
            torch.addcmul(s, s, s, value=-1, out=s)  # s (1 - s)
            s.mul_(upstream.unsqueeze(-1))
            torch.sum(s, 2, out=grad_query[images])
            torch.sum(s, 1, out=grad_key[images])
        slope = 4 * weight
        # The input is K = e^{2k}, hence dL/dK = dL/dk / (2 K).
        return grad_query * slope, grad_key * slope / (2 * key), grad.sum() - 2 * grad_weight


def _chunks(query: Tensor, key: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield images and s of all their pairs, (b, T, L, A), which the next step overwrites."""
    pairs = query.shape[1] * key.shape[1] * key.shape[2]
    size = max(1, CHUNK // max(1, pairs)) if query.device.type == "cpu" else len(query)
    buffer = query.new_empty(min(size, len(query)), query.shape[1], *key.shape[1:])
    one = query.new_ones(())
    for first in range(0, len(query), size):
        images = slice(first, first + size)
        s = buffer[: len(query[images])]
        torch.addcmul(one, query[images].unsqueeze(2), key[images].unsqueeze(1), out=s)
        yield images, s.reciprocal_()
