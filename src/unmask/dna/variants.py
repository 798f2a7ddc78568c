"""Which allele does a model expect? Scores of the variants of a VCF file, in its order, in chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.genome.store import Genome
from ..errors import UserError, at_least
from ..evaluation.likelihood import compute_dtype, eval_keys, evaluating
from ..lm import LM
from ..models.block_diffusion import whole_row
from ..types import Progress
from .alleles import Pair, pair_of
from .paired import PairedScorer, check_method, law_of
from .strands import equivariant, need_dna
from .vcf import ANY_OTHER, BadVariant, VcfRecord, read_vcf

WAITING = 4096  # results that are held back at most, so that they come in the order of the file
ROWS_AT_ONCE = 16  # times batch_size: rows that are prepared before the network runs


@dataclass(frozen=True)
class Effect:
    """One alternative of one line: log p(alternative) - log p(reference) in nats, or why there is no score."""

    line: int
    chrom: str
    pos: int | str  # as written, where it is not a number
    id: str
    ref: str
    alt: str
    score: float | None = None
    stderr: float | None = None
    reason: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dict(vars(self))

    def row(self) -> str:
        """A line of the table."""
        numbers = ["" if value is None else f"{value:.6g}" for value in (self.score, self.stderr)]
        return "\t".join([self.chrom, str(self.pos), self.id, self.ref, self.alt, *numbers, self.reason or ""])


def other_names(chroms: Iterable[str], genome: Genome) -> dict[str, str]:
    """The chromosomes that the genome has under another name, such as 1 for chr1; unknown ones are left out."""
    names = {}
    for chrom in sorted(chroms):
        with suppress(UserError):
            names[chrom] = genome.record(chrom)
    return {chrom: name for chrom, name in names.items() if chrom != name}


HEADER = "\t".join(["chrom", "pos", "id", "ref", "alt", "score", "stderr", "reason"])


@dataclass(frozen=True)
class VariantRequest:
    """How variants are scored."""

    window: int | None = None  # bases of a window; None = the model's length
    method: str = "bound"
    draws: int = 8
    batch_size: int = 32
    both_strands: bool = False
    seed: int = 0

    def check(self, lm: LM) -> int:
        """The length of a window; raises for what is not possible before anything is read."""
        need_dna(lm, "scoring variants")
        check_method(lm.model, self.method)
        at_least("draws", self.draws)
        at_least("batch_size", self.batch_size)
        capacity = lm.prompt_builder.capacity
        window = capacity if self.window is None else self.window
        longest = lm.model.backbone.longest
        if window < 1 or (longest is not None and window > longest):
            raise UserError(f"window={window} must be between 1 and {longest or capacity}")
        return window

    def protocol(self, lm: LM) -> dict[str, Any]:
        """What scores depend on."""
        model = whole_row(lm.model)  # windows go on after a variant
        exact = model.exact or self.method != "bound"
        by_itself = equivariant(model.backbone)
        return {
            "score": "log p(alternative window) - log p(reference window), in nats",
            "method": self.method,
            "law": law_of(model, self.method),
            **model.describe(),
            "window": self.check(lm),
            "strands": "both, by the network" if by_itself else "both, mean" if self.both_strands else "as written",
            **({} if exact else {"draws": self.draws}),
            "seed": self.seed,
            "dtype": compute_dtype(lm.model),
        }


def score_variants(
    lm: LM, path: str | Path, genome: Genome, request: VariantRequest, progress: Progress | None = None, total: int = 0
) -> Iterator[Effect]:
    """Every alternative of every line, in the order of the file; what cannot be scored has a reason.

    <*> and <NON_REF> of a gVCF, which stand for any other allele, are left out. Memory does not grow with
    the file. A score depends on the variant, the model and the request, and not on the other lines.
    """
    window = request.check(lm)
    scorer = PairedScorer(
        lm, eval_keys(request.seed), request.method, request.draws, request.batch_size, request.both_strands
    )
    at_once = max(1, ROWS_AT_ONCE * request.batch_size // (4 * request.draws))
    waiting: list[tuple[Effect, Pair | None]] = []
    pairs = done = 0
    with evaluating(lm.model):
        for effect, pair in _alleles(path, genome, window, request.method):
            waiting.append((effect, pair))
            pairs += pair is not None
            if pairs >= at_once or len(waiting) >= WAITING:
                yield from _scored(scorer, waiting)
                done += len(waiting)
                waiting, pairs = [], 0
                if progress:
                    progress(done, total)
        yield from _scored(scorer, waiting)


def _alleles(path: str | Path, genome: Genome, window: int, method: str) -> Iterator[tuple[Effect, Pair | None]]:
    """Every alternative with its windows, or with the reason why it has none."""
    for variant in read_vcf(path):
        if isinstance(variant, BadVariant):
            yield Effect(**vars(variant)), None
            continue
        for alt in (alt for alt in variant.alts if alt not in ANY_OTHER):
            pair = pair_of(variant, alt, genome, window)
            if isinstance(pair, Pair) and method == "masked" and not pair.aligned:
                pair = "method 'masked' compares alleles of one length; use method 'bound'"
            reason = pair if isinstance(pair, str) else None
            yield _effect(variant, alt, reason=reason), None if isinstance(pair, str) else pair


def _effect(record: VcfRecord, alt: str, **scores: Any) -> Effect:
    return Effect(record.line, record.chrom, record.pos, record.id, record.ref, alt, **scores)


def _scored(scorer: PairedScorer, waiting: list[tuple[Effect, Pair | None]]) -> Iterator[Effect]:
    """The same in the same order, with scores."""
    scores, errors = scorer([pair for _, pair in waiting if pair is not None])
    i = 0
    for effect, pair in waiting:
        if pair is None:
            yield effect
            continue
        figures = {"score": float(scores[i]), "stderr": None if errors is None else float(errors[i])}
        yield Effect(**{**vars(effect), **figures})
        i += 1
