"""A full disk, a read-only folder, a missing GPU: a one-line error, and no file is corrupted."""

import resource
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import libraries
from captioner.cli.main import main


@contextmanager
def disk(size):
    """Limit files to ``size`` bytes; writing more fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def command(tiny_folder, tmp_path, monkeypatch):
    """``captioner caption`` on twelve photos, in the folder of the test."""
    libraries.draw(tmp_path / "photos", 12)
    monkeypatch.chdir(tmp_path)
    return ["caption", str(tmp_path / "photos"), "--model", str(tiny_folder)]


def test_shards_on_a_disk_that_fills_up(command, tmp_path, in_process, refused):
    output = tmp_path / "captions"
    command += ["--batch-size=2", "--output", f"{output}/"]
    with disk(2000):  # enough for the manifest and two records
        assert main([*command, "--shard-size=2"]) == 0
        names = libraries.draw(tmp_path / "photos", 24)
        error = refused(*command, "--shard-size=12")
    assert "check the path, its permissions and the disk" in error
    assert len(libraries.records(output)) == 12
    assert not [file for file in output.iterdir() if file.name.startswith(".")]
    assert main(command) == 0
    libraries.whole(output, names)


def test_a_disk_that_fills_up_keeps_the_old_file(command, tmp_path, refused):
    target, precious = tmp_path / "captions.jsonl", '{"image": "precious.jpg"}\n'
    target.write_text(precious)
    with disk(600):
        refused(*command, "--output", target)
    assert target.read_text() == precious
    assert {file.name for file in tmp_path.iterdir()} == {"captions.jsonl", "photos"}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="NO /dev/full ON THIS SYSTEM")
def test_standard_output_on_a_full_disk(command):
    process = libraries.command(*command[1:], "--device=cpu")
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(process, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("captioner: ")
    assert "No space left" in line


@pytest.mark.skipif(torch.cuda.is_available(), reason="THERE IS A GPU")
@pytest.mark.parametrize("output", [[], ["--output=captions/"]])
def test_a_missing_gpu(output, command, refused):
    assert "device 'cuda' cannot be used here" in refused(*command, "--device=cuda", *output)
    assert not Path("captions").exists()
