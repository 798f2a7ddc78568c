"""The files of the traps: pickles that call, headers and configs that lie, archives that grow, texts that never end."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

# How a pickle reaches a function: (module, name, arguments as Python source, with CANARY for the path).
CALLS: dict[str, tuple[str, str, str]] = {
    "os.system": ("os", "system", "('touch CANARY',)"),
    "posix.system": ("posix", "system", "('touch CANARY',)"),
    "builtins.eval": ("builtins", "eval", '(\'open("CANARY", "w")\',)'),
    "builtins.exec": ("builtins", "exec", '(\'open("CANARY", "w")\',)'),
    "open": ("io", "open", "('CANARY', 'w')"),
    "subprocess.Popen": ("subprocess", "Popen", "(['touch', 'CANARY'],)"),
    "torch.hub": ("torch.serialization", "load", "('CANARY',)"),
    "os.system by a nested name": ("unmask", "cli.os.system", "('touch CANARY',)"),
    "the name of a rebuilder": ("torch._utils", "_rebuild_tensor_v2.__globals__.__getitem__", "('os',)"),
    "operator.attrgetter": ("operator", "attrgetter", "('__class__',)"),
}


def pickle_file(path: Path, kind: str, canary: Path) -> None:
    """A torch file, in the zip form or the old one, whose program calls a function."""
    module, name, source = CALLS[kind]
    given = eval(source.replace("CANARY", str(canary)))
    program = b"\x80\x04" + _text(module) + _text(name) + b"\x93" + _plain(given) + b"R."
    if len(kind) % 2:
        path.write_bytes(program)
        return
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as file:
        file.writestr("archive/data.pkl", program)
        file.writestr("archive/version", b"3\n")


def _text(text: str) -> bytes:
    return b"\x8c" + bytes([len(text)]) + text.encode()


def _plain(value: Any) -> bytes:
    """A tuple or list of texts as pickle instructions, without memo and frames."""
    if isinstance(value, str):
        return b"X" + struct.pack("<I", len(value)) + value.encode()
    inside = b"".join(map(_plain, value))
    return b"(" + inside + (b"t" if isinstance(value, tuple) else b"l")


def json_traps() -> dict[str, Callable[[dict[str, Any]], Any]]:
    """Changes of a config.json."""

    def top(key: str, value: Any) -> Callable[[dict[str, Any]], Any]:
        return lambda tree: {**tree, key: value}

    def inside(section: str, key: str, value: Any) -> Callable[[dict[str, Any]], Any]:
        def change(tree: dict[str, Any]) -> Any:
            config = tree["unmask"]["config"]
            config[section] = {**config[section], key: value}
            return tree

        return change

    bert = {
        "model_type": "bert",
        "vocab_size": 300,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    return {
        "nested 100,000 deep": lambda _: "[" * 100_000,
        "objects nested 100,000 deep": lambda _: '{"a":' * 100_000,
        "an integer of 100,000 digits": lambda tree: json.dumps(tree)[:-1] + ', "vocab_size": ' + "9" * 100_000 + "}",
        "NaN and infinity": top("vocab_size", float("nan")),
        "a million keys": lambda tree: {**tree, **{f"key {i}": i for i in range(1_000_000)}},
        "empty": lambda _: "{}",
        "a list": lambda _: "[]",
        "width 2^40": inside("model", "hidden_dim", 1 << 40),
        "width 10^30": inside("model", "hidden_dim", 10**30),
        "a billion blocks": inside("model", "n_blocks", 10**9),
        "no heads": inside("model", "n_heads", 0),
        "a negative width": inside("model", "hidden_dim", -16),
        "length 2^40": inside("data", "length", 1 << 40),
        "a vocabulary of 10^12": top("vocab_size", 10**12),
        "a tokenizer elsewhere": inside("data", "tokenizer", "/etc/passwd"),
        "a start elsewhere": inside("train", "start", "/etc/passwd"),
        "a source elsewhere": inside("data", "source", "/etc/passwd"),
        "a BERT of a billion layers": lambda _: {**bert, "num_hidden_layers": 10**9},
        "a BERT of width 2^40": lambda _: {**bert, "hidden_size": 1 << 40},
        "a BERT of 2^40 positions": lambda _: {**bert, "max_position_embeddings": 1 << 40},
        "a BERT of 10^15 words": lambda _: {**bert, "vocab_size": 10**15},
        "a BERT without heads": lambda _: {**bert, "num_attention_heads": 0},
        "a BERT with a function of its own": lambda _: {**bert, "hidden_act": "os.system"},
        "an encoder with code": lambda _: {**bert, "auto_map": {"AutoModelForMaskedLM": "trap.Trap"}},
        "Mamba of a billion layers": lambda _: {**bert, "model_type": "mamba", "n_layer": 10**9, "d_model": 16},
        "text in place of numbers": inside("model", "n_blocks", "many"),
        "markup": top("_name_or_path", "<script>alert(1)</script>[bold]"),
    }  # fmt: skip


def header_traps() -> dict[str, bytes]:
    """Weights files with lying headers."""

    def made(size: int, header: bytes, data: bytes = b"") -> bytes:
        return struct.pack("<Q", size) + header + data

    big = json.dumps({"x": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}).encode()
    twice = json.dumps({"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 8]}}).encode()
    nested = b'{"a":' * 50_000
    return {
        "a header of 2^63 bytes": made(1 << 63, b"{}"),
        "a header longer than the file": made(1 << 30, b"{}"),
        "a tensor of 2^40 numbers": made(len(big), big, b"\0" * 16),
        "a shape that does not fit": made(len(twice), twice, b"\0" * 8),
        "a nested header": made(len(nested), nested),
        "empty": b"",
        "zeros": b"\0" * 4096,
    }


def yaml_traps(sound: str) -> dict[str, str]:
    """Configs of a checkpoint."""
    laughs = "a0: &a0 [lol, lol]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))
    return {
        "a Python object": sound + "\nnotes: !!python/object/apply:os.system ['touch CANARY']\n",
        "a Python name": sound + "\nnotes: !!python/name:os.system\n",
        "a billion laughs": sound + "\n" + laughs,
        "a billion laughs as a section": "model: &m\n  a: 1\n" + laughs.replace("lol", "*m"),
        "nested": "[" * 20_000,
        "an anchor in itself": "model: &m [*m]\ndata: &d {x: *d}\n",
        "a huge width": sound.replace("hidden_dim: 16", "hidden_dim: 1099511627776"),
        "a billion blocks": sound.replace("n_blocks: 1", "n_blocks: 1000000000"),
        "a source that is a pipe of the shell": sound.replace("source: ", "source: '|touch CANARY' #"),
        "sixty-digit numbers": sound.replace("n_blocks: 1", "n_blocks: 1" + "0" * 60),
        "numbers in base 60": sound.replace("n_blocks: 1", "n_blocks: 190:20:30"),
    }


def bomb(folder: Path, canary: Path, kind: str) -> None:
    """A torch file that grows, lies or leads elsewhere."""
    path = folder / "trap.ckpt"
    if kind == "zip slip":
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("archive/data.pkl", pickle.dumps({}, 2))
            file.writestr(f"archive/data/../../../../../../../{canary}", b"x")
            file.writestr(str(canary), b"x")
        return
    packed = zipfile.ZIP_STORED if kind in ("many entries", "lying sizes") else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(path, "w", packed) as file:
        if kind == "many entries":
            for i in range(60_000):
                file.writestr(f"archive/data/{i}", b"")
            file.writestr("archive/data.pkl", pickle.dumps({}, 2))
        elif kind == "lying sizes":
            file.writestr("archive/data.pkl", pickle.dumps({"x": 1}, 2))
        else:
            name = "archive/data.pkl" if kind == "zip" else "archive/data/0"
            with file.open(name, "w", force_zip64=True) as entry:
                for _ in range(1024):
                    entry.write(b"\0" * (1 << 20))
            if kind == "deflated":
                file.writestr("archive/data.pkl", pickle.dumps({}, 2))
    if kind == "lying sizes":
        data = bytearray(path.read_bytes())
        at = data.rfind(b"PK\x01\x02")
        data[at + 20 : at + 28] = struct.pack("<II", 0xFFFFFFF0, 0xFFFFFFF0)
        path.write_bytes(data)


def bombs_in_gzip() -> dict[str, bytes]:
    """Small gzip files."""
    whole = io.BytesIO()
    with gzip.GzipFile(fileobj=whole, mode="wb", mtime=0) as file:
        for _ in range(64):
            file.write(b"\0" * (1 << 20))
    text = gzip.compress(b"word " * 100_000, mtime=0)
    nested = gzip.compress(gzip.compress(b"a" * (1 << 20)), mtime=0)
    return {
        "64 MB of zeros": whole.getvalue(),
        "cut short": text[:-20],
        "not an end but noise": text + b"\xff" * 500,
        "gzip in gzip": nested,
        "a wrong checksum": text[:-8] + b"\0" * 8,
        "only a header": text[:10],
        "100,000 empty members": gzip.compress(b"", mtime=0) * 100_000 + text,
    }


def texts() -> dict[str, bytes]:
    """Sources that are odd."""
    return {
        "JSON lines nested 100,000 deep.jsonl": b'{"text": ' + b"[" * 100_000 + b"\n",
        "a number of 10,000 digits.jsonl": b'{"text": ' + b"9" * 10_000 + b"}\n",
        "control letters and escapes.txt": b"\x1b]0;title\x07 \x00 \x1b[2J word " * 5000,
        "lone surrogates.txt": b"\xed\xa0\x80 word" * 5000,
        "a field without an end.csv": b'text\n"' + b"x" * 5_000_000,
        "one line of 8 MB.txt": b"x" * 8_000_000,
        "a million line ends.txt": b"\n" * 1_000_000,
    }
