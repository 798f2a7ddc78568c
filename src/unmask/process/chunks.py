"""Rows to logits a chunk at a time: nothing of shape (rows, vocabulary) is larger than a budget allows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

LOGITS_AT_ONCE = 2**28  # float32 logits held at a time (1 GiB); beyond it the head runs in recomputed chunks


def rows_at_once(vocab_size: int, logits: int | None = None) -> int:
    """How many rows of logits fit into a budget; at least one."""
    return max(1, (LOGITS_AT_ONCE if logits is None else logits) // vocab_size)


def in_chunks(head: Callable[..., tuple[Tensor, ...]], vocab_size: int, *rows: Tensor) -> tuple[Tensor, ...]:
    """`head` on rows (N, ...) whose logits are (N, V); where those are large, in chunks that backward recomputes."""
    size = rows_at_once(vocab_size)
    if len(rows[0]) <= size:
        return head(*rows)
    parts = [
        checkpoint(head, *chunk, use_reentrant=False) for chunk in zip(*(r.split(size) for r in rows), strict=True)
    ]
    return tuple(torch.cat(values) for values in zip(*parts, strict=True))
