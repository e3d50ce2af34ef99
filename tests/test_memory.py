"""What is freed stays with the process, unless somebody says otherwise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc"),
    pytest.mark.skipif(
        HUGE.exists() and "[always]" in HUGE.read_text("ascii"), reason="pages of 2 MB: few faults"
    ),
]

# Faults while a CNN sees the same pictures again, and once more after its memory was given back.
FAULTS = """
import resource, torch
from captioner.memory import give_back_memory, keep_memory
from captioner.models.encoder import CNNEncoder
{call}
torch.set_num_threads(1)
# As its library builds it: folded, it asks for less, and sometimes for nothing anew.
encoder = CNNEncoder(weights=None, trainable=True)
pictures = torch.zeros(8, 3, 224, 224, dtype=torch.uint8)
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    with torch.inference_mode():
        encoder(pictures)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
for _ in range(5):  # until the holes that freed memory leaves are wide enough
    faults()
print(faults(), end=" ")
give_back_memory()
print(faults())
"""
MANY = 2**24 // os.sysconf("SC_PAGE_SIZE")


def counted(call, **environment):
    given = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    found = subprocess.run(
        [sys.executable, "-c", FAULTS.format(call=call)],
        check=True,
        capture_output=True,
        text=True,
        env=given | environment,
    )
    return [int(number) for number in found.stdout.split()]


def test_pages_are_asked_for_once():
    again, given_back = counted("keep_memory()")
    assert again < MANY / 4
    assert given_back > MANY
    assert counted("")[0] > MANY  # or the test could not fail


def test_the_environment_is_obeyed():
    assert counted("keep_memory()", MALLOC_TRIM_THRESHOLD_="131072")[0] > MANY
