"""How the visual sentinel separates words: AUROC against loops over all pairs of words."""

from dataclasses import replace

import numpy as np
import pytest

from captioner.cli.ground_tables import page
from captioner.evaluation.attention_maps import batches
from captioner.evaluation.bootstrap import Bootstrap
from captioner.evaluation.grounding import GroundingData
from captioner.evaluation.sentinel_use import Auroc, measures
from captioner.language.word_classes import FUNCTION_WORDS
from captioner.search.beam import score_captions
from captioner.search.options import Decoding
from tests.evaluation.test_grounding import captioner, data, root  # noqa: F401

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
    [area] = Auroc(np.array([0.1, 0.9]), np.full(2, True), np.arange(2))(np.ones((1, 2)))
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


def report_of(model, data, **options):  # noqa: F811
    """The report of a model, and what was collected."""
    collected = GroundingData(model, data, options.pop("regime", "forced"), **options)
    decoding = Decoding(beam_size=2) if collected.regime == "generated" else None
    for batch in batches(model, data.images, 16, [], decoding=decoding):
        collected.add(batch)
    return collected.report(resamples=10).report, collected.captions


def test_other_models_and_other_maps_have_no_share(data):  # noqa: F811
    report, records = report_of(captioner(data, "LuongDecoder"), data)
    assert "on_photo" not in report
    assert all(record.on_photo is None for record in records)
    few = replace(data, images=data.images[:2])
    report, _ = report_of(captioner(data, "LuongDecoder", sentinel=True), few, method="grad-cam")
    assert "on_photo" not in report


@pytest.mark.parametrize("regime", ["forced", "generated"])
def test_ground_reports_the_share_of_every_word(data, regime):  # noqa: F811
    model = captioner(data, "LuongDecoder", sentinel=True)
    found, records = report_of(model, data, regime=regime)
    shares = {True: [], False: []}
    [first] = [r for r in records if r.image == 0][:1]
    [batch] = batches(model, data.images[:1], 1, [])
    ids = model.vocabulary.encode(list(first.words))
    scored = score_captions(model.decoder, batch.annotations, [ids])[0]
    beta = 1 - scored.weights.double().sum(1).numpy()
    np.testing.assert_allclose(first.on_photo, 1 - beta, atol=1e-5)
    assert len(set(np.round(beta, 6))) > 1
    for record in records:
        for word, share in zip(record.words, record.on_photo, strict=True):
            shares[word in FUNCTION_WORDS].append(share)
    for name, is_function in (("content", False), ("function", True)):
        if shares[is_function]:
            mean = np.mean(shares[is_function])
            assert found["on_photo"][name]["value"] == pytest.approx(mean, abs=1e-6)
    if regime == "forced":
        report = {"model": "x", "mechanism": "m", "data": "d", "regimes": {"forced": found}}
        [line] = [line for line in page(report).splitlines() if "AUROC" in line]
        assert f"In {100 * found['on_photo']['auroc']['value']:.1f} [" in line
