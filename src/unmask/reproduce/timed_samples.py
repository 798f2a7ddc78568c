"""Samples of several samplers: how long they take, and how they are judged.

Every sampler takes its turn in every round, so that a machine that is slow for a while slows down all of them. Samples
are judged by a model that wrote none of them. Real text goes through the same judge; perplexity is never reported
without entropy, since repetitive text has little of both.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from ..data.canvas import Canvas
from ..evaluation.generative import BoundScorer, open_judge, real_rows, text_tokens
from ..evaluation.judge import Scorer, judge
from ..evaluation.likelihood import evaluating
from ..evaluation.uncertainty import mean
from ..lm import LM, Job
from ..models.masked import as_masked
from ..process.keys import Keys
from ..progress import progress_bar
from ..sampling.params import SamplingParams
from . import reference
from .bench import Bench
from .claims import Difference, smaller
from .figures import Figure
from .report import Cell, Row
from .text_models import JUDGE

BATCH = 16  # sequences that go through the network together, as in the paper
TIMED = 100  # steps, evenly spread over a run, from which the time of a longer run is extrapolated
PARTS = 10  # places of the run where these steps are made
SEEDS_APART = 10_000  # between the seeds of two samplers: all samples are independent
SECONDS, CALLS, PPL, ENTROPY, REPETITION = "seconds a sample", "network calls", "gen. PPL", "entropy", "repetition"
REAL = "real text"


@dataclass(frozen=True)
class GeneratedTexts:
    """Samples: their texts, their tokens, and the number of network calls of each."""

    texts: list[str]
    tokens: list[list[int]]
    calls: list[int]

    @staticmethod
    def joined(parts: Sequence[GeneratedTexts]) -> GeneratedTexts:
        """All of them."""
        return GeneratedTexts(
            [text for part in parts for text in part.texts],
            [ids for part in parts for ids in part.tokens],
            [calls for part in parts for calls in part.calls],
        )


Write = Callable[[int, int], GeneratedTexts]  # so many samples, with seeds from here on


@dataclass
class GenerationEntry:
    """A sampler with a number of steps, and what it has done so far."""

    method: str
    steps: int | None
    write: Write
    batch: int | None = None  # sequences per round; None = as many as the table has
    factor: float = 1.0  # above 1 where only so many times fewer steps were made
    judged: bool = True
    note: str = ""
    spent: list[float] = field(default_factory=list)  # seconds per sample, one value per round
    parts: list[GeneratedTexts] = field(default_factory=list)

    def turn(self, n: int, seed: int) -> None:
        """Write the samples of one round."""
        began = time.perf_counter()
        texts = self.write(n, seed)
        self.spent.append((time.perf_counter() - began) * self.factor / n)
        self.parts.append(texts)

    @property
    def seconds(self) -> Figure:
        """Seconds per sample, with the standard error over rounds."""
        return Figure(*mean(self.spent))

    @property
    def calls(self) -> Figure:
        """Network calls per sample."""
        value, error = mean([self.factor * calls for calls in GeneratedTexts.joined(self.parts).calls])
        return Figure(value, error or None)


# -- samplers --------------------------------------------------------------------------------------------------------


def by_sampler(lm: LM, length: int | None = None, **how: Any) -> Write:
    """Any sampler of the library."""

    def write(n: int, seed: int) -> GeneratedTexts:
        options = SamplingParams(seed=seed, **how)
        canvas = lm.prompt_canvas("", length, windowed=options.stride is not None)
        samples = lm.write([canvas] * n, options, batch_size=n)
        return GeneratedTexts(
            [sample.text for sample in samples],
            [text_tokens(lm, sample.ids) for sample in samples],
            [sample.network_calls for sample in samples],
        )

    return write


def by_some_steps(bench: Bench, lm: LM, sampler: str, steps: int) -> Write:
    """Times some of the T steps: at PARTS places of the run, on real text with the same share of masks.

    The cost of a step depends on how many positions are masked and on how few are revealed, not on what is written.
    """
    parts = min(PARTS, TIMED)
    each = TIMED // parts
    assert each <= steps

    def write(n: int, seed: int) -> GeneratedTexts:
        tokens = torch.from_numpy(bench.rows().rows(np.arange(n) % len(bench.rows()))[0])
        for part in range(parts):
            masked = Keys(seed).uniform("masked", range(n), tokens.shape[1]) < (part + 0.5) / parts
            canvases = [Canvas(row, [slice(0, len(row))]) for row in tokens.masked_fill(masked, lm.model.vocab.mask)]
            options = SamplingParams(sampler=sampler, steps=steps, seed=seed)
            states = lm.run([Job(canvas, options) for canvas in canvases], batch_size=n)
            made = list(itertools.islice(states, n * each))  # one state per sequence and step
            assert {state.calls for state, _ in made[-n:]} == {each}
        return GeneratedTexts([], [], [parts * each] * n)

    return write


def by_caching(lm: LM, steps: int) -> Write:
    """The paper's sampler with caching, as a careful author would write it."""
    model = as_masked(lm.model)
    assert model is not None and not model.time_conditioned, "a cache is wrong for a time-conditioned model"

    def write(n: int, seed: int) -> GeneratedTexts:
        canvas = lm.prompt_canvas("")
        with torch.random.fork_rng(), evaluating(model):  # plain torch, so its one stream of random numbers
            torch.manual_seed(Keys(seed).torch_seed("caching"))
            start = canvas.ids.repeat(n, 1).to(model.device)
            z, calls = reference.ancestral(model, start, steps, cache=True)
        rows = list(z.cpu())
        return GeneratedTexts(
            [lm.text(canvas, row) for row in rows], [text_tokens(lm, row.tolist()) for row in rows], [calls] * n
        )

    return write


