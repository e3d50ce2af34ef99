"""Deletion curves, compared with a plain loop, and faithfulness of trained models."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import captioner
import runs
from captioner.data.readers import read
from captioner.data.records import Record
from captioner.errors import EvaluationError
from captioner.evaluation.attention_maps import batches
from captioner.evaluation.deletion import ORDERS, _ranks, word_drops
from captioner.evaluation.faithfulness import DeletionCurves
from captioner.evaluation.image_statistics import statistics
from captioner.language.vocabulary import START
from captioner.models import Annotations, Blind
from captioner.models.distributions import hard_attention
from captioner.models.erasure import Erasure
from captioner.models.registry import names
from random_decoders import random_decoder

L, D, V = 6, 6, 9
MASK = torch.tensor([[1, 1, 0, 1, 1, 1], [0, 1, 1, 0, 0, 1]], dtype=torch.bool)
CAPTIONS = [[5, 7], [4, 8, 3, 6], [6]]
ROWS = torch.tensor([0, 1, 1])  # the image of each caption
SHARES = (0.34, 0.67, 1.0)
SOFT = {"class_path": "Attention"}
HARD = {"class_path": "Attention", "init_args": {"distribution": {"class_path": "Hard"}}}
MULTI_HEAD = {"class_path": "MultiHead", "init_args": {"heads": 2, "dim": 8}}
TRANSFORMER = {"dim": 8, "layers": 2, "heads": 2, "feed_forward": 5}
DECODERS = {
    "LSTM": ("LSTMDecoder", {"hidden": 6, "embedding": 4}),
    "Luong": ("LuongDecoder", {"hidden": 6, "embedding": 4}),
    "Luong intra": ("LuongDecoder", {"hidden": 6, "embedding": 4, "intra": True}),
    "Transformer": ("TransformerDecoder", TRANSFORMER),
}


def make(name, attention):
    class_path, options = DECODERS[name]
    return random_decoder(class_path, {**options, "attention": attention}, V, D)


def of_captions(mask=MASK):
    """The annotations of the image of each caption."""
    generator = torch.Generator().manual_seed(5)
    vectors = torch.randn(2, L, D, generator=generator, dtype=torch.double)
    return Annotations(vectors[ROWS], (2, 3), None if mask is None else mask[ROWS])


def plain_drops(decoder, annotations, caption, erased):
    """The drop of each word of one caption, with regions erased at its step only.

    ``erased(weights)`` names the regions; the weight of a masked region is None.
    """
    state, drops = decoder.init_state(annotations), []
    mask = annotations.mask
    valid = torch.ones(L, dtype=torch.bool) if mask is None else mask[0]
    mean = annotations.vectors[0, valid].mean(0)
    for before, word in zip([START, *caption], caption, strict=False):
        token = torch.tensor([before])
        logits, weights, after = decoder.step(token, state)
        vectors = annotations.vectors.clone()
        for region in erased([weights[0, i].item() if valid[i] else None for i in range(L)]):
            vectors[0, region] = mean
        other = decoder.init_state(replace(annotations, vectors=vectors))
        erased_logits, _, _ = decoder.step(token, replace(state, keys=other.keys))
        whole, partial = (
            values[0].log_softmax(-1)[word].item() for values in (logits, erased_logits)
        )
        drops.append(whole - partial)
        state = after
    return torch.tensor(drops, dtype=torch.double)


def first(number, sign):
    """Choose the regions with the greatest (1) or the least (-1) weights."""

    def erased(weights):
        valid = [i for i, weight in enumerate(weights) if weight is not None]
        return sorted(valid, key=lambda i: -sign * weights[i])[:number]

    return erased


@pytest.mark.parametrize(("attention", "mask"), [(SOFT, None), (MULTI_HEAD, MASK)])
@pytest.mark.parametrize("name", DECODERS)
def test_drops_equal_a_plain_loop(name, attention, mask):
    decoder = make(name, attention)
    annotations = of_captions(mask)
    curves = word_drops(decoder, annotations, CAPTIONS, SHARES)
    for row, (caption, curve) in enumerate(zip(CAPTIONS, curves, strict=True)):
        regions = L if mask is None else int(mask[ROWS[row]].sum())
        numbers = [1, *(max(1, round(share * regions)) for share in SHARES)]
        torch.testing.assert_close(curve.shares * regions, torch.tensor(numbers).double())
        assert curve.drops.shape == (len(caption), 3, 4)
        assert curve.drops.abs().max() > 1e-3
        everything = plain_drops(decoder, annotations.of(row), caption, first(L, 1))
        for point, number in enumerate(numbers):
            for order, sign in (("most", 1), ("least", -1)):
                expected = plain_drops(decoder, annotations.of(row), caption, first(number, sign))
                drops = curve.drops[:, ORDERS.index(order), point]
                torch.testing.assert_close(drops, expected, rtol=0, atol=1e-9)
                # Put back is what the complement does not erase.
                erased = first(regions - number, -sign)
                drops = plain_drops(decoder, annotations.of(row), caption, erased)
                rises = curve.rises[:, ORDERS.index(order), point]
                torch.testing.assert_close(rises, everything - drops, rtol=0, atol=1e-9)
        # If everything is erased, the order does not matter.
        torch.testing.assert_close(curve.drops[..., -1], curve.drops[:, :1, -1].expand(-1, 3))


@pytest.mark.parametrize(
    ("kind", "class_path"),
    [(kind, name) for kind in ("score", "distribution") for name in names(kind)],
)
def test_erased_keys_are_those_of_the_erased_image(kind, class_path):
    """Every attention mechanism prepares its keys region by region."""
    options = {"positions": L} if class_path == "Location" else {}
    tree = {kind: {"class_path": class_path, "init_args": options}}
    attention = {"class_path": "Attention", "init_args": tree}
    if class_path in ("Dot", "ScaledDot"):  # needs queries as wide as the annotations
        attention = MULTI_HEAD
    decoder, annotations = make("LSTM", attention), of_captions()
    regions = torch.rand(3, L, generator=torch.Generator().manual_seed(1)) < 0.5
    state = decoder.init_state(annotations)
    erased = Erasure(decoder, annotations).erase(state, torch.arange(3), regions)
    mean = annotations.mean().unsqueeze(1)
    vectors = torch.where(regions.unsqueeze(-1), mean, annotations.vectors)
    expected = replace(state, keys=decoder.init_state(replace(annotations, vectors=vectors)).keys)
    token = torch.tensor([START, START, START])
    actual, expected = (decoder.step(token, before)[:2] for before in (erased, expected))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


def test_random_order_is_the_mean_over_all_regions():
    decoder, annotations = make("LSTM", SOFT), of_captions(None).of(0)
    alone = [plain_drops(decoder, annotations, [5, 7], lambda _, i=i: [i]) for i in range(L)]
    [curves] = word_drops(decoder, annotations, [[5, 7]], SHARES, draws=1500)
    deviation = torch.stack(alone).std(0) / 1500**0.5
    drops = curves.drops[:, ORDERS.index("random"), 0]
    assert ((drops - torch.stack(alone).mean(0)).abs() < 4 * deviation).all()
    # The area is the mean of the curve.
    fine = np.linspace(0, 1, 100_001)
    for word in range(2):
        for order in range(3):
            points = np.concatenate([[0], curves.drops[word, order]])
            curve = np.interp(fine, np.concatenate([[0], curves.shares]), points)
            assert curves.areas[word, order].item() == pytest.approx(curve.mean(), abs=1e-5)


def test_hard_attention_ranks_the_chosen_region_first():
    """All other regions follow by their probability."""
    annotations = of_captions()
    decoded = make("LSTM", HARD)(annotations, torch.tensor([[START, 5, 7]] * 3))
    weights, probs = decoded.weights[:, 2], decoded.choice.probs[:, 2]
    ranks = _ranks(decoded, 2, annotations.mask, 1, torch.Generator())
    for row in range(3):
        valid = [i for i in range(L) if annotations.mask[row, i]]
        expected = sorted(valid, key=lambda i: (-weights[row, i], -probs[row, i]))
        for order, ranking in ((0, expected), (1, expected[::-1])):
            assert ranks[row, order].argsort()[: len(valid)].tolist() == ranking
        assert set(ranks[row, 2].argsort()[: len(valid)].tolist()) == set(valid)


# ── Trained models ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def scenes(shapes_cache, run_folder):
    return read("coco", runs.scenes(shapes_cache))


@pytest.fixture
def model(run_folder):
    return captioner.load(run_folder, "cpu")


def measure(predictor, records, regime="forced", seed=0, batch_size=8):
    """The report of a model on a data set."""
    curves = DeletionCurves(predictor, records, regime)
    decoding = predictor.decoding if regime == "generated" else None
    for batch in batches(
        predictor.captioner, records, batch_size, [], decoding=decoding, seed=seed
    ):
        curves.add(batch)
    return curves.report(seed, resamples=300)


def scores(result, group="all"):
    return result.report["scores"][group]


def test_report_of_a_trained_model(model, scenes):
    report, images = measure(model, scenes[:24])
    assert (report["regime"], report["images"]) == ("forced", 24)
    words = {name: group["words"] for name, group in report["scores"].items()}
    assert words["all"] == words["content"] + words["function"]
    assert words["function"] > 0
    area, random, difference = (
        report["scores"]["all"][name] for name in ("area_most", "area_random", "most_over_random")
    )
    assert area["low"] < area["value"] < area["high"]
    assert difference["value"] == pytest.approx(area["value"] - random["value"])
    assert json.loads(json.dumps(report)) == report
    assert [image.image_id for image in images] == [s.image_id for s in scenes[:24]]
    again = statistics(images)["all.area_most"](np.ones((1, 24)))
    assert again[0] == pytest.approx(area["value"])


def test_log_probs_are_those_of_the_predictor(model, scenes):
    record = scenes[0]
    expected = model.explain(record.path, record.captions[0]).word_log_probs
    result = measure(model, [record])
    assert result.report["unknown_words"] == 0
    assert scores(result)["log_prob"]["value"] == pytest.approx(np.mean(expected), abs=1e-4)
    unknown = measure(model, [replace(record, captions=("a zebra",))])
    assert (scores(unknown)["words"], unknown.report["unknown_words"]) == (1, 1)
    captions = model.caption([record.path for record in scenes[:4]])
    log_probs = [value for caption in captions for value in caption.word_log_probs]
    generated = scores(measure(model, scenes[:4], "generated"))
    assert generated["words"] == len(log_probs)
    assert generated["log_prob"]["value"] == pytest.approx(np.mean(log_probs), abs=1e-4)


def test_attention_or_images_that_do_not_matter(model, scenes):
    """With equal weights, all orders are random; a blind model's log-probabilities do not drop."""
    for parameter in model.captioner.decoder.attention.score.parameters():
        torch.nn.init.zeros_(parameter)
    result = scores(measure(model, scenes[:60]))
    assert abs(result["area_random"]["value"]) > 1e-4  # erased regions matter
    assert result["verdict"] == "most > random > least does not hold: most ≈ random ≈ least"
    neck = Blind(model.captioner.encoder.out_dim, dim=model.captioner.neck.out_dim)
    model.captioner.neck = neck.eval()
    for group in measure(model, scenes[:12]).report["scores"].values():
        assert all(abs(group[f"area_{order}"]["value"]) < 1e-5 for order in ORDERS)
        assert group["verdict"].endswith("most ≈ random ≈ least")


def test_unreadable_images_are_left_out(model, scenes, tmp_path):
    (tmp_path / "bad.jpg").write_text("no image")
    bad = Record("bad", str(tmp_path / "bad.jpg"), ("a red circle",), "val")
    result = measure(model, [scenes[0], bad, scenes[1]], batch_size=1)
    assert result.report["scores"] == measure(model, scenes[:2], batch_size=1).report["scores"]
    with pytest.raises(EvaluationError, match=r"no photo can be read; .*bad\.jpg"):
        measure(model, [bad])


def test_sampled_hard_attention_is_measured_at_its_most_probable_region(hard_folder, scenes):
    hard, sampling = (captioner.load(hard_folder, "cpu") for _ in range(2))
    for distribution in hard_attention(sampling.captioner.decoder):
        distribution.test_time = "sample"
    result = measure(sampling, scenes[:6])
    assert result.report["scores"] == measure(hard, scenes[:6]).report["scores"]
    assert result.report["mechanism"].endswith("Hard (argmax)")
    assert "sample" in sampling.captioner.decoder.mechanism  # unchanged
