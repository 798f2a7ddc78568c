"""Genomes as rows: splits that do not touch, windows, BED intervals, N, soft-masking, both strands, bad settings."""

from __future__ import annotations

import gzip
import json
import lzma
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.helpers import NETWORK, refused, run
from unmask.config import Config, DataConfig
from unmask.data.genome.bases import dna_tokenizer
from unmask.data.genome.bed import read_bed
from unmask.data.genome.regions import GenomeRows, block_size
from unmask.data.loader import eval_batch, flip_strands, train_batch
from unmask.data.pack import prepare
from unmask.data.tokenization import bytes_tokenizer
from unmask.process.keys import Keys
from unmask.recipes import recipe
from unmask.training.step import text_batch
from unmask.types import Batch, UserError

IDS = {"A": 7, "C": 8, "G": 9, "T": 10, "U": 10}
PARTNER = {7: 10, 10: 7, 8: 9, 9: 8}


def ids(sequence: str, soft_mask: bool = False) -> list[int]:
    return [11 if soft_mask and c.islower() else IDS.get(c.upper(), 11) for c in sequence]


def bases(n: int, seed: int = 0) -> str:
    return "".join(np.random.default_rng(seed).choice(list("ACGT"), n))


def write(path: Path, records: dict[str, str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f">{name}\n{text}\n" for name, text in records.items()))
    return path


def spec(source: Path | str, **settings) -> DataConfig:
    path = Path(source)
    cache = path.parent / "cache" if path.exists() else settings.pop("cache")
    return DataConfig(**{"source": str(source), "tokenizer": "dna", "length": 8, "cache": str(cache), **settings})


def every_row(rows: GenomeRows) -> tuple[list[list[int]], list[list[bool]]]:
    tokens, counts = rows.rows(range(len(rows)))
    return tokens.tolist(), (np.ones_like(tokens, bool) if counts is None else counts).tolist()


def intervals_of(rows: GenomeRows) -> list[tuple[int, int]]:
    starts, sizes = rows.place(np.arange(len(rows)))
    return [(int(at), int(at + size)) for at, size in zip(starts, sizes, strict=True)]


# ---- splits and windows


