"""`unmask reproduce`: every table at a size made for tests, on one shared bench; models are trained once."""

from __future__ import annotations

import json
import math
import random
import shlex
import shutil
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from scipy import stats

from support.helpers import refused, run, zero_shot_sets
from unmask.config import ModelConfig, differences
from unmask.evaluation.generative import BoundScorer
from unmask.hub.resolve import checkpoint, load
from unmask.reproduce import TABLES, timed_samples
from unmask.reproduce import bench as bench_module
from unmask.reproduce.bench import Bench
from unmask.reproduce.claims import Claim, decide, nats_gap
from unmask.reproduce.figures import Figure
from unmask.reproduce.report_files import load_results
from unmask.reproduce.scales import SCALES, Scale, Sizes
from unmask.reproduce.scored import ScoredModel
from unmask.reproduce.specs import Setup
from unmask.reproduce.tables import curves
from unmask.reproduce.tables.caching import CACHED, CACHED_ONE, PLAN
from unmask.reproduce.tables.noise_schedules import _equal_means, per_point
from unmask.reproduce.text_models import LONGER, METHODS, TEXT, text_models
from unmask.reproduce.timed_samples import GeneratedTexts, GenerationEntry
from unmask.training.text import train
from unmask.types import UserError

TINY = Scale(
    "smoke",
    unjudged=SCALES["smoke"].unjudged,
    steps=10,
    longer=2,
    rows=16,
    draws=4,
    samples=4,
    sampling_steps=(3, 6),
    full_steps=4,
    times=3,
    decode_steps=4,
    long_samples=2,
    sizes=Sizes(
        ModelConfig(hidden_dim=16, n_blocks=1, n_heads=2, cond_dim=8, dropout=0.0),
        length=16,
        vocab_size=300,
        warmup=2,
        ema=0.5,
        checkpoint_every=5,
        eval_rows=4,
        block=4,
        log_every=1,
    ),
)
PRINTED = {  # figures of the paper, typed from paper.tex once more
    "ablation": ["≤ 27.04 ± 0.01", "≤ 27.19 ± 0.07", "≤ 28.56 ± 0.15", "≤ 28.51 ± 0.15"],
    "schedules": ["3.30", "1.81", "7.57"],
    "steps": ["≤ 23.05", "≤ 42.18", "≤ 30.70", "≤ 25.77", "≤ 24.35", "≤ 23.66", "≤ 23.26", "≤ 23.15"],
    "time-conditioning": ["≤ 23.21", "≤ 23.05"],
    "lm": ["22.32", "20.86", "≤ 32.79", "≤ 27.04", "≤ 23.00", "≤ 76.90", "17.54", "≤ 24.10", "≤ 23.21"],
    "caching": ["85.3", "155.2", "70.3", "127.9", "40.1", "60.4", "1.213", "0.570", "0.472"],
    "semi-ar": ["35.43", "2473.9", "27.18", "89.3"],
    "variance-curve": ["fig:nll_owt"],
    "laws": ["A study of this project"],
    "zero-shot": [
        "82.05",
        "25.75",
        "51.25",
        "51.28",
        "52.09",
        "49.01",
        "41.73",
        "≤ 100.09",
        "≤ 34.28",
        "≤ 68.20",
        "≤ 49.86",
        "≤ 62.09",
        "≤ 44.53",
        "≤ 38.48",
        "≤ 95.26",
        "≤ 32.83",
        "≤ 67.01",
        "≤ 47.52",
        "≤ 61.15",
        "≤ 41.89",
        "≤ 37.37",
    ],
}
NEEDED = {
    "ar-judge",
    "ssd-lm",
    "sedd-independent",
    "sedd-independent-longer",
    *(
        f"{name}{end}"
        for name in ("mdlm", "mdlm-seed", "mdlm-T1000", "no-carry-over", "d3pm", "mdlm-time", "sedd", "ar")
        for end in ("", LONGER)
    ),
}


