"""Benchmarks: the samplers they compare with are samplers, calls are counted right, and the script runs."""

from __future__ import annotations

import importlib
import itertools
import json
import math
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
import torch
from scipy import stats

from oracles.enumeration import CLEAN, MASK, SCHEDULES, TableNet, ancestral_law
from support.helpers import random_lm
from unmask.data.tokenization import bytes_tokenizer
from unmask.models.masked import MaskedDiffusion
from unmask.reproduce import reference
from unmask.sampling import RevealPlan, time_grid

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def bench():
    """The benchmark and its parts, as one namespace each."""
    sys.path.insert(0, str(FOLDER))
    yield {
        name: importlib.import_module(name)
        for name in (
            "sampling",
            "sampling_table",
            "scan",
            "corpus_sizes",
            "constraints",
            "conditional_law",
            "fitting_texts",
        )
    }
    sys.path.remove(str(FOLDER))


@pytest.fixture
def sampling(bench, monkeypatch) -> ModuleType:
    monkeypatch.setattr(bench["sampling"], "sgemm_peak", lambda seconds: 1e11)  # seconds of products of 4096²
    return bench["sampling"]


# -- what the plan is compared with ----------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["careful", "published"])
@pytest.mark.parametrize("cache", [pytest.param(False, marks=pytest.mark.slow), True])
def test_published_samplers_have_the_law_of_ancestral_sampling(cache, style):
    model = MaskedDiffusion(TableNet.random(), SCHEDULES["log-linear"]).eval()
    start = (MASK, CLEAN[1], MASK)
    law = ancestral_law(start, model.backbone.denoiser(), "log-linear", 5)
    torch.manual_seed(3)
    batch, runs = (1, 1500) if cache else (1500, 1)  # a whole-batch cache is never used in a large batch
    more = {"cache": cache, "style": reference.STYLES[style]}
    canvases = torch.cat([reference.ancestral(model, torch.tensor([start] * batch), 5, **more)[0] for _ in range(runs)])
    counts = Counter(tuple(canvas) for canvas in canvases.tolist())
    assert set(counts) <= {x for x, p in law.items() if p > 0}  # all written, nothing given was changed
    common = [x for x, p in law.items() if 1500 * p >= 8]
    seen, expected = [counts[x] for x in common], [1500 * law[x] for x in common]
    seen.append(1500 - sum(seen))
    expected.append(1500 - sum(expected))
    assert stats.chisquare(seen, expected).pvalue > 1e-3


@pytest.mark.parametrize("batch", [1, 3])
def test_a_cached_call_follows_a_change_anywhere_in_the_batch(bench, batch, monkeypatch):
    model = bench["sampling"].random_model("toy")
    canvases: list[torch.Tensor] = []  # after every step
    careful = reference.Careful

    draw = careful.draw

    def watched(x, *args, **kwargs):
        drawn = draw(x, *args, **kwargs)
        before = canvases[-1]
        canvases.append(torch.where(before == model.vocab.mask, drawn, before))
        return drawn

    monkeypatch.setattr(careful, "draw", staticmethod(watched))
    start = torch.full((batch, 16), model.vocab.mask)
    seen: list[int] = []
    model.backbone.register_forward_pre_hook(lambda *_: seen.append(1))
    canvases.append(start)
    torch.manual_seed(0)
    _, calls = reference.ancestral(model, start, 40, cache=True)
    changed = [not torch.equal(a, b) for a, b in itertools.pairwise(canvases)]
    assert len(changed) == 40 and 0 < sum(changed) < 40
    assert calls == len(seen) == 1 + sum(changed[:-1])


# -- counts and whole runs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 7, 300])
@pytest.mark.parametrize("batch", [1, 4])
def test_counts_by_walking_through_the_steps(sampling, steps, batch):
    model, length = sampling.random_model("toy"), 16
    alphas = time_grid(model.schedule, steps)[1]
    reveal = [RevealPlan.draw(torch.ones(length, dtype=torch.bool), alphas, key) for key in sampling.plan_keys(batch)]
    cached, rows, stale = 0, [0] * batch, True
    for step in range(steps):
        cached += stale
        stale = False
        for i, own in enumerate(reveal):
            if (own == step).any():
                rows[i] += 1
                stale = True
    counts = sampling.count(model, batch, length, steps)
    assert (counts.cached, counts.plan, counts.rows, counts.full) == (cached, max(rows), sum(rows), min(rows))
    assert sampling.PlanCalls(model, batch, length, steps).complete() == counts.plan


def piece_of(bench, **more):
    table = bench["sampling_table"]
    return table.Piece(
        network="owt",
        batch=4,
        blocks=1,
        width=1,
        vocab=10,
        length=10,
        parameters=1,
        flops=1e9,
        threads=1,
        torch="2",
        style="careful",
        kept_pages=False,
        counts={"100": table.Counts(cached=60, plan=30, rows=100, full=20)},
        memory=160,
        peaks=[1e9] * 3,
        seconds={
            "trunk": [1.0] * 3,
            "predict": [2.0, 9.0, 1.0],
            "draw": [0.5] * 3,
            "draw, cache kept": [0.75] * 3,
            "plan 100": [1.0, 1.0, 5.0],
        },
        **more,
    )


