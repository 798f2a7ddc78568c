"""Shared by the tests of DNA models in use: random networks of bases, genomes, and truths by enumeration."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import torch

from support.helpers import random_lm
from unmask.data.genome.bases import COMPLEMENT, dna_tokenizer
from unmask.data.genome.store import Genome, open_genome
from unmask.lm import LM

DNA = "data.tokenizer=dna"
MASK, FIRST = 3, 7
IDS = dict(zip("ACGTN", range(7, 12), strict=True))
HEAD = "##fileformat=VCFv4.2\n#CHROM\tPOS\tID\tREF\tALT\n"


def dna_lm(*overrides: str, length: int = 6, scale: float = 1.5) -> LM:
    """A random model of bases."""
    return random_lm(dna_tokenizer(), DNA, f"data.length={length}", *overrides, scale=scale)


def ids(text: str) -> np.ndarray:
    return np.array([IDS[base] for base in text])


def turned(text: str) -> str:
    """The reverse complement."""
    return text.translate(str.maketrans("ACGT", "TGCA"))[::-1]


def genome_of(tmp_path: Path, **records: str) -> Genome:
    tmp_path.mkdir(exist_ok=True)
    path = tmp_path / "genome.fa"
    path.write_text("".join(f">{name}\n{text}\n" for name, text in records.items()))
    return open_genome(path, tmp_path / "cache")


def random_bases(n: int, seed: int = 0) -> str:
    return "".join(np.random.default_rng(seed).choice(list("ACGT"), n))


def logits(lm: LM, z: np.ndarray) -> np.ndarray:
    """(L, V) of one row that is not told the time."""
    backbone = lm.model.backbone
    with torch.no_grad():
        hidden = backbone(torch.from_numpy(z)[None], condition=backbone.condition(torch.zeros(1)))[0]
        return backbone.head(hidden[0]).double().numpy()


def log_softmax(rows: np.ndarray) -> np.ndarray:
    rows = rows.copy()
    rows[:, MASK] = -np.inf
    return rows - np.logaddexp.reduce(rows, axis=1, keepdims=True)


def coefficient(n: int, length: int, cutoff: float) -> tuple[float, float]:
    """What one set of n hidden positions weighs in the bound: all of continuous time, and the last step."""
    p = np.polynomial.Polynomial([0, 1])
    integral = (p ** (n - 1) * (1 - p) ** (length - n)).integ()  # over the mask rate p, of p^n (1-p)^(L-n) / p
    return integral(1.0) - integral(cutoff), cutoff**n * (1 - cutoff) ** (length - n)


def bound(lm: LM, window: str, sedd: bool = False) -> float:
    """The bound of a window by enumeration of all masks, in continuous time with the last step of the config."""
    x, cutoff, total = ids(window), lm.config.objective.cutoff, 0.0
    for pattern in itertools.product((False, True), repeat=len(x)):
        hidden = np.array(pattern)
        if not hidden.any():
            continue
        time, last = coefficient(int(hidden.sum()), len(x), cutoff)
        rows = logits(lm, np.where(hidden, MASK, x))[hidden]
        if sedd:
            rows = rows - np.log(rows.shape[1] - 1)
            mass = np.delete(np.exp(rows), MASK, axis=1).sum(1)
            nll = -rows[np.arange(len(rows)), x[hidden]]
            total += time * (nll + mass - 1).sum() + last * (nll + np.log(mass)).sum()
        else:
            nll = -log_softmax(rows)[np.arange(len(rows)), x[hidden]]
            total += (time + last) * nll.sum()
    return total


def complemented(rows: np.ndarray) -> np.ndarray:
    """(L, V) of the other strand, as seen from this one."""
    return rows[::-1][:, COMPLEMENT[: rows.shape[1]]]
