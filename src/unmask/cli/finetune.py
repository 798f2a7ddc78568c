"""`unmask finetune`: a model is trained further on a text, or on a task."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import UserError
from .shared import (
    Json,
    Minutes,
    Model,
    Overrides,
    RunFolder,
    Weights,
    Which,
    exit_code,
    figures_line,
    is_main,
    out_console,
    print_json,
    run_tree,
    with_minutes,
)


def finetune(
    model: Model,
    task: Annotated[
        str,
        typer.Argument(help="mdlm, block, sedd, d3pm, plaid, mlm, ar, sft, or a task such as glue/sst2 or gue/tf_0."),
    ],
    overrides: Overrides = None,
    data: Annotated[str | None, typer.Option(help="The text, unless it is a task: a name, a file or a folder.")] = None,
    local: Annotated[
        str | None,
        typer.Option(help="Where the data set or the task is on disk (default: UNMASK_DATA, else the Hub)."),
    ] = None,
    template: Annotated[
        str | None, typer.Option(help="sft: chatml, llama3, plain or a .jinja file (default: that of the model).")
    ] = None,
    pad: Annotated[
        str | None, typer.Option(help="sft: eos (rows end with EOS that is learned, the default) or cut.")
    ] = None,
    lora: Annotated[
        int | None,
        typer.Option(help="Train LoRA adapters of this rank (train.lora.rank) instead of all weights.", min=1),
    ] = None,
    minutes: Minutes = None,
    from_causal: Annotated[
        bool, typer.Option("--from-causal", help="Say so if the model does not look to the left only (mdlm, block).")
    ] = False,
    anneal: Annotated[
        str | None,
        typer.Option(
            metavar="STEPS",
            help="Causal models: the steps, or the share of them, in which what is to the right comes into sight "
            "(train.anneal).",
        ),
    ] = None,
    out: RunFolder = None,
    seeds: Annotated[str | None, typer.Option(help="Tasks: one run per seed, for example 0,1,2.")] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Tasks on DNA: try learning rates and batch sizes, with seeds 1 to 5.")
    ] = False,
    tokenizer: Annotated[
        str | None, typer.Option(help="Tokenizer of a model that comes without one: a folder, a file or a Hub name.")
    ] = None,
    which: Which = "last",
    weights: Weights = "ema",
    print_config: Annotated[bool, typer.Option("--print-config", help="Print the settings and exit.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not show progress.")] = False,
    as_json: Json = False,
) -> None:
    """Fine-tune a model: as a diffusion model, in blocks, as a BERT (mlm), left to right (ar), to answer, on a task."""
    from ..training import adapt
    from ..training.fit import fit_machine

    language, changes = adapt.is_language(task), with_minutes(overrides, minutes)
    for name, key, value in (("template", "chat_template", template), ("pad", "chat_pad", pad)):
        if value is not None and task != "sft":
            raise UserError(f"--{name} is for conversations: unmask finetune MODEL sft; leave it out")
        changes += [] if value is None else [f"data.{key}={value}"]
    if anneal is not None:
        changes.append(f"train.anneal={anneal}")
    changes += [] if lora is None else [f"train.lora.rank={lora}"]
    if language and seeds is not None:
        raise UserError("--seeds is for tasks; set seed=1 for another seed")
    if sweep:
        _check_sweep(task, changes)
    if not language and data is not None:
        raise UserError(f"{task} comes with its texts; leave out --data, or say with --local where its files are")
    chosen = _seeds(seeds)
    place = out or f"runs/{Path(model.rstrip('/')).name}-{task.replace('/', '-')}"
    lm = adapt.begun(place) if language else None  # a run that is continued no longer needs the model it started from
    adapters, continued = any(text.startswith("train.lora.rank=") for text in changes), lm is not None
    lm = lm or adapt.load_start(model, weights, which, tokenizer, adapters=adapters)
    if from_causal and not (continued or lm.model.backbone.causal):
        raise UserError(
            f"--from-causal is for models that look to the left only, and {model} looks both ways; leave it out"
        )
    if language:
        config = adapt.language_config(lm, model, task, data, local, changes)
        lm = adapt.turned(lm, config)
        config = fit_machine(lm, config, place, changes, quiet=quiet or print_config or not is_main())
    else:
        config = adapt.task_config(lm, model, task, local, changes)
    if print_config:
        sys.stdout.write(config.to_yaml())
        return
    if language:
        use = f"chat {place}" if task == "sft" else f"sample {place} -n 4"
        _print_adapted(adapt.continue_training(lm, config, place, quiet=quiet), use, as_json)
    elif sweep:
        _sweep(lm, config, place, chosen, quiet, as_json)
    else:
        _print_tasks(adapt.classify(lm, config, place, chosen or [config.seed], quiet=quiet), task, place, as_json)


def _check_sweep(task: str, overrides: list[str]) -> None:
    """Raise if the sweep is not possible."""
    from ..data.tasks import TASKS
    from ..recipes import GENOMICS_GRID

    if task not in TASKS or TASKS[task].tested is None:
        raise UserError(f"--sweep is for tasks with a test split (genomics/NAME, gue/NAME), and {task} is none")
    for text in overrides:
        if text.partition("=")[0] in GENOMICS_GRID:
            raise UserError(f"{text.partition('=')[0]} is what --sweep tries; leave out {text}, or --sweep")


def _sweep(lm: Any, config: Any, out: str, seeds: list[int], quiet: bool, as_json: bool) -> None:
    """Run all cells of the grid, and test the best one."""
    from ..data.tasks import task as task_named
    from ..recipes import GENOMICS_SEEDS
    from ..training.sweep import sweep, tree

    task, seeds = task_named(config.task.name), seeds or list(GENOMICS_SEEDS)
    done = sweep(lm, config, out, seeds, quiet=quiet)
    if is_main() and done.finished:
        report = tree(done, task, seeds)
        if as_json:
            print_json({**report, "out": out})
        else:
            for cell in report["cells"]:
                named = ", ".join(f"{key}={value:g}" for key, value in cell["settings"].items())
                mark = " (chosen)" if cell["chosen"] else ""
                line = f"{named}: {task.evaluations[0]} {task.metric} {_paper_bar(cell['validation'])}{mark}"
                out_console.print(line, markup=False)
            out_console.print(f"{task.name} test: {task.metric} {_paper_bar(report['summary']['test'])}", markup=False)
            out_console.print(f"all runs and results.json: {out}", markup=False)
    if not done.finished:
        raise typer.Exit(exit_code())


def _paper_bar(row: dict[str, Any]) -> str:
    """A mean with the paper's error bar."""
    from ..data.tasks.metrics import in_words

    n = len(row["values"])
    bar = f" ± {row['max_min']:.4f} (largest - smallest of {n} seeds)" if n > 1 else ""
    return in_words(row["mean"], bar)


