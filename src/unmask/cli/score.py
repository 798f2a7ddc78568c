"""`unmask score`: how likely texts are, or spans of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UserError
from .shared import (
    Device,
    Json,
    Model,
    Quantize,
    TokenizerOf,
    Weights,
    Which,
    load_lm,
    print_json,
    print_lines,
    protocol_lines,
    read_settings,
)

if TYPE_CHECKING:
    from ..lm import LM
    from ..types import Likelihood


def plan_settings() -> list[str]:
    """The settings of samplers whose order has a likelihood."""
    from ..sampling import SAMPLERS, FirstHitting, RevealPlan

    scored = [
        entry for entry in SAMPLERS.values() if entry.make.deterministic or entry.make in (RevealPlan, FirstHitting)
    ]
    return list(dict.fromkeys(name for entry in scored for name in entry.takes))


def score(
    ctx: typer.Context,
    model: Model,
    texts: Annotated[list[str] | None, typer.Argument(help="Texts to score.")] = None,
    file: Annotated[
        str | None,
        typer.Option(help="One text per line; .jsonl: objects with text and span; FASTA: a sequence per record."),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="strata (default), bound, pll, exact, orders or plan (default with --plan).")
    ] = None,
    span: Annotated[
        list[str] | None, typer.Option(help="Score only characters 4:7, given the rest (may be repeated).")
    ] = None,
    marks: Annotated[bool, typer.Option("--marked", help="Score only the part in [[...]], given the rest.")] = False,
    draws: Annotated[int | None, typer.Option(help="Independent draws; 2 or more give an error bar.")] = None,
    calls: Annotated[int | None, typer.Option(help="strata: network calls per draw.")] = None,
    orders: Annotated[int | None, typer.Option(help="orders: number of random orders.")] = None,
    plan: Annotated[
        str | None,
        typer.Option(help="left-to-right, order, confidence, entropy, margin; random: first-hitting, plan (T steps)."),
    ] = None,
    block: Annotated[
        str | None, typer.Option(help="Block size of a block model, or full: the whole row (default: the model's).")
    ] = None,
    label: Annotated[str | None, typer.Option(help="Label of a model that was trained with labels.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of masks and orders.")] = 0,
    batch_size: Annotated[int, typer.Option(help="Rows per network call; does not change the result.")] = 32,
    tokenizer: TokenizerOf = None,
    quantize: Quantize = None,
    which: Which = "last",
    weights: Weights = "ema",
    device: Device = "auto",
    as_json: Json = False,
    **settings: Any,
) -> None:
    """Score how likely texts are, or spans of them: by bounds, exact likelihood or pseudo-likelihood."""
    from ..evaluation import score_lines, token_lines

    of_plan = {name: value for name, value in read_settings(ctx).items() if name in settings}
    scored, likelihood = score_texts(
        load_lm(model, which, weights, device, tokenizer, quantize=quantize),
        ScoreInput(texts or [], file, span, marks),
        method=method,
        plan=plan,
        plan_settings=of_plan,
        label=label,
        block=block,
        draws=draws,
        calls=calls,
        orders=orders,
        seed=seed,
        batch_size=batch_size,
    )
    protocol = {"model": model, "checkpoint": which, **likelihood.protocol}
    if as_json:
        each = [
            {"text": text, **one.as_dict(), "nats": one.nats, "pieces": one.pieces, "token_nats": one.token_nats}
            for text, one in zip(scored, likelihood.texts, strict=True)
        ]
        for one in each:
            del one["protocol"]
        print_json({**likelihood.as_dict(), "nats": likelihood.nats, "protocol": protocol, "texts": each})
        return
    lines = score_lines(likelihood, scored)
    if len(scored) == 1 and (tokens := token_lines(likelihood.texts[0])):
        lines += ["", *tokens]
    print_lines([*lines, "", *protocol_lines(protocol)])


@dataclass(frozen=True)
class ScoreInput:
    """What to score: texts from the command line or from a file, whole or one span of each."""

    given: list[str]
    file: str | None = None
    spans: list[str] | None = None  # "4:7", of one given text
    marked: bool = False  # [[...]] encloses what is scored

    def read(self, bases: bool = False) -> tuple[list[str], list[Any]]:
        """(texts, the span of each or None); the records of a FASTA file are of DNA with `bases`, else of proteins."""
        from ..data.genome.fasta import is_fasta
        from ..dna.sequence_files import read_sequences
        from ..evaluation import marked, read_texts

        if bool(self.given) == (self.file is not None):
            raise UserError('give either texts or --file, for example: unmask score MODEL "The cat sat."')
        if self.spans and (len(self.given) != 1 or self.marked):
            raise UserError("--span needs a single text and no --marked; mark spans of several texts as [[...]]")
        pairs: list[tuple[str, Any]] = [(text, None) for text in self.given]
        if self.file is not None:
            fasta = is_fasta(Path(self.file))
            named = read_sequences(self.file, bases=bases) if fasta else ()
            pairs = [(text, None) for _, text in named] if fasta else list(read_texts(self.file))
        if self.marked:
            pairs = [marked(text) for text, _ in pairs]
        if self.spans:
            pairs = [(self.given[0], [_offsets(span) for span in self.spans])]
        texts, spans = zip(*pairs, strict=True)
        return list(texts), list(spans)


def _offsets(text: str) -> tuple[int, int]:
    start, _, end = text.partition(":")
    if not (start.isdecimal() and end.isdecimal()):
        raise UserError(f"--span {text} must be the first character and the one after the last, for example 4:7")
    return int(start), int(end)


def score_texts(
    lm: LM,
    texts: ScoreInput,
    *,
    method: str | None = None,
    plan: str | None = None,
    plan_settings: dict[str, Any],
    label: str | None = None,
    **how: Any,
) -> tuple[list[str], Likelihood]:
    """The texts and their likelihood; --plan without --method means the likelihood under that sampler."""
    from ..evaluation import score as score_rows
    from ..progress import progress_bar
    from ..sampling import SamplingParams, make_sampler

    given = {name: value for name, value in plan_settings.items() if value is not None}
    if plan is None and method == "orders" and given:
        plan = "plan"  # T-step sampling; without steps it is one token at a time
    if plan is None and given:
        raise UserError(f"--{next(iter(given))} is a setting of a sampler; name one with --plan")
    order = None if plan is None else make_sampler(plan, **given)
    scored, spans = texts.read(lm.tokenizer.kind == "dna")
    named = SamplingParams(label=label).label_id(lm.labels)
    with progress_bar("scoring") as progress:
        likelihood = score_rows(
            lm.model,
            lm.prompt_builder,
            scored,
            method=method,
            span=spans,
            plan=order,
            label=named,
            progress=progress,
            **how,
        )
    return scored, likelihood
