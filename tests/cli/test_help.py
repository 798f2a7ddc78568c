"""Every command shows examples, and every example is a command that parses."""

from __future__ import annotations

import shlex

import pytest
import typer
from typer.testing import CliRunner

from unmask import cli
from unmask.cli.help import EXAMPLES

GROUP = typer.main.get_command(cli.app)


def commands() -> dict[str, object]:
    data = GROUP.commands["data"]
    return {"unmask": GROUP, **GROUP.commands, **data.commands}


def test_every_command_has_examples():
    assert set(commands()) - {"lm-eval"} == set(EXAMPLES)


@pytest.mark.parametrize("line", sorted({line for lines in EXAMPLES.values() for line in lines}))
def test_examples_parse(line):
    assert parsed(line)


def test_a_wrong_example_does_not_parse():
    for line in ("unmask sample tiny-en --temprature 1", "unmask data show", "unmask trian tiny"):
        with pytest.raises(Exception, match=r"No such|Missing|is not"):
            parsed(line)


def parsed(line: str) -> dict[str, object]:
    """The options of the command in a line."""
    words = shlex.split(line.rpartition("| ")[2])
    assert words.pop(0) == "unmask"
    command, context = GROUP, typer.Context(GROUP, info_name="unmask")
    while hasattr(command, "commands"):
        name, command, words = command.resolve_command(context, words)
        if not hasattr(command, "commands"):
            context = command.make_context(name, list(words), parent=context)
    return context.params


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_help_shows_them_and_no_type_behind_a_switch(name):
    words = [] if name == "unmask" else ["data", name] if name in GROUP.commands["data"].commands else [name]
    shown = CliRunner().invoke(cli.app, [*words, "--help"], env={"COLUMNS": "200"}).stdout
    assert all(line in shown for line in EXAMPLES[name])
    assert "bool" not in shown
