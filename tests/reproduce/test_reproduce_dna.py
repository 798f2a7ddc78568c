"""`unmask reproduce dna`, `genomics` and `dna-curves`: trained from nothing in seconds, beside the paper's figures."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import pytest

from support.helpers import refused, run
from support.paths import SHARED
from unmask.config import Config, DataConfig
from unmask.data.genome.bases import VOCAB
from unmask.data.pack import prepare
from unmask.models import registry
from unmask.reproduce import genome_models, paper_dna
from unmask.reproduce.bench import Bench
from unmask.reproduce.claims import decide, fewer_nats_a_base
from unmask.reproduce.figures import Figure
from unmask.reproduce.genome_models import GENOME
from unmask.reproduce.markov import Markov
from unmask.reproduce.report import Check
from unmask.reproduce.scales import scale_named
from unmask.reproduce.scored import ScoredModel
from unmask.reproduce.tables.genome_ppl import history
from unmask.reproduce.tables.genomic_benchmarks import more_accurate
from unmask.types import UserError

TEX = SHARED / "paper.tex"
SMOKE = genome_models.GENOME_SIZES["smoke"]
TINY = {"hidden_dim": 8, "n_blocks": 1, "state_dim": 2}
QUICK = {
    "model": TINY,
    "train": {"log_every": 1, "steps": 4, "batch_size": 4},
    "eval": {"every": 2, "rows": 4, "draws": 2},
}
SIZES = replace(
    SMOKE,
    length=32,
    steps=3,
    tuning_steps=2,
    rows=12,
    warmup=1,
    tuning_warmup=1,
    networks={"mamba": TINY, "caduceus": TINY, "hyena": {"hidden_dim": 8, "n_blocks": 1}},
    train={**SMOKE.train, "batch_size": 4},
    eval={**SMOKE.eval, "rows": 4},
    curves={"mamba-long": QUICK, "mdlm-long": {**QUICK, "objective": {"cutoff": 0.1}}},
    tasks=replace(SMOKE.tasks, rows=8, eval_rows=9, batch_size=8),
)


def bases(n: int, rng: np.random.Generator) -> str:
    """A chain in which a base says something about the next."""
    chain = np.array([[0.7, 0.1, 0.1, 0.1], [0.1, 0.1, 0.7, 0.1], [0.1, 0.1, 0.1, 0.7], [0.1, 0.7, 0.1, 0.1]])
    found = [0]
    while len(found) < n:
        found.append(int(rng.choice(4, p=chain[found[-1]])))
    return "".join("ACGT"[i] for i in found)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A genome with N in it, a benchmark of which only the test file is there, and a task of GUE."""
    folder, rng = tmp_path_factory.mktemp("dna"), np.random.default_rng(0)
    text = bases(12_000, rng)
    text = text[:5000] + "N" * 40 + text[5000:]
    (folder / "genome.fa").write_text(f">one\n{text}\n>two\n{bases(1500, rng)}N{bases(500, rng)}\n")
    lines = [f"{bases(251, rng)}\t{i % 2}" for i in range(60)]
    (folder / "tasks" / "genomic_benchmarks").mkdir(parents=True)
    (folder / "tasks" / "genomic_benchmarks" / "human_nontata_promoters.test.tsv").write_text(
        "\n".join(["seq\tlabel", *lines]) + "\n"
    )
    own = folder / "tasks" / "gue" / "prom_core_tata"
    own.mkdir(parents=True)
    for split, n in (("train", 40), ("dev", 12), ("test", 30)):
        lines = [f"{bases(70, rng)},{i % 2}" for i in range(n)]
        (own / f"{split}.csv").write_text("\n".join(["sequence,label", *lines]) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNMASK_CACHE", str(folder / "cache"))
        patch.delenv("UNMASK_DATA", raising=False)
        patch.setitem(genome_models.GENOME_SIZES, "smoke", SIZES)
        yield folder


def words(place: Path, name: str) -> list[str]:
    found = ["reproduce", name, "--data", str(place / "genome.fa"), "--out", str(place / "out"), "--quiet", "--json"]
    return [*found, *(["--local", str(place / "tasks")] if name == "genomics" else [])]


@pytest.fixture(scope="module")
def said(place) -> dict[str, Any]:
    return {name: run(*words(place, name)).json() for name in ("dna", "dna-curves", "genomics")}


def ours(table: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row["ours"] for row in table["rows"]}


def models(place: Path) -> Path:
    return place / "out" / "smoke" / "genome.fa" / "models"


# -- Markov models ---------------------------------------------------------------------------------------------------


def slow(train: list[str], test: list[str], order: int) -> list[tuple[float, int]]:
    """(nats, bases) of windows of letters, with dictionaries and one base at a time."""

    def context(window: str, at: int) -> str:
        start = at
        while start > 0 and at - start < order and window[start - 1] in "ACGT":
            start -= 1
        return window[start:at]

    seen: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys("ACGT", 0))
    for window in train:
        for at, base in enumerate(window):
            if base in "ACGT":
                whole = context(window, at)
                for length in range(len(whole) + 1):
                    seen[whole[len(whole) - length :]][base] += 1
    found = []
    for window in test:
        nats, n = 0.0, 0
        for at, base in enumerate(window):
            if base in "ACGT":
                counts = seen[context(window, at)]
                nats -= math.log((counts[base] + 0.5) / (sum(counts.values()) + 2))
                n += 1
        found.append((nats, n))
    return found


