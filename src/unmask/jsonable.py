"""Values as JSON can hold them: the one place that decides what becomes of NaN, infinity and foreign types."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

# Line separators that JSON leaves alone, control characters, and half a surrogate pair, which UTF-8 cannot hold.
ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def finite(value: Any) -> Any:
    """The same value with null for every NaN and infinity, which JSON cannot express."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_json(value: Any, indent: int | None = None, ascii: bool = False) -> str:
    """One JSON document, with null for every NaN and infinity; compact unless it is indented.

    Text of every script stays readable unless `ascii` is set. A compact document is one line for every reader.
    """
    separators = (",", ":") if indent is None else None
    text = json.dumps(finite(value), indent=indent, separators=separators, allow_nan=False, ensure_ascii=ascii)
    return text if ascii else ESCAPED.sub(lambda one: f"\\u{ord(one[0]):04x}", text)


def described(value: Any, largest: int | None = None) -> Any:
    """Any value as plain JSON types, for people to read: a number that is not finite and an unknown type become text.

    So do integers beyond `largest`: a browser rounds those beyond 2**53.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if largest is None or abs(value) < largest else str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: described(getattr(value, item.name), largest) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): described(item, largest) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=str) if isinstance(value, set | frozenset) else value
        return [described(item, largest) for item in items]
    if callable(getattr(value, "item", None)) and getattr(value, "shape", None) == ():  # a number of torch or numpy
        return described(value.item(), largest)
    return str(value)
