"""Caption scores, compared with stored scores of coco-caption and its Java programs."""

import io
import json
import os
import shutil
from pathlib import Path

import pytest

from captioner.cli.main import main
from captioner.cli.writers import write_coco
from captioner.errors import DataError, EvaluationError
from captioner.evaluation import java
from captioner.evaluation.java import ptb_words
from captioner.evaluation.metrics import (
    CaptionScorer,
    Scores,
    evaluate_files,
    read_captions,
    read_references,
)

FIXTURES = Path(__file__).parents[1] / "fixtures" / "evaluation"
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


def first_captions(path):
    return {image: captions[0] for image, captions in read_captions(path).items()}


def score(candidates=TOY_CANDIDATES, references=TOY_REFERENCES, **options) -> Scores:
    return CaptionScorer(references, **options).score(candidates)


def assert_same_as_coco_caption(scores):
    names = {f"bleu_{n}": f"Bleu_{n}" for n in range(1, 5)}
    names |= {"rouge_l": "ROUGE_L", "cider": "CIDEr"}
    if scores.meteor is not None:
        names["meteor"] = "METEOR"
    for name, stored in names.items():
        assert getattr(scores, name) == pytest.approx(100 * COCO["scores"][stored])


def test_stored_tokens_give_the_stored_scores_of_coco_caption():
    """Without Java: the stored tokens give all scores of coco-caption except METEOR."""

    def stored(caption):
        return COCO["ptb"][caption.replace("\n", " ")].split()

    candidates, references = first_captions(RESULTS), read_references(REFERENCES)
    assert_same_as_coco_caption(score(candidates, references, java=False, tokenizer=stored))


@needs_java
def test_scores_equal_those_of_coco_caption(capfd):
    """Includes an empty caption, a very long one, accents, an emoji and line breaks."""
    scores = evaluate_files(RESULTS, REFERENCES, java=True)
    assert scores.meteor is not None
    assert_same_as_coco_caption(scores)
    assert (scores.tokenizer, scores.images, scores.missing) == ("ptb", 30, 0)
    assert capfd.readouterr() == ("", "")


@needs_java
def test_ptb_words():
    """Equal to stored output; line breaks inside captions do not shift the next ones."""
    captions, expected = list(COCO["ptb"]), list(COCO["ptb"].values())
    for end in (*"\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029", "\r\n", "\n\n"):
        captions += [f"A dog{end}runs.", "", f"{end}A cat", f"A bus{end}", ""]
        expected += ["a dog runs", "", "a cat", "a bus", ""]
    assert ptb_words(captions) == expected


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


# A tokenizer that changes nothing, and the same METEOR statistics for every caption.
METEOR_LINE = "7 4 4 1 2 2 1 1 0 0 0 0 0 0 0 0 0 0 0 0 1 3 3"
METEOR_SCORE = 34.72234871394288
PTB = 'case "$*" in *PTBTokenizer*) exec cat;; esac; '
GOOD = f"{PTB} while read -r line; do echo {METEOR_LINE}; done"
BROKEN = {
    "crashes": ("echo too old >&2; exit 1", "the PTB tokenizer failed: exit status 1, .*too old"),
    "swallows lines": ("cat > /dev/null; echo one", "the PTB tokenizer failed: exit status 0, 2"),
    "METEOR answers nonsense": (PTB + "while read -r line; do echo Error; done", "METEOR gave an"),
}


@posix
def test_java_on_path_is_used(fake_java, capfd):
    fake_java(GOOD)
    scores = score()
    assert (scores.meteor, scores.tokenizer) == (pytest.approx(METEOR_SCORE), "ptb")
    assert scores.cider == pytest.approx(score(java=False, tokenizer=str.split).cider)
    assert capfd.readouterr() == ("", "")


