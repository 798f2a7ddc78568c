"""The 2-bit store against plain Python slices, its files, and what is damaged."""

from __future__ import annotations

import gzip
import logging
import multiprocessing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.paths import DATA
from unmask.data.genome import fasta, store
from unmask.data.genome.store import Genome, open_genome, record_name
from unmask.types import UserError

DNA = DATA / "dna"
IDS = {"A": 7, "C": 8, "G": 9, "T": 10, "U": 10}


def ids(sequence: str, soft_mask: bool = False) -> list[int]:
    """Letter by letter."""
    return [11 if soft_mask and c.islower() else IDS.get(c.upper(), 11) for c in sequence]


def write(path: Path, records: dict[str, str], width: int = 7) -> Path:
    lines = [
        line
        for name, text in records.items()
        for line in (f">{name}", *(text[at : at + width] for at in range(0, len(text), width)))
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def sequences(longest: int = 50) -> st.SearchStrategy[str]:
    """Runs of bases, of N and of lower case, next to each other in any order."""
    run = st.one_of(*(st.text(alphabet=own, min_size=1, max_size=9) for own in ("ACGT", "acgt", "N", "nRy", "AnGt")))
    return st.lists(run, min_size=1, max_size=8).map(lambda runs: "".join(runs)[:longest])


@given(st.lists(sequences(), min_size=1, max_size=4), st.integers(3, 30), st.data())
def test_every_window_equals_the_slice(tmp_path_factory, texts, chunk, data):
    folder = tmp_path_factory.mktemp("store")
    records = {f"r{i}": text for i, text in enumerate(texts)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fasta, "CHUNK", chunk)
        genome = open_genome(write(folder / "x.fa", records), folder / "cache")
    assert genome.sizes == {name: len(text) for name, text in records.items()}
    assert list(genome.names) == list(records)
    for name, text in records.items():
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, len(text)))
        for soft_mask in (False, True):
            assert genome.fetch(name, start, end, soft_mask).tolist() == ids(text[start:end], soft_mask)
        assert genome.soft(name, start, end).tolist() == [c in "acgt" for c in text[start:end]]
        assert genome.text(name, start, end).upper() == "".join("ACGTN"[i - 7] for i in ids(text[start:end]))
    length = data.draw(st.integers(1, min(map(len, texts))))
    which = data.draw(st.lists(st.integers(0, len(texts) - 1), max_size=12))
    starts = [data.draw(st.integers(0, len(texts[i]) - length)) for i in which]
    for soft_mask in (False, True):
        found = genome.rows(np.array(which, dtype=np.int64), starts, length, soft_mask)
        wanted = [ids(texts[i][at : at + length], soft_mask) for i, at in zip(which, starts, strict=True)]
        assert found.shape == (len(which), length) and found.tolist() == wanted
        begins = genome.offsets[which] + np.array(starts, dtype=np.int64)
        counted = genome.count_unknown(begins, begins + length, soft_mask)
        assert counted.tolist() == [row.count(11) for row in wanted]


def small(tmp_path: Path) -> tuple[Path, Genome]:
    path = write(tmp_path / "x.fa", {"chr1": "ACGTNNNNacgt" * 50, "chr2": "TTTT"})
    return path, open_genome(path, tmp_path / "cache")


def test_four_bases_a_byte(tmp_path):
    _, genome = small(tmp_path)
    folder = next((tmp_path / "cache" / "genomes").iterdir())
    assert genome.total == 604 and (folder / "bases.2bit").stat().st_size == 151
    assert (folder / "bases.2bit").read_bytes()[:3] == bytes([0b11100100, 0, 0b11100100])
    assert np.fromfile(folder / "unknown.runs", "<i8")[:4].tolist() == [4, 8, 16, 20]
    assert np.fromfile(folder / "soft.runs", "<i8")[:4].tolist() == [8, 12, 20, 24]
    assert not list(folder.glob(".*.*")), "no temporary file stays"


def test_it_is_packed_once(tmp_path, monkeypatch):
    path, _ = small(tmp_path)
    monkeypatch.setattr(store, "read_fasta", lambda *_: pytest.fail("packed again"))
    again = open_genome(path, tmp_path / "cache")
    path.rename(tmp_path / "other.fa")  # the content counts, not the name
    other = open_genome(tmp_path / "other.fa", tmp_path / "cache")
    assert again.key == other.key and other.fetch("chr2", 0, 4).tolist() == [10] * 4


