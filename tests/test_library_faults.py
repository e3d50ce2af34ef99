"""A full disk, a folder that may not be written, a missing GPU: one line, and nothing corrupted."""

import os
import resource
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import libraries
from captioner.cli import main


@contextmanager
def disk(size):
    """Files may not grow beyond ``size`` bytes, which writes notice as they notice a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def one_line(text):
    (line,) = text.splitlines()
    assert line.startswith("captioner: ")
    return line


@pytest.fixture
def photos(tmp_path):
    return libraries.draw(tmp_path / "photos", 12)


def test_a_disk_that_fills_up(photos, tiny_folder, tmp_path, in_process, capsys):
    output = tmp_path / "captions"
    command = ["caption", str(tmp_path / "photos"), "--model", str(tiny_folder), "--batch-size=2"]
    command += ["--output", f"{output}/"]
    with disk(2000):  # room for the manifest and two records
        assert main([*command, "--shard-size=2"]) == 0
        names = libraries.draw(tmp_path / "photos", 24)
        capsys.readouterr()
        assert main([*command, "--shard-size=12"]) == 2
    assert "check the path, its permissions and the disk" in one_line(capsys.readouterr().err)
    assert len(libraries.records(output)) == 12
    assert not [file for file in output.iterdir() if file.name.startswith(".")]
    assert main(command) == 0
    libraries.whole(output, names)


def test_a_disk_that_fills_up_keeps_the_file_of_before(photos, tiny_folder, tmp_path, capsys):
    target = tmp_path / "captions.jsonl"
    target.write_text("precious")
    command = ["caption", str(tmp_path / "photos"), "--model", str(tiny_folder), "--format=jsonl"]
    with disk(600):
        assert main([*command, "--output", str(target)]) == 2
    one_line(capsys.readouterr().err)
    assert target.read_text() == "precious"
    assert {file.name for file in tmp_path.iterdir()} == {"captions.jsonl", "photos"}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="NO /dev/full ON THIS SYSTEM")
def test_standard_output_on_a_full_disk(photos, tiny_folder):
    command = libraries.command(photos[0], "--model", tiny_folder, "--device=cpu")
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert "No space left" in one_line(done.stderr)


@pytest.mark.parametrize("more", [[], ["--format=parquet"]])
def test_a_folder_that_may_not_be_written(more, photos, tiny_folder, tmp_path, in_process, capsys):
    sealed = tmp_path / "sealed"
    sealed.mkdir(mode=0o500)
    target = f"{sealed}/captions/"
    if os.access(sealed, os.W_OK):  # root may write anywhere but here
        target = "/proc/captions/"
    command = ["caption", photos[0], "--model", str(tiny_folder), "--output", target]
    assert main([*command, *more]) == 2
    assert "check the path, its permissions" in one_line(capsys.readouterr().err)


@pytest.mark.skipif(torch.cuda.is_available(), reason="THERE IS A GPU")
@pytest.mark.parametrize("output", [[], ["--output=captions/"]])
def test_a_missing_gpu(output, photos, tiny_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = ["caption", photos[0], "--model", str(tiny_folder), "--device=cuda", *output]
    assert main(command) == 2
    assert "device 'cuda' cannot be used" in one_line(capsys.readouterr().err)
    assert not (tmp_path / "captions").exists()
