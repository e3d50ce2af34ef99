"""``captioner data check`` finds every planted problem and nothing else, and counts correctly."""

import json
import os
import shutil
from pathlib import Path

import pytest

from captioner.cli.main import main
from captioner.data import check as data_check
from captioner.data.check import statistics
from captioner.data.readers.problems import KINDS, Problems
from captioner.data.records import Record, Records
from layouts import coco, picture

CAPTIONS = {
    "train2017": {
        "a.jpg": ["a dog runs", "a dog sits"],
        "b.jpg": ["a cat runs"],
        "c.jpg": ["a dog"],
    },
    "val2017": {"d.jpg": ["a bird runs"], "e.jpg": ["a dog runs"]},
}


@pytest.fixture
def clean(tmp_path) -> Path:
    coco(tmp_path, CAPTIONS)
    for seed, file in enumerate(sorted(tmp_path.glob("*2017/*.jpg"))):
        picture(file, seed)
    return tmp_path


def check(root: Path, capsys, *options: str, name: str = "coco") -> tuple[int, dict]:
    command = ["data", "check", f"--data.name={name}", f"--data.root={root}", *options]
    status = main([*command, "--workers=2", "--format=json"])
    captured = capsys.readouterr()
    assert not captured.err  # a bar is only for terminals
    return status, json.loads(captured.out)


def test_a_clean_data_set(clean, capsys):
    status, report = check(clean, capsys, "--data.min_count=2")
    assert status == 0
    assert report == {
        "data": "coco",
        "root": str(clean),
        "left_aside": [],
        "images": {"train": 3, "val": 2},
        "captions": {"train": 4, "val": 2},
        "captions_per_image": {"1": 4, "2": 1},
        "words_per_caption": {
            "least": 2,
            "mean": 2.83,
            "median": 3,
            "most": 3,
            "counts": {"2": 1, "3": 5},
        },
        "vocabulary": {
            "min_count": 2,
            "words": 3,  # a, dog, runs
            "different_words": 5,
            "coverage": {"val": {"words": 83.33, "captions": 50.0}},
        },
        "problems": [],
    }


def test_every_problem_at_once(clean, capsys, tmp_path_factory):
    file = clean / "annotations" / "captions_train2017.json"
    document = json.loads(file.read_text())
    train, val = clean / "train2017", clean / "val2017"
    more = {
        10: ["gone.jpg", "gone"],
        11: ["bad.jpg", "no image"],
        12: ["cut.jpg", "half an image"],
        13: ["a.jpg", "the same file again"],
        14: ["twin.jpg", "a copy of another file"],
        15: ["leak.jpg", "a copy of a validation image"],
        1: ["used.jpg", "an id used twice"],
        17: ["silent.jpg", "..."],
        18: ["long.jpg", "word " * 25],
    }
    for number, (name, caption) in more.items():
        document["images"].append({"id": number, "file_name": name})
        document["annotations"].append({"image_id": number, "caption": caption})
        if name not in ("gone.jpg", "a.jpg"):
            picture(train / name, 100 + number)
    document["annotations"].append({"image_id": 99, "caption": "of no image"})
    file.write_text(json.dumps(document))
    (train / "bad.jpg").write_text("no image")
    whole = (train / "cut.jpg").read_bytes()
    (train / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    shutil.copy(train / "b.jpg", train / "twin.jpg")
    shutil.copy(val / "d.jpg", train / "leak.jpg")
    status, report = check(clean, capsys)
    assert status == 1
    found = {problem["kind"]: problem["items"] for problem in report["problems"]}
    unreadable = found.pop("unreadable")
    assert [item.split()[0] for item in unreadable] == [f"{train}/bad.jpg", f"{train}/cut.jpg"]
    assert found == {
        "missing": [f"{train}/gone.jpg"],
        "duplicate-id": ["1"],
        "duplicate-path": [f"{train}/a.jpg"],
        "no-captions": ["silent.jpg"],
        "no-image": ["99"],
        "no-words": ["silent.jpg: '...'"],
        "duplicate-content": [
            f"{train}/a.jpg (train) = {train}/a.jpg (train)",
            f"{train}/b.jpg (train) = {train}/twin.jpg (train)",
        ],
        "leaked-content": [f"{train}/leak.jpg (train) = {val}/d.jpg (val)"],
        "long": [f"18: 25 words: {('word ' * 25).strip()!r}"],
    }
    for problem in report["problems"]:
        assert problem["count"] == len(problem["items"])
        assert problem["what"] == KINDS[problem["kind"]]


def test_the_text_names_ten_of_each_kind(clean, capsys):
    captions = {f"{i}.jpg": ["a dog"] for i in range(25)}
    coco(clean / "more", {"train2017": captions, "val2017": {"z.jpg": ["a dog sits there"]}})
    for i in (*range(13, 25), "z"):
        next((clean / "more").glob(f"*/{i}.jpg")).unlink()
    for i in range(13):
        picture(clean / "more" / "train2017" / f"{i}.jpg", i)
    output = clean / "report.txt"
    command = ["data", "check", "--data.name=coco", f"--data.root={clean}/more", "--workers=1"]
    assert main([*command, "--data.max_words=3", f"--output={output}"]) == 1
    text = output.read_text()
    assert "\n  train         25 images         25 captions\n" in text
    assert "\nimages that do not exist: 13\n" in text
    assert text.count("/train2017/") == 10
    assert "\n  … and 3 more (--format json lists all)\n" in text
    assert "\ncaptions that training cuts: 1\n" in text
    assert capsys.readouterr().out == ""


def test_a_file_that_ends_its_decoder_is_named(clean, capsys, monkeypatch):
    def killed_by_b(path):
        return os._exit(1) if path.endswith("b.jpg") else path.encode()

    monkeypatch.setattr(data_check, "_decode", killed_by_b)
    status, report = check(clean, capsys)
    (problem,) = report["problems"]
    assert (status, problem["kind"]) == (1, "unreadable")
    assert problem["items"] == [f"{clean}/train2017/b.jpg ends the process that decodes it"]


def test_captions_without_spaces_are_named(tmp_path, capsys):
    for number, text in enumerate(("一只狗在跑", "หมาวิ่ง", "犬が走る", "a dog 狗", "개가 달린다")):
        picture(tmp_path / f"{number}.png", number)
        (tmp_path / f"{number}.txt").write_text(text, "utf-8")
    status, report = check(tmp_path, capsys, name="folder")
    (problem,) = report["problems"]
    assert (status, problem["kind"]) == (1, "no-spaces")
    assert sorted(item[0] for item in problem["items"]) == ["0", "1", "2"]


# ── Numbers ───────────────────────────────────────────────────────────────────────────────────────


def test_nothing_to_learn_from():
    """No training caption, or only rare words."""
    val = [Record(1, "a.jpg", ("a dog",), "val"), Record(2, "b.jpg", (), "test")]
    for records in (val, [*val, Record(3, "c.jpg", ("a cat",), "train")]):
        problems = Problems()
        found = statistics(Records(records), problems, 24, 5)
        assert found["vocabulary"]["words"] == 0
        coverage = found["vocabulary"]["coverage"]
        assert coverage["val"]["words"] == coverage["test"]["captions"] == 0
        assert not problems.found
