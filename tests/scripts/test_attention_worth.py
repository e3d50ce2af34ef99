"""What scripts/attention_worth.py measures equals plain sums."""

import sys
from functools import partial
from pathlib import Path

import pytest

import captioner
import layouts
from captioner.data.readers import read
from captioner.evaluation.cider import CiderD

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import attention_worth  # noqa: E402

TEXTS = {
    "1.jpg": ["a red circle above the blue square", "two of the square"],
    "2.jpg": ["the blue circle and a zebra", "a square below"],
    "3.jpg": ["a red square", "the circle of the two circle"],
}
CONTENT = {"red", "circle", "blue", "square", "two"}


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("CAPTIONER_CACHE", str(tmp_path / "cache"))
    root = layouts.flickr8k(tmp_path, {"train": {"9.jpg": ["a ball"]}, "val": TEXTS})
    for seed, name in enumerate(TEXTS):
        layouts.picture(root / "Flicker8k_Dataset" / name, seed)
    return root


@pytest.mark.slow
def test_the_measures_are_plain_sums(root, tiny_folder, monkeypatch):
    adversary = attention_worth.adversary
    monkeypatch.setattr(adversary, "find", partial(adversary.find, iterations=3))
    found = attention_worth.measure(root, None, 1, [str(tiny_folder)])
    [report] = found["models"].values()
    predictor = captioner.load(tiny_folder)
    records = list(read("flickr8k", root).of_split("val"))
    pixels = [captioner.photos.images.load(record.path) for record in records]
    known, content, texts = [], [], []
    for record, caption in zip(records, predictor.caption(pixels, beam_size=2), strict=True):
        for text in TEXTS[record.image_id]:
            scored = predictor.explain(record.path, text)
            pairs = list(zip(text.split(), scored.word_log_probs, strict=True))
            known += [value for word, value in pairs if word != "zebra"]
            known.append(scored.log_prob - sum(scored.word_log_probs))  # the end
            content += [value for word, value in pairs if word in CONTENT]
        texts.append(caption.text.split())
    assert report["tokens"] == {"log_prob": len(known), "content": len(content), "cider": 3}
    for name, values in (("log_prob", known), ("content", content)):  # the cache has half precision
        mean = sum(values) / len(values)
        assert report["own"][name]["value"] == pytest.approx(mean, rel=1e-3)
    references = [[text.split() for text in texts] for texts in TEXTS.values()]
    cider = CiderD(references)
    each = [100 * cider([text], own)[0] for text, own in zip(texts, references, strict=True)]
    assert report["own"]["cider"]["value"] == pytest.approx(sum(each) / 3, abs=1e-5)
    assert {kind: len(of["cider"]["draws"]) for kind, of in report["changes"].items()} == {
        "even": 1,
        "words": 3,
        "photos": 3,
    }
    assert report["changes"]["even"]["log_prob"]["value"] != 0
    assert 0 < report["adversary"]["log_prob.divergence"]["value"] < 0.7
    assert list(report["randomised"]) == [
        *("output layer", "LSTM", "attention", "initial memory", "embeddings"),
    ]


def test_figures_of_one_model_join_those_of_the_others():
    settings = {"photos": 4, "every": 2, "captions_per_photo": 2, "seeds": [0], "epsilon": 0.05}
    some = settings | {"models": {"transformer": 1, "luong-dot": 2}, "processor_seconds": 3}
    more = settings | {"models": {"transformer": 5, "show-attend-tell-soft": 6}, "trained": 7}
    found = attention_worth.merged(some, more | {"processor_seconds": 4})
    assert list(found["models"].items()) == [
        *(("luong-dot", 2), ("show-attend-tell-soft", 6), ("transformer", 5)),
    ]
    assert (found["processor_seconds"], found["trained"]) == (7, 7)
    with pytest.raises(SystemExit, match="has photos 4, these figures 5: measure all models"):
        attention_worth.merged(some, more | {"photos": 5})
