"""Settings of the C library's allocator. Only the command line changes them."""

import ctypes
import os
from contextlib import suppress

# Parameters of mallopt in glibc's malloc.h, and the values set here.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_KEPT, _LARGE = 2**28, 2**25


def keep_memory() -> None:
    """Keep up to 256 MB of freed memory in this process, for the activations of the next batch.

    Linux zeroes every new page, which takes longer than a CNN's arithmetic (docs/speed.md). Blocks
    of 32 MB and more are returned; all threads share one heap. Does nothing if glibc's environment
    variables are set, or with another C library.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    with suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, _KEPT)
        mallopt(_MMAP_THRESHOLD, _LARGE)
        mallopt(_ARENA_MAX, 1)


def give_back_memory() -> None:
    """Return freed memory to the system, before a fork or after work that is done once.

    Otherwise glibc keeps what a large JSON file (100 MB for COCO) or activations (500 MB) took. Does
    nothing with another C library.
    """
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
