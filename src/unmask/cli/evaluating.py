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
    integers,
    is_main,
    out_console,
    print_json,
    print_lines,
    refuse,
    settings,
)

JUDGING = (
    "scorer",
    "reference",
    "n",
    "length",
    "sampler",
    "k",
    "threshold",
    "eta",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "stride",
    "mauve",
    "more",
)


def _suite(ctx: typer.Context, model: str, name: str, sets: str | None) -> None:
    """All sets of a suite in one table."""
    from ..evaluation.suites import table_lines
    from .commands import evaluate_members

    refuse(ctx, JUDGING, "needs --generative")
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
    sampler: Annotated[str | None, typer.Option(help="As for unmask sample.")] = None,
    k: Annotated[int | None, typer.Option("-k", help="Tokens a step, for orders.")] = None,
    threshold: Annotated[float | None, typer.Option(help="For confidence, entropy and margin.")] = None,
    eta: Annotated[float | None, typer.Option(help="Strength of remasking and correction.")] = None,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Only the k most likely tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Only the most likely tokens that hold this much.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Only tokens at least this likely, relative to the best.")] = None,
    stride: Annotated[int | None, typer.Option(help="Write in windows that move by this much.")] = None,
    more: With = None,
    mauve: Annotated[bool, typer.Option("--mauve", help="MAUVE too, on the scorer's hidden states.")] = False,
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
        refuse(ctx, JUDGING, "needs --generative")
    if generative:
        from ..evaluation.generative import judge_model
        from ..evaluation.judge import protocol_lines, table

        how: dict[str, Any] = {
            "sampler": sampler,
            "steps": steps,
            "seed": seed,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "stride": stride,
            "k": k,
            "threshold": threshold,
            "eta": eta,
        }
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
            **{**how, **settings(more, ctx.params)},
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


def score(
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
    steps: Annotated[int | None, typer.Option(help="T of a plan.")] = None,
    k: Annotated[int | None, typer.Option("-k", help="Tokens a step of a plan.")] = None,
    threshold: Annotated[float | None, typer.Option(help="Of a confidence, entropy or margin plan.")] = None,
    order: Annotated[str | None, typer.Option(help="For --plan order: tokens from 0, as 2,0,1.")] = None,
    label: Annotated[str | None, typer.Option(help="Label of a model that was trained with labels.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of masks and orders.")] = 0,
    batch_size: Annotated[int, typer.Option(help="Rows a network call; it does not change the result.")] = 32,
    which: Which = "last",
    weights: Weights = "ema",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """How likely are these texts, or spans of them? Bounds, exact laws and pseudo-likelihood."""
    from ..evaluation import score_lines, token_lines
    from .commands import ScoreInput, load_lm, score_texts

    settings = {"steps": steps, "k": k, "threshold": threshold, "order": integers(order)}
    own, found = score_texts(
        load_lm(model, which, weights, device),
        ScoreInput(texts or [], file, span, marks),
        method=method,
        plan=plan,
        plan_settings=settings,
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
