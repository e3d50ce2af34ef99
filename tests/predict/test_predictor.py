"""``Predictor``: captions, their attention weights and the options, for every decoder."""

import base64
import copy
import pickle
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

import captioner
import runs
from captioner.errors import ImageError, UsageError
from captioner.photos.images import Photo
from captioner.predict.predictor import Predictor
from captioner.search.options import Decoding

WORDS = ["a", "red", "blue", "circle", "square", "above", "below", "the", "of", "and"]
SOFT = {"class_path": "Soft"}
SAMPLED = {"class_path": "Hard", "init_args": {"test_time": "sample"}}
LOCAL = {"class_path": "LocalP2D", "init_args": {"window": 1}}


def single(distribution):
    return {"class_path": "Attention", "init_args": {"distribution": distribution}}


def multi(distribution):
    options = {"heads": 2, "dim": 8, "distribution": distribution}
    return {"class_path": "MultiHead", "init_args": options}


LSTM = {"hidden": 8, "embedding": 6}
INTRA = {**LSTM, "intra": True}
HEADS = {**LSTM, "attention": multi(SOFT)}
TRANSFORMER = {"dim": 8, "layers": 3, "heads": 4, "feed_forward": 8, "attention": multi(SOFT)}


def predictor(name, seed=None, **options):
    """An untrained model; a seed gives it large parameters, so that captions differ."""
    captioner = runs.small_captioner(WORDS, name, **options)
    if seed is not None:
        torch.manual_seed(seed)
        for parameter in captioner.decoder.parameters():
            torch.nn.init.normal_(parameter)
    return Predictor(captioner, "tiny", "cpu")


def noise(count, seed=2):
    """Images of noise, dark and bright."""
    rng = np.random.default_rng(seed)
    arrays = [rng.random((60, 80, 3)) * rng.integers(9, 255, 3) for _ in range(count)]
    return [Image.fromarray(array.astype(np.uint8)) for array in arrays]


@pytest.fixture(scope="module")
def image():
    return noise(1)[0]


@pytest.fixture
def photo(image, tmp_path):
    file = tmp_path / "noise.png"
    image.save(file)
    return file


@pytest.mark.parametrize(
    ("name", "options", "mechanism", "layers", "past"),
    [
        ("LSTMDecoder", LSTM, "LSTMDecoder: Additive × Soft", None, None),
        ("LSTMDecoder", INTRA, "LSTMDecoder: Additive × Soft, intra-attention", None, (1, 1)),
        ("LuongDecoder", HEADS, "LuongDecoder: MultiHead × Soft", (1, 2), None),
        (
            "TransformerDecoder",
            TRANSFORMER,
            "TransformerDecoder × 3: MultiHead × Soft",
            (3, 2),
            (3, 4),
        ),
    ],
)
def test_details(name, options, mechanism, layers, past, image):
    model = predictor(name, **options)
    plain = model.caption(image, beam_size=3, max_length=6)
    full = model.caption(image, beam_size=3, max_length=6, details=True)
    assert (plain.layers, plain.past, plain.centre) == (None, None, None)
    assert full.words == plain.words
    for caption in (full, *full.alternatives):
        alone = model.explain(image, caption.text)
        for weights, expected in ((caption.layers, alone.layers), (caption.past, alone.past)):
            assert (weights is None) == (expected is None)
            assert weights is None or np.allclose(weights, expected, atol=1e-6)
        assert caption.score == pytest.approx(caption.log_prob / (len(caption.words) + 1))
    for caption in (full, *full.alternatives, model.explain(image, "a red zebra above")):
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


def test_window_of_local_attention(image):
    model = predictor("LuongDecoder", **LSTM, attention=single(LOCAL))
    full = model.explain(image, "a red circle")
    assert full.window == 1
    assert full.centre.shape == (3, 2)
    rows, columns = np.indices((4, 4)) + 0.5
    for weights, (row, column) in zip(full.weights, full.centre, strict=True):
        outside = (abs(rows - row) > 1) | (abs(columns - column) > 1)
        assert outside.any()
        assert (weights[outside] == 0).all()
        assert weights.any()


def test_a_visual_sentinel_takes_part_of_the_attention(image):
    model = predictor("LuongDecoder", **LSTM, sentinel=True)
    assert model.captioner.decoder.mechanism == "LuongDecoder: Additive × Soft, visual sentinel"
    for caption in (model.caption(image, max_length=6), model.explain(image, "a red circle")):
        assert caption.visual_grounding.shape == (len(caption.words),)
        assert ((caption.visual_grounding > 0) & (caption.visual_grounding < 1)).all()


