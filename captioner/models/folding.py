"""Convolutions of networks that do not learn: with their batch norms and padding, in the order that a
CPU wants."""

import copy
from collections import Counter
from collections.abc import Collection
from functools import partial
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Size, Tensor, nn
from torch.nn.utils import fuse_conv_bn_eval

from captioner.models.convolution import Convolution, replaceable
from captioner.models.trunks import Trunk

# What a copy's maps may differ by, of their norm; in float32 they do by 1e-5.
TOLERANCE = 1e-3


def folded(
    network: Trunk, example: Float[Tensor, "B 3 H W"], batches: Collection[int] = ()
) -> Trunk:
    """A copy that computes the same of inputs of one size, but goes over its feature maps less often.

    In eval mode a batch norm is a linear map of each channel: a factor of the weights, and a bias, of
    the convolution that it follows (Jacob et al. 2018, arXiv 1712.05877, §3.2). And a convolution that
    TensorFlow's ``SAME`` gives one more row of zeros behind its input than before is one with as many on
    both sides, whose kernel begins with zeros. Where all that is shows in a run; and the copy must find
    in the example what the network does, or else is the network itself.

    Args:
        network: in eval mode; it is not changed.
        example: an input; with weights in order, where ``batches`` has the number of its images.
        batches: sizes of batches for which the weights are put in order, on a CPU.
    """
    kind = example.device.type
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(kind, enabled=False):
        # Of the same tensors, but for the new convolutions. A copy of a traced network forgets its mode.
        tensors = chain(network.parameters(), network.buffers())
        made = copy.deepcopy(network, {id(tensor): tensor for tensor in tensors}).eval()
        seen = _Seen(made)
        expected = made(example)
        seen.end()
        for name, sizes in seen.padding.items():
            made.set_submodule(name, _padded(made.get_submodule(name), *sizes))
        for name, behind in seen.pairs():
            norm: Any = made.get_submodule(behind)
            convolution: Any = made.get_submodule(name)
            joint = fuse_conv_bn_eval(convolution, norm)
            made.set_submodule(name, joint.to(memory_format=torch.channels_last))
            # timm's norms contain the activation behind them.
            made.set_submodule(behind, getattr(norm, "act", nn.Identity()))
        for name, module in list(made.named_modules()):
            if replaceable(module):
                made.set_submodule(name, Convolution(module, batches))
        same = all(
            (ours - theirs).norm() <= TOLERANCE * theirs.norm()
            for ours, theirs in zip(made(example), expected, strict=True)
        )
    return made if same else network


class _Seen:
    """What a network's convolutions and batch norms do in a run.

    Attributes:
        padding: the sizes of input and output of convolutions that pad their input themselves.
    """

    def __init__(self, network: nn.Module) -> None:
        self.padding: dict[str, tuple[Size, Size]] = {}
        self._found_by: dict[
            int, tuple[str, Tensor]
        ] = {}  # by the tensor, which is kept alive here
        self._pairs: list[tuple[str, str]] = []
        self._used: Counter[str] = Counter()
        self._hooks = [
            module.register_forward_hook(partial(self._look, name))
            for name, module in network.named_modules()
            if isinstance(module, nn.Conv2d | nn.BatchNorm2d)
        ]

    def pairs(self) -> list[tuple[str, str]]:
        """Names of convolutions and of the norms that read what they found, each used once."""
        return [pair for pair in self._pairs if self._used[pair[0]] == self._used[pair[1]] == 1]

    def end(self) -> None:
        """Looks no longer, and lets go of what was found."""
        for hook in self._hooks:
            hook.remove()
        self._found_by.clear()

    def _look(self, name: str, module: Any, given: tuple[Tensor, ...], found: Tensor) -> None:
        self._used[name] += 1
        if isinstance(module, nn.Conv2d):
            self._found_by[id(found)] = (name, found)
            if _pads_itself(module):
                self.padding[name] = (given[0].shape[2:], found.shape[2:])
        elif module.running_mean is not None and given and id(given[0]) in self._found_by:
            self._pairs.append((self._found_by[id(given[0])][0], name))


def _pads_itself(convolution: nn.Conv2d) -> bool:
    if type(convolution) is nn.Conv2d:
        return False
    from timm.layers.conv2d_same import Conv2dSame

    return type(convolution) is Conv2dSame and convolution.dilation == (1, 1)


def _padded(convolution: Any, given: Size, found: Size) -> nn.Conv2d:
    """The same, padded alike on both sides; where that is one more, its kernel begins with zeros."""
    sides = zip(given, found, convolution.kernel_size, convolution.stride, strict=True)
    down, across = (max(0, (out - 1) * step + size - into) for into, out, size, step in sides)
    weight = F.pad(convolution.weight, (across % 2, 0, down % 2, 0))
    made = nn.Conv2d(
        convolution.in_channels,
        convolution.out_channels,
        (weight.shape[2], weight.shape[3]),
        convolution.stride,
        (-(-down // 2), -(-across // 2)),
        groups=convolution.groups,
        device="meta",
    )
    made.weight = nn.Parameter(weight.to(memory_format=torch.channels_last), requires_grad=False)
    made.bias = convolution.bias
    return made.eval()