@pytest.mark.parametrize("name", ["bases.2bit", "unknown.runs", "soft.runs", "index.json"])
@pytest.mark.parametrize("harm", ["cut", "flip", "gone"])
def test_damage_is_seen_and_mended(tmp_path, caplog, name, harm):
    path, genome = small(tmp_path)
    file = next((tmp_path / "cache" / "genomes").iterdir()) / name
    wanted, content = genome.fetch("chr1", 0, 600).tolist(), bytearray(file.read_bytes())
    del genome
    if harm == "gone":
        file.unlink()
    else:
        content[len(content) // 2] ^= 0xFF
        file.write_bytes(bytes(content[:-8] if harm == "cut" else content))
    with caplog.at_level(logging.WARNING):
        found = open_genome(path, tmp_path / "cache")
    assert found.fetch("chr1", 0, 600).tolist() == wanted
    assert ("was damaged and is made again" in caplog.text) == (name != "index.json" or harm != "gone")


def test_what_a_killed_process_left(tmp_path):
    path, _ = small(tmp_path)
    folder = next((tmp_path / "cache" / "genomes").iterdir())
    (folder / "index.json").unlink()
    (folder / ".bases.2bit.0123").write_bytes(b"half")
    assert open_genome(path, tmp_path / "cache").total == 604
    assert not (folder / ".bases.2bit.0123").exists()


def test_a_broken_file_leaves_nothing(tmp_path):
    (tmp_path / "x.fa").write_text(">a\nACGT\n>b\nACGE\n")
    with pytest.raises(UserError, match="looks like protein"):
        open_genome(tmp_path / "x.fa", tmp_path / "cache")
    folder = next((tmp_path / "cache" / "genomes").iterdir())
    assert [path.name for path in folder.iterdir() if path.name != ".lock"] == []


def _open(path: str, cache: str, queue: multiprocessing.Queue) -> None:
    queue.put(open_genome(path, cache).fetch("a", 0, 1000).tolist())


def test_many_processes_at_once(tmp_path):
    text = "".join(np.random.default_rng(0).choice(list("ACGTn"), 200_000))
    path = write(tmp_path / "x.fa", {"a": text}, 60)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    workers = [context.Process(target=_open, args=(path, tmp_path / "cache", queue)) for _ in range(4)]
    for worker in workers:
        worker.start()
    found = [queue.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    assert found == [ids(text[:1000])] * 4


def test_several_files(tmp_path):
    one, two = write(tmp_path / "1.fa", {"a": "ACGTA"}), write(tmp_path / "2.fa", {"b": "NNTTn"})
    told: list[tuple[int, int]] = []
    genome = open_genome([one, two], tmp_path / "cache", lambda done, size: told.append((done, size)))
    assert genome.sizes == {"a": 5, "b": 5}
    assert genome.fetch("b", 1, 5).tolist() == ids("NTTn")
    size = one.stat().st_size + two.stat().st_size
    assert told == sorted(told) and told[-1] == (size, size)
    with pytest.raises(UserError, match=r"record 'a' is in .*1\.fa and in .*3\.fa"):
        open_genome([one, write(tmp_path / "3.fa", {"a": "A"})], tmp_path / "cache")


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (("chr3", 0, 3), r"no record 'chr3' \(did you mean 'chr"),
        (("chr2", 2, 5), r"chr2:2-5 is not inside the record, which has 4 bases"),
        (("chr2", -1, 2), r"chr2:-1-2 is not inside"),
        (("chr2", 3, 2), r"chr2:3-2 is not inside"),
    ],
)
def test_places_that_are_not_there(tmp_path, place, message):
    _, genome = small(tmp_path)
    with pytest.raises(UserError, match=message):
        genome.fetch(*place)


@pytest.mark.parametrize(
    ("names", "asked", "record"),
    [
        (("chr1", "chr10", "chrM"), "1", "chr1"),
        (("chr1", "chr10", "chrM"), "MT", "chrM"),
        (("chr1", "chr10", "chrM"), "chrMT", "chrM"),
        (("1", "10", "MT"), "chr10", "10"),
        (("1", "10", "MT"), "Chr1", "1"),
        (("1", "10", "MT"), "chrM", "MT"),
        (("1", "chr1"), "1", "1"),  # an exact name is always meant
    ],
)
def test_chromosomes_are_named_with_and_without_chr(names, asked, record):
    assert record_name(asked, names) == record


def test_a_name_that_could_be_two_records_is_refused():
    with pytest.raises(UserError, match=r"'M' could be any of the genome's records chrM, MT; write one of these names"):
        record_name("M", ("chrM", "MT", "chr1"))
    with pytest.raises(UserError, match="no record 'chr3'"):
        record_name("chr3", ("1", "2"))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"file .*gone\.fa does not exist"):
        open_genome(tmp_path / "gone.fa", tmp_path)


def test_large_files_are_checked_by_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "SAMPLES", 4)
    monkeypatch.setattr(store, "SAMPLE", 10)
    path = tmp_path / "x"
    path.write_bytes(bytes(range(200)))
    before = store._checksum(path)
    for place in (0, 9, 70, 130, 199):  # pieces begin at 0, 63, 126, 190
        changed = bytearray(range(200))
        changed[place] ^= 1
        path.write_bytes(bytes(changed))
        assert store._checksum(path) != before


@pytest.mark.skipif(not DNA.is_dir(), reason="the shared data are not on this machine")
def test_human_x(tmp_path):
    """README of the data: 70 Mb, 66.2 million of them ACGT."""
    path = DNA / "human_chrX_70Mb.fa.gz"
    genome = open_genome(path, tmp_path)
    with gzip.open(path) as file:
        text = file.read().split(b"\n", 1)[1].replace(b"\n", b"")
    (name,) = genome.names
    assert genome.sizes[name] == len(text) == 69_999_930
    unknown = int(genome.count_unknown(np.array([0]), np.array([len(text)]))[0])
    assert unknown == len(text) - sum(text.upper().count(base) for base in (b"A", b"C", b"G", b"T"))
    assert round((len(text) - unknown) / 1e6, 1) == 66.2
    starts = np.random.default_rng(0).integers(0, len(text) - 1024, 300)
    wanted = [ids(text[at : at + 1024].decode()) for at in starts]
    assert genome.rows(0, starts, 1024).tolist() == wanted
