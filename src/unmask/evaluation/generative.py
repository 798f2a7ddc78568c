"""`unmask eval --generative`: draw samples, judge them, and judge real text of the same length beside them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..data.canvas import Canvas
from ..data.pack import prepare
from ..errors import UserError, at_least
from ..progress import progress_bar
from ..sampling.params import SamplingParams
from ..types import Sample, State
from .judge import JudgedText, Judgement, Scorer, judge, open_scorer
from .judge.judgement import mauve_parts
from .likelihood import compute_dtype, pick_rows

if TYPE_CHECKING:
    from ..lm import LM

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class GenerativeReport:
    """Samples and, as a yardstick, real text."""

    samples: Judgement
    reference: Judgement | None
    protocol: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """One document."""
        reference = None if self.reference is None else self.reference.as_dict()
        return {"samples": self.samples.as_dict(), "reference": reference, "protocol": self.protocol}

    def columns(self) -> dict[str, Judgement]:
        """What to show side by side."""
        return {"samples": self.samples} | ({"real text": self.reference} if self.reference else {})


@dataclass(frozen=True)
class BoundScorer:
    """A model of this library as a judge: its nats are a bound, so the perplexity is an upper bound."""

    lm: LM
    name: str
    seed: int = 0
    draws: int = 16

    def nats(self, texts: Sequence[str]) -> list[JudgedText]:
        """The bound of each text; one that has nothing to score has no tokens."""
        unscored = self.lm.model.unscored if self.lm.prompt_builder.block_ends is None else 0
        full = [i for i, text in enumerate(texts) if len(self.lm.encode(text)) > unscored]
        judged = [JudgedText(0.0, 0)] * len(texts)
        if full:
            scored = self.lm.score([texts[i] for i in full], method="bound", draws=self.draws, seed=self.seed).texts
            for i, likelihood in zip(full, scored, strict=True):
                judged[i] = JudgedText(likelihood.nats, likelihood.tokens)
        return judged

    def describe(self) -> dict[str, Any]:
        """The protocol of the scores."""
        draws = 1 if self.lm.model.exact else self.draws
        about = {**self.lm.model.describe(), "draws": draws, "seed": self.seed, "block_length": self.lm.length}
        kind = "exact" if self.lm.model.exact else "bound"
        return {"scorer": f"unmask:{self.name}", "likelihood": kind, "scorer_law": about}


def judge_model(
    path: str,
    *,
    scorer: str | None = None,
    n: int = 64,
    length: int | None = None,
    reference: str = "valid",
    rows: int | None = None,
    with_mauve: bool = False,
    which: str = "last",
    weights: str = "ema",
    device: str = "cpu",
    tokenizer: str | None = None,
    quantize: str | None = None,
    batch_size: int = 32,
    **how: Any,
) -> GenerativeReport:
    """Draw `n` samples of a saved model and judge them; `how` are the fields of `SamplingParams`.

    What `how` leaves open is the plain law, whatever the model recommends.
    """
    _check(n, rows, reference, scorer, with_mauve, batch_size)
    from .. import load

    lm = load(path, which=which, weights=weights, device=device, tokenizer=tokenizer, quantize=quantize)
    options = SamplingParams(**how).settle(lm.model)
    steps = getattr(options.plan_alone(), "steps", None)  # as asked for, or the default of the sampler
    length = len(lm.prompt_canvas("", length, windowed=options.stride is not None).ids)
    by = None if scorer is None else open_judge(scorer, lm.model.device, device)
    if with_mauve:
        mauve_parts(by)
    real = None if reference == "none" else real_rows(lm, reference, length, rows or n)  # before the long part
    samples, seconds = _draw(lm, n, length, batch_size, options)
    judgement = judge(
        [sample.text for sample in samples],
        [text_tokens(lm, sample.ids) for sample in samples],
        scorer=by,
        references=real[0] if with_mauve and real else None,
        seconds=seconds,
        seed=options.seed,
        network_calls=[sample.network_calls for sample in samples],
    )
    yardstick = None if real is None else judge(*real[:2], scorer=by)
    protocol = {
        "model": path,
        "checkpoint": which,
        "weights": weights if lm.config.train.ema else "raw",
        "n": n,
        "length": length,
        **options.describe(),
        "steps": steps,
        "seed": options.seed,
        "batch_size": batch_size,
        "reference": None if real is None else real[2],
        "dtype": compute_dtype(lm.model),
        "device": str(lm.model.device),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "tokens": "without BOS, EOS and padding; an end of text reads as a line break",
    }
    return GenerativeReport(judgement, yardstick, protocol)


def _draw(lm: LM, n: int, length: int, batch_size: int, options: SamplingParams) -> tuple[list[Sample], float]:
    """All samples (none is rejected or drawn again), and the seconds they took."""
    canvas = lm.prompt_canvas("", length, windowed=options.stride is not None)
    done: set[int] = set()
    with progress_bar("sampling") as progress:

        def watch(state: State) -> None:
            if state.done:
                done.add(state.row)
                progress(len(done), n)

        began = time.perf_counter()
        samples = lm.write([canvas] * n, options, batch_size=batch_size, watch=watch)
        return samples, time.perf_counter() - began


def _check(n: int, rows: int | None, reference: str, scorer: str | None, with_mauve: bool, batch_size: int) -> None:
    at_least("batch_size", batch_size)
    if n < 2:
        raise UserError(f"-n {n} is too few; standard errors need at least 2 samples, better 64")
    if rows is not None and rows < 2:
        raise UserError(f"--rows {rows} is too few; real text needs at least 2 rows")
    if with_mauve and (scorer is None or reference == "none"):
        raise UserError("--mauve compares hidden states of samples and of real text; give --scorer and --reference")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("--generative runs in one process; start it without torchrun")


def open_judge(scorer: str, at: torch.device, device: str) -> Scorer:
    """The judge of a name; models of this library are judges too."""
    kind, _, where = scorer.partition(":")
    if kind != "unmask":
        return open_scorer(scorer, at)
    if not where:
        raise UserError("--scorer unmask: names no model; give unmask:RUN, the folder of a run")
    from .. import load

    lm = load(where, device=device)
    if not lm.model.likelihood:
        raise UserError(f"the model at {where} has no likelihood and cannot judge; choose another scorer")
    return BoundScorer(lm, where)


def text_tokens(lm: LM, ids: Sequence[int]) -> list[int]:
    """The tokens of a row that are text."""
    vocab = lm.tokenizer.vocab
    return [token for token in ids if token not in (vocab.pad, vocab.bos, vocab.eos, vocab.mask)]


def real_rows(lm: LM, reference: str, length: int, n: int) -> tuple[list[str], list[list[int]], dict[str, Any]]:
    """Texts and tokens of at most `n` rows of real text, evenly spaced, in the layout of the training rows."""
    changes: dict[str, Any] = {"length": length}
    split = reference
    if reference not in SPLITS:
        if not Path(reference).expanduser().exists():
            raise UserError(f"--reference {reference} is not a file; give one, or train, valid, test or none")
        changes |= {
            "source": reference,
            "subset": None,
            "detokenizer": "auto",
            "local": None,
            "label": None,
            "layout": "wrap" if lm.config.data.layout == "chat" else lm.config.data.layout,
            "valid_fraction": 0.0,
            "test_fraction": 0.0,
        }
        split = "train"
    with progress_bar("tokenizing") as progress:
        spec = lm.config.data.model_copy(update=changes)
        prepared = prepare(
            spec, lm.tokenizer, splits=(split,), progress=progress, labels=lm.labels or None, template=lm.chat_template
        )
        rows = prepared.split(split)
    if len(rows) < 2:
        raise UserError(
            f"--reference {reference} has {len(rows)} row of {length} tokens; give more text or a shorter --length"
        )
    tokens, scored = rows.rows(pick_rows(len(rows), n))
    scored = np.ones_like(tokens, dtype=bool) if scored is None else scored
    kept = [torch.from_numpy(row[counts]) for row, counts in zip(tokens, scored, strict=True)]
    texts = [lm.text(Canvas(row, [slice(0, len(row))]), row) for row in kept]
    facts = rows.describe()
    about = {key: facts[key] for key in ("source", "split", "layout", "corpus")} | {"rows": len(kept), "of": len(rows)}
    return texts, [text_tokens(lm, row.tolist()) for row in kept], about
