"""`unmask eval`: perplexity on a data set or a suite, or figures of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UserError, choose
from .shared import (
    Device,
    Json,
    Model,
    Quantize,
    TokenizerOf,
    Weights,
    Which,
    With,
    figures_line,
    is_main,
    out_console,
    print_json,
    print_lines,
    protocol_lines,
    read_settings,
    refuse,
    used_weights,
)

if TYPE_CHECKING:
    from ..config import Config, DataConfig
    from ..evaluation.likelihood import Estimator
    from ..evaluation.suites import SuiteResult
    from ..types import Likelihood

JUDGING = ("scorer", "reference", "n", "length", "mauve", "more")


def _judging() -> list[str]:
    """Options that need --generative; steps, seed and block have another meaning without it."""
    from ..sampling.params import settings_on

    return [*JUDGING, *(name for name in settings_on("cli") if name not in ("steps", "seed", "block"))]


def _suite(ctx: typer.Context, model: str, name: str, sets: str | None) -> None:
    """All sets of a suite in one table."""
    from ..evaluation.suites import table_lines

    refuse(ctx, _judging(), "needs --generative")
    refuse(ctx, ("data", "split", "bound", "steps", "schedule", "label_column", "field"), "does not go with --suite")
    wanted = (
        "local",
        "draws",
        "batch_size",
        "rows",
        "seed",
        "which",
        "weights",
        "device",
        "estimator",
        "tokenizer",
        "quantize",
        "block",
    )
    chosen = None if sets is None else _words(sets)
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
    split: Annotated[
        str | None,
        typer.Option(
            help="train, valid, test, or all (default: valid; all of a file or folder that is not the model's)."
        ),
    ] = None,
    field: Annotated[str | None, typer.Option(help="Column of the text of a table (default: as in training).")] = None,
    bound: Annotated[str | None, typer.Option(help="continuous or discrete (default: the model's).")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Number of steps T of the discrete bound, or of the sampler.")
    ] = None,
    draws: Annotated[int, typer.Option(help="Independent Monte Carlo draws; 2 or more give an error bar.")] = 4,
    estimator: Annotated[
        str | None, typer.Option(help="strata (default where it is unbiased: less noise) or times (as in the paper).")
    ] = None,
    schedule: Annotated[str | None, typer.Option(help="Noise schedule (default: the model's).")] = None,
    block: Annotated[
        str | None,
        typer.Option(help="Block size of a block model, or full; several as 1,4,full (default: the model's)."),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Rows per network call; does not change the result.")] = 32,
    rows: Annotated[int | None, typer.Option(help="Use at most this many rows, evenly spaced.")] = None,
    label_column: Annotated[
        str | None, typer.Option(help="Column of the labels, or none (default: as in training).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the times and masks, or of the samples.")] = 0,
    tokenizer: TokenizerOf = None,
    quantize: Quantize = None,
    which: Which = "last",
    weights: Weights = "ema",
    device: Device = "auto",
    as_json: Json = False,
    suite: Annotated[
        str | None,
        typer.Option(help="zero-shot: the paper's seven data sets in one table, each in its conventional form."),
    ] = None,
    sets: Annotated[
        str | None, typer.Option(help="Only these data sets of the suite, for example ptb,lambada.")
    ] = None,
    local: Annotated[
        str | None, typer.Option(help="Where the named data sets are on disk (default: UNMASK_DATA, else the Hub).")
    ] = None,
    generative: Annotated[
        bool, typer.Option("--generative", help="Judge samples instead; the options below require it.")
    ] = False,
    scorer: Annotated[
        str | None,
        typer.Option(help="Judge: smollm2, hf:MODEL, gguf:FILE, llama2c:FOLDER, arpa:FILE, unmask:RUN, ..."),
    ] = None,
    reference: Annotated[
        str, typer.Option(help="Real text to compare with: train, valid, test, a file, or none.")
    ] = "valid",
    n: Annotated[int, typer.Option("-n", help="Number of samples.")] = 64,
    length: Annotated[int | None, typer.Option(help="Tokens per sample (default: the model's length).")] = None,
    more: With = None,
    mauve: Annotated[bool, typer.Option("--mauve", help="Compute MAUVE too, on the scorer's hidden states.")] = False,
    **settings: Any,
) -> None:
    """Perplexity (an upper bound) of a model on a data set; with --generative, figures of its samples."""
    if suite is not None and not generative:
        _suite(ctx, model, suite, sets)
        return
    refuse(ctx, ("sets",), "needs --suite")
    if generative:
        of_likelihoods = (
            "data",
            "split",
            "bound",
            "draws",
            "estimator",
            "schedule",
            "label_column",
            "suite",
            "local",
            "field",
        )
        refuse(ctx, of_likelihoods, "does not go with --generative")
    else:
        refuse(ctx, _judging(), "needs --generative")
    if generative:
        from ..evaluation.generative import judge_model
        from ..evaluation.judge import protocol_lines as judged_lines
        from ..evaluation.judge import table

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
            tokenizer=tokenizer,
            quantize=quantize,
            batch_size=batch_size,
            **read_settings(ctx, more),
        )
        if as_json:
            print_json(report.as_dict())
            return
        out_console.print(table(report.columns()), markup=False)
        print_lines(judged_lines({**report.protocol, **report.samples.protocol}))
        return
    blocks: list[str | None] = [None] if block is None else [*_words(block)] or [block]
    likelihoods = evaluate_model(
        model,
        blocks=blocks,
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
        tokenizer=tokenizer,
        quantize=quantize,
        estimator=estimator,
        label_column=label_column,
        local=local,
        field=field,
    )
    if not is_main():
        return
    if len(blocks) > 1:
        from ..evaluation.show import block_lines

        if as_json:
            each = [{"block": name, **one.as_dict()} for name, one in zip(blocks, likelihoods, strict=True)]
            print_json({"model": model, "blocks": each})
            return
        print_lines(block_lines([str(name) for name in blocks], likelihoods))
        return
    figures = likelihoods[0].as_dict()
    if as_json:
        print_json(figures)
        return
    print_lines([figures_line(figures), *protocol_lines(figures["protocol"])])


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def evaluate_model(
    path: str,
    *,
    blocks: Sequence[str | None] = (None,),
    data: str | None,
    split: str | None,
    bound: str | None,
    steps: int | None,
    draws: int,
    schedule: str | None,
    batch_size: int,
    rows: int | None,
    seed: int,
    which: str,
    weights: str,
    device: str,
    estimator: str | None = None,
    label_column: str | None = None,
    local: str | None = None,
    tokenizer: str | None = None,
    quantize: str | None = None,
    field: str | None = None,
) -> list[Likelihood]:
    """The bound of a saved model on a data set, by each of the block sizes (None: its own, or it has none).

    Without a split it is on all of a file or folder that is not the model's.
    """
    from ..data.pack import prepare
    from ..distributed import world as join_world
    from ..evaluation import default_estimator
    from ..evaluation.likelihood import evaluate as evaluate_rows
    from ..evaluation.likelihood import in_blocks
    from ..hub.resolve import load
    from ..models import registry
    from ..progress import progress_bar

    chosen = _estimator(estimator)
    with join_world(device) as world:
        lm = load(path, which=which, weights=weights, device=str(world.device), tokenizer=tokenizer, quantize=quantize)
        config = _with_law(lm.config, bound, steps, schedule)
        split = split or _foreign(config.data, data, field) or "valid"
        spec, part = _data(config.data, data, split, label_column, local, field)
        model = lm.model
        if (bound, steps, schedule) != (None, None, None):  # a model that has none of these says so
            model = model.under(registry.schedule(config.schedule), registry.law(config.objective, config.schedule))
        laws = [in_blocks(model, block, config.data.length) for block in blocks]
        with world.first(), progress_bar("tokenizing", quiet=not world.main) as progress:
            labels, template = lm.labels or None, lm.chat_template
            prepared = prepare(spec, lm.tokenizer, (part,), progress, labels, template)
            if split == "all" and prepared.corpus.division is None:
                raise UserError(f"{spec.source} comes with its splits; choose one: {', '.join(prepared.corpus.splits)}")
            split_rows = prepared.split(part, rest=split == "all")
        likelihoods = []
        for law in laws:
            with progress_bar("evaluating", quiet=not world.main) as progress:
                likelihoods.append(
                    evaluate_rows(
                        law,
                        split_rows,
                        draws=draws,
                        batch_size=batch_size,
                        seed=seed,
                        limit=rows,
                        world=world,
                        attend_pads=config.data.attend_pads,
                        estimator=chosen or default_estimator(law),
                        progress=progress,
                        protocol={
                            "model": path,
                            "checkpoint": which,
                            "weights": used_weights(lm, weights),
                            "split": split,
                        },
                    )
                )
        return likelihoods


def evaluate_members(
    path: str,
    *,
    name: str,
    sets: list[str] | None,
    which: str,
    weights: str,
    device: str,
    estimator: str | None = None,
    tokenizer: str | None = None,
    quantize: str | None = None,
    block: str | None = None,
    **how: Any,
) -> list[SuiteResult]:
    """The bound of a saved model on every set of a suite; `how` as in `evaluate_suite`."""
    from ..distributed import world as join_world
    from ..evaluation import default_estimator
    from ..evaluation.likelihood import in_blocks
    from ..evaluation.suites import evaluate_suite, suite
    from ..hub.resolve import load

    chosen, members = _estimator(estimator), suite(name, sets)
    with join_world(device) as world:
        lm = load(path, which=which, weights=weights, device=str(world.device), tokenizer=tokenizer, quantize=quantize)
        lm = replace(lm, model=in_blocks(lm.model, block, lm.length))
        return evaluate_suite(
            lm,
            members,
            world=world,
            estimator=chosen or default_estimator(lm.model),
            **how,
            protocol={"model": path, "checkpoint": which, "weights": used_weights(lm, weights), "suite": name},
        )


def _estimator(name: str | None) -> Estimator | None:
    from ..evaluation import ESTIMATORS

    return None if name is None else ESTIMATORS[choose(name, ESTIMATORS, "estimator")]


def _foreign(spec: DataConfig, source: str | None, field: str | None) -> str | None:
    """'all' for a file or folder that is not the text of the training and has no splits."""
    from ..data.corpora import open_corpus
    from ..data.records import find

    path = Path(source or "").expanduser()
    if not source or find(source) is not None or not path.exists():
        return None
    if path.resolve() == Path(spec.source).expanduser().resolve():
        return None
    whole, _ = _data(spec, source, "all", "none" if spec.label else None, field=field)
    return "all" if open_corpus(whole).division is not None else None


def _data(
    spec: DataConfig,
    source: str | None,
    split: str,
    label: str | None = None,
    local: str | None = None,
    field: str | None = None,
) -> tuple[DataConfig, str]:
    """The requested data and the name of the split; `all` is a file or folder that is not split at all."""
    from ..data.documents import table_of
    from ..data.records import find

    if label is not None and label != "none" and spec.label is None:
        raise UserError(f"--label-column {label} needs a model that was trained with labels")
    if source is not None and not source.strip():
        raise UserError("--data is empty; give a name, a file or a folder")
    changes: dict[str, Any] = {}
    if source is not None:
        changes = {"source": source, "subset": None, "detokenizer": "auto", "local": None}
        changes |= {} if source == spec.source else {"intervals": None, "files": None}
        if spec.layout == "chat" and (find(source) is not None or table_of(Path(source)) is None):
            changes["layout"] = "wrap"  # a text, and no table of conversations
    if field is not None:
        changes["field"] = field
    if local is not None:
        if not local.strip():
            raise UserError("--local is empty; give the folder of the data set, or leave it out")
        changes["local"] = local
    if label is not None:
        changes["label"] = None if label == "none" else label
    if split == "all":
        changes |= {"valid_fraction": 0.0, "test_fraction": 0.0}
    return spec.model_copy(update=changes), "train" if split == "all" else split


def _with_law(config: Config, bound: str | None, steps: int | None, schedule: str | None) -> Config:
    """The config with the requested bound and schedule."""
    changes = [f"schedule.name={schedule}"] if schedule else []
    if steps is not None and bound is None:
        bound = "discrete"
    if bound is not None:
        if bound == "continuous" and steps is not None:
            raise UserError("--steps belongs to --bound discrete")
        if bound == "discrete" and steps is None and (steps := config.objective.steps) is None:
            raise UserError("--bound discrete needs its number of steps; give one, for example --steps 1000")
        changes += [f"objective.bound={bound}", f"objective.steps={'null' if steps is None else steps}"]
        changes += ["objective.proposal=null"] if bound == "discrete" else []
    return config.override(changes)
