"""Only the command line changes how the process allocates memory."""

import os
import subprocess
import sys

import pytest

# Prints the calls of mallopt that loading and captioning make.
LOADING = """
import ctypes, sys
calls = []
library = ctypes.CDLL
class Watched(library):
    def __getattr__(self, name):
        calls.append(name)
        return super().__getattr__(name)
ctypes.CDLL = Watched
import captioner
from captioner.fast import malloc
captioner.load(sys.argv[1], "cpu")
print("mallopt" in calls, end=" ")
malloc.keep_memory()
print("mallopt" in calls)
"""


def changes(folder, **environment):
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", LOADING, str(folder)],
        check=True,
        capture_output=True,
        text=True,
        env=inherited | environment,
    )
    return done.stdout.split()


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_loading_a_model_changes_nothing_and_the_environment_wins(tiny_folder):
    assert changes(tiny_folder) == ["False", "True"]
    assert changes(tiny_folder, MALLOC_TRIM_THRESHOLD_="131072") == ["False", "False"]