def test_a_mean_over_paths_is_repeatable_and_its_sampler_is_not(image):
    """The sampler attends to one cell per word and samples it in every call."""
    model = predictor("LSTMDecoder", **LSTM, attention=single(SAMPLED))
    first, again = (model.caption(image, samples=8, max_length=6) for _ in range(2))
    full = model.explain(image, first.text, samples=8)
    for other in (again, full):
        assert other.attends == "sample"
        assert other.words == first.words
        assert other.mechanism == "LSTMDecoder: Additive × Hard (sample), mean of 8 paths"
        assert other.log_prob == pytest.approx(first.log_prob, abs=1e-4)
        np.testing.assert_allclose(other.weights, first.weights, atol=1e-4)
    sampler = model.sampler()
    assert sampler.caption(image).mechanism == "LSTMDecoder: Additive × Hard (sample)"
    samples = [sampler.explain(image, first.text).weights for _ in range(4)]
    for weights in samples:
        assert set(np.unique(weights)) == {0.0, 1.0}
    assert any(not np.array_equal(samples[0], other) for other in samples[1:])


@pytest.mark.parametrize(
    ("test_time", "attends"),
    [("argmax", "argmax"), ("sample", "sample"), ("expectation", "soft"), (None, "soft")],
)
def test_the_kind_of_attention_and_details_of_sampled_locations(test_time, attends, image):
    """A second pass would sample other locations than those of the caption."""
    hard = {"class_path": "Hard", "init_args": {"test_time": test_time}}
    model = predictor("LuongDecoder", **LSTM, attention=multi(hard if test_time else SOFT))
    assert model.draws_locations == (test_time == "sample")
    assert model.caption(image).attends == attends
    if model.draws_locations:
        with pytest.raises(UsageError, match="samples other locations in every pass"):
            model.caption(image, details=True)
    else:
        assert model.caption(image, details=True).layers is not None
    assert model.explain(image, "a red circle").layers is not None


def test_a_loaded_model_can_be_pickled_and_copied(tiny_folder, image):
    model = captioner.load(tiny_folder, "cpu")
    expected = model.caption(image)
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert other.caption(image).words == expected.words


def test_options_of_a_search(image):
    model = predictor("LSTMDecoder", **LSTM)
    options = {"beam_size": 2, "max_length": 3, "length_penalty": 0.0, "no_repeat": 1}
    caption = model.caption(image, **options)
    (expected,) = model.captions([image], Decoding(**options))
    assert caption.words == expected.words
    assert len(caption.alternatives) == 1
    assert len(caption.words) <= 3
    assert model.caption(image, num_captions=None, **options) == caption
    with pytest.raises(UsageError, match="unknown option 'beam'; known: beam_size"):
        model.caption(image, beam=2)
    with pytest.raises(UsageError, match="from 1 to 100, got"):
        model.caption(image, beam_size=0)
    with pytest.raises(UsageError, match="averages over sampled locations"):
        model.caption(image, samples=2)


def test_a_notebook_shows_the_figure(image, photo):
    model = predictor("LSTMDecoder", **LSTM)
    caption = model.caption(photo, max_length=3)
    html = caption._repr_html_()
    head, data = html.removesuffix('">').split("base64,")
    figure = Image.open(BytesIO(base64.b64decode(data)))
    assert figure.format == "JPEG"  # PNG would take four times the space in the notebook
    assert figure.size == captioner.overlay.figure(caption, dpi=120).size
    assert f'alt="{caption.text}"' in head
    photo.unlink()
    for unknown in (caption, model.caption(image), replace(caption, text="<b>")):
        assert unknown._repr_html_() == f"<p>{unknown.text.replace('<b>', '&lt;b&gt;')}</p>"


@pytest.mark.parametrize("method", ["attention", "occlusion"])
def test_a_decoded_photo_is_not_read_again(method, photo, monkeypatch):
    model, opened, plain = predictor("TransformerDecoder", **TRANSFORMER), [], Image.open
    expected = model.explain(photo, model.caption(photo, details=True), method)
    monkeypatch.setattr(Image, "open", lambda *a, **k: opened.append(a) or plain(*a, **k))
    decoded = Photo.read(photo)
    caption = model.explain(decoded, model.caption(decoded, details=True), method)
    assert caption == expected
    assert model.explain(decoded, caption.text, method).words == caption.words
    assert len(opened) == 1


@pytest.mark.parametrize("samples", [1, 3])
def test_batches_are_captioned_as_if_each_image_were_alone(samples, tmp_path):
    """An image that cannot be read gives an error at its position."""
    attention = single(SAMPLED if samples > 1 else SOFT)
    model = predictor("LSTMDecoder", 3, **LSTM, attention=attention)
    sources = noise(11)
    (tmp_path / "no.jpg").write_text("no image")
    sources[4] = str(tmp_path / "no.jpg")
    decoding = Decoding(3, 8, samples=samples, no_repeat=1)
    details = not model.draws_locations
    batched = list(model.captions(sources, decoding, 3, details))
    alone = [one for s in sources for one in model.captions([s], decoding, details=details)]
    assert isinstance(batched.pop(4), ImageError)
    assert isinstance(alone.pop(4), ImageError)
    assert len({caption.text for caption in batched}) > 1
    for one, other in zip(batched, alone, strict=True):
        assert one.words == other.words
        assert one.log_prob == pytest.approx(other.log_prob, abs=1e-3)
        np.testing.assert_allclose(one.weights, other.weights, rtol=0, atol=1e-4)
        assert [a.words for a in one.alternatives] == [a.words for a in other.alternatives]


