"""Judging generated text: perplexity under a judge, entropy, diversity and repetition, never a single number."""

from ..uncertainty import Statistic
from .comparison import protocol_lines, table
from .diversity import distinct, entropy, repetition, self_bleu
from .judgement import Judgement, judge
from .scorers import JudgedText, Scorer, open_scorer

__all__ = [
    "JudgedText",
    "Judgement",
    "Scorer",
    "Statistic",
    "distinct",
    "entropy",
    "judge",
    "open_scorer",
    "protocol_lines",
    "repetition",
    "self_bleu",
    "table",
]
