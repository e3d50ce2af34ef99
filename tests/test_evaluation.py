"""Caption scores: against plain re-implementations, and against pycocoevalcap with its Java."""

import importlib.util
import json
import logging
import math
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from captioner.errors import EvaluationError
from captioner.evaluation import captions as module
from captioner.evaluation.captions import (
    CaptionScorer,
    Scores,
    evaluate_files,
    read_references,
    read_results,
    score,
)
from captioner.evaluation.java import ptb_words

FIXTURES = Path(__file__).parent / "fixtures" / "evaluation"
RESULTS, REFERENCES = FIXTURES / "results.json", FIXTURES / "references.json"
COCO = json.loads((FIXTURES / "coco_caption.json").read_text(encoding="utf-8"))

needs_java = pytest.mark.skipif(
    shutil.which("java") is None,
    reason="no java on PATH: METEOR and the PTB tokenizer were NOT compared with pycocoevalcap",
)
posix = pytest.mark.skipif(os.name != "posix", reason="the fake java is a shell script")

TOY_REFERENCES = {
    "dog": ["a brown dog runs in the grass", "the dog is running", "a dog runs fast"],
    "cat": ["a cat sleeps on the red couch", "the cat is asleep"],
    "bus": ["a red bus drives down the long street"],
}
TOY_CANDIDATES = {
    "dog": "a dog runs in the the park",
    "cat": "the cat sleeps on a couch",
    "bus": "a bus on the street",
}


# ── Plain re-implementations ──────────────────────────────────────────────────────────────────────


def ngrams(words, n):
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def plain_bleu(candidates, references, order):
    """Papineni et al. 2002 over a corpus; of two equally close lengths the shorter one counts."""
    length = closest = 0
    correct, total = [0] * order, [0] * order
    for image, caption in candidates.items():
        words = caption.split()
        truth = [reference.split() for reference in references[image]]
        length += len(words)
        closest += min((abs(len(ref) - len(words)), len(ref)) for ref in truth)[1]
        for n in range(1, order + 1):
            for gram, count in ngrams(words, n).items():
                correct[n - 1] += min(count, max(ngrams(ref, n)[gram] for ref in truth))
                total[n - 1] += count
    precision = math.prod(c / t for c, t in zip(correct, total, strict=True)) ** (1 / order)
    return 100 * precision * min(1.0, math.exp(1 - closest / length))


def plain_rouge(candidates, references):
    """ROUGE-L: the best precision and the best recall over the references, beta 1.2."""

    def common(a, b):
        @cache
        def rest(i, j):
            if i == len(a) or j == len(b):
                return 0
            if a[i] == b[j]:
                return 1 + rest(i + 1, j + 1)
            return max(rest(i + 1, j), rest(i, j + 1))

        return rest(0, 0)

    total = 0.0
    for image, caption in candidates.items():
        words, truth = caption.split(), [ref.split() for ref in references[image]]
        precision = max(common(words, ref) / len(words) for ref in truth)
        recall = max(common(words, ref) / len(ref) for ref in truth)
        total += 2.44 * precision * recall / (recall + 1.44 * precision)
    return 100 * total / len(candidates)


def plain_cider_d(candidates, references):
    """CIDEr-D (Vedantam et al. 2015), sigma 6, times 10, and in percent."""
    images = len(candidates)
    total = 0.0
    for image, caption in candidates.items():
        words = caption.split()
        for reference in references[image]:
            ref = reference.split()
            penalty = math.exp(-((len(words) - len(ref)) ** 2) / (2 * 6.0**2))
            for n in range(1, 5):

                def weights(tokens, n=n):
                    vector = {}
                    for gram, count in ngrams(tokens, n).items():
                        having = sum(
                            any(gram in ngrams(text.split(), n) for text in references[other])
                            for other in candidates
                        )
                        vector[gram] = count * math.log(images / max(1, having))
                    return vector

                x, y = weights(words), weights(ref)
                dot = sum(min(x[gram], y.get(gram, 0)) * y.get(gram, 0) for gram in x)
                norms = math.hypot(*x.values()) * math.hypot(*y.values())
                if norms:
                    total += penalty * dot / norms / 4 / len(references[image])
    return 100 * 10 * total / images


def toy_score(candidates=TOY_CANDIDATES, references=TOY_REFERENCES, **options) -> Scores:
    return score(candidates, references, **{"java": False, "tokenizer": str.split, **options})


