"""What erasing regions costs: against a plain loop, decoders with a known answer, and real photos."""

import copy
import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

import captioner
import runs
from captioner.data.readers import read
from captioner.data.records import Record
from captioner.errors import EvaluationError, ModelError, UsageError
from captioner.evaluation.deletion import ORDERS, _order, word_falls
from captioner.evaluation.faithfulness import measure
from captioner.evaluation.tallies import statistics
from captioner.models import Annotations, Blind
from captioner.models.attention import Hard
from captioner.models.attention.attention import Keys
from captioner.models.decoder import Decoded, Decoder
from captioner.models.erasure import Erasure
from captioner.text import START
from test_decoders import MASK, L, every_attention, every_decoder, make, seen

CAPTIONS = [[5, 7], [4, 8, 3, 6], [6]]
ROWS = torch.tensor([0, 1, 1])  # the picture of each
SHARES = (0.34, 0.67, 1.0)


def of_captions(mask=MASK):
    pictures = seen(mask)
    return Annotations(pictures.vectors[ROWS], pictures.grid, None if mask is None else mask[ROWS])


def said(logits, word):
    return logits[0].log_softmax(-1)[word].item()


def plainly(decoder, annotations, caption, erased):
    """Of one picture, for each word: what is left of it, regions erased at its step alone.

    ``erased(weights)`` names the regions.
    """
    state, falls = decoder.start(annotations), []
    mask = annotations.mask
    there = torch.ones(L, dtype=torch.bool) if mask is None else mask[0]
    mean = annotations.vectors[0, there].mean(0)
    for before, word in zip([START, *caption], caption, strict=False):
        token = torch.tensor([before])
        logits, weights, after = decoder.step(token, state)
        vectors = annotations.vectors.clone()
        for region in erased([weights[0, i].item() if there[i] else None for i in range(L)]):
            vectors[0, region] = mean
        other = decoder.start(replace(annotations, vectors=vectors))
        left, _, _ = decoder.step(token, replace(state, keys=other.keys))
        falls.append(said(logits, word) - said(left, word))
        state = after
    return torch.tensor(falls, dtype=torch.double)


def first(number, sign):
    """So many of the regions with the most weight, or with the least."""

    def erased(weights):
        known = [i for i, weight in enumerate(weights) if weight is not None]
        return sorted(known, key=lambda i: -sign * weights[i])[:number]

    return erased


@pytest.mark.parametrize(("attention", "mask"), [("Attention", None), ("MultiHead", MASK)])
@every_decoder
def test_falls_equal_a_plain_loop(name, switches, attention, mask):
    decoder = make(name, switches, attention)
    annotations = of_captions(mask)
    found = word_falls(decoder, annotations, CAPTIONS, SHARES)
    for row, (caption, falls) in enumerate(zip(CAPTIONS, found, strict=True)):
        existing = L if mask is None else int(mask[ROWS[row]].sum())
        numbers = [1, *(max(1, round(share * existing)) for share in SHARES)]
        torch.testing.assert_close(falls.shares * existing, torch.tensor(numbers).double())
        assert falls.falls.shape == (len(caption), 3, 4)
        assert falls.falls.abs().max() > 1e-3  # what is erased matters
        for place, number in enumerate(numbers):
            for order, sign in (("most", 1), ("least", -1)):
                expected = plainly(decoder, annotations.of(row), caption, first(number, sign))
                given = falls.falls[:, ORDERS.index(order), place]
                torch.testing.assert_close(given, expected, rtol=0, atol=1e-9)
        # Where everything is erased, the order does not matter.
        torch.testing.assert_close(falls.falls[..., -1], falls.falls[:, :1, -1].expand(-1, 3))


