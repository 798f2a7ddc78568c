"""What the commands share: consoles, options, output, and checks."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from ..errors import UserError, nearest
from ..jsonable import to_json
from ..progress import perplexity_form

if TYPE_CHECKING:
    from ..config import DataConfig
    from ..lm import LM
    from ..sampling.settings import Setting

out_console = Console(highlight=False, soft_wrap=True, emoji=False)
err_console = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)

Overrides = Annotated[list[str] | None, typer.Argument(help="Settings as key=value, for example train.steps=100.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document to standard output and nothing else.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
Model = Annotated[str, typer.Argument(help="A run, a folder, a built-in model (tiny-en) or a Hub id.")]
Weights = Annotated[str, typer.Option(help="ema (averaged weights) or raw.")]
TokenizerOf = Annotated[
    str | None,
    typer.Option("--tokenizer", help="Tokenizer of a model that comes without one: a folder, a file or a Hub name."),
]
Template = Annotated[
    str | None,
    typer.Option(help="Chat template in place of the model's own: plain, chatml, llama3 or a file of Jinja."),
]
Quantize = Annotated[
    str | None, typer.Option("--quantize", help="int8: on the CPU faster and smaller, and a little less exact.")
]
Context = Annotated[
    int | None,
    typer.Option(
        help="Tokens of a prompt and its answer, of a model of others (default: its positions, at most 1024).", min=2
    ),
]
Which = Annotated[str, typer.Option(help="last or best checkpoint of a run.")]
RunFolder = Annotated[str | None, typer.Option("--out", help="Folder of the run; an existing run is continued.")]
Minutes = Annotated[
    float | None,
    typer.Option(help="Train for about so long: steps, warm-up and decay are chosen by measuring (train.minutes)."),
]
BothStrands = Annotated[
    bool, typer.Option("--both-strands", help="Average over both strands, for networks that are not equivariant.")
]
Exact = Annotated[
    bool,
    typer.Option("--exact", help="Draw from the model's plain law, and not with the settings that it recommends."),
]
With = Annotated[
    list[str] | None,
    typer.Option("--with", help="A setting by its name, for example projection=greedy (may be repeated)."),
]


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(json_text(value, indent=1) + "\n")


def json_text(value: Any, indent: int | None = None) -> str:
    """A JSON document for standard output, escaped where its encoding lacks a character."""
    text = to_json(value, indent)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return to_json(value, indent, ascii=True)
    return text


def lines_of(typed: bool, prompt: str, how_to_end: str) -> Iterator[str]:
    """What is typed, with a history if the terminal supports one; or the lines of a pipe."""
    if not typed:
        for line in sys.stdin:
            yield line.rstrip("\r\n")
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # input() then has a history and can be edited
    while True:
        try:
            yield input(prompt)
        except EOFError:
            sys.stdout.write("\n")
            return
        except KeyboardInterrupt:
            err_console.print(how_to_end, markup=False)


def print_lines(lines: Iterable[str]) -> None:
    """Lines on standard output, as they are."""
    for line in lines:
        out_console.print(line, markup=False)


def is_main() -> bool:
    """Whether this is the process that prints, among those that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def exit_code() -> int:
    """Of a run that was stopped and saved; torchrun would report anything but 0 as the failure of a process."""
    from ..distributed import launched

    return 0 if launched() else 130


def with_minutes(overrides: list[str] | None, minutes: float | None) -> list[str]:
    """The overrides of a command with its --minutes among them."""
    return [*(overrides or []), *([] if minutes is None else [f"train.minutes={minutes}"])]


def figures_line(figures: dict[str, Any]) -> str:
    """The figures of a likelihood in one line."""
    error = figures["stderr_nats"]
    ppl = figures["perplexity"]
    error, data = (error, figures["stderr_data"]) if math.isfinite(ppl) else (None, None)
    form = perplexity_form(ppl)
    bar = "" if error is None else f" ± {ppl * error:{form}} (Monte Carlo)"
    bar += "" if data is None else f" ± {ppl * data:{form}} (over texts)"
    per_byte = figures["bits_per_byte"]
    tail = "" if per_byte is None else f", {per_byte:.3f} bits/byte"
    return (
        f"perplexity {ppl:{form}}{bar}, {figures['bits_per_token']:.3f} bits/token{tail}, {figures['tokens']:,} tokens"
    )


def protocol_lines(protocol: dict[str, Any]) -> list[str]:
    """How the figures were obtained, one line per setting."""
    return [f"  {name}: {value}" for name, value in protocol.items()]


def run_tree(result: Any, **figures: Any) -> dict[str, Any]:
    """How a run of a language model ended, and its figures."""
    return {
        "out": str(result.out),
        "step": result.step,
        "finished": result.finished,
        "stopped_early": result.stopped_early,
        **figures,
        "seconds": result.seconds,
        "tokens_per_second": result.tokens_per_second,
    }


def load_lm(
    path: str,
    which: str,
    weights: str,
    device: str,
    tokenizer: str | None = None,
    quantize: str | None = None,
    length: int | None = None,
    **how: Any,
) -> LM:
    """A saved model."""
    from ..hub.resolve import load

    how |= {"tokenizer": tokenizer, "quantize": quantize, "length": length}
    return load(path, which=which, weights=weights, device=device, **how)


