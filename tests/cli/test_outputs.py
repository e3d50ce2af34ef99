"""The files that commands write: which they replace, links, devices, and permissions."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import runs
from captioner.cli import outputs
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
    "data check --data.name csv --data.root own.csv --workers 1 --format json --output out": "out",
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
def test_only_files_of_the_command_are_replaced(call, folder, monkeypatch, refused):
    monkeypatch.setattr("sys.argv", ["captioner", *shlex.split(call)])
    written = [Path(name) for name in CALLS[call].split()]
    for file in written:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"my notes\n")
    assert main([*shlex.split(call), "--overwrite"]) in (0, 1)
    first = [file.read_bytes() for file in written]
    assert b"my notes\n" not in first
    assert main(shlex.split(call)) in (0, 1)
    for file, content in zip(written, first, strict=True):
        for own in (
            b"my notes\n",
            b"word,count\na,1\n",
            b'{"a": [1]}\n',
            b"\x89PNG\r\n\x1a\n mine",
        ):
            file.write_bytes(own)
            assert f"'{file}' exists and holds something other than" in refused(*shlex.split(call))
            assert file.read_bytes() == own
        file.write_bytes(content)


@pytest.mark.parametrize(
    "name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "link", "/dev/null"]
)
def test_devices_and_open_files_are_refused(name, folder):
    """Standard output is a file here, as with ``> o.txt``; replacing it would lose the caption."""
    Path("link").symlink_to("/proc/self/fd/1" if name == "link" else "a.jpg")
    code = "import sys; from pathlib import Path; from captioner.cli.outputs import check_text; "
    command = [sys.executable, "-c", f"{code}check_text(Path(sys.argv[1]))", name]
    pipe = subprocess.run(
        command, capture_output=True, text=True, env=runs.environment(), check=False
    )
    assert "leave --output out to write to standard output" in pipe.stderr
    if name != "link":  # which leads to o.txt itself
        with Path("o.txt").open("w") as stream:
            file = subprocess.run(
                command, stdout=stream, stderr=-1, text=True, env=runs.environment(), check=False
            )
        assert "leave --output out to write to standard output" in file.stderr


def test_a_link_stays_and_its_file_is_replaced_with_its_permissions(folder):
    Path("there").mkdir()
    Path("there/captions.txt").write_text("a.jpg\ta dog\n")
    Path("there/captions.txt").chmod(0o604)
    Path("link.txt").symlink_to("there/captions.txt")
    assert main(["caption", "a.jpg", "--model", "tiny", "--output", "link.txt"]) == 0
    assert Path("link.txt").readlink() == Path("there/captions.txt")
    assert Path("there/captions.txt").read_text() != "a.jpg\ta dog\n"
    assert Path("there/captions.txt").stat().st_mode & 0o777 == 0o604
    assert not list(folder.rglob("*.part"))


def test_a_read_only_file_is_refused(folder, monkeypatch, refused):
    monkeypatch.setattr(outputs.os, "access", lambda file, mode: str(file) != "out.txt")  # not root
    Path("out.txt").touch()
    assert "is read-only" in refused("caption", "a.jpg", "--model", "tiny", "--output", "out.txt")


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
