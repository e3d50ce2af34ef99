"""The images that files, folders and globs name, and the files that ``caption`` writes."""

import io
import os
import subprocess
from pathlib import Path

import pytest

from captioner.cli.main import main
from captioner.cli.writers import WRITERS
from captioner.errors import ImageError, UsageError, notice
from captioner.photos import images, paths

FILES = (
    *("b.jpg", "a.PNG", "notes.txt", ".hidden.jpg", "sub/c.webp", "sub/deep/d.tiff"),
    *(".cache/e.jpg", "odd[1].jpg", "odd1.jpg", "x.raw", "empty/readme.md"),
)
IMAGES = ["a.PNG", "b.jpg", "odd1.jpg", "odd[1].jpg", "sub/c.webp", "sub/deep/d.tiff"]


@pytest.fixture
def tree(tmp_path, monkeypatch):
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.jpg").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(*inputs):
    return [path.as_posix() for path in paths.find(list(inputs))]


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (["."], IMAGES),
        (["*"], IMAGES),
        (["sub", "b.jpg"], ["sub/c.webp", "sub/deep/d.tiff", "b.jpg"]),
        ([".cache"], [".cache/e.jpg"]),  # hidden, but named
        (["x.raw", "notes.txt", ".hidden.jpg"], ["x.raw", "notes.txt", ".hidden.jpg"]),
        ([], []),
        (["[ab].*"], ["a.PNG", "b.jpg"]),
        (["**/*.tiff"], ["sub/deep/d.tiff"]),
        (["*.raw"], ["x.raw"]),
        ([".ca*/*.jpg"], [".cache/e.jpg"]),
        (["**/.h*.jpg"], [".hidden.jpg"]),
    ],
)
def test_images_are_found_in_order(inputs, expected, tree):
    assert names(*inputs) == expected


def test_absolute_inputs_give_absolute_paths_and_a_string_is_one_input(tree):
    assert paths.find([tree]) == [tree / name for name in IMAGES]
    assert names(f"{tree}/s*/*") == [f"{tree}/sub/c.webp", f"{tree}/sub/deep/d.tiff"]
    assert paths.find("b.jpg") == [Path("b.jpg")]


def test_an_existing_name_is_not_read_as_a_glob(tree):
    assert names("odd[1].jpg") == ["odd[1].jpg"]
    Path("odd[1].jpg").unlink()
    assert names("odd[1].jpg") == ["odd1.jpg"]


def test_an_image_is_listed_once(tree):
    assert names("b.jpg", tree / "b.jpg", "./b.jpg", "b*", ".")[:2] == ["b.jpg", "a.PNG"]
    assert len(names(".", str(tree))) == len(names("."))


@pytest.mark.parametrize(
    "name", ["missing.jpg", "empty", "folder.jpg", "*.nope", "a\0", "z" * 5000]
)
def test_an_input_without_images(tree, name):
    """Alone it is an error; beside other inputs it is reported when it is read."""
    with pytest.raises(UsageError, match=r"expected photos, folders or globs \(\.jpg") as error:
        paths.find([name])
    assert str(error.value).isprintable()
    assert names(name, tree / "b.jpg", "missing too.jpg")[1:] == [name, "missing too.jpg"]
    with pytest.raises(ImageError) as unreadable:
        images.load(name)
    assert str(unreadable.value).isprintable()


def test_links_to_folders_are_followed_once_and_never_upwards(tree):
    for name in ("loop", "again", "loop.jpg"):
        (tree / "sub" / name).symlink_to(tree)
    (tree / "sub" / "link.jpg").symlink_to(tree / "b.jpg")
    other = tree / "other"
    other.mkdir()
    (other / "o.jpg").touch()
    (other / "back").symlink_to(tree / "sub")
    for name in ("a-link", "b-link"):
        (tree / "sub" / name).symlink_to(other)
    found = ["sub/c.webp", "sub/link.jpg", "sub/deep/d.tiff", "sub/a-link/o.jpg"]
    assert names("sub") == names("sub/**") == found
    assert names("**/*.tiff") == ["sub/deep/d.tiff"]


