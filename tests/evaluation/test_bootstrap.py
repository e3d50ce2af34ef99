"""Bootstrap intervals and means, compared with plain loops."""

import random
import statistics
from dataclasses import astuple

import numpy as np
import pytest

from captioner.evaluation import bootstrap as module
from captioner.evaluation.bootstrap import Bootstrap, Estimate, Ratio, mean

IMAGES = 40


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def test_interval_equals_a_plain_loop(rng, monkeypatch):
    numbers = rng.integers(0, 4, IMAGES).astype(float)  # words of each image; some have none
    sums = rng.normal(2.0, 1.0, IMAGES) * numbers
    draw = random.Random(0)
    means = []
    for _ in range(8000):
        drawn = [draw.randrange(IMAGES) for _ in range(IMAGES)]
        means.append(sum(sums[i] for i in drawn) / sum(numbers[i] for i in drawn))
    cuts = statistics.quantiles(means, n=40)
    result = Bootstrap(IMAGES, 8000).estimate(Ratio(sums, numbers))
    assert result.value == pytest.approx(sums.sum() / numbers.sum())
    # The percentiles of two sets of 8000 resamples differ by a few hundredths of the width.
    assert result.low == pytest.approx(cuts[0], abs=0.05 * (cuts[-1] - cuts[0]))
    assert result.high == pytest.approx(cuts[-1], abs=0.05 * (cuts[-1] - cuts[0]))
    monkeypatch.setattr(module, "BLOCK", 7 * IMAGES)
    again = Bootstrap(IMAGES, 8000).estimate(Ratio(sums, numbers))
    assert astuple(again) == pytest.approx(astuple(result))


def test_differences_are_paired():
    """Two noisy measures that differ by 1 on every image differ by exactly 1."""
    values = np.random.default_rng(1).normal(0, 10, 50)
    bootstrap = Bootstrap(50)
    one, other = (Ratio(of_images, np.ones(50)) for of_images in (values + 1, values))
    assert astuple(bootstrap.difference(one, other)) == pytest.approx((1, 1, 1))
    assert bootstrap.estimate(one).low < 0
    assert bootstrap.difference(one, one) == Estimate(0.0, 0.0, 0.0)


def test_resamples_without_values_are_ignored():
    result = Bootstrap(3).estimate(Ratio(np.array([6.0, 0, 0]), np.array([2.0, 0, 0])))
    assert result == Estimate(3.0, 3.0, 3.0)
    nothing = {"value": None, "low": None, "high": None}
    empty = mean(np.zeros(0), np.zeros(0, int), 3)
    assert Bootstrap(3, 10).intervals({"empty": empty}) == {"empty": nothing}


def test_means_equal_plain_loops(rng):
    image, values = rng.integers(0, 8, 60), rng.random(60)
    counts = rng.integers(0, 3, (20, 8)).astype(float)
    for result, times in zip(mean(values, image, 8)(counts), counts, strict=True):
        rows = np.array([i for i in range(60) for _ in range(int(times[image[i]]))])
        assert result == pytest.approx(values[rows].mean())