@every_attention
def test_keys_put_together_are_those_of_the_erased_picture(attention, law):
    """Whatever the attention prepares, it prepares region by region."""
    for name in ("LSTMDecoder", "TransformerDecoder"):
        decoder = make(name, None, attention, law)
        annotations = of_captions()
        regions = torch.rand(3, L, generator=torch.Generator().manual_seed(1)) < 0.5
        state = decoder.start(annotations)
        erased = Erasure(decoder, annotations).erase(state, torch.arange(3), regions)
        mean = annotations.mean().unsqueeze(1)
        vectors = torch.where(regions.unsqueeze(-1), mean, annotations.vectors)
        expected = decoder.start(annotations.with_vectors(vectors))
        token = torch.tensor([START, START, START])
        other = replace(state, keys=expected.keys)
        for one, two in zip(
            decoder.step(token, erased)[:2], decoder.step(token, other)[:2], strict=True
        ):
            torch.testing.assert_close(one, two, rtol=0, atol=1e-10)
        untouched = decoder.step(token, decoder.start(annotations))[0]
        torch.testing.assert_close(decoder.step(token, state)[0], untouched)


def test_random_order_is_the_mean_over_all_regions():
    decoder, annotations = make("LSTMDecoder"), of_captions(None).of(0)
    alone = [plainly(decoder, annotations, [5, 7], lambda _, i=i: [i]) for i in range(L)]
    [found] = word_falls(decoder, annotations, [[5, 7]], SHARES, draws=1500)
    spread = torch.stack(alone).std(0) / 1500**0.5
    given = found.falls[:, ORDERS.index("random"), 0]
    assert ((given - torch.stack(alone).mean(0)).abs() < 4 * spread).all()


def test_the_area_is_the_mean_of_the_curve():
    decoder, annotations = make("LSTMDecoder"), of_captions(None).of(0)
    [found] = word_falls(decoder, annotations, [[5, 7]], SHARES)
    x = np.concatenate([[0], found.shares])
    fine = np.linspace(0, 1, 100_001)
    for word in range(2):
        for order in range(3):
            curve = np.interp(fine, x, np.concatenate([[0], found.falls[word, order]]))
            assert found.areas[word, order].item() == pytest.approx(curve.mean(), abs=1e-5)


@dataclass(frozen=True)
class Known:
    keys: Keys
    words: int = 0


class OneRegion(Decoder, abstract=True):
    """The scores of the word at step t are the vector of region t; the weights say so, or that of
    another."""

    def __init__(self, told: int = 0) -> None:
        super().__init__()
        self.told = told

    def start(self, annotations: Annotations) -> Known:
        vectors = annotations.vectors
        return Known(Keys(vectors, vectors, annotations.mask, annotations.grid))

    def step(self, tokens: Tensor, state: Known) -> tuple[Tensor, Tensor, Known]:
        weights = self.weights(state.words).expand(len(tokens), -1)
        return state.keys.values[:, state.words], weights, Known(state.keys, state.words + 1)

    def forward(self, annotations, tokens, detail="shown") -> Decoded:
        weights = torch.stack([self.weights(step) for step in range(tokens.shape[1])])
        vectors = annotations.vectors[:, : tokens.shape[1]]
        return Decoded(vectors, weights.expand(len(tokens), -1, -1))

    def weights(self, step: int) -> Tensor:
        return torch.eye(L, dtype=torch.double)[(step + self.told) % L]


