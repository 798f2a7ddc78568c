"""FASTA: every way to write the same records reads the same; what is wrong is named by file, record and line."""

from __future__ import annotations

import gzip
import re
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.data.genome import fasta
from unmask.data.genome.fasta import is_fasta, read_fasta
from unmask.types import UserError

LETTERS = "ACGTUNRYSWKMBDHV"
BGZIP_END = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")


def slow(text: str) -> dict[str, str]:
    """A reader as one would write it on a napkin: lines, dictionary."""
    records: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith(">"):
            name = line[1:].split()[0]
            records[name] = ""
        elif line.strip():
            records[name] += line.strip()
    return records


def read(path, **how) -> dict[str, str]:
    """Our reader, with codes written as letters."""
    found: dict[str, str] = {}
    letters = np.array(list("ACGTN___acgtn___"))
    for name, codes in read_fasta(path, **how):
        assert codes.size
        found[name] = found.get(name, "") + "".join(letters[codes])
    return found


def plain(sequence: str) -> str:
    """U is T, ambiguous is N; case stays."""
    return re.sub("[RYSWKMBDHV]", "N", re.sub("[ryswkmbdhv]", "n", sequence.replace("U", "T").replace("u", "t")))


@st.composite
def fastas(draw) -> str:
    """A FASTA text: any line widths, line ends, blank lines, trailing blanks, case."""
    end = draw(st.sampled_from(["\n", "\r\n", " \n", "\t \r\n"]))
    text = draw(st.sampled_from(["", "\n", "\ufeff"]))
    for i in range(draw(st.integers(1, 4))):
        text += f">r{i}{draw(st.sampled_from(['', ' a note >x', chr(9) + 'tab']))}{end}"
        sequence = draw(st.text(alphabet=LETTERS + LETTERS.lower(), min_size=1, max_size=60))
        width = draw(st.integers(1, 70))
        text += "".join(sequence[at : at + width] + end for at in range(0, len(sequence), width))
        text += draw(st.sampled_from(["", end]))
    return text if draw(st.booleans()) else text.rstrip("\n\r\t ")


@pytest.mark.parametrize("packed", [False, True])
@given(text=fastas(), chunk=st.integers(3, 40))
def test_any_way_to_write_it(tmp_path_factory, packed, text, chunk):
    path = tmp_path_factory.mktemp("fasta") / ("x.fa.gz" if packed else "x.fa")
    content = text.encode()
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fasta, "CHUNK", chunk)
        found = read(path)
    wanted = {name: plain(own) for name, own in slow(text.removeprefix("\ufeff")).items()}
    assert found == wanted


def bgzip(content: bytes, size: int = 50) -> bytes:
    """Blocks as bgzip writes them: gzip members with their size in an extra field, and an empty one at the end."""
    out = b""
    for at in range(0, len(content), size):
        part = content[at : at + size]
        packer = zlib.compressobj(wbits=-15)
        body = packer.compress(part) + packer.flush()
        head = b"\x1f\x8b\x08\x04" + bytes(4) + b"\0\xff\x06\0BC\x02\0" + struct.pack("<H", len(body) + 25)
        out += head + body + struct.pack("<II", zlib.crc32(part), len(part))
    return out + BGZIP_END


def test_bgzip(tmp_path):
    text = ">a\n" + "ACGTACGTAC\n" * 20 + ">b\nTTTT\n"
    path = tmp_path / "x.fa.gz"
    path.write_bytes(bgzip(text.encode()))
    assert gzip.decompress(path.read_bytes()).decode() == text
    assert read(path) == slow(text)
    path.write_bytes(bgzip(text.encode())[: -len(BGZIP_END)])  # whole blocks, and yet not all of them
    with pytest.raises(UserError, match=r"x\.fa\.gz is cut short: the last block of a bgzip file is missing"):
        read(path)


@pytest.mark.parametrize("pack", [gzip.compress, bgzip])
def test_cut_short_anywhere(tmp_path, pack):
    rng = np.random.default_rng(0)
    text = ">a\n" + "\n".join("".join(rng.choice(list("ACGT"), 60)) for _ in range(40)) + "\n>b\nACGT\n"
    content, path = pack(text.encode()), tmp_path / "x.fa.gz"
    for length in [*range(40), *range(40, len(content), 37), *range(len(content) - 30, len(content))]:
        path.write_bytes(content[:length])
        with pytest.raises(UserError, match=r"x\.fa\.gz is (cut short|not a gzip file)") as error:
            read(path)
        assert "\n" not in str(error.value)
    path.write_bytes(content)
    assert read(path) == slow(text)


