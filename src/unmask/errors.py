"""The one kind of error that is the user's to mend, and the sentences that many share. Needs no torch."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """What a user typed or gave us is wrong: one sentence with the problem and the fix, exit code 2."""


def nearest(word: str, known: Iterable[str]) -> str:
    """' (did you mean X?)' or nothing."""
    options = list(known)
    close = difflib.get_close_matches(word, options, n=1, cutoff=0.5)
    if not close:  # a wrong section with the right last name
        close = [k for k in options if k.rsplit(".", 1)[-1] == word.rsplit(".", 1)[-1]][:1]
    return f" (did you mean {close[0]!r}?)" if close else ""


def choose(name: str, known: Iterable[str], what: str) -> str:
    """The name, if it is one of those that are known; else the nearest one and all of them in a sentence."""
    options = list(known)
    if name not in options:
        raise UserError(f"unknown {what} {name!r}{nearest(name, options)}; choose one of {', '.join(options)}")
    return name


def at_least(name: str, value: float, least: float = 1) -> None:
    """Raise if a number is too small (or is not a number)."""
    if not value >= least:
        raise UserError(f"{name}={value} must be at least {least}")
