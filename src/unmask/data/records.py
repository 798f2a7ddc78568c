"""The data sets of the paper, one record each: where they are, how they read, and the conventions they are used with.

Everything here is data; `corpora` opens what a record describes and `dataset_files` finds the same set on disk. The
names on the Hugging Face Hub load without code of the data set (`datasets` 4 and later run none): where the repository
itself is a script, the Parquet branch that the Hub makes of it is named. Conventions are settings of `data.*`, ready to
be given to `DataConfig` (appendix D.4 of the paper).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from types import MappingProxyType
from typing import Any

from ..errors import UserError, nearest

PARQUET = "refs/convert/parquet"  # the branch that the Hub makes of data sets with a loading script


@dataclass(frozen=True)
class Hub:
    """A place that `datasets.load_dataset` reads: a repository, or a format with the address of its files."""

    name: str
    subset: str | None = None
    revision: str | None = None
    files: Mapping[str, str] = dataclass_field(default_factory=dict)  # split -> files, where the place does not say


@dataclass(frozen=True)
class Files:
    """One form in which a set is distributed: how a file is read, and for each split the names of its files.

    Of several names for a split the first that exists is used. `read` names a reader of `dataset_files`.
    """

    read: str
    splits: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Record:
    """What is true of one named data set only."""

    name: str
    about: str  # one line
    hub: Hub | None = None
    field: str = "text"  # column of the text
    detokenizer: str = "none"
    plays: Mapping[str, str] = dataclass_field(default_factory=dict)  # a missing split -> the one that plays it
    held_out: int = 0  # of a set without splits: how many of its last rows are the valid split
    labels: tuple[str, ...] = ()  # the names of the classes 0, 1, ... in the column `label`
    splits: tuple[str, ...] = ("train", "valid", "test")  # of the public set, after `plays` and `held_out`
    folders: tuple[str, ...] = ()  # common names of its folder (or file), for data.local=ROOT
    layouts: tuple[Files, ...] = ()  # besides tables (.parquet, .jsonl, .csv, .arrow), which every set may come as
    settings: Mapping[str, Any] = dataclass_field(default_factory=lambda: ZERO_SHOT_SETTINGS)
    unread: str = ""  # what to do instead, for names that cannot be opened yet

    @property
    def conventions(self) -> dict[str, Any]:
        """The paper's settings for this set, as arguments of `DataConfig`."""
        return {"source": self.name, "detokenizer": "auto", **self.settings}

    @property
    def zero_shot(self) -> dict[str, Any]:
        """The paper's settings for evaluating another model on this set: wrapped to 1024, no EOS between documents.

        Meant to be merged into the config of that model. `tokenizer` and `block_ends` are not in it, for they stay as
        the model was trained (the paper's OWT models have ends); so does `local`, which depends on the machine.
        """
        defaults = {"subset": None, "field": "text", "label": None, "document": "auto", "attend_pads": False}
        defaults["learn_end"] = None
        wrap = {"layout": "wrap", "length": 1024, "eos_between": False}
        return {"source": self.name, "detokenizer": "auto", **defaults, **wrap}


def _named(pattern: str) -> dict[str, tuple[str, ...]]:
    """The same file name for every split, with {} for the name of the split."""
    words = {"train": ("train",), "valid": ("valid", "validation", "val"), "test": ("test",)}
    return {split: tuple(pattern.format(word) for word in spellings) for split, spellings in words.items()}


def _wikitext(size: str, about: str) -> Record:
    """The raw files are preferred: the others (.tokens) have <unk> for rare words."""

    def names(split: str, also: str) -> tuple[str, ...]:
        return (f"wiki.{split}.raw", f"raw_{also}.txt", f"wiki.{split}.tokens", f"{also}.txt")

    files = {"train": names("train", "train"), "valid": names("valid", "valid"), "test": names("test", "test")}
    return Record(
        f"wikitext{size}",
        about,
        Hub("Salesforce/wikitext", f"wikitext-{size}-raw-v1"),
        detokenizer="wikitext",
        folders=(
            f"wikitext{size}",
            f"wikitext-{size}-raw-v1",
            f"wikitext-{size}-raw",
            f"wikitext-{size}",
            f"wikitext/wikitext-{size}-raw-v1",
        ),
        layouts=(Files("lines", files),),
    )


def _papers(name: str, about: str) -> Record:
    files = {
        "train": (f"{name}_train.txt", "train.txt"),
        "valid": (f"{name}_val.txt", "val.txt"),
        "test": (f"{name}_test.txt", "test.txt"),
    }
    parquet = {split: f"{name}/{split}/*.parquet" for split in ("train", "validation", "test")}
    return Record(
        name,
        about,
        Hub("armanc/scientific_papers", revision=PARQUET, files=parquet),
        field="article",
        detokenizer="scientific",
        folders=(f"scientific_papers/{name}", "scientific_papers", f"{name}-dataset", name),
        layouts=(Files("articles", files),),
    )


ZERO_SHOT_SETTINGS: Mapping[str, Any] = MappingProxyType(
    {"tokenizer": "gpt2", "length": 1024, "layout": "wrap", "eos_between": False, "block_ends": True}
)
_SENTENCES = {"tokenizer": "bert-base-uncased", "length": 128, "layout": "pad", "block_ends": True, "learn_end": False}
_DNA = {"tokenizer": "dna", "layout": "wrap", "eos_between": False}
_SEQUENCES = "give data.source=FILE.txt with one sequence per line, data.document=line and data.tokenizer=dna"

