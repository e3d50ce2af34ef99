"""The numbers of a map and a mask, against plain loops; means; baselines."""

import itertools

import numpy as np
import pytest
from pycocotools import mask as rle

from captioner.data.masks import MaskedPicture
from captioner.evaluation.baselines import MaskPrior, mean_of_others, oracle, shuffled
from captioner.evaluation.bootstrap import Bootstrap
from captioner.evaluation.localisation import (
    METRICS,
    correlation,
    discrimination,
    entropies,
    normalised,
    scores,
)
from captioner.evaluation.means import macro, mean, percent


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


def plain(weights, mask):
    """Every number of one map, by loops; ties by trying every order of the cells."""
    cells = range(len(mask))
    total = sum(weights)
    weights = [w / total for w in weights]
    mass = sum(weights[i] * mask[i] for i in cells)
    area = sum(mask) / len(mask)
    core = [m > 0.5 for m in mask]
    if not any(core):
        core = [m == max(mask) for m in mask]
    top = [i for i in cells if weights[i] == max(weights)]
    precision_sum = 0.0
    for value in set(weights):
        chosen = [i for i in cells if weights[i] >= value]
        new = [i for i in cells if weights[i] == value]
        precision = sum(core[i] for i in chosen) / len(chosen)
        precision_sum += precision * sum(core[i] for i in new) / sum(core)
    return {
        "mass": mass,
        "gain": (mass - area) / (1 - area),
        "pointing": sum(mask[i] > 0 for i in top) / len(top),
        "average_precision": precision_sum,
    }


def test_scores_are_those_of_plain_loops(rng, masks):
    maps = rng.integers(0, 4, masks.shape).astype(float)  # many ties
    maps[:, 0] += 0.5
    found = scores(normalised(maps), masks)
    assert set(found) == set(METRICS)
    for row, mask in enumerate(masks):
        for metric, value in plain(maps[row], mask).items():
            assert found[metric][row] == pytest.approx(value), metric


def test_iou_is_that_of_the_best_cells(rng, masks):
    maps = normalised(rng.random(masks.shape))  # no ties
    found = scores(maps, masks)["iou"]
    for row, mask in enumerate(masks):
        core = {i for i, m in enumerate(mask) if m > 0.5} or {int(np.argmax(mask))}
        best = set(sorted(range(len(mask)), key=lambda i: -maps[row, i])[: len(core)])
        assert found[row] == pytest.approx(len(core & best) / len(core | best))


def test_an_even_map_scores_chance(masks):
    even = normalised(np.zeros(masks.shape))  # one that looks nowhere is even
    found = scores(even, masks)
    core = masks > 0.5
    core[~core.any(1)] = (masks == masks.max(1, keepdims=True))[~core.any(1)]
    np.testing.assert_allclose(found["mass"], masks.mean(1))
    np.testing.assert_allclose(found["gain"], 0, atol=1e-12)
    np.testing.assert_allclose(found["pointing"], (masks > 0).mean(1))
    np.testing.assert_allclose(found["average_precision"], core.mean(1))


def test_discrimination_is_a_plain_comparison_of_masses(rng, masks):
    maps = normalised(rng.random(masks.shape))
    pairs = np.array(list(itertools.combinations(range(20), 2)))
    found = discrimination(maps, masks, pairs)
    for value, (i, j) in zip(found, pairs, strict=True):
        right = sum(maps[i] * masks[i]) + sum(maps[j] * masks[j])
        wrong = sum(maps[i] * masks[j]) + sum(maps[j] * masks[i])
        assert value == (right > wrong)


def test_maps_that_ignore_the_word_score_exactly_half(rng, masks):
    one = normalised(rng.random((1, 12))).repeat(len(masks), 0)
    pairs = np.array(list(itertools.combinations(range(len(masks)), 2)))
    # As float32 weights come: not quite the same every time.
    nearly = normalised(one * (1 + 1e-7 * rng.standard_normal(one.shape)))
    for maps in (one, nearly):
        assert set(discrimination(maps, masks, pairs)) == {0.5}
    # Exchanging the two maps of a pair exchanges right and wrong, so that chance is half.
    maps, flipped = normalised(rng.random((2, 12))), np.array([[0, 1]])
    there = discrimination(maps, masks[:2], flipped)
    assert there + discrimination(maps[::-1], masks[:2], flipped) == 1


def test_the_oracle_is_the_best_there_is(rng, masks):
    best = scores(oracle(masks), masks)
    for metric in ("pointing", "average_precision", "iou"):
        np.testing.assert_allclose(best[metric], 1)
    np.testing.assert_allclose(best["mass"], masks.max(1), atol=1e-5)
    for _ in range(50):
        other = scores(normalised(rng.random(masks.shape) ** 20), masks)
        for metric in METRICS:
            assert (other[metric] <= best[metric] + 1e-5).all()


def test_means_are_resampled_by_picture(rng):
    """Against a loop over the pictures of a resample."""
    picture, values = rng.integers(0, 8, 60), rng.random(60)
    counts = rng.integers(0, 3, (20, 8)).astype(float)
    found = mean(values, picture, 8)(counts)
    for drawn, times in zip(found, counts, strict=True):
        rows = [i for i in range(60) for _ in range(int(times[picture[i]]))]
        assert drawn == pytest.approx(values[rows].mean())


