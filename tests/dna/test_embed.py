"""Embeddings against the network itself, strands, files of every kind, and what is refused."""

from __future__ import annotations

import gzip
import json
import lzma

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from support.dna_models import dna_lm, genome_of, ids, random_bases, turned
from support.helpers import random_lm, refused, run
from unmask.data.tokenization import bytes_tokenizer
from unmask.dna import embed as embedding
from unmask.dna.embed import Embedder, open_writer
from unmask.dna.sequence_files import read_sequences
from unmask.dna.strands import conjoined
from unmask.types import UserError

CADUCEUS = ["model.backbone=caduceus", "model.hidden_dim=8", "model.n_blocks=1", "model.state_dim=4"]


def states(lm, x):
    """(L, hidden) of one row alone, at sigma 0."""
    backbone = lm.model.backbone
    with torch.no_grad():
        return backbone(torch.from_numpy(x)[None], condition=backbone.condition(torch.zeros(1)))[0][0].numpy()


def vectors(lm, texts, **how):
    return [found[2] for found in Embedder(lm, **how)([(str(i), text) for i, text in enumerate(texts)])]


def test_a_vector_is_the_mean_of_the_states():
    lm = dna_lm(length=12)
    texts = [random_bases(n, seed=n) for n in (12, 5, 1, 9)]
    for batch_size in (1, 3, 32):
        for text, vector in zip(texts, vectors(lm, texts, batch_size=batch_size), strict=True):
            assert vector.dtype == np.float32
            np.testing.assert_allclose(vector, states(lm, ids(text)).mean(0), atol=1e-5)


def test_a_vector_a_position_and_longer_sequences_in_blocks():
    lm, text = dna_lm(length=6), random_bases(15)
    parts = [states(lm, ids(text[i : i + 6])) for i in (0, 6, 12)]
    (found,) = vectors(lm, [text], pool="none")
    np.testing.assert_allclose(found, np.concatenate(parts), atol=1e-5)
    (mean,) = vectors(lm, [text], batch_size=2)
    np.testing.assert_allclose(mean, np.concatenate(parts).mean(0), atol=1e-5)
    (longer,) = vectors(lm, [text], length=15)
    np.testing.assert_allclose(longer, states(lm, ids(text)).mean(0), atol=1e-5)


def test_block_ends_are_seen_and_not_counted():
    lm, text = dna_lm("data.block_ends=true", length=8), "ACGTT"
    (vector,) = vectors(lm, [text])
    np.testing.assert_allclose(vector, states(lm, np.array([2, *ids(text), 1]))[1:-1].mean(0), atol=1e-5)


def test_an_autoregressive_model_has_read_every_token():
    lm, text = dna_lm("model.method=ar", length=8), "ACGTTGA"
    with torch.no_grad():
        truth = lm.model.backbone(torch.tensor([[3, *ids(text)]]))[0][0, 1:].numpy()
    found = vectors(lm, [text, "AC"], pool="none")
    np.testing.assert_allclose(found[0], truth, atol=1e-5)
    np.testing.assert_allclose(found[1], truth[:2], atol=1e-5)  # the same beginning, read with padding after it


