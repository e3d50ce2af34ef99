"""Convolutions that do not learn, their weights laid out once instead of at every call."""

from collections.abc import Collection
from typing import Any, TypeGuard

import torch
from jaxtyping import Float
from torch import Size, Tensor, nn


class Convolution(nn.Conv2d):
    """An ``nn.Conv2d`` whose weights do not change once it was called.

    oneDNN, which multiplies for torch on a CPU, wants the weights in an order that depends on the shape
    of the input, and torch puts them in order for every call (docs/speed.md). Here that is done once for
    batches of some sizes, each a copy of the weights. Another size would be slower with weights in an
    order that is not its own, and is torch's.

    Args:
        like: padded with zeros, if at all, as many on both sides.
        batches: sizes of batches that come again and again.
    """

    def __init__(self, like: nn.Conv2d, batches: Collection[int]) -> None:
        sizes = {name: getattr(like, name) for name in _SIZES}
        super().__init__(**sizes, device="meta")
        self.weight = like.weight
        self.bias = like.bias
        self.batches = batches
        self._ordered: dict[Size, Tensor] = {}

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        """The feature maps of the images."""
        if len(images) not in self.batches or not _suits(images, self.weight):
            return super().forward(images)
        shape, how = images.shape, (self.stride, self.padding, self.dilation, self.groups)
        if shape not in self._ordered:
            self._ordered[shape] = _in_order(self.weight.detach(), shape, *how)
        return _by_onednn(images, self._ordered[shape], self.bias, *how)

    def __getstate__(self) -> dict[str, Any]:
        """Copies put their own weights in order: what oneDNN has cannot be copied."""
        return {**self.__dict__, "_ordered": {}}


_SIZES = (
    *("in_channels", "out_channels", "kernel_size"),
    *("stride", "padding", "dilation", "groups"),
)


def replaceable(module: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Whether it is a convolution of which ``Convolution`` computes the same."""
    return (
        type(module) is nn.Conv2d
        and isinstance(module.padding, tuple)
        and module.padding_mode == "zeros"
    )


def _suits(images: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN is to be asked; it knows no gradient this way."""
    return (
        ONEDNN
        and bool(torch.backends.mkldnn.enabled)
        and images.device.type == "cpu"
        and images.dtype == weight.dtype == torch.float32
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def _in_order(
    weight: Tensor, shape: Size, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    reorder: Any = torch._C._nn.mkldnn_reorder_conv2d_weight
    found: Tensor = reorder(weight.to_mkldnn(), padding, stride, dilation, groups, shape)
    return found


def _by_onednn(
    images: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
) -> Tensor:
    convolve: Any = torch.ops.mkldnn._convolution_pointwise
    found: Tensor = convolve(
        images, weight, bias, padding, stride, dilation, groups, "none", [], ""
    )
    return found


def _onednn() -> bool:
    """Whether torch has what is called here: torch.compile makes these calls, no documentation does."""
    try:
        images, weight = torch.ones(1, 1, 2, 2), torch.ones(1, 1, 1, 1)
        how = ((1, 1), (0, 0), (1, 1), 1)
        found = _by_onednn(images, _in_order(weight, images.shape, *how), None, *how)
        return bool(torch.equal(found, images))
    except (AttributeError, RuntimeError, TypeError):
        return False


ONEDNN = _onednn()
