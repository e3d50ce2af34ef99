"""Explanations of words, compared with plain loops; the randomisation check; and how they are drawn."""

import html
import json
import re
import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from captioner import limits, overlay
from captioner.cli.main import main
from captioner.errors import UsageError
from captioner.evaluation.randomisation import randomised, rank_correlation
from captioner.language.vocabulary import START
from captioner.models import Annotations
from captioner.models.decoder import Decoder
from captioner.overlay.style import describe_spread
from captioner.predict import explanations
from captioner.predict.explanations import POINTS, Step, explain, grad_cam
from tests.evaluation.test_faithfulness import (
    HARD,
    MASK,
    MULTI_HEAD,
    SOFT,
    D,
    L,
    make,
    of_captions,
    plain_drops,
)
from tests.predict.test_predictor import TRANSFORMER
from tests.predict.test_predictor import predictor as untrained

CAPTION = [4, 8, 3, 6]
CASES = [("LSTM", SOFT), ("Luong", SOFT), ("Luong intra", SOFT), ("Transformer", MULTI_HEAD)]


def two_streams(mask=None):
    """One image whose keys are not its values."""
    annotations = of_captions(mask).of(1)
    keys = torch.randn(1, L, D, generator=torch.Generator().manual_seed(8), dtype=torch.double)
    return replace(annotations, keys=Annotations(keys, annotations.grid))


def log_probs(decoder, annotations, versions):
    """The log-probability of each word, if attention sees another version of the image in its step."""
    state, found = decoder.init_state(annotations), []
    for before, word in zip([START, *CAPTION], CAPTION, strict=False):
        token, row = torch.tensor([before]), []
        for version in versions:
            keys = decoder.init_state(version).keys
            logits, _, _ = decoder.step(token, replace(state, keys=keys))
            row.append(logits[0].log_softmax(-1)[word])
        found.append(torch.stack(row))
        _, _, state = decoder.step(token, state)
    return torch.stack(found)


def moved(annotations, end, share):
    """A point on the straight path from one image to another, as a leaf of autograd."""

    def between(one, other):
        return (one + share * (other - one)).detach().requires_grad_()

    keys = annotations.keys
    if keys is not None:
        keys = replace(keys, vectors=between(keys.vectors, end.keys.vectors))
    return replace(annotations, vectors=between(annotations.vectors, end.vectors), keys=keys)


@pytest.mark.parametrize(("name", "attention"), CASES)
@pytest.mark.parametrize("image", [two_streams(MASK), of_captions(None).of(0)], ids=["two", "one"])
def test_integrated_gradients_equal_a_plain_loop(name, attention, image, monkeypatch):
    pytest.importorskip("captum")
    decoder = make(name, attention)
    maps = explain(decoder, image, CAPTION, "integrated-gradients").double()
    flat, expected = image.flat(), torch.zeros(len(CAPTION), L, dtype=torch.double)
    points, weights = np.polynomial.legendre.leggauss(POINTS)
    for point, weight in zip((points + 1) / 2, weights / 2, strict=True):
        version = moved(flat, image, point)
        for t, value in enumerate(log_probs(decoder, image, [version])[:, 0]):
            streams = [part for part in (version, version.keys) if part is not None]
            ends = [part for part in (image, image.keys) if part is not None]
            starts = [part for part in (flat, flat.keys) if part is not None]
            gradients = torch.autograd.grad(
                value, [s.vectors for s in streams], retain_graph=True, allow_unused=True
            )
            for end, start, gradient in zip(ends, starts, gradients, strict=True):
                if gradient is not None:
                    expected[t] += weight * ((end.vectors - start.vectors) * gradient).sum(-1)[0]
    torch.testing.assert_close(maps, expected.detach(), rtol=0, atol=1e-5)
    assert maps.abs().max() > 1e-2
    # They sum to the difference of the log-probabilities; these large weights need more points.
    monkeypatch.setattr(explanations, "POINTS", 48)
    maps = explain(decoder, image, CAPTION, "integrated-gradients").double()
    ends = log_probs(decoder, image, [image, flat])
    difference = (ends[:, 0] - ends[:, 1]).detach()
    torch.testing.assert_close(maps.sum(1), difference, rtol=0.01, atol=0.01)


@pytest.mark.parametrize(("name", "attention"), CASES)
def test_occlusion_equals_a_plain_loop(name, attention):
    decoder, image = make(name, attention), of_captions().of(1)
    maps = explain(decoder, image, CAPTION, "occlusion")
    for region in range(L):
        if MASK[1, region]:
            expected = plain_drops(decoder, image, CAPTION, lambda _, i=region: [i])
        else:
            expected = torch.zeros(len(CAPTION))
        torch.testing.assert_close(maps[:, region].double(), expected.double(), atol=1e-6, rtol=0)


@dataclass
class Memory:
    """The state of the decoder below."""

    keys: Any


