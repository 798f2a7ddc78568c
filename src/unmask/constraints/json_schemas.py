"""JSON texts that are valid under a schema, as a regular language: a documented part of JSON Schema.

What is written is a part of what is valid: properties in the order of the schema and no others, ", " and ": " between
(as `json.dumps` does), no other white space, numbers without an exponent and with at most 15 digits before and 6 after
the point. Strings and arrays are as long as the schema says, else as long as the gap allows. A keyword that is not
supported is refused, never ignored, unless it only describes.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import UserError
from .language import At, Chars, Either, Language, Node, Ranges, Then, Times, compiled, literal, merged, outside
from .recent import recent
from .regexes import parse

DEEPEST = 16  # nesting of a schema
LARGEST = 200_000  # values and characters that a schema describes, those of references wherever they are used
ANYTHING = Times(Chars(outside(())), 0, None)
INTEGER = "-?(?:0|[1-9][0-9]{0,14})"
NUMBER = INTEGER + r"(?:\.[0-9]{1,6})?"
DATE = r"[1-9][0-9]{3}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"  # days that every month has
TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z"
FORMATS = {
    "date": DATE,
    "time": TIME,
    "date-time": f"{DATE}T{TIME}",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
}
ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
ESCAPED = {**{chr(code): f"\\u{code:04x}" for code in range(32)}, **ESCAPES}
DESCRIBING = (  # keywords that change nothing
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly",
    "$schema", "$id", "$comment", "$defs", "definitions",
)  # fmt: skip
KEYWORDS: dict[str, tuple[str, ...]] = {
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "minItems", "maxItems"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "integer": (),
    "number": (),
    "boolean": (),
    "null": (),
}


def json_schema(schema: Mapping[str, Any] | str) -> Language:
    """The JSON texts that a schema (or its text) allows."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise UserError(f"the schema is not JSON: {error}") from None
    if not isinstance(schema, Mapping):
        raise UserError(f"a JSON schema is an object, such as {{'type': 'integer'}}, not {json.dumps(schema)[:60]}")
    try:
        text = json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"the schema is not JSON: {error}") from None
    return _compiled(text)


@recent
def _compiled(text: str) -> Language:
    schema = json.loads(text)
    try:
        node = _Reader(schema).value(schema, "#", ())
    except RecursionError:
        raise UserError("the JSON schema is nested too deeply; flatten it") from None
    return compiled(node, f"JSON schema {text if len(text) <= 80 else text[:77] + '...'}")


@functools.cache
def json_object() -> Language:
    """Any JSON object, with objects and arrays in it that hold neither."""
    return compiled(_any_object(), "a JSON object")


def _any_object() -> Node:
    plain = Either((_quoted(ANYTHING), parse(NUMBER), *map(literal, ("true", "false", "null"))))
    return _map(Either((plain, _list(plain), _map(plain))))


def _quoted(content: Node) -> Node:
    """A string, given its characters."""
    return Then((literal('"'), _escaped(content), literal('"')))


def _list(item: Node, least: int = 0, most: int | None = None) -> Node:
    return Then((literal("["), Times(item, least, most, between=literal(", ")), literal("]")))


def _map(value: Node) -> Node:
    """An object with any names."""
    member = Then((_quoted(ANYTHING), literal(": "), value))
    return Then((literal("{"), Times(member, 0, None, between=literal(", ")), literal("}")))


