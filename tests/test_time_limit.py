"""The option of the test suite that ends slow tests in time."""

import subprocess
import sys
from pathlib import Path


def test_slow_tests_that_begin_too_late_are_skipped_and_named():
    command = [sys.executable, "-m", "pytest", "-n0", "-m", "slow", "tests/test_wheel.py"]
    done = subprocess.run(
        [*command, "--slow-minutes=0"],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "OUT OF TIME: slow tests do not start after 0 minutes" in done.stdout
    assert "1 skipped" in done.stdout
