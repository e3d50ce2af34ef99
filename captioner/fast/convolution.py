"""Convolutions of a frozen network that reorder their weights for oneDNN only once."""

from functools import cache
from typing import Any

import torch
from torch import Size, Tensor, nn


class Conv2d(nn.Conv2d):
    """``nn.Conv2d`` on a CPU for float32 weights that no longer change.

    oneDNN computes torch's convolutions on a CPU. It needs the weights in an order that depends on
    the shape of the input, and torch reorders them at every call. This class keeps a reordered copy
    for every shape whose batch size is in ``batch_sizes``. It uses the calls that ``torch.compile``
    makes, because torch has no public ones.
    """

    batch_sizes: frozenset[int]
    _ordered: dict[Size, Tensor]

    def forward(self, images: Tensor) -> Tensor:
        """Compute the feature maps (B, D, h, w) of images (B, C, H, W)."""
        if (
            len(images) not in self.batch_sizes
            or not images.dtype == self.weight.dtype == torch.float32
            or torch.is_grad_enabled()
            or torch.is_autocast_enabled("cpu")
            or torch.compiler.is_compiling()
        ):
            return super().forward(images)
        geometry = (self.padding, self.stride, self.dilation, self.groups)
        if images.shape not in self._ordered:
            self._ordered[images.shape] = _reorder(self.weight, images.shape, *geometry)
        return _convolve(images, self._ordered[images.shape], self.bias, *geometry)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out oneDNN's tensors, which cannot be copied."""
        return {**self.__dict__, "_ordered": {}}


def keep_order(network: nn.Module, batch_sizes: frozenset[int]) -> None:
    """Replace the convolutions of a frozen network on a CPU, in place.

    Args:
        network: its weights must not change afterwards.
        batch_sizes: the batch sizes that recur; for others, torch reorders the weights
            at every call.
    """
    for module in network.modules():
        padded_by_onednn = isinstance(getattr(module, "padding", None), tuple)
        if type(module) is nn.Conv2d and padded_by_onednn and module.padding_mode == "zeros":
            module.__class__ = Conv2d
            module.__dict__ |= {"batch_sizes": batch_sizes, "_ordered": {}}


def _reorder(weight: Tensor, shape: Size, padding: Any, stride: Any, *rest: Any) -> Tensor:
    reorder: Any = torch._C._nn.mkldnn_reorder_conv2d_weight
    return reorder(weight.detach().to_mkldnn(), padding, stride, *rest, shape)


def _convolve(images: Tensor, weight: Tensor, bias: Tensor | None, *geometry: Any) -> Tensor:
    convolve: Any = torch.ops.mkldnn._convolution_pointwise
    return convolve(images, weight, bias, *geometry, "none", [], "")


@cache
def available() -> bool:
    """Return whether this torch has both calls and they work."""
    try:
        images, weight = torch.ones(1, 1, 2, 2), torch.ones(1, 1, 1, 1)
        geometry = ((0, 0), (1, 1), (1, 1), 1)
        ordered = _reorder(weight, images.shape, *geometry)
        computed = torch.equal(_convolve(images, ordered, None, *geometry), images)
        return computed and bool(torch.backends.mkldnn.enabled)
    except (AttributeError, RuntimeError, TypeError):
        return False
