"""Memory that a program has freed stays with it, for programs that pass long messages on."""

from __future__ import annotations

import ctypes

KEPT = 64 << 20
"""Bytes at the end of the heap that are kept."""
LARGEST = 32 << 20
"""Bytes of an allocation from which on it is mapped on its own: the most that glibc allows."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> bool:
    """Have glibc keep memory for the next long message; False: this is another C library, and all stays as it was.

    By default glibc maps everything over 128 KiB anew and gives it back at once, so that each copy of a message pays
    for a fault per page: 0.9 ms for a message of 960 kB, against 0.04 ms.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGEST)) and bool(mallopt(_M_TRIM_THRESHOLD, KEPT))
