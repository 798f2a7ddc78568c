"""Embeddings from counts, slowly: counts by two loops, dense matrices, a full SVD in float64."""

from __future__ import annotations

import numpy as np


def pairs(rows: list[list[int]], size: int, offset: int) -> np.ndarray:
    """(V, V): how often b follows a at this distance within a row."""
    counted = np.zeros((size, size))
    for row in rows:
        for i in range(len(row) - offset):
            counted[row[i], row[i + offset]] += 1
    return counted


def associations(rows: list[list[int]], size: int) -> np.ndarray:
    """(V, 4 V): [M_1, M_1ᵀ, M_2, M_2ᵀ]."""
    single = np.zeros(size)
    for row in rows:
        for token in row:
            single[token] += 1
    expected = np.outer(single, single) / single.sum()
    parts = []
    for offset in (1, 2):
        m = np.log((pairs(rows, size, offset) + 1) / (expected + 1)) / np.sqrt(offset)
        parts += [m, m.T]
    return np.concatenate(parts, axis=1)


def gram_of_leading(rows: list[list[int]], size: int, rank: int) -> np.ndarray:
    """(V, V): E Eᵀ of E = U sqrt(S) with the leading singular vectors, which does not depend on their signs."""
    u, s, _ = np.linalg.svd(associations(rows, size), full_matrices=False)
    e = u[:, :rank] * np.sqrt(s[:rank])
    return e @ e.T
