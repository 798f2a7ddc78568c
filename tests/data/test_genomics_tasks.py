"""Tasks on DNA: records against the official files, every layout, intervals against slices, splits, what is wrong."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from support.paths import DATA
from unmask import UserError
from unmask.config import TaskConfig
from unmask.data import tasks
from unmask.data.genome.bases import dna_tokenizer
from unmask.data.tasks.loading import draw

BENCHMARKS, GUE = DATA / "genomic_benchmarks", DATA / "gue"
shared = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="the genomic benchmarks are not on this machine")
MOUSE = "genomics/dummy_mouse_enhancers_ensembl"
OPPOSITE = dict(zip("ACGTN", "TGCAN", strict=True))


@pytest.fixture(autouse=True)
def _nowhere_else(monkeypatch, tmp_path):
    monkeypatch.delenv("UNMASK_DATA", raising=False)
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))


def plain(name: str, split: str, local: Path, genome: Path | None = None) -> list[tuple[str, int]]:
    found = tasks.load(tasks.task(name), split, str(local), None if genome is None else str(genome)).examples
    assert [one.index for one in found] == list(range(len(found)))
    return [(one.first, one.label) for one in found]


def refused(name: str, split: str, local: Path | str, genome: str | None = None) -> str:
    with pytest.raises(UserError) as error:
        tasks.load(tasks.task(name), split, str(local), genome)
    assert "\n" not in str(error.value)
    return str(error.value)


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


# ---- records


def test_the_eight_tasks_of_the_paper():
    """Titles as in tab:genomic_benchmarks, counts and lengths of the official files."""
    want = {
        "Mouse Enhancers": ("dummy_mouse_enhancers_ensembl", 968, 242, 1024, 2),
        "Coding vs. Intergenomic": ("demo_coding_vs_intergenomic_seqs", 75_000, 25_000, 200, 2),
        "Human vs. Worm": ("demo_human_or_worm", 75_000, 25_000, 200, 2),
        "Human Enhancers Cohn": ("human_enhancers_cohn", 20_843, 6_948, 500, 2),
        "Human Enhancer Ensembl": ("human_enhancers_ensembl", 123_872, 30_970, 512, 2),
        "Human Regulatory": ("human_ensembl_regulatory", 231_348, 57_713, 512, 3),
        "Human OCR Ensembl": ("human_ocr_ensembl", 139_804, 34_952, 512, 2),
        "Human NonTATA Promoters": ("human_nontata_promoters", 27_097, 9_034, 251, 2),
    }
    found = {
        one.title: (one.folders[0], one.rows["train"], one.rows["test"], one.length, one.n_outputs)
        for one in tasks.genomics()
    }
    assert found == want and list(found) == list(want)
    assert all(one.metric == "accuracy" and one.name == f"genomics/{one.folders[0]}" for one in tasks.genomics())


def test_all_records_agree_with_themselves():
    for one in (*tasks.genomics(), *tasks.gue()):
        assert one.sequences and one.tested == "test" and set(one.metrics) == {"accuracy", "matthews"}
        assert set(one.rows) <= set(one.splits) and set(one.references) <= set(one.labels)
        assert not one.numbered or sorted(one.numbered) == sorted(one.labels)
        assert list(one.labels) == sorted(one.labels) and one.length is not None
    assert len(tasks.gue()) == 28 and all(one.metric == "matthews" for one in tasks.gue())


@shared
@pytest.mark.parametrize("task", tasks.genomics(), ids=lambda one: one.folders[0])
def test_counts_and_classes_are_those_of_the_official_intervals(task):
    for split, rows in task.rows.items():
        files = sorted((BENCHMARKS / "intervals" / task.folders[0] / split).glob("*.csv.gz"))
        assert [path.name.partition(".")[0] for path in files] == list(task.labels)
        assert sum(gzip.decompress(path.read_bytes()).count(b"\n") - 1 for path in files) == rows


@shared
def test_the_official_test_sequences():
    for name, classes in (
        ("human_enhancers_cohn", {"negative": 3474, "positive": 3474}),
        ("human_nontata_promoters", {"negative": 4119, "positive": 4915}),
    ):
        for place in (BENCHMARKS, BENCHMARKS / "sequences"):
            facts = tasks.load(tasks.task(f"genomics/{name}"), "test", str(place)).facts
            assert facts["classes"] == classes and facts["rule"] == "the official split"
    said = refused("genomics/human_enhancers_cohn", "train", BENCHMARKS / "sequences")
    assert "has nothing of the split 'train'" in said and "task.split=random" in said
    assert "their genome is missing" in refused("genomics/human_enhancers_cohn", "train", BENCHMARKS)


@shared
def test_published_tables_number_classes_in_another_order():
    """Sequences that are in two files, once with a name and once with a number, have the same class."""
    for name, most in (("human_ensembl_regulatory", 8), ("human_enhancers_cohn", 90), ("human_nontata_promoters", 60)):
        task, split = tasks.task(f"genomics/{name}"), "train" if "regulatory" in name else "test"
        numbered = dict(plain(task.name, split, BENCHMARKS / "sequences"))
        named = [pair for part in ("train", "test") for pair in plain(task.name, part, BENCHMARKS / "chrX_subset")]
        both = [(numbered[text], label) for text, label in named if text in numbered]
        assert len(both) > most and all(a == b for a, b in both)


@pytest.mark.skipif(not GUE.is_dir(), reason="the tasks of GUE are not on this machine")
def test_gue_is_complete_where_it_is_at_hand(monkeypatch):
    monkeypatch.setenv("UNMASK_DATA", str(DATA))
    here = [one for one in tasks.gue() if (GUE / one.folders[0]).is_dir()]
    assert len(here) == 11 and {one.name for one in here} == {one.name for one in tasks.gue() if one.rows}
    for one in here:
        for split in ("dev", "test"):
            loaded = tasks.load(one, split)
            assert loaded.facts["rule"] == "the official split" and loaded.facts["source"][0].endswith(
                f"{split}.csv.gz"
            )
            assert max(len(example.first) for example in loaded.examples) == one.length


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("human_enhancers_cohn", r"did you mean 'genomics/human_enhancers_cohn'\?"),
        ("genomics/cohn", r"did you mean 'genomics/human_enhancers_cohn'\?\); the tasks are genomics/dummy_mouse"),
        ("genomics/mouse_enhancers", r"did you mean 'genomics/dummy_mouse_enhancers_ensembl'\?"),
        ("Human vs. Worm", r"did you mean 'genomics/demo_human_or_worm'\?"),
        ("gue/tf_7", r"did you mean 'gue/tf_\d'\?\); the tasks are gue/prom_core_all"),
        ("prom_core_all", r"did you mean 'gue/prom_core_all'\?"),
        ("genomics/drosophila_enhancers_stark", r"the paper leaves drosophila_enhancers_stark out"),
    ],
)
def test_names_that_people_use(typed, said):
    with pytest.raises(UserError, match=said):
        tasks.task(typed)


# ---- one sequence a file, and tables


def test_one_sequence_a_file(tmp_path):
    """As the package downloads it; ids by sorted class names."""
    for name, text in {"positive/7.txt": "acgt", "negative/b.txt": "TTNRN\n", "negative/a.txt": "GGuu"}.items():
        put(tmp_path / f"dummy_mouse_enhancers_ensembl/train/{name}", text)
    want = [("GGTT", 0), ("TTNNN", 0), ("ACGT", 1)]
    assert plain(MOUSE, "train", tmp_path) == plain(MOUSE, "train", tmp_path / "dummy_mouse_enhancers_ensembl") == want
    facts = tasks.load(tasks.task(MOUSE), "train", str(tmp_path)).facts
    assert facts["rule"] == "the rows that are there: 3, where the official split has 968"
    assert facts["read"] == "one sequence a file" and json.loads(json.dumps(facts)) == facts


def test_folders_that_are_wrong(tmp_path):
    place = tmp_path / "dummy_mouse_enhancers_ensembl"
    put(place / "train/positive/1.txt", "ACGT")
    assert "train has no class 'negative'; genomics/dummy" in refused(MOUSE, "train", tmp_path)
    put(place / "train/enhancer/1.txt", "ACGT")
    put(place / "train/negative/1.txt", "ACGT")
    assert "has an unknown class 'enhancer'" in refused(MOUSE, "train", tmp_path)
    put(place / "test/positive/1.txt", "ACGT")
    (place / "test/negative").mkdir()
    assert "negative has no .txt files" in refused(MOUSE, "test", tmp_path)
    assert "does not exist" in refused(MOUSE, "test", tmp_path / "none")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("tf_0/train.csv", "sequence,label\nACGT,1\nttt,0\n"),
        ("tf_0/train.csv.gz", "sequence,label\r\nACGT,1\r\nttt,0\r\n"),
        ("human_tf_0/train.tsv", "seq\tlabel\nACGT\tpositive\nttt\tnegative\n"),
        ("tf/0/train.jsonl", '{"sequence": "ACGT", "label": 1}\n{"sequence": "ttt", "label": 0}\n'),
        ("tf_0.train_part.tsv.gz", "label\tseq\n1\tACGT\n0\tttt\n"),
        ("tf_0.csv", "label,seq,split\n1,ACGT,train\n0,GG,test\n0,ttt,train\n"),
    ],
)
def test_tables(tmp_path, file, text):
    put(tmp_path / file, text)
    put(tmp_path / "tf_1/train.csv", "sequence,label\nA,1\n")  # of another task
    assert plain("gue/tf_0", "train", tmp_path) == [("ACGT", 1), ("TTT", 0)]
    assert "has nothing of the split 'dev'" in refused("gue/tf_0", "dev", tmp_path)


def test_numbers_of_the_regulatory_set_are_not_those_of_sorted_names(tmp_path):
    put(tmp_path / "human_ensembl_regulatory.train.tsv", "seq\tlabel\nA\t0\nC\t1\nG\t2\nT\tocr\n")
    found = plain("genomics/human_ensembl_regulatory", "train", tmp_path)
    labels = tasks.task("genomics/human_ensembl_regulatory").labels
    assert [labels[label] for _, label in found] == ["promoter", "enhancer", "ocr", "ocr"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sequence,label\nACGT,1\nACXT,0\n", r"line 3 of .* has the letter 'X' at base 3, which is not a base"),
        ("sequence,label\nACGT,1\n,0\n", r"line 3 of .* has no bases; leave it out"),
        ("sequence,label\nACGT,2\n", r"line 2 of .* has the label '2'.* allows 0 \(negative\), 1 \(positive\)"),
        ("sequence,label\nACGT,\n", r"line 2 of .* has no label"),
        ("sequence\nACGT\n", r"has no column"),
        ("sequence,label\n", r"has no rows for the split 'test'"),
        ("sequence,label\nA,1,1\n", r"has 3 cells for 2 columns"),
    ],
)
def test_tables_that_are_wrong(tmp_path, text, said):
    put(tmp_path / "tf_0/test.csv", text)
    with pytest.raises(UserError, match=said):
        tasks.load(tasks.task("gue/tf_0"), "test", str(tmp_path))


def test_more_that_is_wrong(tmp_path):
    put(tmp_path / "tf_0.csv", "seq,label,split\nA,1,training\n")
    assert "has the split 'training'; write train, dev or test" in refused("gue/tf_0", "train", tmp_path)
    whole = gzip.compress(b"sequence,label\n" + b"ACGT,1\n" * 5000)
    (tmp_path / "tf_0.csv").unlink()
    (tmp_path / "tf_0.train.csv.gz").write_bytes(whole[: len(whole) // 2])
    assert "is cut short or damaged" in refused("gue/tf_0", "train", tmp_path)
    for text, said in (("ACGU-", "'-' at base 5"), ("MKLV", "'L' at base 3"), (" \n", "has no bases")):
        with pytest.raises(UserError, match=said):
            tasks.clean(text, "example 3")


# ---- intervals


def genome(path: Path, seed: int = 0, **sizes: int) -> dict[str, str]:
    """A FASTA with lines of different lengths, and its sequences."""
    rng = np.random.default_rng(seed)
    texts = {name: "".join(rng.choice(list("ACGTacgtN"), size)) for name, size in sizes.items()}
    put(path, "".join(f">{name} about it\n{text[:50]}\n{text[50:]}\n" for name, text in texts.items()))
    return {name: text.upper() for name, text in texts.items()}


HEADER = "id,region,start,end,strand\n"


@pytest.mark.parametrize("named", [False, True])
def test_intervals_are_slices(tmp_path, named):
    """Of chromosomes with and without "chr", on both strands; an empty strand is +."""
    place = tmp_path / "all/dummy_mouse_enhancers_ensembl"
    texts = genome(tmp_path / ("else/genome.fa" if named else "all/genome.fa.gz"), **{"chr7": 400, "8": 300})
    rng, want, lines = np.random.default_rng(1), {}, {}
    for kind in ("negative", "positive"):
        lines[kind], want[kind] = HEADER, []
        for i in range(20):
            region, name = [("chr7", "chr7"), ("7", "chr7"), ("chr8", "8"), ("8", "8")][i % 4]
            start = int(rng.integers(0, 250))
            end, strand = start + int(rng.integers(1, 50)), ["+", "-", ""][i % 3]
            lines[kind] += f"{i},{region},{start},{end},{strand}\n"
            piece = texts[name][start:end]
            want[kind].append("".join(OPPOSITE[base] for base in reversed(piece)) if strand == "-" else piece)
        put(place / f"test/{kind}.csv.gz", lines[kind])
    found = plain(MOUSE, "test", tmp_path / "all", tmp_path / "else/genome.fa" if named else None)
    assert found == [(text, i) for i, kind in enumerate(("negative", "positive")) for text in want[kind]]
    assert refused(MOUSE, "train", tmp_path / "all").startswith(f"{tmp_path / 'all'} has nothing of the split 'train'")


def test_each_class_has_its_genome(tmp_path):
    """Chromosome X of two species, told apart by the names of the files; transcripts by their number."""
    human = genome(tmp_path / "Homo_sapiens.GRCh38.dna.fa", 1, **{"7": 90})
    worm = genome(tmp_path / "Caenorhabditis_elegans.WBcel235.fa", 2, **{"7": 90})
    cdna = genome(tmp_path / "Homo_sapiens.GRCh38.cdna.all.fa", 3, **{"ENST01.4": 80})
    put(tmp_path / "demo_human_or_worm/train/human.csv", HEADER + "0,chr7,5,25,+\n")
    put(tmp_path / "demo_human_or_worm/train/worm.csv", HEADER + "0,7,5,25,+\n")
    assert plain("genomics/demo_human_or_worm", "train", tmp_path) == [(human["7"][5:25], 0), (worm["7"][5:25], 1)]
    put(tmp_path / "demo_coding_vs_intergenomic_seqs/train/coding_seqs.csv", HEADER + "0,ENST01,0,9,+\n")
    put(tmp_path / "demo_coding_vs_intergenomic_seqs/train/intergenomic_seqs.csv", HEADER + "0,chr7,1,9,+\n")
    found = plain("genomics/demo_coding_vs_intergenomic_seqs", "train", tmp_path)
    assert found == [(cdna["ENST01.4"][:9], 0), (human["7"][1:9], 1)]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("0,chr7,90,101,+", r"line 3 of .*negative.csv ends at 101, and chr7 of .*g.fa has 100 bases; .* GRCm38"),
        ("0,chr9,1,9,+", r"line 3 of .*negative.csv is on chr9, which .*g.fa does not have"),
        ("0,chr1,1,9,+", r"chr1 of .* has 50 bases, but 195,471,971 in the mouse genome GRCm38.*another assembly"),
        ("0,chr7,9,9,+", r"line 3 of .* has no interval: start '9', end '9'"),
        ("0,chr7,x,9,+", r"line 3 of .* has no interval"),
        ("0,chr7,1,9,?", r"line 3 of .* has the strand '\?'; write \+ or -"),
        ("0,chr7,1,9", r"line 3 of .* has 4 cells for 5 columns"),
    ],
)
def test_intervals_that_are_wrong(tmp_path, line, said):
    genome(tmp_path / "g.fa", chr7=100, chr1=50)
    put(tmp_path / "dummy_mouse_enhancers_ensembl/test/negative.csv", HEADER + f"0,chr7,0,9,+\n{line}\n")
    put(tmp_path / "dummy_mouse_enhancers_ensembl/test/positive.csv", HEADER + "0,chr7,0,9,+\n")
    with pytest.raises(UserError, match=said):
        tasks.load(tasks.task(MOUSE), "test", str(tmp_path))


def test_genomes_that_are_wrong(tmp_path):
    place = tmp_path / "dummy_mouse_enhancers_ensembl/test"
    put(place / "negative.csv", "id,region,start,end\n0,chr7,0,9\n")
    put(place / "positive.csv", HEADER + "0,chr7,0,9,+\n")
    with pytest.raises(tasks.MissingTaskData, match="put the FASTA of the mouse genome GRCm38 beside them"):
        tasks.load(tasks.task(MOUSE), "test", str(tmp_path))
    assert "task.genome=nowhere.fa does not exist" in refused(MOUSE, "test", tmp_path, "nowhere.fa")
    genome(tmp_path / "a.fa", chr7=100)
    assert "has no column 'strand'" in refused(MOUSE, "test", tmp_path)
    genome(tmp_path / "b.fa", chr7=100)
    assert "it is not clear which is the mouse genome" in refused(MOUSE, "test", tmp_path)
    genome(tmp_path / "mm10.fa", chr7=100)
    assert "has no column 'strand'" in refused(MOUSE, "test", tmp_path), "the one with its name is taken"


@shared
def test_the_wrong_assembly_is_seen():
    """The pieces of GRCh37 at hand are not the genome that the intervals are of."""
    said = refused(
        "genomics/human_ocr_ensembl", "test", BENCHMARKS / "intervals", str(DATA / "dna/human_chrX_70Mb.fa.gz")
    )
    assert "line" in said and "GRCh38" in said


# ---- splits


def table(path: Path, n: int, name: str = "human_enhancers_cohn.test.tsv") -> list[str]:
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("ACGT"), 30)) for _ in range(n)]
    put(path / name, "seq\tlabel\n" + "".join(f"{text}\t{i % 2}\n" for i, text in enumerate(texts)))
    return texts


def texts_of(loaded) -> list[str]:
    return [one.first for one in loaded.examples]


def test_validation_is_a_tenth_of_training_drawn_by_the_seed(tmp_path):
    all_, test = (table(tmp_path, n, f"human_enhancers_cohn.{name}.tsv") for n, name in ((205, "train"), (20, "test")))
    task, spec, devs = tasks.task("genomics/human_enhancers_cohn"), TaskConfig(local=str(tmp_path)), []
    for seed in (1, 2, 3):
        found = tasks.splits(task, spec, seed)
        train, dev = texts_of(found["train"]), texts_of(found["dev"])
        assert len(dev) == 20 and sorted(train + dev) == sorted(all_) and texts_of(found["test"]) == test
        assert not set(train) & set(dev)
        assert found["dev"].facts["rule"] == f"20 of the 205 training examples, drawn by seed {seed}"
        assert texts_of(tasks.splits(task, spec, seed)["dev"]) == dev, "the same every time"
        devs.append(dev)
    assert (
        devs[0] != devs[1] != devs[2] and 0 < len(set(devs[0]) & set(devs[1])) + len(set(devs[1]) & set(devs[2])) < 20
    )
    assert [one.index for one in found["train"].examples] == list(range(185))


def test_splits_of_what_is_at_hand(tmp_path):
    all_ = table(tmp_path, 100)
    task = tasks.task("genomics/human_enhancers_cohn")
    spec = TaskConfig(local=str(tmp_path), split="random")
    one, two = tasks.splits(task, spec, 1), tasks.splits(task, spec, 2)
    assert [len(one[split].examples) for split in ("train", "dev", "test")] == [72, 8, 20]
    assert sorted(text for part in one.values() for text in texts_of(part)) == sorted(all_)
    assert texts_of(one["test"]) == texts_of(two["test"]) and texts_of(one["dev"]) != texts_of(two["dev"])
    assert all(one[split].facts["rule"].startswith("not official: ") for split in ("train", "test"))
    with pytest.raises(UserError, match=r"task.split=random is for tasks on sequences"):
        tasks.splits(tasks.task("glue/rte"), spec, 1)
    put(tmp_path / "mouse_enhancers.csv", "")
    with pytest.raises(UserError, match=r"has nothing of the split 'train'"):
        tasks.splits(tasks.task(MOUSE), spec, 1)


def test_a_table_without_splits_can_only_be_split(tmp_path):
    texts = table(tmp_path, 40, "human_enhancers_cohn.tsv")
    assert "has nothing of the split" in refused("genomics/human_enhancers_cohn", "test", tmp_path)
    spec = TaskConfig(local=str(tmp_path), split="random")
    found = tasks.splits(tasks.task("genomics/human_enhancers_cohn"), spec, 0)
    assert Counter(text for part in found.values() for text in texts_of(part)) == Counter(texts)


@shared
def test_random_splits_of_the_real_sequences():
    spec = TaskConfig(local=str(BENCHMARKS), split="random")
    found = tasks.splits(tasks.task("genomics/human_nontata_promoters"), spec, 1)
    assert {split: len(part.examples) for split, part in found.items()} == {"train": 6504, "test": 1807, "dev": 723}


@pytest.mark.parametrize(("total", "share", "n"), [(10, 0.1, 1), (2, 0.1, 1), (2, 0.9, 1), (20_843, 0.1, 2084)])
def test_draws(total, share, n):
    from unmask.process.keys import Keys

    rest, drawn = draw(total, share, Keys(3), "a")
    assert len(drawn) == n and sorted([*rest, *drawn]) == list(range(total))
    assert not np.array_equal(drawn, draw(total, share, Keys(4), "a")[1]) or total < 11


# ---- tokens


def examples(*texts: str) -> list[tasks.Example]:
    return [tasks.Example(text, None, i % 2, i) for i, text in enumerate(texts)]


def test_bases_stand_alone_and_are_cut():
    tokenizer = dna_tokenizer()
    found = tasks.encode_bases(examples("ACGTN", "GGGGGGG", "T"), tokenizer, 5)
    ids = [found.ids(row).tolist() for row in range(3)]
    assert ids == [[7, 8, 9, 10, 11], [9] * 5, [10]] and found.cut == 1
    assert ids[0] == tokenizer.encode("ACGTN"), "as the tokenizer has them, without [CLS] and [SEP]"
    batch = found.batch([0, 2], np.arange(2), 2)
    assert batch.tokens.tolist() == [[7, 8, 9, 10, 11], [10, 4, 4, 4, 4]]
    assert batch.present is not None and batch.present.sum(1).tolist() == [5, 1]


def test_the_other_strand_of_some_rows():
    rng = np.random.default_rng(5)
    texts = ["".join(rng.choice(list("ACGTN"), int(n))) for n in rng.integers(1, 20, 12)]
    tokenizer = dna_tokenizer()
    found = tasks.encode_bases(examples(*texts), tokenizer, 100)
    other = np.arange(12) % 3 == 0
    batch = found.batch(np.arange(12), np.arange(12), 12, other)
    assert batch.present is not None
    for i, text in enumerate(texts):
        want = "".join(OPPOSITE[base] for base in reversed(text)) if other[i] else text
        assert batch.tokens[i][batch.present[i]].tolist() == tokenizer.encode(want)
        assert (batch.tokens[i][~batch.present[i]] == 4).all()


def test_bases_need_a_model_of_bases():
    from unmask.data.tokenization import bytes_tokenizer

    with pytest.raises(UserError, match=r"data\.tokenizer=dna"):
        tasks.encode_bases(examples("ACGT"), bytes_tokenizer(), 5)
