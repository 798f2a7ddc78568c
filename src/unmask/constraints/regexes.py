r"""Regular expressions in the syntax of Python's `re`, read by its own parser.

A text fits if the whole of it matches. Classes are those of `re.ASCII`: \d is 0 to 9, \w one of a to z, A to Z, 0 to 9
and _. What makes an expression more than a regular language (look-around, references to groups, atomic groups) is
refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from ..errors import UserError
from .language import LAST, At, Chars, Either, Language, Node, Ranges, Then, Times, compiled, merged, outside
from .recent import recent

DIGITS: Ranges = ((48, 57),)
WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
SPACE: Ranges = ((9, 13), (32, 32))
CATEGORIES: dict[Any, Ranges] = {
    codes.CATEGORY_DIGIT: DIGITS,
    codes.CATEGORY_NOT_DIGIT: outside(DIGITS),
    codes.CATEGORY_WORD: WORD,
    codes.CATEGORY_NOT_WORD: outside(WORD),
    codes.CATEGORY_SPACE: SPACE,
    codes.CATEGORY_NOT_SPACE: outside(SPACE),
}
ASCII: Ranges = ((0, 127),)
SPACES: Ranges = (  # of JavaScript and of Unicode
    (9, 13), (28, 32), (133, 133), (160, 160), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
    (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
)  # fmt: skip
CERTAIN: dict[Any, Ranges] = {  # what is in a class by any reading: that of re.ASCII, of Unicode and of JavaScript
    **CATEGORIES,
    codes.CATEGORY_NOT_DIGIT: outside((*DIGITS, *outside(ASCII))),
    codes.CATEGORY_NOT_WORD: outside((*WORD, *outside(ASCII))),
    codes.CATEGORY_NOT_SPACE: outside(SPACES),
}
POSSIBLE: dict[Any, Ranges] = {  # what is in it by one of them
    codes.CATEGORY_DIGIT: (*DIGITS, *outside(ASCII)),
    codes.CATEGORY_NOT_DIGIT: outside(DIGITS),
    codes.CATEGORY_WORD: (*WORD, *outside(ASCII)),
    codes.CATEGORY_NOT_WORD: outside(WORD),
    codes.CATEGORY_SPACE: SPACES,
    codes.CATEGORY_NOT_SPACE: outside(SPACE),
}
IN_SCHEMA = 1 << 30  # beside the flags of `re`: a text fits only if it matches by any reading
EDGES = {
    codes.AT_BEGINNING: False,
    codes.AT_BEGINNING_STRING: False,
    codes.AT_END: True,
    codes.AT_END_STRING: True,
}
REFUSED: dict[Any, str] = {
    codes.ASSERT: "look-around (?=...) or (?<=...)",
    codes.ASSERT_NOT: "look-around (?!...) or (?<!...)",
    codes.GROUPREF: "a reference to a group",
    codes.GROUPREF_EXISTS: "a condition on a group",
    codes.ATOMIC_GROUP: "an atomic group (?>...)",
    codes.POSSESSIVE_REPEAT: "a possessive repetition",
}


@recent
def regex(pattern: str) -> Language:
    """The texts that a regular expression matches as a whole."""
    return compiled(parse(pattern), pattern or "the empty text")


def parse(pattern: str, in_schema: bool = False) -> Then:
    """The expression of a pattern; `in_schema`: of the texts that match by any reading of classes and of the dot."""
    try:
        tree = parser.parse(pattern, re.ASCII)
    except RecursionError:
        raise UserError(f"the regular expression {_short(pattern)} is nested too deeply; flatten it") from None
    except (re.error, OverflowError, ValueError) as error:
        raise UserError(f"the regular expression {_short(pattern)} is not valid: {error}") from None

    def refuse(what: str) -> UserError:
        return UserError(
            f"the regular expression {_short(pattern)} has {what}, which an automaton cannot follow; write it without"
        )

    flags = tree.state.flags | (IN_SCHEMA if in_schema else 0)
    try:
        return _sequence(tree, flags, refuse)
    except RecursionError:
        raise UserError(f"the regular expression {_short(pattern)} is nested too deeply; flatten it") from None


def _short(pattern: str) -> str:
    return repr(pattern if len(pattern) <= 60 else pattern[:57] + "...")


def _sequence(items: Any, flags: int, refuse: Callable[[str], UserError]) -> Then:
    for flag, name in ((re.MULTILINE, "m"), (re.UNICODE, "u")):
        if flags & flag:
            raise refuse(f"the flag {name}")
    return Then(tuple(_node(code, value, flags, refuse) for code, value in items))


def _node(code: Any, value: Any, flags: int, refuse: Callable[[str], UserError]) -> Node:
    if code in (codes.LITERAL, codes.NOT_LITERAL, codes.IN, codes.ANY):
        return Chars(_set(code, value, flags))
    if code is codes.BRANCH:
        return Either(tuple(_sequence(option, flags, refuse) for option in value[1]))
    if code is codes.SUBPATTERN:
        _, more, fewer, inner = value
        return _sequence(inner, (flags | more) & ~fewer, refuse)
    if code in (codes.MAX_REPEAT, codes.MIN_REPEAT):
        least, most, inner = value
        part = _sequence(inner, flags, refuse)
        return Times(part, int(least), None if most is codes.MAXREPEAT else int(most))
    if code is codes.AT and value in EDGES:
        return At(EDGES[value])
    if code is codes.AT:
        raise refuse("a boundary of a word (\\b or \\B)")
    raise refuse(REFUSED.get(code, str(code)))


def _set(code: Any, value: Any, flags: int) -> Ranges:
    if code is codes.ANY:
        line_ends = ((10, 10), (13, 13), (0x2028, 0x2029)) if flags & IN_SCHEMA else ((10, 10),)
        return outside(() if flags & re.DOTALL else line_ends)
    if code in (codes.LITERAL, codes.NOT_LITERAL):
        ranges = _cased([(value, value)], flags)
        return ranges if code is codes.LITERAL else outside(ranges)
    negated, parts = value[0][0] is codes.NEGATE, []
    categories = (POSSIBLE if negated else CERTAIN) if flags & IN_SCHEMA else CATEGORIES
    for kind, item in value[negated:]:
        if kind is codes.LITERAL:
            parts.append((item, item))
        elif kind is codes.RANGE:
            parts.append((item[0], min(item[1], LAST)))
        else:
            parts += categories[item]
    ranges = _cased(parts, flags)
    return outside(ranges) if negated else ranges


def _cased(ranges: Sequence[tuple[int, int]], flags: int) -> Ranges:
    """With the other case of the letters a to z, if case is ignored."""
    result = list(ranges)
    if flags & re.IGNORECASE:
        for low, high in ranges:
            for first, last, shift in ((65, 90, 32), (97, 122, -32)):
                if low <= last and high >= first:
                    result.append((max(low, first) + shift, min(high, last) + shift))
    return merged(result)