def sentences(n: int, seed: int) -> str:
    rng = random.Random(seed)
    who, does, what = ["a cat", "the dog", "one bird", "my fish"], ["sees", "likes", "hunts"], ["rain", "the sun", "me"]
    return "".join(f"{rng.choice(who)} {rng.choice(does)} {rng.choice(what)}.\n" for _ in range(n))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory):
    """A folder with a text; scale smoke is the size of the tests in here."""
    folder = tmp_path_factory.mktemp("reproduce")
    text = folder / "text"
    text.mkdir()
    for seed, (split, n) in enumerate({"train": 600, "valid": 100, "test": 100}.items()):
        (text / f"{split}.txt").write_text(sentences(n, seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNMASK_CACHE", str(folder / "cache"))
        patch.setenv("UNMASK_DATA", str(zero_shot_sets(folder / "sets")))
        patch.setitem(SCALES, "smoke", TINY)
        patch.setattr(timed_samples, "TIMED", 2)
        yield folder


def options(place: Path, *more: str) -> list[str]:
    return ["--data", str(place / "text"), "--out", str(place / "out"), "--quiet", *more]


@pytest.fixture(scope="module")
def tables(place) -> dict[str, Any]:
    """What `unmask reproduce NAME --json` says, of every table."""
    return {name: run("reproduce", name, *options(place), "--json").json() for name in PRINTED}


@pytest.fixture(scope="module")
def bench(place, tables) -> Bench:
    return Bench(TINY, str(place / "text"), place / "out", quiet=True)


def cells(table: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row["ours"] for row in table["rows"]}


# -- all tables ------------------------------------------------------------------------------------------------------


def test_every_table_is_tested():
    others = {name for name, table in TABLES.items() if table.family is not TEXT}  # tested in files of their own
    assert {*PRINTED, *others} == {*TABLES} and len(others) == 9


@pytest.mark.parametrize("name", list(PRINTED))
def test_a_table_is_a_page_a_document_and_plots(tables, bench, name):
    folder = bench.folder / name
    page = (folder / "report.md").read_text()
    assert f"unmask reproduce {name} --scale smoke --data {bench.source} --seed 0" in page
    assert [figure for figure in PRINTED[name] if figure not in page.replace("\\_", "_")] == []
    again, said = json.loads((folder / "results.json").read_text()), tables[name]
    for part in ("name", "label", "tables", "plots", "checks", "protocol", "notes", "models"):
        assert again[part] == said[part]
    assert load_results(folder).tables[0].cells()[0][0] == ""
    figures = [cell for table in said["tables"] for own in cells(table).values() for cell in own.values()]
    numbers = [part for cell in figures if isinstance(cell, dict) for part in (cell["value"], cell["error"] or 0.0)]
    assert len(numbers) >= 6 and all(isinstance(number, int | float) and math.isfinite(number) for number in numbers)
    assert said["checks"] and said["unjudged"].startswith("No verdict: at the scale smoke")
    assert all(check["holds"] is None and "not judged" in check["detail"] for check in said["checks"])
    assert said["unjudged"].split(":")[0] in page and not set("✓✗") & set(page)
    assert page.splitlines()[0].endswith(f"at scale smoke, on {bench.source}".replace("_", "\\_"))
    plots = list(folder.glob("*.svg"))
    assert len(plots) == len(said["plots"]) == (name in ("steps", "caching", "variance-curve"))
    assert all(ET.parse(plot).getroot().tag.endswith("svg") for plot in plots)


def test_models_are_trained_once_and_shared(tables, bench):
    models = bench.folder / "models"
    assert {path.name for path in models.iterdir() if path.is_dir()} == NEEDED
    before = {path: path.stat().st_mtime_ns for path in models.rglob("*") if path.is_file() and path.suffix != ".lock"}
    options = ["--data", bench.source, "--out", str(bench.out), "--quiet", "--json"]
    assert cells(run("reproduce", "ablation", *options).json()["tables"][0]) == cells(tables["ablation"]["tables"][0])
    again, first = (
        cells(doc["tables"][0]) for doc in (run("reproduce", "semi-ar", *options).json(), tables["semi-ar"])
    )
    for row, own in first.items():  # all but the seconds
        for column in ("Gen. PPL", "entropy", "repetition", "network calls"):
            assert again[row].get(column) == own.get(column)
    after = {path: path.stat().st_mtime_ns for path in models.rglob("*") if path.is_file() and path.suffix != ".lock"}
    assert after == before


def test_tokens_are_counted_as_in_the_paper(tables, bench):
    found = {model["name"]: model for table in tables.values() for model in table["models"]}
    assert set(found) == NEEDED
    for name, model in found.items():
        causal, longer = name.startswith("ar"), name.endswith(LONGER) or name == "ar-judge"
        assert model["steps"] == (5 if causal else 10) * (2 if longer else 1) == checkpoint.steps(bench.path(name))[-1]
        assert model["tokens"] == model["steps"] * 16 * 16  # rows of 16 tokens, 16 a batch
        assert model["unmasked_tokens"] == (5 * 256) * (2 if longer else 1)  # the same for all methods
        assert model["parameters"] == sum(p.numel() for p in bench.lm(name).model.parameters())


@pytest.mark.parametrize("name", sorted({*METHODS} - {"mdlm"}))
def test_a_model_differs_from_mdlm_in_what_its_name_says(name):
    models = text_models(Setup(SCALES["small"], "a.txt"))
    changed = {key for key, _, _ in differences(models["mdlm"].config, models[name].config)}
    longer = differences(models[name].config, models[name + LONGER].config)
    assert models[name + LONGER].continues == name
    assert [key for key, _, _ in longer] == ([] if name == "ar-judge" else ["train.steps"])
    assert (
        changed
        == {
            "mdlm-seed": {"seed"},
            "mdlm-T1000": {"objective.bound", "objective.steps"},
            "no-carry-over": {"model.method", "objective.bound", "objective.steps"},
            "d3pm": {"model.method", "objective.bound", "objective.steps"},
            "mdlm-time": {"model.time_conditioning"},
            "sedd": {"model.method", "model.time_conditioning"},
            "sedd-independent": {"model.method", "model.time_conditioning", "objective.times"},
            "ar": {"model.method", "train.steps"},
            "ar-judge": {"model.method", "seed", "train.steps"},
            "ssd-lm": {"model.method"},
        }[name]
    )


# -- trainings that go wrong -----------------------------------------------------------------------------------------


def test_an_interrupted_training_goes_on(bench, tmp_path, monkeypatch):
    def stopped(config, out, quiet, start):
        return replace(train(config.override(["train.steps=5"]), out, quiet=quiet), finished=False)

    other = Bench(TINY, bench.source, tmp_path, quiet=True)
    with monkeypatch.context() as patch:
        patch.setattr(bench_module, "train", stopped)
        with pytest.raises(UserError, match="the training of mdlm was stopped; run the same command again"):
            other.need(["mdlm"])
    assert not other.finished("mdlm") and checkpoint.steps(other.path("mdlm")) == [5]
    other.need(["mdlm"])
    weights, whole = other.lm("mdlm").model.state_dict(), bench.lm("mdlm").model.state_dict()
    assert all(torch.equal(weights[key], whole[key]) for key in whole)
    assert curves.journal(other.path("mdlm"))[1].tolist() == curves.journal(bench.path("mdlm"))[1].tolist()


def test_a_longer_training_is_the_shorter_one_continued(bench):
    short, long = (curves.journal(bench.path(name)) for name in ("sedd", "sedd-longer"))
    assert long[0].tolist() == list(range(1, 21))
    assert long[1][:10].tolist() == short[1].tolist()


@pytest.mark.parametrize("what", ["model.safetensors", "ema.safetensors"])
def test_a_damaged_model_is_named(bench, tmp_path, what):
    path = tmp_path / "smoke" / "text" / "models" / "mdlm"
    shutil.copytree(bench.path("mdlm"), path)
    (file,) = path.rglob(what)
    file.write_bytes(file.read_bytes()[:-7])
    said = refused("reproduce", "schedules", "--data", bench.source, "--out", str(tmp_path), "--quiet")
    assert "models/mdlm" in said and what in said


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["cachin"], "unknown table 'cachin' (did you mean 'caching'?)"),
        (["lm", "--scale", "smal"], "unknown scale 'smal' (did you mean 'small'?)"),
        (["lm", "--data", "nowhere.txt"], "nowhere.txt"),
        (["caching", "--scorer", "oracle:x"], "unknown kind of scorer 'oracle'"),
        (["semi-ar", "--scorer", "unmask:nowhere"], "nowhere"),
        (["caching", "--scale", "paper", "--data", "my.txt"], "lm1b and owt, not 'my.txt'"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_trained(place, tmp_path, args, said):
    text = [] if "--data" in args else ["--data", str(place / "text")]
    found = refused("reproduce", *args, *(text if "paper" not in args else []), "--out", str(tmp_path), "--quiet")
    assert said in found
    assert not list(tmp_path.rglob("checkpoints"))


# -- the paper's scale -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lm", "caching", "semi-ar"])
def test_the_papers_scale_prints_commands_that_train(tmp_path, name):
    ran = run("reproduce", name, "--scale", "paper", "--seed", "3", "--out", str(tmp_path / "a b"))
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert run(
        "reproduce", name, "--scale", "paper", "--seed", "3", "--out", str(tmp_path / "a b"), "--json"
    ).json() == {"missing": lines}
    found = {}
    for line in lines:
        words = shlex.split(line)
        assert words[:7] == ["torchrun", "--nproc-per-node", "8", "-m", "unmask", "train", words[6]]
        assert words[6] == ("lm1b" if name == "lm" else "owt") and words[-2] == "--out"
        shown = run("train", *words[6:], "--print-config")
        assert shown.code == 0, shown.err
        found[Path(words[-1]).name] = config = yaml.safe_load(shown.out)
        model = Path(words[-1]).name
        assert words[-1] == str(tmp_path / "a b" / "paper" / words[6] / "models" / model)
        assert config["seed"] == (4 if model == "ar-judge" else 3)
        assert config["data"]["length"] == (128 if name == "lm" else 1024)
        assert config["model"]["hidden_dim"] == 768 and config["train"]["batch_size"] == 512
    methods = {model: (own["model"]["method"], own["train"]["steps"]) for model, own in found.items()}
    assert (
        methods
        == {
            "lm": {
                "ar": ("ar", 500_000),
                "sedd": ("sedd", 10**6),
                "d3pm": ("d3pm", 10**6),
                "mdlm": ("mdlm", 10**6),
                "mdlm-time": ("mdlm", 10**6),
                "mdlm-time-longer": ("mdlm", 10**7),
                "ar-longer": ("ar", 5 * 10**6),
                "sedd-longer": ("sedd", 10**7),
                "d3pm-longer": ("d3pm", 10**7),
                "mdlm-longer": ("mdlm", 10**7),
            },
            "caching": {
                "ar": ("ar", 500_000),
                "sedd": ("sedd", 10**6),
                "mdlm": ("mdlm", 10**6),
                "ar-judge": ("ar", 5 * 10**6),
            },
            "semi-ar": {"ssd-lm": ("ssd-lm", 10**6), "mdlm": ("mdlm", 10**6), "ar-judge": ("ar", 5 * 10**6)},
        }[name]
    )
    assert not (tmp_path / "a b").exists() or not list((tmp_path / "a b").rglob("*.yaml"))


# -- statistics of likelihoods ---------------------------------------------------------------------------------------


def scored(seed: int, tokens: np.ndarray, draws: int = 3, rate: float = 2.0) -> ScoredModel:
    rng = np.random.default_rng(seed)
    return ScoredModel(tokens[:, None] * (rate + 0.3 * rng.standard_normal((len(tokens), draws))), tokens, False, {})


def test_a_difference_is_a_paired_test_over_texts():
    tokens = np.full(40, 7)
    one, other = scored(1, tokens), scored(2, tokens, rate=2.1)
    gap = (other.nats.mean(1) - one.nats.mean(1)) / 7
    found = nats_gap(one, other)
    assert found.value == pytest.approx(gap.mean(), rel=1e-12)
    assert found.error == pytest.approx(stats.sem(gap), rel=1e-12)
    test = stats.ttest_rel(other.nats.mean(1), one.nats.mean(1))
    assert found.value / found.error == pytest.approx(test.statistic, rel=1e-12)


def test_a_difference_of_texts_of_any_length_agrees_with_the_jackknife():
    tokens = np.random.default_rng(0).integers(1, 30, 400)
    one, other = scored(1, tokens), scored(2, tokens, rate=2.1)
    gap, found = other.nats.mean(1) - one.nats.mean(1), nats_gap(one, other)
    without = np.array([(gap.sum() - g) / (tokens.sum() - n) for g, n in zip(gap, tokens, strict=True)])
    assert found.value == pytest.approx(gap.sum() / tokens.sum(), rel=1e-12)
    assert found.error == pytest.approx(math.sqrt(399 / 400 * ((without - without.mean()) ** 2).sum()), rel=0.02)


def test_mean_and_variance_of_a_point():
    tokens = np.random.default_rng(0).integers(2, 30, 50)
    own = scored(3, tokens, draws=8)
    mean, variance = per_point(own)
    bits = np.array([[nats / n / math.log(2) for nats in row] for row, n in zip(own.nats, tokens, strict=True)])
    each = [np.var(row, ddof=1) for row in bits]
    assert mean.value == pytest.approx(bits.mean(), rel=1e-12)
    assert mean.error == pytest.approx(stats.sem([bits[:, draw].mean() for draw in range(8)]), rel=1e-12)
    assert variance.value == pytest.approx(np.mean(each), rel=1e-12)
    assert variance.error == pytest.approx(stats.sem(each), rel=1e-12)


@pytest.mark.parametrize(("shift", "holds"), [(0.0, True), (0.01, True), (0.1, False)])
def test_equal_means_by_chi_square(shift, holds):
    rng = np.random.default_rng(5)
    errors = rng.uniform(0.005, 0.02, 5)
    values = 3 + errors * rng.standard_normal(5)
    values[2] += shift
    check = _equal_means([Figure(float(v), float(e)) for v, e in zip(values, errors, strict=True)])
    common = np.average(values, weights=errors**-2)
    chi = sum(((v - common) / e) ** 2 for v, e in zip(values, errors, strict=True))
    assert f"chi-square {chi:.1f} with 4 degrees" in check.detail and f"{common:.4f}" in check.detail
    assert check.holds is holds
    assert bool(stats.chi2.sf(chi, 4) > 0.0141) is holds  # the limit, 4 + 3 sqrt(8), as a p-value


# -- samples ---------------------------------------------------------------------------------------------------------


def test_caching_says_what_was_completed_and_what_extrapolated(tables):
    minutes, ratios, samples = (cells(table) for table in tables["caching"]["tables"])
    notes = {row["name"]: row["note"] for row in tables["caching"]["tables"][2]["rows"]}
    for method in ("SEDD", "MDLM"):
        assert notes[f"{method}, T=3"] == "" and samples[f"{method}, T=3"]["gen. PPL"]["value"] > 1
        assert notes[f"{method}, T=6"] == "extrapolated" and "gen. PPL" not in samples[f"{method}, T=6"]
    assert samples["MDLM, T=6"]["network calls"]["value"] == 6  # two of six steps were made
    assert samples["MDLM, T=3"]["network calls"]["value"] == 3
    for t in (3, 6):
        assert 1 <= samples[f"{PLAN}, T={t}"]["network calls"]["value"] <= t
        assert 1 <= samples[f"{CACHED_ONE}, T={t}"]["network calls"]["value"] <= t
        assert samples[f"{CACHED}, T={t}"]["gen. PPL"]["error"] > 0
    assert samples["AR"]["network calls"]["value"] == 16 and samples["real text"]["gen. PPL"]["value"] > 1
    for method, own in minutes.items():
        seconds, mdlm = (samples[f"{name}, T=6"]["seconds a sample"]["value"] for name in (method, "MDLM"))
        assert own["T=6"]["value"] == pytest.approx(seconds * 64 / 60)
        assert ratios[method]["T=6"]["value"] == pytest.approx(seconds / mdlm)


def test_long_samples_are_as_long_as_they_should_be(tables, bench):
    found = cells(tables["semi-ar"]["tables"][0])
    assert found["SSD-LM"]["network calls"]["value"] == 48 // 4 * 4  # blocks of 4 tokens, 4 steps each
    windows = 1 + (48 - 16) // 8
    assert found["MDLM, a call every step"]["network calls"]["value"] == windows * 4
    assert windows <= found["MDLM"]["network calls"]["value"] <= windows * 4
    assert found["SSD-LM"]["Sec/Seq"]["value"] > 0 and found["MDLM"]["Sec/Seq"]["error"] > 0
    assert tables["semi-ar"]["protocol"]["judge"]["scorer"] == "unmask:ar-judge"


def test_samplers_take_turns(bench):
    turns: list[tuple[str, int, int]] = []

    def writer(name):
        def write(n, seed):
            turns.append((name, n, seed))
            return GeneratedTexts(["x"] * n, [[1]] * n, [len(turns)] * n)

        return write

    entries = [GenerationEntry("a", 1, writer("a")), GenerationEntry("b", 1, writer("b"), batch=1, factor=3.0)]
    assert timed_samples.take_turns(bench, entries, 5) == 2
    assert [(name, n) for name, n, _ in turns] == [("a", 2), ("b", 1), ("a", 2), ("b", 1), ("a", 1), ("b", 1)]
    seeds = [seed + i for _, n, seed in turns for i in range(n)]
    assert len(set(seeds)) == len(seeds) == 8
    assert entries[0].calls.value == np.mean([1, 1, 3, 3, 5]) and entries[1].calls.value == 3 * np.mean([2, 4, 6])
    assert entries[0].seconds.error == pytest.approx(stats.sem(entries[0].spent))


def test_the_steps_of_an_extrapolated_time_are_spread_over_the_run(bench, monkeypatch):
    monkeypatch.setattr(timed_samples, "TIMED", 12)
    monkeypatch.setattr(timed_samples, "PARTS", 4)
    model, shares = bench.lm("sedd").model, []

    def look(module, args, kwargs):
        shares.append(float((args[0].tokens == model.vocab.mask).double().mean()))

    with model.backbone.register_forward_pre_hook(look, with_kwargs=True):
        found = timed_samples.by_some_steps(bench, bench.lm("sedd"), "analytic", 10_000)(64, 0)
    assert found.calls == [12] * 64 and len(shares) == 12  # a call with all 64 sequences a step
    expected = np.repeat([1 / 8, 3 / 8, 5 / 8, 7 / 8], 3)
    assert shares == pytest.approx(expected, abs=5 * math.sqrt(0.25 / (64 * 16)))


def test_cached_samples_depend_on_their_seed_alone(bench):
    write = timed_samples.by_caching(bench.lm("mdlm"), 40)
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    first = write(3, 5)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(2)
    assert write(3, 5) == first != write(3, 6)
    assert first.calls == [first.calls[0]] * 3 and 1 < first.calls[0] <= 40
    assert all(len(tokens) <= 16 for tokens in first.tokens)


def test_no_time_conditioned_model_is_cached(bench):
    with pytest.raises(AssertionError, match="cache"):
        timed_samples.by_caching(bench.lm("mdlm-time"), 4)


def test_the_judge_is_another_model_and_its_perplexity_is_that_of_its_network(bench):
    lm = bench.lm("ar-judge")
    assert load(bench.path("ar-judge")).config.seed == 1 != bench.lm("ar").config.seed
    texts = [
        "the cat sees rain.\nmy fish",
        "one bird hunts the sun.\na cat likes me.\nthe dog sees the sun. me rain dog",
    ]
    nats, tokens = 0.0, 0
    for text in texts:
        ids = lm.encode(text)
        for block in (ids[i : i + 16] for i in range(0, len(ids), 16)):
            for i, token in enumerate(block):  # each token from nothing but those before it
                seen = torch.tensor([[lm.model.vocab.mask, *block[:i]]])
                with torch.no_grad():
                    logits = lm.model.backbone.head(lm.model.backbone(seen)[0][0, -1])
                logits[lm.model.vocab.mask] = -math.inf
                nats -= float(torch.log_softmax(logits.double(), -1)[token])
            tokens += len(block)
    found = timed_samples.judged(
        GeneratedTexts(texts, [lm.encode(text) for text in texts], [1, 1]), BoundScorer(lm, "j", 0, 1)
    )
    assert found["gen. PPL"].value == pytest.approx(math.exp(nats / tokens), rel=1e-5)
    shares = [np.unique(lm.encode(text), return_counts=True)[1] for text in texts]
    assert found["entropy"].value == pytest.approx(np.mean([stats.entropy(share) for share in shares]))


def test_a_scorer_that_is_given_judges_instead(bench, tmp_path):
    judge = str(bench.path("ar"))
    args = ["--data", bench.source, "--out", str(tmp_path), "--quiet", "--json", "--scorer", f"unmask:{judge}"]
    for name in ("mdlm", "ssd-lm"):
        shutil.copytree(bench.path(name), tmp_path / "smoke" / "text" / "models" / name)
    found = run("reproduce", "semi-ar", *args).json()
    assert found["protocol"]["judge"]["scorer"] == f"unmask:{judge}" and judge in found["command"]
    assert {model["name"] for model in found["models"]} == {"mdlm", "ssd-lm"}


# -- training curves -------------------------------------------------------------------------------------------------


def write_journal(path: Path, losses: dict[int, float], more: str = "") -> Path:
    path.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"step": step, "loss": loss}) for step, loss in losses.items()]
    (path / "log.jsonl").write_text("\n".join([*lines, more]) + "\n" if more else "\n".join(lines) + "\n")
    return path


