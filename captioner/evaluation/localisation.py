"""How well attention maps find object masks, and maps to compare them with.

Maps and masks have the annotation grid's L cells; nothing is enlarged or smoothed. A mask holds m_i,
the fraction of cell i that the objects cover. A map sums to 1. Cells with equal weights share their
rank, so that a uniform map gets exactly the score of chance in every metric.
"""

import numpy as np
from jaxtyping import Float64, Int, Shaped

TIE = 1e-6  # smaller differences of mass are float32 rounding errors and count as ties

Maps = Float64[np.ndarray, "N L"]


def normalised(maps: Shaped[np.ndarray, "N L"]) -> Maps:
    """Divide each map by its sum; a map of zeros becomes uniform."""
    maps = np.asarray(maps, np.float64)
    total = maps.sum(1, keepdims=True)
    return np.where(total > 0, maps / np.where(total > 0, total, 1.0), 1.0 / maps.shape[1])


def spread(boxes: Float64[np.ndarray, "N 4"], grid: tuple[int, int]) -> Float64[np.ndarray, "N L"]:
    """Return for each box the share of its area in each cell of a (rows, columns) grid.

    Boxes are left, top, right and bottom as fractions of the image's sides. Weights of boxes times
    this matrix are a map of cells with the same sum.
    """
    rows, columns = (np.linspace(0, 1, cells + 1) for cells in grid)
    left, top, right, bottom = boxes.T[..., None]
    right, bottom = np.maximum(right, left + 1e-6), np.maximum(bottom, top + 1e-6)  # area > 0
    down = np.clip(np.minimum(rows[1:], bottom) - np.maximum(rows[:-1], top), 0, None)
    across = np.clip(np.minimum(columns[1:], right) - np.maximum(columns[:-1], left), 0, None)
    return normalised((down[:, :, None] * across[:, None]).reshape(len(boxes), -1))


def pointing(maps: Maps, masks: Maps) -> Float64[np.ndarray, " N"]:
    """1 if the cell with the largest weight overlaps the mask (pointing game, Zhang et al. 2016)."""
    peak = maps >= maps.max(1, keepdims=True)
    return np.asarray((peak & (masks > 0)).sum(1) / peak.sum(1))


def mass(maps: Maps, masks: Maps) -> Float64[np.ndarray, " N"]:
    """Σ α_i m_i, the share of the map inside the mask; for a uniform map, the mask's area.

    This is the attention correctness of a word in Liu et al. 2017.
    """
    return np.asarray((maps * masks).sum(1))


def correctness(maps: Float64[np.ndarray, "T L"], mask: Float64[np.ndarray, " L"]) -> float:
    """Return the attention correctness of a phrase: the largest mass of its words (Liu et al. 2017)."""
    return float((maps @ mask).max())


def discrimination(
    maps: Maps, masks: Maps, pairs: Int[np.ndarray, "P 2"]
) -> Float64[np.ndarray, " P"]:
    """Test for each pair of mentions whether the two maps are on the right objects.

    The result is 1 if mass(α₁, M₁) + mass(α₂, M₂) > mass(α₁, M₂) + mass(α₂, M₁), and ½ for a tie. Maps
    that do not depend on the word score exactly ½, which is chance.
    """
    first, second = pairs[:, 0], pairs[:, 1]
    lead = ((maps[first] - maps[second]) * (masks[first] - masks[second])).sum(1)
    return np.where(np.abs(lead) <= TIE, 0.5, (lead > 0).astype(np.float64))


def entropies(maps: Maps) -> Float64[np.ndarray, " N"]:
    """Entropy of each map in nats: 0 for a single cell, log L for a uniform map."""
    return np.asarray(-(maps * np.log(np.where(maps > 0, maps, 1.0))).sum(1))


def mean_of_others(masks: Maps, image: Int[np.ndarray, " N"]) -> Maps:
    """Return for each mask the mean of all masks of other images; ``image`` is the image of each."""
    sums = np.zeros((image.max() + 1, masks.shape[1]))
    np.add.at(sums, image, masks)
    return normalised(np.clip(masks.sum(0) - sums[image], 0, None))


def gaussians(maps: Maps, grid: tuple[int, int]) -> Maps:
    """Return for each map the Gaussian with its mean and its covariance, on the same grid."""
    cells = np.mgrid[: grid[0], : grid[1]].reshape(2, -1) + 0.5
    means = maps @ cells.T  # (N, 2), in cells
    offsets = cells - means[:, :, None]  # (N, 2, L)
    # The variance inside a cell keeps the covariance of a single cell invertible.
    covariances = np.einsum("nl,nil,njl->nij", maps, offsets, offsets) + np.eye(2) / 12
    scaled = np.linalg.solve(covariances, offsets)
    return normalised(np.exp(-0.5 * (offsets * scaled).sum(1)))


def oracle(masks: Maps) -> Maps:
    """Return the best maps on this grid: all weight on the cells that the mask covers most."""
    return normalised(masks >= masks.max(1, keepdims=True))
