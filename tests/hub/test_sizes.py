"""Sizes that files claim are checked before memory is taken: every lie is one sentence, in a watched process."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import re
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from support.encoders import tree
from support.published import PUBLISHED

MOST = 300  # MB that reading all of them together may take, beyond what the imports took
BIG = 1 << 32  # bytes of a file that is a hole
SWORN = """
import json, resource, sys
import unmask, transformers
from unmask.evaluation.judge import open_scorer
from unmask.hub.convert import read_file
from unmask.networks.architectures import masked_lms
from pathlib import Path
masked_lms(), transformers.BertForMaskedLM, transformers.AutoModelForCausalLM, transformers.GPT2LMHeadModel
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
said, start = {}, peak()
for kind, place in json.load(sys.stdin):
    try:
        {"load": unmask.load, "file": lambda p: read_file(Path(p), "raw"), "judge": open_scorer}[kind](place)
        said[place] = "was read"
    except unmask.UserError as error:
        said[place] = str(error)
    said[place] += f" ({peak() - start} MB)"
json.dump([said, peak() - start], sys.stdout)
"""

Write = Callable[[Path], Any]


def hole(path: Path, start: bytes = b"", size: int = BIG) -> Path:
    """A file that is long and takes no room on the disk."""
    path.write_bytes(start)
    os.truncate(path, size)
    return path


def folder(config: dict[str, Any] | bytes, weights: bytes | None = None) -> Write:
    """A model folder with this config.json, and weights of a few bytes."""

    def write(path: Path) -> None:
        path.mkdir()
        (path / "config.json").write_bytes(config if isinstance(config, bytes) else json.dumps(config).encode())
        (path / "vocab.txt").write_text("\n".join(["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]", *"abcdefghijklmnopq"]))
        if weights is None:
            save_file({"bert.embeddings.word_embeddings.weight": torch.ones(24, 16)}, path / "model.safetensors")
        else:
            (path / "model.safetensors").write_bytes(weights)

    return write


def bert(**more: Any) -> Write:
    return folder(tree("bert", vocab_size=24) | more)


def stated(header: Any, data: bytes = b"", length: int | None = None) -> Write:
    """A BERT whose safetensors file has this header."""
    text = json.dumps(header).encode()
    return folder(tree("bert", vocab_size=24), struct.pack("<Q", len(text) if length is None else length) + text + data)


def tensor(start: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def zipped(program: bytes, kind: int = zipfile.ZIP_STORED) -> Write:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w", kind) as file:
            file.writestr("archive/data.pkl", program)
            file.writestr("archive/version", b"3\n")

    return write


def copies(name: bytes, text: bytes, times: int) -> bytes:
    """A long value once, and many calls that copy it."""
    call = name + b"h\x00\x85R0" if b"encode" not in name else name + b"h\x00\x8c\x06latin1\x86R0"
    return b"\x80\x04" + text + b"\x94" + call * times + b"."


def with_hole(name: str, config: dict[str, Any]) -> Write:
    def write(path: Path) -> None:
        folder(config)(path)
        if name == "model.safetensors.index.json":
            (path / "model.safetensors").unlink()
        hole(path / name)

    return write


def packed(text: bytes, times: int) -> Write:
    def write(path: Path) -> None:
        with gzip.open(path, "wb") as file:
            file.write(b"\\data\\\nngram 1=1000000000\n\n\\1-grams:\n")
            for _ in range(times):
                file.write(text)

    return write


def llama(*numbers: int, tokenizer: bool = False) -> Write:
    def write(path: Path) -> None:
        path.mkdir()
        hole(path / "model.bin", struct.pack("<7i", *numbers), 1 << 20 if tokenizer else BIG)
        hole(path / "tok8.bin")

    return write


def old(path: Path) -> None:
    """A torch file of before 1.6 that claims more numbers than it has."""
    torch.save({"w": torch.ones(1000)}, path, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"M\xe8\x03", b"J\x00\x00\x00\x40"))


BERT = tree("bert", vocab_size=24)
GPT2 = {"model_type": "gpt2", "vocab_size": 24, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16}
LIES: dict[str, tuple[str, str, Write, str]] = {
    # configs
    "layers": ("load", "", bert(num_hidden_layers=10**9), "num_hidden_layers is 1,000,000,000, which is more than any"),
    "width": ("load", "", bert(hidden_size=10**12), "hidden_size is 1,000,000,000,000, which is more than any"),
    "tokens": ("load", "", bert(vocab_size=10**40), "vocab_size is a number of over 30 digits, which is more than"),
    "positions": ("load", "", bert(max_position_embeddings=10**9), "max_position_embeddings is 1,000,000,000, which"),
    "plausible": ("load", "", bert(hidden_size=8192, num_hidden_layers=48), "describes .* numbers, and its files"),
    "inner": ("load", "", bert(intermediate_size=2**30), "describes .* numbers, and its files hold 384"),
    "types": ("load", "", bert(type_vocab_size=2**31 - 1), "describes .* numbers, and its files hold 384"),
    "groups": (
        "load", "", folder(tree("albert", vocab_size=24) | {"num_hidden_groups": 1000, "inner_group_num": 1000}),
        "is 1,000, which is more than any network has",
    ),
    "sines": (
        "load", "", folder(tree("distilbert", max_position_embeddings=2**24, sinusoidal_pos_embds=True)),
        "max_position_embeddings is 16,777,216, which is more than any network has",
    ),
    "blocks of ours": ("load", "", folder(PUBLISHED | {"n_blocks": 10**9}), "a tokenizer|blocks"),
    "long": ("load", "", with_hole("config.json", BERT), "config.json is damaged .4,294,967,296 bytes; at most"),
    "long index": ("load", "", with_hole("model.safetensors.index.json", BERT), "index.json is damaged .4,294,967,"),
    "long vocabulary": ("load", "", with_hole("vocab.txt", BERT), "vocab.txt has 4,294,967,296 bytes, more than a tok"),
    "long tokenizer": ("load", "", with_hole("tokenizer.json", BERT), "tokenizer.json has 4,294,967,296 bytes, more"),
    "nested": ("load", "", folder(b'{"a":' * 10**5 + b"1" + b"}" * 10**5), "config.json is damaged .it is not JSON"),
    "digits": ("load", "", folder(b'{"hidden_size": ' + b"9" * 10**6 + b"}"), "config.json is damaged .it is not JSON"),
    # safetensors
    "header": ("load", "", stated({}, length=2**62), "model.safetensors is damaged"),
    "header too long": ("load", "", stated({}, length=10**6), "model.safetensors is damaged"),
    "short": ("load", "", stated({"a": tensor(0, 4 * 10**6, [10**6])}, b"x" * 8), "model.safetensors is damaged"),
    "overlapping": (
        "load", "", stated({f"t{i}": tensor(0, 4096, [1024]) for i in range(999)}, b"x" * 4096),
        "model.safetensors is damaged",
    ),
    "a product": ("load", "", stated({"a": tensor(0, 8, [2**40, 2**40])}, b"x" * 8), "model.safetensors is damaged"),
    "a type": ("load", "", stated({"a": tensor(0, 8, [2], "F99")}, b"x" * 8), "model.safetensors is damaged"),
    # pickles
    "lists": ("file", ".ckpt", zipped(b"\x80\x02" + b"]" * 2**22), "makes more than 2,097,152 objects"),
    "copied lists": (
        "file", ".ckpt", zipped(copies(b"ctorch\nSize\n", b"](" + b"N" * 10**6 + b"e", 10**5)),
        "makes more than 2,097,152 objects",
    ),
    "copied text": (
        "file", ".ckpt",
        zipped(copies(b"c_codecs\nencode\n", b"X" + struct.pack("<I", 10**6) + b"x" * 10**6, 10**5)),
        "makes more than 2,097,152 objects",
    ),
    "packed": ("file", ".ckpt", zipped(pickle.dumps("x" * 10**8), zipfile.ZIP_DEFLATED), "is packed or locked"),
    "old": ("file", ".bin", old, "numbers of storage .* are missing|is cut short"),
    # judges
    "endless line": ("judge", ".arpa.gz", packed(b"a" * 10**6, 50), "it has a line of 65,536 characters"),
    "unpacked": ("judge", ".arpa.gz", packed(b" " * 999 + b"\n", 10**5), "over 100 times its size when unpacked"),
    "llama": ("judge", "", llama(64, 172, 5, 8, 4, 512, 512), "has 4294967296 bytes but its header requires"),
    "a large header": ("judge", "", llama(2**19, 2**19, 2**19, 2, 2, 2**19, 2**19), "but its header requires"),
    "a judge's layers": ("judge", "", folder(GPT2 | {"n_layer": 10**9}), "n_layer is 1,000,000,000, which is more"),
    "a judge's width": ("judge", "", folder(GPT2 | {"n_embd": 2**14, "n_layer": 9}), "describes .* numbers, and its"),
}  # fmt: skip


def test_no_file_takes_more_memory_than_it_has(tmp_path: Path) -> None:
    places = []
    for number, (kind, ending, write, _) in enumerate(LIES.values()):
        path = tmp_path / f"{number}{ending}"
        write(path)
        judge = {"": "llama2c:", ".arpa.gz": "arpa:"}[ending] if kind == "judge" else ""
        if judge == "llama2c:" and (path / "config.json").exists():
            judge = "hf:"
        places.append((kind, f"{judge}{path}"))
    ran = subprocess.run(
        [sys.executable, "-c", SWORN], input=json.dumps(places), capture_output=True, text=True, check=True, timeout=300
    )
    said, grown = json.loads(ran.stdout)
    for (_, place), (what, (_, _, _, sentence)) in zip(places, LIES.items(), strict=True):
        assert re.search(sentence, said[place]), (what, said[place])
        assert "\n" not in said[place] and str(tmp_path) in said[place], (what, said[place])
    assert grown < MOST, said


def test_real_sizes_are_not_refused() -> None:
    """The largest networks that people have stay far below the limits."""
    from unmask.networks.architectures import check_sizes

    check_sizes({"num_hidden_layers": 48, "hidden_size": 5120, "num_attention_heads": 40, "vocab_size": 1_000_000,
                 "intermediate_size": 27_648, "max_position_embeddings": 8192, "num_experts": 64})  # fmt: skip
    with pytest.raises(Exception, match="more than any network has"):
        check_sizes({"rope": {"num_layers": 10**6}})
