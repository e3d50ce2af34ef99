"""Each damaged or hostile image file gives a caption or an error that names it."""

import os
import subprocess
import sys

import pytest

import libraries
from captioner.batch.batch_captioner import BatchCaptioner
from mutations import mutants


def checked(records, names):
    """Check that each file has one record, a caption or a one-line error; return the errors."""
    assert sorted(record["image"] for record in records) == sorted(names)
    for record in records:
        if "error" in record:
            assert record["error"]["type"] == "ImageError"
            assert record["error"]["message"].isprintable()
            assert record["image"] in record["error"]["message"]
        else:
            assert record["caption"]
    return sum("error" in record for record in records)


def written(count, folder, seed=0):
    """Write mutants into a folder and return their paths."""
    folder.mkdir()
    for name, data in mutants(count, seed):
        (folder / name).write_bytes(data)
    return [str(file) for file in folder.iterdir()]


@pytest.mark.filterwarnings("ignore:::PIL")  # Pillow warns of what it ignores
def test_some_mutants(tiny_folder, tmp_path):
    names = written(300, tmp_path / "photos")
    batches = [names[start : start + 32] for start in range(0, len(names), 32)]
    failed = checked(list(BatchCaptioner(str(tiny_folder), "cpu").rows(batches)), names)
    assert 50 < failed < 280


# Run a command and print the peak memory of its processes in KB. This runs in a small process, because
# a child counts with the memory of the process that it is forked from.
WEIGHED = """
import resource, subprocess, sys
status = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(status)
"""


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_five_thousand_mutants(tiny_folder, tmp_path):
    """The command needs much less memory than the bombs claim."""
    folder = tmp_path / "photos"
    names = written(5000, folder, seed=1)
    options = ("--model", tiny_folder, "--device=cpu", "--output", f"{tmp_path}/captions/")
    done = subprocess.run(
        [sys.executable, "-c", WEIGHED, *libraries.command(folder, *options)],
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
