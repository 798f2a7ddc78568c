"""Keep freed memory: on Linux a large CPU tensor is otherwise new pages from the kernel every time."""

from __future__ import annotations

import ctypes
import sys

_MMAP_MAX, _TRIM_THRESHOLD = -4, -1  # glibc's names M_MMAP_MAX and M_TRIM_THRESHOLD


def keep_pages() -> bool:
    """Make glibc serve large blocks from its heap and never give them back; returns whether that worked.

    A training step frees and allocates the same gigabytes again and again. With mmap each time costs a page fault
    for every 4 KiB, a noticeable part of a step on the CPU. The process then holds its peak memory until it ends.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, 2**31 - 1))