def _seeds(text: str | None) -> list[int]:
    from ..process.keys import check_seed

    if text is None:
        return []
    try:
        seeds = [check_seed(int(part)) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--seeds {text} must be whole numbers separated by commas, for example 0,1,2") from None
    if len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds {text} contains a seed twice; two runs with the same seed are identical")
    return seeds


def _print_adapted(done: Any, use: str, as_json: bool) -> None:
    """Print the bound before and after, and how the model is used."""
    result = done.result
    if is_main():
        after = result.valid.as_dict() if result.valid else None
        if as_json:
            print_json(run_tree(result, before=done.before, after=after))
        elif result.finished:
            early = " (stopped early)" if result.stopped_early else ""
            out_console.print(f"fine-tuned {result.step} steps{early} into {result.out}", markup=False)
            for name, figures in (("before", done.before), ("after", after)):
                if figures is not None:
                    law = _law(figures["protocol"]) if after and "block" in after["protocol"] else ""
                    out_console.print(f"{name}{law}: {figures_line(figures)}", markup=False)
            out_console.print(f"next: unmask {use}    unmask eval {result.out}", markup=False)
    if not result.finished:
        raise typer.Exit(exit_code())


def _law(protocol: dict[str, Any]) -> str:
    """By which law a model in blocks, or the one it came from, is judged."""
    block = protocol.get("block")
    if block is None:
        return f", {protocol['method']}"
    return f", blocks of {block}" if isinstance(block, int) else f", {block}"


def _print_tasks(results: list[Any], task: str, out: str, as_json: bool) -> None:
    """Print the metrics of all seeds."""
    from ..data.tasks import task as task_named
    from ..data.tasks.metrics import in_words
    from ..training.adapt import summary
    from ..training.sweep import over_seeds

    record = task_named(task)
    metric = record.metric
    finished = all(result.finished for result in results)
    if is_main():
        tabled = over_seeds if record.tested else summary
        table = tabled(results, metric) if finished else {}
        if as_json:
            runs = [
                {
                    "out": str(r.out),
                    "step": r.step,
                    "finished": r.finished,
                    "stopped_early": r.stopped_early,
                    "last": r.last,
                    "best": r.best,
                    "best_step": r.best_step,
                    "seconds": r.seconds,
                    **({"test": r.test} if record.tested else {}),
                }
                for r in results
            ]
            print_json({"task": task, "metric": metric, "out": out, "runs": runs, "summary": table})
        elif finished:
            for split, row in table.items():
                if record.tested and len(results) > 1:
                    out_console.print(f"{task} {split}: {metric} {_paper_bar(row)}", markup=False)
                    continue
                spread = "" if row["sd"] is None else f", ± {row['sd']:.4f} over {len(row['values'])} seeds"
                error = f" ± {row['stderr_data']:.4f} (over examples)" if row.get("stderr_data") is not None else ""
                figure = in_words(row["mean"], f"{error}{spread}")
                out_console.print(f"{task} {split}: {metric} {figure}", markup=False)
            out_console.print(f"predictions and results.json: {out}", markup=False)
    if not finished:
        raise typer.Exit(exit_code())
