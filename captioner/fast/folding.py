"""A faster ``CNNEncoder``: small chunks, and EfficientNet-Lite with its batch norms folded."""

import copy
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn.utils import fuse_conv_bn_eval

from captioner.models import encoder
from captioner.models.efficientnet_lite import Conv2dSame, EfficientNetLite

# Pixels computed together: 4 images of 224 × 224 on a CPU, so that feature maps fit in its caches, and
# 64 on other devices, so that memory does not grow with the batch.
CPU_PIXELS, DEVICE_PIXELS = 250_000, 64 * 224 * 224


class CNNEncoder(encoder.CNNEncoder, abstract=True):
    """``CNNEncoder`` that splits batches, and folds EfficientNet-Lite unless it is trained.

    A network that is being trained runs in float32 on a CPU even under autocast, because gradients of
    bfloat16 convolutions take 2.5 times as long there.
    """

    # A tuple, so that the folded network is not registered as a submodule.
    _folded: tuple[Any, EfficientNetLite] | None = None

    def _features(self, images: UInt8[Tensor, "B 3 H W"]) -> Float[Tensor, "B D rows columns"]:
        on_cpu = images.device.type == "cpu"
        if torch.is_grad_enabled() and not on_cpu:
            return super()._features(images)
        pixels = CPU_PIXELS if on_cpu else DEVICE_PIXELS
        size = max(1, pixels // (images.shape[2] * images.shape[3]))
        keep_autocast = torch.is_autocast_enabled("cpu") and not torch.is_grad_enabled()
        with torch.autocast("cpu", enabled=keep_autocast):
            chunks = map(super()._features, torch.split(images, size))
            return torch.cat(list(chunks))

    def _maps(self, pixels: Float[Tensor, "B 3 H W"]) -> list[Tensor]:
        network = self.backbone.network
        if self.trainable or not isinstance(network, EfficientNetLite) or not len(pixels):
            return super()._maps(pixels)
        tensors = chain(network.parameters(), network.buffers())
        # Changes when a tensor is replaced, moved or written to.
        state = [(t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors]
        key = (pixels.shape[2:], state)
        if self._folded is None or self._folded[0] != key:
            self._folded = (key, fold(network, *pixels.shape[2:]))
        return self._folded[1](pixels)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_folded": None}


def fold(network: EfficientNetLite, height: int, width: int) -> EfficientNetLite:
    """Return a copy of a network with fewer operations on its feature maps.

    - The weights and the bias of a convolution absorb the factor and the constant that the batch
      norm after it applies to each channel (Jacob et al. 2018, arXiv 1712.05877, §3.2).
    - TensorFlow's ``SAME`` padding can be one pixel larger after the input than before it. Equal
      padding on both sides gives the same result if zeros are put before the kernel. It needs no
      padded copy of the input.

    Args:
        network: in eval mode; it is not changed.
        height: of the images, in pixels.
        width: likewise.
    """
    with torch.inference_mode(False), torch.no_grad():
        folded = copy.deepcopy(network)
        size = (height, width)
        convolutions = _of_type(folded, nn.Conv2d)
        norms = _of_type(folded, nn.BatchNorm2d)  # one after every convolution
        for (name, convolution), (norm_name, norm) in zip(convolutions, norms, strict=True):
            fused = fuse_conv_bn_eval(convolution, norm)
            if isinstance(fused, Conv2dSame):
                size = _pad_alike(fused, size)
            folded.set_submodule(name, fused.to(memory_format=torch.channels_last))
            folded.set_submodule(norm_name, nn.Identity())
    return folded


def _of_type(network: nn.Module, cls: type[nn.Module]) -> list[tuple[str, Any]]:
    return [(name, part) for name, part in network.named_modules() if isinstance(part, cls)]


def _pad_alike(convolution: nn.Conv2d, size: tuple[int, int]) -> tuple[int, int]:
    """Replace ``SAME`` padding for an input of this size by equal padding; return the output's size."""
    (height, width), (rows, columns) = size, convolution.kernel_size
    down, right = convolution.stride
    output = (-(-height // down), -(-width // right))
    below = max(0, (output[0] - 1) * down + rows - height)  # pixels of padding in all
    beside = max(0, (output[1] - 1) * right + columns - width)
    weight = F.pad(convolution.weight, (beside % 2, 0, below % 2, 0))
    convolution.weight = nn.Parameter(weight, requires_grad=False)
    convolution.kernel_size = (weight.shape[2], weight.shape[3])
    convolution.padding = (-(-below // 2), -(-beside // 2))
    convolution.__class__ = nn.Conv2d  # without the padding of Conv2dSame
    return output
