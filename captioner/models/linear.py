"""Linear maps whose products a CPU makes as fast as it can."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class Linear(nn.Linear):
    """``nn.Linear``, by ``linear``."""

    def forward(self, input: Float[Tensor, "*rows k"]) -> Float[Tensor, "*rows n"]:
        """``input @ weight.T + bias``."""
        return linear(input, self.weight, self.bias)


def linear(
    rows: Float[Tensor, "*rows k"],
    weight: Float[Tensor, "n k"],
    bias: Float[Tensor, " n"] | None = None,
) -> Float[Tensor, "*rows n"]:
    """``rows @ weight.T + bias``, with a gradient, but none of that gradient."""
    if not _suits(rows, weight):
        return F.linear(rows, weight, bias)
    found = _Linear.apply(rows.flatten(0, -2), weight, bias)
    return found.view(*rows.shape[:-1], -1)


def product(
    rows: Float[Tensor, "m k"],
    weight: Float[Tensor, "n k"],
    bias: Float[Tensor, " n"] | None = None,
) -> Float[Tensor, "m n"]:
    """``linear`` without a gradient, for those who have their own."""
    count, rows = len(rows), _filled(rows)
    if not _suits(rows, weight):
        return F.linear(rows, weight, bias)[:count]
    # A part of a matrix would be multiplied number by number.
    dense = weight.is_contiguous() or weight.T.is_contiguous()
    weight = weight if dense else weight.contiguous()
    return by_onednn(rows, weight, bias)[:count]


def outer(gradient: Float[Tensor, "m n"], rows: Float[Tensor, "m k"]) -> Float[Tensor, "n k"]:
    """``gradient.T @ rows``, the gradient of a weight."""
    gradient, rows = _filled(gradient), _filled(rows)
    if not _suits(gradient, rows):
        return gradient.T @ rows
    # The left one is turned around in memory. Where that is more than the other and what is found:
    (count, wide), narrow = gradient.shape, rows.shape[1]
    if count * narrow + wide * narrow < count * wide:
        return by_onednn(rows.T, gradient.T, None).T.contiguous()
    return by_onednn(gradient.T, rows.T, None)


def _filled(rows: Float[Tensor, "m k"]) -> Float[Tensor, "more k"]:
    """With rows of zeros behind them on a CPU, where their number is not round."""
    if rows.device.type != "cpu" or torch.compiler.is_compiling():
        return rows
    missing = missing_rows(len(rows))
    return F.pad(rows, (0, 0, 0, missing)) if missing else rows


def missing_rows(count: int) -> int:
    """How many rows make their number round: a multiple of 16, or of a 32nd of itself or less.

    oneDNN, which torch asks in bfloat16 too, writes a program for every size, which takes as long as a
    small product, and keeps a thousand; and how many words a batch has is another number every time.
    Where those programs lie between matrices that are of no two sizes alike, little of the memory that
    is freed can be used again. Pictures of 49 cells, several together, are round.
    """
    return -count % max(16, 2 ** (count.bit_length() - 6))


def _suits(rows: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN is to be asked. In lower precision torch does so itself."""
    return (
        ONEDNN
        and bool(torch.backends.mkldnn.enabled)
        and rows.device.type == "cpu"
        and rows.dtype == weight.dtype == torch.float32
        and rows.ndim > 1
        and rows.numel() > 0
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()  # torch.compile makes this call of constant weights only
    )


def by_onednn(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``rows @ weight.T + bias``, of two matrices in float32 on a CPU, where ``ONEDNN`` is true."""
    found: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return found


def _onednn() -> bool:
    """Whether torch has what is called here, and the processor what it is called for.

    torch multiplies float32 by MKL, which keeps to AVX2 on processors that are not Intel's; oneDNN, with
    which torch makes its convolutions, uses what the processor has: twice the speed on one with AVX-512
    (docs/speed.md). The call is the one that torch.compile makes, and in no documentation.
    """
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
        return False
    try:
        one = torch.ones(2, 2)
        return bool(torch.equal(by_onednn(one, one, None), one + 1))
    except (AttributeError, RuntimeError, TypeError):
        return False


ONEDNN = _onednn()


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return product(rows, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        of_rows, of_weight, of_bias = ctx.needs_input_grad
        return (
            product(gradient, weight.T) if of_rows else None,
            outer(gradient, rows) if of_weight else None,
            gradient.sum(0) if of_bias else None,
        )
