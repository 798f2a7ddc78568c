"""What calls are allowed to mean: a fixed list of names, in whose place stand functions of ours that check all."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

from .archive import Storage, Stored
from .values import Damaged, Inert, Name, is_count

NUMBERS = {  # numpy's names of plain numbers, as struct writes them
    "f2": "e", "f4": "f", "f8": "d", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I",
    "u8": "Q", "b1": "?",
}  # fmt: skip


def _tensor(storage: Any, offset: Any, shape: Any, stride: Any, *_: Any) -> Stored:
    """torch._utils._rebuild_tensor(_v2)."""
    if not isinstance(storage, Storage) or not is_count(offset):
        raise Damaged("a tensor has no storage or offset")
    if not all(isinstance(part, tuple) and all(map(is_count, part)) for part in (shape, stride)):
        raise Damaged("a tensor has no shape or strides")
    if len(shape) != len(stride) or len(shape) > 64:
        raise Damaged(f"a tensor has {len(shape)} dimensions and {len(stride)} strides")
    last = offset + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    count = math.prod(shape)
    if (count and last >= storage.numel) or offset > storage.numel:
        raise Damaged(f"a tensor of shape {shape} reaches beyond its storage of {storage.numel:,} numbers")
    if count > storage.numel:  # numbers that are shown several times: a small file could ask for all memory
        raise Damaged(f"a tensor of shape {shape} repeats its storage of {storage.numel:,} numbers")
    return Stored(storage, offset, shape, stride)


def _parameter(data: Any, *_: Any) -> Any:
    """torch._utils._rebuild_parameter(_with_state)."""
    return data


def _typed(function: Any, kind: Any, args: Any, *_: Any) -> Any:
    """torch._tensor._rebuild_from_type_v2: a tensor with attributes, which are left out."""
    return call(function, args)


def _size(*args: Any) -> tuple[Any, ...]:
    """torch.Size, tuple."""
    return tuple(_listed(args))


def _listed(args: tuple[Any, ...]) -> list[Any]:
    if len(args) > 1 or (args and not isinstance(args[0], list | tuple)):
        raise Damaged("a container is made of something that is not a list")
    return list(args[0]) if args else []


def _dictionary(*args: Any) -> dict[Any, Any]:
    """collections.OrderedDict."""
    pairs = _listed(args)
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        raise Damaged("a dictionary is made of something that is not pairs")
    return {as_key(pair[0]): pair[1] for pair in pairs}


def _set(*args: Any) -> set[Any]:
    return set(map(as_key, _listed(args)))


def frozen(*args: Any) -> frozenset[Any]:
    """Frozenset; also the machine's own instruction for one."""
    return frozenset(map(as_key, _listed(args)))


def as_key(value: Any) -> Any:
    """What may be a key: hashing is a recursion that nothing bounds, so tuples are of single values only."""
    parts = value if isinstance(value, tuple) else (value,)
    if any(isinstance(part, tuple | list | dict | set | frozenset | bytearray) for part in parts):
        raise Damaged("its data.pkl is damaged: a key is a container")
    return value


def _encoded(*args: Any) -> bytes:
    """_codecs.encode: how old pickles write bytes."""
    if len(args) != 2 or not isinstance(args[0], str) or args[1] != "latin1":
        raise Damaged("bytes are not written as bytes are")
    return args[0].encode("latin1")


def _number(kind: Any, raw: Any = None, *_: Any) -> Any:
    """numpy.core.multiarray.scalar: a number with its type."""
    code = kind.args[0] if isinstance(kind, Inert) and kind.name == "numpy.dtype" and kind.args else None
    order = kind.state[1] if isinstance(kind, Inert) and isinstance(kind.state, tuple) and len(kind.state) > 1 else "<"
    if not isinstance(code, str) or code not in NUMBERS or not isinstance(raw, bytes) or order not in ("<", "|", "="):
        return Inert("numpy.scalar")
    return struct.unpack(f"<{NUMBERS[code]}", raw)[0]


CALLS: Mapping[Name, Callable[..., Any]] = {
    Name("torch._utils", "_rebuild_tensor"): _tensor,
    Name("torch._utils", "_rebuild_tensor_v2"): _tensor,
    Name("torch._utils", "_rebuild_parameter"): _parameter,
    Name("torch._utils", "_rebuild_parameter_with_state"): _parameter,
    Name("torch._tensor", "_rebuild_from_type_v2"): _typed,
    Name("torch", "Size"): _size,
    Name("builtins", "set"): _set,
    Name("__builtin__", "set"): _set,
    Name("builtins", "frozenset"): frozen,
    Name("__builtin__", "frozenset"): frozen,
    Name("collections", "OrderedDict"): _dictionary,
    Name("_codecs", "encode"): _encoded,
    Name("numpy.core.multiarray", "scalar"): _number,
    Name("numpy._core.multiarray", "scalar"): _number,
}


def call(function: Any, args: Any) -> Any:
    """What a call means: one of ours, or the record of it."""
    if isinstance(function, Name) and function in CALLS and isinstance(args, tuple):
        return CALLS[function](*args)
    return Inert(str(function) if isinstance(function, Name) else "?", args)
