"""Reading torch's pickled files (.ckpt, .bin, .pt) without executing anything in them.

A pickle is a program for a small stack machine, and two of its instructions call functions by name: a file can run
whatever it likes in the process that loads it. So the program is run not by Python's machine, or torch's, but by this
one. It knows numbers, text and containers; a name stays a name (`Name`); a call makes a record of itself (`Inert`),
except for a fixed list of names, which are replaced by functions of ours that check their arguments. No attribute is
ever looked up, nothing is imported, no method of a loaded object is called.

Tensors come out as `Stored` (`torch_zip`): their place in the file, with every bound checked; `Stored.read` fetches
one. So the optimizer's part of a checkpoint costs nothing.

Why not `torch.load(weights_only=True)` with stand-ins for foreign names (tried with torch 2.13): it inflates a packed
file of 0.5 MB to 512 MB, does not notice a changed byte, accepts tensors that repeat one number 2^40 times, with `mmap`
takes lying sizes at their word and without it reads the optimizer too, and refuses pickles of protocol 4.
"""

from __future__ import annotations

import io
import math
import pickletools
import struct
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from ..types import UserError
from . import old_torch
from .torch_zip import Archive, Damaged, Name, Storage, Stored, is_count

STEPS_AND_COPIES = 1 << 21  # instructions of a pickle, and entries that its calls copy: real ones have a tenth
DEEPEST, MOST = 50, 100_000  # settings inside each other, and all together
NUMBERS = {  # numpy's names of plain numbers, as struct writes them
    "f2": "e", "f4": "f", "f8": "d", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I",
    "u8": "Q", "b1": "?",
}  # fmt: skip
VALUES = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES",
    "BINBYTES8", "BYTEARRAY8",
}  # fmt: skip
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass(eq=False)
class Inert:
    """The inert record of a call, in place of what it would have made."""

    name: str
    args: Any = ()
    state: Any = None
    items: list[Any] = field(default_factory=list)  # what was to be put into it


