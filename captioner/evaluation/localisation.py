"""Localisation metrics: how well an attention map finds an object mask.

Maps and masks have the annotation grid's L cells; nothing is enlarged or smoothed. A mask holds m_i,
the fraction of cell i that the objects cover. A map sums to 1. Cells with equal weights share their
rank, so that a uniform map gets exactly the score of chance in every metric.
"""

import numpy as np
from jaxtyping import Float64, Int, Shaped

METRICS = ("mass", "gain", "pointing", "average_precision", "iou")
"""The metrics of a single mention, all at most 1."""

TIE = 1e-6  # smaller differences of mass are float32 rounding errors and count as ties

Maps = Float64[np.ndarray, "N L"]


def normalised(maps: Shaped[np.ndarray, "N L"]) -> Maps:
    """Divide each map by its sum; a map of zeros becomes uniform."""
    maps = np.asarray(maps, np.float64)
    total = maps.sum(1, keepdims=True)
    return np.where(total > 0, maps / np.where(total > 0, total, 1.0), 1.0 / maps.shape[1])


def scores(maps: Maps, masks: Maps) -> dict[str, Float64[np.ndarray, " N"]]:
    """Compute the METRICS of every mention; no mask may be empty or full.

    - ``mass`` = Σ α_i m_i, the share of the map inside the mask (attention correctness, Liu et al.
      2017, with masks instead of boxes). A uniform map scores the mask's area A = mean(m).
    - ``gain`` = (mass - A) / (1 - A): 0 for a uniform map, 1 for a map inside the mask.
    - ``pointing``: 1 if the cell with the largest weight overlaps the mask (pointing game, Zhang et
      al. 2016).
    - ``average_precision`` of the cells ranked by weight; the positive cells are those that the mask
      covers by more than half or, if there are none, those that it covers most.
    - ``iou`` of the k cells with the largest weights and the k positive cells.
    """
    mass, area = (maps * masks).sum(1), masks.mean(1)
    peak = maps >= maps.max(1, keepdims=True)
    positive = masks > 0.5
    positive |= ~positive.any(1, keepdims=True) & (masks >= masks.max(1, keepdims=True))
    return {
        "mass": mass,
        "gain": (mass - area) / (1 - area),
        "pointing": (peak & (masks > 0)).sum(1) / peak.sum(1),
        "average_precision": _average_precision(maps, positive),
        "iou": _iou(maps, positive),
    }


def discrimination(
    maps: Maps, masks: Maps, pairs: Int[np.ndarray, "P 2"]
) -> Float64[np.ndarray, " P"]:
    """Test for each pair of mentions whether the two maps are on the right objects.

    The result is 1 if mass(α₁, M₁) + mass(α₂, M₂) > mass(α₁, M₂) + mass(α₂, M₁), and ½ for a tie.
    Chance is ½ whatever the objects' sizes and positions; maps that do not depend on the word
    score exactly that.
    """
    first, second = pairs[:, 0], pairs[:, 1]
    lead = ((maps[first] - maps[second]) * (masks[first] - masks[second])).sum(1)
    return np.where(np.abs(lead) <= TIE, 0.5, (lead > 0).astype(np.float64))


def entropies(maps: Maps) -> Float64[np.ndarray, " N"]:
    """Entropy of each map in nats: 0 for a single cell, log L for a uniform map."""
    return np.asarray(-(maps * np.log(np.where(maps > 0, maps, 1.0))).sum(1))


def correlation(maps: Maps, others: Maps) -> Float64[np.ndarray, " N"]:
    """Pearson correlation of two maps over the cells; 0 if one of them is uniform.

    This is the metric CC of Bylinskii et al. 2019 (arXiv 1604.03605).
    """
    one, other = (values - values.mean(1, keepdims=True) for values in (maps, others))
    norm = np.sqrt((one**2).sum(1) * (other**2).sum(1))
    valid = norm > TIE**2  # rounding leaves uniform maps with a tiny norm
    return np.asarray((one * other).sum(1) / np.where(valid, norm, 1.0) * valid)


def _average_precision(
    maps: Maps, positive: Shaped[np.ndarray, "N L"]
) -> Float64[np.ndarray, " N"]:
    """Sum gain in recall × precision over the distinct weights, largest first."""
    order = np.argsort(-maps, axis=1, kind="stable")
    ranked, hits = (np.take_along_axis(values, order, 1) for values in (maps, positive))
    length = maps.shape[1]
    # Rank of the last cell that has the same weight.
    last = np.ones(maps.shape, bool)
    last[:, :-1] = ranked[:, :-1] != ranked[:, 1:]
    ends = np.where(last, np.arange(length), length)
    ends = np.minimum.accumulate(ends[:, ::-1], axis=1)[:, ::-1]
    precision = np.take_along_axis(hits.cumsum(1), ends, 1) / (ends + 1)
    return np.asarray((precision * hits).sum(1) / hits.sum(1))


def _iou(maps: Maps, positive: Shaped[np.ndarray, "N L"]) -> Float64[np.ndarray, " N"]:
    """IoU of the top k cells; cells that tie for rank k are counted in part."""
    k = positive.sum(1, keepdims=True)
    threshold = np.take_along_axis(-np.sort(-maps, axis=1), k - 1, 1)
    above, tied = maps > threshold, maps == threshold
    chosen = above + tied * (k - above.sum(1, keepdims=True)) / tied.sum(1, keepdims=True)
    shared = (chosen * positive).sum(1)
    return np.asarray(shared / (2 * k[:, 0] - shared))
