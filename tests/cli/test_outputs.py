"""The files that commands write: which they replace, links, devices, and permissions."""

import json
import shlex
from pathlib import Path

import pytest
from PIL import Image

from captioner.cli.main import main
from captioner.files import atomic_text
from captioner.overlay import export
from tests.comparison.test_compare import BETTER, write

FORMATS = " ".join(export.names())
CALLS = {  # → the files that they write
    "caption a.jpg --model tiny --output out.txt": "out.txt",
    "caption a.jpg --model tiny --output out.jsonl": "out.jsonl",
    "caption a.jpg --model tiny --output out.csv": "out.csv",
    "caption a.jpg --model tiny --output out.json": "out.json",
    "evaluate results.json --references references.json --java no --output out.json": "out.json",
    "ground --scenes 2 --regime forced --model tiny --no-faithfulness --output out.json": (
        "out.json out.images.jsonl"
    ),
    "data check --data.name csv --data.root own.csv --workers 1 --output out.txt": "out.txt",
    "compare good --output out": "out/table.md out/table.csv out/table.json out/captions.png",
    f"explain a.jpg --model tiny --output out --formats {FORMATS}": " ".join(
        f"out/a{suffix}" for suffix in export.FORMATS if suffix != ".past.png"
    ),
}


@pytest.fixture
def folder(tmp_path, monkeypatch, tiny_folder):
    """A folder with an input of every kind."""
    monkeypatch.chdir(tmp_path)
    Path("tiny").symlink_to(tiny_folder)
    Image.effect_noise((60, 40), 99).save("a.jpg")
    Path("own.csv").write_text("image,caption,split\na.jpg,a dog,train\n")
    captions = [{"id": 1, "image_id": 1, "caption": "a dog runs"}]
    Path("results.json").write_text(json.dumps(captions))
    reference = {"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": captions}
    Path("references.json").write_text(json.dumps(reference))
    write(tmp_path, "good", BETTER)
    return tmp_path


@pytest.mark.parametrize("call", CALLS)
def test_a_file_that_exists_is_replaced_only_with_overwrite(call, folder, monkeypatch, refused):
    """Not even the command's own file: a person may have edited it."""
    monkeypatch.setattr("sys.argv", ["captioner", *shlex.split(call)])
    assert main(shlex.split(call)) in (0, 1)
    written = [Path(name) for name in CALLS[call].split()]
    edited = {file: file.read_bytes() + b"edited\n" for file in written}
    for file, content in edited.items():
        file.write_bytes(content)
        assert "exists: give another --output, or --overwrite" in refused(*shlex.split(call))
    assert {file: file.read_bytes() for file in written} == edited
    assert main([*shlex.split(call), "--overwrite"]) in (0, 1)
    assert not any(file.read_bytes().endswith(b"edited\n") for file in written)


def test_devices_are_refused(folder, refused):
    call = ("caption", "a.jpg", "--model", "tiny", "--format", "text", "--overwrite", "--output")
    assert "it is not a regular file" in refused(*call, "/dev/null")


def test_the_suffix_decides_between_a_file_and_a_folder(folder):
    call = ["caption", "a.jpg", "--model", "tiny", "--output"]
    assert main([*call, "out.jsonl", "--workers", "1"]) == 0
    assert Path("out.jsonl").is_file()
    assert main([*call, "captions", "--workers", "1"]) == 0
    assert main([*call, "captions", "--workers", "1"]) == 0  # a library goes on
    assert Path("captions/manifest.json").is_file()


@pytest.mark.parametrize(
    "call",
    ["caption a.jpg", "explain a.jpg --output out --method occlusion --formats png html gif"],
)
def test_a_photo_is_decoded_once(call, folder, monkeypatch):
    opened, original = [], Image.open

    def count(source, *arguments, **options):
        opened.append(source)
        return original(source, *arguments, **options)

    monkeypatch.setattr(Image, "open", count)
    assert main([*shlex.split(call), "--model", "tiny"]) == 0
    assert len(opened) == 1


def test_a_link_stays_and_its_file_is_replaced_with_its_permissions(folder):
    Path("there").mkdir()
    Path("there/captions.txt").write_text("a.jpg\ta dog\n")
    Path("there/captions.txt").chmod(0o604)
    Path("link.txt").symlink_to("there/captions.txt")
    assert main(["caption", "a.jpg", "--model", "tiny", "--output", "link.txt", "--overwrite"]) == 0
    assert Path("link.txt").readlink() == Path("there/captions.txt")
    assert Path("there/captions.txt").read_text() != "a.jpg\ta dog\n"
    assert Path("there/captions.txt").stat().st_mode & 0o777 == 0o604
    assert not list(folder.rglob("*.part"))


def test_an_error_names_the_file_and_not_the_one_written_first(folder, monkeypatch, capsys):
    def fail(part, _):
        raise PermissionError(13, "Permission denied", str(part))

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(PermissionError, match=r"denied: 'x\.txt'$"), atomic_text(Path("x.txt")):
        pass
    assert main(["caption", "a.jpg", "--model", "tiny", "--output", "out.txt"]) == 2
    assert capsys.readouterr().err.startswith("captioner: 'out.txt': Permission denied; check")
    assert main(["caption", "a.jpg", "--model", "tiny", "--write", "txt"]) == 1
    assert capsys.readouterr().err.startswith("captioner: 'a.txt': Permission denied\n")
    assert not list(folder.rglob("*.part"))