def take_turns(bench: Bench, entries: Sequence[GenerationEntry], samples: int, training: int = 0) -> int:
    """Every sampler writes its samples, one batch per round, all in turns; returns the size of a batch.

    The samples of another training of the models have other seeds.
    """
    batch = max(1, min(BATCH, samples // 2))  # at least two rounds: a time needs an error
    rounds = -(-samples // batch)
    with progress_bar("sampling", bench.quiet) as progress:
        for done in range(rounds):
            for number, entry in enumerate(entries):
                size = entry.batch or min(batch, samples - done * batch)
                first = bench.seed + (training * len(entries) + number) * SEEDS_APART
                entry.turn(size, first + done * batch)
                progress(done * len(entries) + number + 1, rounds * len(entries))
    return batch


# -- the judge -------------------------------------------------------------------------------------------------------


def prepare(bench: Bench, names: Sequence[str], seeds: int | None = None) -> list[Scorer]:
    """All models that a table needs, and the judge of each of `seeds` trainings (default: all), which has another seed.

    Raises before anything is trained if the judge cannot be loaded.
    """
    given = bench.scorer is not None and not bench.planning
    scorer = open_judge(bench.scorer or "", torch.device("cpu"), "cpu") if given else None
    judges = [] if bench.scorer else bench.of_seeds(JUDGE)[:seeds]
    bench.need(names, extra=judges)
    if scorer:
        return [scorer] * (seeds or bench.seeds)
    return [BoundScorer(bench.lm(name), name, bench.seed, draws=1) for name in judges]


def judged(written: GeneratedTexts, scorer: Scorer) -> dict[str, Cell]:
    """Generative perplexity, entropy and repetition of samples, with standard errors over samples."""
    figures = judge(written.texts, written.tokens, scorer=scorer).figures
    names = {PPL: "gen_perplexity", ENTROPY: "entropy", REPETITION: "repetition_4"}
    return {column: Figure(*figures[name]) if name in figures else None for column, name in names.items()}


def joined(each: Sequence[Mapping[str, Cell]]) -> dict[str, Cell]:
    """The figures of a sampler with several trainings: means with standard errors over these."""
    if len(each) == 1:
        return dict(each[0])
    figures: dict[str, Cell] = {}
    for column in each[0]:
        values = [cell.value for one in each if isinstance(cell := one.get(column), Figure)]
        figures[column] = Figure(*mean(values)) if len(values) == len(each) else None
    return figures


def entry_figures(entry: GenerationEntry, scorer: Scorer) -> dict[str, Cell]:
    """All figures of a sampler."""
    figures: dict[str, Cell] = {SECONDS: entry.seconds, CALLS: entry.calls}
    return figures | (judged(GeneratedTexts.joined(entry.parts), scorer) if entry.judged else {})


def real_text(bench: Bench, length: int, n: int, scorer: Scorer, name: str = "mdlm") -> tuple[Row, dict[str, Any]]:
    """Real text of the same length under the same judge, and its description; tokens are those of the model `name`."""
    texts, tokens, about = real_rows(bench.lm(name), bench.split, length, n)
    figures = judged(GeneratedTexts(texts, tokens, [0] * len(texts)), scorer)
    return Row(REAL, {}, figures, f"{len(texts)} rows of the {bench.split} split"), about


def about_judge(bench: Bench, scorer: Scorer) -> dict[str, Any]:
    """What the protocol says about the judge."""
    facts = {"who": "given by --scorer", **scorer.describe()}
    if bench.scorer is not None:
        facts["scorer"] = bench.scorer  # as it was asked for: where it lies here is of no use elsewhere
    else:
        facts["who"] = (
            "an AR model with another training seed, trained as the longer AR: no model judges its own samples"
        )
        facts["long_texts"] = f"blocks of {bench.lm(JUDGE).length} tokens, each without the others as context"
    return {"judge": {**facts, "text": "samples are decoded, and tokenized anew by the judge"}}


# -- claims ----------------------------------------------------------------------------------------------------------


Samples = Sequence[Mapping[str, Any]]  # the figures of a sampler, one a training seed


def lower_perplexity(left: Samples, right: Samples) -> Difference:
    """Generative perplexities of two samplers; with their entropies, since repetitive text has little of both."""
    entropies = f"; entropy {joined(left)[ENTROPY]} against {joined(right)[ENTROPY]}"
    return replace(equal_perplexity(left, right), beside=entropies)


def equal_perplexity(left: Samples, right: Samples) -> Difference:
    """The same of two samplers that should have the same distribution."""
    return smaller([one[PPL] for one in left], [one[PPL] for one in right])


def less_time(left: Samples, right: Samples) -> Difference:
    """Seconds a sample."""
    return smaller([one[SECONDS] for one in left], [one[SECONDS] for one in right])
