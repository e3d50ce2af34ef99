"""How well a map finds a mask: numbers for one mention, and for two mentions of one caption.

Maps and masks are on the annotation grid of L cells, as the model made the maps: nothing is enlarged or
smoothed. ``masks`` hold m_i, the fraction of cell i that the objects cover. A map is divided by its
sum; one that is zero everywhere looks at all cells alike. Where cells tie, they share: so an even map
scores what chance does, by every number.
"""

import numpy as np
from jaxtyping import Float64, Int, Shaped

METRICS = ("mass", "gain", "pointing", "average_precision", "iou")
"""The numbers of a single mention, all at most 1."""

TIE = 1e-6
"""Differences of mass up to this are rounding, as of float32 weights, and count as ties."""


def normalised(maps: Shaped[np.ndarray, "N L"]) -> Float64[np.ndarray, "N L"]:
    """Maps that sum to 1; a map of zeros becomes an even one."""
    maps = np.asarray(maps, np.float64)
    total = maps.sum(1, keepdims=True)
    return np.where(total > 0, maps / np.where(total > 0, total, 1.0), 1.0 / maps.shape[1])


def scores(
    maps: Float64[np.ndarray, "N L"], masks: Float64[np.ndarray, "N L"]
) -> dict[str, Float64[np.ndarray, " N"]]:
    """The METRICS of every mention.

    - ``mass`` = Σ α_i m_i: how much of the map lies in the mask (attention correctness, Liu et al. 2017,
      with masks in place of boxes). An even map scores the mask's area A = mean(m).
    - ``gain`` = (mass - A) / (1 - A): 0 for an even map, 1 for one inside the mask, negative for worse
      than even.
    - ``pointing``: 1 if the cell looked at most holds any of the mask, that is, if the mask is within
      half a cell of its centre (the pointing game, Zhang et al. 2016); an even map scores its chance,
      the share of cells that hold any.
    - ``average_precision`` of the cells ranked by the map, against those the mask covers by more than
      half (where there is none, against those it covers most). Depends on the order alone.
    - ``iou`` of the k cells looked at most with those k.

    Args:
        maps: that sum to 1.
        masks: neither empty nor full.
    """
    mass, area = (maps * masks).sum(1), masks.mean(1)
    most = maps >= maps.max(1, keepdims=True)
    core = masks > 0.5
    core |= ~core.any(1, keepdims=True) & (masks >= masks.max(1, keepdims=True))
    return {
        "mass": mass,
        "gain": (mass - area) / (1 - area),
        "pointing": (most & (masks > 0)).sum(1) / most.sum(1),
        "average_precision": _average_precision(maps, core),
        "iou": _iou(maps, core),
    }


def discrimination(
    maps: Float64[np.ndarray, "N L"],
    masks: Float64[np.ndarray, "N L"],
    pairs: Int[np.ndarray, "P 2"],
) -> Float64[np.ndarray, " P"]:
    """Paired-object discrimination: 1 for each pair of mentions whose maps are on the right objects.

    That is, if mass(α₁, M₁) + mass(α₂, M₂) exceeds mass(α₁, M₂) + mass(α₂, M₁); ½ if they tie. Chance is
    ½ whatever the objects' sizes and places, and maps that do not depend on the word score just that.
    """
    first, second = pairs[:, 0], pairs[:, 1]
    lead = ((maps[first] - maps[second]) * (masks[first] - masks[second])).sum(1)
    return np.where(np.abs(lead) <= TIE, 0.5, (lead > 0).astype(np.float64))


def entropies(maps: Float64[np.ndarray, "N L"]) -> Float64[np.ndarray, " N"]:
    """Of maps that sum to 1, in nats: 0 for a single cell, log L for an even map."""
    return np.asarray(-(maps * np.log(np.where(maps > 0, maps, 1.0))).sum(1))


def correlation(
    maps: Float64[np.ndarray, "N L"], others: Float64[np.ndarray, "N L"]
) -> Float64[np.ndarray, " N"]:
    """Pearson's correlation of each map with another over the cells, -1 to 1; 0 where one is even.

    The CC of saliency maps (Bylinskii et al. 2019, arXiv 1604.03605).
    """
    one, other = (given - given.mean(1, keepdims=True) for given in (maps, others))
    length = np.sqrt((one**2).sum(1) * (other**2).sum(1))
    # Rounding leaves an even map with a length of its own.
    there = length > TIE**2
    return np.asarray((one * other).sum(1) / np.where(there, length, 1.0) * there)


def _average_precision(
    maps: Float64[np.ndarray, "N L"], core: Shaped[np.ndarray, "N L"]
) -> Float64[np.ndarray, " N"]:
    """Σ (recall gained × precision) over the distinct values of the map, from the greatest."""
    order = np.argsort(-maps, axis=1, kind="stable")
    ranked, right = (np.take_along_axis(values, order, 1) for values in (maps, core))
    length = maps.shape[1]
    last = np.ones(maps.shape, bool)  # of the cells of one value
    last[:, :-1] = ranked[:, :-1] != ranked[:, 1:]
    ends = np.where(last, np.arange(length), length)
    ends = np.minimum.accumulate(ends[:, ::-1], axis=1)[:, ::-1]
    precision = np.take_along_axis(right.cumsum(1), ends, 1) / (ends + 1)
    return np.asarray((precision * right).sum(1) / right.sum(1))


def _iou(
    maps: Float64[np.ndarray, "N L"], core: Shaped[np.ndarray, "N L"]
) -> Float64[np.ndarray, " N"]:
    """Of the top k cells, k being the number of core cells; those that tie for the last places share."""
    k = core.sum(1, keepdims=True)
    least = np.take_along_axis(-np.sort(-maps, axis=1), k - 1, 1)
    above, tied = maps > least, maps == least
    chosen = above + tied * (k - above.sum(1, keepdims=True)) / tied.sum(1, keepdims=True)
    shared = (chosen * core).sum(1)
    return np.asarray(shared / (2 * k[:, 0] - shared))
