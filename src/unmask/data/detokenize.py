"""Text as people write it, from text that was cut into words: the published rules, with their quirks.

Perplexities of the paper's test sets depend on these rules, so they are kept exactly, mistakes included: a rule of
`wikitext` has slashes in its pattern and matches next to nothing, ` N ` becomes ` 1 ` even in the middle of a name,
`s '` closes up an opening quote after every word on s. A detokenizer is a list of rules that are applied in order.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ..errors import nearest
from ..types import UserError

RULES = 1  # part of every fingerprint: raise it when a rule changes
Rule = tuple[str | re.Pattern[str], str]


def _close(*marks: str) -> tuple[Rule, ...]:
    """Each mark loses the space before it, where it has one on both sides."""
    return tuple((f" {mark} ", f"{mark} ") for mark in marks)


def _pattern(pattern: str, replacement: str) -> Rule:
    return re.compile(pattern), replacement


_WIKITEXT: tuple[Rule, ...] = (
    ("s '", "s'"),
    _pattern(r"/' [0-9]/", r"/'[0-9]/"),  # meant for years such as ' 90; the slashes are part of the pattern
    (" @-@ ", "-"),
    (" @,@ ", ","),
    (" @.@ ", "."),
    *_close(":", ";", ".", "!", "?", ","),
    _pattern(r"\(\s*([^\)]*?)\s*\)", r"(\1)"),
    _pattern(r"\[\s*([^\]]*?)\s*\]", r"[\1]"),
    _pattern(r"{\s*([^}]*?)\s*}", r"{\1}"),
    _pattern(r"\"\s*([^\"]*?)\s*\"", r'"\1"'),
    _pattern(r"'\s*([^']*?)\s*'", r"'\1'"),
    ("= = = =", "===="),
    ("= = =", "==="),
    ("= =", "=="),
    (" ° ", "°"),
    (" \n", "\n"),
    ("\n ", "\n"),
    (" N ", " 1 "),
    (" 's", "'s"),
)

_PTB: tuple[Rule, ...] = (
    (" 's", "'s"), ("s ' ", "s' "), (" n't", "n't"), (" \n ", "\n"), ("\\/", "/"),
    *[(" N ", " 1 ")] * 10,  # numbers in a row share a space, so one pass misses every second one
    ("$ 1", "$1"), ("# 1", "#1"), ("<unk>", "?"),
)  # fmt: skip

_LM1B: tuple[Rule, ...] = (
    ("http : / / ", "http://"),
    ("https : / / ", "https://"),
    _pattern(r" '(\w+)", r"'\1"),
    _pattern(r" (\w+) \. ", r" \1. "),
    _pattern(r" (\w+) \.$", r" \1."),
    (" ? ", "? "),
    _pattern(r" \?$", "?"),
    (" ! ", "! "),
    _pattern(r" !$", "!"),
    *_close(",", ":", ";"),
    (" / ", "/"),
    _pattern(r'" ([^"]+) "', r'"\1"'),
    _pattern(r"' ([^']+) '", r"'\1'"),
    _pattern(r"\( ([^()]+) \)", r"(\1)"),
    _pattern(r"\[ ([^\[\]]+) \]", r"[\1]"),
    ("$ ", "$"),
    ("£ ", "£"),
)


def _apply(rules: tuple[Rule, ...], text: str) -> str:
    for what, replacement in rules:
        text = text.replace(what, replacement) if isinstance(what, str) else what.sub(replacement, text)
    return text


def wikitext(text: str) -> str:
    """WikiText: `@-@`, spaces around marks and inside brackets and quotes, headings."""
    return _apply(_WIKITEXT, text)


def ptb(text: str) -> str:
    """Penn Treebank: n't, `N` for a number, `<unk>`."""
    return _apply(_PTB, text)


def lm1b(text: str) -> str:
    """One Billion Words: spaces before marks, inside quotes and brackets, after currency signs."""
    return _apply(_LM1B, text)


def lambada(text: str) -> str:
    """LAMBADA: straight quotes, and a line break before every passage."""
    return "\n" + text.replace("“", '"').replace("”", '"').strip()


def scientific(text: str) -> str:
    """Scientific papers and AG News: the rules of WikiText, then those of One Billion Words."""
    return lm1b(wikitext(text))


_DECODED_TWICE = re.compile(r"[^\x00-\x7f]{2,}")
_CUT_QUOTE = re.compile(r"â€(?![^\x00-\x7f])")  # the third byte of a closing quote has no character in cp1252


def mojibake(text: str) -> str:
    """UTF-8 that was read as cp1252 ("donâ€™t"), as it was: only where the way back is exact."""

    def mended(match: re.Match[str]) -> str:
        try:
            return match[0].encode("cp1252").decode()
        except UnicodeError:
            return match[0]

    return _CUT_QUOTE.sub("”", _DECODED_TWICE.sub(mended, text))


DETOKENIZERS: dict[str, Callable[[str], str]] = {
    f.__name__: f for f in (wikitext, ptb, lm1b, lambada, scientific, mojibake)
}


def detokenizer(name: str) -> Callable[[str], str]:
    """A detokenizer by its name."""
    if name not in DETOKENIZERS:
        listed = ", ".join([*DETOKENIZERS, "none", "auto"])
        raise UserError(
            f"unknown detokenizer {name!r}{nearest(name, DETOKENIZERS)}; set data.detokenizer to one of {listed}"
        )
    return DETOKENIZERS[name]