# Run without the type checks of the tests, which would refuse wrong types first.
WRONG = """
import sys, captioner
model = captioner.load(sys.argv[1], "cpu")
caption = model.explain(sys.argv[2], "a red zebra")
for call in (
    lambda: model.caption(3),
    lambda: model.caption(sys.argv[2], beam_size="5"),
    lambda: model.explain(sys.argv[2], None),
    lambda: model.explain(sys.argv[2], "x" * 100_000),
    lambda: model.explain(sys.argv[2], caption, "gradcam"),
    lambda: captioner.load("luong-dto"),
    lambda: captioner.load(sys.argv[1], "gpu"),
    lambda: caption.save("caption.bmp"),
    lambda: caption.save(sys.argv[2]),
):
    try:
        print(call())
    except captioner.CaptionerError as error:
        print(f"{type(error).__name__}: {error}")
"""


def test_wrong_arguments_get_a_sentence(tiny_folder, image, photo):
    done = subprocess.run(
        [sys.executable, "-c", WRONG, str(tiny_folder), str(photo)],
        capture_output=True,
        text=True,
        check=False,
        env=runs.environment(),
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 9
    for line in lines:
        assert re.match(r"(Image|Usage|Checkpoint)Error: .{20,400}$", line), done.stdout
    with Image.open(photo) as unchanged:
        assert unchanged.size == image.size


def test_a_caption_at_the_prompt(tiny_folder, photo, tmp_path):
    assert {"load", "Caption", "Predictor", "bundled_models"} <= set(dir(captioner))
    assert "importlib" not in dir(captioner)
    model = captioner.load(tiny_folder, "cpu")
    caption = model.caption(photo)
    start = (
        f"Caption({caption.text!r}, image={str(photo)!r}, model={str(tiny_folder)!r}, log_prob=-"
    )
    assert repr(caption).startswith(start)
    assert len(repr(caption)) < len(start) + 20
    assert caption.to_dict()["words"] == list(caption.words)
    assert "unknown" not in caption.to_dict()
    others = [model.caption(photo, beam_size=1), replace(caption, weights=caption.weights * 2)]
    assert [other == caption for other in [model.caption(photo), *others]] == [True, False, False]
    assert len({caption, model.caption(photo)}) == 1
    for name in ("x.png", "x.GIF", "x.html", "x.json", "x.npz", "x.pdf", "x.svg"):
        caption.save(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 500
    with Image.open(tmp_path / "x.png") as figure:
        assert figure.size == captioner.overlay.figure(caption).size


def test_unknown_words_are_marked_and_maps_depend_on_earlier_words_only(image, photo):
    """The first map is the same for every sentence; an LSTMDecoder's second one, too."""
    for name, same in (("LSTMDecoder", 2), ("LuongDecoder", 1)):
        model = predictor(name, 4, **LSTM)
        known, other = (model.explain(image, text) for text in ("a red circle", "asdf blue zebra"))
        assert (known.unknown, other.unknown) == ((), (0, 2))
        assert "unknown=['asdf', 'zebra']" in repr(other)
        assert other.to_dict()["unknown"] == [0, 2]
        record = captioner.overlay.record(other)["words"]
        assert [word.get("unknown", False) for word in record] == [True, False, True]
        assert captioner.overlay.page([replace(other, image=str(photo))]).count("word unknown") == 2
        for word in range(3):
            assert np.allclose(known.weights[word], other.weights[word]) == (word < same)


def test_threads_get_the_sequential_answers():
    model = predictor("LSTMDecoder", 3, **LSTM, attention=single(SAMPLED))
    images = noise(8)
    options = [{"beam_size": 1 + n % 3, "samples": 4, "max_length": 6 + n} for n in range(8)]

    def captions(number):
        return [model.caption(i, **options[number]) for i in [*images[number:], images[:3]]]

    expected = [captions(number) for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(captions, range(8)))
    flat = [[str(caption) for caption in one] for one in expected]
    assert len({text for one in flat for text in one}) > 20
    assert [[str(caption) for caption in one] for one in found] == flat


def test_a_least_length_beyond_the_models_longest_caption(image):
    """A search and sampling then write captions of that length; contradictions are refused."""
    model = predictor("LuongDecoder", seed=1, **LSTM)
    for more in ({}, {"seed": 3}):
        caption = model.caption(image, min_length=model.decoding.max_length + 6, **more)
        assert len(caption.words) == model.decoding.max_length + 6
        with pytest.raises(UsageError, match="at most max_length, got 9 and 3"):
            model.caption(image, min_length=9, max_length=3, **more)