def with_template(lm: LM, template: str | None) -> LM:
    """The model with a chat template in place of its own, if one was named."""
    from ..data.chat import ChatTemplate

    return lm if template is None else replace(lm, chat_template=ChatTemplate.named(template, lm.tokenizer))


def used_weights(lm: LM, asked: str) -> str:
    """The weights that are used: `raw` if the run has no average."""
    return asked if lm.config.train.ema else "raw"


def check_writable(path: str) -> None:
    """Raise if a file cannot be written, before minutes of computation rather than after them."""
    folder = Path(path).parent
    if not folder.is_dir():
        raise UserError(f"cannot write {path}: there is no folder {folder}")
    if Path(path).is_dir():
        raise UserError(f"cannot write {path}: it is a folder; give the name of a file")
    if not os.access(folder, os.W_OK):
        raise UserError(f"cannot write {path}: the folder {folder} is not writable")


def read_genome(path: str, spec: DataConfig) -> Any:
    """A FASTA file; it is packed into the cache the first time."""
    from ..data.cache import cache_folder
    from ..data.genome.store import open_genome
    from ..progress import progress_bar

    with progress_bar("reading the genome") as progress:
        return open_genome(path, cache_folder(spec), progress)


def given(ctx: typer.Context, name: str) -> bool:
    """Whether the command line has this option."""
    return getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"


def refuse(ctx: typer.Context, names: Iterable[str], why: str) -> None:
    """Raise if an option was given that would have no effect."""
    for name in names:
        if given(ctx, name):
            option = {"n": "-n", "k": "-k", "more": "--with"}.get(name, f"--{name.replace('_', '-')}")
            raise UserError(f"{option} {why}")


PANEL = "How text is written"
TYPES: dict[str, Any] = {"whole": int | None, "number": float | None, "flag": bool}
LISTS = ("tokens", "texts")


def with_settings(command: Callable[..., None], names: Callable[[], Iterable[str]] | None) -> Callable[..., None]:
    """A command with one option per setting (of these names) in place of its `**settings`; None: without them.

    The schema of the settings is defined by the samplers and needs torch, so it is read when the command is called, not
    for `unmask --help`. An option that the command declares itself stays as it is.
    """
    signature = inspect.signature(command, eval_str=True)
    params = [param for param in signature.parameters.values() if param.kind is not param.VAR_KEYWORD]
    known = {param.name for param in params}
    if names is not None:
        from ..sampling.params import all_settings

        schema = all_settings()
        params += [_option(schema[name]) for name in names() if name not in known]

    @functools.wraps(command)
    def wrapper(**given: Any) -> None:
        command(**given)

    del wrapper.__wrapped__  # typer looks at the signature behind it
    wrapper.__signature__ = signature.replace(parameters=params)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {param.name: param.annotation for param in params}
    return wrapper


def writing_settings() -> Iterable[str]:
    """All settings that have an option."""
    from ..sampling.params import settings_on

    return settings_on("cli")


def _option(spec: Setting) -> inspect.Parameter:
    """The option of a setting."""
    from ..sampling.params import SAMPLERS, default_words

    kind = list[str] | None if spec.kind in LISTS else TYPES.get(spec.kind, str | None)
    shown = spec.kind in ("whole", "number", "flag") and spec.default is not None  # typer adds these itself
    words = {"sampler": "what fits the model"}.get(spec.kind, "" if shown else default_words(spec.name))
    choices = ", ".join(SAMPLERS if spec.kind == "sampler" else spec.choices)
    text = ": ".join(filter(None, (spec.help, choices))) + (" (may be repeated)" if spec.kind in LISTS else "")
    text += f" (default: {words})." if words else "."
    name = spec.option
    if spec.kind == "flag" and spec.default is None:  # on, off, or left to the model
        name = f"{spec.option}/--no-{spec.option.removeprefix('--')}"
    option = typer.Option(name, help=escape(text), rich_help_panel=PANEL)
    default = spec.default if shown else None
    return inspect.Parameter(
        spec.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )


def read_settings(ctx: typer.Context, more: list[str] | None = None) -> dict[str, Any]:
    """The settings that the options of a command and `--with` give."""
    from ..sampling.params import settings_on

    result = {}
    for name, spec in settings_on("cli").items():
        value = ctx.params.get(name)
        if value is None or (spec.kind in LISTS and not value) or not given(ctx, name):
            continue
        text = isinstance(value, str) or spec.kind in LISTS
        result[name] = spec.parse(value, f"{spec.option} {value}") if text else value
    return result | _with(ctx, more)


def _with(ctx: typer.Context, more: list[str] | None) -> dict[str, Any]:
    import yaml

    from ..sampling.params import settings_on

    result: dict[str, Any] = {}
    known = settings_on("cli")
    for text in more or []:
        name, sep, value = text.partition("=")
        if not sep:
            raise UserError(f"--with {text} must be NAME=VALUE, for example projection=greedy")
        if name not in known:
            raise UserError(f"--with {text}: there is no setting {name!r}{nearest(name, known)}")
        if name in result or given(ctx, name):
            raise UserError(f"--with {text}: {name} is set twice; give it once")
        try:
            result[name] = known[name].from_json(yaml.safe_load(value))
        except (yaml.YAMLError, RecursionError):
            result[name] = value
    return result
