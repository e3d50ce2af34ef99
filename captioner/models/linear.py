"""Linear maps whose products a CPU makes as fast as it can."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

# torch multiplies float32 by MKL, which keeps to AVX2 on processors that are not Intel's; oneDNN, which
# comes with torch too and makes its convolutions, uses what the processor has: twice the speed on one
# with AVX-512 (docs/speed.md).
_ONEDNN = (
    torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    and torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
)


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
    """``rows @ weight.T + bias``, with a gradient."""
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
    if not _suits(rows, weight):
        return F.linear(rows, weight, bias)
    found: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return found


def _suits(rows: Tensor, weight: Tensor) -> bool:
    """In lower precision torch asks oneDNN itself."""
    return (
        _ONEDNN
        and rows.device.type == "cpu"
        and rows.dtype == weight.dtype == torch.float32
        and rows.ndim > 1
        and rows.numel() > 0
        and not torch.is_autocast_enabled("cpu")
    )


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
            product(gradient.T, rows.T) if of_weight else None,
            gradient.sum(0) if of_bias else None,
        )
