"""The tasks on DNA: Genomic Benchmarks as the paper counts them (section 5.2, appendix D.7), and GUE of DNABERT-2.

Counts are those of the official interval files. Genomic Benchmarks have no validation split: a tenth of the training
split is drawn by the seed of a run. Ids of classes follow the sorted names of the class folders. The package takes them
in the order in which a file system lists folders, and so do tables made with it: 0 is a promoter in the published table
of human_ensembl_regulatory (its sequences are those of the promoters' intervals). GUE comes with train, dev and test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..records import Hub
from .definition import Columns, Task

SEQ, SEQUENCE = Columns("seq", None, "label"), Columns("sequence", None, "label")


@dataclass(frozen=True)
class Reference:
    """A genome that intervals are of: how its file may be called, and lengths that tell it from other assemblies."""

    title: str
    words: tuple[str, ...]  # in the name of its file, lower case
    sizes: Mapping[str, int]  # names without "chr"


REFERENCES = {
    "human": Reference(
        "the human genome GRCh38",
        ("homo_sapiens.grch38.dna", "hg38", "grch38"),
        {"1": 248_956_422, "2": 242_193_529, "21": 46_709_983, "22": 50_818_468, "X": 156_040_895},
    ),
    "human-cdna": Reference("the human transcripts of GRCh38", ("cdna",), {}),
    "mouse": Reference(
        "the mouse genome GRCm38",
        ("mus_musculus", "mm10", "grcm38"),
        {"1": 195_471_971, "2": 182_113_224, "19": 61_431_566, "X": 171_031_299},
    ),
    "worm": Reference(
        "the worm genome WBcel235",
        ("caenorhabditis_elegans", "ce11", "wbcel235", "worm"),
        {"I": 15_072_434, "II": 15_279_421, "V": 20_924_180, "X": 17_718_942},
    ),
}


def _benchmark(
    name: str,
    title: str,
    about: str,
    train: int,
    test: int,
    length: int,
    short: str,
    labels: tuple[str, ...] = ("negative", "positive"),
    references: Mapping[str, str] | None = None,
    numbered: tuple[str, ...] = (),
) -> Task:
    """What all Genomic Benchmarks have in common."""
    return Task(
        name=f"genomics/{name}",
        title=title,
        about=about,
        labels=labels,
        metric="accuracy",
        also=("matthews",),
        columns=SEQ,
        hub=Hub(f"katarinagresova/Genomic_Benchmarks_{name}"),
        splits=("train", "test"),
        folders=(name,),
        rows={"train": train, "test": test},
        sequences=True,
        length=length,
        tested="test",
        references=references or dict.fromkeys(labels, "human"),
        numbered=numbered,
        short=tuple(short.split()),
    )


GENOMICS: tuple[Task, ...] = (
    _benchmark(
        "dummy_mouse_enhancers_ensembl",
        "Mouse Enhancers",
        "is it an enhancer? (mouse)",
        968,
        242,
        1024,
        "mouse_enhancers mouse_enhancers_ensembl dummy_mouse_enhancers",
        references={"negative": "mouse", "positive": "mouse"},
    ),
    _benchmark(
        "demo_coding_vs_intergenomic_seqs",
        "Coding vs. Intergenomic",
        "does it code for a protein?",
        75_000,
        25_000,
        200,
        "coding_vs_intergenomic coding coding_vs_intergenomic_seqs",
        labels=("coding_seqs", "intergenomic_seqs"),
        references={"coding_seqs": "human-cdna", "intergenomic_seqs": "human"},
    ),
    _benchmark(
        "demo_human_or_worm",
        "Human vs. Worm",
        "is it of a human or of a worm?",
        75_000,
        25_000,
        200,
        "human_or_worm human_vs_worm worm",
        labels=("human", "worm"),
        references={"human": "human", "worm": "worm"},
    ),
    _benchmark(
        "human_enhancers_cohn",
        "Human Enhancers Cohn",
        "is it an enhancer? (Cohn et al.)",
        20_843,
        6_948,
        500,
        "cohn enhancers_cohn",
    ),
    _benchmark(
        "human_enhancers_ensembl",
        "Human Enhancer Ensembl",
        "is it an enhancer? (Ensembl)",
        123_872,
        30_970,
        512,
        "enhancers_ensembl human_enhancer_ensembl",
    ),
    _benchmark(
        "human_ensembl_regulatory",
        "Human Regulatory",
        "is it an enhancer, open chromatin or a promoter?",
        231_348,
        57_713,
        512,
        "regulatory human_regulatory ensembl_regulatory",
        labels=("enhancer", "ocr", "promoter"),
        numbered=("promoter", "enhancer", "ocr"),
    ),
    _benchmark(
        "human_ocr_ensembl",
        "Human OCR Ensembl",
        "is it a region of open chromatin?",
        139_804,
        34_952,
        512,
        "ocr ocr_ensembl human_ocr",
    ),
    _benchmark(
        "human_nontata_promoters",
        "Human NonTATA Promoters",
        "is it a promoter without a TATA box?",
        27_097,
        9_034,
        251,
        "nontata nontata_promoters promoters",
    ),
)


def _gue(
    name: str, about: str, length: int, *, hub: str = "", folder: str = "", rows: str = "", labels: int = 2
) -> Task:
    """A task of GUE; `rows` (train, dev, test) where the files were counted."""
    names = ("negative", "positive") if labels == 2 else tuple(map(str, range(labels)))
    counts = [int(part) for part in rows.split()]
    return Task(
        name=f"gue/{name}",
        title=f"GUE {name}",
        about=about,
        labels=names,
        metric="matthews",
        also=("accuracy",),
        columns=SEQUENCE,
        hub=Hub("leannmlindsey/GUE", hub or name),
        splits=("train", "dev", "test"),
        folders=tuple(dict.fromkeys([name, hub or name, name.replace("_", ""), folder or f"prom/{name}"])),
        rows=dict(zip(("train", "dev", "test"), counts, strict=False)),
        sequences=True,
        length=length,
        tested="test",
    )


MARKS = ("H3", "H3K14ac", "H3K36me3", "H3K4me1", "H3K4me2", "H3K4me3", "H3K79me3", "H3K9ac", "H4", "H4ac")
CORE = "is it the core of a promoter? ({}; 70 bases)"
PROMOTER = "is it a promoter? ({}; 300 bases)"
FACTOR = "does transcription factor {} of five bind here? ({})"
TF_ROWS = {0: "32378 1000 1000", 1: "30672 1000 1000", 2: "19000 1000 1000", 3: "27294 1000 1000"}
MOUSE_ROWS = {2: "2620 328 328", 3: "1904 239 239", 4: "15064 1883 1883"}

GUE: tuple[Task, ...] = (
    _gue("prom_core_all", CORE.format("all"), 70, rows="47356 5920 5920"),
    _gue("prom_core_notata", CORE.format("without a TATA box"), 70, rows="42452 5307 5307"),
    _gue("prom_core_tata", CORE.format("with a TATA box"), 70, rows="4904 613 613"),
    _gue("prom_300_all", PROMOTER.format("all"), 300),
    _gue("prom_300_notata", PROMOTER.format("without a TATA box"), 300),
    _gue("prom_300_tata", PROMOTER.format("with a TATA box"), 300, rows="4904 613 613"),
    *(
        _gue(f"tf_{i}", FACTOR.format(i, "human"), 101, hub=f"human_tf_{i}", folder=f"tf/{i}", rows=TF_ROWS.get(i, ""))
        for i in range(5)
    ),
    *(
        _gue(f"mouse_{i}", FACTOR.format(i, "mouse"), 101, folder=f"mouse/{i}", rows=MOUSE_ROWS.get(i, ""))
        for i in range(5)
    ),
    *(
        _gue(f"emp_{mark}", f"does the histone mark {mark} stand here? (yeast)", 500, folder=f"EMP/{mark}")
        for mark in MARKS
    ),
    _gue(
        "splice_reconstructed", "a splice donor, an acceptor, or neither?", 400, folder="splice/reconstructed", labels=3
    ),
    _gue("virus_covid", "which of nine variants of the virus?", 1000, folder="virus/covid", labels=9),
)


def genomics() -> tuple[Task, ...]:
    """The eight tasks in the order of the paper's table."""
    return GENOMICS


def gue() -> tuple[Task, ...]:
    """The tasks of GUE."""
    return GUE
