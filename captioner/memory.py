"""Memory that was freed, and that the C library still holds."""

import ctypes
from contextlib import suppress


def give_back_memory() -> None:
    """Returns to the system what was freed: before workers are forked with all that their parent holds,
    before a program with needs of its own is started, and after work whose like does not come again.

    glibc keeps the holes that a large JSON file leaves behind, a hundred megabytes of COCO's, and those
    of a network's activations, half a gigabyte; other C libraries do not have this call.
    """
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
