"""The randomisation check: does an explanation change when the decoder's weights become random?

A map that stays the same explains the image, not the model (Adebayo et al. 2018, arXiv 1810.03292). The
measure is the rank correlation of a word's map before and after all weights of the decoder are
permuted: 1 for a map that ignores the weights, about 0 for one that depends on them.
"""

import copy

import numpy as np
import torch
from jaxtyping import Float64, Shaped
from torch import nn


def randomised(decoder: nn.Module, seed: int = 0) -> nn.Module:
    """Return a copy of a decoder in which the numbers of each weight and bias are permuted."""
    generator, decoder = torch.Generator().manual_seed(seed), copy.deepcopy(decoder)
    for parameter in decoder.parameters():
        order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
        parameter.data = parameter.data.flatten()[order].view_as(parameter)
    return decoder


def rank_correlations(
    maps: Shaped[np.ndarray, "T L"], others: Shaped[np.ndarray, "T L"]
) -> Float64[np.ndarray, " T"]:
    """Return Spearman's rank correlation of two maps of each word; 0 if one of them is constant."""
    one, other = (np.stack([_centred_ranks(row) for row in part]) for part in (maps, others))
    scale = np.sqrt((one**2).sum(1) * (other**2).sum(1))
    return np.asarray((one * other).sum(1) / np.where(scale > 0, scale, 1))


def _centred_ranks(values: Shaped[np.ndarray, " L"]) -> Float64[np.ndarray, " L"]:
    """Return ranks minus their mean; equal values share the mean of their ranks."""
    _, place, number = np.unique(values, return_inverse=True, return_counts=True)
    ranks = np.cumsum(number) - (number + 1) / 2
    return np.asarray(ranks[place] - (len(values) - 1) / 2)