def test_a_damaged_gzip(tmp_path):
    path = tmp_path / "x.fa.gz"
    content = bytearray(gzip.compress(b">a\n" + b"ACGTTGCATT\n" * 500))
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))
    with pytest.raises(UserError, match=r"x\.fa\.gz is cut short or damaged|not a nucleotide|looks like protein"):
        read(path)
    (tmp_path / "y.fa").write_bytes(gzip.compress(b">a\nACGT\n"))  # packed, whatever its name says
    assert read(tmp_path / "y.fa") == {"a": "ACGT"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (">a\nACGT\n>p\nACGT\nACMEK\n", r"line 5 of .*x\.fa \(record 'p'\) has the letter 'E', .* like protein"),
        (">a\nACGT\nACGTl\n", r"line 3 .* letter 'l', so it looks like protein; give DNA or RNA"),
        (">a\nACGT*\n", r"line 2 .* has '\*', the stop of a protein"),
        (">a\nAC-GT\n", r"line 2 .* has '-', a gap of an alignment; remove the gaps"),
        (">a\nAC GT\n", r"line 2 .* has white space between its bases"),
        (">a\n\n\n   \n\nACG 10\n", r"line 6 .* white space"),
        (">a\n1 ACGT\n", r"line 2 .* has the digit 1"),
        (">a\nAC>GT\n", r"line 2 .* has '>', which is not a nucleotide code"),
        (">a\nAC\0GT\n", r"line 2 .* has the byte 0x00, which is not a nucleotide code"),
        (">a\r\nACGT\r\nAC?T\r\n", r"line 3 .* has '\?'"),
        (">a\nACGT\n>b\n>c\nACGT\n", r"record 'b' in line 3 of .*x\.fa has no bases; remove it"),
        (">a\nACGT\n>b\n", r"record 'b' in line 3 of .* has no bases"),
        (">a\nACGT\n>b\n \n\n", r"record 'b' in line 3 of .* has no bases"),
        ("ACGT\n>a\nACGT\n", r"line 1 of .* is sequence before the first header; begin with a line >NAME"),
        ("\n\nacgtn\n>a\nACGT\n", r"line 3 of .* is sequence before the first header"),
        (">a\nACGT\n>b\nAC\n>a more\nACGT\n", r"record 'a' is twice in .*x\.fa, in lines 1 and 5"),
        (">a\nAC\n>  \nACGT\n", r"line 3 of .* is a header without a name"),
        ("", r"x\.fa is empty; give a FASTA file"),
        ("\n \n", r"x\.fa is empty"),
        ("@read\nACGT\n+\nFFFF\n", r"x\.fa is not a FASTA file: line 1 does not begin with '>'"),
        ("PK\x03\x04 a zip\n", r"x\.fa is not a FASTA file"),
    ],
)
@pytest.mark.parametrize("chunk", [3, 2 << 20])
def test_what_is_wrong_is_named(tmp_path, monkeypatch, text, message, chunk):
    monkeypatch.setattr(fasta, "CHUNK", chunk)
    path = tmp_path / "x.fa"
    path.write_bytes(text.encode())
    with pytest.raises(UserError, match=message) as error:
        read(path)
    assert "\n" not in str(error.value)


def test_no_line_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(fasta, "LONGEST_HEADER", 1000)
    (tmp_path / "x.fa").write_bytes(b">a\r" + b"ACGT\r" * 1000)
    with pytest.raises(UserError, match=r"line 1 of .*x\.fa has no end; give a FASTA file with Unix line ends"):
        read(tmp_path / "x.fa")


def test_progress_ends_at_the_size(tmp_path, monkeypatch):
    monkeypatch.setattr(fasta, "CHUNK", 10)
    path = tmp_path / "x.fa"
    path.write_text(">a\n" + "ACGT\n" * 30)
    told: list[tuple[int, int]] = []
    read(path, progress=lambda done, size: told.append((done, size)))
    assert len(told) > 3 and told == sorted(told) and told[-1] == (153, 153)


def test_names():
    assert all(
        is_fasta(Path(name))
        for name in ("a.fa", "b.FASTA", "c.fna.gz", "d.ffn", "e.fas.gz", "hg38.ml.fa", "g.fa.xz", "p.faa")
    )
    assert not any(is_fasta(Path(name)) for name in ("a.txt", "fa", "b.fa.txt", "c.fastq", "d.gz", "e.xz"))