def test_a_word_that_depends_on_one_region():
    """Erasing it costs what can be written down; the honest map finds it first, the other does not."""
    vectors = 3 * torch.randn(1, L, 9, generator=torch.Generator().manual_seed(2)).double()
    annotations = Annotations(vectors, (2, 3))
    caption = [4, 6, 8]
    mean = vectors[0].mean(0).log_softmax(0)
    expected = torch.stack(
        [vectors[0, t].log_softmax(0)[w] - mean[w] for t, w in enumerate(caption)]
    )
    [honest] = word_falls(OneRegion(), annotations, [caption], [0.5])
    torch.testing.assert_close(honest.log_probs - mean[caption], expected)
    for place in range(2):
        torch.testing.assert_close(honest.falls[:, 0, place], expected)
        torch.testing.assert_close(honest.falls[:, 2, place], torch.zeros(3).double())
    # At random, one region of six is the one.
    [drawn] = word_falls(OneRegion(), annotations, [caption], [0.5], draws=3000)
    torch.testing.assert_close(drawn.falls[:, 1, 0], expected / L, rtol=0.15, atol=0)
    torch.testing.assert_close(drawn.falls[:, 1, 1], expected / 2, rtol=0.15, atol=0)
    [other] = word_falls(OneRegion(told=1), annotations, [caption], [0.5])
    torch.testing.assert_close(other.falls[:, 0, 0], torch.zeros(3).double())


@pytest.mark.parametrize("attention", ["Attention", "MultiHead"])
def test_where_hard_attention_looks_comes_first(attention):
    """The others follow by their probability, though those of two heads may be likelier on average."""
    decoded = make("LSTMDecoder", None, attention, "Hard")(
        seen(), torch.tensor([[START, 5, 7]] * 2)
    )
    weights, chances = decoded.weights[:, 2], decoded.expected[:, 2]
    order = _order(decoded, 2, MASK, 1, torch.Generator())
    for picture in range(2):
        existing = [i for i in range(L) if MASK[picture, i]]
        expected = sorted(existing, key=lambda i: (-weights[picture, i], -chances[picture, i]))
        for row, ranking in ((0, expected), (1, expected[::-1])):
            assert order[picture, row].argsort()[: len(existing)].tolist() == ranking
        assert set(order[picture, 2].argsort()[: len(existing)].tolist()) == set(existing)


def test_a_decoder_without_keys_is_refused():
    class Forgetful(OneRegion, abstract=True):
        def start(self, annotations):
            return annotations

    with pytest.raises(ModelError, match="the state of Forgetful has no keys"):
        Erasure(Forgetful(), of_captions())


# ── On photos ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def scenes(shapes_cache, run_folder):
    return read("coco", runs.scenes(shapes_cache))


@pytest.fixture
def model(run_folder):
    return captioner.load(run_folder, "cpu")


def test_a_trained_model_is_measured(model, scenes):
    found = measure(model, scenes[:24], captions=2, resamples=300)
    assert len(found.tallies) == 24
    assert found.failed == ()
    assert set(found.words) == {"all", "content", "function"}
    groups = {name: curves.words for name, curves in found.words.items()}
    assert groups["all"] == groups["content"] + groups["function"]
    assert groups["function"] > 0
    curves = found.words["all"]
    assert curves.areas["most"].low < curves.areas["most"].value < curves.areas["most"].high
    assert curves.most_over_random.value == pytest.approx(
        curves.areas["most"].value - curves.areas["random"].value
    )
    told = json.loads(json.dumps(found.as_dict()))
    assert told["regime"] == "forced"
    assert (
        told["scores"]["content"]["area_most"]["value"]
        == found.words["content"].areas["most"].value
    )
    assert [tally.image_id for tally in found.tallies] == [s.image_id for s in scenes[:24]]
    again = statistics(found.tallies)["all.area_most"](np.ones((1, 24)))
    assert again[0] == pytest.approx(curves.areas["most"].value)


def test_log_probs_are_those_of_explain(model, scenes):
    record = scenes[0]
    caption = record.captions[0]
    expected = model.explain(record.path, caption).word_log_probs
    found = measure(model, [record])
    assert found.unknown == 0
    assert found.words["all"].log_prob.value == pytest.approx(np.mean(expected), abs=1e-4)


def test_words_the_model_does_not_know_are_left_out(model, scenes):
    record = replace(scenes[0], captions=("a zebra", "emu"))
    found = measure(model, [record], captions=2)
    assert (found.words["all"].words, found.unknown) == (1, 2)
    assert "content" not in found.words


