"""The command line: parse, call, print. Figures go to standard output, everything else to standard error.

Every command is a module: its options, its body, its output. They are listed here in the order of `unmask --help`.
"""

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import typer

from ..errors import UserError
from . import (
    chat,
    choose,
    compare,
    convert,
    data,
    demo,
    embed,
    fill,
    finetune,
    lm_eval,
    marginals,
    reproduce,
    sample,
    score,
    serve,
    train,
    variants,
)
from . import eval as evaluation
from .help import HelpfulCommand, HelpfulGroup
from .shared import err_console, figures_line, out_console, with_settings, writing_settings

__all__ = ["app", "err_console", "figures_line", "main", "out_console"]

SETTINGS: dict[str, tuple[Callable[..., None], Callable[[], Iterable[str]]]] = {  # command -> which settings it takes
    "eval": (evaluation.evaluate, writing_settings),
    "sample": (sample.sample, writing_settings),
    "fill": (fill.fill, writing_settings),
    "chat": (chat.chat, writing_settings),
    "score": (score.score, score.plan_settings),
}
OUTPUTS = ("--out", "--html", "--fasta")  # options that name what is written


OUT_OF_MEMORY = (
    "out of memory; take fewer rows at once (train.micro_batch_size leaves the result as it is; train.batch_size, "
    "eval.batch_size, --batch-size), a shorter length or a smaller model"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there is no memory left; torch has a class for that on GPUs, and a text elsewhere."""
    names = {kind.__name__ for kind in type(error).__mro__}
    words = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")
    return bool(names & {"MemoryError", "OutOfMemoryError"}) or any(word in str(error).lower() for word in words)


def full_command(name: str) -> Any:
    """A command of `SETTINGS` with the options of its settings; their schema needs torch."""
    single = typer.Typer(add_completion=False)
    single.command(name, cls=HelpfulCommand)(with_settings(*SETTINGS[name]))
    return typer.main.get_command(single)


def refuse_empty_paths(words: Sequence[str]) -> None:
    """Raise for an output without a name: it would be the default, or the current folder."""
    for word, value in itertools.pairwise([*words, "."]):
        option, sep, text = word.partition("=")
        if option in OUTPUTS and not (text if sep else value).strip():
            raise UserError(f"{option} is empty; give the path to write to, or leave {option} out")


class CommandGroup(HelpfulGroup):
    """Adds the options of the settings only to the command that is called, so that `unmask --help` stays fast."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        refuse_empty_paths(rest)
        return name, full_command(name) if name in SETTINGS else command, rest


app = typer.Typer(
    name="unmask",
    cls=CommandGroup,
    help="Masked diffusion language models: train, evaluate, sample, infill.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

app.command(cls=HelpfulCommand)(train.train)
app.command(cls=HelpfulCommand)(finetune.finetune)
for name, (command, _) in SETTINGS.items():
    app.command(name, cls=HelpfulCommand)(with_settings(command, None))
app.command(cls=HelpfulCommand)(marginals.marginals)
app.command(cls=HelpfulCommand)(choose.choose)
app.command(cls=HelpfulCommand)(serve.serve)
app.command(cls=HelpfulCommand)(variants.variants)
app.command(cls=HelpfulCommand)(embed.embed)
app.command(cls=HelpfulCommand)(compare.compare)
app.command(cls=HelpfulCommand)(reproduce.reproduce)
app.command(
    "lm-eval", add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)(lm_eval.lm_eval)
app.command(cls=HelpfulCommand)(demo.demo)
app.command(cls=HelpfulCommand)(convert.convert)
app.add_typer(data.app, name="data")


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        from ..version import __version__

        sys.stdout.write(f"unmask {__version__}\n")
        raise typer.Exit


def main() -> None:
    """Run the command line; a user error is printed as one sentence and exits with code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # print the code of a character that the terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except UserError as error:
        err_console.print("unmask:", *str(error).splitlines(), markup=False)
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        err_console.print(f"unmask: {OUT_OF_MEMORY}", markup=False)
        sys.exit(2)
    except OSError as error:  # a full disk, an unreadable file: in the words of the system
        err_console.print(f"unmask: {error.filename or 'input/output'}: {error.strerror or error}", markup=False)
        sys.exit(2)