def test_scores_equal_plain_reimplementations():
    scores = toy_score()
    for order, name in enumerate(("bleu_1", "bleu_2"), start=1):
        expected = plain_bleu(TOY_CANDIDATES, TOY_REFERENCES, order)
        assert getattr(scores, name) == pytest.approx(expected, rel=1e-6)
    assert scores.rouge_l == pytest.approx(plain_rouge(TOY_CANDIDATES, TOY_REFERENCES))
    assert scores.cider == pytest.approx(plain_cider_d(TOY_CANDIDATES, TOY_REFERENCES))
    assert scores.cider > 10


def test_bleu_by_hand():
    # 1-grams: a dog runs -> 3 of 3; 2-grams: "a dog" of two. Lengths 3 against 4: exp(1 - 4/3).
    scores = toy_score({1: "a dog runs"}, {1: ["runs a dog away"]})
    assert scores.bleu_1 == pytest.approx(100 * math.exp(-1 / 3))
    assert scores.bleu_2 == pytest.approx(100 * math.exp(-1 / 3) * math.sqrt(1 / 2))


def test_larger_corpus_equals_plain_reimplementations():
    references = {
        image: [" ".join(text.lower().split()) for text in texts]
        for image, texts in read_references(REFERENCES).items()
    }
    candidates = {
        image: " ".join(text.split()) for image, text in read_results(RESULTS).items() if text
    }
    scores = toy_score(candidates, references)
    for order in range(1, 5):
        expected = plain_bleu(candidates, references, order)
        assert getattr(scores, f"bleu_{order}") == pytest.approx(expected, rel=1e-6)
    # pycocoevalcap's gaussian penalty counts words by bigrams: the same but for an empty caption.
    assert scores.cider == pytest.approx(plain_cider_d(candidates, references))


def test_same_captions_score_full():
    candidates = {image: texts[0] for image, texts in TOY_REFERENCES.items()}
    scores = toy_score(candidates)
    for value in (scores.bleu_1, scores.bleu_2, scores.bleu_3, scores.bleu_4, scores.rouge_l):
        assert value == pytest.approx(100)


def test_one_image_has_cider_zero():
    scores = toy_score({"dog": TOY_REFERENCES["dog"][0]})
    assert scores.cider == 0
    assert scores.bleu_4 == pytest.approx(100)
    assert "single image CIDEr is always 0" in (Scores.__doc__ or "")


def test_stored_tokens_give_the_stored_scores_of_coco_caption():
    """All of coco-caption but METEOR, where there is no Java: its own words through our scorer."""

    def stored(caption):
        return COCO["ptb"][caption.replace("\n", " ")].split()

    scores = toy_score(read_results(RESULTS), read_references(REFERENCES), tokenizer=stored)
    assert_same_as_coco_caption(scores, COCO["scores"])


def assert_same_as_coco_caption(scores, expected):
    for order in range(1, 5):
        assert getattr(scores, f"bleu_{order}") == pytest.approx(100 * expected[f"Bleu_{order}"])
    assert scores.rouge_l == pytest.approx(100 * expected["ROUGE_L"])
    assert scores.cider == pytest.approx(100 * expected["CIDEr"])
    if scores.meteor is not None:
        assert scores.meteor == pytest.approx(100 * expected["METEOR"])


def test_without_java_is_close_to_coco_caption():
    scores = evaluate_files(RESULTS, REFERENCES, java=False)
    assert scores.bleu_4 == pytest.approx(100 * COCO["scores"]["Bleu_4"], abs=1)
    assert scores.cider == pytest.approx(100 * COCO["scores"]["CIDEr"], rel=0.02)


# ── With Java ─────────────────────────────────────────────────────────────────────────────────────

COCO_EVAL_CAP = """
import contextlib, io, json, sys
import pycocoevalcap.eval
from pycocotools.coco import COCO

class NoSpice:  # the real one downloads half a gigabyte
    compute_score = lambda self, gts, res: (0.0, [])
    method = lambda self: "SPICE"

pycocoevalcap.eval.Spice = NoSpice
with contextlib.redirect_stdout(io.StringIO()):
    coco = COCO(sys.argv[1])
    results = coco.loadRes(sys.argv[2])
    evaluation = pycocoevalcap.eval.COCOEvalCap(coco, results)
    evaluation.params["image_id"] = results.getImgIds()
    evaluation.evaluate()
print(json.dumps(evaluation.eval))
"""


