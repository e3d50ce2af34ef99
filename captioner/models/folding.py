"""Batch norms as part of the convolutions before them, in networks that do not learn."""

import copy
from collections import Counter
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import fuse_conv_bn_eval

from captioner.models.trunks import Trunk

# What a network of the same numbers may differ by, of the norm of its maps: 1e-5 in float32, 1e-3 where
# a GPU rounds its factors.
TOLERANCE = 1e-2


def folded(network: Trunk, example: Float[Tensor, "B 3 H W"]) -> Trunk:
    """A copy that computes the same, but goes over its feature maps less often.

    In eval mode a batch norm is a linear map of each channel: a factor of the weights, and a bias, of
    the convolution that it follows (Jacob et al. 2018, arXiv 1712.05877, §3.2). Which one that is shows
    in a run; and the copy must find in the example what the network does, or else is the network itself.

    Args:
        network: in eval mode; it is not changed.
        example: an input.
    """
    kind = example.device.type
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(kind, enabled=False):
        made = copy.deepcopy(network).eval()  # a copy of a traced network forgets its mode
        pairs, expected = _watched(made, example)
        for before, behind in pairs:
            convolution: Any = made.get_submodule(before)
            norm: Any = made.get_submodule(behind)
            joint = fuse_conv_bn_eval(convolution, norm)
            made.set_submodule(before, joint.to(memory_format=torch.channels_last))
            # timm's norms contain the activation behind them.
            made.set_submodule(behind, getattr(norm, "act", nn.Identity()))
        same = all(
            (ours - theirs).norm() <= TOLERANCE * theirs.norm()
            for ours, theirs in zip(made(example), expected, strict=True)
        )
    return made if same else network


def _watched(network: Trunk, example: Tensor) -> tuple[list[tuple[str, str]], list[Tensor]]:
    """Names of convolutions and of the norms that read what they found, each used once; and the maps."""
    found_by: dict[int, tuple[str, Tensor]] = {}  # by the tensor, which lives as long as it is here
    pairs: list[tuple[str, str]] = []
    used: Counter[str] = Counter()

    def look(name: str, module: nn.Module, given: tuple[Tensor, ...], found: Tensor) -> None:
        used[name] += 1
        if isinstance(module, nn.Conv2d):
            found_by[id(found)] = (name, found)
        elif module.running_mean is not None and given and id(given[0]) in found_by:
            pairs.append((found_by[id(given[0])][0], name))

    hooks = [
        module.register_forward_hook(partial(look, name))
        for name, module in network.named_modules()
        if isinstance(module, nn.Conv2d | nn.BatchNorm2d)
    ]
    maps = network(example)
    for hook in hooks:
        hook.remove()
    return [pair for pair in pairs if used[pair[0]] == used[pair[1]] == 1], maps
