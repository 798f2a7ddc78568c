"""Judging generated text: perplexity under a judge, entropy, diversity and repetition, never one number alone."""

from .judgement import Judgement, judge
from .metrics import Figure, distinct, entropy, repetition, self_bleu
from .scorers import Scored, Scorer, open_scorer
from .table import protocol_lines, table

__all__ = [
    "Figure", "Judgement", "Scored", "Scorer", "distinct", "entropy", "judge", "open_scorer", "protocol_lines",
    "repetition", "self_bleu", "table",
]  # fmt: skip
