"""What is freed stays with the process, unless somebody says otherwise."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    not (sys.platform == "linux" and os.confstr("CS_GNU_LIBC_VERSION")), reason="glibc's malloc"
)

# Faults while 64 MB come and go ten times, once it has settled.
FAULTS = """
import resource, torch
from captioner.memory import give_back_memory, keep_memory
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def use(times):
    before = faults()
    for _ in range(times):
        torch.ones(2**24)
    return faults() - before
{call}
use(40)  # until the holes that freed memory leaves are wide enough
print(use(10), end=" ")
give_back_memory()
print(use(1))
"""
PAGES = 2**26 // os.sysconf("SC_PAGE_SIZE")


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
    assert again < PAGES / 4
    assert given_back > PAGES / 2
    assert counted("")[0] > 5 * PAGES  # or the test could not fail


def test_the_environment_is_obeyed():
    assert counted("keep_memory()", MALLOC_TRIM_THRESHOLD_="131072")[0] > 5 * PAGES