class _Reader:
    """Reads a schema; `place` is where in it, as a JSON pointer, and `inside` are the references that led there."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.schema = schema
        self.size = 0

    def _count(self, size: int) -> None:
        self.size += size
        if self.size > LARGEST:
            raise UserError("the JSON schema describes too many values; make it smaller, or refer to fewer parts")

    def value(self, schema: Any, place: str, inside: tuple[str, ...]) -> Node:
        """All values that a schema allows."""
        self._count(1)
        if not isinstance(schema, Mapping):
            raise UserError(
                f"{place} of the JSON schema must be an object with a type; {json.dumps(schema)} is not one"
            )
        if place.count("/") > 2 * DEEPEST or len(inside) > DEEPEST:
            raise UserError(f"the JSON schema is nested more than {DEEPEST} deep at {place[:60]}...; flatten it")
        for name, read in (("$ref", self._reference), ("anyOf", self._any)):
            if name in schema:
                self._only(schema, place, name)
                return read(schema[name], f"{place}/{name}", inside)
        asked: Any = schema.get("type", list(KEYWORDS))
        kinds: list[Any] = asked if isinstance(asked, list) else [asked]
        for kind in kinds:
            if not isinstance(kind, str) or kind not in KEYWORDS:
                raise UserError(f"{place} of the JSON schema has the type {kind!r}; choose from {', '.join(KEYWORDS)}")
        for name in ("const", "enum"):
            if name in schema:
                self._only(schema, place, name, "type")
                values = schema[name] if name == "enum" else [schema[name]]
                return self._one_of(values, kinds, f"{place}/{name}")
        if "type" not in schema:
            self._only(schema, place, *(keyword for keywords in KEYWORDS.values() for keyword in keywords))
            raise UserError(f"{place} of the JSON schema has no type; give one of {', '.join(KEYWORDS)}")
        self._only(schema, place, "type", *(keyword for kind in kinds for keyword in KEYWORDS[kind]))
        return Either(tuple(self._typed(kind, schema, place, inside) for kind in kinds))

    @staticmethod
    def _only(schema: Mapping[str, Any], place: str, *known: str) -> None:
        for name in schema:
            if name not in known and name not in DESCRIBING:
                beside = f" beside {known[0]}" if known[0] in ("$ref", "const", "enum", "anyOf") else ""
                raise UserError(
                    f"the keyword {name!r} at {place} of the JSON schema is not supported{beside}; leave it out"
                )

    def _typed(self, kind: str, schema: Mapping[str, Any], place: str, inside: tuple[str, ...]) -> Node:
        match kind:
            case "object":
                return self._object(schema, place, inside)
            case "array":
                return self._array(schema, place, inside)
            case "string":
                return self._string(schema, place)
            case "integer":
                return parse(INTEGER)
            case "number":
                return parse(NUMBER)
            case "boolean":
                return Either((literal("true"), literal("false")))
        return literal("null")

    def _reference(self, name: Any, place: str, inside: tuple[str, ...]) -> Node:
        if not isinstance(name, str) or not (name == "#" or name.startswith("#/")):
            raise UserError(
                f"{place} of the JSON schema refers to {name!r}; only parts of the same schema (#/...) work"
            )
        if name in inside:
            raise UserError(
                f"{name!r} of the JSON schema contains itself; only schemas of a bounded depth are supported"
            )
        target: Any = self.schema
        for step in name.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, Mapping) or step not in target:
                raise UserError(f"{place} of the JSON schema refers to {name!r}, which is not there")
            target = target[step]
        return self.value(target, name, (*inside, name))

    def _one_of(self, values: Any, kinds: Iterable[str], place: str) -> Node:
        if not isinstance(values, list) or not values:
            raise UserError(f"{place} of the JSON schema must be a list of at least one value")
        texts = [json.dumps(value, ensure_ascii=False) for value in values if not _kinds(value).isdisjoint(kinds)]
        if not texts:
            raise UserError(f"no value of {place} of the JSON schema has the type that is beside it; mend one of them")
        self._count(sum(map(len, texts)))
        return Either(tuple(map(literal, texts)))

    def _any(self, options: Any, place: str, inside: tuple[str, ...]) -> Node:
        if not isinstance(options, list) or not options:
            raise UserError(f"{place} of the JSON schema must be a list of at least one schema")
        return Either(tuple(self.value(option, f"{place}/{i}", inside) for i, option in enumerate(options)))

    def _object(self, schema: Mapping[str, Any], place: str, inside: tuple[str, ...]) -> Node:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, Mapping) or not isinstance(required, list):
            raise UserError(
                f"{place} of the JSON schema has properties that are no object, or required that is no list"
            )
        more = schema.get("additionalProperties", "properties" not in schema)
        if not isinstance(more, bool | Mapping):
            raise UserError(f"additionalProperties at {place} of the JSON schema must be a schema, true or false")
        for name in required:
            if not isinstance(name, str) or name not in properties:
                raise UserError(f"{place} of the JSON schema requires {name!r}, which its properties do not describe")
        if more is not False and not properties:
            if not more or more is True:
                return _any_object()
            return _map(self.value(more, f"{place}/additionalProperties", inside))
        members = [
            Then(
                (
                    literal(json.dumps(name, ensure_ascii=False) + ": "),
                    self.value(part, f"{place}/properties/{name}", inside),
                )
            )
            for name, part in properties.items()
        ]
        needed = [name in required for name in properties]
        self._count(sum(map(len, properties)) + (len(needed) if any(needed) else len(needed) ** 2))
        comma = literal(", ")

        def after(first: int) -> Node:
            """Member `first`, and what may follow."""
            rest = [
                part if must else Times(part, 0, 1)
                for part, must in zip((Then((comma, member)) for member in members), needed, strict=True)
            ]
            return Then((members[first], *rest[first + 1 :]))

        if any(needed):
            first = needed.index(True)
            before = (Times(Then((member, comma)), 0, 1) for member in members[:first])
            content: Node = Then((*before, after(first)))
        else:
            content = Either((Then(()), *(after(i) for i in range(len(members)))))
        return Then((literal("{"), content, literal("}")))

    def _array(self, schema: Mapping[str, Any], place: str, inside: tuple[str, ...]) -> Node:
        if "items" not in schema:
            raise UserError(f"the array at {place} of the JSON schema has no items; say what they are")
        item = self.value(schema["items"], f"{place}/items", inside)
        least, most = _limits(schema, "minItems", "maxItems", place)
        return _list(item, least, most)

    def _string(self, schema: Mapping[str, Any], place: str) -> Node:
        least, most = _limits(schema, "minLength", "maxLength", place)
        given = [name for name in ("pattern", "format") if name in schema]
        if given and (len(given) > 1 or "minLength" in schema or "maxLength" in schema):
            raise UserError(
                f"{place} of the JSON schema has a {given[0]} beside other limits; say all of it in a pattern"
            )
        if "pattern" in schema:
            if not isinstance(schema["pattern"], str):
                raise UserError(f"the pattern at {place} of the JSON schema must be a text")
            self._count(len(schema["pattern"]))
            content = _searched(schema["pattern"])
        elif "format" in schema:
            if not isinstance(schema["format"], str) or schema["format"] not in FORMATS:
                names = ", ".join(FORMATS)
                raise UserError(
                    f"the format {schema['format']!r} at {place} of the JSON schema is not known; use {names}"
                )
            content = parse(FORMATS[schema["format"]])
        else:
            content = Times(Chars(outside(())), least, most)
        return _quoted(content)


def _kinds(value: Any) -> set[str]:
    """The types that a JSON value has."""
    match value:
        case None:
            return {"null"}
        case bool():
            return {"boolean"}
        case int():
            return {"integer", "number"}
        case float():
            return {"integer", "number"} if value.is_integer() else {"number"}
        case str():
            return {"string"}
    return {"object"} if isinstance(value, dict) else {"array"}


def _limits(schema: Mapping[str, Any], low: str, high: str, place: str) -> tuple[int, int | None]:
    least, most = schema.get(low, 0), schema.get(high)
    for name, value in ((low, least), (high, 0 if most is None else most)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise UserError(f"{name} at {place} of the JSON schema must be a whole number of at least 0")
    if most is not None and most < least:
        raise UserError(f"{low} at {place} of the JSON schema is larger than {high}")
    return least, most


def _searched(pattern: str) -> Node:
    """A pattern of JSON Schema, which may match anywhere in the string, as one of the whole string."""
    parts = parse(pattern, in_schema=True).parts
    begins, ends = parts[:1] == (At(end=False),), parts[-1:] == (At(end=True),)
    middle = Then(parts[begins : len(parts) - ends])
    if _has_edge(middle):
        raise UserError(f"the pattern {pattern!r} of the JSON schema may have ^ at its beginning and $ at its end only")
    return Then((*(() if begins else (ANYTHING,)), middle, *(() if ends else (ANYTHING,))))


def _has_edge(node: Node) -> bool:
    match node:
        case At():
            return True
        case Then():
            return any(map(_has_edge, node.parts))
        case Either():
            return any(map(_has_edge, node.options))
        case Times():
            return _has_edge(node.part)
    return False


def _escaped(node: Node) -> Node:
    """The content of a string as JSON writes it."""
    match node:
        case Chars():
            plain: Ranges = outside(merged([*outside(node.ranges), *((ord(c), ord(c)) for c in ESCAPED)]))
            special = [
                literal(written)
                for character, written in ESCAPED.items()
                if any(low <= ord(character) <= high for low, high in node.ranges)
            ]
            return Either((Chars(plain), *special)) if special else Chars(plain)
        case Then():
            return Then(tuple(map(_escaped, node.parts)))
        case Either():
            return Either(tuple(map(_escaped, node.options)))
        case Times():
            return Times(_escaped(node.part), node.least, node.most, _escaped(node.between))
    return node
