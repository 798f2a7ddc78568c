"""Scores as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..text_tables import terminal_table
from ..types import Likelihood
from .suites import shared

BLOCK_HEAD = ("block", "law", "nats/token", "perplexity", "± draws", "± texts", "bits/byte")
HEAD = ("text", "tokens", "nats", "±", "per token", "perplexity", "bits/byte")


def score_lines(whole: Likelihood, texts: Sequence[str]) -> list[str]:
    """One line per text, and one for all of them together; of a text with a span, the tokens that were scored."""
    rows = [_cells(likelihood, _name(likelihood, text)) for likelihood, text in zip(whole.texts, texts, strict=True)]
    if len(whole.texts) > 1:
        rows.append(_cells(whole, "together"))
    return terminal_table([HEAD, *rows])


def block_lines(blocks: Sequence[str], likelihoods: Sequence[Likelihood]) -> list[str]:
    """One line per block size, and what they share of their protocol below."""
    rows = []
    for name, likelihood in zip(blocks, likelihoods, strict=True):
        figures = likelihood.as_dict()
        law = "exact" if likelihood.protocol["bound"] == "exact" else "bound"
        errors = [figures[key] for key in ("stderr_nats", "stderr_data")]
        rows.append(
            (
                name,
                law,
                f"{likelihood.nats_per_token:.4f}",
                f"{likelihood.perplexity:.2f}",
                *("-" if error is None else f"{likelihood.perplexity * error:.2f}" for error in errors),
                "-" if figures["bits_per_byte"] is None else f"{figures['bits_per_byte']:.3f}",
            )
        )
    same = shared([likelihood.protocol for likelihood in likelihoods])
    return [*terminal_table([BLOCK_HEAD, *rows], words=(0, 1)), *(f"  {key}: {value}" for key, value in same.items())]


def _cells(likelihood: Likelihood, name: str) -> tuple[str, ...]:
    figures, error = likelihood.as_dict(), likelihood.stderr_nats
    per_byte, perplexity = figures["bits_per_byte"], figures["perplexity"]
    return (
        name,
        f"{likelihood.tokens:,}",
        f"{likelihood.nats:.3f}",
        "?" if error is None else "0" if error == 0 else f"{error * likelihood.tokens:.3f}",
        f"{likelihood.nats_per_token:.3f}",
        f"{perplexity:.2f}" if perplexity < 1e6 else f"{perplexity:.2e}",
        "" if per_byte is None else f"{per_byte:.3f}",
    )


def _name(likelihood: Likelihood, text: str, most: int = 40) -> str:
    """The beginning of what was scored, on one line."""
    whole = likelihood.bytes == len(text.encode())
    shown = text if whole else f"[[{''.join(likelihood.pieces or [])}]]"
    shown = repr(shown)[1:-1]
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def token_lines(likelihood: Likelihood, width: int = 24) -> list[str]:
    """One line per token: its nats, as a number and as a bar."""
    if likelihood.token_nats is None or likelihood.pieces is None:
        return []
    top = max([*likelihood.token_nats, math.log(2)])
    shown = [repr(piece)[1:-1] for piece in likelihood.pieces]
    longest = max(map(len, shown))
    return [
        f"{nats:8.3f}  {piece.ljust(longest)}  {'█' * round(width * max(nats, 0.0) / top)}".rstrip()
        for piece, nats in zip(shown, likelihood.token_nats, strict=True)
    ]
