"""Stateless random streams: (seed, step or draw, global index, purpose) -> numbers.

A stream is named, never advanced: the numbers for a row depend on nothing but its name, so they are the same for
any batch size, any number of processes and after any restart. Philox is counter-based, with a 128-bit key that we
take from a hash of the name; uniforms have 53 random bits, so rare tokens keep their probability.
"""

from __future__ import annotations

import hashlib
import struct
import threading
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError


@dataclass(frozen=True)
class Keys:
    """A family of streams. `step` is the training step, or the draw of an evaluation."""

    seed: int
    step: int = 0

    def at(self, step: int) -> Keys:
        """The same family at another step or draw."""
        return Keys(self.seed, step)

    def fork(self, purpose: str) -> Keys:
        """Another family, independent of this one."""
        return Keys(self.torch_seed("fork/" + purpose), self.step)

    def digest(self, purpose: str, index: int = 0) -> tuple[int, int]:
        """Two 64-bit words that name the stream."""
        name = f"{self.seed} {self.step} {index} {purpose}".encode()
        return struct.unpack("<QQ", hashlib.blake2b(name, digest_size=16).digest())

    def stream(self, purpose: str, index: int = 0) -> np.random.Generator:
        """The stream of one row, from its beginning."""
        return np.random.Generator(np.random.Philox(key=np.array(self.digest(purpose, index), dtype=np.uint64)))

    def uniform(self, purpose: str, index: Iterable[int] | Tensor, *shape: int) -> Tensor:
        """(*index's shape, *shape) float64 uniforms on [0, 1), one independent stream per row.

        If a row (B, K) has several indices, its stream is named by the first of them.
        """
        if isinstance(index, Tensor) and index.ndim == 2:
            shape, index = (index.shape[1], *shape), index[:, 0]
        rows = [int(i) for i in index]
        out = np.empty((len(rows), *shape), dtype=np.float64)
        for row, i in enumerate(rows):
            out[row] = _rewound(self.digest(purpose, i)).random(shape)
        return torch.from_numpy(out)

    def torch_seed(self, purpose: str, index: int = 0) -> int:
        """A seed for code that only takes one (dropout, initialisation)."""
        return self.digest(purpose, index)[0] & (2**63 - 1)

    def permute(self, purpose: str, index: np.ndarray | Tensor | Iterable[int], total: int) -> np.ndarray:
        """Image of each index under a random permutation of range(total), in O(1) memory.

        Large ranges go through a four-round Feistel network on the smallest even number of bits that holds
        `total`; images that fall outside are sent through again (cycle walking), which keeps it a bijection.
        """
        x = np.asarray(list(index) if not isinstance(index, np.ndarray | Tensor) else index).astype(np.uint64)
        assert total > 0 and (x < total).all(), "index outside the permutation's range"
        if total <= 1 << 16:  # small enough to shuffle outright, uniform over all permutations
            return self.stream(purpose + "/permute").permutation(total)[x.astype(np.int64)]
        half = max(1, ((total - 1).bit_length() + 1) // 2)
        mask = np.uint64((1 << half) - 1)
        shift = np.uint64(half)
        rounds = [np.uint64(word) for r in (0, 1) for word in self.digest(purpose + "/permute", r)]
        out = _feistel(x, rounds, shift, mask)
        while (outside := out >= total).any():
            out[outside] = _feistel(out[outside], rounds, shift, mask)
        return out.astype(np.int64)


_THREAD = threading.local()


def _rewound(key: tuple[int, int]) -> np.random.Generator:
    """The thread's generator, at the beginning of the stream with this key; a new one takes seven times as long."""
    if not hasattr(_THREAD, "generator"):
        _THREAD.generator = np.random.Generator(np.random.Philox(0))
        _THREAD.start = _THREAD.generator.bit_generator.state
    start = _THREAD.start
    start["state"] = {"counter": np.zeros(4, np.uint64), "key": np.array(key, np.uint64)}
    _THREAD.generator.bit_generator.state = start
    generator: np.random.Generator = _THREAD.generator
    return generator


def _feistel(x: np.ndarray, rounds: list[np.uint64], shift: np.uint64, mask: np.uint64) -> np.ndarray:
    left, right = x >> shift, x & mask
    with np.errstate(over="ignore"):
        for key in rounds:
            left, right = right, left ^ (_mix(right + key) & mask)
    return (left << shift) | right


def _mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64: every input bit reaches every output bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def check_seed(seed: int) -> int:
    """The seed, if a random stream can be named by it."""
    if not -(2**63) <= seed < 2**63:
        raise UserError(f"seed={seed} is too large; it must fit into 64 bits")
    return seed