class TwoWords(Decoder, abstract=True):
    """Two words with the logits 0 and s = Σ_i u_i · a_i."""

    u = torch.tensor([[1.0, 2.0], [3.0, -4.0]])

    def init_state(self, annotations, rows=1, sampling=None):
        return Memory(annotations.vectors)

    def read(self, tokens, state):
        s = (state.keys * self.u).sum((1, 2))
        return torch.stack([torch.zeros_like(s), s], 1).unsqueeze(1), state.keys[:, :1, :], state


def test_grad_cam_by_hand():
    """∂ log p / ∂a_i = (1 - σ(s)) u_i for the second word."""
    a = torch.tensor([[[0.5, 0.25], [0.25, 0.5]]])  # s = 0.5 + 0.5 + 0.75 - 2 = -0.25
    step = Step(TwoWords(), Annotations(a, (1, 2)), Memory(None), torch.tensor([START]), 1)
    slope = 1 - 1 / (1 + np.exp(0.25))
    # α = slope · ((1 + 3) / 2, (2 - 4) / 2) = slope · (2, -1); α · a_1 = 0.75 slope, α · a_2 = 0.
    torch.testing.assert_close(grad_cam(step), torch.tensor([0.75 * slope, 0.0]).float())
    a = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]])  # α · a_1 < 0, which becomes 0
    assert grad_cam(replace(step, annotations=Annotations(a, (1, 2))))[0] == 0


def test_grad_cam_adds_both_streams():
    """Gradients by finite differences, for keys and values."""
    decoder, image = make("LSTM", SOFT), two_streams()
    expected = torch.zeros(len(CAPTION), L, dtype=torch.double)
    for stream in ("values", "keys"):
        vectors = (image if stream == "values" else image.keys).vectors
        gradients = torch.zeros(len(CAPTION), L, D, dtype=torch.double)
        for region in range(L):
            for channel in range(D):
                ends = []
                for change in (1e-5, -1e-5):
                    other = vectors.clone()
                    other[0, region, channel] += change
                    changed = replace(image, vectors=other)
                    if stream == "keys":
                        changed = replace(image, keys=replace(image.keys, vectors=other))
                    ends.append(changed)
                plus, minus = log_probs(decoder, image, ends).detach().T
                gradients[:, region, channel] = (plus - minus) / 2e-5
        expected += gradients.mean(1) @ vectors[0].T
    maps = explain(decoder, image, CAPTION, "grad-cam").double()
    torch.testing.assert_close(maps, expected.clamp(min=0), atol=1e-6, rtol=0)
    assert maps.max() > 1e-3


def test_rollout_equals_a_plain_loop():
    decoder, image = make("Transformer", MULTI_HEAD), of_captions().of(1)
    maps = explain(decoder, image, CAPTION, "rollout").double()
    decoded = decoder(image, torch.tensor([[START, *CAPTION[:-1]]]), details=True)
    size = len(CAPTION)
    # One matrix over words and regions; the regions keep themselves.
    rolled = torch.eye(size + L, dtype=torch.double)
    for layer in range(2):
        for weights, target in ((decoded.past_weights, 0), (decoded.layers, size)):
            step = torch.eye(size + L, dtype=torch.double)
            step[:size] *= 0.5
            mean = weights[0, :, layer].mean(1)
            step[:size, target : target + mean.shape[1]] += mean / 2
            rolled = step @ rolled
    torch.testing.assert_close(maps, rolled[:size, size:].detach(), atol=1e-6, rtol=0)
    with pytest.raises(
        UsageError, match=r"rollout needs a Transformer's layers, and LSTMDecoder.* choose another"
    ):
        explain(make("LSTM", SOFT), image, CAPTION, "rollout")


@pytest.mark.parametrize("method", ["attention", "grad-cam", "occlusion"])
def test_hard_attention_is_explained_by_its_expectation(method):
    """A soft decoder with the same weights has the same explanations."""
    hard, soft = make("LSTM", HARD), make("LSTM", SOFT)
    soft.load_state_dict(hard.state_dict())
    image = of_captions().of(1)
    torch.testing.assert_close(*(explain(d, image, CAPTION, method) for d in (hard, soft)))


def test_annotations_of_inference_mode_are_explained():
    decoder = make("Luong", SOFT)
    with torch.inference_mode():
        image = two_streams(MASK)
        maps = explain(decoder, image, CAPTION, "grad-cam")
    assert maps.shape == (len(CAPTION), L)
    assert (maps[:, ~MASK[1]] == 0).all()


def test_without_captum_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    with pytest.raises(UsageError, match=r"pip install 'captioner\[captum\]'"):
        explain(make("LSTM", SOFT), of_captions().of(0), CAPTION, "integrated-gradients")


def test_every_method_has_a_name():
    assert list(limits.METHODS) == list(explanations.METHODS)


# ── Randomisation ─────────────────────────────────────────────────────────────────────────────────