def test_whole_runs_from_medians(bench, capsys):
    table, piece = bench["sampling_table"], piece_of(bench)
    seconds = [table.cell(piece, sampler, 100).seconds for sampler in ("textbook", "cached", "plan")]
    assert seconds == [100 * 2.5, 60 * 2 + 100 * 0.75, 100 * 1.0 / 4]
    cached = [60 * predict + 75 for predict in (2, 9, 1)]
    plan = [25 * call for call in (1, 1, 5)]
    assert table.round_ratios(piece, 100) == pytest.approx([a / b for a, b in zip(cached, plan, strict=True)])
    table.show([piece])
    out = capsys.readouterr().out
    assert out.count("~") == 4 and "10.0x" in out and "7.8x" in out  # one in the heading, three cells
    assert "0.10 of one (B, L, V) tensor" in out


def test_a_run_that_was_made_is_shown_as_it_was(bench, capsys):
    table, piece = bench["sampling_table"], piece_of(bench, complete={"plan 100": (50.0, 31)})
    assert table.cell(piece, "plan", 100) == (31, 50.0, False)
    table.show([piece])
    out = capsys.readouterr().out
    assert out.count("~") == 3 and "50.00 s and 31 calls; extrapolated 25.00 s (-50%) and 30 calls" in out


# -- the script ------------------------------------------------------------------------------------------------------


def test_it_runs_saves_and_shows(sampling, tmp_path, capsys):
    file = tmp_path / "toy.json"
    options = {"network": "toy", "calls": "2", "batch": "2", "steps": "2,20", "complete": "0", "json": str(file)}
    sampling.main([f"--{name}={value}" for name, value in options.items()])
    out = capsys.readouterr().out
    assert "toy: 1 x 16" in out and "batch 2" in out and "check:" not in out
    (saved,) = json.loads(file.read_text())
    parts = {"trunk", "predict", "draw", "draw, cache kept", "plan 2", "plan 20"}
    assert set(saved["seconds"]) == parts and all(len(values) == 2 for values in saved["seconds"].values())
    assert all(math.isfinite(value) and value > 0 for values in saved["seconds"].values() for value in values)
    assert saved["memory"] is None or saved["memory"] > 0
    sampling.main(["--show", str(file), str(file)])
    assert capsys.readouterr().out == 2 * out


def test_complete_runs_are_made_where_they_are_cheap(sampling, monkeypatch, capsys):
    monkeypatch.setattr(sampling, "plan_memory", lambda *_: None)
    sampling.main(["--network=toy", "--calls=1", "--batch=1", "--steps=3", "--complete=1e9"])
    out = capsys.readouterr().out
    assert [line.split()[1] for line in out.splitlines() if line.startswith("check:")] == ["textbook", "cached", "plan"]
    assert out.count("~") == 1 and "there is no /proc here" in out


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--network", "own"], "unknown network 'own'; choose from owt, 10m, toy"),
        (["--batch", "0"], "'0' must be whole numbers of at least 1"),
        (["--steps", "50,x"], "'50,x' must be whole numbers of at least 1"),
        (["--calls", "0"], "0 must be at least 1"),
        (["--show", "/nowhere.json"], "that is no file which --json wrote"),
        (["--show", str(FOLDER / "measure.py")], "that is no file which --json wrote"),
        (["--json", "/nowhere/out.json"], "name a file in a folder that exists"),
        (["--batch", "1000000"], "give a smaller --batch"),
    ],
)
def test_mistakes_are_said_in_a_sentence(sampling, given, said, capsys):
    with pytest.raises(SystemExit) as stop:
        sampling.main(given)
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert said in captured.err.splitlines()[-1] and not captured.out


# -- constraints -----------------------------------------------------------------------------------------------------


def test_what_constraints_cost_is_measured(bench, capsys, monkeypatch):
    constraints = bench["constraints"]
    monkeypatch.setattr(constraints, "FORMS", {"date": constraints.FORMS["date"]})
    constraints.main(["--sizes=600", "--lengths=9", "--turns=1", "--json"])
    (record,) = json.loads(capsys.readouterr().out)
    assert (record["vocabulary"], record["states"]) == (600, 11) and record["kept_bytes"] < record["peak_bytes"]
    constraints.main(["--sizes=600", "--lengths=9", "--turns=1"])
    assert "date" in capsys.readouterr().out
    constraints.main(["--network=1x16", "--sizes=600", "--lengths=64", "--turns=1", "--states=10", "--json"])
    (record,) = json.loads(capsys.readouterr().out)
    assert record["states"] == 11 and record["ratio"] == record["formed_seconds"] / record["free_seconds"]


