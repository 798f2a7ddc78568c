"""Text that must have a form: patterns as automata over bytes, then over tokens, and the law of tokens given them."""

from .json_schemas import json_object, json_schema
from .language import Language, choices
from .motifs import motif, open_frame
from .regexes import regex
from .token_automaton import TokenAutomaton, for_tokenizer, over_tokens

__all__ = [
    "Language",
    "TokenAutomaton",
    "choices",
    "for_tokenizer",
    "json_object",
    "json_schema",
    "motif",
    "open_frame",
    "over_tokens",
    "regex",
]