_RECORDS = (
    Record("python-docs", "the language reference and docstrings that come with CPython", settings={}),
    Record(
        "lm1b",
        "One Billion Words: news, one sentence per row, in random order",
        Hub(
            "billion-word-benchmark/lm1b",
            revision=PARQUET,
            files={split: f"plain_text/{split}/*.parquet" for split in ("train", "test")},
        ),
        detokenizer="lm1b",
        plays={"valid": "test"},
        folders=("lm1b", "1-billion-word-language-modeling-benchmark-r13output"),
        layouts=(
            Files(
                "sentences",
                {"train": ("training-monolingual*/news.en-*",), "test": ("heldout-monolingual*/news.en.heldout-*",)},
            ),
            Files("sentences", _named("{}.txt")),
        ),
        settings={**_SENTENCES, "attend_pads": True},
    ),
    Record(
        "openwebtext",
        "OpenWebText: 8 million web pages; the last 100,000 are held out",
        Hub("Skylion007/openwebtext"),
        held_out=100_000,
        splits=("train", "valid"),
        folders=("openwebtext", "owt"),
        settings={
            "tokenizer": "gpt2",
            "length": 1024,
            "layout": "wrap",
            "eos_between": True,
            "block_ends": True,
            "valid_fraction": 0.0,
            "test_fraction": 0.0,
        },
    ),
    Record(
        "c4",
        "C4: cleaned web pages in English (300 GB; the paper's BERT)",
        Hub("allenai/c4", "en"),
        splits=("train", "valid"),
        folders=("c4/en", "c4"),
        layouts=(
            Files(
                "table",
                {
                    "train": ("c4-train.*.json.gz", "c4-train.*.json"),
                    "valid": ("c4-validation.*.json.gz", "c4-validation.*.json"),
                },
            ),
        ),
        settings=_SENTENCES,
    ),
    Record(
        "text8",
        "text8: 100 million characters of Wikipedia, a to z and space; 90 / 5 / 5 million",
        Hub("afmck/text8"),
        folders=("text8", "text8.zip"),
        layouts=(Files("characters", {"train": ("text8", "text8.zip")}), Files("document", _named("text8.{}.txt"))),
        settings={"tokenizer": "chars", "length": 256, "layout": "wrap", "eos_between": False, "block_ends": False},
    ),
    _wikitext("2", "WikiText-2: 600 articles of Wikipedia; valid and test are those of WikiText-103"),
    _wikitext("103", "WikiText-103: 28,000 articles of Wikipedia"),
    Record(
        "ptb",
        "Penn Treebank, Mikolov's version: lower case, <unk>, N for numbers; one sentence per row",
        Hub(
            "ptb-text-only/ptb_text_only",
            revision=PARQUET,
            files={split: f"penn_treebank/{split}/*.parquet" for split in ("train", "validation", "test")},
        ),
        field="sentence",
        detokenizer="ptb",
        folders=("ptb", "penn_treebank", "ptb_text_only"),
        layouts=(Files("sentences", _named("ptb.{}.txt")), Files("sentences", _named("{}.txt"))),
    ),
    Record(
        "lambada",
        "LAMBADA, OpenAI's version: passages of novels",
        Hub("EleutherAI/lambada_openai", "default"),
        detokenizer="lambada",
        plays={"valid": "test"},
        splits=("valid", "test"),
        folders=("lambada", "lambada_openai"),
    ),
    Record(
        "ag_news",
        "AG News: titles and first sentences of news, four classes",
        Hub("fancyzhang/ag_news"),
        detokenizer="scientific",
        plays={"valid": "test"},
        labels=("World", "Sports", "Business", "Sci/Tech"),
        folders=("ag_news", "ag_news_csv", "ag-news"),
        layouts=(Files("news", {"train": ("train.csv",), "test": ("test.csv",)}),),
    ),
    _papers("arxiv", "scientific papers: full articles of arXiv"),
    _papers("pubmed", "scientific papers: full articles of PubMed"),
    Record(
        "hg38",
        "the human reference genome GRCh38, in the intervals of Basenji (FASTA and BED, on disk only)",
        settings={**_DNA, "length": 1024},
    ),
    Record(
        "genomic_benchmarks",
        "Genomic Benchmarks: DNA sequences in two or three classes",
        splits=("train", "test"),
        settings=_DNA,
        unread=_SEQUENCES,
    ),
)

CORPORA: dict[str, Record] = {entry.name: entry for entry in _RECORDS}
ALIASES = {"owt": "openwebtext", "wikitext-2": "wikitext2", "wikitext-103": "wikitext103"}

# Title, record and split of the paper's seven sets. WikiText-2 and -103 have the same valid articles; LM1B, LAMBADA and
# AG News have no valid split, and their test split plays it.
ZERO_SHOT: tuple[tuple[str, str, str], ...] = (
    ("PTB", "ptb", "valid"),
    ("Wikitext", "wikitext2", "valid"),
    ("LM1B", "lm1b", "valid"),
    ("Lambada", "lambada", "valid"),
    ("AG News", "ag_news", "valid"),
    ("Pubmed", "pubmed", "valid"),
    ("Arxiv", "arxiv", "valid"),
)


def find(name: str) -> Record | None:
    """The record of this name or alias, if there is one."""
    return CORPORA.get(ALIASES.get(name, name))


def record(name: str) -> Record:
    """The record of a data set; one sentence with the nearest name where there is none."""
    entry = find(name)
    if entry is None:
        known = [*CORPORA, *ALIASES]
        raise UserError(f"unknown data set {name!r}{nearest(name, known)}; `unmask data list` shows all of them")
    return entry


def close(name: str) -> str:
    """The name that was probably meant, or nothing."""
    matches = difflib.get_close_matches(name.lower().replace("-", "_"), _spellings(), n=1, cutoff=0.75)
    return _spellings()[matches[0]] if matches else ""


def _spellings() -> dict[str, str]:
    return {name.replace("-", "_"): name for name in [*CORPORA, *ALIASES]}