def test_a_spread_is_that_of_the_residuals_of_a_line():
    rng = np.random.default_rng(0)
    steps = np.arange(10, 2010, 10)
    losses = 5 - steps / 1000 + 0.4 * rng.standard_t(6, len(steps))
    losses[:100] += 10  # the first half does not count
    y, off = curves.strays(steps, losses)
    line = stats.linregress(steps[100:], losses[100:])
    rest = losses[100:] - line.slope * steps[100:] - line.intercept
    assert off == pytest.approx(rest, abs=1e-9) and y.tolist() == losses[100:].tolist()
    found = curves.spread(off)
    assert found.value == pytest.approx(math.sqrt((rest**2).sum() / 98))
    redrawn = rng.choice(rest, (4000, 100)).std(axis=1)
    assert found.error == pytest.approx(redrawn.std(), rel=0.1)


@pytest.mark.parametrize(("factor", "holds"), [(1.5, True), (1.0, None), (0.6, False)])
def test_which_curve_is_wider_is_a_paired_test(factor, holds):
    rng = np.random.default_rng(1)
    narrow = rng.standard_normal(200)
    wide = factor * narrow + 0.05 * rng.standard_normal(200)  # the same batches
    claim = Claim("wider", "wide", "narrow", measure=curves.wider, trained=False)
    assert claim.check({"wide": [wide], "narrow": [narrow]}).holds is holds
    test = stats.ttest_rel(wide**2, narrow**2)
    assert bool(abs(test.statistic) > 2) is (holds is not None)
    assert decide("wider", curves.wider([wide], [narrow])).holds is None, "one training each"