def test_a_randomised_decoder_has_the_same_numbers_elsewhere():
    decoder = make("Luong", SOFT)
    other, again = randomised(decoder), randomised(decoder)
    for name, weights in decoder.named_parameters():
        changed = other.get_parameter(name)
        assert torch.equal(weights.flatten().sort()[0], changed.flatten().sort()[0])
        assert torch.equal(changed, again.get_parameter(name))
        assert weights.numel() < 5 or not torch.equal(weights, changed)
    assert other.output.weight is other.embedding.weight  # still tied
    image = of_captions(None).of(0)
    maps = [explain(d, image, CAPTION, "attention") for d in (decoder, other)]
    assert rank_correlation(*maps).abs().max() < 1


# ── Captions and drawings ─────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    file = tmp_path_factory.mktemp("photo") / "a.png"
    noise = np.random.default_rng(1).integers(0, 255, (64, 96, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file)
    return str(file)


def test_captions_and_sentences_are_explained_and_drawn(photo):
    """A caption of another model or of a photo of another size is refused."""
    model = untrained("TransformerDecoder", **TRANSFORMER)
    plain = model.caption(photo, details=True)
    assert model.explain(photo, plain, "attention") is plain
    caption = model.explain(photo, plain, "occlusion")
    assert (caption.words, caption.method, caption.layers) == (plain.words, "occlusion", None)
    signed = caption.weights
    assert signed.shape == plain.weights.shape
    assert signed.min() < 0 < signed.max()
    assert overlay.record(caption)["method"] == "occlusion"
    exported = [word["weights"] for word in overlay.record(caption)["words"]]
    np.testing.assert_allclose(exported, signed, rtol=1e-6)
    parts = {"positive": signed.clip(0), "negative": (-signed).clip(0), "absolute": abs(signed)}
    for sign, part in parts.items():
        sums = part.sum((1, 2), keepdims=True)
        drawn = overlay.maps(caption, overlay.Style(sign=sign))
        np.testing.assert_allclose(drawn, part / sums.max(), rtol=1e-5)
        own = overlay.maps(caption, overlay.Style(sign=sign, scale="own"))
        np.testing.assert_allclose(own, part / sums, rtol=1e-5)
    page = overlay.page([caption])
    assert "occlusion" in page
    sums, words = parts["positive"].sum((1, 2)), overlay.style.content_words(caption)
    start = re.search(r"start\W+(\d+)", html.unescape(page))[1]
    assert int(start) == max(words, key=lambda index: sums[index])  # the strongest map
    assert overlay.figure(caption, dpi=50).size == overlay.figure(plain, dpi=50).size
    positive, style = replace(caption, weights=abs(signed)), overlay.Style(sign="negative")
    assert describe_spread(positive, 0, style) == "no cells"
    assert "nowhere" in overlay.page([positive], style=style)
    for method in ("rollout", "grad-cam"):
        maps = model.explain(photo, plain, method).weights
        assert (maps >= 0).all()
        assert (maps == model.explain(photo, plain.text, method).weights).all()
    with pytest.raises(UsageError, match="of another model"):
        model.explain(photo, replace(plain, model="another"), "grad-cam")
    with pytest.raises(UsageError, match="of a photo of another size or other regions"):
        model.explain(Image.new("RGB", (64, 96)), plain, "occlusion")


def test_the_command_explains_by_a_method(photo, tmp_path, monkeypatch, capsys):
    """Signed values are exported; combinations that do not fit are one line."""
    model = untrained("TransformerDecoder", **TRANSFORMER)
    monkeypatch.setattr("captioner.predict.load.load", lambda *_: model)
    command = ["explain", photo, "--output", str(tmp_path), "--formats", "json", "png", "html"]
    assert main([*command, "--method", "grad-cam"]) == 0
    record = json.loads((tmp_path / "a.json").read_text())
    assert record["method"] == "grad-cam"
    expected = model.explain(photo, model.caption(photo), "grad-cam").weights
    exported = np.array([word["weights"] for word in record["words"]])
    np.testing.assert_allclose(exported, expected, atol=1e-6)
    command.append("--overwrite")
    assert main([*command, "--layer", "1", "--method", "grad-cam"]) == 2
    assert "leave out layer and head" in capsys.readouterr().err
    assert main([*command, "--method", "grad-cam", "--sign", "negative"]) == 2
    assert "--sign needs --method" in capsys.readouterr().err


@pytest.mark.parametrize("method", limits.METHODS)
def test_a_page_says_whether_a_map_depends_on_the_word_itself(photo, method):
    """Attention comes before the word; gradients and erasure explain the word's probability."""
    pytest.importorskip("captum")
    model = untrained("TransformerDecoder", **TRANSFORMER)
    caption = model.explain(photo, model.explain(photo, "a red dog"), method)
    drawn = overlay.page([caption])
    said = ("not on the word itself" in drawn, "and on the word itself" in drawn)
    assert said == ((True, False) if method in ("attention", "rollout") else (False, True))