def test_generated_captions(model, scenes):
    expected = model.caption([record.path for record in scenes[:4]])
    found = measure(model, scenes[:4], "generated")
    assert found.words["all"].words == sum(len(caption.words) for caption in expected)
    log_probs = [value for caption in expected for value in caption.word_log_probs]
    assert found.words["all"].log_prob.value == pytest.approx(np.mean(log_probs), abs=1e-4)


def test_attention_that_knows_nothing_orders_nothing(model, scenes):
    """All weights the same: most, random and least are three random orders."""
    for parameter in model.captioner.decoder.attention.score.parameters():
        torch.nn.init.zeros_(parameter)
    curves = measure(model, scenes[:60], captions=2).words["all"]
    assert abs(curves.areas["random"].value) > 1e-4  # what is erased matters
    assert (curves.most_over_random.sign, curves.random_over_least.sign) == (0, 0)
    assert curves.verdict == "most > random > least does not hold: most ≈ random ≈ least"


def test_a_model_blind_to_the_picture_loses_nothing(model, scenes):
    blind = Blind(model.captioner.encoder.out_dim, model.captioner.refiner.out_dim)
    model.captioner.refiner = blind.eval()
    found = measure(model, scenes[:12])
    for curves in found.words.values():
        for falls in curves.falls.values():
            assert all(abs(fall.value) < 1e-5 for fall in falls)
        assert curves.verdict.endswith("most ≈ random ≈ least")


def test_one_bad_photo_costs_that_photo(model, scenes, tmp_path):
    (tmp_path / "bad.jpg").write_text("no picture")
    bad = Record("bad", str(tmp_path / "bad.jpg"), ("a red circle",), "val")
    found = measure(model, [scenes[0], bad, scenes[1]], batch_size=1)
    expected = measure(model, scenes[:2], batch_size=1)
    assert "bad.jpg" in found.failed[0]
    assert found.words == expected.words
    with pytest.raises(EvaluationError, match=r"faithfulness of 1 photos .*bad\.jpg"):
        measure(model, [bad])


def test_hard_attention_that_samples_is_measured_at_its_most_probable_region(hard_folder, scenes):
    hard = captioner.load(hard_folder, "cpu")
    drawing = copy.deepcopy(hard)
    for part in drawing.captioner.decoder.modules():
        if isinstance(part, Hard):
            part.test_time = "sample"
    found = measure(drawing, scenes[:6])
    assert found.words == measure(hard, scenes[:6]).words
    assert found.mechanism.endswith("Hard (argmax)")
    assert "sample" in drawing.captioner.decoder.mechanism  # is as it was


@pytest.mark.parametrize("samples", [1, 3])
def test_captions_are_searched_for_as_the_model_decodes(samples, hard_folder, scenes):
    """With draws, or the mean of sampled paths, where it decodes so: not the captions of the argmax."""
    drawing = captioner.load(hard_folder, "cpu").sampler()
    drawing.decoding = drawing.decoding.with_options({"samples": samples})
    some = scenes[:60]
    torch.manual_seed(5)
    expected = drawing.caption([record.path for record in some], batch_size=60)
    plain = captioner.load(hard_folder, "cpu").caption([record.path for record in some])
    numbers = [len(caption.words) for caption in expected]
    assert numbers != [len(caption.words) for caption in plain]
    before = torch.get_rng_state()
    found = measure(drawing, some, "generated", seed=5, batch_size=60)
    assert [tally.ratios["all.log_prob"][1] for tally in found.tallies] == numbers
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draws": 0}, "must be 1 or more"),
        ({"shares": [0.5, 0.2]}, "increasing, above 0 and up to 1, got 0.5, 0.2"),
        ({"shares": []}, "increasing"),
        ({"shares": [0.5, 1.5]}, "increasing"),
    ],
)
def test_options_that_are_none(model, options, message):
    with pytest.raises(UsageError, match=message):
        measure(model, [], **options)
