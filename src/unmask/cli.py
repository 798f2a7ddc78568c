"""The command line: parse, call, print. Figures go to standard output, everything else to standard error."""

from __future__ import annotations

import io
import json
import math
import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from .errors import UserError

app = typer.Typer(
    name="unmask",
    help="Masked diffusion language models: train, evaluate, sample, infill.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
out_console = Console(highlight=False, soft_wrap=True, emoji=False)
err_console = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)

Overrides = Annotated[list[str] | None, typer.Argument(help="Settings as key=value, for example train.steps=100.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output and nothing else.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
Model = Annotated[str, typer.Argument(help="A run, a folder, a built-in model (tiny-en) or a Hub id.")]
Weights = Annotated[str, typer.Option(help="ema (the average) or raw.")]
Which = Annotated[str, typer.Option(help="last or best checkpoint of a run.")]
With = Annotated[
    list[str] | None,
    typer.Option("--with", help="Any other setting of the sampler, as projection=greedy (may be repeated)."),
]


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(_finite(value), indent=1, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    """The same with null for infinite figures (of a model that diverged): JSON has no word for them."""
    if isinstance(value, dict):
        return {key: _finite(own) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(own) for own in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@app.command()
def train(
    recipe: Annotated[
        str,
        typer.Argument(help="A recipe (demo, tiny, lm1b, owt, text8, mosaicbert, mosaicbert-causal) or a YAML file."),
    ],
    overrides: Overrides = None,
    out: Annotated[str | None, typer.Option(help="Folder of the run; a run in it is continued.")] = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="Show the settings and stop.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    as_json: Json = False,
) -> None:
    """Train a model, or continue a run."""
    from .recipes import recipe as get_recipe

    config = get_recipe(recipe).override(overrides or [])
    if print_config:
        sys.stdout.write(config.to_yaml())
        return
    from .commands import train_model

    result = train_model(config, out or f"runs/{Path(recipe).stem}", quiet=quiet)
    if os.environ.get("RANK", "0") != "0":
        return
    valid = result.valid.as_dict() if result.valid else None
    if as_json:
        _print_json(
            {"out": str(result.out), "step": result.step, "finished": result.finished,
             "stopped_early": result.stopped_early, "valid": valid, "seconds": result.seconds,
             "tokens_per_second": result.tokens_per_second}
        )  # fmt: skip
    elif result.finished:
        early = " (stopped early)" if result.stopped_early else ""
        out_console.print(f"trained {result.step} steps{early} into {result.out}", markup=False)
        if valid:
            out_console.print(figures_line(valid), markup=False)
        judged = "" if valid else " --generative"
        out_console.print(f"next: unmask sample {result.out} -n 4    unmask eval {result.out}{judged}", markup=False)
    if not result.finished:
        raise typer.Exit(130)


def figures_line(figures: dict[str, Any]) -> str:
    """The figures of a likelihood in one line."""
    error = figures["stderr_nats"]
    ppl = figures["perplexity"]
    error, data = (error, figures["stderr_data"]) if math.isfinite(ppl) else (None, None)
    bar = "" if error is None else f" ± {ppl * error:.2f} (Monte Carlo)"
    bar += "" if data is None else f" ± {ppl * data:.2f} (over texts)"
    per_byte = figures["bits_per_byte"]
    tail = "" if per_byte is None else f", {per_byte:.3f} bits/byte"
    return f"perplexity {ppl:.2f}{bar}, {figures['bits_per_token']:.3f} bits/token{tail}, {figures['tokens']:,} tokens"


@app.command("finetune")
def finetune_command(
    model: Model,
    task: Annotated[str, typer.Argument(help="mdlm, mlm, or a task as glue/sst2.")],
    overrides: Overrides = None,
    data: Annotated[str | None, typer.Option(help="mdlm and mlm: the text, a name, a file or a folder.")] = None,
    local: Annotated[
        str | None,
        typer.Option(help="Where the data set or the task lies on disk (default: UNMASK_DATA, else the Hub)."),
    ] = None,
    out: Annotated[str | None, typer.Option(help="Folder of the run; a run in it is continued.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Tasks: one run a seed, as 0,1,2.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="For models without one: a folder, file or Hub name.")] = None,
    which: Which = "last",
    weights: Weights = "ema",
    print_config: Annotated[bool, typer.Option("--print-config", help="Show the settings and stop.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    as_json: Json = False,
) -> None:
    """Fine-tune a model: as a diffusion model that writes (mdlm), as a BERT (mlm), or on a task with labels."""
    from . import adapt

    language = adapt.is_language(task)
    if language and seeds is not None:
        raise UserError("--seeds is for tasks; set seed=1 for another seed")
    if not language and data is not None:
        raise UserError(f"{task} has texts of its own; leave out --data, or say with --local where its files are")
    chosen = _seeds(seeds)
    lm = adapt.load_start(model, weights, which, tokenizer)
    if language:
        config = adapt.language_config(lm, model, task, data, local, overrides or [])
    else:
        config = adapt.task_config(lm, model, task, local, overrides or [])
    if print_config:
        sys.stdout.write(config.to_yaml())
        return
    place = out or f"runs/{Path(model.rstrip('/')).name}-{task.replace('/', '-')}"
    if language:
        _print_adapted(adapt.go_on(lm, config, place, quiet=quiet), as_json)
    else:
        _print_tasks(adapt.classify(lm, config, place, chosen or [config.seed], quiet=quiet), task, place, as_json)


def _seeds(text: str | None) -> list[int]:
    from .evaluate import check_seed

    if text is None:
        return []
    try:
        found = [check_seed(int(part)) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--seeds {text} must be whole numbers with commas between, for example 0,1,2") from None
    if len(set(found)) < len(found):
        raise UserError(f"--seeds {text} has a seed twice; a run of the same seed is the same run")
    return found


def _print_adapted(done: Any, as_json: bool) -> None:
    """The bound before and after."""
    result = done.result
    if os.environ.get("RANK", "0") == "0":
        after = result.valid.as_dict() if result.valid else None
        if as_json:
            _print_json(
                {"out": str(result.out), "step": result.step, "finished": result.finished,
                 "stopped_early": result.stopped_early, "before": done.before, "after": after,
                 "seconds": result.seconds, "tokens_per_second": result.tokens_per_second}
            )  # fmt: skip
        elif result.finished:
            early = " (stopped early)" if result.stopped_early else ""
            out_console.print(f"fine-tuned {result.step} steps{early} into {result.out}", markup=False)
            for name, figures in (("before", done.before), ("after", after)):
                if figures is not None:
                    out_console.print(f"{name}: {figures_line(figures)}", markup=False)
            out_console.print(f"next: unmask sample {result.out} -n 4    unmask eval {result.out}", markup=False)
    if not result.finished:
        raise typer.Exit(130)


def _print_tasks(results: list[Any], task: str, out: str, as_json: bool) -> None:
    """The metrics of all seeds."""
    from .adapt import summary
    from .tasks import task as task_named

    metric = task_named(task).metric
    finished = all(result.finished for result in results)
    if os.environ.get("RANK", "0") == "0":
        table = summary(results, metric) if finished else {}
        if as_json:
            runs = [
                {"out": str(r.out), "step": r.step, "finished": r.finished, "stopped_early": r.stopped_early,
                 "last": r.last, "best": r.best, "best_step": r.best_step, "seconds": r.seconds}
                for r in results
            ]  # fmt: skip
            _print_json({"task": task, "metric": metric, "out": out, "runs": runs, "summary": table})
        elif finished:
            for split, found in table.items():
                spread = "" if found["sd"] is None else f", ± {found['sd']:.4f} over {len(found['values'])} seeds"
                error = f" ± {found['stderr_data']:.4f} (over examples)" if found["stderr_data"] is not None else ""
                out_console.print(f"{task} {split}: {metric} {found['mean']:.4f}{error}{spread}", markup=False)
            out_console.print(f"predictions and results.json: {out}", markup=False)
    if not finished:
        raise typer.Exit(130)


JUDGING = (
    "scorer", "reference", "n", "length", "sampler", "k", "threshold", "eta", "temperature", "top_k", "top_p", "min_p",
    "stride", "mauve", "more",
)  # fmt: skip


def _refuse(ctx: typer.Context, names: Iterable[str], why: str) -> None:
    """One sentence if an option was given that would change nothing."""
    for name in names:
        if getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE":
            option = {"n": "-n", "k": "-k", "more": "--with"}.get(name, f"--{name.replace('_', '-')}")
            raise UserError(f"{option} {why}")


def _suite(ctx: typer.Context, model: str, name: str, sets: str | None) -> None:
    """All sets of a suite in one table."""
    from .commands import evaluate_members
    from .suites import table_lines

    _refuse(ctx, JUDGING, "needs --generative")
    _refuse(ctx, ("data", "split", "bound", "steps", "schedule", "label_column"), "does not go with --suite")
    wanted = ("local", "draws", "batch_size", "rows", "seed", "which", "weights", "device", "estimator")
    chosen = None if sets is None else [word.strip() for word in sets.split(",") if word.strip()]
    results = evaluate_members(model, name=name, sets=chosen, **{key: ctx.params[key] for key in wanted})
    if os.environ.get("RANK", "0") != "0":
        return
    if ctx.params["as_json"]:
        _print_json({"suite": name, "model": model, "sets": [one.as_dict() for one in results]})
        return
    for line in table_lines(results):
        out_console.print(line, markup=False)


@app.command("eval")
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
    _refuse(ctx, ("sets",), "needs --suite")
    if generative:
        likelihoods = ("data", "split", "bound", "draws", "estimator", "schedule", "label_column", "suite", "local")
        _refuse(ctx, likelihoods, "does not go with --generative")
    else:
        _refuse(ctx, JUDGING, "needs --generative")
    if generative:
        from .generative import judge_model
        from .judge import protocol_lines, table

        how: dict[str, Any] = {
            "sampler": sampler, "steps": steps, "seed": seed, "temperature": temperature, "top_k": top_k,
            "top_p": top_p, "min_p": min_p, "stride": stride, "k": k, "threshold": threshold, "eta": eta,
        }  # fmt: skip
        report = judge_model(
            model, scorer=scorer, n=n, length=length, reference=reference, rows=rows, with_mauve=mauve, which=which,
            weights=weights, device=device, batch_size=batch_size, **{**how, **_settings(more, ctx.params)},
        )  # fmt: skip
        if as_json:
            _print_json(report.as_dict())
            return
        out_console.print(table(report.columns()), markup=False)
        for line in protocol_lines({**report.protocol, **report.samples.protocol}):
            out_console.print(line, markup=False)
        return
    from .commands import evaluate_model

    likelihood = evaluate_model(
        model, data=data, split=split, bound=bound, steps=steps, draws=draws, schedule=schedule,
        batch_size=batch_size, rows=rows, seed=seed, which=which, weights=weights, device=device,
        estimator=estimator, label_column=label_column, local=local,
    )  # fmt: skip
    if os.environ.get("RANK", "0") != "0":
        return
    figures = likelihood.as_dict()
    if as_json:
        _print_json(figures)
        return
    out_console.print(figures_line(figures), markup=False)
    for name, value in figures["protocol"].items():
        out_console.print(f"  {name}: {value}", markup=False)


@app.command()
def sample(
    ctx: typer.Context,
    model: Model,
    n: Annotated[int, typer.Option("-n", help="How many.")] = 1,
    length: Annotated[int | None, typer.Option(help="Tokens (default: the model's length).")] = None,
    steps: Annotated[
        int | None, typer.Option(help="T, the number of denoising steps (default: 128; gibbs: 500; simplex: 1000).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Sample i has seed + i.")] = 0,
    prompt: Annotated[str | None, typer.Option(help="Text that every sample begins with.")] = None,
    suffix: Annotated[str | None, typer.Option(help="Text that every sample ends with.")] = None,
    infill: Annotated[
        str | None, typer.Option(help="Text with gaps: {{3}} is a gap of 3 tokens, {{2-6}} one of 2 to 6.")
    ] = None,
    template: Annotated[
        str | None, typer.Option(help="JSON lines with a text, prompt or suffix each (- reads standard input).")
    ] = None,
    stride: Annotated[
        int | None, typer.Option(help="Any length: windows of the model's length that move by this many tokens.")
    ] = None,
    sampler: Annotated[
        str | None,
        typer.Option(
            help="plan, ancestral, analytic, euler, first-hitting, left-to-right, order, confidence, entropy, margin, "
            "remask-cap, remask-rescale, remask-loop, corrector, gibbs or simplex (default: what fits the model)."
        ),
    ] = None,
    k: Annotated[int | None, typer.Option("-k", help="Tokens a step, for orders.")] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Write all that is at least this sure (entropy: at most this unsure).")
    ] = None,
    order: Annotated[str | None, typer.Option(help="For --sampler order: masked tokens from 0, as 2,0,1.")] = None,
    eta: Annotated[float | None, typer.Option(help="Strength of remasking and correction.")] = None,
    window: Annotated[str | None, typer.Option(help="Times between which remasking is on, as 0.55,0.05.")] = None,
    keep: Annotated[float | None, typer.Option(help="remask-loop: share that stays written.")] = None,
    corrections: Annotated[int | None, typer.Option(help="Corrector steps after each step.")] = None,
    more: With = None,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Only the k most likely tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Only the most likely tokens that hold this much.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Only tokens at least this likely, relative to the best.")] = None,
    ban: Annotated[list[str] | None, typer.Option(help="A token that is never written (may be repeated).")] = None,
    min_length: Annotated[int, typer.Option(help="No end of text within the first tokens written.")] = 0,
    stop: Annotated[list[str] | None, typer.Option(help="End the text before this string (may be repeated).")] = None,
    stop_at_eos: Annotated[bool, typer.Option("--stop-at-eos", help="End the text at an end-of-text token.")] = False,
    label: Annotated[str | None, typer.Option(help="Label of a model that was trained with labels.")] = None,
    guidance: Annotated[float, typer.Option(help="Classifier-free guidance towards the label; 1 is none.")] = 1.0,
    batch_size: Annotated[int, typer.Option(help="Sequences a network call.")] = 16,
    watch: Annotated[bool, typer.Option("--watch", help="Show the masks become words.")] = False,
    html: Annotated[str | None, typer.Option(help="Write a replay to this HTML file.")] = None,
    which: Which = "last",
    weights: Weights = "ema",
    device: Device = "auto",
    as_json: Json = False,
    as_lines: Annotated[
        bool, typer.Option("--jsonl", help="One JSON line a sample, with step and probability of every token.")
    ] = False,
) -> None:
    """Write text: from nothing, after a prompt, before a suffix, into gaps; of any length, in any order."""
    if infill is not None and (prompt is not None or suffix is not None):
        raise UserError("give either --prompt or --infill; a prompt is a text with a gap at its end")
    if template is not None and (infill is not None or prompt is not None or suffix is not None or watch or html):
        raise UserError("--template does not go with --prompt, --suffix, --infill, --watch or --html")
    if as_json and as_lines:
        raise UserError("give either --json (one document) or --jsonl (a line a sample)")
    from .commands import Request, load_lm, sample_protocol, write_samples
    from .writing import Options

    options = Options(
        seed=seed, sampler=sampler, steps=steps, k=k, threshold=threshold, order=_integers(order), eta=eta,
        window=_pair(window), keep=keep, corrections=corrections, temperature=temperature, top_k=top_k, top_p=top_p,
        min_p=min_p, ban=[_word(word) for word in ban or []], min_length=min_length, label=label, guidance=guidance,
        stride=stride, stop=stop or [], stop_at_eos=stop_at_eos,
    )  # fmt: skip
    options = replace(options, **_settings(more, ctx.params))
    lm = load_lm(model, which, weights, device)
    options = options.settle(lm.model)
    protocol = sample_protocol(lm, model, which, weights)
    if template is not None:
        _template(lm, template, options, n, length, batch_size, protocol, as_json)
        return
    one = n == 1 and not (as_json or as_lines or watch)
    samples, protocol = write_samples(
        lm, Request(n, length, prompt, suffix, infill), options, batch_size=batch_size, watch=watch, html=html,
        stream=_show if one else None, protocol=protocol,
    )  # fmt: skip
    if as_json:
        _print_json({"samples": [s.as_dict() for s in samples], "protocol": protocol})
        return
    for s in samples:
        if as_lines:
            sys.stdout.write(json.dumps(s.as_dict(tokens=True) | {"index": s.index}, allow_nan=False) + "\n")
            continue
        if len(samples) > 1:
            err_console.print(f"[dim]-- seed {s.seed}, {s.network_calls} network calls[/dim]")
        sys.stdout.write("\n" if one else s.text + "\n")
    if html is not None:
        err_console.print(f"replay: {html}", markup=False)


def _settings(given: list[str] | None, options: Iterable[str]) -> dict[str, Any]:
    """What `--with` says, of settings that are no options of the command."""
    import yaml

    from .config import nearest
    from .writing import KINDS

    found: dict[str, Any] = {}
    for text in given or []:
        name, sep, value = text.partition("=")
        if not sep:
            raise UserError(f"--with {text} must be a setting and its value, for example projection=greedy")
        if name not in KINDS:
            raise UserError(f"--with {text}: a sampler has no setting {name!r}{nearest(name, KINDS)}")
        if name in options or name in found:
            fix = "give it once" if name in found else f"give {'-k' if name == 'k' else '--' + name.replace('_', '-')}"
            raise UserError(f"--with {text}: {name} {'is set twice' if name in found else 'is an option'}; {fix}")
        try:
            found[name] = yaml.safe_load(value)
        except yaml.YAMLError:
            found[name] = value
    return found


def _show(piece: str) -> None:
    """Text as soon as it is fixed."""
    sys.stdout.write(piece)
    if piece:
        sys.stdout.flush()


def _template(
    lm: Any, path: str, options: Any, n: int, length: int | None, batch_size: int, protocol: Any, as_json: bool
) -> None:
    """All lines of a template file; exit code 2 after them if one was wrong."""
    from .templates import Bad, read_lines, write_template
    from .track import progress_bar

    if n < 1:
        raise UserError(f"-n {n} must be at least 1")
    lines = read_lines(path)
    if not lines:
        raise UserError(f"the template file {path} is empty; give it a JSON object a line")
    bad, documents = 0, []
    with progress_bar("writing") as progress:
        for found in write_template(
            lm, lines, options, n=n, length=length, batch_size=batch_size, report=progress
        ):  # fmt: skip
            if isinstance(found, Bad):
                bad += 1
                reason = " ".join(found.reason.splitlines())
                err_console.print(f"unmask: line {found.number} of {path}: {reason}", markup=False)
                found = {"line": found.number, "error": found.reason}
            documents.append(found)
            if not as_json:
                sys.stdout.write(json.dumps(found, allow_nan=False) + "\n")
                sys.stdout.flush()
    if as_json:
        _print_json({"lines": documents, "protocol": {**protocol, **options.describe()}})
    if bad:
        raise typer.Exit(2)


def _integers(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"--order {text} must be whole numbers with commas between, for example 2,0,1") from None


def _pair(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        on, off = (float(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"--window {text} must be two times with a comma between, for example 0.55,0.05") from None
    return on, off


def _word(text: str) -> str | int:
    """A token by its text, or by its number as #17."""
    return int(text[1:]) if text.startswith("#") and text[1:].isdecimal() else text


@app.command()
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
    from .commands import Texts, load_lm, score_texts
    from .scoring import score_lines, token_lines

    settings = {"steps": steps, "k": k, "threshold": threshold, "order": _integers(order)}
    own, found = score_texts(
        load_lm(model, which, weights, device), Texts(texts or [], file, span, marks), method=method, plan=plan,
        plan_settings=settings, label=label, draws=draws, calls=calls, orders=orders, seed=seed, batch_size=batch_size,
    )  # fmt: skip
    protocol = {"model": model, "checkpoint": which, **found.protocol}
    if as_json:
        each = [
            {"text": text, **one.as_dict(), "nats": one.nats, "pieces": one.pieces, "token_nats": one.token_nats}
            for text, one in zip(own, found.texts, strict=True)
        ]
        for one in each:
            del one["protocol"]
        _print_json({**found.as_dict(), "nats": found.nats, "protocol": protocol, "texts": each})
        return
    lines = score_lines(found, own)
    if len(own) == 1 and (tokens := token_lines(found.texts[0])):
        lines += ["", *tokens]
    lines += ["", *(f"  {name}: {value}" for name, value in protocol.items())]
    for line in lines:
        out_console.print(line, markup=False)


@app.command()
def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="ablation, schedules, steps, time-conditioning, lm, caching, semi-ar, variance-curve, zero-shot, "
            "bert, glue or encoder."
        ),
    ],
    scale: Annotated[
        str, typer.Option(help="smoke (minutes), small (an hour or so), medium (hours) or paper (a cluster).")
    ] = "smoke",
    data: Annotated[str, typer.Option(help="The text: a name, a file or a folder.")] = "python-docs",
    out: Annotated[str, typer.Option(help="Folder of models and reports; tables share the models in it.")] = (
        "runs/reproduce"
    ),
    seed: Annotated[int, typer.Option(help="Seed of trainings and evaluations.")] = 0,
    scorer: Annotated[str | None, typer.Option(help="Judge of samples, as for unmask eval --generative.")] = None,
    local: Annotated[
        str | None,
        typer.Option(help="Where the sets of zero-shot, or GLUE, lie on disk (default: UNMASK_DATA, else the Hub)."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="encoder: a BERT, as for unmask finetune.")] = None,
    in_domain: Annotated[
        list[str] | None, typer.Option(help="zero-shot: a set that the text is made from (may be repeated).")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    as_json: Json = False,
) -> None:
    """Re-create a table of the paper, beside the paper's figures: trains what it needs, writes report.md and plots."""
    from .reproduce import reproduce as run
    from .reproduce.bench import Missing
    from .reproduce.report import plain, terminal_lines

    try:
        report, page = run(
            name, scale=scale, data=data, out=out, seed=seed, scorer=scorer, local=local, known=in_domain or (),
            start=model, quiet=quiet,
        )  # fmt: skip
    except Missing as missing:  # the paper's scale: what to run, and then this command again
        if as_json:
            _print_json({"missing": str(missing).splitlines()})
        else:
            out_console.print(str(missing), markup=False)
            err_console.print("train these on a cluster, then run the same command again", markup=False)
        return
    if as_json:
        _print_json(plain(report))
        return
    for line in terminal_lines(report):
        out_console.print(line, markup=False)
    err_console.print(f"report: {page}", markup=False)


@app.command(
    "lm-eval", add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
def lm_eval(context: typer.Context) -> None:
    """Run the lm-evaluation-harness, which then knows --model unmask."""
    from .harness import main as run

    run(context.args)


@app.command()
def demo(
    overrides: Overrides = None,
    out: Annotated[str, typer.Option(help="Folder of the run.")] = "runs/demo",
) -> None:
    """Train the demo model on Python's documentation, and show what it can do."""
    from .demo import run

    run(out, overrides or [])


@app.command()
def convert(
    source: Annotated[str, typer.Argument(help="A run, a folder, a .ckpt, .bin or .pt file, or a Hub id.")],
    out: Annotated[str, typer.Argument(metavar="DIR", help="The folder to write; nothing is overwritten.")],
    tokenizer: Annotated[str | None, typer.Option(help="For models without one: a folder, file or Hub name.")] = None,
    weights: Weights = "ema",
    to: Annotated[str, typer.Option(help="unmask (a folder that travels) or published (MDLM's layout).")] = "unmask",
    dtype: Annotated[str, typer.Option(help="float32, float16 or bfloat16.")] = "float32",
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a Hub model.")] = None,
    new_head: Annotated[
        bool, typer.Option("--new-head", help="Give an encoder without a masked-LM head a fresh one, to be trained.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a folder that travels of a run, a published model or a Lightning checkpoint; nothing in it is executed."""
    from .convert import convert as run

    done = run(
        source, out, tokenizer=tokenizer, weights=weights, to=to, dtype=dtype, revision=revision, new_head=new_head
    )
    if as_json:
        _print_json(done)
        return
    what = f"{done['method']}, {done['parameters']:,} weights ({done['weights']}), tokenizer {done['tokenizer']}"
    out_console.print(f"wrote {done['out']}: {what}", markup=False)
    if done["unsaid"]:
        lost = ", ".join(f"{name}={value}" for name, value in done["unsaid"].items())
        out_console.print(f"its config.json cannot say {lost}: readers, unmask too, take the paper's", markup=False)


data_app = typer.Typer(help="Data sets: list, show, prepare.", no_args_is_help=True)
app.add_typer(data_app, name="data")
DataOverrides = Annotated[list[str] | None, typer.Argument(help="Settings as data.key=value, as data.length=64.")]
Source = Annotated[str, typer.Argument(help="A named data set, a file, a folder or a Hub data set.")]
ZeroShot = Annotated[
    bool, typer.Option("--zero-shot", help="The paper's zero-shot settings (gpt2 tokens, no EOS between documents).")
]


@data_app.command("list")
def data_list(as_json: Json = False) -> None:
    """The named data sets, with the paper's conventions for each."""
    from .datacommands import lines_of_list, list_sets

    found = list_sets()
    _print_data(found, lines_of_list(found), as_json)


@data_app.command("show")
def data_show(
    source: Source,
    overrides: DataOverrides = None,
    split: Annotated[str | None, typer.Option(help="train, valid or test (default: the first that is there).")] = None,
    n: Annotated[int, typer.Option("-n", help="How many texts and rows.")] = 3,
    zero_shot: ZeroShot = False,
    as_json: Json = False,
) -> None:
    """How text becomes rows: raw, detokenized, in tokens, as it enters the network; and counts."""
    from .datacommands import lines_of_show, settings_for, show
    from .track import progress_bar

    with progress_bar("tokenizing") as progress:
        found = show(settings_for(source, overrides or [], zero_shot), split, n, progress)
    _print_data(found, lines_of_show(found), as_json)


@data_app.command("prepare")
def data_prepare(
    source: Source,
    overrides: DataOverrides = None,
    split: Annotated[list[str] | None, typer.Option(help="Only this split (may be repeated).")] = None,
    zero_shot: ZeroShot = False,
    as_json: Json = False,
) -> None:
    """Tokenize a data set into the cache; prints its folder and counts."""
    from .datacommands import lines_of_prepare, prepare_set, settings_for
    from .track import progress_bar

    with progress_bar("tokenizing") as progress:
        found = prepare_set(settings_for(source, overrides or [], zero_shot), split, progress)
    _print_data(found, lines_of_prepare(found), as_json)


def _print_data(found: Any, lines: list[str], as_json: bool) -> None:
    if as_json:
        _print_json(found)
        return
    for line in lines:
        out_console.print(line, markup=False)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        from .version import __version__

        sys.stdout.write(f"unmask {__version__}\n")
        raise typer.Exit


def main() -> None:
    """Run; what the user got wrong is one sentence and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # where a character cannot be shown its number is
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except UserError as error:
        err_console.print("unmask:", *str(error).splitlines(), markup=False)
        sys.exit(2)
    except OSError as error:  # a full disk, a file that may not be read: the system's own words
        err_console.print(f"unmask: {error.filename or 'input/output'}: {error.strerror or error}", markup=False)
        sys.exit(2)
