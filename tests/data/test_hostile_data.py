"""Damaged and hostile data sets and images end in one printable line, at once, in little memory."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("data", 75),
        ("images", 75),
        pytest.param("data", 3000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
        pytest.param("images", 2000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
def test_hostile_files(kind, count, tmp_path):
    command = [sys.executable, "-W", "ignore", "hostile_data.py", kind, tmp_path, count, count]
    here = Path(__file__).parents[1]
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, cwd=here, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr[-2000:]
