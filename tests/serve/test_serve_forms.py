"""Texts that must have a form, over HTTP: they have it, by every name, and what cannot be is refused at once."""

from __future__ import annotations

import functools
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.serving import Running, ar_lm, block_lm, diffusion_lm, running
from unmask.constraints import Language, json_object, regex
from unmask.serve.limits import Limits

OBJECT = {
    "type": "object",
    "properties": {"age": {"type": "integer"}, "name": {"type": "string"}},
    "required": ["age", "name"],
}
WORD = r"[a-c]+\d[xy]*"


@pytest.fixture(scope="module")
def server():
    with running({"tiny": diffusion_lm(), "ar": ar_lm(), "block": block_lm()}) as one:
        yield one


def is_object(text: str) -> bool:
    found = json.loads(text)
    return list(found) == ["age", "name"] and type(found["age"]) is int and type(found["name"]) is str


FORMS = [
    ({"regex": WORD}, lambda text: re.fullmatch(WORD, text)),
    ({"schema": OBJECT}, is_object),
    ({"choices": ["yes please", "no"]}, lambda text: text in ("yes please", "no")),
    ({"choices": "perhaps"}, lambda text: text == "perhaps"),
]
GUIDED = [
    ({"guided_regex": WORD}, FORMS[0]),
    ({"guided_json": OBJECT}, FORMS[1]),
    ({"guided_json": json.dumps(OBJECT)}, FORMS[1]),
    ({"guided_choice": ["yes please", "no"]}, FORMS[2]),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": OBJECT}}}, FORMS[1]),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": OBJECT}}},
        FORMS[1],
    ),
]


def name_of(value: object) -> str:
    return next(iter(value)) if isinstance(value, dict) else ""


@pytest.mark.parametrize("model", ["tiny", "ar", "block"])
@pytest.mark.parametrize(("form", "fits"), FORMS, ids=name_of)
def test_texts_have_the_form_and_are_those_of_the_library(server: Running, model, form, fits):
    lm = {"tiny": diffusion_lm, "ar": ar_lm, "block": block_lm}[model]()
    how = {**form, "seed": 3} | ({} if model == "ar" else {"steps": 6})
    listed = {"choices": ["perhaps"]} if form == {"choices": "perhaps"} else {}
    expected = lm.write([lm.prompt_canvas("a: ", 40)] * 2, **how | listed)
    body = {"model": model, "prompt": "a: ", "length": 40, "n": 2, **how}
    samples = server.post("/v1/infill", body).json["samples"]
    assert [sample["text"] for sample in samples] == [sample.text for sample in expected]
    assert all(fits(sample["text"].removeprefix("a: ")) for sample in samples)
    done = {data["index"]: data["text"] for name, data in server.post("/v1/diffusion", body).events if name == "done"}
    assert done == {i: sample.text for i, sample in enumerate(expected)}
    completion = {"model": model, "prompt": "a: ", "max_tokens": 37, "n": 2, **how}
    texts = [choice["text"] for choice in server.post("/v1/completions", completion).json["choices"]]
    assert all(map(fits, texts))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("form", "same"), GUIDED, ids=name_of)
def test_other_names_of_a_form_mean_the_same(server: Running, form, same, stream):
    def texts(named: dict) -> list[str]:
        answer = server.post(
            "/v1/completions", {"prompt": "q", "max_tokens": 40, "seed": 5, "steps": 8, "stream": stream, **named}
        )
        if not stream:
            return [choice["text"] for choice in answer.json["choices"]]
        chunks = [data["choices"][0]["text"] for _, data in answer.events if data != "[DONE]"]
        return ["".join(chunks)]

    ours, fits = same
    assert texts(form) == texts(ours) and all(map(fits, texts(form)))


def test_a_json_object_is_one(server: Running):
    how = {"suffix": " z", "max_tokens": 40, "seed": 1, "n": 4, "steps": 8}
    body = {**how, "response_format": {"type": "json_object"}}
    texts = [choice["text"] for choice in server.post("/v1/completions", body).json["choices"]]
    assert len(set(texts)) > 1 and all(type(json.loads(text)) is dict for text in texts)
    free = server.post("/v1/completions", how | {"response_format": {"type": "text"}}).json["choices"]
    assert free == server.post("/v1/completions", how).json["choices"]


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ({}, True),
        ({"a": 1, "b": [True, None, "x\n"], "": {"c": -2.5}}, True),
        ({"a": [[1]]}, False),
        ([], False),
        ("x", False),
    ],
)
def test_json_objects_hold_objects_and_arrays_of_plain_values(value, fits):
    assert (json.dumps(value) in json_object()) is fits


def test_a_gap_of_variable_length_gets_one_that_fits(server: Running):
    body = {"text": "was {{2-6}}.", "regex": r"\d{5}", "seed": 2}
    (sample,) = server.post("/v1/infill", body).json["samples"]
    assert re.fullmatch(r"was \d{5}\.", sample["text"])
    assert sample["text"] == diffusion_lm().infill("was {{2-6}}.", regex=r"\d{5}", seed=2)[0]


