"""Diversity of several captions, against plain loops over their words."""

import json
import math
from collections import Counter

import numpy as np
import pytest

from captioner.cli.main import main
from captioner.evaluation.diversity import diversity, spectral_diversity
from captioner.evaluation.metrics import CaptionScorer, evaluate_files

REFERENCES = {
    "dog": ["a brown dog runs in the grass", "the dog is running on the grass"],
    "cat": ["a cat sleeps on the red couch", "the cat is asleep on a couch"],
    "bus": ["a red bus drives down the long street", "a bus on the street"],
}
CAPTIONS = {
    "dog": ["a dog runs in the grass", "a dog runs in the park", "the brown dog is running"],
    "cat": ["a cat sleeps on the couch", "the cat is on the red couch"],
}


def split(texts):
    return {image: [text.split() for text in captions] for image, captions in texts.items()}


def grams(words, n):
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def plain_distinct(captions, n):
    seen, words = set(), 0
    for caption in captions:
        words += len(caption)
        for gram in grams(caption, n):
            seen.add(gram)
    return len(seen) / words


def plain_bleu(pairs):
    """Corpus BLEU-4 of (caption, references)."""
    matches, total, length, closest = [0] * 4, [0] * 4, 0, 0
    for caption, others in pairs:
        length += len(caption)
        closest += min((abs(len(o) - len(caption)), len(o)) for o in others)[1]
        for n in range(4):
            for gram, count in Counter(grams(caption, n + 1)).items():
                most = max(grams(other, n + 1).count(gram) for other in others)
                matches[n] += min(count, most)
                total[n] += count
    precision = math.prod(m / t for m, t in zip(matches, total, strict=True)) ** (1 / 4)
    return precision * min(1, math.exp(1 - closest / length))


def tfidf(words, n, references):
    """Weights of the n-grams of a caption: counts × log(images / images with the n-gram)."""
    weights = {}
    for gram, count in Counter(grams(words, n)).items():
        holding = sum(any(gram in grams(r, n) for r in texts) for texts in references.values())
        weights[gram] = count * math.log(len(references) / max(holding, 1))
    return weights


def norm(weights):
    return math.sqrt(sum(w * w for w in weights.values()))


def plain_similarity(one, other, references, clipped=False):
    total = 0
    for n in range(1, 5):
        a, b = (tfidf(words, n, references) for words in (one, other))
        if norm(a) and norm(b):
            dot = sum((min(w, b[g]) if clipped else w) * b[g] for g, w in a.items() if g in b)
            total += dot / norm(a) / norm(b) / 4
    return total * (math.exp(-((len(one) - len(other)) ** 2) / 72) if clipped else 1)


def test_every_measure_equals_a_plain_loop():
    captions, references = split(CAPTIONS), split(REFERENCES)
    found = diversity(captions, references)
    assert (found.images, found.captions) == (2, 2.5)
    for n, value in ((1, found.distinct_1), (2, found.distinct_2)):
        each = [plain_distinct(texts, n) for texts in captions.values()]
        assert value == pytest.approx(100 * np.mean(each))

    bleus = []
    for i in range(3):
        pairs = [(t[i], t[:i] + t[i + 1 :]) for t in captions.values() if i < len(t)]
        bleus.append(plain_bleu(pairs))
    assert all(bleus[:2])
    assert found.mbleu_4 == pytest.approx(100 * np.mean(bleus), abs=1e-3)

    self_cider, oracle = [], []
    for image, texts in captions.items():
        kernel = [[plain_similarity(a, b, references) for b in texts] for a in texts]
        roots = np.sqrt(np.abs(np.linalg.eigvals(kernel)))
        self_cider.append(-math.log(max(roots) / sum(roots), len(texts)))
        truth = references[image]
        oracle.append(
            max(
                10 * np.mean([plain_similarity(text, r, references, clipped=True) for r in truth])
                for text in texts
            )
        )
    assert found.self_cider == pytest.approx(100 * np.mean(self_cider))
    assert found.oracle_cider == pytest.approx(100 * np.mean(oracle))


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [(np.ones((4, 4)), 0), (np.eye(4), 1), (np.kron(np.eye(2), np.ones((2, 2))), 0.5)],
)
def test_self_cider_of_equal_and_of_unlike_captions(kernel, expected):
    """Captions of k equally frequent kinds, m together, have a diversity of log_m(k)."""
    assert spectral_diversity(kernel) == pytest.approx(expected, abs=1e-6)


def test_the_best_of_one_caption_is_the_score():
    scorer = CaptionScorer(REFERENCES, java=False)
    score = scorer.score({image: texts[0] for image, texts in REFERENCES.items()})
    found = scorer.diversity({image: [texts[0]] * 2 for image, texts in REFERENCES.items()})
    assert found.oracle_cider == pytest.approx(score.cider)
    assert (found.self_cider, found.mbleu_4) == pytest.approx((0, 100), abs=1e-4)
    assert scorer.diversity({"dog": ["a dog"]}) is None


def test_evaluate_measures_what_the_predictions_hold(tmp_path, capsys):
    images = list(REFERENCES)
    annotations = [
        {"image_id": i, "caption": text}
        for i, name in enumerate(images)
        for text in REFERENCES[name]
    ]
    truth, file = tmp_path / "references.json", tmp_path / "captions.jsonl"
    named = [{"id": i, "file_name": f"{name}.jpg"} for i, name in enumerate(images)]
    truth.write_text(json.dumps({"images": named, "annotations": annotations}))
    records = [
        {"image": f"/a/{name}.jpg", "caption": texts[0], "captions": texts}
        for name, texts in CAPTIONS.items()
    ]
    records.append({"image": "bus.jpg", "caption": "a bus"})
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert main(["evaluate", str(file), "--references", str(truth), "--java", "no"]) == 0
    printed = json.loads(capsys.readouterr().out)
    expected = diversity(split(CAPTIONS), split(REFERENCES))
    assert printed["images"] == 3
    assert printed["diversity"]["images"] == 2
    assert printed["diversity"]["oracle_cider"] == round(expected.oracle_cider, 2)
    file.write_text(json.dumps({"image": "dog.jpg", "caption": "a dog"}))
    assert "diversity" not in evaluate_files(file, truth, java=False).as_dict()