def test_no_java(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("PATH", str(tmp_path))
    scores = score()
    assert (scores.meteor, scores.tokenizer) == (None, "nltk-treebank")
    assert not caplog.records
    with pytest.raises(EvaluationError, match=r"No such file or directory: 'java'; repair or"):
        score(java=True)


@posix
@pytest.mark.parametrize(("code", "reason"), BROKEN.values(), ids=BROKEN)
def test_broken_java(code, reason, fake_java, caplog):
    fake_java(code)
    scorer = CaptionScorer(TOY_REFERENCES)
    scores = [scorer.score(TOY_CANDIDATES) for _ in range(2)]
    assert scores == [score(java=False)] * 2
    [record] = caplog.records
    assert record.getMessage().endswith("; scoring with nltk-treebank words and without METEOR")
    with pytest.raises(EvaluationError, match=f"^{reason}.*; repair or install Java, or [^\n]*$"):
        score(java=True)


@posix
def test_hanging_java_is_killed(fake_java, monkeypatch):
    fake_java("exec sleep 300")
    monkeypatch.setattr(java, "TIMEOUT", 0.5)
    with pytest.raises(EvaluationError, match=r"timed out after 0\.5 seconds"):
        score(java=True)


@pytest.mark.parametrize(
    ("candidates", "references", "message"),
    [
        ({}, {1: ["a"]}, "nothing to score"),
        (dict.fromkeys(range(8), "a"), {1: ["a"]}, r"0, 2, 3, 4, 5 and 2 more; .* of 1$"),
        ({1: "a"}, {1: ["a"], 2: [], 3: [" "]}, r"images without a reference caption: 2, 3$"),
        ({1: "a"}, {1: ["..."]}, r"the references of 1 have no words$"),
    ],
)
def test_what_cannot_be_scored(candidates, references, message):
    with pytest.raises(EvaluationError, match=message):
        score(candidates, references, java=False)


@pytest.fixture
def write(tmp_path):
    def write_file(content, name="results.json"):
        if not isinstance(content, bytes):
            content = (content if isinstance(content, str) else json.dumps(content)).encode()
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    return write_file


def test_read_results(write, caplog):
    results = [{"image_id": 42, "caption": "a dog"}, {"image_id": "x", "caption": ""}]
    expected = {42: "a dog", "x": ""}
    assert first_captions(write(results)) == expected
    assert first_captions(write(b"\xef\xbb\xbf\n" + json.dumps(results).encode())) == expected
    lines = [
        {"image": "photos/dog.jpg", "caption": "a dog\u2028runs 😀", "log_prob": -3.5},
        {"image": "other/dog.jpg", "caption": "a cat"},
        {"image": "photos/broken.jpg", "error": {"type": "ImageError", "message": "cut"}},
        {"image": "a.jpg", "image_id": 7, "caption": "a bus"},
    ]
    text = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\n\n"
    assert first_captions(str(write(text, "out.jsonl"))) == {
        "photos/dog.jpg": "a dog\u2028runs 😀",
        "other/dog.jpg": "a cat",
        7: "a bus",
    }
    assert "left out images that have no caption: 'photos/broken.jpg'" in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '[{"image_id": 1',
            r"results\.json: the JSON is malformed \(.*; expected COCO results, \[",
        ),
        (b"\xff\xfe", r"results\.json' is not in UTF-8"),
        ([{"image": "a.jpg", "error": {}}], r"holds no caption; expected COCO results"),
        ([{"image_id": 1, "caption": "a"}, {"caption": "a"}], r"record 2 is malformed"),
        ([{"image_id": 1, "caption": None}], r"record 1 is malformed"),
        ([{"image_id": i, "caption": "a"} for i in (1, 2, "1")], r"record 3 .*image 1 for the sec"),
    ],
)
def test_bad_results(content, message, write):
    with pytest.raises((EvaluationError, DataError), match=message):
        read_captions(write(content))


@pytest.mark.parametrize("content", ["{", [], {"images": [], "annotations": [{"image_id": 1}]}])
def test_bad_references(content, write):
    with pytest.raises((EvaluationError, DataError), match=r"refs\.json"):
        read_references(write(content, "refs.json"))


def coco(write, images, captions=("a dog", "a cat", "a bus")):
    """A file of references: one caption for each image."""
    annotations = [
        {"image_id": image["id"], "caption": text}
        for image, text in zip(images, captions, strict=False)
    ]
    return write({"images": images, "annotations": annotations}, "refs.json")


def test_evaluate_files_by_id_and_by_name(write):
    references = coco(write, [{"id": i, "file_name": f"val/{'abc'[i]}.jpg"} for i in range(3)])
    by_id = [{"image_id": 0, "caption": "a dog"}, {"image_id": 1, "caption": "the cat"}]
    by_name = [{"image": f"x\\{'ab'[r['image_id']]}.jpg", "caption": r["caption"]} for r in by_id]
    expected = evaluate_files(write(by_id), references, java=False)
    assert (expected.images, expected.missing) == (2, 1)
    assert expected.bleu_1 == pytest.approx(75)
    assert evaluate_files(str(write(by_name)), str(references), java=False) == expected
    with pytest.raises(EvaluationError, match="captions image 0 twice"):
        evaluate_files(write(by_id + by_name[:1]), references, java=False)


@pytest.mark.parametrize("kind", [int, float, str])
def test_whole_numbers_are_ids_however_they_are_written(write, kind):
    """Also where the references have no file names."""
    results = write([{"image_id": kind(i), "caption": "a dog"} for i in (1, 2)])
    for other in (int, float, str):
        references = coco(write, [{"id": other(i)} for i in (1, 2)])
        assert evaluate_files(results, references, java=False).images == 2


def test_photos_of_one_name_are_told_apart_by_their_folders(write):
    names = ("train/a.jpg", "val/a.jpg", "val/b.jpg")
    references = coco(write, [{"id": i, "file_name": name} for i, name in enumerate(names)])
    captions = {"x/train/a.jpg": "a dog", "x/val/a.jpg": "a cat", "b.jpg": "a bus"}
    results = [{"image": image, "caption": text} for image, text in captions.items()]
    scores = evaluate_files(write(results), references, java=False)
    assert (scores.images, scores.bleu_1) == (3, pytest.approx(100))
    with pytest.raises(EvaluationError, match=r"without references: 'a\.jpg'"):
        evaluate_files(write([{"image": "a.jpg", "caption": "a dog"}]), references, java=False)
    photos = [(Path(image), {"caption": text}) for image, text in captions.items()]
    write_coco(photos, stream := io.StringIO())
    assert evaluate_files(write(stream.getvalue()), references, java=False) == scores


def test_the_command_rounds_and_warns_of_missing_captions(write, capsys):
    some = write(json.loads(RESULTS.read_text())[:5])
    assert main(["evaluate", str(some), "--references", str(REFERENCES), "--java=no"]) == 0
    printed, warned = capsys.readouterr()
    scores = json.loads(printed)
    assert scores["images"] == 5
    assert all(score == round(score, 2) for score in scores.values() if isinstance(score, float))
    assert "25 of 30 photos with references have no caption" in warned