@given(st.lists(st.integers(1, 400), min_size=1, max_size=5), st.integers(2, 40), st.integers(0, 3))
def test_splits_never_share_a_base(tmp_path_factory, sizes, length, seed):
    folder = tmp_path_factory.mktemp("genome")
    path = write(folder / "x.fa", {f"r{i}": bases(size, i) for i, size in enumerate(sizes)})
    prepared = prepare(spec(path, length=length, valid_fraction=0.3, test_fraction=0.3, split_seed=seed))
    edges = np.concatenate([[0], np.cumsum(sizes)])
    covered = np.zeros(sum(sizes), dtype=int)
    for number, split in enumerate(("train", "valid", "test"), 1):
        _, regions = prepared.parts[split]
        pairs = [(int(at), int(at + size)) for at, size in zip(regions.starts, regions.lengths, strict=True)]
        for start, end in pairs:
            assert (covered[start:end] == 0).all(), "no base is in two regions"
            assert np.searchsorted(edges, start, "right") == np.searchsorted(edges, end - 1, "right"), "one record"
            covered[start:end] = number
        if not pairs:
            with pytest.raises(UserError, match=f"split '{split}' of .* is empty; give a larger data.{split}_fraction"):
                prepared.split(split)
            continue
        windows = intervals_of(prepared.split(split))
        seen = np.zeros_like(covered)
        for start, end in windows:
            home = [pair for pair in pairs if pair[0] <= start and end <= pair[1]]
            assert len(home) == 1, "a window is inside one region"
            assert end - start == min(length, home[0][1] - home[0][0])
            seen[start:end] += 1
        assert ((seen > 0) == (covered == number)).all(), "every base of a split is in a window"
        assert len(windows) == sum(-(-(end - start) // length) for start, end in pairs)
    assert (covered > 0).all()


def test_the_same_blocks_for_every_length():
    for total in (48_502, 70_000_000, 3_100_000_000):
        sizes = {length: block_size(total, length) for length in (32, 64, 128, 256)}
        assert len(set(sizes.values())) == 1
        assert 0.5 < sizes[32] / min(max(total / 400, 1024), 2**20) < 2
    assert block_size(3_100_000_000, 1024) == block_size(3_100_000_000, 2**18) == 2**20
    assert block_size(48_502, 1000) == 4096


def test_rows_are_what_the_file_says(tmp_path):
    """All by hand: a record of 20, one of 5, windows of 8."""
    first, second = "ACGTACGTTTGGNNCCAAGT", "acgNT"
    path = write(tmp_path / "x.fa", {"a": first, "b": second})
    rows = prepare(spec(path, valid_fraction=0, test_fraction=0)).split("train")
    tokens, counts = every_row(rows)
    assert tokens == [ids(first[:8]), ids(first[8:16]), ids(first[12:]), [*ids(second), 4, 4, 4]]
    assert counts == [[token in (7, 8, 9, 10) for token in row] for row in tokens]
    assert rows.rows([0])[1] is None, "nothing in this row is left out"
    assert rows.labels([0]) is None and not rows.labelled
    facts = rows.describe()
    assert (facts["documents"], facts["tokens"], facts["windows"], facts["rows"], facts["length"]) == (2, 29, 4, 4, 8)
    assert facts["bytes"] == sum(map(sum, counts)) and rows.bytes_per_token == 1.0
    assert (facts["tokenizer"], facts["soft_mask"], facts["windows_left_out"]) == ("dna", "keep", 0)


def test_n_is_seen_and_not_scored(tmp_path):
    path = write(tmp_path / "x.fa", {"a": "ACGTNNGT", "b": "ACG"})
    rows = prepare(spec(path, valid_fraction=0, test_fraction=0)).split("train")
    batch = eval_batch(rows, [0, 1])
    assert batch.present.tolist() == [[True] * 8, [True] * 3 + [False] * 5]
    assert batch.scored.tolist() == [[True] * 4 + [False] * 2 + [True] * 2, [True] * 3 + [False] * 5]
    alone = eval_batch(rows, [0])  # without padding: N is there, and is given
    assert alone.present is None and alone.given.tolist() == [[False] * 4 + [True] * 2 + [False] * 2]
    assert eval_batch(rows, [1]).given is None
    assert eval_batch(rows, [1], attend_pads=True).present is None


@pytest.mark.parametrize("soft_mask", ["keep", "mask"])
def test_windows_of_n_are_left_out(tmp_path, soft_mask):
    rng = np.random.default_rng(1)
    parts = ["ACGTACGT", "NNNNNNNN", "ANNNNNGT", "NNNNACGT", "acgtaCGT", "ACGTacgt", "nnnnnACG"]
    windows = [parts[i] for i in rng.integers(0, len(parts), 300)]
    path = write(tmp_path / "x.fa", {"a": "".join(windows)})
    kept = [ids(text, soft_mask == "mask") for text in windows]
    kept = [row for row in kept if row.count(11) <= 4]
    rows = prepare(spec(path, soft_mask=soft_mask, valid_fraction=0, test_fraction=0)).split("train")
    assert every_row(rows)[0] == kept
    facts = rows.facts
    assert facts["windows_left_out"] == 300 - len(kept) and facts["bases_left_out"] == 8 * (300 - len(kept))
    assert facts["bytes"] == sum(8 - row.count(11) for row in kept)


def test_nothing_but_n(tmp_path):
    path = write(tmp_path / "x.fa", {"a": "N" * 100 + "acgt" * 20})
    with pytest.raises(UserError, match=r"more than half of every window is N; give other regions, or set data\.soft"):
        prepare(spec(path, soft_mask="mask", valid_fraction=0, test_fraction=0)).split("train")


def test_files_named_as_splits(tmp_path):
    folder = tmp_path / "genome"
    write(folder / "train.fa", {"s1": bases(40, 1), "s2": "ACGTAC"})
    write(folder / "valid.fa", {"s1": bases(16, 2)})  # the same name is fine: another split
    (folder / "README.txt").write_text("what this is")
    prepared = prepare(spec(folder))
    assert prepared.corpus.splits == ("train", "valid") and prepared.corpus.division is None
    assert every_row(prepared.split("valid"))[0] == [ids(bases(16, 2)[:8]), ids(bases(16, 2)[8:])]
    assert len(prepared.split("train")) == 6
    with pytest.raises(UserError, match=r"has no split 'test'"):
        prepared.split("test")


def test_the_fingerprint_is_of_the_content(tmp_path):
    text = bases(3000)
    path = write(tmp_path / "x.fa", {"a": text})
    again = write(tmp_path / "y.fa", {"a": text})
    base = prepare(spec(path)).fingerprint
    assert prepare(spec(again)).fingerprint == base
    assert prepare(spec(path), dna_tokenizer()).fingerprint == base
    for settings in ({"split_seed": 1}, {"soft_mask": "mask"}, {"valid_fraction": 0.1}):
        assert prepare(spec(path, **settings)).fingerprint != base
    write(path, {"a": text[:-1]})
    assert prepare(spec(path)).fingerprint != base


# ---- BED


def bed(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


SIZES = {"chr1": 100, "chrX": 50}


@pytest.mark.parametrize("name", ["x.bed", "x.bed.gz"])
def test_bed(tmp_path, name):
    text = (
        "# a note\ntrack name=x\nbrowser position chr1\n\nchr1\t10\t20\ttrain\t0\t+\r\n"
        "chrX 0 50 validation\nchr1\t0\t10\tdev\nchr1\t30\t40\tTest\nchr1\t50\t60\tpeak_1\nchr1\t60\t70\n"
    )
    found = read_bed(bed(tmp_path / name, text), SIZES)
    assert [(one.name, one.start, one.end, one.split, one.line) for one in found] == [
        ("chr1", 10, 20, "train", 5),
        ("chrX", 0, 50, "valid", 6),
        ("chr1", 0, 10, "valid", 7),
        ("chr1", 30, 40, "test", 8),
        ("chr1", 50, 60, None, 9),
        ("chr1", 60, 70, None, 10),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("chr2\t0\t10", r"line 2 of .*x\.bed: the genome has no record 'chr2' \(did you mean 'chr"),
        ("chrX\t10\t51", r"line 2 of .* ends at 51, beyond the end of 'chrX', which has 50 bases"),
        ("chrX\t10\t10", r"line 2 of .* starts at 10 and ends at 10; an interval ends after its start"),
        ("chrX\t20\t10", r"line 2 of .* starts at 20 and ends at 10"),
        ("chrX\t-1\t10", r"line 2 of .* starts at -1, before the chromosome"),
        ("chrX\t1.5\t10", r"line 2 of .* has '1.5' and '10' for start and end, which are not whole numbers"),
        ("chrX\tstart\tend", r"line 2 of .* not whole numbers; begin a line of column names with #"),
        ("tig7\t0\t10", r"the genome has no record 'tig7' \(it has chr1, chrX\)"),
        ("chrX\t1", r"line 2 of .* has 2 columns; BED needs chromosome, start and end"),
    ],
)
def test_bed_errors_name_the_line(tmp_path, line, message):
    with pytest.raises(UserError, match=message) as error:
        read_bed(bed(tmp_path / "x.bed", f"chr1\t0\t10\n{line}\n"), SIZES)
    assert "\n" not in str(error.value)


def test_bed_files_that_cannot_be_read(tmp_path):
    whole = gzip.compress(b"chr1\t0\t10\n" * 1000)
    (tmp_path / "cut.bed.gz").write_bytes(whole[:-10])
    (tmp_path / "bytes.bed").write_bytes(b"\xff\xfe\0")
    cases = {
        "gone.bed": "does not exist",
        "cut.bed.gz": "is cut short or damaged",
        "bytes.bed": "is not text",
        "empty.bed": "holds no interval",
    }
    (tmp_path / "empty.bed").write_text("# nothing\n")
    for name, message in cases.items():
        with pytest.raises(UserError, match=message):
            read_bed(tmp_path / name, SIZES)


def test_intervals_with_splits(tmp_path):
    text = bases(100)
    path = write(tmp_path / "x.fa", {"chr1": text, "chr2": text[::-1]})
    file = bed(tmp_path / "x.bed", "chr2\t50\t66\tvalid\nchr1\t3\t23\ttrain\nchr2\t0\t5\ttrain\nchr1\t40\t48\ttest\n")
    prepared = prepare(spec(path, intervals=str(file)))
    assert every_row(prepared.split("train"))[0] == [
        ids(text[3:11]),
        ids(text[11:19]),
        ids(text[15:23]),
        [*ids(text[::-1][:5]), 4, 4, 4],
    ]
    assert every_row(prepared.split("valid"))[0] == [ids(text[::-1][50:58]), ids(text[::-1][58:66])]
    assert every_row(prepared.split("test"))[0] == [ids(text[40:48])]
    assert prepared.split("test").describe()["intervals"] == str(file)
    bed(file, "chr1\t0\t8\ttrain\n")
    with pytest.raises(UserError, match="has no split 'valid'"):
        prepare(spec(path, intervals=str(file))).split("valid")


def test_intervals_without_splits_are_divided_in_groups(tmp_path):
    path = write(tmp_path / "x.fa", {"a": bases(4000)})
    lines = [f"a\t{at}\t{at + 30}\n" for at in range(0, 3900, 20) if at % 100 < 60]  # three that overlap, then a gap
    np.random.default_rng(0).shuffle(lines)
    file = bed(tmp_path / "x.bed", "".join(lines))
    prepared = prepare(spec(path, intervals=str(file), valid_fraction=0.25, test_fraction=0.25))
    owner: dict[int, str] = {}
    for split in ("train", "valid", "test"):
        _, regions = prepared.parts[split]
        assert 5 <= len(set((regions.starts // 100).tolist())) <= 25
        for start in regions.starts.tolist():
            assert owner.setdefault(start // 100, split) == split, "what overlaps stays together"
    assert sum(len(prepared.parts[split][1].starts) for split in prepared.corpus.splits) == len(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\t0\t20\ttrain\na\t15\t30\tvalid\n", r"line 2 of .* \(valid\) overlaps line 1 \(train\); splits must"),
        ("a\t15\t30\tvalid\na\t0\t90\ttrain\na\t2\t4\ttrain\n", r"line 1 of .* \(valid\) overlaps line 2 \(train\)"),
        ("a\t0\t20\ttrain\na\t40\t50\tpeak\n", r"line 2 of .* names no split, and line 1 does"),
    ],
)
def test_intervals_that_do_not_fit(tmp_path, text, message):
    path = write(tmp_path / "x.fa", {"a": bases(100)})
    with pytest.raises(UserError, match=message):
        prepare(spec(path, intervals=str(bed(tmp_path / "x.bed", text))))


# ---- hg38 as in the paper


def test_hg38(tmp_path, monkeypatch):
    """Intervals are made 2^20 long around their middle, shifted where the chromosome ends (here: 64)."""
    monkeypatch.setattr("unmask.data.genome.genome_corpus.HG38_EXTENDED", 64)
    one, two = bases(200, 1), bases(40, 2)
    write(tmp_path / "hg38" / "hg38.ml.fa", {"chr1": one, "chr2": two})
    lines = "chr1\t100\t108\ttrain\nchr1\t0\t8\tvalid\nchr1\t190\t200\ttest\nchr2\t10\t12\ttrain\n"
    bed(tmp_path / "hg38" / "human-sequences.bed", lines)
    prepared = prepare(spec("hg38", local=str(tmp_path), length=16, cache=str(tmp_path / "cache")))
    train = every_row(prepared.split("train"))[0]
    assert train[:4] == [ids(one[at : at + 16]) for at in (72, 88, 104, 120)]
    assert train[4:] == [ids(two[at : at + 16]) for at in (0, 16, 24)]
    assert every_row(prepared.split("valid"))[0] == [ids(one[at : at + 16]) for at in (0, 16, 32, 48)]
    assert every_row(prepared.split("test"))[0] == [ids(one[at : at + 16]) for at in (136, 152, 168, 184)]
    monkeypatch.setenv("UNMASK_DATA", str(tmp_path))
    assert prepare(spec("hg38", length=16, cache=str(tmp_path / "cache"))).fingerprint == prepared.fingerprint


def test_hg38_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.delenv("UNMASK_DATA", raising=False)
    with pytest.raises(
        UserError, match=r"'hg38' is not on this machine; set data\.local to a folder with hg38\.ml\.fa"
    ):
        prepare(spec("hg38", cache=str(tmp_path)))
    with pytest.raises(UserError, match="does not hold the genome 'hg38'"):
        prepare(spec("hg38", local=str(tmp_path), cache=str(tmp_path)))
    write(tmp_path / "hg38.fa", {"chr1": "ACGT"})
    with pytest.raises(UserError, match=r"has no human-sequences\.bed or sequences_human\.bed"):
        prepare(spec("hg38", local=str(tmp_path), cache=str(tmp_path)))


# ---- settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tokenizer": "bytes"}, r"x\.fa is FASTA, which is read base by base; set data\.tokenizer=dna"),
        ({"layout": "pad"}, r"data\.layout=pad is for text, and .* is FASTA"),
        ({"block_ends": True}, r"data\.block_ends=true is for text"),
        ({"layout": "pad", "label": "y"}, r"data\.layout=pad is for text"),
        ({"field": "sequence"}, r"data\.field=sequence is for text"),
        ({"detokenizer": "ptb"}, r"data\.detokenizer=ptb is for text"),
        ({"local": "/x"}, r"data\.local=/x belongs to a named data set"),
        ({"intervals": "/gone.bed"}, r"file /gone\.bed does not exist"),
    ],
)
def test_settings_that_mean_nothing_here(tmp_path, settings, message):
    path = write(tmp_path / "x.fa", {"a": bases(100)})
    with pytest.raises(UserError, match=message) as error:
        prepare(spec(path, **settings))
    assert "\n" not in str(error.value)


def test_a_model_for_text_is_refused(tmp_path):
    path = write(tmp_path / "x.fa", {"a": bases(100)})
    with pytest.raises(UserError, match="the tokenizer 'bytes' of this model is for text"):
        prepare(spec(path), bytes_tokenizer())
    with pytest.raises(UserError, match=r"file or folder .*gone\.fa does not exist"):
        prepare(spec(tmp_path / "gone.fa", cache=str(tmp_path)))


# ---- both strands


def slow_flip(row: list[int], scored: list[bool], present: list[bool]) -> tuple[list[int], list[bool], list[bool]]:
    """The part of a row that is sequence, backwards and complemented; padding and ends of text stay."""
    n = len(row)
    while n and row[n - 1] == 4:
        n -= 1
    low, high = int(row[0] == 2), n - int(row[n - 1] == 1)
    order = [*range(low), *reversed(range(low, high)), *range(high, len(row))]
    return [PARTNER.get(row[i], row[i]) for i in order], [scored[i] for i in order], [present[i] for i in order]


ROWS = st.lists(st.sampled_from([7, 8, 9, 10, 11, 1, 6]), min_size=1, max_size=9)


@given(st.lists(st.tuples(ROWS, st.booleans(), st.booleans()), min_size=1, max_size=6), st.integers(0, 50))
def test_flipped_rows(rows, seed):
    built = [[2] * begin + row + [1] * end for row, begin, end in rows]
    tokens = [row + [4] * (12 - len(row)) for row in built]
    scored = [[token in (7, 8, 9, 10) for token in row] for row in tokens]
    present = [[token != 4 for token in row] for row in tokens]
    keys = Keys(seed, 3)
    batch = Batch(torch.tensor(tokens), torch.arange(len(tokens)) + 5, 99, torch.tensor(scored), torch.tensor(present))
    found = flip_strands(batch, keys)
    for i, (row, own, seen) in enumerate(zip(tokens, scored, present, strict=True)):
        turned = float(keys.uniform("strand", [i + 5])[0]) < 0.5
        wanted = slow_flip(row, own, seen) if turned else (row, own, seen)
        assert (found.tokens[i].tolist(), found.scored[i].tolist(), found.present[i].tolist()) == wanted


def test_the_strand_depends_on_step_and_slot_only(tmp_path):
    path = write(tmp_path / "x.fa", {"a": bases(3000), "b": "ACGTT"})
    config = Config(data=spec(path, reverse_complement=True, valid_fraction=0, test_fraction=0))
    config = config.override(["train.batch_size=16"])
    rows = prepare(config.data).split("train")
    plain = config.override(["data.reverse_complement=false"])
    turned = 0
    for step in range(6):
        keys = Keys(config.seed).fork("train").at(step)
        whole = text_batch(config, rows, range(16), keys)
        parts = [text_batch(config, rows, slots, keys) for slots in (range(5), range(5, 16))]
        assert torch.equal(torch.cat([part.tokens for part in parts]), whole.tokens)
        before = text_batch(plain, rows, range(16), keys)
        assert torch.equal(
            before.tokens,
            train_batch(rows, seed=config.seed, step=step, batch_size=16, slots=range(16), attend_pads=False).tokens,
        )
        for old, new in zip(before.tokens.tolist(), whole.tokens.tolist(), strict=True):
            other = slow_flip(old, [True] * 8, [True] * 8)[0]
            assert new in (old, other)
            turned += new != old
    assert 30 <= turned <= 66  # 96 coins


# ---- the command line


def test_train_evaluate_and_sample(tmp_path):
    path = write(tmp_path / "x.fa", {"a": "ACGTN" * 2000})
    out = str(tmp_path / "run")
    settings = [f"data.source={path}", f"data.cache={tmp_path / 'cache'}", "data.tokenizer=dna", "data.length=16"]
    more = ["data.reverse_complement=true", "train.steps=4", "eval.rows=8"]
    ran = run("train", "tiny", *settings, *NETWORK, *more, "--out", out, "--quiet")
    assert ran.code == 0, ran.err
    found = run("eval", out, "--rows", "8", "--json").json()
    assert found["protocol"]["tokenizer"] == "dna" and found["bits_per_byte"] == pytest.approx(found["bits_per_token"])
    assert found["tokens"] < 8 * 16, "N is not scored"
    sampled = run("sample", out, "-n", "1", "--seed", "3")
    assert sampled.code == 0 and re.fullmatch(r"[ACGTN\n]*", sampled.out)


def test_data_commands(tmp_path):
    text = bases(3000)
    path = write(tmp_path / "x.fa", {"a": text})
    settings = ["data.tokenizer=dna", "data.length=16", f"data.cache={tmp_path / 'cache'}"]
    shown = json.loads(run("data", "show", str(path), "--json", "-n", "2", *settings).out)
    assert shown["vocabulary"] == 12 and shown["splits"] == ["train", "valid", "test"]
    assert "".join(shown["rows"][0]["tokens"]) == text[:16] == shown["texts"][0]["raw"][:16]
    made = json.loads(run("data", "prepare", str(path), "--json", *settings).out)
    assert sum(own["bytes"] for own in made["counts"].values()) >= 3000
    assert all(own["dropped_tokens"] == 0 for own in made["counts"].values())
    assert Path(made["folder"], "bases.2bit").is_file()
    (tmp_path / "p.fa").write_text(">p\nMEEPQSDPSV\n")
    assert re.search(
        r"line 2 of .*p\.fa .* looks like protein", refused("data", "show", str(tmp_path / "p.fa"), *settings)
    )


def test_the_recipe_is_the_same_without_fasta():
    assert not recipe("tiny").data.reverse_complement and recipe("tiny").data.intervals is None


# ---- DNA without DNA


@pytest.mark.parametrize("recipe", ["dna-tiny", "dna-mdlm"])
def test_a_recipe_of_dna_needs_dna(tmp_path, recipe):
    text = [] if recipe == "dna-tiny" else ["data.source=wikitext2"]  # dna-mdlm names hg38 itself
    said = refused("train", recipe, *text, f"data.cache={tmp_path}", "--out", str(tmp_path / "run"))
    assert "data.source=genome.fa.gz" in said and ".fna" in said and "reads bases" in said
    assert not list((tmp_path / "run").glob("checkpoints/*"))


def test_proteins_are_not_read_base_by_base(tmp_path):
    (tmp_path / "p.faa").write_text(">p\nMKVLAT\n")
    for settings in ({}, {"tokenizer": "dna"}):
        with pytest.raises(UserError, match=r"p\.faa is FASTA of proteins; to train on them, write"):
            prepare(DataConfig(source=str(tmp_path / "p.faa"), cache=str(tmp_path / "cache"), **settings))


def test_a_file_of_no_known_kind_is_not_dna(tmp_path):
    (tmp_path / "x.2bit").write_bytes(b"ACGT")
    with pytest.raises(UserError, match=r"x\.2bit does not say what it holds; give a FASTA file \(\.fa, \.fasta"):
        prepare(spec(tmp_path / "x.2bit"))


def test_xz(tmp_path):
    text = bases(3000)
    plain = write(tmp_path / "x.fa", {"chr1": text})
    packed = tmp_path / "y.fa.xz"
    packed.write_bytes(lzma.compress(plain.read_bytes()))
    assert every_row(prepare(spec(packed)).split("train")) == every_row(prepare(spec(plain)).split("train"))
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(UserError, match="is cut short or damaged"):
        prepare(spec(packed))
    write(tmp_path / "z.fa.xz", {"chr2": text})
    with pytest.raises(UserError, match="is not an xz file, though its name says so"):
        prepare(spec(tmp_path / "z.fa.xz"))
