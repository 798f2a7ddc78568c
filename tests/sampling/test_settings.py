"""One schema of settings: a sampler that only this file knows is on every surface, and the docs are up to date."""

from __future__ import annotations

import functools
import json
import runpy
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from unmask.errors import UserError, at_least, choose
from unmask.sampling.params import SAMPLERS, SamplingParams, all_settings, make_sampler, settings_on
from unmask.sampling.settings import KINDS, setting, settings_of

ROOT = Path(__file__).parents[2]

# The whole of a new sampler: its class with one line for its setting, and its line in the registry. What follows asks
# every surface for it.
DUMMY = """
import contextlib, io, json, sys
from dataclasses import dataclass
from unmask.sampling import SAMPLERS, LeftToRight, SamplerEntry
from unmask.sampling.settings import setting

@dataclass(frozen=True)
class Wobbling(LeftToRight):
    wobble: int = setting(1, "How much it wobbles", least=0, most=9)

SAMPLERS["wobbling"] = SamplerEntry(Wobbling, "a law", "wobbles", "exact")

import unmask
from unmask import cli
from unmask.cli.fill_loop import FillLoop
from unmask.errors import UserError
from unmask.hub.lm_eval import GenerationRequests
from unmask.serve.api import _card
from unmask.serve.limits import Limits, Refusal
from unmask.serve.openapi import document
from unmask.serve.schema import CompletionBody, DiffusionBody, read

def ran(*args):
    sys.argv, out, err = ["unmask", *args], io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as stop:
            return [stop.code, out.getvalue(), err.getvalue()]
    return [0, out.getvalue(), err.getvalue()]

def refused(call):
    try:
        call()
    except Refusal as error:
        return [error.status, error.message]
    except UserError as error:
        return [2, str(error)]

lm = unmask.load("tiny-en")
short = ["tiny-en", "--sampler", "wobbling", "--length", "6", "--json"]
loop = FillLoop(lm, "tiny-en", {"sampler": "wobbling"})
loop.line(":wobble 3", print)
asking = GenerationRequests(lm)
sys.path.insert(0, TOOLS)
import settings_table

body = {"sampler": "wobbling", "wobble": 3}
document = document(["tiny-en"], Limits())
found = {
    "helps": {name: ran(name, "--help") for name in ("sample", "fill", "eval", "score")},
    "parsed": ran("sample", *short, "--wobble", "3"),
    "with": ran("sample", *short, "--with", "wobble=3"),
    "outside": ran("sample", *short, "--wobble", "10"),
    "bodies": [read(kind, json.dumps(body).encode()).explicit()["wobble"] for kind in (DiffusionBody, CompletionBody)],
    "body outside": refused(lambda: read(DiffusionBody, b'{"sampler": "wobbling", "wobble": 10}')),
    "openapi": document["components"]["schemas"]["DiffusionBody"]["properties"],
    "facts": _card("tiny-en", lm, Limits(), 0)["unmask"],
    "loop": [loop.how, len(loop.line("a {{2}}", print))],
    "loop outside": refused(lambda: loop.line(":wobble 10", print)),
    "harness": asking.options(body, 0).wobble,
    "harness outside": refused(lambda: lm.check(asking.job("a", {**body, "wobble": 10}))),
    "docs": [settings_table.samplers_table(), settings_table.settings_table()],
}
json.dump(found, sys.__stdout__)
"""


@functools.cache
def everywhere() -> dict[str, Any]:
    code = f"TOOLS = {str(ROOT / 'tools')!r}\n{DUMMY}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_new_setting_is_an_option_of_every_command_that_writes_or_follows_a_plan() -> None:
    found = everywhere()
    for name, (code, out, _) in found["helps"].items():
        assert code == 0 and "--wobble" in out and "How much it wobbles" in " ".join(out.replace("│", " ").split()), (
            name
        )
    assert "wobbling" in found["helps"]["sample"][1]
    for how in ("parsed", "with"):
        code, out, err = found[how]
        assert code == 0, err
        told = json.loads(out)["protocol"]
        assert (told["sampler"], told["wobble"], told["law"], told["k"]) == ("wobbling", 3, "a law", 1)
    code, _, err = found["outside"]
    assert code == 2 and "wobble=10 must be at most 9" in err


def test_a_new_setting_is_a_field_of_bodies_and_of_their_document() -> None:
    found = everywhere()
    assert found["bodies"] == [3, 3]
    status, message = found["body outside"]
    assert status == 400 and "wobble" in message and "9" in message
    kinds = found["openapi"]["wobble"]["anyOf"]
    assert {"type": "integer", "minimum": 0, "maximum": 9} in kinds and {"type": "null"} in kinds
    assert "How much it wobbles" in found["openapi"]["wobble"]["description"]
    assert "wobbling" in json.dumps(found["openapi"]["sampler"])


