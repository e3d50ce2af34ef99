"""Bootstrap intervals: against a plain loop, the normal approximation, and what must be exact."""

import random
import statistics

import numpy as np
import pytest

from captioner.evaluation.bootstrap import Bootstrap, Estimate, ratio

IMAGES = 40


@pytest.fixture
def given():
    """Sums over words of each image, and how many words it has; some have none."""
    rng = np.random.default_rng(3)
    numbers = rng.integers(0, 4, IMAGES).astype(float)
    return rng.normal(2.0, 1.0, IMAGES) * numbers, numbers


def test_interval_equals_a_plain_loop(given):
    sums, numbers = given
    draw = random.Random(0)
    means = []
    for _ in range(8000):
        drawn = [draw.randrange(IMAGES) for _ in range(IMAGES)]
        means.append(sum(sums[i] for i in drawn) / sum(numbers[i] for i in drawn))
    cuts = statistics.quantiles(means, n=40)
    found = Bootstrap(IMAGES, 8000).estimate(ratio(sums, numbers))
    assert found.value == pytest.approx(sums.sum() / numbers.sum())
    # Two sets of 8000 resamples: their percentiles differ by a few hundredths of the width.
    assert found.low == pytest.approx(cuts[0], abs=0.05 * (cuts[-1] - cuts[0]))
    assert found.high == pytest.approx(cuts[-1], abs=0.05 * (cuts[-1] - cuts[0]))


def test_interval_of_a_mean_is_the_normal_one():
    values = np.random.default_rng(1).normal(5, 2, 900)
    found = Bootstrap(900, 4000).estimate(ratio(values))
    half = 1.96 * values.std() / 30
    assert found.low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert found.high == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_differences_are_paired():
    """Two noisy measures that differ by 1 on every image differ by exactly 1; unpaired they may not."""
    values = np.random.default_rng(1).normal(0, 10, 50)
    bootstrap = Bootstrap(50)
    one, other = ratio(values + 1), ratio(values)
    found = bootstrap.estimate(lambda counts: one(counts) - other(counts))
    assert (found.value, found.low, found.high) == pytest.approx((1, 1, 1))
    assert bootstrap.estimate(one).low < 0
    same = bootstrap.estimate(lambda counts: one(counts) - one(counts))
    assert same == Estimate(0.0, 0.0, 0.0)
    assert (found.sign, same.sign) == (1, 0)


def test_resamples_without_anything_to_measure_say_nothing():
    found = Bootstrap(3).estimate(ratio(np.array([6.0, 0, 0]), np.array([2.0, 0, 0])))
    assert found == Estimate(3.0, 3.0, 3.0)


def test_blocks_change_nothing(monkeypatch, given):
    bootstrap = Bootstrap(IMAGES, 300)
    whole = bootstrap.estimate(ratio(*given))
    blocks = bootstrap._blocks
    monkeypatch.setattr(bootstrap, "_blocks", lambda: blocks(7 * IMAGES))
    again = bootstrap.estimate(ratio(*given))
    assert list(again.as_dict().values()) == pytest.approx(list(whole.as_dict().values()))
