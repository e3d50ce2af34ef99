"""Localisation metrics and baseline maps, against plain loops."""

import itertools

import numpy as np
import pytest

from captioner.evaluation.localisation import (
    correctness,
    discrimination,
    entropies,
    gaussians,
    mass,
    mean_of_others,
    normalised,
    oracle,
    pointing,
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


@pytest.mark.parametrize("ties", [True, False])
def test_scores_equal_plain_loops(ties, rng, masks):
    maps = rng.integers(0, 4, masks.shape) + 0.1 if ties else rng.random(masks.shape)
    masses, points = mass(normalised(maps), masks), pointing(normalised(maps), masks)
    for row, mask in enumerate(masks):
        weights = [weight / sum(maps[row]) for weight in maps[row]]
        assert masses[row] == pytest.approx(sum(w * m for w, m in zip(weights, mask, strict=True)))
        peak = [m for w, m in zip(weights, mask, strict=True) if w == max(weights)]
        assert points[row] == pytest.approx(sum(m > 0 for m in peak) / len(peak))
    uniform = normalised(np.zeros(masks.shape))  # zeros become uniform, which scores chance
    np.testing.assert_allclose(mass(uniform, masks), masks.mean(1))
    np.testing.assert_allclose(pointing(uniform, masks), (masks > 0).mean(1))


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
    best = oracle(masks)
    np.testing.assert_allclose(pointing(best, masks), 1)
    np.testing.assert_allclose(mass(best, masks), masks.max(1))
    for _ in range(50):
        other = normalised(rng.random(masks.shape) ** 20)
        assert (mass(other, masks) <= mass(best, masks) + 1e-9).all()


def test_mean_mask_of_the_other_images(masks):
    image = np.array([0, 0, 1, 1, 1, 4])
    means = mean_of_others(masks[:6], image)
    np.testing.assert_allclose(means[2], normalised(masks[[0, 1, 5]].sum(0)[None])[0])
    np.testing.assert_allclose(means[5], normalised(masks[:5].sum(0)[None])[0])
    alone = mean_of_others(masks[:2], image[:2])
    np.testing.assert_allclose(alone, 1 / 12)


def test_correctness_is_the_largest_mass_of_a_phrase(rng, masks):
    maps = normalised(rng.random((3, 12)))
    each = [sum(w * m for w, m in zip(one, masks[0], strict=True)) for one in maps]
    assert correctness(maps, masks[0]) == pytest.approx(max(each))


def test_gaussians_have_the_moments_of_their_maps(rng):
    grid = 3, 4
    maps = np.vstack([normalised(rng.random((5, 12))), np.eye(12)[:1], np.full((1, 12), 1 / 12)])
    for blob, one in zip(gaussians(maps, grid), maps, strict=True):
        cells = [(r + 0.5, c + 0.5) for r in range(3) for c in range(4)]
        mean = np.sum([w * np.array(cell) for w, cell in zip(one, cells, strict=True)], 0)
        offsets = [np.array(cell) - mean for cell in cells]
        spread = sum(w * np.outer(o, o) for w, o in zip(one, offsets, strict=True)) + np.eye(2) / 12
        weights = [np.exp(-0.5 * o @ np.linalg.inv(spread) @ o) for o in offsets]
        np.testing.assert_allclose(blob, np.array(weights) / sum(weights))


def test_entropy_equals_its_definition(rng):
    maps = normalised(rng.random((20, 12)))
    for entropy, one in zip(entropies(maps), maps, strict=True):
        assert entropy == pytest.approx(-sum(p * np.log(p) for p in one))
    assert entropies(np.full((1, 12), 1 / 12))[0] == pytest.approx(np.log(12))
    assert entropies(np.eye(12)[:1])[0] == 0
