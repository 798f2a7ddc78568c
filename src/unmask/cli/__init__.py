"""The command line: parse, call, print. Figures go to standard output, everything else to standard error.

Each family of commands is a file; they are named here, in the order of `unmask --help`.
"""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from ..errors import UserError
from . import dna, evaluating, filling, sampling, serving, tools, training
from .shared import err_console, figures_line, out_console

__all__ = ["app", "err_console", "figures_line", "main", "out_console"]

app = typer.Typer(
    name="unmask",
    help="Masked diffusion language models: train, evaluate, sample, infill.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

app.command()(training.train)
app.command("finetune")(training.finetune_command)
app.command("eval")(evaluating.evaluate)
app.command()(sampling.sample)
app.command()(filling.fill)
app.command()(evaluating.score)
app.command()(serving.serve)
app.command()(dna.variants)
app.command()(dna.embed)
app.command()(dna.compare)
app.command()(tools.reproduce)
app.command(
    "lm-eval", add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)(tools.lm_eval)
app.command()(tools.demo)
app.command()(tools.convert)
app.add_typer(tools.data_app, name="data")


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        from ..version import __version__

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
