"""`unmask eval`, of one set, a suite or samples, and `unmask score`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .shared import (
    Device,
    Json,
    Model,
    Weights,
    Which,
    With,
    figures_line,
    is_main,
    out_console,
    print_json,
    print_lines,
    read_settings,
    refuse,
)

JUDGING = ("scorer", "reference", "n", "length", "mauve", "more")


def _judging() -> list[str]:
    """Options that belong to --generative; steps and seed mean something else without it."""
    from ..sampling.params import settings_on

    return [*JUDGING, *(name for name in settings_on("cli") if name not in ("steps", "seed"))]


def _suite(ctx: typer.Context, model: str, name: str, sets: str | None) -> None:
    """All sets of a suite in one table."""
    from ..evaluation.suites import table_lines
    from .commands import evaluate_members

    refuse(ctx, _judging(), "needs --generative")
    refuse(ctx, ("data", "split", "bound", "steps", "schedule", "label_column"), "does not go with --suite")
    wanted = ("local", "draws", "batch_size", "rows", "seed", "which", "weights", "device", "estimator")
    chosen = None if sets is None else [word.strip() for word in sets.split(",") if word.strip()]
    results = evaluate_members(model, name=name, sets=chosen, **{key: ctx.params[key] for key in wanted})
    if not is_main():
        return
    if ctx.params["as_json"]:
        print_json({"suite": name, "model": model, "sets": [one.as_dict() for one in results]})
        return
    print_lines(table_lines(results))


def evaluate(
    ctx: typer.Context,
    model: Model,
    data: Annotated[
        str | None, typer.Option(help="Data set: a name, a file or a folder (default: the model's).")
    ] = None,
    split: Annotated[str, typer.Option(help="train, valid, test, or all (the whole of a file).")] = "valid",
    bound: Annotated[str | None, typer.Option(help="continuous or discrete (default: the model's).")] = None,
    steps: Annotated[int | None, typer.Option(help="T of the discrete bound, or of the samples.")] = None,
    draws: Annotated[int, typer.Option(help="Independent Monte Carlo draws; 2 or more give an error bar.")] = 4,
    estimator: Annotated[str, typer.Option(help="times (as in the paper) or strata (less noise).")] = "times",
    schedule: Annotated[str | None, typer.Option(help="Noise schedule (default: the model's).")] = None,
    batch_size: Annotated[int, typer.Option(help="Rows a network call; it does not change the result.")] = 32,
    rows: Annotated[int | None, typer.Option(help="At most this many rows, evenly spaced.")] = None,
    label_column: Annotated[
        str | None, typer.Option(help="Column of the labels, or none (default: as in training).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of times and masks, or of the samples.")] = 0,
    which: Which = "last",
    weights: Weights = "ema",
    device: Device = "auto",
    as_json: Json = False,
    suite: Annotated[
        str | None, typer.Option(help="zero-shot: the paper's seven sets in one table, each as it conventionally is.")
    ] = None,
    sets: Annotated[str | None, typer.Option(help="Only these sets of the suite, as ptb,lambada.")] = None,
    local: Annotated[
        str | None, typer.Option(help="Where named data sets lie on disk (default: UNMASK_DATA, else the Hub).")
    ] = None,
    generative: Annotated[
        bool, typer.Option("--generative", help="Judge samples instead; the options below belong to it.")
    ] = False,
    scorer: Annotated[
        str | None, typer.Option(help="Judge: hf:MODEL, llama2c:FOLDER, arpa:FILE, trigram:pocketsphinx, unmask:RUN.")
    ] = None,
    reference: Annotated[str, typer.Option(help="Real text beside: train, valid, test, a file, or none.")] = "valid",
    n: Annotated[int, typer.Option("-n", help="Samples.")] = 64,
    length: Annotated[int | None, typer.Option(help="Tokens a sample (default: the model's length).")] = None,
    more: With = None,
    mauve: Annotated[bool, typer.Option("--mauve", help="MAUVE too, on the scorer's hidden states.")] = False,
    **settings: Any,
) -> None:
    """Perplexity (an upper bound) of a model on a data set; with --generative, figures of its samples."""
    if suite is not None and not generative:
        _suite(ctx, model, suite, sets)
        return
    refuse(ctx, ("sets",), "needs --suite")
    if generative:
        likelihoods = ("data", "split", "bound", "draws", "estimator", "schedule", "label_column", "suite", "local")
        refuse(ctx, likelihoods, "does not go with --generative")
    else:
        refuse(ctx, _judging(), "needs --generative")
    if generative:
        from ..evaluation.generative import judge_model
        from ..evaluation.judge import protocol_lines, table

        report = judge_model(
            model,
            scorer=scorer,
            n=n,
            length=length,
            reference=reference,
            rows=rows,
            with_mauve=mauve,
            which=which,
            weights=weights,
            device=device,
            batch_size=batch_size,
            **read_settings(ctx, more),
        )
        if as_json:
            print_json(report.as_dict())
            return
        out_console.print(table(report.columns()), markup=False)
        print_lines(protocol_lines({**report.protocol, **report.samples.protocol}))
        return
    from .commands import evaluate_model

    likelihood = evaluate_model(
        model,
        data=data,
        split=split,
        bound=bound,
        steps=steps,
        draws=draws,
        schedule=schedule,
        batch_size=batch_size,
        rows=rows,
        seed=seed,
        which=which,
        weights=weights,
        device=device,
        estimator=estimator,
        label_column=label_column,
        local=local,
    )
    if not is_main():
        return
    figures = likelihood.as_dict()
    if as_json:
        print_json(figures)
        return
    print_lines([figures_line(figures), *_protocol(figures["protocol"])])


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
    file: Annotated[str | None, typer.Option(help="A text a line; .jsonl: objects with text and span.")] = None,
    method: Annotated[
        str | None, typer.Option(help="strata (default), bound, pll, exact, orders or plan (default with --plan).")
    ] = None,
    span: Annotated[
        list[str] | None, typer.Option(help="Score only characters 4:7, given the rest (may be repeated).")
    ] = None,
    marks: Annotated[bool, typer.Option("--marked", help="Score only what stands in [[...]], given the rest.")] = False,
    draws: Annotated[int | None, typer.Option(help="Independent draws; 2 or more give an error bar.")] = None,
    calls: Annotated[int | None, typer.Option(help="strata: network calls of one draw.")] = None,
    orders: Annotated[int | None, typer.Option(help="orders: how many random orders.")] = None,
    plan: Annotated[
        str | None,
        typer.Option(help="left-to-right, order, confidence, entropy, margin; random: first-hitting, plan (T steps)."),
    ] = None,
    label: Annotated[str | None, typer.Option(help="Label of a model that was trained with labels.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of masks and orders.")] = 0,
    batch_size: Annotated[int, typer.Option(help="Rows a network call; it does not change the result.")] = 32,
    which: Which = "last",
    weights: Weights = "ema",
    device: Device = "auto",
    as_json: Json = False,
    **settings: Any,
) -> None:
    """How likely are these texts, or spans of them? Bounds, exact laws and pseudo-likelihood."""
    from ..evaluation import score_lines, token_lines
    from .commands import ScoreInput, load_lm, score_texts

    of_plan = {name: value for name, value in read_settings(ctx).items() if name in settings}
    own, found = score_texts(
        load_lm(model, which, weights, device),
        ScoreInput(texts or [], file, span, marks),
        method=method,
        plan=plan,
        plan_settings=of_plan,
        label=label,
        draws=draws,
        calls=calls,
        orders=orders,
        seed=seed,
        batch_size=batch_size,
    )
    protocol = {"model": model, "checkpoint": which, **found.protocol}
    if as_json:
        each = [
            {"text": text, **one.as_dict(), "nats": one.nats, "pieces": one.pieces, "token_nats": one.token_nats}
            for text, one in zip(own, found.texts, strict=True)
        ]
        for one in each:
            del one["protocol"]
        print_json({**found.as_dict(), "nats": found.nats, "protocol": protocol, "texts": each})
        return
    lines = score_lines(found, own)
    if len(own) == 1 and (tokens := token_lines(found.texts[0])):
        lines += ["", *tokens]
    print_lines([*lines, "", *_protocol(protocol)])


def _protocol(protocol: dict[str, Any]) -> list[str]:
    """How the figures came about, a line each."""
    return [f"  {name}: {value}" for name, value in protocol.items()]