def test_a_new_setting_is_a_control_of_the_page() -> None:
    facts = everywhere()["facts"]
    [control] = [one for one in facts["settings"] if one["name"] == "wobble"]
    assert (control["kind"], control["title"], control["min"], control["max"]) == ("whole", "Wobble", 0, 9)
    assert control["help"] == "How much it wobbles" and control["default_words"] == "1"
    assert facts["takes"]["wobbling"] == ["k", "wobble"] and "wobbling" in facts["samplers"]


def test_a_new_setting_is_known_to_the_loop_the_harness_and_the_docs() -> None:
    found = everywhere()
    assert found["loop"] == [{"sampler": "wobbling", "wobble": 3}, 1]
    assert found["loop outside"] == [2, "wobble=10 must be at most 9"]
    assert found["harness"] == 3 and found["harness outside"] == [2, "wobble=10 must be at most 9"]
    samplers, settings = found["docs"]
    assert "| `wobbling` | `-k`, `--wobble` | wobbles | exact |" in samplers
    assert "| `--wobble` | 1 | whole, from 0 to 9 | How much it wobbles | `wobbling` |" in settings


def test_the_tables_of_the_docs_are_up_to_date() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "settings_table.py"))
    page = tool["PAGE"].read_text(encoding="utf-8")
    assert tool["rewritten"](page) == page, "run python tools/settings_table.py"


def test_every_setting_says_what_it_is() -> None:
    for name, spec in all_settings().items():
        assert spec.kind in KINDS and spec.title and len(spec.help) > 5 and not spec.help.endswith("."), name
        assert all(len(why) > 5 for why in spec.absent.values()), name
        assert spec.kind != "choice" or spec.choices, name
    for name, entry in SAMPLERS.items():
        plain = {spec.name for spec in fields(entry.make)} - set(settings_of(entry.make))
        assert plain <= set(entry.preset) | {"measure", "euler", "kind"}, f"{name} has fields that nobody can set"
        for setting_name, spec in entry.settings.items():
            same = all_settings()[setting_name]
            assert (spec.kind, spec.least, spec.most) == (same.kind, same.least, same.most), f"{name} {setting_name}"
    assert "constrain" not in settings_on("http") and "constrain" in all_settings()


def test_kinds_follow_annotations_and_read_text() -> None:
    @dataclass(frozen=True)
    class Example:
        plain: int
        whole: int = setting(1, "a number", least=1, most=5)
        share: float = setting(0.5, "a share", above=0, below=1)
        on: bool = setting(False, "a flag")
        pair: tuple[float, float] = setting((1.0, 0.0), "two times")

    found = settings_of(Example)
    assert {name: spec.kind for name, spec in found.items()} == {
        "whole": "whole",
        "share": "number",
        "on": "flag",
        "pair": "pair",
    }
    assert found["whole"].parse("3") == 3 and found["pair"].parse("0.5,0.25") == (0.5, 0.25)
    assert found["on"].parse("yes") is True and found["on"].parse("false") is False
    for value in (0, 6, True, "3", 1.0):
        with pytest.raises(UserError, match="whole="):
            found["whole"].check(value)
    for value in (0, 1, float("nan"), float("inf")):
        with pytest.raises(UserError, match="share="):
            found["share"].check(value)
    with pytest.raises(UserError, match="true or false"):
        found["on"].parse("maybe")
    rules = all_settings()["allowed"]
    assert rules.parse("{0: [cat, 7]}") == {0: ["cat", 7]} == rules.from_json({"0": ["cat", 7]})
    assert all_settings()["ban"].parse(["#17", "the"]) == [17, "the"]
    assert all_settings()["top_k"].switches_off(0) and not all_settings()["k"].switches_off(0)


def test_settings_are_attributes_and_survive_replace() -> None:
    params = SamplingParams(sampler="gibbs", steps=30, burn=3, temperature=1.0)
    assert (params.steps, params.burn, params.scan, params.temperature) == (30, 3, None, 1.0)
    assert params == SamplingParams(sampler="gibbs", steps=30, burn=3) and params.choice.temperature == 1.0
    with pytest.raises(UserError, match="did you mean 'temperature'"):
        SamplingParams(temprature=1.0)
    with pytest.raises(AttributeError):
        params.nothing  # noqa: B018
    made = make_sampler("confidence", k=2)
    assert (made.k, made.steps) == (2, None), "k stands instead of the default number of steps"  # type: ignore[attr-defined]


def test_choose_and_at_least() -> None:
    assert choose("plan", SAMPLERS, "sampler") == "plan"
    with pytest.raises(
        UserError, match=r"unknown sampler 'plann' \(did you mean 'plan'\?\); choose one of plan, ances"
    ):
        choose("plann", SAMPLERS, "sampler")
    at_least("n", 1)
    for value in (0, float("nan")):
        with pytest.raises(UserError, match="must be at least 1"):
            at_least("n", value)