CHAIN = {f"d{i}": {"type": "array", "items": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2}} for i in range(14)}
WRONG = [
    ({"regex": "(a"}, "not valid"),
    ({"regex": "(?=a)b"}, "look-around"),
    ({"regex": "a{30}"}, "30 tokens"),
    ({"regex": "[^\\s\\S]"}, "no text fits"),
    ({"regex": "a" * 5000}, "4096"),
    ({"regex": 3}, "string"),
    ({"regex": "a+", "choices": ["b"]}, "either"),
    ({"regex": "a+", "ban": ["aaa"]}, "several tokens"),
    ({"choices": []}, "at least one"),
    ({"choices": [""]}, "at least 1 character"),
    ({"choices": ["no", 3]}, "string"),
    ({"schema": "{}"}, "dictionary"),
    ({"schema": {}}, "no type"),
    ({"regex": ""}, "cannot be a text"),
    ({"schema": {"enum": ["\ud800"]}}, "surrogate"),
    ({"schema": functools.reduce(lambda inner, _: {"type": "array", "items": inner}, range(200), {})}, "64 deep"),
    ({"schema": {"type": "integer", "minimum": 3}}, "minimum"),
    ({"schema": {"type": [{}]}}, "type"),
    ({"schema": {"type": "object", "properties": {}, "required": [[]]}}, "requires"),
    ({"schema": {"type": "string", "format": []}}, "format"),
    ({"schema": {"$ref": "#"}}, "contains itself"),
    ({"guided_regex": "a", "regex": "b"}, "both"),
    ({"guided_choice": []}, "at least one"),
    ({"guided_json": "{"}, "not JSON"),
    ({"response_format": {"type": "json_schema"}}, "json_schema"),
    ({"response_format": {"type": "json_object"}, "schema": OBJECT}, "both"),
    ({"response_format": {"type": "xml"}}, "json_object"),
    ({"response_format": {"type": "json_schema", "json_schema": {"scheme": {}}}}, "scheme"),
]
HOSTILE = [
    ({"regex": "(a|b)*a(a|b){30}"}, "states"),
    ({"regex": "(?:(?:(?:){60000}){60000}){60000}"}, "repeats too much"),
    ({"regex": "(?:a?){5000}a{5000}"}, "too many ways"),
    ({"regex": "[acegikmoqsuwy]{99999}"}, "repeats too much"),
    ({"regex": "(" * 2000 + "a" + ")" * 2000}, "nested too deeply"),
    ({"regex": "(?:" * 450 + "a" + ")*" * 450}, ""),
    ({"schema": {"$ref": "#/$defs/d0", "$defs": CHAIN | {"d14": {"enum": ["x" * 100]}}}}, "too many values"),
    ({"schema": {"type": "string", "minLength": 10**9}}, "repeats too much"),
]


@pytest.mark.parametrize(("form", "said"), WRONG + HOSTILE, ids=name_of)
def test_what_cannot_be_is_refused_before_anything_is_written(server: Running, form, said):
    before = server.metric("unmask_network_calls_total")
    answer = server.post("/v1/completions", {"prompt": "q", "suffix": "z", "max_tokens": 20, **form})
    assert answer.status == 400 and said in answer.error["message"]
    if not any(name in form for name in ("response_format", "guided_regex", "guided_json", "guided_choice")):
        for path in ("/v1/infill", "/v1/diffusion"):
            assert server.post(path, {"text": "q{{20}}z", **form}).status == 400
    assert server.metric("unmask_network_calls_total") == before


def test_others_are_answered_while_patterns_are_compiled(server: Running, monkeypatch):
    go = threading.Event()

    def held(pattern: str) -> Language:
        assert go.wait(60)
        return regex(pattern)

    monkeypatch.setattr("unmask.sampling.params.regex", held)
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(server.post, "/v1/infill", {"text": "a{{4}}", "regex": "b+"}) for _ in range(4)]
        try:
            assert server.post("/v1/infill", {"length": 4, "steps": 1}).status == 200
            assert not any(one.done() for one in waiting)
        finally:
            go.set()
        assert all(one.result().status == 200 for one in waiting)


def test_too_many_sums_are_refused():
    with running(limits=Limits(grace=1.0, sums=400)) as one:
        body = {"text": "a{{10}}", "regex": "[a-z]+"}
        assert one.post("/v1/infill", body).status == 200
        error = one.post("/v1/infill", body | {"n": 40}).error
        assert "sums" in error["message"] and error["param"] == "regex"


def test_the_document_shows_the_fields(server: Running):
    schemas = server.get("/openapi.json").json["components"]["schemas"]
    for kind in ("DiffusionBody", "InfillBody", "CompletionBody"):
        assert {"regex", "schema", "choices"} <= set(schemas[kind]["properties"])
    assert {"response_format", "guided_regex", "guided_json", "guided_choice"} <= set(
        schemas["CompletionBody"]["properties"]
    )
    assert "schema" in schemas["NamedSchema"]["properties"]


def test_gaps_carry_patterns(server):
    """And the one that cannot be is named: the page marks it."""
    done = server.post("/v1/infill", {"text": r"a {{2:\d+}} b {{1}} {{1-3:[xy]{2}}}!", "n": 3}).json
    assert all(re.fullmatch(r"(?s)a \d\d b .* [xy]{2}!", sample["text"]) for sample in done["samples"])
    for text, number in (("{{2:ab}} {{1}} {{2:abc}}!", 1), ("{{3:ab}} {{2:ab}}!", 0), ("{{1-2:abc}} b", 0)):
        answer = server.post("/v1/infill", {"text": text})
        assert answer.status == 400 and "cannot be a text" in answer.error["message"]
        assert (answer.error["code"], answer.error["param"]) == ("impossible", f"patterns[{number}]")
    answer = server.post("/v1/infill", {"prompt": "a", "length": 4, "regex": "b{9}"})
    assert answer.status == 400 and (answer.error["code"], answer.error["param"]) == ("impossible", None)