@pytest.mark.parametrize("kind", ["plain", "conjoined", "ps"])
def test_both_strands_have_one_vector(kind):
    lm = dna_lm(*(CADUCEUS if kind == "ps" else []), length=12)
    lm = conjoined(lm) if kind == "conjoined" else lm
    texts = [random_bases(n, seed=n) for n in (12, 7)]
    how = {"both_strands": kind == "plain"}
    for a, b in zip(vectors(lm, texts, **how), vectors(lm, map(turned, texts), **how), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    for a, b in zip(
        vectors(lm, texts, pool="none", **how), vectors(lm, map(turned, texts), pool="none", **how), strict=True
    ):
        np.testing.assert_allclose(a, b[::-1], atol=1e-5)
    assert a.shape[1] == Embedder(lm).dim


def test_one_strand_of_a_plain_network_says_something_else():
    lm, text = dna_lm(length=12), random_bases(12)
    assert np.abs(vectors(lm, [text])[0] - vectors(lm, [turned(text)])[0]).max() > 1e-2


def test_a_model_of_text():
    lm = random_lm(bytes_tokenizer())
    x = np.array(list(b"one two"))
    np.testing.assert_allclose(vectors(lm, ["one two"])[0], states(lm, x).mean(0), atol=1e-5)
    with pytest.raises(UserError, match="model of DNA"):
        Embedder(lm, both_strands=True)


# -- files -----------------------------------------------------------------------------------------------------------


def test_sequences_of_every_kind_of_file(tmp_path):
    def write(name, text):
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return tmp_path / name

    both = [("a", "ACGT"), ("b", "GGN")]
    assert list(read_sequences(write("x.fa", ">a words\nAC\nGT\n>b\nggn\n"))) == both
    assert list(read_sequences(write("x.fasta.gz", gzip.compress(b">a\nACGT\n>b\nGGN\n")))) == both
    assert list(read_sequences(write("x.txt", "ACGT\r\n\nGGN\n"))) == [("1", "ACGT"), ("3", "GGN")]
    rows = '{"name": "a", "sequence": "ACGT"}\n{"id": "b", "text": "GGN"}\n"TT"\n'
    assert list(read_sequences(write("x.jsonl", rows))) == [*both, ("3", "TT")]
    assert list(read_sequences(write("x.csv", "label,id,sequence\n1,a,ACGT\n0,b,GGN\n"))) == both
    assert list(read_sequences(write("x.tsv.gz", gzip.compress(b"dna\tid\nACGT\ta\nGGN\tb\n")), column="dna")) == both
    genome = genome_of(tmp_path, c="AACGTT", d="CGGNAA")
    bed = write("x.bed", "d\t1\t4\nc\t1\t5\n")
    assert list(read_sequences(bed, genome=genome)) == [("d:1-4", "GGN"), ("c:1-5", "ACGT")]
    assert list(read_sequences(write("y.fa.xz", lzma.compress(b">a\nACGT\n>b\nGGN\n")))) == both


def test_regions_have_the_names_and_strands_of_the_bed_file(tmp_path):
    genome = genome_of(tmp_path, chrX="AACgtTN", MT="CGGAAA")
    rows = ["X\t0\t4\tplus\t0\t+", "chrX\t2\t7\tminus\t0\t-", "chrM\t1\t3\t.\t.\t-", "M\t0\t2\tdot", "MT\t0\t2"]
    (tmp_path / "x.bed.xz").write_bytes(lzma.compress(("\r\n".join(rows) + "\r\n").encode()))
    assert list(read_sequences(tmp_path / "x.bed.xz", genome=genome)) == [
        ("plus", "AACg"),
        ("minus", "NAacG"),
        ("MT:1-3", "CC"),
        ("dot", "CG"),
        ("MT:0-2", "CG"),
    ]
    (tmp_path / "y.bed").write_text("X\t0\t4\tplus\t0\tforward\n")
    with pytest.raises(UserError, match=r"line 1 of .*y\.bed has 'forward' for its strand"):
        list(read_sequences(tmp_path / "y.bed", genome=genome))


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("x.csv", b"a,b\n1,2\n", "no column"),
        ("x.csv", b"", "empty"),
        ("x.tsv", b"name\tsequence\na\n", "line 2"),
        ("x.jsonl", b"{1}\n", "line 1"),
        ("x.jsonl", b'{"name": "a"}\n', "line 1"),
        ("x.txt", b"\xff\xfe", "not text"),
        ("x.txt.gz", gzip.compress(b"ACGT\n" * 99, mtime=0)[:-9], "cut short"),
        ("x.fa.gz", gzip.compress(b">a\n" + b"ACGT\n" * 99, mtime=0)[:-9], "cut short"),
        ("x.fa", b">a\nMKLE\n", "protein"),
        ("x.bed", b"c\t0\t4\n", "--genome"),
        ("x.doc", b"ACGT\n", "unknown extension"),
    ],
)
def test_what_is_refused(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=says) as caught:
        list(read_sequences(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_npy_and_parquet_hold_the_same(tmp_path):
    lm = dna_lm(length=8)
    sequences = [(f"s{i}", random_bases(1 + i % 11, seed=i)) for i in range(50)]
    for pool in ("mean", "none"):
        embedder = Embedder(lm, pool)
        truth = [vector for _, _, vector in embedder(sequences)]
        for name in ("x.npy", "x.parquet"):
            with open_writer(tmp_path / name, embedder, {"pool": pool}) as writer:
                for found in embedder(sequences):
                    writer.add(*found)
        array = np.load(tmp_path / "x.npy", mmap_mode="r")
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, np.stack(truth) if pool == "mean" else np.concatenate(truth))
        beside = json.loads((tmp_path / "x.json").read_text())
        assert beside["sequences"] == [[name, len(text)] for name, text in sequences]
        assert beside["protocol"] == {"pool": pool}
        table = pq.read_table(tmp_path / "x.parquet").to_pydict()
        assert table["name"] == [name for name, _ in sequences]
        assert table["length"] == [len(text) for _, text in sequences]
        for own, vector in zip(table["embedding"], truth, strict=True):
            np.testing.assert_array_equal(np.array(own, dtype=np.float32), vector)


def test_vectors_come_as_sequences_are_read(monkeypatch):
    lm, read = dna_lm(length=8), []
    monkeypatch.setattr(embedding, "BUFFER", 2)

    def sequences():
        for i in range(1000):
            read.append(i)
            yield str(i), "ACGT"

    stream = Embedder(lm, batch_size=8)(sequences())
    next(stream)
    assert len(read) <= 16
    assert sum(1 for _ in stream) == 999


def test_the_command(tmp_path):
    dna_lm(length=8).save_pretrained(tmp_path / "model")
    (tmp_path / "x.fa").write_text(">a\nACGTACGTAA\n>b\nGG\n")
    model, fasta, out = str(tmp_path / "model"), str(tmp_path / "x.fa"), str(tmp_path / "x.npy")
    ran = run("embed", model, fasta, "--out", out, "--both-strands", "--json").json()
    assert (ran["sequences"], ran["dim"], ran["protocol"]["strands"]) == (2, 16, "mean of both")
    assert np.load(out).shape == (2, 16)
    (tmp_path / "bad.txt").write_text("ACGT\nACZ\n")
    said = refused("embed", model, str(tmp_path / "bad.txt"), "--out", str(tmp_path / "y.npy"))
    assert "'2'" in said and "'Z'" in said
    assert not list(tmp_path.glob("*y.*"))  # nothing is left of what was begun
    assert "must end in" in refused("embed", model, fasta, "--out", str(tmp_path / "x.csv"))
    assert "mean, none" in refused("embed", model, fasta, "--out", out, "--pool", "max")
    (tmp_path / "empty.txt").write_text("\n")
    assert "no sequences" in refused("embed", model, str(tmp_path / "empty.txt"), "--out", out)
