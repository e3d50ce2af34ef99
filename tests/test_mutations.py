"""Thousands of damaged and hostile picture files: each ends as a caption or as a named error."""

import os
import subprocess
import sys
import time

import pytest

import libraries
from captioner.library.batch import BatchCaptioner
from captioner.library.records import rows
from mutations import FORMATS, mutants


def checked(records, names):
    """Each file has one record: a caption, or an error of one line that names the file."""
    assert sorted(record["image"] for record in records) == sorted(names)
    for record in records:
        if "error" in record:
            assert record["error"]["type"] == "ImageError"
            assert record["error"]["message"].isprintable()
            assert record["image"] in record["error"]["message"]
        else:
            assert record["caption"]
    return sum("error" in record for record in records)


def test_the_generator_repeats_itself_and_knows_every_format():
    files = dict(mutants(400))
    assert dict(mutants(400)) == files
    for name in FORMATS:
        assert any(file.endswith(f".{name}") for file in files), name
    assert sum("bomb" in file for file in files) == 8


@pytest.mark.filterwarnings("ignore:::PIL")  # Pillow says what it overlooked
def test_some_mutants(tiny_folder, tmp_path):
    names = []
    for name, data in mutants(300):
        (tmp_path / name).write_bytes(data)
        names.append(str(tmp_path / name))
    captioner = BatchCaptioner(str(tiny_folder), "cpu")
    began = time.monotonic()
    records = [
        row
        for start in range(0, len(names), 32)
        for row in rows(captioner({"image": names[start : start + 32]}))
    ]
    failed = checked(records, names)
    assert 50 < failed < 280  # neither kind is there by mistake
    assert time.monotonic() - began < 200


# A command, and the greatest of its processes in KB. From a small process: a child is counted with what
# it was, a copy of its parent, before it was a program of its own.
WEIGHED = """
import resource, subprocess, sys
status = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(status)
"""


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_five_thousand_mutants(tiny_folder, tmp_path):
    """Through the command, in memory that would not hold what the bombs claim."""
    folder = tmp_path / "photos"
    folder.mkdir()
    names = []
    for name, data in mutants(5000, seed=1):
        (folder / name).write_bytes(data)
        names.append(str(folder / name))
    arguments = (
        folder,
        "--model",
        tiny_folder,
        "--device=cpu",
        "--output",
        f"{tmp_path}/captions/",
    )
    done = subprocess.run(
        [sys.executable, "-c", WEIGHED, *libraries.command(*arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 1, done.stderr[-2000:]
    assert all(line.startswith("captioner: ") for line in done.stderr.splitlines())
    failed = checked(libraries.records(tmp_path / "captions"), names)
    assert 1000 < failed < 4500
    # Torch and the model take most of it.
    assert int(done.stdout.split()[-1]) < 1.5e6
