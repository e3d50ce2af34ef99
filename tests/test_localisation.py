"""Localisation metrics and baseline maps, against plain loops."""

import itertools

import numpy as np
import pytest
from pycocotools import mask as rle

from captioner.data.masks import MaskedImage
from captioner.evaluation.baselines import MaskPrior, mean_of_others, oracle
from captioner.evaluation.localisation import (
    METRICS,
    correlation,
    discrimination,
    entropies,
    normalised,
    scores,
)


@pytest.fixture
def rng():
    return np.random.default_rng(3)


@pytest.fixture
def masks(rng):
    """Random masks of 12 cells: some fill cells, some only touch them."""
    masks = np.clip(rng.normal(0.2, 0.5, (40, 12)), 0, 1)
    masks[:10] *= 0.4  # no cell covered by half
    masks[:, 0] = np.maximum(masks[:, 0], 0.05)
    return masks


def plain_scores(weights, mask):
    """All metrics of one map, by loops."""
    cells = range(len(mask))
    weights = [w / sum(weights) for w in weights]
    mass = sum(weights[i] * mask[i] for i in cells)
    area = sum(mask) / len(mask)
    positive = {i for i in cells if mask[i] > 0.5} or {i for i in cells if mask[i] == max(mask)}
    peak = [i for i in cells if weights[i] == max(weights)]
    precision_sum = 0.0
    for value in set(weights):
        ranked = {i for i in cells if weights[i] >= value}
        new = {i for i in cells if weights[i] == value}
        precision_sum += len(positive & ranked) / len(ranked) * len(positive & new)
    best = set(sorted(cells, key=lambda i: -weights[i])[: len(positive)])
    return {
        "mass": mass,
        "gain": (mass - area) / (1 - area),
        "pointing": sum(mask[i] > 0 for i in peak) / len(peak),
        "average_precision": precision_sum / len(positive),
        "iou": len(positive & best) / len(positive | best),
    }


@pytest.mark.parametrize("ties", [True, False])
def test_scores_equal_plain_loops(ties, rng, masks):
    maps = rng.integers(0, 4, masks.shape) + 0.1 if ties else rng.random(masks.shape)
    result = scores(normalised(maps), masks)
    assert set(result) == set(METRICS)
    for row, mask in enumerate(masks):
        expected = plain_scores(maps[row], mask)
        for metric in set(METRICS) - ({"iou"} if ties else set()):
            assert result[metric][row] == pytest.approx(expected[metric]), metric


def test_uniform_map_scores_chance(masks):
    result = scores(normalised(np.zeros(masks.shape)), masks)  # zeros become uniform
    positive = masks > 0.5
    positive[~positive.any(1)] = (masks == masks.max(1, keepdims=True))[~positive.any(1)]
    np.testing.assert_allclose(result["mass"], masks.mean(1))
    np.testing.assert_allclose(result["gain"], 0, atol=1e-12)
    np.testing.assert_allclose(result["pointing"], (masks > 0).mean(1))
    np.testing.assert_allclose(result["average_precision"], positive.mean(1))


def test_discrimination_compares_masses(rng, masks):
    maps = normalised(rng.random(masks.shape))
    pairs = np.array(list(itertools.combinations(range(len(masks)), 2)))
    for value, (i, j) in zip(discrimination(maps, masks, pairs), pairs, strict=True):
        right = sum(maps[i] * masks[i]) + sum(maps[j] * masks[j])
        wrong = sum(maps[i] * masks[j]) + sum(maps[j] * masks[i])
        assert value == (right > wrong)
    # Maps that ignore the word score exactly half, also with rounding errors of float32.
    same = maps[:1].repeat(len(masks), 0)
    nearly = normalised(same * (1 + 1e-7 * rng.standard_normal(same.shape)))
    for one in (same, nearly):
        assert set(discrimination(one, masks, pairs)) == {0.5}