def test_names_of_photos_and_folders_of_programs(tree, caplog):
    """What is left out is counted, each in one line; files of captions are not reported."""
    for name in ("e.JFIF", "f.jpe", "g.mpo", "h.hif", "i.cr2", "j.cr2", "k.mov", "a.xmp", "a.txt"):
        (tree / "sub" / name).touch()
    for name in ("@eaDir/c.webp", "#recycle", "Lost+Found", ".thumbnails", ".git"):
        (tree / "sub" / name / "thumb.jpg").mkdir(parents=True)
        (tree / "sub" / name / "thumb.jpg" / "t.jpg").touch()
    found = ["sub/c.webp", "sub/e.JFIF", "sub/f.jpe", "sub/g.mpo", "sub/h.hif", "sub/deep/d.tiff"]
    notice.cache_clear()
    assert names("sub") == found
    assert set(names("sub/*")) == set(found)
    assert caplog.messages == [
        "captioner: left out 4 folders of programs, such as @eaDir and lost+found",
        "captioner: left out 3 files whose names are not those of photos (.cr2 .mov)",
    ]
    assert names("sub/@eaDir") == ["sub/@eaDir/c.webp/thumb.jpg/t.jpg"]  # named


def test_what_is_no_regular_file_is_listed(tree):
    """Reading it reports the error."""
    os.mkfifo(tree / "sub" / "pipe.jpg")
    (tree / "sub" / "circle.png").symlink_to("circle.png")
    special = ["sub/circle.png", "sub/pipe.jpg"]
    assert names("sub") == ["sub/c.webp", *special, "sub/deep/d.tiff"]


@pytest.mark.parametrize("inputs", [["."], ["sub"], ["s*"], ["b.jpg", "sub/deep"]])
def test_a_folder_that_cannot_be_read_is_reported(inputs, tree, monkeypatch):
    scandir = os.scandir

    def refuse(folder="."):
        if Path(folder).name == "deep":
            raise PermissionError(13, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    assert "sub/deep" in names(*inputs)


def test_folders_nested_deeper_than_pythons_recursion(tree):
    """And longer than a path of the system."""
    deep = "sub/" + "/".join("x" * 1500)
    subprocess.run(["mkdir", "-p", f"{deep}/{'y/' * 600}"], check=True)
    Path(deep, "last.png").touch()
    try:
        *found, unreadable = names("sub")
        assert found == ["sub/c.webp", "sub/deep/d.tiff", f"{deep}/last.png"]
        assert unreadable.startswith(f"{deep}/y/")
    finally:
        subprocess.run(["rm", "-r", "sub/x"], check=True)  # pytest cannot


def test_iterate_does_not_read_ahead(tree):
    """Inputs without a match come last; subfolders are read when they are reached."""
    stream = paths.iterate(["missing.jpg", ".", "b.jpg"])
    assert next(stream).as_posix() == "a.PNG"
    (tree / "sub" / "deep" / "new.png").touch()
    rest = [path.as_posix() for path in stream]
    assert rest[-3:] == ["sub/deep/new.png", "b.jpg", "missing.jpg"]


def test_names_are_printed_on_one_line_without_escapes_for_terminals():
    stream = io.StringIO()
    WRITERS["text"]([(Path("a\x1b[31m\nb.jpg"), {"caption": "a dog"})], stream)
    assert stream.getvalue() == "a\\x1b[31m\\nb.jpg\ta dog\n"


def test_what_cannot_be_captioned_is_reported(tree, capsys, tiny_folder):
    command = ["caption", "notes.txt", "--model", str(tiny_folder)]
    assert main([*command, "--output=captions.jsonl"]) == 1
    assert capsys.readouterr().err.startswith("captioner: notes.txt is not an image")
    assert '"error": {"type": "ImageError"' in Path("captions.jsonl").read_text()
    with pytest.raises(UsageError, match="is a web address: download the photo"):
        paths.find(["https://example.org/a.jpg"])
