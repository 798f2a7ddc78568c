"""Mistakes that are the user's to mend, and the sentences that several packages need. Imports nothing of torch."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class UserError(ValueError):
    """What a user typed or gave us is wrong: one sentence with the problem and the fix, exit code 2."""


def nearest(word: str, known: Iterable[str]) -> str:
    """' (did you mean X?)' or nothing."""
    options = list(known)
    close = difflib.get_close_matches(word, options, n=1, cutoff=0.5)
    if not close:  # a wrong section with the right last name
        close = [k for k in options if k.rsplit(".", 1)[-1] == word.rsplit(".", 1)[-1]][:1]
    return f" (did you mean {close[0]!r}?)" if close else ""


def optional(module: str, purpose: str, extra: str) -> Any:
    """A module of an optional package; without it, a sentence with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package, why = module.partition(".")[0], ""
        if (error.name or "").partition(".")[0] != package:  # it is there, and something that it needs is not
            why = f" ({error})"
        raise UserError(f"{purpose} needs the package {package}{why}; install it with: {pip(extra)}") from None


def pip(extra: str) -> str:
    """The command that installs an extra into the Python that runs: from the clone that this is, if it is one."""
    clone = Path(__file__).resolve().parents[2]
    what = f"-e '{clone}[{extra}]'" if (clone / "pyproject.toml").is_file() else f"'unmask[{extra}]'"
    return f"{sys.executable} -m pip install {what}"


def choose(name: str, options: Iterable[str], what: str, instead: str = "") -> str:
    """The name, if it is one of the options; else an error that lists them. `instead` is what else may be given."""
    known = list(options)
    if name not in known:
        raise UserError(f"unknown {what} {name!r}{nearest(name, known)}; choose one of {', '.join(known)}{instead}")
    return name


def known_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """The same function; a keyword that it does not have is a UserError that names the nearest."""
    names = inspect.signature(function).parameters

    @functools.wraps(function)
    def wrapper(*args: P.args, **keywords: P.kwargs) -> R:
        for name in keywords:
            if name not in names:
                raise UserError(f"{function.__name__} has no argument {name!r}{nearest(name, names)}")
        return function(*args, **keywords)

    return wrapper


def at_least(name: str, value: float | None, least: float = 1) -> None:
    """Raise if a number is below the least that makes sense; None is none."""
    if value is not None and not value >= least:
        raise UserError(f"{name}={value} must be at least {least}")
