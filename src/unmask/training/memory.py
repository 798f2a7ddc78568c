"""Memory: what the allocator of C does with freed memory on Linux, and what a backward pass keeps."""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

_MMAP_MAX, _TRIM_THRESHOLD, _ARENA_MAX = -4, -1, -8  # glibc's names M_MMAP_MAX, M_TRIM_THRESHOLD and M_ARENA_MAX


def keep_pages() -> bool:
    """Make glibc serve large blocks from its heap and never give them back; returns whether that worked.

    A training step frees and allocates the same gigabytes again and again. With mmap each time costs a page fault
    for every 4 KiB, a noticeable part of a step on the CPU. The process then holds its peak memory until it ends.
    """
    return _set(_MMAP_MAX, 0) and _set(_TRIM_THRESHOLD, 2**31 - 1)


def share_heaps() -> bool:
    """Let all threads share two heaps; returns whether that worked.

    By default each thread may get a heap, up to eight a core, and each of them keeps the most that it ever held. A
    server, in which many threads prepare requests, would grow with every new coincidence of large ones.
    """
    return _set(_ARENA_MAX, 2)


def give_back() -> None:
    """Give freed memory back to the system."""
    if (trim := getattr(_library(), "malloc_trim", None)) is not None:
        trim(0)


def recompute_blocks(backbone: Any) -> None:
    """Keep only what enters each block for the backward pass, which then computes the block again."""
    for block in backbone.blocks:
        block.forward = functools.partial(_recomputed, block.forward)


def _recomputed(forward: Any, *inputs: Any, **more: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*inputs, **more)
    return checkpoint(forward, *inputs, use_reentrant=False, **more)


def _set(name: int, value: int) -> bool:
    mallopt = getattr(_library(), "mallopt", None)
    return mallopt is not None and bool(mallopt(name, value))


def _library() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        return ctypes.CDLL("libc.so.6")
    except OSError:  # another C library
        return None
