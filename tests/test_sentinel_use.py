"""How the visual sentinel separates words: AUROC against loops over all pairs of words."""

import numpy as np
import pytest

from captioner.cli.ground_tables import page
from captioner.evaluation.bootstrap import Bootstrap
from captioner.evaluation.grounding import GroundingData
from captioner.evaluation.sentinel_use import Auroc, measures
from captioner.word_classes import FUNCTION_WORDS
from test_grounding import captioner, data, root  # noqa: F401

CAPTION = ("a", "red", "dog", "is", "on", "grass")


def by_pairs(scores, positive):
    """The share of pairs whose positive has the larger score; a tie is half a pair."""
    pairs = [(p, n) for p in scores[positive] for n in scores[~positive]]
    return sum((p > n) + (p == n) / 2 for p, n in pairs) / len(pairs)


def test_auroc_equals_a_loop_over_pairs_of_resampled_words():
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 6, 60) / 5  # with ties
    positive, image = rng.random(60) < 0.4, rng.integers(0, 8, 60)
    counts = np.stack([np.ones(8), *(rng.integers(0, 3, 8) for _ in range(5))])
    found = Auroc(scores, positive, image)(counts)
    for area, drawn in zip(found, counts, strict=True):
        words = np.repeat(np.arange(60), drawn[image].astype(int))
        assert area == pytest.approx(by_pairs(scores[words], positive[words]), abs=1e-12)


def test_without_a_function_word_there_is_no_auroc():
    scores, image = np.array([0.1, 0.9]), np.array([0, 1])
    [area] = Auroc(scores, np.array([True, True]), image)(np.ones((1, 2)))
    assert np.isnan(area)


def collect(data, shares, unknown=None):  # noqa: F811
    collected = GroundingData(None, data, "forced")
    maps = {"model": np.full((len(CAPTION), 4), 0.25)}
    collected.grid = (2, 2)
    for index, share in enumerate(shares):
        collected.images.append(index)
        collected.add_caption(index, CAPTION, maps, unknown, share)
    return collected


def test_shares_of_known_words_are_compared(data):  # noqa: F811
    shares = [np.array([0.2, 0.9, 0.8, 0.3, 0.85, 0.7]), np.array([0.1, 0.6, 0.9, 0.2, 0.4, 0.5])]
    unknown = [False, False, False, True, False, False]  # "is"
    found = Bootstrap(len(data.images), 50).intervals(
        measures(collect(data, shares, unknown).captions, len(data.images))
    )
    content, function = [0.9, 0.8, 0.7, 0.6, 0.9, 0.5], [0.2, 0.85, 0.1, 0.4]
    assert found["content"]["value"] == pytest.approx(np.mean(content), abs=1e-6)
    assert found["function"]["value"] == pytest.approx(np.mean(function), abs=1e-6)
    expected = by_pairs(np.array(content + function), np.arange(10) < 6)
    assert found["auroc"]["value"] == pytest.approx(expected, abs=1e-6)
    assert found["auroc"]["low"] <= found["auroc"]["value"] <= found["auroc"]["high"]


def test_a_model_without_a_sentinel_has_no_such_measure(data):  # noqa: F811
    assert measures(collect(data, [None, None]).captions, len(data.images)) == {}


def test_ground_reports_the_share_of_attention_on_the_photo(data):  # noqa: F811
    from captioner.evaluation.attention_maps import batches

    model = captioner(data, "LuongDecoder", sentinel=True)
    collected = GroundingData(model, data, "forced")
    for batch in batches(model, data.images, 16, []):
        collected.add(batch)
    found = collected.report(resamples=10).report
    shares = {True: [], False: []}
    records = [caption for caption in collected.captions if caption.on_photo is not None]
    assert len(records) == sum(len(image.captions) for image in data.images)
    for record in records:
        assert ((record.on_photo > 0) & (record.on_photo < 1)).all()
        for word, share in zip(record.words, record.on_photo, strict=True):
            shares[word in FUNCTION_WORDS].append(share)
    for name, is_function in (("content", False), ("function", True)):
        assert found["on_photo"][name]["value"] == pytest.approx(
            np.mean(shares[is_function]), abs=1e-6
        )
    report = {"model": "x", "mechanism": "m", "data": "d", "regimes": {"forced": found}}
    [line] = [line for line in page(report).splitlines() if "AUROC" in line]
    assert f"{100 * found['on_photo']['auroc']['value']:.1f} [" in line
