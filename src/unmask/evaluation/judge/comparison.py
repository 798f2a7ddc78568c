"""Judgements side by side, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...text_tables import terminal_table
from ..uncertainty import Statistic
from .judgement import Judgement

NAMES = {
    "gen_perplexity": "generative perplexity",
    "entropy": "entropy, nats",
    "distinct_1": "distinct-1",
    "distinct_2": "distinct-2",
    "distinct_3": "distinct-3",
    "distinct_4": "distinct-4",
    "repetition_4": "repeated 4-grams",
    "self_bleu_4": "self-BLEU-4",
    "mauve": "MAUVE",
    "unknown_share": "unknown to the scorer",
    "tokens_per_sample": "tokens per sample",
    "scored_tokens_per_sample": "scored tokens per sample",
    "network_calls_per_sample": "network calls per sample",
    "seconds_per_sample": "seconds per sample",
}


def shown(figure: Statistic | None) -> str:
    """A figure with its error, at the precision that the error justifies."""
    if figure is None:
        return "-"
    digits = 2 if abs(figure.value) >= 10 else 4
    text = f"{figure.value:.{digits}f}"
    return text if figure.stderr is None else f"{text} ± {figure.stderr:.{digits}f}"


def table(columns: Mapping[str, Judgement]) -> str:
    """One line per figure, one column per set of texts."""
    rows = [["", *(f"{name} ({column.samples})" for name, column in columns.items())]]
    for key, name in NAMES.items():
        if any(key in column.figures for column in columns.values()):
            rows.append([name, *(shown(column.figures.get(key)) for column in columns.values())])
    lines = terminal_table(rows, words=range(len(rows[0])))
    if not any("gen_perplexity" in column.figures for column in columns.values()):
        first = NAMES["gen_perplexity"].ljust(max(len(row[0]) for row in rows))
        lines.insert(1, f"{first}  {_why_not(next(iter(columns.values())))}")
    return "\n".join(lines)


def _why_not(first: Judgement) -> str:
    if first.scorer is None:
        return "no scorer; give one with --scorer hf:FOLDER_OR_HUB_ID, smollm2, llama2c:FOLDER, arpa:FILE or unmask:RUN"
    return "nothing could be scored"


def protocol_lines(protocol: Mapping[str, Any], indent: str = "  ") -> Iterator[str]:
    """A protocol as lines, with nested settings indented."""
    for name, value in protocol.items():
        if isinstance(value, Mapping):
            yield f"{indent}{name}:"
            yield from protocol_lines(value, indent + "  ")
        else:
            yield f"{indent}{name}: {value}"
