"""What a caption says about where its model looked, for every kind of decoder."""

import numpy as np
import pytest
import torch
from PIL import Image

from captioner.decoding import Decoding
from captioner.errors import ImageError
from captioner.models.captioner import Captioner
from captioner.predictor import Predictor
from captioner.text import Vocabulary

WORDS = ["a", "red", "blue", "circle", "square", "above", "below", "the", "of", "and"]
SOFT = {"class_path": "Soft"}
MULTI = {"class_path": "MultiHead", "init_args": {"heads": 2, "dim": 8, "distribution": SOFT}}
LOCAL = {
    "class_path": "Attention",
    "init_args": {"distribution": {"class_path": "LocalP2D", "init_args": {"window": 1}}},
}
LSTM = {"hidden": 8, "embedding": 6}
TRANSFORMER = {"dim": 8, "layers": 3, "heads": 4, "feed_forward": 8, "attention": MULTI}


def predictor(name, **options):
    """Untrained, and so sure of nothing; what it says of itself can be checked all the same."""
    tree = {
        "encoder": {
            "class_path": "CNNEncoder",
            "init_args": {"name": "efficientnet_lite0", "image_size": 64, "stride": 16},
        },
        "refiner": {"class_path": "Projection", "init_args": {"dim": 8}},
        "decoder": {"class_path": name, "init_args": options},
    }
    captioner = Captioner.from_config(tree, Vocabulary(WORDS))
    captioner.encoder.load_pretrained()
    return Predictor(captioner, "tiny", "cpu")


@pytest.fixture(scope="module")
def picture():
    noise = np.random.default_rng(1).integers(0, 255, (90, 120, 3), dtype=np.uint8)
    return Image.fromarray(noise)


@pytest.mark.parametrize(
    ("name", "options", "mechanism", "layers", "past"),
    [
        ("LSTMDecoder", LSTM, "LSTMDecoder: Additive × Soft", None, None),
        (
            "LSTMDecoder",
            {**LSTM, "intra": True},
            "LSTMDecoder: Additive × Soft, intra-attention",
            None,
            (1, 1),
        ),
        (
            "LuongDecoder",
            {**LSTM, "attention": MULTI},
            "LuongDecoder: MultiHead × Soft",
            (1, 2),
            None,
        ),
        (
            "TransformerDecoder",
            TRANSFORMER,
            "TransformerDecoder × 3: MultiHead × Soft",
            (3, 2),
            (3, 4),
        ),
    ],
)
def test_details_say_all_there_is(name, options, mechanism, layers, past, picture):
    model = predictor(name, **options)
    plain = model.caption(picture, beam_size=3, max_length=6)
    told = model.caption(picture, beam_size=3, max_length=6, details=True)
    assert (plain.layers, plain.past, plain.centre) == (None, None, None)
    assert told.words == plain.words
    for caption in (told, *told.alternatives, model.explain(picture, "a red zebra above")):
        words = len(caption.words)
        assert caption.mechanism == mechanism
        assert caption.window is None
        assert (caption.layers is None) == (layers is None)
        assert (caption.past is None) == (past is None)
        if layers is not None:
            assert caption.layers.shape == (words, *layers, 4, 4)
            np.testing.assert_allclose(caption.layers[:, -1].mean(1), caption.weights, atol=1e-6)
        if past is not None:
            assert caption.past.shape == (words, *past, words)
            assert (np.triu(caption.past.transpose(1, 2, 0, 3), 1) == 0).all()


def test_local_attention_says_where_its_window_is(picture):
    model = predictor("LuongDecoder", **LSTM, attention=LOCAL)
    told = model.explain(picture, "a red circle")
    assert told.window == 1
    assert told.centre.shape == (3, 2)
    rows, columns = np.indices((4, 4)) + 0.5
    for weights, (row, column) in zip(told.weights, told.centre, strict=True):
        outside = (abs(rows - row) > 1) | (abs(columns - column) > 1)
        assert outside.any()
        assert (weights[outside] == 0).all()
        assert weights.any()


def test_a_model_of_many_paths_says_the_same_twice_and_draws_anew_when_asked_to(picture):
    """What it writes and explains is settled; its sampler looks at one place, another each time."""
    law = {"class_path": "Hard", "init_args": {"test_time": "sample"}}
    drawing = {"class_path": "Attention", "init_args": {"distribution": law}}
    model = predictor("LSTMDecoder", **LSTM, attention=drawing)
    model.decoding = model.decoding.with_options({"samples": 8, "max_length": 6})
    first, again = (model.caption(picture) for _ in range(2))
    told = model.explain(picture, first.text)
    for other in (again, told):
        assert other.words == first.words
        assert other.mechanism == "LSTMDecoder: Additive × Hard (sample), mean of 8 paths"
        assert other.log_prob == pytest.approx(first.log_prob, abs=1e-4)
        np.testing.assert_allclose(other.weights, first.weights, atol=1e-4)
    sampler = model.sampler()
    assert sampler.caption(picture).mechanism == "LSTMDecoder: Additive × Hard (sample)"
    drawn = [sampler.explain(picture, first.text).weights for _ in range(4)]
    for weights in drawn:
        assert set(np.unique(weights)) == {0.0, 1.0}
    assert any(not np.array_equal(drawn[0], other) for other in drawn[1:])


def test_details_are_of_the_places_that_were_looked_at(picture):
    """Of places that are drawn anew there are none; of the most probable ones there are."""
    for test_time, known in (("argmax", True), ("sample", False)):
        law = {"class_path": "Hard", "init_args": {"test_time": test_time}}
        heads = {
            "class_path": "MultiHead",
            "init_args": {"heads": 2, "dim": 8, "distribution": law},
        }
        model = predictor("LuongDecoder", **LSTM, attention=heads)
        assert (model.caption(picture, details=True).layers is not None) == known
        assert model.explain(picture, "a red circle").layers is not None


@pytest.mark.parametrize("samples", [1, 3])
def test_several_batches_are_captioned_as_if_each_picture_were_alone(samples, tmp_path):
    """What cannot be read keeps its place."""
    hard = {"class_path": "Hard", "init_args": {"test_time": "sample"}}
    law = {"class_path": "Attention", "init_args": {"distribution": hard if samples > 1 else SOFT}}
    model = predictor("LSTMDecoder", **LSTM, attention=law)
    torch.manual_seed(3)
    for parameter in model.captioner.decoder.parameters():  # so that it tells pictures apart
        torch.nn.init.normal_(parameter)
    rng = np.random.default_rng(2)
    sources = [
        Image.fromarray((rng.random((60, 80, 3)) * rng.integers(9, 255, 3)).astype(np.uint8))
        for _ in range(11)
    ]
    (tmp_path / "no.jpg").write_text("no picture")
    sources[4] = str(tmp_path / "no.jpg")
    decoding = Decoding(3, 8, samples=samples, no_repeat=1)
    found = list(model.captions(sources, decoding, 3, details=True))
    alone = [one for s in sources for one in model.captions([s], decoding, details=True)]
    assert isinstance(found.pop(4), ImageError)
    assert isinstance(alone.pop(4), ImageError)
    assert len({caption.text for caption in found}) > 1
    for one, other in zip(found, alone, strict=True):
        assert one.words == other.words
        assert one.log_prob == pytest.approx(other.log_prob, abs=1e-3)
        np.testing.assert_allclose(one.weights, other.weights, rtol=0, atol=1e-4)
        assert [a.words for a in one.alternatives] == [a.words for a in other.alternatives]