def test_laws_given_a_pattern(bench, capsys, monkeypatch):
    """Each step is nearer to the true law than masking from left to right, and many particles are nearest."""
    laws = bench["conditional_law"]
    monkeypatch.setattr(laws, "PATTERNS", ("a*b*c*",))
    laws.main(["--chains=2", "--particles=64", "--draws=128", "--json"])
    (record,) = json.loads(capsys.readouterr().out)
    assert record["left to right"] > record["each step"] > record["64 particles"] + 0.1
    law = laws.chain_law(0)
    fits = (laws.TEXTS == 0).all(1) | (laws.TEXTS[:, 0] == 1)  # b and anything, or a alone
    for order in ("left", "random"):
        assert laws.step_exact(law, fits, order).sum() == pytest.approx(1)
    masked = laws.masked_left_to_right(law, fits)
    assert masked.sum() == pytest.approx(1)
    firsts = [law[laws.TEXTS[:, 0] == y].sum() for y in (0, 1)]
    assert masked[0] == pytest.approx(firsts[0] / sum(firsts))  # a is possible at first, however unlikely aaaaaa is


@pytest.mark.parametrize(("share", "patterns"), [(9, 4), pytest.param(1, 50, marks=pytest.mark.slow)])
def test_every_text_fits(bench, share, patterns):
    """Each form by programs that are not ours; a random model, which would never write them by itself."""
    pytest.importorskip("jsonschema_rs")
    fitting, lm = bench["fitting_texts"], random_lm(bytes_tokenizer(), "data.length=64")
    every = list(fitting.forms(patterns))
    forms = every[: len(fitting.SCHEMAS) : share] + every[len(fitting.SCHEMAS) :]
    for number, (name, form) in enumerate(forms):
        texts = fitting.written(lm, form, 4, 48, seed=10 * number)
        assert len(texts) == 4 and all(fitting.fits(text, form) for text in texts), (name, texts)
    assert {next(iter(form)) for _, form in forms} == {"schema", "regex"}


def test_a_text_that_does_not_fit_is_found(bench):
    fits = bench["fitting_texts"].fits
    assert fits("ab", {"regex": "a(b|c)"}) and not fits("abc", {"regex": "a(b|c)"})
    pytest.importorskip("jsonschema_rs")
    assert fits("2", {"schema": {"const": 2}}) and not fits("3", {"schema": {"const": 2}})
    assert not fits("2}", {"schema": {"const": 2}})


# -- the selective scan ----------------------------------------------------------------------------------------------


@pytest.fixture
def scan(bench, monkeypatch) -> ModuleType:
    for name, value in {"INNER": 8, "STATE": 2, "peak_bytes": bench["scan"].peak_here}.items():  # no processes
        monkeypatch.setattr(bench["scan"], name, value)
    return bench["scan"]


def test_the_scans_are_one_function_and_are_shown(scan, capsys):
    scan.main(["--lengths=16,8", "--turns=2", "--json"])
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert [part["length"] for part in found["lengths"]] == [8, 16]
    assert [set(part["ways"]) for part in found["lengths"]] == [set(scan.WAYS), set(scan.WAYS) - {"transformers"}]
    for part in found["lengths"]:
        for own in part["ways"].values():
            assert own["difference"] < 1e-5, "outputs and gradients"
            assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in own["seconds"].values())
        kept = {name: own["kept_bytes"] for name, own in part["ways"].items()}
        assert 0 < kept["fused"] < kept["plain loop"]
    scan.show(found)
    out = capsys.readouterr().out
    assert out.count("mambapy pscan") == 6 and out.count("transformers") == 3 and "2 times the length" in out


def test_ratios_of_scans_are_those_of_turns(scan):
    assert scan.ratio([2.0, 30.0, 4.0], [1.0, 10.0, 4.0]) == 2.0


def test_mistakes_in_the_lengths_are_said_in_a_sentence(scan, capsys):
    for given, said in ((["--lengths", "8,x"], "'8,x' must be whole numbers"), (["--turns", "0"], "at least 1")):
        with pytest.raises(SystemExit) as stop:
            scan.main(given)
        assert stop.value.code == 2 and said in capsys.readouterr().err.splitlines()[-1]


# -- corpora of odd shape --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_corpora_of_every_shape_are_measured(bench, capsys, tmp_path):
    bench["corpus_sizes"].main(["--share=0.00001", f"--folder={tmp_path}", "--json"])
    results = json.loads(capsys.readouterr().out)
    assert [result["case"] for result in results] == list(bench["corpus_sizes"].CASES)
    assert all(result["rows"] > 0 and result["seconds"] > 0 for result in results)
    assert not list(tmp_path.iterdir())
    assert bench["corpus_sizes"].shown(results[0]).startswith("| text | 20,000 bytes |")
