"""The energies of additive attention, vᵀ tanh(q + k) for every pair, without a tanh of every pair."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

# What is at work at once stays in a processor's cache: half a million numbers or so.
IN_CACHE = 2**19
# tanh is ±1 in double precision from 19 on. A sum of two that are clamped here is wrong only where both
# are beyond and of opposite signs; their exponentials are finite in float32.
LARGEST = 40.0


def exponential(vectors: Float[Tensor, "*rows A"]) -> Float[Tensor, "*rows A"]:
    """e^{2x}, in float32 at least: of a key, what all queries want of it."""
    wide = torch.promote_types(vectors.dtype, torch.float32)
    return (2 * vectors.to(wide).clamp(-LARGEST, LARGEST)).exp()


def energies(
    query: Float[Tensor, "B T A"], key: Float[Tensor, "B L A"], weight: Float[Tensor, " A"]
) -> Float[Tensor, "B T L"]:
    """``Σ_a weight_a tanh(query_a + key_a)`` of every query with every key of its picture.

    With s = 1 / (1 + e^{2q} e^{2k}), tanh(q + k) = 1 - 2 s: exponentials of queries and keys, which are
    few, instead of a tanh of every pair. Nothing of the size B · T · L · A is kept: the gradient, in
    which 1 - tanh² = 4 s (1 - s), makes s again.

    Args:
        query: T queries of each picture, projected.
        key: ``exponential`` of its L keys, projected.
        weight: v.

    Returns:
        In float32 at least.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    return _Energies.apply(query.to(wide), key.to(wide), weight.to(wide))


class _Energies(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
        query = exponential(query)
        ctx.save_for_backward(query, key, weight)
        found = query.new_empty(*query.shape[:2], key.shape[1])
        for part, shares in _shares(query, key):
            torch.mv(shares.flatten(0, 2), weight, out=found[part].view(-1))
        return weight.sum() - 2 * found

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, weight = ctx.saved_tensors
        of_query, of_key = torch.empty_like(query), torch.empty_like(key)
        of_weight = torch.zeros_like(weight)
        for part, shares in _shares(query, key):
            given = gradient[part]
            of_weight += given.flatten() @ shares.flatten(0, 2)
            torch.addcmul(shares, shares, shares, value=-1, out=shares)
            shares.mul_(given.unsqueeze(-1))
            torch.sum(shares, 2, out=of_query[part])
            torch.sum(shares, 1, out=of_key[part])
        slope = 4 * weight
        # Of K = e^{2k}, by which autograd asks: dL/dK = dL/dk / (2 K).
        return of_query * slope, of_key * slope / (2 * key), gradient.sum() - 2 * of_weight


def _shares(query: Tensor, key: Tensor) -> Any:
    """s of every pair, (b, T, L, A), some pictures at a time: which, and s, in one buffer."""
    pairs = query.shape[1] * key.shape[1] * key.shape[2]
    some = max(1, IN_CACHE // max(1, pairs)) if query.device.type == "cpu" else len(query)
    buffer = query.new_empty(min(some, len(query)), query.shape[1], *key.shape[1:])
    one = query.new_ones(())
    for first in range(0, len(query), some):
        part = slice(first, first + some)
        shares = buffer[: len(query[part])]
        # 1 + q k in one pass over the buffer instead of two.
        torch.addcmul(one, query[part].unsqueeze(2), key[part].unsqueeze(1), out=shares)
        yield part, shares.reciprocal_()