def test_oracle_is_an_upper_bound(rng, masks):
    best = scores(oracle(masks), masks)
    for metric in ("pointing", "average_precision", "iou"):
        np.testing.assert_allclose(best[metric], 1)
    np.testing.assert_allclose(best["mass"], masks.max(1), atol=1e-5)
    for _ in range(50):
        other = scores(normalised(rng.random(masks.shape) ** 20), masks)
        for metric in METRICS:
            assert (other[metric] <= best[metric] + 1e-5).all()


def masked_image(shape, **masks):
    """An image of (rows, columns) pixels with one mask per category."""
    arrays = [np.asfortranarray(np.reshape(mask, shape), np.uint8) for mask in masks.values()]
    names, encoded = tuple(masks), tuple(map(rle.encode, arrays))
    return MaskedImage(0, "x.png", shape[::-1], (), names, encoded, (), frozenset(names))


def test_prior_leaves_the_image_out():
    images = [
        masked_image((2, 2), dog=[1, 0, 0, 0], cat=[0, 0, 0, 1]),
        masked_image((2, 2), dog=[0, 1, 0, 0]),
        masked_image((2, 2), dog=[0, 1, 0, 0], horse=[0, 0, 1, 0]),
    ]
    prior, training = MaskPrior(images, (2, 2)), MaskPrior(images, (2, 2), "training images")
    for found, expected in (
        (prior.category("dog", 0), [0, 2, 0, 0]),
        (prior.category("dog", 1), [1, 1, 0, 0]),
        (prior.category("horse", 2), [1, 1, 0, 1]),  # no other image has a horse: all other masks
        (prior.category("unknown", 1), [1, 1, 1, 1]),
        (training.category("dog", 1), [1, 2, 0, 0]),
        (training.category("unknown", 1), [1, 2, 1, 1]),
    ):
        np.testing.assert_array_equal(found, expected)


def test_the_centre_is_the_gaussian_of_all_masks():
    rows, columns = 9, 15
    y, x = np.mgrid[:rows, :columns]
    blob = (y - 5) ** 2 / 4 + (x - 4) ** 2 / 9 <= 1
    images = [masked_image((rows, columns), dog=blob)]
    centre = MaskPrior(images, (rows, columns), "training images").centre(0)
    centre = centre.reshape(rows, columns) / centre.sum()
    assert np.unravel_index(centre.argmax(), centre.shape) == (5, 4)
    for axis, mean in ((y, 5), (x, 4)):
        variance = ((axis[blob] - mean) ** 2).mean()
        # The variance inside a cell is 1/12; the Gaussian's tails are cut at the border.
        assert (centre * (axis - mean) ** 2).sum() == pytest.approx(variance + 1 / 12, rel=0.1)
    assert not MaskPrior(images, (rows, columns)).centre(0).any()  # no other image


def test_mean_map_of_the_other_images(rng):
    maps, image = normalised(rng.random((6, 4))), np.array([0, 0, 1, 1, 1, 4])
    means = mean_of_others(maps, image, np.array([1, 4, 1]))
    np.testing.assert_allclose(means[0], maps[[0, 1, 5]].mean(0))
    np.testing.assert_allclose(means[1], maps[:5].mean(0))
    alone = mean_of_others(maps[:2], image[:2], np.array([0]))
    np.testing.assert_allclose(alone[0], 0.25)


def test_entropy_and_correlation_equal_their_definitions(rng):
    maps, others = (normalised(rng.random((20, 12))) for _ in range(2))
    entropy, similarity = entropies(maps), correlation(maps, others)
    for row, (one, other) in enumerate(zip(maps, others, strict=True)):
        assert entropy[row] == pytest.approx(-sum(p * np.log(p) for p in one))
        assert similarity[row] == pytest.approx(np.corrcoef(one, other)[0, 1])
    uniform, single = np.full((1, 12), 1 / 12), np.eye(12)[:1]
    assert entropies(uniform)[0] == pytest.approx(np.log(12))
    assert entropies(single)[0] == 0
    assert correlation(uniform, maps[:1])[0] == correlation(maps[:1], uniform)[0] == 0
