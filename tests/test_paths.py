"""Which pictures files, folders and globs name."""

import os
from pathlib import Path

import pytest

from captioner import images, paths
from captioner.errors import ImageError, UsageError


def one_line(error, *parts):
    text = str(error.value)
    assert text.isprintable()
    for part in parts:
        assert part in text


@pytest.fixture
def tree(tmp_path, monkeypatch):
    for name in (
        "b.jpg", "a.PNG", "notes.txt", ".hidden.jpg", "sub/c.webp", "sub/deep/d.tiff",
        ".cache/e.jpg", "odd[1].jpg", "odd1.jpg", "x.jfif", "empty/readme.md",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.jpg").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(*inputs):
    return [path.as_posix() for path in paths.find(list(inputs))]


def test_folders_are_searched_in_order(tree):
    everything = ["a.PNG", "b.jpg", "odd1.jpg", "odd[1].jpg", "sub/c.webp", "sub/deep/d.tiff"]
    assert names(".") == everything
    assert paths.find([tree]) == [tree / name for name in everything]
    assert names("sub", "b.jpg") == ["sub/c.webp", "sub/deep/d.tiff", "b.jpg"]
    assert names(".cache") == [".cache/e.jpg"]  # hidden, but asked for


def test_files_are_kept_as_named_in_the_order_given(tree):
    assert names("x.jfif", "notes.txt", ".hidden.jpg") == ["x.jfif", "notes.txt", ".hidden.jpg"]
    assert paths.find([]) == []
    assert paths.find("b.jpg") == [Path("b.jpg")]  # not "b", ".", "j", …


def test_globs(tree):
    assert names("*") == [
        "a.PNG",
        "b.jpg",
        "odd1.jpg",
        "odd[1].jpg",
        "sub/c.webp",
        "sub/deep/d.tiff",
    ]
    assert names("[ab].*") == ["a.PNG", "b.jpg"]
    assert names("**/*.tiff") == ["sub/deep/d.tiff"]
    assert names("*.jfif") == ["x.jfif"]  # spelt out
    assert names(f"{tree}/s*/*") == [f"{tree}/sub/c.webp", f"{tree}/sub/deep/d.tiff"]


def test_a_literal_name_wins_over_its_glob_reading(tree):
    assert names("odd[1].jpg") == ["odd[1].jpg"]
    Path("odd[1].jpg").unlink()
    assert names("odd[1].jpg") == ["odd1.jpg"]


def test_nothing_is_listed_twice(tree):
    assert names("b.jpg", tree / "b.jpg", "./b.jpg", "b*", ".")[:2] == ["b.jpg", "a.PNG"]
    assert len(names(".", str(tree))) == len(names("."))


@pytest.mark.parametrize(
    "given", ["missing.jpg", "empty", "folder.jpg", "*.nope", "n*", "", "a\0", "z" * 5000]
)
def test_an_input_without_pictures_is_a_usage_error(tree, given):
    if given == "":
        (tree / "void").mkdir()
        os.chdir(tree / "void")
    with pytest.raises(UsageError) as error:
        paths.find([given or "."])
    one_line(error, ".jpg", ".tiff", *([given] if given.isalpha() and len(given) < 20 else []))


@pytest.mark.parametrize("given", ["missing.jpg", "empty", "folder.jpg", "*.nope", "a\0"])
def test_an_input_without_pictures_costs_only_itself(tree, given):
    assert names(given, "b.jpg", "missing too.jpg") == [given, "b.jpg", "missing too.jpg"]
    with pytest.raises(ImageError) as error:
        images.load(given)
    one_line(error)


def test_links_to_folders_are_not_followed(tree):
    (tree / "sub" / "loop").symlink_to(tree)
    (tree / "sub" / "link.jpg").symlink_to(tree / "b.jpg")
    assert names("sub") == ["sub/c.webp", "sub/deep/d.tiff", "sub/link.jpg"]


def test_a_stream_holds_what_matched_nothing_until_something_does(tree):
    coming = paths.stream(["missing.jpg", ".", "b.jpg"])
    assert [next(coming).as_posix() for _ in range(3)] == ["missing.jpg", "a.PNG", "b.jpg"]
    assert [path.as_posix() for path in coming][-2:] == ["sub/deep/d.tiff", "b.jpg"]  # again


def test_a_stream_does_not_read_ahead(tree):
    """Of a million folders, those not come to yet are not looked at."""
    coming = paths.stream(["."])
    assert next(coming) == Path("a.PNG")
    (tree / "sub" / "deep" / "new.png").touch()
    assert Path("sub/deep/new.png") in list(coming)
