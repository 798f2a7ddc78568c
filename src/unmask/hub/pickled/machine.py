"""The stack machine: it runs the program of a pickle on values of ours only."""

from __future__ import annotations

import io
import pickletools
import struct
from collections.abc import Callable, Mapping
from typing import Any

from .allowed import as_key, call, frozen
from .archive import Archive
from .values import Damaged, Inert, Name

VALUES = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES",
    "BINBYTES8", "BYTEARRAY8",
}  # fmt: skip
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class Machine:
    """Runs the program of a pickle on values of ours only."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.stack: list[Any] = []
        self.marks: list[int] = []  # heights of the stack
        self.memo: dict[int, Any] = {}

    def run(self, program: bytes) -> Any:
        """The value that a program leaves."""
        try:
            for opcode, arg, _ in pickletools.genops(io.BytesIO(program)):
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
        """One instruction."""
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
            raise TypeError("a name that is no text")
        self.stack.append(Name(module, name))

    def _reduce(self, arg: Any) -> None:
        args, function = self.pop(), self.pop()
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