def test_macro_means_weigh_groups_alike(rng):
    picture, group = rng.integers(0, 8, 60), rng.choice([1, 2, 5], 60)
    values, counts = rng.random(60), rng.integers(0, 2, (20, 8)).astype(float)
    place = np.stack([picture, group], axis=1)
    for drawn, times in zip(macro(values, place, place, 8)(counts), counts, strict=True):
        there = times[picture] > 0
        means = [values[there & (group == g)].mean() for g in set(group[there])]
        assert drawn == pytest.approx(np.mean(means))


def test_leads_are_of_the_same_resamples(rng):
    picture, values = np.arange(30), rng.random(30)
    both = [mean(values + more, picture, 30) for more in (0.25, 0.0)]
    assert percent(Bootstrap(30, 100), 30, *both) == {"value": 25.0, "low": 25.0, "high": 25.0}


def test_nothing_to_measure_is_no_number():
    nothing = np.zeros(0)
    found = percent(Bootstrap(3, 10), 3, mean(nothing, nothing.astype(int), 3))
    assert found == {"value": None, "low": None, "high": None}


def picture_of(shape, **masks):
    """A picture of so many (rows, columns) pixels, with a mask for each category."""
    encoded = [
        rle.encode(np.asfortranarray(np.reshape(mask, shape), np.uint8)) for mask in masks.values()
    ]
    names = tuple(masks)
    size = shape[::-1]
    return MaskedPicture(0, "x.png", size, (), names, tuple(encoded), (), frozenset(names))


PICTURES = [
    picture_of((2, 2), dog=[1, 0, 0, 0], cat=[0, 0, 0, 1]),
    picture_of((2, 2), dog=[0, 1, 0, 0]),
    picture_of((2, 2), dog=[0, 1, 0, 0], horse=[0, 0, 1, 0]),
]


def test_a_prior_leaves_the_picture_out():
    prior = MaskPrior(PICTURES, (2, 2), leave_out=True)
    np.testing.assert_array_equal(prior.category("dog", 0), [0, 2, 0, 0])
    np.testing.assert_array_equal(prior.category("dog", 1), [1, 1, 0, 0])
    # No other picture has a horse: the mean of all others' masks.
    np.testing.assert_array_equal(prior.category("horse", 2), [1, 1, 0, 1])
    np.testing.assert_array_equal(prior.category("unheard of", 1), [1, 1, 1, 1])
    from_training = MaskPrior(PICTURES, (2, 2), leave_out=False)
    np.testing.assert_array_equal(from_training.category("dog", 0), [1, 2, 0, 0])


def test_the_centre_is_the_gaussian_of_all_masks():
    rows, columns = 9, 15
    y, x = np.mgrid[:rows, :columns]
    blob = (y - 5) ** 2 / 4 + (x - 4) ** 2 / 9 <= 1
    picture = picture_of((rows, columns), dog=blob)
    found = MaskPrior([picture], (rows, columns), leave_out=False).centre(0)
    found = found.reshape(rows, columns) / found.sum()
    assert np.unravel_index(found.argmax(), found.shape) == (5, 4)
    for axis, centre in ((y, 5), (x, 4)):
        own = ((axis[blob] - centre) ** 2).mean()
        # A cell's own spread is 1/12; the Gaussian's tails are cut at the border.
        assert (found * (axis - centre) ** 2).sum() == pytest.approx(own + 1 / 12, rel=0.1)
    lonely = MaskPrior([picture], (rows, columns), leave_out=True)
    assert not lonely.centre(0).any()  # nothing to learn from


def test_the_mean_map_is_that_of_the_other_pictures(rng):
    maps, picture = normalised(rng.random((6, 4))), np.array([0, 0, 1, 1, 1, 4])
    found = mean_of_others(maps, picture, np.array([1, 4, 1]))
    np.testing.assert_allclose(found[0], normalised(maps[[0, 1, 5]].mean(0)[None])[0])
    np.testing.assert_allclose(found[1], normalised(maps[:5].mean(0)[None])[0])
    alone = mean_of_others(maps[:2], picture[:2], np.array([0]))
    np.testing.assert_allclose(alone[0], 0.25)


def test_shuffling_keeps_a_captions_maps(rng):
    maps = rng.random((9, 4))
    mixed = shuffled(maps, rng)
    assert not np.array_equal(mixed, maps)
    assert sorted(map(tuple, mixed)) == sorted(map(tuple, maps))


def test_entropy_and_correlation_are_those_of_the_books(rng):
    maps, others = (normalised(rng.random((20, 12))) for _ in range(2))
    for one, other, entropy, like in zip(
        maps, others, entropies(maps), correlation(maps, others), strict=True
    ):
        assert entropy == pytest.approx(-sum(p * np.log(p) for p in one))
        assert like == pytest.approx(np.corrcoef(one, other)[0, 1])
    even, single = np.full((1, 12), 1 / 12), np.eye(12)[:1]
    assert entropies(even)[0] == pytest.approx(np.log(12))
    assert entropies(single)[0] == 0
    assert correlation(even, maps[:1])[0] == correlation(maps[:1], even)[0] == 0
    assert correlation(single, single)[0] == pytest.approx(1)
