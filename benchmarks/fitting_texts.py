"""Do all texts fit that are written under a constraint? 10,000 of them, by JSON schemas and by patterns of strangers.

The schemas are those of the simple cases of the JSON-Schema-Test-Suite for the keywords that we support, with the types
that it leaves open; the patterns are drawn by hypothesis. Each text is checked by `json.loads` and a validator
(jsonschema-rs), or by `re.fullmatch`.

    python benchmarks/fitting_texts.py tiny-en [-n 10000] [--length 24] [--json]
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import unmask
from unmask.constraints import for_tokenizer, regex
from unmask.errors import UserError

SCHEMAS: dict[str, dict[str, Any]] = {
    **{kind: {"type": kind} for kind in ("integer", "number", "string", "object", "boolean", "null")},
    "several types": {"type": ["integer", "string"]},
    "three types": {"type": ["array", "object", "null"], "items": {"type": "null"}},
    "enum": {"enum": [1, 2, 3]},
    "enum of several types": {"enum": [6, "foo", [], True, {"foo": 12}]},
    "enum with null": {"enum": [6, None]},
    "enums in properties": {
        "type": "object",
        "properties": {"foo": {"enum": ["foo"]}, "bar": {"enum": ["bar"]}},
        "required": ["bar"],
    },
    "enum with escaped characters": {"enum": ["foo\nbar", "foo\rbar"]},
    "enum with a nul": {"enum": ["hello\0there"]},
    "const": {"const": 2},
    "const object": {"const": {"foo": "bar", "baz": "bax"}},
    "const array": {"const": [{"foo": "bar"}]},
    "properties": {"type": "object", "properties": {"foo": {"type": "integer"}, "bar": {"type": "string"}}},
    "required": {
        "type": "object",
        "properties": {"foo": {"type": "null"}, "bar": {"type": "null"}},
        "required": ["foo"],
    },
    "required with escaped names": {
        "type": "object",
        "properties": {name: {"type": "integer"} for name in ("foo\nbar", 'foo"bar', "foo\\bar")},
        "required": ["foo\nbar", 'foo"bar', "foo\\bar"],
    },
    "no other properties": {
        "type": "object",
        "properties": {"foo": {"type": "boolean"}},
        "additionalProperties": False,
    },
    "items": {"type": "array", "items": {"type": "integer"}},
    "nested items": {
        "type": "array",
        "items": {"type": "array", "items": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}},
    },
    "minItems": {"type": "array", "items": {"type": "boolean"}, "minItems": 1},
    "maxItems": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
    "minLength": {"type": "string", "minLength": 2},
    "maxLength": {"type": "string", "maxLength": 2},
    "pattern": {"type": "string", "pattern": "^a*$"},
    "pattern somewhere": {"type": "string", "pattern": "a+"},
    "a letter that is not ASCII": {"type": "string", "pattern": "^π$"},
    "anyOf": {"anyOf": [{"type": "integer"}, {"type": "string", "minLength": 2}]},
    "anyOf with objects": {
        "anyOf": [
            {"type": "object", "properties": {"bar": {"type": "integer"}}, "required": ["bar"]},
            {"type": "object", "properties": {"foo": {"type": "string"}}, "required": ["foo"]},
        ]
    },
    "references": {
        "$defs": {"a": {"type": "integer"}, "b": {"$ref": "#/$defs/a"}, "c": {"$ref": "#/$defs/b"}},
        "$ref": "#/$defs/c",
    },
    "a reference in a property": {
        "type": "object",
        "properties": {"foo": {"type": "integer"}, "bar": {"$ref": "#/properties/foo"}},
    },
    "a reference to all of it in parts": {
        "$defs": {"item": {"type": "object", "properties": {"foo": {"type": "null"}}, "required": ["foo"]}},
        "type": "array",
        "items": {"type": "array", "items": {"$ref": "#/$defs/item"}, "maxItems": 2},
    },
    **{f"format {name}": {"type": "string", "format": name} for name in ("date", "time", "date-time", "uuid")},
}
WAYS: list[dict[str, Any]] = [
    {"steps": 4},
    {"sampler": "left-to-right", "k": 8},
    {"sampler": "confidence", "k": 8},
    {"sampler": "ancestral", "steps": 3},
]


def patterns(count: int) -> list[str]:
    """Different regular expressions, always the same."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import strategies as st

    letter = st.sampled_from("abcxyzABC0189 .,-_é")
    one = letter.map(re.escape) | st.sampled_from([r"\d", r"\w", "[a-z]", "[^a-m]", "[A-Z0-9]", r"\s", "."])
    times = st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}", "*?"])

    def larger(part: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return (
            st.lists(part, min_size=1, max_size=4).map("".join)
            | st.lists(part, min_size=2, max_size=3).map(lambda options: f"({'|'.join(options)})")
            | st.tuples(part, times).map(lambda pair: f"(?:{pair[0]}){pair[1]}")
        )

    found: dict[str, None] = {}
    seen = 0

    @settings(max_examples=60 * count, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(st.recursive(one, larger, max_leaves=12))
    def collect(pattern: str) -> None:
        nonlocal seen
        seen += len(pattern) >= 10
        if len(found) < count and len(pattern) >= 10 and seen % 7 == 0:  # those in a row are alike
            found[pattern] = None

    collect()
    return list(found)


def forms(count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """All forms, as settings."""
    for name, schema in SCHEMAS.items():
        yield name, {"schema": schema}
    for pattern in patterns(count):
        yield pattern, {"regex": pattern}


def fits(text: str, form: dict[str, Any]) -> bool:
    """Whether a text has its form, by programs that are not ours."""
    if "regex" in form:
        return re.fullmatch(form["regex"], text, re.ASCII) is not None
    import jsonschema_rs

    try:
        value = json.loads(text)
    except ValueError:
        return False
    return bool(jsonschema_rs.validator_for(form["schema"], validate_formats=True).is_valid(value))


def written(lm: unmask.LM, form: dict[str, Any], n: int, length: int, seed: int) -> list[str]:
    """Texts of a form, in several orders; longer than asked for where the form needs it."""
    if "regex" in form:
        length = max(length, for_tokenizer(regex(form["regex"]), lm.tokenizer).shortest + 2)
    texts: list[str] = []
    for number, way in enumerate(WAYS):
        share = n // len(WAYS) + (number < n % len(WAYS))
        for more in (0, 32, 64):  # a schema may need more tokens
            try:
                how = {"length": length + more, "seed": seed + len(texts), "batch_size": 64, **form, **way}
                texts += lm.sample(share, **how) if share else []
                break
            except UserError as error:
                if "give it" not in str(error) and "at least" not in str(error):
                    raise
    return texts


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("-n", type=int, default=10_000)
    parser.add_argument("--patterns", type=int, default=50)
    parser.add_argument("--length", type=int, default=24)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    lm = unmask.load(args.model)
    every = list(forms(args.patterns))
    start = time.process_time()
    records: list[dict[str, Any]] = []
    for number, (name, form) in enumerate(every):
        share = args.n // len(every) + (number < args.n % len(every))
        texts = written(lm, form, share, args.length, seed=1000 * number)
        wrong = [text for text in texts if not fits(text, form)]
        records.append({"form": name, "kind": next(iter(form)), "texts": len(texts), "different": len(set(texts)),
                        "wrong": wrong[:3], "fit": len(texts) - len(wrong)})  # fmt: skip
        print(f"{number + 1} of {len(every)} forms", end="\r", file=sys.stderr, flush=True)
        if not args.json and (wrong or len(texts) < share):
            print(f"{name}: {len(wrong)} of {len(texts)} do not fit, for example {wrong[:1]}", flush=True)
    if args.json:
        print(json.dumps(records, indent=1))
        return
    for kind in ("schema", "regex"):
        own = [r for r in records if r["kind"] == kind]
        total, good, different = (sum(r[name] for r in own) for name in ("texts", "fit", "different"))
        print(f"{len(own)} forms by {kind}: {good:,} of {total:,} texts fit; {different:,} are different")
    print(f"{time.process_time() - start:.0f} processor seconds")


if __name__ == "__main__":
    main()
