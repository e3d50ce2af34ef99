"""Linear layers that multiply float32 matrices with oneDNN on AMD's processors with AVX-512.

torch multiplies float32 matrices with MKL, which uses only AVX2 on processors not made by Intel.
oneDNN, which is part of torch, is twice as fast there, and slower on Intel's (docs/speed.md).
"""

import platform
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from captioner.models.packing import missing_rows
from captioner.provenance import cpu_info

Rows = Float[Tensor, "_ k"]
Weight = Float[Tensor, "n k"]

NARROW = 16  # with fewer outputs (the gate of a decoder has one), torch's own product is faster


class Linear(nn.Linear):
    """``nn.Linear`` with a faster CPU matrix product; no double backward."""

    def forward(self, input: Tensor) -> Tensor:
        """Compute ``input @ weight.T + bias``."""
        return linear(input, self.weight, self.bias)


def linear(rows: Tensor, weight: Weight, bias: Tensor | None = None) -> Float[Tensor, "*rows n"]:
    """Compute ``rows @ weight.T + bias``, differentiable once."""
    if len(weight) < NARROW or not _use_onednn(rows, weight):
        return F.linear(rows, weight, bias)
    return _Linear.apply(rows.flatten(0, -2), weight, bias).view(*rows.shape[:-1], -1)


def product(rows: Rows, weight: Weight, bias: Tensor | None = None) -> Float[Tensor, "m n"]:
    """Compute ``rows @ weight.T + bias`` by oneDNN, outside autograd."""
    return by_onednn(_pad(rows), weight, bias)[: len(rows)]


def outer(grad: Float[Tensor, "m n"], rows: Rows) -> Float[Tensor, "n k"]:
    """Compute ``grad.T @ rows``, the gradient of a weight, outside autograd."""
    grad, rows = _pad(grad), _pad(rows)
    if not _use_onednn(grad, rows):
        return grad.T @ rows
    return by_onednn(grad.T, rows.T, None)


def _pad(rows: Rows) -> Rows:
    """On a CPU, append as many rows of zeros as ``missing_rows`` says."""
    if rows.device.type != "cpu" or torch.compiler.is_compiling():
        return rows
    missing = missing_rows(len(rows))
    return F.pad(rows, (0, 0, 0, missing)) if missing else rows


def _use_onednn(rows: Tensor, weight: Tensor) -> bool:
    """Return True for float32 products on a CPU; torch itself uses oneDNN in lower precision."""
    return (
        rows.device.type == "cpu"
        and rows.dtype == weight.dtype == torch.float32
        and rows.ndim > 1
        and rows.numel() > 0
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()  # it needs constant weights here
        and bool(torch.backends.mkldnn.enabled)
        and onednn_is_faster()
    )


@cache
def onednn_is_faster() -> bool:
    """Return True on a processor with AVX-512 not made by Intel, if this torch has the operator."""
    vendor = cpu_info().get("vendor_id") or platform.processor()  # the latter on Windows
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX512") or "GenuineIntel" in vendor:
        return False
    try:
        one = torch.ones(2, 2)
        return bool(torch.equal(by_onednn(one, one, None), one + 1))
    except (AttributeError, RuntimeError, TypeError):
        return False


def by_onednn(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute ``rows @ weight.T + bias`` with the undocumented operator that torch.compile emits."""
    if not weight.is_contiguous() and not weight.T.is_contiguous():
        weight = weight.contiguous()  # for a slice of a matrix, oneDNN has only a very slow kernel
    result: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return result


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return product(rows, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        for_rows, for_weight, for_bias = ctx.needs_input_grad
        return (
            product(grad, weight.T) if for_rows else None,
            outer(grad, rows) if for_weight else None,
            grad.sum(0) if for_bias else None,
        )
