"""Products with large weights on a CPU while texts are written: the weights are laid out for them once.

torch multiplies one row at the speed at which weights can be read, but for a few rows it rearranges them in every call,
which takes longer than the product. oneDNN keeps a copy in its own layout: a transformer of 12 x 768 then reads 5 rows
in less than half the time, 16 in 0.6 of it, 1000 in 0.85 of it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEAST = 400_000  # numbers of a weight for which it pays
FROM_MEMORY = 2**19  # networks with weights so large do not fit into the caches of a CPU ...
FEWEST = 4  # ... and fewer rows than this take longer
MOST_BYTES = 2**31  # of all copies


class _Packed(NamedTuple):
    """A weight, what tells that it has not changed since, and its copy."""

    weight: Tensor
    version: int
    address: int
    copy: Tensor


class PackedWeights:
    """Copies of weights, made where they are first needed; they live as long as this."""

    def __init__(self) -> None:
        self._held: dict[int, _Packed] = {}

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside, all linear layers without gradients use the copies."""
        token = _IN_USE.set(self)
        try:
            yield
        finally:
            _IN_USE.reset(token)

    @property
    def held_bytes(self) -> int:
        """Bytes of all copies."""
        return sum(held.weight.nbytes for held in self._held.values())

    def of(self, weight: Tensor) -> Tensor | None:
        """The copy of a weight, or None if there is no room for it."""
        held = self._held.get(id(weight))
        if held is not None and (held.version, held.address) == (weight._version, weight.data_ptr()):
            return held.copy
        if held is None and self.held_bytes + weight.nbytes > MOST_BYTES:
            return None
        copy: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 4 * FEWEST)
        self._held[id(weight)] = _Packed(weight, weight._version, weight.data_ptr(), copy)
        return copy


_IN_USE: ContextVar[PackedWeights | None] = ContextVar("packed weights", default=None)


class PackedLinear(nn.Linear):
    """A linear layer with a copy of its weight where there may be one."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        return packed_linear(input, self.weight, self.bias)


def packed_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product of x and weightᵀ, and the bias: `F.linear`."""
    weights = None if torch.compiler.is_compiling() else _IN_USE.get()
    packed = None if weights is None or not _usable(x, weight) else weights.of(weight)
    if packed is None:
        return F.linear(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    n, more = len(rows), FEWEST - len(rows)
    if more > 0 and weight.numel() >= FROM_MEMORY:
        rows = F.pad(rows, (0, 0, 0, more))
    out: Tensor = torch.ops.mkldnn._linear_pointwise(rows, packed, bias, "none", [], "")
    return out[:n].view(*x.shape[:-1], -1)


def _usable(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN has this product, and it pays."""
    return (
        weight.numel() >= LEAST
        and x.numel() > 0
        and x.device.type == weight.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and type(weight) is nn.Parameter
        and not weight.is_inference()
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and _offered()
    )


@functools.cache
def _offered() -> bool:
    """Whether this torch has the two functions of oneDNN, which are not part of its public interface."""
    names = ("_linear_pointwise", "_reorder_linear_weight")
    if not torch.backends.mkldnn.is_available() or "AVX" not in torch.backends.cpu.get_cpu_capability():
        return False
    return all(hasattr(torch.ops.mkldnn, name) for name in names)