def test_a_journal_keeps_the_last_of_a_step_that_was_made_twice(tmp_path):
    path = write_journal(tmp_path, {10: 5.0, 20: 4.0}, '{"step": 20, "valid": 3}\n{"step": 20, "loss": 4.5}')
    steps, losses = curves.journal(path)
    assert steps.tolist() == [10, 20] and losses.tolist() == [5.0, 4.5]


@pytest.mark.parametrize("more", ["{", '{"loss": 1}', '{"step": 3, "loss": "high"}'])
def test_a_damaged_journal_is_named(tmp_path, more):
    with pytest.raises(UserError, match=r"log\.jsonl is damaged"):
        curves.journal(write_journal(tmp_path, {1: 2.0}, more))
    with pytest.raises(UserError, match=r"cannot read the journal .*log\.jsonl"):
        curves.journal(tmp_path / "nowhere")


def test_too_few_logged_steps_are_refused():
    with pytest.raises(UserError, match="has 3 logged steps"):
        curves.strays(np.arange(1, 7), np.ones(6))


def test_the_curve_is_every_logged_batch(tables, bench):
    found = {curve["name"]: curve for curve in tables["variance-curve"]["plots"][0]["curves"]}
    for method, name in (("MDLM", "mdlm-longer"), ("SEDD", "sedd-longer")):
        lines = [json.loads(line) for line in (bench.path(name) / "log.jsonl").read_text().splitlines()]
        losses = {line["step"]: line["loss"] for line in lines if "loss" in line}
        assert found[method]["x"] == list(losses) and found[method]["y"] == list(losses.values())
    assert cells(tables["variance-curve"]["tables"][0])["MDLM"]["batches"]["value"] == 10


