"""Do maps depend on what a decoder has learned? (Adebayo et al. 2018, arXiv 1810.03292)"""

import copy

import torch
from jaxtyping import Float
from torch import Tensor, nn


def randomised(decoder: nn.Module, seed: int = 0) -> nn.Module:
    """Return a copy of a decoder in which every parameter keeps its values in a random order."""
    generator, decoder = torch.Generator().manual_seed(seed), copy.deepcopy(decoder)
    for parameter in decoder.parameters():
        shuffle(parameter, generator)
    return decoder


def shuffle(parameter: nn.Parameter, generator: torch.Generator) -> None:
    """Put the values of a parameter into a random order, in place."""
    values = parameter.data
    order = torch.randperm(values.numel(), generator=generator).to(values.device)
    values.copy_(values.flatten()[order].view_as(values))


def rank_correlation(
    one: Float[Tensor, "*maps L"], other: Float[Tensor, "*maps L"]
) -> Float[Tensor, "*maps"]:
    """Return Spearman's correlation of every pair of maps; 0 if all weights of a map are equal."""
    x, y = (ranks - ranks.mean(-1, keepdim=True) for ranks in (_ranks(one), _ranks(other)))
    scale = (x.square().sum(-1) * y.square().sum(-1)).sqrt()
    return torch.where(scale > 0, (x * y).sum(-1) / scale.clamp(min=1e-12), 0.0)


def _ranks(values: Float[Tensor, "*maps L"]) -> Float[Tensor, "*maps L"]:
    """Rank the weights of every map; equal ones share the mean of their ranks."""
    ordered, values = values.sort(-1).values.contiguous(), values.contiguous()
    below, up_to = (torch.searchsorted(ordered, values, right=right) for right in (False, True))
    return (below + up_to).double() / 2
