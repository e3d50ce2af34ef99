"""What scripts/attention_worth.py measures equals plain sums."""

import math
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch

import captioner
import layouts
from captioner.data.readers import read
from captioner.evaluation.cider import CiderD
from captioner.evaluation.interventions import Intervened
from captioner.evaluation.interventions import record as record_plan
from tests.evaluation.test_interventions import TOKENS, L, make, photos

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import attention_worth  # noqa: E402
import attention_worth_adversary as adversary  # noqa: E402
import attention_worth_plans as plans  # noqa: E402

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


@pytest.mark.parametrize("name", ["LSTM", "hard", "Luong", "Transformer"])
def test_the_adversary_keeps_the_output_and_moves_the_weights(name):
    decoder, annotations = make(name), photos()
    epsilon, tokens = 0.2, TOKENS[:, :3]
    found = adversary.find(decoder, annotations, tokens, epsilon, iterations=5)
    plan = record_plan(decoder, annotations, tokens)
    state = decoder.init_state(annotations)
    moved = 0
    for t in range(tokens.shape[1] - 1):
        expected, _, after = decoder.step(tokens[:, t], state)
        at = tuple(part[..., t : t + 1, :] for part in found.plan)
        for part in at:
            torch.testing.assert_close(part.sum(-1), torch.ones_like(part.sum(-1)))
            assert (part >= 0).all()
            assert (
                part.movedim(-1, 0)[2:4, 1] == 0
            ).all()  # the masked regions of the second photo
        whole = Intervened(decoder, at).init_state(annotations)
        logits, _, _ = Intervened(decoder, at).step(tokens[:, t], type(whole)(state, at))
        change = (logits.softmax(-1) - expected.softmax(-1)).abs().sum(-1) / 2
        torch.testing.assert_close(change, found.distance[:, t], rtol=0, atol=1e-8)
        assert (change <= epsilon + 1e-9).all()
        own_weights = tuple(part[..., t : t + 1, :] for part in plan)
        for i in range(3):
            pairs = [
                (p, q)
                for mine, other in zip(own_weights, at, strict=True)
                for p, q in zip(mine[i].reshape(-1, L), other[i].reshape(-1, L), strict=True)
            ]
            by_hand = sum(jensen_shannon(p.tolist(), q.tolist()) for p, q in pairs) / len(pairs)
            assert found.divergence[i, t].item() == pytest.approx(by_hand, abs=1e-9)
        moved += int((found.divergence[:, t] > 0.05).sum())
        state = after
    assert moved > 1


def jensen_shannon(p, q):
    middle = [(a + b) / 2 for a, b in zip(p, q, strict=True)]

    def information(weights):
        return sum(w * math.log(w / m) for w, m in zip(weights, middle, strict=True) if w)

    return (information(p) + information(q)) / 2


def numbered(captions, steps):
    """A plan whose weights say which caption and which step they are of."""
    caption, step = torch.meshgrid(torch.arange(captions), torch.arange(steps), indexing="ij")
    part = torch.stack([caption, step], -1).double()
    return (part, part.unsqueeze(1).expand(-1, 2, -1, -1))


def test_permutations_between_words_are_permutations():
    plan, lengths = numbered(4, 5), [5, 3, 1, 4]
    found = plans.between_words(plan, lengths, 12, torch.Generator().manual_seed(0))
    assert all((found[0] == found[1][:, head]).all() for head in range(2))
    moved = 0
    for i, length in enumerate(lengths):
        caption, step = found[0][i].T.int().tolist()
        assert set(caption) == {i}
        assert sorted(step[:length]) == list(range(length))
        assert step == [step[t % length] for t in range(12)]
        moved += step[:length] != list(range(length))
    assert moved >= 2
    others = plans.between_words(plan, lengths, 12, torch.Generator().manual_seed(1))
    assert (others[0] != found[0]).any()


def test_every_photo_gets_the_weights_of_another_one():
    of_photo = [0, 0, 1, 1, 1, 2, 3, 3]
    lengths = [3, 5, 2, 4, 1, 5, 2, 3]
    plan = numbered(8, 5)
    found, _ = plans.between_photos(plan, lengths, 7, torch.Generator().manual_seed(0), of_photo)
    donors = []
    for i, photo in enumerate(of_photo):
        caption, step = found[i].T.int().tolist()
        [source] = set(caption)
        donors.append((photo, of_photo[source]))
        assert step == [t % lengths[source] for t in range(7)]
    pairs = set(donors)
    assert len(pairs) == 4
    assert all(one != other for one, other in pairs)
    assert Counter(other for _, other in pairs) == dict.fromkeys(range(4), 1)


@pytest.mark.parametrize("name", ["LSTM", "Luong", "top-down", "LSTM intra", "Transformer"])
def test_layers_become_random_from_the_top_down(name):
    decoder = make(name)
    parameters = dict(decoder.named_parameters())
    changed, layers = set(), []
    for layer, random in plans.cascade(decoder, 0):
        layers.append(layer)
        now = {n for n, p in random.named_parameters() if not torch.equal(p, parameters[n])}
        assert changed < now
        changed = now
        for n, p in random.named_parameters():
            assert torch.equal(p.flatten().sort().values, parameters[n].flatten().sort().values)
    assert changed == {n for n, p in parameters.items() if p.numel() > 1}
    assert layers[:: len(layers) - 1] == ["output layer", "embeddings"]
