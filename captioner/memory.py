"""Memory that was freed, and that the C library still holds, or gives back."""

import ctypes
import os
from contextlib import suppress

# Of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
# Free memory at the end of the heap; the size from which a block is not of the heap, as high as every
# glibc allows.
_KEPT, _LARGE = 2**28, 2**25


def keep_memory() -> None:
    """Leaves memory that is freed with the process, for the next batch's activations.

    Linux hands out pages of zeros, one fault each: a network whose activations come from there, and
    go back after every layer, waits for them longer than for its arithmetic (docs/speed.md). What is
    free at the end of the heap is kept, up to a quarter of a gigabyte, until ``give_back_memory``;
    blocks of 32 MB and more come and go as before. One heap for all threads, so that what one has
    freed another can use.

    Whoever sets glibc's own environment variables is obeyed. Other C libraries are left alone.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    with suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, _KEPT)
        mallopt(_MMAP_THRESHOLD, _LARGE)
        mallopt(_ARENA_MAX, 1)


def give_back_memory() -> None:
    """Returns to the system what was freed: before workers are forked with all that their parent holds,
    before a program with needs of its own is started, and after work whose like does not come again.

    glibc keeps the holes that a large JSON file leaves behind, a hundred megabytes of COCO's, and those
    of a network's activations, half a gigabyte; other C libraries do not have this call.
    """
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