@needs_java
def test_equals_coco_eval_cap(capfd):
    """Includes an empty caption, a very long one, accents, an emoji and line breaks."""
    command = [sys.executable, "-W", "ignore", "-c", COCO_EVAL_CAP, REFERENCES, RESULTS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "PermissionError" in done.stderr:
        pytest.skip("site-packages is read-only: pycocoevalcap itself cannot run to compare with")
    expected = json.loads(done.stdout)
    scores = evaluate_files(RESULTS, REFERENCES, java=True)
    assert_same_as_coco_caption(scores, expected)
    assert scores.meteor == pytest.approx(100 * COCO["scores"]["METEOR"])
    assert (scores.tokenizer, scores.images, scores.missing) == ("ptb", 30, 0)
    assert capfd.readouterr() == ("", "")


@needs_java
def test_ptb_equals_stored_output():
    assert ptb_words(list(COCO["ptb"]), 60.0) == list(COCO["ptb"].values())


@needs_java
@pytest.mark.parametrize("end", [*"\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029", "\r\n", "\n\n"])
def test_line_breaks_do_not_shift_captions(end):
    captions = [f"A dog{end}runs.", "", f"{end}A cat", f"A bus{end}", ""]
    assert ptb_words(captions, 60.0) == ["a dog runs", "", "a cat", "a bus", ""]


@needs_java
def test_ptb_takes_what_is_no_unicode():
    assert ptb_words(["a \ud83d dog", "a \x00 cat", "🐕"], 60.0) == ["a dog", "a cat", ""]


# ── Java that is missing, crashes, hangs or lies ──────────────────────────────────────────────────


@pytest.fixture
def fake_java(tmp_path, monkeypatch):
    """Puts a ``java`` with the given shell code on PATH."""

    def install(code):
        program = tmp_path / "bin" / "java"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{code}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")

    return install


# A tokenizer that changes nothing, and a METEOR of 0.5 for everything.
GOOD = """case "$*" in *PTBTokenizer*) exec cat;; esac
while read -r line; do case "$line" in
  SCORE*) echo 1.0 2.0 1.0E-3;;
  EVAL*) printf '0.1\\n0.2\\n0.3\\n0.5\\n';;
esac; done"""
BROKEN = {
    "crashes": (
        "printf 'Picked up X\nError: too old\nat Main\n' >&2; exit 1",
        "the PTB tokenizer failed in java: Error: too old",
    ),
    "fails in silence": ("exit 7", "the PTB tokenizer failed in java: exit status 7"),
    "swallows lines": (
        "cat > /dev/null; echo one",
        "the PTB tokenizer failed in java: 2 lines for 6 captions",
    ),
    "speaks no UTF-8": (
        "cat > /dev/null; printf '\\377'",
        "the PTB tokenizer failed in java: .*utf-8",
    ),
    "dies before METEOR answers": (
        'case "$*" in *PTBTokenizer*) exec cat;; esac; read -r line; echo no memory >&2; exit 3',
        "METEOR failed in java: no memory",
    ),
    "dies before METEOR asks": (
        'case "$*" in *PTBTokenizer*) exec cat;; esac; exec 0<&-; sleep 0.2; exit 3',
        "METEOR failed in java: ",
    ),
    "has a METEOR that errs": (
        'case "$*" in *PTBTokenizer*) exec cat;; esac; while read -r line; do echo Error; done',
        "METEOR failed in java: an unexpected answer, 'Error'",
    ),
    "has a METEOR that fails in the end": (
        GOOD.replace("esac; done", "esac; done; exit 9"),
        "METEOR failed in java: exit status 9",
    ),
}


@posix
def test_java_on_path_is_used(fake_java, capfd):
    fake_java(GOOD)
    scores = score(TOY_CANDIDATES, TOY_REFERENCES)
    assert (scores.meteor, scores.tokenizer) == (50, "ptb")
    assert scores.cider == pytest.approx(toy_score().cider)
    assert capfd.readouterr() == ("", "")


def test_java_false_starts_nothing(monkeypatch, capfd):
    monkeypatch.setattr(subprocess, "Popen", None)
    scores = score(TOY_CANDIDATES, TOY_REFERENCES, java=False)
    assert (scores.meteor, scores.tokenizer) == (None, "nltk-treebank")
    assert capfd.readouterr() == ("", "")


def test_no_java(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("PATH", str(tmp_path))
    scores = score(TOY_CANDIDATES, TOY_REFERENCES)
    assert (scores.meteor, scores.tokenizer) == (None, "nltk-treebank")
    assert not caplog.records
    with pytest.raises(
        EvaluationError, match=r"java does not start \(.*; mend or install Java"
    ) as e:
        score(TOY_CANDIDATES, TOY_REFERENCES, java=True)
    assert "\n" not in str(e.value)


@posix
@pytest.mark.parametrize(("code", "reason"), BROKEN.values(), ids=BROKEN)
def test_broken_java(code, reason, fake_java, caplog):
    fake_java(code)
    scorer = CaptionScorer(TOY_REFERENCES)
    with caplog.at_level(logging.WARNING):
        scores = [scorer.score(TOY_CANDIDATES) for _ in range(2)]
    assert scores == [score(TOY_CANDIDATES, TOY_REFERENCES, java=False)] * 2
    [record] = caplog.records
    assert record.getMessage().endswith("; scoring with nltk-treebank words and without METEOR")
    with pytest.raises(EvaluationError, match=f"^{reason}.*; mend or install Java, or") as raised:
        score(TOY_CANDIDATES, TOY_REFERENCES, java=True)
    assert "\n" not in str(raised.value)


@posix
@pytest.mark.parametrize("only", ["PTBTokenizer", "meteor"])
def test_hanging_java_is_killed_with_its_children(only, fake_java, tmp_path, caplog):
    hang = f"sleep 300 & echo $! > {tmp_path}/child; wait"
    fake_java(f'case "$*" in *{only}*) {hang};; esac\n{GOOD}')
    started = time.monotonic()
    with pytest.raises(EvaluationError, match=r"failed in java: not done after 0\.5 s"):
        score(TOY_CANDIDATES, TOY_REFERENCES, java=True, timeout=0.5)
    assert time.monotonic() - started < 10
    child = (tmp_path / "child").read_text().strip()
    listed = subprocess.run(["ps", "-o", "stat=", "-p", child], capture_output=True, text=True)
    assert listed.stdout.strip()[:1] in ("", "Z")


@posix
def test_timeout_grows_with_the_work(fake_java):
    fake_java("sleep 0.6; exec cat")
    limit = r"the PTB tokenizer failed in java: not done after 0\.3 s"
    with pytest.raises(EvaluationError, match=limit):
        ptb_words(["a dog"] * 1000, 0.3)
    assert ptb_words(["a dog"] * 9001, 0.3) == ["a dog"] * 9001


# ── CaptionScorer ─────────────────────────────────────────────────────────────────────────────────


def test_references_are_tokenized_once():
    seen = Counter()

    def tokenizer(text):
        seen[text] += 1
        return text.split()

    scorer = CaptionScorer(TOY_REFERENCES, java=False, tokenizer=tokenizer)
    assert not seen
    first = scorer.score({"dog": "d o g"})
    assert (first.images, first.missing, first.tokenizer) == (1, 2, "custom")
    assert seen["the cat is asleep"] == 0
    assert scorer.score({"dog": "x", "cat": "y"}).missing == 1
    assert scorer.score(TOY_CANDIDATES) == toy_score(tokenizer=tokenizer)
    assert seen["the dog is running"] == 2  # once by the scorer, once by toy_score


def test_subset_equals_the_subset_alone():
    subset = {image: TOY_CANDIDATES[image] for image in ("dog", "bus")}
    alone = toy_score(subset, {image: TOY_REFERENCES[image] for image in subset})
    whole = toy_score(subset)
    assert (alone.images, alone.missing, whole.images, whole.missing) == (2, 0, 2, 1)
    assert (whole.bleu_2, whole.rouge_l, whole.cider) == (alone.bleu_2, alone.rouge_l, alone.cider)


def test_order_of_candidates_does_not_matter():
    assert toy_score(dict(reversed(TOY_CANDIDATES.items()))).cider == pytest.approx(
        toy_score().cider
    )


@pytest.mark.parametrize("empty", ["", "  ", "\n", "...", " ?! "])
def test_empty_caption_scores_zero(empty):
    options = {"java": False, "tokenizer": None}
    some = toy_score({**TOY_CANDIDATES, "cat": empty}, **options)
    assert 0 < some.cider < toy_score(**options).cider
    scores = toy_score(dict.fromkeys(TOY_CANDIDATES, empty), **options)
    numbers = [scores.bleu_1, scores.bleu_4, scores.rouge_l, scores.cider]
    assert numbers == pytest.approx([0, 0, 0, 0], abs=1e-6)


def test_unicode_newlines_and_long_captions():
    references = {1: ["un café\nà Paris 😀"], 2: ["a dog"], 3: ["a road " * 500]}
    scores = score(
        {1: "Un café à Paris 😀", 2: "a\r\ndog", 3: "a road " * 500}, references, java=False
    )
    assert scores.bleu_4 == pytest.approx(100)
    assert scores.rouge_l == pytest.approx(100)


def test_as_dict_is_json():
    record = json.loads(json.dumps(toy_score(tokenizer=None).as_dict()))
    assert list(record) == [
        *("bleu_1", "bleu_2", "bleu_3", "bleu_4", "rouge_l", "cider", "meteor"),
        *("tokenizer", "images", "missing"),
    ]
    assert Scores(**record) == toy_score(tokenizer=None)


def test_thousand_images_are_quick_enough_for_every_epoch():
    images = range(1000)
    texts = [texts for texts in read_references(REFERENCES).values() if len(texts) == 3]
    references = {i: [f"{t} {i % 97}" for t in (*texts[i % 15], *texts[i % 7])[:5]] for i in images}
    started = time.process_time()
    scores = score({i: references[i][0] for i in images}, references, java=False)
    assert time.process_time() - started < 4
    assert scores.images == 1000


@pytest.fixture(scope="module")
def unchecked():
    """The module as users run it: in these tests beartype would refuse wrong types first."""
    spec = importlib.util.spec_from_file_location("unchecked_captions", module.__file__)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.mark.parametrize(
    ("candidates", "references", "message"),
    [
        ({}, {1: ["a"]}, "nothing to score: expected a caption of at least one image"),
        (
            dict.fromkeys(range(8), "a"),
            {1: ["a"]},
            r"7 of 8 captioned images have no references: 0, 2, 3, 4, 5 and 2 more; the references "
            r"are of images such as 1$",
        ),
        ({"1": "a"}, {1: ["a"]}, r"1 of 1 captioned images have no references: '1'; .* such as 1$"),
        ({1: "a"}, {}, r"no references: 1; the references are of images such as none$"),
        ({1: "a"}, {1: ["a"], 2: [], 3: [" "]}, r"reference caption; 2 have none: 2, 3$"),
        ({1: None}, {1: ["a"]}, r"the caption of image 1 cannot be of type NoneType: .* a string$"),
        ({1: ["a"]}, {1: ["a"]}, r"the caption of image 1 cannot be of type list: .* a string$"),
        ({1: "a"}, {1: ["a", 2.5]}, r"a reference of image 1 cannot be of type float: .* string$"),
        ({1: "a"}, {1: "a dog"}, r"the references of image 1 cannot be of type str: .* a list of"),
        ({1: "a"}, {1: None}, r"the references of image 1 cannot be of type NoneType: "),
        ({1: "a"}, {1: ["..."]}, r"no reference holds a word, for instance of 1$"),
    ],
)
def test_errors(candidates, references, message, unchecked):
    with pytest.raises(EvaluationError, match=message) as raised:
        unchecked.score(candidates, references, java=False)
    assert "\n" not in str(raised.value)


# ── Files ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def write(tmp_path):
    def write_file(content, name="results.json"):
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            text = content if isinstance(content, str) else json.dumps(content)
            path.write_text(text, encoding="utf-8")
        return path

    return write_file


def test_read_results_of_coco(write):
    results = [{"image_id": 42, "caption": "a dog"}, {"image_id": "x", "caption": ""}]
    assert read_results(write(results)) == {42: "a dog", "x": ""}
    assert read_results(write(b"\xef\xbb\xbf\n" + json.dumps(results).encode())) == {
        42: "a dog",
        "x": "",
    }


def test_read_results_of_our_own_command(write, caplog):
    lines = [
        {"image": "photos/dog.jpg", "caption": "a dog\u2028runs 😀", "log_prob": -3.5},
        {"image": "photos\\cat.jpg", "caption": "a cat"},
        {"image": "photos/broken.jpg", "error": {"type": "ImageError", "message": "cut"}},
        {"image": "a.jpg", "image_id": 7, "caption": "a bus"},
    ]
    text = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\n\n"
    assert read_results(str(write(text, "out.jsonl"))) == {
        "dog.jpg": "a dog\u2028runs 😀",
        "cat.jpg": "a cat",
        7: "a bus",
    }
    assert "left out images that have no caption: 'broken.jpg'" in caplog.text
    assert read_results(write(lines[0])) == {"dog.jpg": "a dog\u2028runs 😀"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"image_id": 1', r"results\.json is not JSON \(.*; expected COCO results, \["),
        ('{"image": "a", "caption": "b"}\n{"ima', r"is not JSON \(.*line 2 col"),
        (b"\xff\xfe", r"results\.json is not JSON \(.*utf-8"),
        ("", r"results\.json holds no caption; expected COCO results"),
        ([], r"results\.json holds no caption"),
        ({"images": [], "annotations": []}, r"record 1 names no image; expected COCO"),
        ([1], r"record 1 names no image"),
        ([{"image_id": 1, "caption": "a"}, {"caption": "a"}], r"record 2 names no image"),
        ([{"image_id": True, "caption": "a"}], r"record 1 names no image"),
        ([{"image_id": 1.5, "caption": "a"}], r"record 1 names no image"),
        ([{"image_id": 1}], r"record 1 has no caption; expected COCO results"),
        ([{"image_id": 1, "caption": None}], r"record 1 has no caption"),
        ([{"image": "a.jpg", "error": {}}], r"holds no caption"),
        (
            [{"image_id": i, "caption": "a"} for i in (1, 1, 2, 2)],
            r"results\.json captions an image twice, expected once: 1, 2$",
        ),
        ('{"image": "a/x.jpg", "caption": ""}\n{"image": "b/x.jpg", "caption": ""}', "'x.jpg'$"),
    ],
)
def test_bad_results(content, message, write):
    with pytest.raises(EvaluationError, match=message) as raised:
        read_results(write(content))
    assert "\n" not in str(raised.value)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(EvaluationError, match=r"cannot read .*none\.json: No such file"):
        read_results(tmp_path / "none.json")
    with pytest.raises(EvaluationError, match=r"cannot read .*: "):
        read_references(tmp_path)


def coco(names=("a.jpg", "b.jpg", "c.jpg"), captioned=3):
    return {
        "images": [{"id": i, "file_name": name} for i, name in enumerate(names)],
        "annotations": [
            {"id": 10 + i, "image_id": i, "caption": text}
            for i, pair in enumerate([("a dog", "the dog"), ("a cat",), ("a bus",)][:captioned])
            for text in pair
        ],
    }


def test_read_references(write):
    assert read_references(write(coco())) == {0: ["a dog", "the dog"], 1: ["a cat"], 2: ["a bus"]}
    assert list(read_references(write(coco(captioned=2)))) == [0, 1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"refs\.json is not JSON \(.*; expected COCO captions, \{"),
        ([], r"refs\.json holds no reference captions; expected COCO captions"),
        ({"images": []}, r"holds no reference captions"),
        ({"annotations": [{"image_id": 1, "caption": "a"}]}, r"holds no reference captions"),
        ({"images": [], "annotations": []}, r"holds no reference captions"),
        (
            {"images": [], "annotations": [{"image_id": 1}]},
            r"annotation 1 has no caption; expected",
        ),
        ({"images": [], "annotations": [{"caption": "a"}]}, r"annotation 1 has no image_id"),
        ({"images": [], "annotations": ["a"]}, r"annotation 1 has no caption"),
    ],
)
def test_bad_references(content, message, write):
    with pytest.raises(EvaluationError, match=message) as raised:
        read_references(write(content, "refs.json"))
    assert "\n" not in str(raised.value)


