"""Torch files are read without running what is in them: against `torch.load`, and with traps that are shown to work."""

from __future__ import annotations

import collections
import contextlib
import io
import pickle
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from unmask.hub import pickled
from unmask.hub.pickled import Inert, Stored
from unmask.types import UserError


def archive(path: Path, program: bytes, storages: dict[str, bytes] | None = None, **more: bytes) -> Path:
    """A torch file with this data.pkl."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as file:
        file.writestr("archive/data.pkl", program)
        for name, content in {"byteorder": b"little", "version": b"3\n", **more}.items():
            file.writestr(f"archive/{name}", content)
        for key, content in (storages or {}).items():
            file.writestr(f"archive/data/{key}", content)
    return path


class Torchlike(pickle.Pickler):
    """Writes storages as persistent ids, as torch does."""

    def persistent_id(self, obj: Any) -> Any:
        return obj.spec if isinstance(obj, Ref) else None


class Ref:
    """A reference to a storage."""

    def __init__(self, *spec: Any) -> None:
        self.spec = spec


class Call:
    """What a pickle calls when it is loaded."""

    def __init__(self, function: Any, *args: Any, state: Any = None) -> None:
        self.parts = (function, args) if state is None else (function, args, state)

    def __reduce__(self) -> Any:
        return self.parts

    def __call__(self) -> None:
        """What is called may be the result of a call; pickle wants to see that it can be."""


def dump(value: Any, protocol: int = 2) -> bytes:
    out = io.BytesIO()
    Torchlike(out, protocol).dump(value)
    return out.getvalue()


def floats(n: int) -> Ref:
    return Ref("storage", torch.FloatStorage, "0", "cpu", n)


def rebuilt(storage: Any, offset: Any, shape: Any, stride: Any) -> Call:
    return Call(torch._utils._rebuild_tensor_v2, storage, offset, shape, stride, False, collections.OrderedDict())


# -- the same as torch -----------------------------------------------------------------------------------------------


def read(value: Any) -> Any:
    """A loaded tree with its tensors."""
    if isinstance(value, Stored):
        return value.read()
    if isinstance(value, dict):
        return {key: read(own) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(read(own) for own in value)
    return value


def same(a: Any, b: Any) -> bool:
    if isinstance(b, torch.Tensor):
        return isinstance(a, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b.detach())
    if isinstance(b, dict):
        return isinstance(a, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in b)
    if isinstance(b, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def old_file(path: Path, value: Any, spoil: Callable[[bytes], bytes] = bytes) -> Path:
    """A file as torch wrote it before 1.6."""
    torch.save(value, path, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    path.write_bytes(spoil(content))
    assert spoil is bytes or path.read_bytes() != content
    return path


def test_old_files_are_the_same_as_torch(tmp_path: Path) -> None:
    """Without a zip: the same tensors, and what they would call stays a record."""
    path = old_file(tmp_path / "x.bin", contents())
    assert same(read(pickled.load(path)), torch.load(path, weights_only=False))
    marker = tmp_path / "RAN"
    trap = old_file(tmp_path / "trap.bin", {"w": torch.ones(2), "trap": Call(open, str(marker), "w")})
    assert isinstance(pickled.load(trap)["trap"], Inert) and not marker.exists()
    with pytest.raises(UserError, match=r"trap.bin does not hold a dictionary of tensors: 'trap' is a"):
        pickled.tensors(pickled.load(trap), trap)


def contents() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(6, 8, generator=generator)
    whole = [torch.arange(5, dtype=dtype) for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)]
    marked = nn.Parameter(base.clone())
    marked.note = "an attribute"
    return {
        "floats": [base.to(kind) for kind in (torch.float64, torch.float32, torch.float16, torch.bfloat16)],
        "whole": [*whole, torch.tensor([True, False])],
        "shared": (base, base[2:5], base.t(), base[::2, 1::3], base[3, 4], base[6:]),
        "odd": [torch.tensor(3.5), torch.empty(0), torch.empty(0, 3)],
        "parameter": nn.Parameter(base.clone()),
        "with an attribute": marked,
        "module": dict(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).state_dict()),
        "plain": [
            None,
            True,
            1,
            -7,
            2**70,
            1.5,
            float("inf"),
            "text é",
            b"\x00\xff",
            (),
            (1, (2, [3])),
            {1: {"a": []}},
        ],
    }


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_it_reads_what_torch_reads(protocol, tmp_path):
    value = contents()
    torch.save(value, tmp_path / "x.pt", pickle_protocol=protocol)
    truth = torch.load(tmp_path / "x.pt", weights_only=False)
    truth["with an attribute"] = truth["with an attribute"].data
    assert same(read(pickled.load(tmp_path / "x.pt")), truth)


def test_sets_sizes_numpy_numbers_and_state_dicts(tmp_path):
    net = nn.Linear(3, 2)  # its state dict is an OrderedDict with an attribute
    value = {
        "set": {1, 2},
        "frozen": frozenset("ab"),
        "size": torch.Size([2, 3]),
        "net": net.state_dict(),
        "numbers": [np.float64(1.25), np.float32(-3), np.int64(7), np.bool_(True)],
    }
    for protocol in (2, 4):
        torch.save(value, tmp_path / "x.pt", pickle_protocol=protocol)
        found = pickled.load(tmp_path / "x.pt")
        assert found["set"] == {1, 2} and found["size"] == (2, 3)
        assert found["numbers"] == [1.25, -3.0, 7, True]
        assert same(read(found["net"]), dict(net.state_dict()))
    assert found["frozen"] == frozenset("ab")


def test_tensors_have_memory_of_their_own(tmp_path):
    base = torch.zeros(4)
    torch.save({"a": base, "b": base[:2]}, tmp_path / "x.pt")
    found = pickled.load(tmp_path / "x.pt")
    a, b = found["a"].read(), found["b"].read()
    a += 1
    assert b.tolist() == [0, 0] and found["a"].read().tolist() == [0, 0, 0, 0]


def test_a_state_dict_holds_tensors_only(tmp_path):
    torch.save({"a": torch.ones(2), "config": object()}, tmp_path / "x.pt")
    with pytest.raises(UserError, match=r"x.pt does not hold a dictionary of tensors: 'config' is a "):
        pickled.tensors(pickled.load(tmp_path / "x.pt"), tmp_path / "x.pt")
    with pytest.raises(UserError, match="does not hold a dictionary of tensors"):
        pickled.tensors([], "x.pt")


def test_a_small_file_does_not_fill_the_memory(tmp_path):
    base = torch.zeros(1000)
    torch.save({str(i): base[:] for i in range(2)}, tmp_path / "tied.pt")
    assert len(pickled.tensors(pickled.load(tmp_path / "tied.pt"), tmp_path / "tied.pt")) == 2
    torch.save({str(i): base[:] for i in range(500)}, tmp_path / "x.pt")
    with pytest.raises(UserError, match=r"x.pt cannot be read: its tensors repeat the same numbers many times over"):
        pickled.tensors(pickled.load(tmp_path / "x.pt"), tmp_path / "x.pt")


# -- traps -----------------------------------------------------------------------------------------------------------


class Setter:
    """Runs something when its state is set, or when it is called, or filled."""

    def __setstate__(self, state: str) -> None:
        Path(state).touch()

    def __setitem__(self, key: str, value: Any) -> None:
        Path(key).touch()

    def append(self, value: str) -> None:
        Path(value).touch()

    def __call__(self, path: str) -> None:
        Path(path).touch()


def _traps(marker: str) -> dict[str, Any]:
    import copyreg
    import functools
    import operator
    import os
    import subprocess

    code = f"open({marker!r}, 'w').close()"
    return {
        "os.system": Call(os.system, f"touch {marker}"),
        "builtins.eval": Call(eval, code),
        "builtins.exec": Call(exec, code),
        "subprocess": Call(subprocess.check_call, ["touch", marker]),
        "open": Call(open, marker, "w"),
        "getattr": Call(Call(getattr, Call(__import__, "os"), "system"), f"touch {marker}"),
        "partial": Call(Call(functools.partial, os.system, f"touch {marker}")),
        "attrgetter": Call(Call(Call(operator.attrgetter, "system"), Call(__import__, "os")), f"touch {marker}"),
        "methodcaller": Call(Call(operator.methodcaller, "system", f"touch {marker}"), Call(__import__, "os")),
        "map": Call(list, Call(map, eval, [code])),
        "state": Call(copyreg._reconstructor, Setter, object, None, state=marker),
        "from type": Call(torch._tensor._rebuild_from_type_v2, eval, torch.Tensor, (code,), None),
        "deep from type": Call(
            torch._tensor._rebuild_from_type_v2,
            torch._tensor._rebuild_from_type_v2,
            torch.Tensor,
            (eval, torch.Tensor, (code,), None),
            None,
        ),
        "inside a tensor": [rebuilt(floats(2), 0, (2,), (1,)), Call(eval, code)],
        "an argument of a set": Call(set, [Call(eval, code)]),
        "a key": {Call(str, Call(eval, code)): 1},
        "numpy object array": Call(
            np._core.multiarray._reconstruct,
            np.ndarray,
            (0,),
            b"b",
            state=(1, (1,), np.dtype("O"), False, [Call(eval, code)]),
        ),
    }


NAMES = list(_traps(""))


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("trap", NAMES)
def test_a_trap_does_nothing(trap, protocol, tmp_path):
    marker = tmp_path / "RAN"
    program = dump(_traps(str(marker))[trap], protocol)

    class Live(pickle.Unpickler):
        def persistent_load(self, spec: Any) -> Any:
            return torch.zeros(2).storage()

    with warnings.catch_warnings(), contextlib.suppress(Exception):  # it may fail after the trap ran
        warnings.simplefilter("ignore")
        Live(io.BytesIO(program)).load()
    assert marker.exists(), "this trap is none"
    marker.unlink()
    with contextlib.suppress(UserError):
        pickled.load(archive(tmp_path / "x.pt", program, {"0": bytes(8)}))
    assert not marker.exists()


def _by_hand(marker: bytes) -> dict[str, bytes]:
    code = b"open(%r, 'w').close()" % marker.decode()
    setter = b"c" + __name__.encode() + b"\nSetter\n"
    text = b"X" + struct.pack("<I", len(marker)) + marker
    return {
        "inst": b"(V" + code + b"\nibuiltins\neval\n.",
        "obj": b"(cbuiltins\neval\nV" + code + b"\no.",
        "reduce on a result": b"\x80\x02" + setter + b")R" + text + b"\x85R.",
        "setitem": b"\x80\x02" + setter + b")R" + text + b"K\x01s.",
        "append": b"\x80\x02" + setter + b")R" + text + b"a.",
        "build": b"\x80\x02" + setter + b")\x81" + text + b"b.",
        "build, new with names": b"\x80\x04" + setter + b")}\x92" + text + b"b.",
        "dotted name": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c"
        + bytes([6 + len(marker)])
        + b"touch "
        + marker
        + b"\x85R.",
    }


@pytest.mark.parametrize("trap", list(_by_hand(b"")))
def test_a_trap_in_other_instructions_does_nothing(trap, tmp_path):
    marker = tmp_path / "RAN"
    program = _by_hand(str(marker).encode())[trap]
    pickle.loads(program)
    assert marker.exists(), "this trap is none"
    marker.unlink()
    pickled.load(archive(tmp_path / "x.pt", program))
    assert not marker.exists()


def test_what_is_not_known_is_kept_as_a_record(tmp_path):
    path = archive(tmp_path / "x.pt", dump({"a": Call(eval, "1 + 1"), "b": print}))
    found = pickled.load(path)
    assert isinstance(found["a"], Inert) and found["a"].name.endswith(".eval") and found["a"].args == ("1 + 1",)
    assert str(found["b"]).endswith(".print")


def test_the_list_of_what_is_called_is_fixed():
    """Whoever adds a name thinks of what a file could make of it; all of these are functions of ours."""
    assert {str(name) for name in pickled.CALLS} == {
        "torch._utils._rebuild_tensor",
        "torch._utils._rebuild_tensor_v2",
        "torch._utils._rebuild_parameter",
        "torch._utils._rebuild_parameter_with_state",
        "torch._tensor._rebuild_from_type_v2",
        "torch.Size",
        "builtins.set",
        "__builtin__.set",
        "builtins.frozenset",
        "__builtin__.frozenset",
        "collections.OrderedDict",
        "_codecs.encode",
        "numpy.core.multiarray.scalar",
        "numpy._core.multiarray.scalar",
    }
    assert all(function.__module__ == "unmask.hub.pickled" for function in pickled.CALLS.values())


# -- bounds ----------------------------------------------------------------------------------------------------------

HUGE = 1 << 61
BAD = {
    "beyond its storage": (rebuilt(floats(4), 0, (5,), (1,)), r"shape \(5,\) reaches beyond its storage of 4"),
    "offset beyond": (rebuilt(floats(4), 3, (2,), (1,)), "reaches beyond"),
    "offset of nothing": (rebuilt(floats(4), 9, (0,), (1,)), "reaches beyond"),
    "stride beyond": (rebuilt(floats(4), 0, (2, 2), (3, 1)), "reaches beyond"),
    "repeated": (rebuilt(floats(4), 0, (1 << 40,), (0,)), "repeats its storage of 4"),
    "huge": (rebuilt(floats(4), 0, (HUGE, HUGE, HUGE), (0, 0, 0)), "repeats its storage"),
    "negative size": (rebuilt(floats(4), 0, (-1,), (1,)), "has no shape or strides"),
    "negative offset": (rebuilt(floats(4), -4, (1,), (1,)), "has no storage or offset"),
    "negative stride": (rebuilt(floats(4), 3, (2,), (-1,)), "has no shape or strides"),
    "a size that is true": (rebuilt(floats(4), 0, (True,), (1,)), "has no shape or strides"),
    "too few strides": (rebuilt(floats(4), 0, (2, 2), (1,)), "has 2 dimensions and 1 strides"),
    "a list of sizes": (rebuilt(floats(4), 0, [4], [1]), "has no shape or strides"),
    "no storage": (rebuilt("0", 0, (4,), (1,)), "has no storage or offset"),
    "too few arguments": (Call(torch._utils._rebuild_tensor_v2, floats(4)), "is damaged"),
    "claims more": (floats(5), "storage '0' has 16 bytes instead of 20"),
    "claims less": (floats(3), "storage '0' has 16 bytes instead of 12"),
    "claims all memory": (floats(HUGE), "has 16 bytes instead of"),
    "claims a negative number": (floats(-4), "without a name or size"),
    "is not there": (Ref("storage", torch.FloatStorage, "1", "cpu", 4), "the numbers of storage '1' are missing"),
    "leads out": (Ref("storage", torch.FloatStorage, "../../etc/passwd", "cpu", 4), "are missing"),
    "of no type": (Ref("storage", eval, "0", "cpu", 4), r"storage of unknown type \w+.eval"),
    "no storage at all": (Ref("module", eval, "0"), "refers to something that is not a storage"),
    "a codec": (Call(__import__("_codecs").encode, "x", "rot13"), "bytes are not written as bytes are"),
    "a set of a text": (Call(set, "ab"), "made of something that is not a list"),
    "pairs that are none": (Call(collections.OrderedDict, [1, 2]), "something that is not pairs"),
    "an unhashable key": (Call(set, [[]]), "data.pkl is damaged"),
}


@pytest.mark.parametrize("what", BAD)
def test_every_bound_is_checked(what, tmp_path):
    value, sentence = BAD[what]
    path = archive(tmp_path / "x.pt", dump({"x": value}), {"0": bytes(16)})
    with pytest.raises(UserError, match=sentence) as caught:
        pickled.load(path)
    assert str(caught.value).startswith(f"{path} cannot be read: ") and "\n" not in str(caught.value)


# -- damage ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def good(tmp_path: Path) -> Path:
    torch.save({"a": torch.arange(1000.0), "b": ["text", 1]}, tmp_path / "x.ckpt")
    return tmp_path / "x.ckpt"


def test_a_file_that_is_cut_short_anywhere(good):
    whole = good.read_bytes()
    for size in (0, 1, 3, 50, 200, len(whole) // 2, len(whole) - 40, len(whole) - 1):
        good.write_bytes(whole[:size])
        with pytest.raises(UserError, match=r"x.ckpt cannot be read: "):
            pickled.tensors({"a": pickled.load(good)["a"]}, good)


def test_bytes_that_were_changed_are_noticed(good):
    whole = bytearray(good.read_bytes())
    at = whole.index(struct.pack("<f", 500.0))
    whole[at] ^= 1
    good.write_bytes(whole)
    with pytest.raises(UserError, match=r"x.ckpt cannot be read: it is damaged \(Bad CRC-32"):
        pickled.tensors({"a": pickled.load(good)["a"]}, good)


def _zipped(path: Path, kind: int = zipfile.ZIP_STORED, **entries: bytes) -> None:
    with zipfile.ZipFile(path, "w", kind) as file:
        for name, content in entries.items():
            file.writestr(name.replace("__", "/").replace("_pkl", ".pkl"), content)


SPOILT: dict[str, tuple[Callable[[Path], Any], str]] = {
    "not a zip": (lambda p: p.write_text("hello"), "it is not a torch file"),
    "a plain pickle": (lambda p: p.write_bytes(pickle.dumps({"a": 1})), "it is a pickle, but not one of torch's"),
    "old, cut short": (
        lambda p: old_file(p, {"a": torch.ones(200)}, lambda content: content[:-3]),
        "is cut short in storage",
    ),
    "old, without numbers": (
        lambda p: old_file(p, {"a": torch.ones(200)}, lambda content: content[:-808]),
        "the numbers of storage .* are missing",
    ),
    "old, of another machine": (
        lambda p: old_file(p, {}, lambda content: content.replace(b"endianq\x02\x88", b"endianq\x02\x89")),
        "written by a big-endian machine",
    ),
    "another zip": (lambda p: _zipped(p, readme=b"hello"), "not one of torch's"),
    "two of them": (lambda p: _zipped(p, a__data_pkl=b"N.", b__data_pkl=b"N."), "not one of torch's"),
    "packed": (lambda p: _zipped(p, zipfile.ZIP_DEFLATED, a__data_pkl=b"N." * 99), "is packed or locked"),
    "big-endian": (lambda p: archive(p, b"N.", byteorder=b"big"), "written by a big-endian machine"),
    "no program": (lambda p: archive(p, b""), "data.pkl"),
    "no end": (lambda p: archive(p, b"N"), "data.pkl"),
    "an empty stack": (lambda p: archive(p, b"."), "data.pkl is damaged"),
    "a pop too many": (lambda p: archive(p, b"N00."), "data.pkl is damaged"),
    "a value from below a mark": (lambda p: archive(p, b"N(\x85."), "data.pkl is damaged"),
    "a memo that is empty": (lambda p: archive(p, b"h\x05."), "data.pkl is damaged"),
    "an unknown instruction": (lambda p: archive(p, b"\xff."), "data.pkl is damaged"),
    "an extension": (lambda p: archive(p, b"\x80\x02\x82\x01."), "data.pkl holds EXT1"),
    "a buffer from outside": (lambda p: archive(p, b"\x80\x05\x97."), "data.pkl holds NEXT_BUFFER"),
    "an id in text": (lambda p: archive(p, b"P0\n."), "data.pkl holds PERSID"),
    "a text of all memory": (lambda p: archive(p, b"\x8d" + struct.pack("<Q", 1 << 62) + b"a."), "data.pkl is damaged"),
    "items into a number": (lambda p: archive(p, b"K\x01K\x02a."), "data.pkl is damaged"),
    "items into a tuple": (lambda p: archive(p, b")(K\x02e."), "data.pkl is damaged"),
    "a key without a value": (lambda p: archive(p, b"}(K\x02u."), "data.pkl is damaged"),
    "a name of numbers": (lambda p: archive(p, b"K\x01K\x02\x93."), "data.pkl is damaged"),
    "a folder": (lambda p: p.mkdir(), "it is a folder"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_damage_is_one_sentence(what, tmp_path):
    path = tmp_path / "x.ckpt"
    spoil, sentence = SPOILT[what]
    spoil(path)
    with pytest.raises(UserError, match=sentence) as caught:
        pickled.load(path)
    assert str(caught.value).startswith(f"{path} cannot be read: ") and "\n" not in str(caught.value)


def test_an_entry_that_claims_more_than_the_file(good):
    """The sizes in the list of contents say 1 GB."""
    whole = bytearray(good.read_bytes())
    at = whole.rindex(b"PK\x01\x02", 0, whole.rindex(b"data.pkl"))
    whole[at + 20 : at + 28] = struct.pack("<II", 1 << 30, 1 << 30)
    good.write_bytes(whole)
    with pytest.raises(UserError, match=r"claims 1,073,741,824 bytes, and the file has"):
        pickled.load(good)


def test_two_entries_of_one_name(tmp_path):
    with warnings.catch_warnings(), zipfile.ZipFile(tmp_path / "x.pt", "w") as file:
        warnings.simplefilter("ignore")
        file.writestr("archive/data.pkl", b"N.")
        file.writestr("archive/data.pkl", b"K\x01.")
    with pytest.raises(UserError, match="two of its entries have the same name"):
        pickled.load(tmp_path / "x.pt")


def test_no_file(tmp_path):
    with pytest.raises(UserError, match=r"x.pt does not exist"):
        pickled.load(tmp_path / "x.pt")


def test_deep_and_circular_things_do_not_crash(tmp_path):
    deep = b"]" * 50_000 + b"a" * 49_999 + b"."
    assert isinstance(pickled.load(archive(tmp_path / "a.pt", deep)), list)
    circle = pickled.load(archive(tmp_path / "b.pt", b"]q\x00h\x00a."))
    assert circle[0] is circle
    twice = pickled.load(archive(tmp_path / "d.pt", b"]q\x00h\x00ah\x00a."))
    pickled.plain(twice)  # 2 to the power of its depth, if nothing bounds it
    nested = b"N" + b"\x85" * 50_000 + b"q\x00}h\x00K\x01s."  # a dictionary whose key is a very deep tuple
    with pytest.raises(UserError, match=r"c.pt cannot be read: its data.pkl is damaged: a key is a container"):
        pickled.load(archive(tmp_path / "c.pt", nested))


def test_settings_come_out_of_omegaconf_nodes():
    """DictConfig and ListConfig keep `_content`, values `_val`; everything else is left out."""
    value = Inert("omegaconf.AnyNode", (), {"_metadata": Inert("m"), "_val": 768})
    inner = Inert("omegaconf.DictConfig", (), {"_content": {"hidden_size": value, "other": Inert("tokenizer")}})
    outer = Inert("omegaconf.ListConfig", (), {"_content": [inner, value]})
    assert pickled.plain({"config": outer, 3: b"raw"}) == {
        "config": [{"hidden_size": 768, "other": None}, 768],
        "3": None,
    }
