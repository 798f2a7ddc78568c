"""JSON schemas as languages: what they accept is valid, and what they cannot follow is refused by its name."""

from __future__ import annotations

import datetime
import json
import re
from typing import Any

import numpy as np
import pytest

from unmask.constraints import Language, json_schema
from unmask.errors import UserError

PERSON = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Person",
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 8, "description": "whatever"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["a", "b", None, 3]}, "minItems": 1, "maxItems": 3},
        "born": {"type": "string", "format": "date"},
    },
    "required": ["age", "born"],
    "additionalProperties": False,
}
REFERENCES = {
    "type": "object",
    "properties": {"from": {"$ref": "#/$defs/point"}, "to": {"$ref": "#/$defs/point"}},
    "required": ["from"],
    "$defs": {"point": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}},
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "person": PERSON,
    "references": REFERENCES,
    "boolean": {"type": "boolean"},
    "null or text": {"type": ["null", "string"]},
    "number": {"type": "number"},
    "constant": {"const": {"a": [1, "é", None]}},
    "any of": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "boolean"}}]},
    "no member is needed": {
        "type": "object",
        "properties": {"a": {"type": "null"}, "b": {"type": "null"}, "c": {"const": 1}},
    },
    "the last is needed": {
        "type": "object",
        "properties": {"a": {"type": "null"}, "b": {"type": "null"}, "c": {"const": 1}},
        "required": ["c"],
    },
    "enum beside a type": {"type": ["integer", "null"], "enum": ["a", 1, 2.0, 2.5, True, None, [1], {}]},
    "any object": {"type": "object"},
    "no property": {"type": "object", "properties": {}},
    "any names": {"type": "object", "additionalProperties": {"type": "integer"}},
    "any names and values": {"type": "object", "additionalProperties": {}},
    "and no others": {"type": "object", "additionalProperties": False},
    "empty array": {"type": "array", "items": {"type": "null"}, "maxItems": 0},
    "pattern": {"type": "string", "pattern": r'^[a-c"\\\n]{1,4}$'},
    "pattern somewhere": {"type": "string", "pattern": "ab+"},
    "nested": {"type": "array", "items": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}},
    "formats": {
        "type": "array",
        "items": {"anyOf": [{"type": "string", "format": f} for f in ("time", "date-time", "uuid")]},
    },
}


def walks(language: Language, n: int, seed: int = 0, longest: int = 120) -> list[str]:
    """Random texts of a language: random steps, and the shortest way to an end once a text is long."""
    rng, texts = np.random.default_rng(seed), []
    left = np.where(language.accepting, 0, 10**6)
    while True:
        closer = np.minimum(left, np.where(language.delta >= 0, left[language.delta], 10**6).min(1) + 1)
        if (closer == left).all():
            break
        left = closer
    while len(texts) < n:
        state, data = 0, bytearray()
        while not (
            language.accepting[state]
            and (len(data) > longest or rng.random() < 0.2 or (language.delta[state] < 0).all())
        ):
            options = np.flatnonzero(language.delta[state] >= 0)
            if len(data) > longest:
                options = options[left[language.delta[state, options]] < left[state]]
            byte = int(rng.choice(options))
            data.append(byte)
            state = int(language.delta[state, byte])
        texts.append(data.decode())
    return texts


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_is_accepted_is_valid(name):
    jsonschema_rs = pytest.importorskip("jsonschema_rs")
    valid = jsonschema_rs.validator_for(SCHEMAS[name], validate_formats=True)
    for text in walks(json_schema(SCHEMAS[name]), 60):
        value = json.loads(text)
        assert valid.is_valid(value), text


CLASSES = [
    ".", r"\S", r"\s", r"\W", r"\w", r"\D", r"\d", r"[^\s]", r"[^\S]", r"[^\w]", r"[^\W]a?", r"[^\d.]", r"[^\Da]",
    r"[\s\d]", r"[\W_]",
]  # fmt: skip


@pytest.mark.parametrize("pattern", CLASSES)
def test_patterns_of_schemas_match_by_every_reading(pattern):
    jsonschema_rs = pytest.importorskip("jsonschema_rs")
    schema = {"type": "string", "pattern": f"^(?:{pattern})$"}
    language, javascript = json_schema(schema), jsonschema_rs.validator_for(schema)
    written = [chr(code) for code in [*range(0xD800), *range(0xE000, 0x11000)] if json_text(chr(code)) in language]
    assert len(written) >= 6
    for character in written:
        for flags in (re.ASCII, re.UNICODE):
            assert re.search(schema["pattern"], character, flags), character
        assert javascript.is_valid(character), character


