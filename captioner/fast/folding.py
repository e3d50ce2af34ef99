"""A faster ``CNNEncoder``: small chunks, batch norms and padding folded into the convolutions."""

import copy
from collections import Counter
from functools import partial
from itertools import chain
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Size, Tensor, nn
from torch.nn.utils import fuse_conv_bn_eval

from captioner.models import encoder
from captioner.models.backbone import Backbone

# Pixels computed together: 4 images of 224 × 224 on a CPU, so that feature maps fit in its caches, and
# 64 on other devices, so that memory does not grow with the batch.
CPU_PIXELS, DEVICE_PIXELS = 250_000, 64 * 224 * 224

# Largest difference between the feature maps of the folded network and the plain one, relative to
# their norm. In float32 it is about 1e-5.
TOLERANCE = 1e-3


class CNNEncoder(encoder.CNNEncoder, abstract=True):
    """``CNNEncoder`` that folds a frozen network and splits batches.

    A network that is being trained runs in float32 on a CPU even under autocast, because gradients of
    bfloat16 convolutions take 2.5 times as long there.
    """

    # A tuple, so that the folded network is not registered as a submodule.
    _folded: tuple[Any, Backbone] | None = None

    def _features(self, images: UInt8[Tensor, "B 3 H W"]) -> Float[Tensor, "B D rows columns"]:
        on_cpu = images.device.type == "cpu"
        if torch.is_grad_enabled() and not on_cpu:
            return super()._features(images)
        size = chunk_size(images)
        keep_autocast = torch.is_autocast_enabled("cpu") and not torch.is_grad_enabled()
        with torch.autocast("cpu", enabled=keep_autocast):
            chunks = map(super()._features, torch.split(images, size))
            return torch.cat(list(chunks))

    def _maps(self, pixels: Float[Tensor, "B 3 H W"]) -> list[Tensor]:
        if self.trainable or not len(pixels):
            return super()._maps(pixels)
        tensors = chain(self.backbone.parameters(), self.backbone.buffers())
        # Changes when a tensor is replaced, moved or written to.
        state = [(t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors]
        key = (pixels.shape[2:], state)
        if self._folded is None or self._folded[0] != key:
            self._folded = (key, fold(self.backbone, pixels[:1]))
        return self._folded[1](pixels)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_folded": None}


def chunk_size(images: UInt8[Tensor, "B 3 H W"] | Float[Tensor, "B 3 H W"]) -> int:
    """Return how many images of this size are computed together on their device."""
    pixels = CPU_PIXELS if images.device.type == "cpu" else DEVICE_PIXELS
    return max(1, pixels // (images.shape[2] * images.shape[3]))


def fold(network: Backbone, example: Float[Tensor, "B 3 H W"]) -> Backbone:
    """Return a copy of a network with fewer operations on its feature maps.

    - The weights and the bias of a convolution absorb the factor and the constant that the batch
      norm after it applies to each channel (Jacob et al. 2018, arXiv 1712.05877, §3.2).
    - TensorFlow's ``SAME`` padding can be one pixel larger after the input than before it. Equal
      padding on both sides gives the same result if zeros are put before the kernel. It needs no
      padded copy of the input.

    Args:
        network: in eval mode; it is not changed.
        example: an input; the copy is for inputs of its height and width. If the copy's result for
            it differs from the network's, the network itself is returned.
    """
    with (
        torch.inference_mode(False),
        torch.no_grad(),
        torch.autocast(example.device.type, enabled=False),
    ):
        folded = copy.deepcopy(network).eval()  # a copy of a traced network forgets its mode
        pairs, sizes, expected = _trace(folded, example.clone())
        for name, norm in pairs:
            folding: Any = folded.get_submodule(norm)
            fused = fuse_conv_bn_eval(folded.get_submodule(name), folding)  # type: ignore[type-var]
            folded.set_submodule(name, fused.to(memory_format=torch.channels_last))
            # timm's norms contain the activation that follows them.
            folded.set_submodule(norm, getattr(folding, "act", nn.Identity()))
        for name, (before, after) in sizes.items():
            _pad_alike(cast(nn.Conv2d, folded.get_submodule(name)), before, after)
        equal = all(
            (actual - plain).norm() <= TOLERANCE * plain.norm()
            for actual, plain in zip(folded(example), expected, strict=True)
        )
    return folded if equal else network


def _trace(
    network: Backbone, example: Tensor
) -> tuple[list[tuple[str, str]], dict[str, tuple[Size, Size]], list[Tensor]]:
    """Run a network and record what ``fold`` needs.

    Returns:
        The names of every convolution and of the norm after it, if each is called once; the input and
        output sizes of convolutions with ``SAME`` padding; the feature maps.
    """
    calls: Counter[str] = Counter()
    producers: dict[int, tuple[str, Tensor]] = {}  # holds the tensors, so that ids stay unique
    pairs: list[tuple[str, str]] = []
    sizes: dict[str, tuple[Size, Size]] = {}

    def record(name: str, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        calls[name] += 1
        producer = producers.get(id(inputs[0]))
        if isinstance(module, nn.Conv2d):
            producers[id(output)] = (name, output)
            if type(module).__name__ == "Conv2dSame" and module.dilation == (1, 1):
                sizes[name] = (inputs[0].shape[2:], output.shape[2:])
        elif producer and module.running_mean is not None:
            pairs.append((producer[0], name))

    hooks = [
        module.register_forward_hook(partial(record, name))
        for name, module in network.named_modules()
        if isinstance(module, nn.Conv2d | nn.BatchNorm2d)
    ]
    maps = network(example)
    for hook in hooks:
        hook.remove()
    return [pair for pair in pairs if calls[pair[0]] == calls[pair[1]] == 1], sizes, maps


def _pad_alike(convolution: nn.Conv2d, before: Size, after: Size) -> None:
    """Replace ``SAME`` padding by equal padding on both sides, for these sizes of input and output."""
    axes = zip(before, after, convolution.kernel_size, convolution.stride, strict=True)
    down, across = (max(0, (out - 1) * step + size - into) for into, out, size, step in axes)
    weight = F.pad(convolution.weight, (across % 2, 0, down % 2, 0))
    weight = weight.to(memory_format=torch.channels_last)
    convolution.weight = nn.Parameter(weight, requires_grad=False)
    convolution.kernel_size = (weight.shape[2], weight.shape[3])
    convolution.padding = (-(-down // 2), -(-across // 2))
    convolution.__class__ = nn.Conv2d  # instead of our own or timm's Conv2dSame