def load(path: str | Path) -> Any:
    """What a torch file holds: plain containers, numbers, text, `Stored` tensors, and `Inert` records of the rest."""
    path = Path(path)
    try:
        if path.is_file() and old_torch.is_old(path):
            return old_torch.read(path, lambda archive, stream: Machine(archive).run(stream))
        archive = Archive(path)
        return Machine(archive).run(io.BytesIO(archive.pickle()))
    except Damaged as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except (OSError, MemoryError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {str(error) or type(error).__name__}") from None


def tensors(tree: Any, where: str | Path) -> dict[str, Tensor]:
    """The tensors of a state dict, read into memory; anything else in it raises an error that names it."""
    if not isinstance(tree, Mapping) or not tree:
        raise UserError(f"{where} does not hold a dictionary of tensors")
    for name, value in tree.items():
        if not isinstance(name, str) or not isinstance(value, Stored):
            kind = value.name if isinstance(value, Inert) else type(value).__name__
            raise UserError(f"{where} does not hold a dictionary of tensors: {str(name)[:80]!r} is a {kind}")
    check_size(tree.values(), where)
    return {name: fetch(value, where) for name, value in tree.items()}


def check_size(stored: Iterable[Stored], where: str | Path) -> None:
    """Raise if tensors have far more numbers than their file: they may be tied, but must not fill the memory."""
    size = sum(math.prod(value.shape) * value.dtype.itemsize for value in stored)
    if size > 4 * Path(where).stat().st_size:
        raise UserError(f"{where} cannot be read: its tensors repeat the same numbers many times over")


def fetch(stored: Stored, where: str | Path) -> Tensor:
    """`stored.read()`, with errors that name the file."""
    try:
        return stored.read()
    except Damaged as error:
        raise UserError(f"{where} cannot be read: {error}") from None
    except OSError as error:
        raise UserError(f"{where} cannot be read: {error}") from None


def plain(value: Any) -> Any:
    """Settings as plain data: OmegaConf's nodes keep their content in `_content` or `_val`; the rest becomes None."""
    left = MOST  # a small file can refer to the same things again and again

    def walk(value: Any, depth: int) -> Any:
        nonlocal left
        left -= 1
        if depth > DEEPEST or left < 0:
            return None
        if isinstance(value, Inert):
            state = value.state if isinstance(value.state, dict) else {}
            return walk(state.get("_content", state.get("_val")), depth + 1)
        if isinstance(value, dict):
            return {str(key): walk(item, depth + 1) for key, item in value.items() if isinstance(key, str | int)}
        if isinstance(value, list | tuple):
            return [walk(item, depth + 1) for item in value]
        if isinstance(value, int) and abs(value) >= 1 << 63:  # Python would not even print it
            return None
        return value if isinstance(value, str | int | float | bool | None) else None

    return walk(value, 0)


# -- what calls may mean: functions of ours that check their arguments ------------------------------------------------


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
    """Frozenset, as a call or as an instruction."""
    return frozenset(map(as_key, _listed(args)))


def as_key(value: Any) -> Any:
    """A value that may be a key: hashing recurses without a limit, so tuples may hold only scalar values."""
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
    """The result of a call: of a function of ours, or the inert record of it."""
    if isinstance(function, Name) and function in CALLS and isinstance(args, tuple):
        return CALLS[function](*args)
    return Inert(str(function) if isinstance(function, Name) else "?", args)


# -- the stack machine ------------------------------------------------------------------------------------------------


class Machine:
    """Runs the program of a pickle, only on values of ours."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.stack: list[Any] = []
        self.marks: list[int] = []  # heights of the stack
        self.memo: dict[int, Any] = {}
        self.left = STEPS_AND_COPIES

    def spend(self, cost: int) -> None:
        """Raise if a program does more than tensors and settings need: a few bytes could ask for all memory."""
        self.left -= cost
        if self.left < 0:
            raise Damaged(f"its data.pkl makes more than {STEPS_AND_COPIES:,} objects, which tensors do not need")

    def run(self, program: io.BytesIO) -> Any:
        """The value that a program leaves."""
        try:
            for opcode, arg, _ in pickletools.genops(program):
                self.spend(1)
                if opcode.name == "STOP":
                    return self.pop()
                self.step(opcode.name, arg)
        except (IndexError, KeyError, TypeError, ValueError, OverflowError, AttributeError, struct.error) as error:
            raise Damaged(f"its data.pkl is damaged ({type(error).__name__}: {str(error)[:100]})") from None
        raise Damaged("its data.pkl is cut short")

    def pop(self) -> Any:
        """The top of the stack, above the last mark."""
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise IndexError("the stack is empty")
        return self.stack.pop()

    def pop_mark(self) -> list[Any]:
        """All values since the last mark."""
        height = self.marks.pop()
        values = self.stack[height:]
        del self.stack[height:]
        return values

    def step(self, name: str, arg: Any) -> None:
        """Execute one instruction."""
        if name in VALUES:
            self.stack.append(arg)
        elif name in CONSTANTS:
            self.stack.append(CONSTANTS[name])
        elif name in TUPLES:
            values = [self.pop() for _ in range(TUPLES[name])]
            self.stack.append(tuple(reversed(values)))
        elif name in EMPTY:
            self.stack.append(EMPTY[name]())
        elif name in GROUPS:
            self.stack.append(GROUPS[name](self.pop_mark()))
        elif name in FILLED:
            self._put_in(self.pop_mark(), FILLED[name])
        elif name not in ("PROTO", "FRAME"):
            method = STEPS.get(name)
            if method is None:
                raise Damaged(f"its data.pkl holds {name}, which is not for tensors and settings")
            method(self, arg)

    def _mark(self, arg: Any) -> None:
        self.marks.append(len(self.stack))

    def _drop(self, arg: Any) -> None:
        if self.marks and self.marks[-1] == len(self.stack):
            self.marks.pop()
        else:
            self.pop()

    def _drop_all(self, arg: Any) -> None:
        self.pop_mark()

    def _duplicate(self, arg: Any) -> None:
        value = self.pop()
        self.stack += [value, value]

    def _put(self, arg: Any) -> None:
        self.memo[len(self.memo) if arg is None else arg] = self.stack[-1]

    def _get(self, arg: Any) -> None:
        self.stack.append(self.memo[arg])

    def _append(self, arg: Any) -> None:
        self._put_in([self.pop()], list)

    def _set_item(self, arg: Any) -> None:
        value, key = self.pop(), self.pop()
        self._put_in([key, value], dict)

    def _put_in(self, values: list[Any], kind: type) -> None:
        target = self.stack[-1]
        if isinstance(target, Inert):
            target.items.extend(values)
        elif type(target) is not kind:
            raise TypeError(f"a {kind.__name__} was expected")
        elif isinstance(target, list):
            target.extend(values)
        elif isinstance(target, dict):
            target.update(_paired(values))
        elif isinstance(target, set):
            target.update(map(as_key, values))

    def _name(self, arg: Any) -> None:
        module, _, name = str(arg).partition(" ")
        self.stack.append(Name(module, name))

    def _stack_name(self, arg: Any) -> None:
        name, module = self.pop(), self.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise TypeError("a name that is not text")
        self.stack.append(Name(module, name))

    def _reduce(self, arg: Any) -> None:
        args, function = self.pop(), self.pop()
        self.spend(sum(len(arg) for arg in args if isinstance(arg, Sized)) if isinstance(args, tuple) else 0)
        self.stack.append(call(function, args))

    def _new_with_names(self, arg: Any) -> None:
        named, args, kind = self.pop(), self.pop(), self.pop()
        self.stack.append(Inert(str(kind) if isinstance(kind, Name) else "?", (args, named)))

    def _instance(self, arg: Any) -> None:
        self.stack.append(Inert(str(arg).replace(" ", "."), tuple(self.pop_mark())))

    def _obj(self, arg: Any) -> None:
        values = self.pop_mark()
        self.stack.append(Inert(str(values[0]) if isinstance(values[0], Name) else "?", tuple(values[1:])))

    def _build(self, arg: Any) -> None:
        """State is kept for records; on tensors and dictionaries (`_metadata` of a state dict) it is left out."""
        state, target = self.pop(), self.stack[-1]
        if isinstance(target, Inert):
            target.state = state

    def _persistent(self, arg: Any) -> None:
        self.stack.append(self.archive.storage(self.pop()))


def _paired(values: list[Any]) -> dict[Any, Any]:
    if len(values) % 2:
        raise ValueError("a key without a value")
    return dict(zip(map(as_key, values[::2]), values[1::2], strict=True))


EMPTY: Mapping[str, Callable[[], Any]] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_SET": set}
GROUPS: Mapping[str, Callable[[list[Any]], Any]] = {
    "TUPLE": tuple,
    "LIST": list,
    "DICT": _paired,
    "FROZENSET": frozen,
}
FILLED: Mapping[str, type] = {"APPENDS": list, "SETITEMS": dict, "ADDITEMS": set}
STEPS: Mapping[str, Callable[[Machine, Any], None]] = {
    "MARK": Machine._mark, "POP": Machine._drop, "POP_MARK": Machine._drop_all, "DUP": Machine._duplicate,
    "PUT": Machine._put, "BINPUT": Machine._put, "LONG_BINPUT": Machine._put, "MEMOIZE": Machine._put,
    "GET": Machine._get, "BINGET": Machine._get, "LONG_BINGET": Machine._get, "APPEND": Machine._append,
    "SETITEM": Machine._set_item, "GLOBAL": Machine._name, "STACK_GLOBAL": Machine._stack_name,
    "REDUCE": Machine._reduce, "NEWOBJ": Machine._reduce, "NEWOBJ_EX": Machine._new_with_names,
    "INST": Machine._instance, "OBJ": Machine._obj, "BUILD": Machine._build, "BINPERSID": Machine._persistent,
}  # fmt: skip