def json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@pytest.mark.parametrize(
    ("name", "inside", "out"),
    [
        (
            "person",
            [
                {"age": 3, "born": "2020-02-01"},
                {"name": 'a"\\é\n', "age": -10, "tags": ["a", None], "born": "1999-12-28"},
            ],
            [{"age": 3}, {"name": "", "age": 1, "born": "2020-02-01"}, {"born": "2020-02-01", "age": 3}, {"age": 1.5}],
        ),
        ("references", [{"from": [1, -2.5]}, {"from": [0, 0], "to": [1, 1]}], [{"from": [1]}, {"to": [1, 1]}]),
        ("null or text", [None, "", "x" * 50], [1, []]),
        (
            "no member is needed",
            [{}, {"a": None}, {"b": None, "c": 1}, {"a": None, "c": 1}],
            [{"d": 1}, {"c": 1, "a": None}],
        ),
        ("the last is needed", [{"c": 1}, {"a": None, "b": None, "c": 1}, {"b": None, "c": 1}], [{}, {"a": None}]),
        ("pattern", ['a"\\', "c\nab"], ["", "abcab", "d"]),
        ("pattern somewhere", ["xxabbb", "ab", "éab\u0001"], ["a", "ba"]),
        ("any of", [7, [], [True, False]], [[1], None]),
        ("enum beside a type", [1, 2.0, None], ["a", 2.5, True, [1], {}]),
        ("any object", [{}, {"a": {"b": 1}, "c": [None, "d"]}], [[], {"a": [[]]}]),
        ("any names", [{}, {"a": 1, "é": 2}], [{"a": "b"}, {"a": None}]),
        ("any names and values", [{}, {"a": 1, "é": "b"}], [3]),
        ("no property", [{}], [{"a": 1}]),
        ("and no others", [{}], [{"a": 1}]),
    ],
)
def test_values_in_and_out(name, inside, out):
    language = json_schema(SCHEMAS[name])
    for value in inside:
        assert json_text(value) in language, value
    for value in out:
        assert json_text(value) not in language, value


def test_dates_are_those_that_python_has():
    language = json_schema({"type": "string", "format": "date"})
    texts = [f'"{year:04}-{month:02}-{day:02}"' for year in (0, 1000, 9999) for month in range(14) for day in range(32)]
    for text in (text for text in texts if text in language):
        datetime.date.fromisoformat(json.loads(text))
    assert '"2024-02-28"' in language and '"0000-01-01"' not in language


def test_white_space_is_that_of_json_dumps():
    language = json_schema(json.dumps(REFERENCES))
    assert '{"from": [1, 2]}' in language
    assert not any(text in language for text in ('{"from":[1,2]}', '{ "from": [1, 2] }', '{"from": [1, 2]}\n'))


DEEP: dict[str, Any] = {"type": "integer"}
for _ in range(35):
    DEEP = {"type": "array", "items": DEEP}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "integer", "minimum": 3}, "'minimum' at # of the JSON schema is not supported"),
        ({"type": "object", "properties": {"a": {"type": "null", "not": {}}}}, "'not' at #/properties/a"),
        ({"oneOf": []}, "'oneOf'"),
        ({"const": 1, "minimum": 0}, "'minimum' at # of the JSON schema is not supported beside const"),
        ({"type": "array", "items": {"type": "null"}, "uniqueItems": True}, "'uniqueItems'"),
        ({"type": "array"}, "has no items"),
        ({"type": "text"}, "the type 'text'"),
        ({}, "has no type"),
        ({"enum": []}, "at least one value"),
        ({"type": "object", "required": ["a"]}, "requires 'a'"),
        ({"type": "string", "pattern": "a", "maxLength": 3}, "a pattern beside other limits"),
        ({"type": "string", "format": "email"}, "the format 'email'"),
        ({"type": "string", "pattern": "a|^b"}, "at its beginning"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength at # of the JSON schema is larger"),
        ({"type": "string", "maxLength": -1}, "maxLength at # of the JSON schema must be"),
        ({"$ref": "#/$defs/a"}, "which is not there"),
        ({"$ref": "other.json"}, "only parts of the same schema"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}}, "contains itself"),
        ({"$ref": "#a", "$defs": {"b": {"$anchor": "a", "type": "null"}}}, "only parts of the same schema"),
        ({"type": "string", "const": 1}, "no value of #/const of the JSON schema has the type"),
        ({"type": "object", "additionalProperties": "no"}, "additionalProperties at # of the JSON schema must be"),
        ({"type": "string", "pattern": "a^"}, "'a^' of the JSON schema may have ^ at its beginning"),
        ({"type": "string", "pattern": "$a"}, "at its beginning"),
        ('{"const": NaN}', "is not JSON"),
        ({"enum": [1, 1e400]}, "is not JSON"),
        ("{", "is not JSON"),
        ([], "is an object"),
        ("3", "is an object"),
        (DEEP, "nested more than"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused_by_its_name(schema, said):
    with pytest.raises(UserError, match=re.escape(said)):
        json_schema(schema)