def test_evaluate_files_by_id_and_by_name(write):
    references = write(coco(("val/a.jpg", "val/b.jpg", "val/c.jpg")), "refs.json")
    by_id = [{"image_id": 0, "caption": "a dog"}, {"image_id": 1, "caption": "the cat"}]
    by_name = [{"image": f"x/{'ab'[r['image_id']]}.jpg", "caption": r["caption"]} for r in by_id]
    by_path = [{"image_id": r["image"], "caption": r["caption"]} for r in by_name]
    expected = evaluate_files(write(by_id), references, java=False)
    assert (expected.images, expected.missing) == (2, 1)
    assert expected.bleu_1 == pytest.approx(75)
    assert evaluate_files(str(write(by_name)), str(references), java=False) == expected
    assert evaluate_files(write(by_path), references, java=False) == expected
    with pytest.raises(EvaluationError, match=r"captions image 0 twice: by id and by name"):
        evaluate_files(write(by_id + by_name[:1]), references, java=False)


def test_evaluate_files_refuses_an_ambiguous_name(write):
    references = write(coco(("x/a.jpg", "y/a.jpg", "c.jpg")), "refs.json")
    with pytest.raises(EvaluationError, match=r"1 of 1 captioned .* no references: 'a\.jpg'"):
        evaluate_files(write([{"image": "a.jpg", "caption": "a"}]), references, java=False)