def letters(rows: Any, chosen: Any) -> list[str]:
    return ["".join("????-??ACGTN"[token] for token in row) for row in rows.rows(np.asarray(chosen))[0]]


def windows(place: Path) -> tuple[Any, Any, list[str]]:
    spec = DataConfig(source=str(place / "genome.fa"), tokenizer="dna", length=32, cache=str(place / "cache"))
    data = prepare(spec)
    train, test = data.split("train"), data.split("test")
    return train, test, letters(train, range(len(train)))


@pytest.mark.parametrize("order", [0, 1, 2, 5])
def test_markov_models_are_counts_of_contexts(place, order, monkeypatch):
    train, test, every = windows(place)
    assert any("N" in window for window in every), "contexts break somewhere"
    monkeypatch.setattr("unmask.reproduce.markov.CHUNK", 100 * 32)  # several pieces
    nats, n = Markov(train, 6).nats(test, order)
    want = slow(every, letters(test, range(len(test))), order)
    assert n.tolist() == [bases for _, bases in want]
    np.testing.assert_allclose(nats, [value for value, _ in want], rtol=1e-12)


def test_markov_models_of_windows_with_n_and_padding(tmp_path):
    """By hand: A after A in 3 of 4; a base behind N, and the first of a window, have no context."""
    (tmp_path / "toy.fa").write_text(">a\nAAAANACG\n>b\nAAAT\n")
    spec = DataConfig(
        source=str(tmp_path / "toy.fa"),
        tokenizer="dna",
        length=8,
        cache=str(tmp_path / "cache"),
        valid_fraction=0,
        test_fraction=0,
    )
    rows = prepare(spec).split("train")
    assert letters(rows, range(len(rows))) == ["AAAANACG", "AAAT----"]
    markov = Markov(rows, 1)
    assert markov.counts[0].tolist() == [[8, 1, 1, 1]]
    assert markov.counts[1].tolist() == [[5, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    nats, n = markov.nats(rows, 1)
    first, again = math.log(8.5 / 13), math.log(5.5 / 9)
    assert n.tolist() == [7, 4]
    assert nats[1] == pytest.approx(-(first + 2 * again + math.log(1.5 / 9)))
    assert nats[0] == pytest.approx(-(first + 3 * again + first + math.log(1.5 / 9) + math.log(1.5 / 3)))


# -- tab:genome-ppl --------------------------------------------------------------------------------------------------


def test_perplexities_beside_the_papers_and_markov_models(said, place):
    (table,) = said["dna"]["tables"]
    found = ours(table)
    markov = ["unigram model", *(f"Markov model of order {order}" for order in (2, 5, 8, 10))]
    assert list(found) == [*markov, "Mamba", "HyenaDNA", "Plaid", "SEDD", "MDLM"]
    _, test, every = windows(place)
    chosen = [i * len(test) // 12 for i in range(12)]
    for row, order in zip(markov, (0, 2, 5, 8, 10), strict=True):
        want = slow(every, letters(test, chosen), order)
        rate = sum(nats for nats, _ in want) / sum(n for _, n in want)
        assert found[row]["PPL"]["value"] == pytest.approx(math.exp(rate), rel=1e-9)
        assert found[row]["bits/base"]["value"] == pytest.approx(rate / math.log(2), rel=1e-9)
    for row in ("Plaid", "SEDD", "MDLM"):
        assert found[row]["PPL"]["bound"] and found[row]["PPL, Monte Carlo error"]["value"] > 0
    for row in ("Mamba", "HyenaDNA"):
        assert not found[row]["PPL"]["bound"] and found[row]["PPL, Monte Carlo error"] == "exact"
    page = (place / "out" / "smoke" / "genome.fa" / "dna" / "report.md").read_text()
    assert "≤ 3.199 ± 0.010" in page and "3.067 ± 0.010" in page and "465K" in page
    assert "unmask reproduce dna --scale smoke" in page


@pytest.mark.parametrize(
    ("row", "name"), [("Mamba", "mamba-ar"), ("MDLM", "caduceus-mdlm"), ("Plaid", "caduceus-plaid")]
)
def test_a_row_is_the_mean_of_its_seeds_and_their_range(said, place, row, name):
    """Each seed as `unmask eval` finds it in its folder."""
    each = []
    for seed in (1, 2):
        options = ["--split", "test", "--rows", "12", "--draws", "5", "--seed", "0", "--estimator", "times", "--json"]
        each.append(run("eval", str(models(place) / f"{name}-{seed}"), *options).json())
    values = [one["perplexity"] for one in each]
    found = ours(said["dna"]["tables"][0])[row]
    assert found["PPL"]["value"] == pytest.approx(mean(values), rel=1e-5)
    assert found["PPL"]["error"] == pytest.approx(max(values) - min(values), rel=1e-3, abs=1e-6)
    if row != "Mamba":
        noise = math.hypot(*(one["perplexity"] * one["stderr_nats"] for one in each)) / 2
        assert found["PPL, Monte Carlo error"]["value"] == pytest.approx(noise, rel=1e-3)


def test_three_pretrainings_and_fine_tunings_that_begin_with_them(said, place):
    found = {own["name"]: own for own in said["dna"]["models"]}
    tuned = [
        f"{name}-{seed}"
        for name in ("mamba-ar", "hyena-ar", "caduceus-plaid", "caduceus-sedd", "caduceus-mdlm")
        for seed in (1, 2)
    ]
    assert set(found) == {"mamba", "hyena", "caduceus", *tuned}
    for name in tuned:
        text = (models(place) / name / "config.yaml").read_text()
        assert f"start: {models(place) / name.split('-')[0]}\n" in text and text.startswith(f"seed: {name[-1]}\n")
        assert f"method: {name.split('-')[1]}\n" in text
    assert {own["steps"] for name, own in found.items() if name in tuned} == {2}
    assert found["caduceus-sedd-1"]["parameters"] == found["caduceus"]["parameters"]
    assert found["caduceus-plaid-1"]["unmasked_tokens"] is None
    share = found["caduceus"]["unmasked_tokens"] / found["caduceus"]["tokens"]
    assert share == pytest.approx(1 - 0.8 * 0.15, abs=0.01)


@pytest.mark.slow
def test_a_second_call_trains_nothing(said, place):
    folder = place / "out" / "smoke" / "genome.fa"
    stamps = {path: path.stat().st_mtime_ns for path in folder.rglob("state.json")}
    assert len(stamps) >= 15
    for name in ("dna", "dna-curves", "genomics"):
        again = run(*words(place, name)).json()
        assert again["tables"] == said[name]["tables"] and again["checks"] == said[name]["checks"]
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("state.json")} == stamps


def scored(rng: np.random.Generator, shift: float, noise: float = 0.1, draws: int = 3) -> ScoredModel:
    tokens = np.full(40, 100.0)
    rows = np.random.default_rng(7).normal(120, 10, size=40)  # what a text is worth: the same for all
    return ScoredModel(rows[:, None] + 100 * shift + rng.normal(0, 100 * noise, (40, draws)), tokens, False, {})


def contest(claim: str, better: list[ScoredModel], worse: list[ScoredModel]) -> Check:
    return decide(claim, fewer_nats_a_base(better, worse))


def test_claims_count_texts_and_seeds():
    rng = np.random.default_rng(0)
    low, high = ([scored(rng, base + more) for more in (0.0, 0.01, 0.02, 0.01)] for base in (0.0, 0.5))
    assert contest("x", low, high).holds is True and contest("x", high, low).holds is False
    assert contest("x", low, [scored(rng, 0.01) for _ in range(4)]).holds is None
    torn = [scored(rng, 0.1, 0.001), scored(rng, 0.9, 0.001)]  # 0.5 ± 0.4 over seeds, nothing over texts
    even = [scored(rng, 0.0, 0.001), scored(rng, 0.0, 0.001)]
    found = contest("x", even, torn)
    assert found.holds is None and "0.50 ± 0.40" in found.detail
    assert contest("x", even[:1], torn[:1]).holds is None, "one training each"
    exact = [ScoredModel(one.nats[:, :1], one.tokens, True, {}) for one in low]
    assert contest("x", exact, high).holds is True and "≤" in contest("x", exact, high).detail


# -- bits per base against time --------------------------------------------------------------------------------------


def test_curves_and_lines_of_the_same_rows(said, place):
    found = said["dna-curves"]
    (plot,) = found["plots"]
    curves = {curve["name"]: curve for curve in plot["curves"]}
    orders = [f"Markov, order {order}" for order in (2, 5, 8, 10)]
    assert list(curves) == ["Mamba AR", "MDLM, Caduceus", *orders]
    assert plot["x_label"] == "core-hours" and plot["y_label"] == "bits/base"
    for row, name in (("Mamba AR", "mamba-long"), ("MDLM, Caduceus", "mdlm-long")):
        lines = [json.loads(line) for line in (models(place) / name / "log.jsonl").read_text().splitlines()]
        valid = [line["valid_nats"] / math.log(2) for line in lines if "valid_nats" in line]
        assert len(valid) == 2 and curves[row]["y"] == pytest.approx(valid)
        spent = {line["step"]: line["core_seconds"] / 3600 for line in lines if "loss" in line}
        assert curves[row]["x"] == pytest.approx([spent[2], spent[4]]) and 0 < spent[2] < spent[4] < 0.1
        assert ours(found["tables"][0])[row]["core-hours"]["value"] == pytest.approx(spent[4])
    _, _, every = windows(place)
    spec = DataConfig(source=str(place / "genome.fa"), tokenizer="dna", length=32, cache=str(place / "cache"))
    valid_rows = prepare(spec).split("valid")
    want = slow(every, letters(valid_rows, [i * len(valid_rows) // 4 for i in range(4)]), 2)
    rate = sum(nats for nats, _ in want) / sum(n for _, n in want) / math.log(2)
    assert curves["Markov, order 2"]["y"] == pytest.approx([rate, rate])
    assert curves["Markov, order 2"]["x"][1] == max(x for curve in curves.values() for x in curve["x"])
    claims = [check["claim"] for check in found["checks"]]
    assert claims == [
        "Mamba AR beats the best of the Markov models",
        "the bound of MDLM beats the best of the Markov models",
    ]
    svg = (place / "out" / "smoke" / "genome.fa" / "dna-curves" / "bits-per-base.svg").read_text()
    assert svg.count('class="curve"') == 6


def journal(path: Path, lines: list[dict[str, Any]]) -> Path:
    (path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_time_of_a_training_that_was_interrupted_goes_on(tmp_path):
    valid = {"valid_nats": math.log(2), "valid_stderr_nats": None}
    lines = [
        {"step": 1, "loss": 1.0, "core_seconds": 360.0}, {"step": 2, "loss": 1.0, "core_seconds": 720.0},
        {"step": 2, **valid}, {"step": 3, "loss": 1.0, "core_seconds": 180.0},  # another process
        {"step": 4, "loss": 1.0, "core_seconds": 540.0}, {"step": 4, **valid},
    ]  # fmt: skip
    found = history(journal(tmp_path, lines), Config())
    assert found.hours == pytest.approx([0.2, 0.35]) and found.bits == [1.0, 1.0] and found.cores


def test_a_journal_without_processor_time_has_the_clock(tmp_path):
    config = Config().override(["train.batch_size=4", "data.length=100"])
    lines = [{"step": 9, "loss": 1.0, "tokens_per_second": 0.5}, {"step": 9, "valid_nats": 1, "valid_stderr_nats": 0.1}]
    found = history(journal(tmp_path, lines), config)
    assert found.hours == pytest.approx([9 * 400 / 0.5 / 3600]) and not found.cores
    assert found.errors == pytest.approx([0.1 / math.log(2)])
    mixed = history(
        journal(tmp_path, [*lines, {"step": 10, "loss": 1.0, "tokens_per_second": 1, "core_seconds": 1}]), config
    )
    assert mixed.hours == pytest.approx(found.hours) and not mixed.cores, "what went on with a newer version"
    with pytest.raises(UserError, match="no evaluations"):
        history(journal(tmp_path, lines[:1]), config)
    (tmp_path / "log.jsonl").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        history(tmp_path, config)


# -- tasks -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_tasks_need_no_model_that_is_not_in_their_columns(place, tmp_path):
    options = ["--data", str(place / "genome.fa"), "--out", str(tmp_path), "--local", str(place / "tasks"), "--quiet"]
    assert run("reproduce", "genomics", *options).code == 0
    found = {path.name for path in (tmp_path / "smoke" / "genome.fa" / "models").iterdir() if path.is_dir()}
    assert found == {"mamba", "caduceus", "caduceus-plaid-1", "caduceus-sedd-1", "caduceus-mdlm-1"}


def test_figures_of_tasks_are_those_of_the_predictions(said, place):
    benchmarks, gue = said["genomics"]["tables"]
    (row,) = benchmarks["rows"]
    assert row["name"] == "Human NonTATA Promoters" and "not the official" in row["note"]
    assert row["paper"]["Caduceus MDLM"]["value"] == 0.940 and list(ours(gue)) == [
        "GUE prom_core_tata, accuracy",
        "GUE prom_core_tata, matthews",
    ]
    columns = {
        "Mamba AR": "mamba",
        "Caduceus MLM": "caduceus",
        "Caduceus Plaid": "caduceus-plaid-1",
        "Caduceus SEDD": "caduceus-sedd-1",
        "Caduceus MDLM": "caduceus-mdlm-1",
    }
    folder = place / "out" / "smoke" / "genome.fa" / "tasks"
    assert {path.name for path in folder.iterdir()} == set(columns.values())
    for column, name in columns.items():
        for cells, task in (
            (row["ours"], "genomics-human_nontata_promoters"),
            (ours(gue)["GUE prom_core_tata, accuracy"], "gue-prom_core_tata"),
        ):
            values = []
            for seed in (1, 2):
                text = (folder / name / task / f"seed-{seed}" / "predictions.test.tsv").read_text()
                own = [line.split("\t") for line in text.splitlines()[1:]]
                assert len(own) == 9, "task.eval_rows"
                values.append(mean(cell[1] == cell[2] for cell in own))
            assert cells[column]["value"] == pytest.approx(mean(values))
            assert cells[column]["error"] == pytest.approx(max(values) - min(values))


def test_judged_examples_are_evenly_spaced(said, place):
    folder = place / "out" / "smoke" / "genome.fa" / "tasks" / "mamba" / "gue-prom_core_tata" / "seed-1"
    lines = (folder / "predictions.test.tsv").read_text().splitlines()[1:]
    names = ("negative", "positive")
    assert [line.split("\t")[2] for line in lines] == [names[(i * 30 // 9) % 2] for i in range(9)]
    told = json.loads((folder / "results.json").read_text())["protocol"]["rows"]
    assert told == {"train": 8, "dev": 9, "test": 9}


def test_claims_on_tasks_count_seeds_and_examples():
    rng = np.random.default_rng(0)
    right, wrong = (rng.random((3, 400)) < p for p in (0.9, 0.5))
    found = more_accurate({"a": right, "b": right}, {"a": wrong, "b": wrong})
    each = 100 * (right.mean(1) - wrong.mean(1))
    examples = 100 * (right.astype(float) - wrong).mean(0)
    assert found.value == pytest.approx(each.mean())
    by_hand = stdev(each) ** 2 / 3 + 2 * stdev(examples.tolist()) ** 2 / 400 / 4
    assert found.error == pytest.approx(math.sqrt(by_hand))
    assert decide("x", more_accurate({"a": right[:1]}, {"a": wrong[:1]})).holds is None, "one training each"
    assert decide("x", found).holds is True


# -- the paper -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not TEX.is_file(), reason="the paper's source is not on this machine")
def test_the_papers_figures_are_those_of_its_source():
    text = TEX.read_text()
    table = text[text.index("generative fine-tuning of the Caduceus MLM") : text.index("Downstream Task Fine-tuning")]
    lines = re.findall(r"& ?([\\\w{}]+) *& (\d+K) & ([^\\]*(?:\\.*?)?)\\\\", table)
    assert len(lines) == 5
    for (name, size, figure), (row, own) in zip(lines, paper_dna.GENOME_PPL.rows.items(), strict=True):
        value, error = re.findall(r"\d*\.\d+", figure)
        assert name.replace("\\algo{}", "MDLM") == row and own["parameters"] == size
        assert own["PPL"] == Figure(float(value), float(error), bound="leq" in figure, decimals=3)
    table = text[text.index("label{tab:genomic_benchmarks}") : text.index("subsection{Ablation Analysis}")]
    body = table[table.index("\\midrule") :].replace("0l007", "0.007")
    printed = paper_dna.GENOMIC_BENCHMARKS
    found = {
        part.strip().splitlines()[0].strip(): re.findall(r"0\.\d{3}", part)
        for part in re.split(r"\n\\\\\n", body.replace("\\midrule\n", "").partition("\\bottomrule")[0])
        if part.strip()
    }
    assert list(found) == list(printed.rows) and len(found) == 8
    for row, numbers in found.items():
        own = [number for model in printed.columns for number in _pair(printed.rows[row][model])]
        assert [float(number) for number in numbers] == own


def _pair(figure: Figure | str) -> list[float | None]:
    assert isinstance(figure, Figure)
    return [figure.value, figure.error]


def size(scale: str, name: str) -> int:
    config = Bench(scale_named(scale), "genome.fa", Path("nowhere"), family=GENOME).config(name)
    return sum(p.numel() for p in registry.model(config, VOCAB).parameters())


def test_networks_have_the_papers_sizes_or_shrink_together():
    wanted = {"mamba": 468_608, "hyena": 436_096, "caduceus": 470_702}
    assert {name: size("paper", name) for name in wanted} == wanted
    shares = [size("small", name) / whole for name, whole in wanted.items()]
    assert max(shares) / min(shares) < 1.15, "as near to each other as the paper's, or nearly"
    config = Bench(scale_named("small"), "genome.fa", Path("nowhere"), family=GENOME).config("caduceus")
    assert config.data.source == "genome.fa" and config.data.length == 256 and not config.data.reverse_complement


def test_the_papers_scale_prints_commands(tmp_path, place):
    ran = run("reproduce", "dna", "--scale", "paper", "--out", str(tmp_path))
    assert ran.code == 0, ran.err
    lines = [shlex.split(line) for line in ran.out.splitlines()]
    starts = [line for line in lines if line[5] == "train"]
    assert [line[6] for line in starts] == ["dna-mamba", "dna-hyena", "dna-caduceus"]
    assert all(run(*line[5:], "--print-config").code == 0 for line in starts)
    assert len(lines) == 3 + 5 * 5 and all("hg38" in line for line in lines if line[5] == "finetune")
    kinds = [(Path(line[6]).name, line[7]) for line in lines if line[5] == "finetune" and "seed=1" in line]
    assert kinds == [("mamba", "ar"), ("hyena", "ar"), *(("caduceus", kind) for kind in ("plaid", "sedd", "mdlm"))]
    ran = run("reproduce", "dna-curves", "--scale", "paper", "--out", str(tmp_path))
    assert [shlex.split(line)[6] for line in ran.out.splitlines()] == ["dna-mamba", "dna-mdlm"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["dna"], "--data FASTA"),
        (["dna", "--data", "genome.fa", "--scale", "medium"], "scales smoke, small and paper"),
        (["dna", "--data", "genome.fa", "--local", "x"], "--local belongs to"),
        (["dna-curves", "--data", "genome.fa", "--scale", "paper"], "hg38"),
        (["genomics", "--data", "genome.fa", "--local", "."], "no task of Genomic Benchmarks or GUE is available"),
    ],
)
def test_what_is_wrong_is_one_sentence(place, tmp_path, monkeypatch, more, said):
    monkeypatch.chdir(place)
    assert said in refused("reproduce", *more, "--out", str(tmp_path / "o"), "--quiet")
    assert not (tmp_path / "o").exists()


# -- several pre-trainings -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dna", "genomics"])
def test_two_pretrainings(said, place, name):
    """Every pre-training with its fine-tunings again; those are the trainings that a claim counts."""
    found = run(*words(place, name), "--seeds", "2").json()
    trained = {model["name"] for model in found["models"]}
    assert {"caduceus", "caduceus-seed1", "caduceus-mdlm-1", "caduceus-mdlm-1-seed1"} <= trained
    assert [row["name"] for row in found["tables"][0]["rows"]] == [
        row["name"] for row in said[name]["tables"][0]["rows"]
    ]
    assert [check["claim"] for check in found["checks"]] == [check["claim"] for check in said[name]["checks"]]
