"""Linear layers that multiply float32 matrices with oneDNN on AMD's processors with AVX-512.

torch multiplies float32 matrices with MKL, which uses only AVX2 on processors not made by Intel.
oneDNN, which is part of torch, is twice as fast there, and slower on Intel's (docs/speed.md). torch
calls it for convolutions, and if the first factor is in oneDNN's layout, ``Tensor.to_mkldnn``.
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
MANY = 256  # from this number of rows on, a convolution is the fastest
IMAGES = 16  # torch does not give a convolution of fewer images to oneDNN


class Linear(nn.Linear):
    """``nn.Linear`` with a faster CPU matrix product; no double backward."""

    def forward(self, input: Tensor) -> Tensor:
        """Compute ``input @ weight.T + bias``."""
        return linear(input, self.weight, self.bias)


def linear(rows: Tensor, weight: Weight, bias: Tensor | None = None) -> Float[Tensor, "*rows n"]:
    """Compute ``rows @ weight.T + bias``, differentiable once."""
    if len(weight) < NARROW or not _use_onednn(rows, weight):
        return F.linear(rows, weight, bias)
    flat = rows.flatten(0, -2)
    padded = _pad(flat)
    if len(flat) >= MANY:
        product = _convolved(padded, weight, bias)
    else:
        constant = None if bias is None else bias.detach()
        product = F.linear(padded.to_mkldnn(), weight.detach(), constant).to_dense()
        if torch.is_grad_enabled() and weight.requires_grad:
            product = _WeightGradient.apply(product, padded.detach(), weight, bias)
    if len(padded) > len(flat):  # the gradient of a slice is a copy
        product = product[: len(flat)]
    return product.view(*rows.shape[:-1], -1)


def _convolved(rows: Rows, weight: Weight, bias: Tensor | None) -> Float[Tensor, "_ n"]:
    """Compute the product as a 1 × 1 convolution; the rows are the pixels of ``IMAGES`` images."""
    images = rows.contiguous().view(IMAGES, -1, 1, rows.shape[1]).permute(0, 3, 1, 2)
    return F.conv2d(images, weight[:, :, None, None], bias).permute(0, 2, 3, 1).flatten(0, 2)


class _WeightGradient(torch.autograd.Function):
    """Return a product unchanged; compute the gradient of its weight and bias by ``outer``."""

    @staticmethod
    def forward(ctx: Any, product: Tensor, rows: Tensor, *_: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows)
        return product.view_as(product)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (rows,) = ctx.saved_tensors
        return grad, None, outer(grad, rows), grad.sum(0) if ctx.needs_input_grad[3] else None


def outer(grad: Float[Tensor, "m n"], rows: Rows) -> Float[Tensor, "n k"]:
    """Compute ``grad.T @ rows``, the gradient of a weight, outside autograd."""
    grad, rows = _pad(grad), _pad(rows)
    if not _use_onednn(grad, rows):
        return grad.T @ rows
    return F.linear(grad.T.to_mkldnn(), rows.T.contiguous()).to_dense()


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
        and not torch.compiler.is_compiling()
        and bool(torch.backends.mkldnn.enabled)
        and onednn_is_faster()
    )


@cache
def onednn_is_faster() -> bool:
    """Return True on a processor with AVX-512 not made by Intel, if torch was built with oneDNN."""
    vendor = cpu_info().get("vendor_id") or platform.processor()  # the latter on Windows
    avx512 = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    built = bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
    return avx512 and "GenuineIntel" not in vendor and built
