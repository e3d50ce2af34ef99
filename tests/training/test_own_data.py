"""Photos of the user: which data set lies in a folder, and the example of docs/own-data.md."""

import json
import re
import shlex
from pathlib import Path

import pytest

import captioner
from captioner.cli.main import main
from captioner.data.module import CaptionDataModule
from captioner.data.readers import detect, read
from captioner.errors import DataError
from layouts import picture, write

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "own-data.md"
TABLE = "image,caption,split\na.png,a dog,train\nb.png,a cat,val\n"
LINES = '{"image": "a.png", "caption": "a dog"}\n{"image": "b.png", "caption": "a cat"}\n'


@pytest.mark.parametrize(
    ("files", "kind", "source"),
    [
        ({"a.txt": "a dog\n", "b.txt": "a cat\n"}, "folder", ""),
        (
            {"captions.csv": TABLE, "other.csv": "x", "a.txt": "", "b.txt": ""},
            "csv",
            "captions.csv",
        ),
        ({"mine.csv": TABLE}, "csv", "mine.csv"),
        ({"captions.jsonl": LINES, "mine.csv": "x"}, "jsonl", "captions.jsonl"),
    ],
)
def test_the_kind_of_data_set_is_found(files, kind, source, tmp_path):
    for name, text in files.items():
        write(tmp_path / name, text)
    for name in ("a.png", "b.png"):
        picture(tmp_path / name)
    found = detect(tmp_path)
    assert found[:2] == (kind, tmp_path / source)
    assert len(found.left_aside) == list(files.values()).count("x")
    records = read("auto", tmp_path)
    assert {r.image_id: r.captions for r in records} == {"a.png": ("a dog",), "b.png": ("a cat",)}
    if source:
        assert detect(tmp_path / source) == (kind, tmp_path / source, [])


def test_tables_of_something_else_are_left_aside(tmp_path, capsys):
    """With the reason, in the line of ``fit`` and in the error."""
    picture(tmp_path / "train" / "a.png")
    write(tmp_path / "captions.csv", "file,size\na.png,12\n")
    write(tmp_path / "log.jsonl", '{"step": 1}\n')
    write(tmp_path / "none.csv")
    reasons = [
        f"'{tmp_path / 'captions.csv'}': expected a header with image and caption, got 'file,size'",
        f"'{tmp_path / 'none.csv'}': expected captions, found nothing",
        f'\'{tmp_path / "log.jsonl"}\' line 1: expected \'{{"image": "a.jpg", ',
    ]
    with pytest.raises(DataError, match=r"no captions found .* expected a \.txt file") as error:
        read("auto", tmp_path)
    assert all(reason in str(error.value) for reason in reasons)
    write(tmp_path / "train" / "a.txt", "a dog\n")
    found = detect(tmp_path)
    assert found[:2] == ("folder", tmp_path)
    assert len(found.left_aside) == 3
    assert CaptionDataModule("auto", str(tmp_path), min_count=1).words == ["a", "dog"]
    line, *rest = capsys.readouterr().out.splitlines()
    assert "in text files beside photos (data.name folder)" in line
    assert rest == [f"left aside: {reason}" for reason in found.left_aside]
    write(tmp_path / "mine.csv", TABLE)
    write(tmp_path / "more.jsonl", '{"image": "train/a.png", "caption": "a cat"}\n')
    used = detect(tmp_path)
    assert used[:2] == ("csv", tmp_path / "mine.csv")
    assert f"'{tmp_path / 'more.jsonl'}': the captions of " in used.left_aside[-1]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_example_of_the_page(tmp_path, monkeypatch, capsys):
    """The commands of the pages, in order, on twelve photos and with few steps."""
    monkeypatch.chdir(tmp_path)
    for number in range(12):
        split = ("train", "val", "test")[number % 3]
        file = picture(Path("FOLDER", split, f"{number}.png"), number)
        if number != 3:
            file.with_suffix(".txt").write_text("a zebrafish and a dog\nmany zebrafish\n")
    picture(Path("photo.jpg"))
    page = PAGE.read_text("utf-8").split("## How far can I trust")[0]
    _, _, several = (DOCS / "library.md").read_text("utf-8").partition("## Several and varied")
    commands = [
        shlex.split(line) for line in re.findall("^    captioner (.*)$", page + several, re.M)
    ]
    assert len(commands) > 8
    for command in commands:
        if command[0] == "fit":
            command += ["--trainer.max_steps", "4", "--trainer.val_check_interval", "1"]
            command += ["--trainer.enable_progress_bar", "false", "--data.cache_dir", "cache"]
        assert main(command) == 0, command
        printed = capsys.readouterr().out
        if command[0] == "fit":
            assert "found 12 photos with 23 captions in text files" in printed
            assert re.search(
                r"started from 'luong-dot': [\d,]+ words copied, 1 new, 0 dropped", printed
            )
    assert "zebrafish" in captioner.load("runs/own").vocabulary.words
    assert list(Path("runs/own/overlays").glob("*.png"))
    assert (Path("runs/own/model/README.md")).is_file()
    for file in map(Path, ("captions.jsonl", "sampled.jsonl", "diverse.jsonl")):
        records = [json.loads(line) for line in file.read_text().splitlines()]
        assert [len(record["captions"]) for record in records] == [5] * 12