def test_an_order_has_the_likelihood_of_its_predictions_one_by_one(tables, bench):
    """A row masked from a place on, for every place: what the network gives the token there, in a loop of our own."""
    own, model = cells(tables["laws"]["tables"][0]), bench.lm("mdlm").model
    vocab, nats, tokens = model.vocab, 0.0, 0
    with torch.no_grad():
        for row in range(2):  # as many as the scale has
            x = torch.from_numpy(bench.rows().rows(np.array([row * len(bench.rows()) // 2]))[0]).long()
            for place in range(x.shape[1]):
                z = torch.where(torch.arange(x.shape[1]) >= place, vocab.mask, x)
                hidden, _ = model.backbone(z, condition=model.condition(z, torch.zeros(1), None))
                logits = model.backbone.head(hidden[0, place : place + 1]).double()
                logits[:, vocab.mask] = -math.inf
                nats, tokens = nats - float(logits.log_softmax(-1)[0, x[0, place]]), tokens + 1
    assert own["left to right"]["nats/token"]["value"] == pytest.approx(nats / tokens, rel=1e-5)
    assert own["mean over 4 random orders"]["nats/token"]["error"] > 0, "draws differ"


# -- several trainings -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["caching", "semi-ar", "schedules", "variance-curve", "zero-shot"])
def test_tables_with_two_seeds(tables, place, name):
    """The models of the first seed are those of before; claims on models count two trainings, others need one."""
    found = run("reproduce", name, *options(place, "--seeds", "2"), "--json").json()
    trained = {model["name"] for model in found["models"]}
    if name != "variance-curve":  # where both seeds were continued, their whole trainings
        assert {model["name"] for model in tables[name]["models"]} <= trained
    assert any(model.endswith("-seed1") for model in trained)
    assert [check["claim"] for check in found["checks"]] == [check["claim"] for check in tables[name]["checks"]]
    again = [table["rows"] for table in found["tables"][: len(tables[name]["tables"])]]
    assert [[row["name"] for row in rows] for rows in again] == [
        [row["name"] for row in table["rows"]] for table in tables[name]["tables"]
    ]
