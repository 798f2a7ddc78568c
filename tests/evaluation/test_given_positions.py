"""Given positions (N of a genome, the context of a span): seen, never hidden and never scored, whatever is computed.

The truth is the enumeration of a shorter text: the given tokens are put back before the network is asked.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from oracles.enumeration import (
    CLEAN,
    MASK,
    SCHEDULES,
    Denoiser,
    State,
    TableNet,
    V,
    d3pm,
    keep_grid,
    last_step,
    masked_states,
    nelbo_continuous,
    nelbo_discrete,
    subs,
)
from support.dna_models import FIRST, coefficient, dna_lm, genome_of, ids, log_softmax, logits, random_bases
from support.dna_models import HEAD as VCF_HEAD
from support.dna_models import MASK as DNA_MASK
from support.helpers import tiny_config
from support.plaid_models import model_of as plaid_of
from unmask.config import DataConfig
from unmask.data.loader import eval_batch
from unmask.data.pack import prepare
from unmask.dna.variants import VariantRequest, score_variants
from unmask.evaluation import ESTIMATORS, score
from unmask.evaluation.likelihood import evaluate
from unmask.lm import LM
from unmask.models.masked import MaskedDiffusion
from unmask.models.registry import model as registered
from unmask.process.keys import Keys
from unmask.process.parameterization import Mean, Parameterization, Score
from unmask.process.schedule import ContinuousTime, DiscreteTime, Law
from unmask.types import Batch, UserError, Vocab

GIVEN, TOKEN = 1, 2  # the position in the middle holds this token
FREE = [0, 2]
TEXTS = list(itertools.product(CLEAN, repeat=2))
N = ids("N")[0]


def with_given(denoise: Denoiser) -> Denoiser:
    """The same network as one of the two free positions alone."""

    def short(z: State, t: float) -> np.ndarray:
        return denoise((z[0], TOKEN, z[1]), t)[FREE]

    return short


def batch_of(copies: int) -> Batch:
    tokens = torch.tensor([(a, TOKEN, b) for a, b in TEXTS]).repeat(copies, 1)
    given = torch.zeros_like(tokens, dtype=torch.bool)
    given[:, GIVEN] = True
    return Batch(tokens, torch.arange(len(tokens)), len(tokens), given=given)


def unlike(model: MaskedDiffusion, truth: list[float], estimator: str, draws: int = 30, copies: int = 20) -> float:
    """By how many standard errors the estimate of a text differs from its truth at most."""
    batch, drawn = batch_of(copies), []
    with torch.no_grad():
        for draw in range(draws):
            scored = ESTIMATORS[estimator].nats(model, batch, Keys(8, draw))
            assert not scored.weight[:, GIVEN].any() and not scored.nats[:, GIVEN].any()
            drawn.append(scored.nats.double().sum(1).view(copies, len(TEXTS)).mean(0).numpy())
    values = np.stack(drawn)
    error = np.maximum(values.std(0, ddof=1) / math.sqrt(draws), 1e-6)
    return float(np.abs((values.mean(0) - truth) / error).max())


# -- every method ----------------------------------------------------------------------------------------------------

LADDER: dict[str, tuple[Parameterization, Callable[[np.ndarray], np.ndarray]]] = {
    "mdlm": (Mean(), subs),
    "carry-over": (Mean(zero_mask=False), d3pm),
    "no-carry-over": (Mean(carry_over=False), subs),
    "d3pm": (Mean(zero_mask=False, carry_over=False), d3pm),
}


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("kind", LADDER)
def test_t_steps_given_a_token(kind: str, timed: bool) -> None:
    (meaning, log_x), steps, name = LADDER[kind], 3, "cosine"
    net = TableNet.random(11, timed)
    denoise = with_given(net.denoiser(name, log_x))
    keep, times, truth = keep_grid(name, steps), [i / steps for i in range(steps + 1)], []
    for x in TEXTS:
        if meaning.carry_over:
            truth.append(nelbo_discrete(x, denoise, keep, times))
            continue
        rebuilt = 0.0  # of all tokens, masked or not, from the last z
        for z, masked in masked_states(x):
            chance = (1 - keep[1]) ** len(masked) * keep[1] ** (2 - len(masked))
            rebuilt -= chance * sum(denoise(z, times[1])[i, token] for i, token in enumerate(x))
        truth.append(nelbo_discrete(x, denoise, keep[1:], times[1:]) + rebuilt)
    model = MaskedDiffusion(net, SCHEDULES[name], DiscreteTime(steps), meaning).eval()
    assert unlike(model, truth, "times") < 4
    if kind == "mdlm" and not timed:
        assert unlike(model, truth, "strata") < 4


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("law", [ContinuousTime(0.0), ContinuousTime(0.2)], ids=repr)
def test_continuous_time_given_a_token(law: Law, estimator: str) -> None:
    net = TableNet.random(12)
    denoise = with_given(net.denoiser())
    keep = 1 - law.cutoff
    truth = [nelbo_continuous(x, denoise, 0.0, keep) + last_step(x, denoise, keep, math.nan) for x in TEXTS]
    model = MaskedDiffusion(net, SCHEDULES["log-linear uncut"], law).eval()
    assert unlike(model, truth, estimator, draws=40) < 4


def test_a_score_given_a_token() -> None:
    """SEDD: the integral of -log x̂(x) + Σx̂ - 1 over the mask rate, and a last step in proportion to x̂."""
    net, low, truth = TableNet.random(13), 0.1, []
    raw = with_given(net.denoiser(log_x=lambda rows: rows - math.log(V - 1)))
    node, weight = np.polynomial.legendre.leggauss(20)
    for x in TEXTS:
        total = 0.0
        for z, masked in masked_states(x):
            clean = [np.delete(np.exp(raw(z, math.nan)[i]), MASK).sum() for i in range(2)]
            nll = [-raw(z, math.nan)[i, token] for i, token in enumerate(x)]
            p = low + (1 - low) * (node + 1) / 2
            rate = (weight * (1 - low) / 2 * p ** (len(masked) - 1) * (1 - p) ** (2 - len(masked))).sum()
            end = low ** len(masked) * (1 - low) ** (2 - len(masked))
            for i in masked:
                total += rate * (nll[i] + clean[i] - 1) + end * (nll[i] + math.log(clean[i]))
        truth.append(total)
    model = MaskedDiffusion(net, SCHEDULES["log-linear uncut"], ContinuousTime(low), Score()).eval()
    assert unlike(model, truth, "times", draws=60) < 4


def test_an_autoregressive_model_does_not_pay_for_what_is_given() -> None:
    vocab = Vocab(V, MASK)
    model = registered(tiny_config("model.method=ar"), vocab).eval()
    batch = batch_of(1)
    with torch.no_grad():
        scored = model.nats(batch, Keys(0))
        every = model.nats(Batch(batch.tokens, batch.index, batch.total), Keys(0))
    assert not scored.weight[:, GIVEN].any() and not scored.nats[:, GIVEN].any()
    torch.testing.assert_close(scored.nats[:, FREE], every.nats[:, FREE])
    assert float((-scored.nats.sum(1)).exp().sum()) == pytest.approx(1, abs=1e-5)


def test_plaid_sees_what_is_given_without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what it then says of the free tokens still sums to at most one."""
    model = plaid_of(3, Vocab(V, MASK), gamma_0=-2.0, gamma_1=3.0)
    batch, seen = batch_of(150), []
    plain = type(model).hidden

    def spied(self: Any, z: torch.Tensor, gamma: torch.Tensor, guess: Any = None, *more: Any) -> torch.Tensor:
        seen.append((z, guess))
        return plain(self, z, gamma, guess, *more)

    monkeypatch.setattr(type(model), "hidden", spied)
    with torch.no_grad():
        nats = [model.nats(batch, Keys(2, draw)) for draw in range(6)]
        known = model.embeddings()[TOKEN]
    for z, guess in seen:
        assert (z[:, GIVEN] == known).all() and not (z[:, FREE] == known).all(-1).any()
        assert guess is None or (guess[:, GIVEN] == known).all()
    assert not any(scored.nats[:, GIVEN].any() or scored.weight[:, GIVEN].any() for scored in nats)
    rows = torch.stack([scored.nats.double().sum(1) for scored in nats]).view(-1, len(TEXTS))
    mass, error = (-rows.mean(0)).exp(), rows.std(0) / len(rows) ** 0.5
    assert 0.01 < float(mass.sum()) < 1 + 4 * float((mass * error).square().sum().sqrt())


def test_ssd_lm_does_not_noise_what_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    model = registered(tiny_config("model.method=ssd-lm", "simplex.block=3"), Vocab(V, MASK)).eval()
    seen = []
    plain = type(model).hidden

    def spied(self: Any, context: torch.Tensor, z: torch.Tensor, *more: Any) -> torch.Tensor:
        seen.append(z)
        return plain(self, context, z, *more)

    monkeypatch.setattr(type(model), "hidden", spied)
    with torch.no_grad():
        _, weight = model.loss(batch_of(4), Keys(3))
    scale = model.scale
    assert int(weight) == 2 * 4 * len(TEXTS)
    assert (seen[0][:, GIVEN].abs() == scale).all() and not (seen[0][:, FREE].abs() == scale).any()


# -- texts of bases --------------------------------------------------------------------------------------------------

TEXT = "ACNGT"
BASES = [i for i, base in enumerate(TEXT) if base != "N"]


def hidden_nll(lm: LM, hidden: tuple[int, ...]) -> float:
    """-log x̂ of the bases at hidden places."""
    x = ids(TEXT)
    z = np.where(np.isin(np.arange(len(x)), hidden), DNA_MASK, x)
    log_x = log_softmax(logits(lm, z))
    return -sum(log_x[i, x[i]] for i in hidden)


def in_every_order(lm: LM) -> float:
    """-log of the mean over orders of the product of the probabilities."""
    orders = list(itertools.permutations(BASES))
    nats = []
    for order in orders:
        cost = 0.0
        for i in range(len(order)):
            log_x = log_softmax(logits(lm, np.where(np.isin(np.arange(5), order[i:]), DNA_MASK, ids(TEXT))))
            cost -= log_x[order[i], ids(TEXT)[order[i]]]
        nats.append(-cost)
    return math.log(len(orders)) - float(np.logaddexp.reduce(nats))


@pytest.fixture(scope="module")
def lm() -> LM:
    return dna_lm("objective.cutoff=0.05", length=8, scale=1.0)


@pytest.mark.parametrize("method", ["bound", "strata", "exact", "orders", "plan", "pll"])
def test_n_in_a_text_is_given_to_every_method(lm: LM, method: str) -> None:
    numbers = {"bound": {"draws": 300}, "strata": {"draws": 40, "calls": 16}, "orders": {"draws": 12, "orders": 24}}
    whole = score(lm.model, lm.prompt_builder, TEXT, method=method, batch_size=512, **numbers.get(method, {}))
    assert whole.tokens == whole.bytes == 4 and whole.texts[0].pieces == list("ACGT")
    if method in ("bound", "strata"):
        truth = 0.0
        for size in range(1, 5):
            for hidden in itertools.combinations(BASES, size):
                truth += sum(coefficient(size, 4, 0.05)) * hidden_nll(lm, hidden)
    elif method == "pll":
        truth = sum(hidden_nll(lm, (i,)) for i in BASES)
    elif method == "plan":
        truth, x = 0.0, ids(TEXT)
        for k, i in enumerate(BASES):
            log_x = log_softmax(logits(lm, np.where(np.isin(np.arange(5), BASES[k:]), DNA_MASK, x)))
            truth -= log_x[i, x[i]]
    else:
        truth = in_every_order(lm)
    error = 4 * 4 * (whole.stderr_nats or 0.0) + (0.2 if method == "orders" else 1e-4)  # a bound with K orders
    assert abs(whole.nats - truth) < error, (whole.nats, truth)


def test_a_span_over_n_scores_its_bases(lm: LM) -> None:
    whole = score(lm.model, lm.prompt_builder, TEXT, method="exact")
    span = score(lm.model, lm.prompt_builder, TEXT, method="exact", span=(0, 5))
    assert span.nats == pytest.approx(whole.nats, abs=1e-6) and span.tokens == span.bytes == 4
    bound = score(lm.model, lm.prompt_builder, TEXT, method="bound", span=(0, 5), draws=3, seed=4)
    assert bound.nats == pytest.approx(
        score(lm.model, lm.prompt_builder, TEXT, method="bound", draws=3, seed=4).nats, rel=1e-5
    )


@pytest.mark.parametrize(("text", "span"), [("NNNN", None), ("ACNN", (2, 4))])
def test_a_text_of_nothing_but_n_is_a_sentence(lm: LM, text: str, span: Any) -> None:
    with pytest.raises(UserError, match=r"given|never scored"):
        score(lm.model, lm.prompt_builder, text, span=span)


def test_rows_of_nothing_but_n_are_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "bases.txt").write_text("NNNNNNNN\n" * 8)
    spec = DataConfig(
        source=str(tmp_path / "bases.txt"), tokenizer="dna", length=8, eos_between=False, valid_fraction=0.5
    )
    with pytest.raises(UserError, match="nothing to score"):
        evaluate(dna_lm(length=8).model, prepare(spec).split("train"))


@pytest.mark.parametrize("layout", ["wrap", "pad"])
def test_n_in_a_text_file_is_given_as_in_a_genome(tmp_path: Path, layout: str) -> None:
    (tmp_path / "bases.txt").write_text("ACGTNNAC\nGGNA\nTTTTTTTT\n" * 4)
    more = {} if layout == "pad" else {"eos_between": False}
    spec = DataConfig(
        source=str(tmp_path / "bases.txt"), tokenizer="dna", length=8, layout=layout, valid_fraction=0.5, **more
    )
    rows = prepare(spec).split("train")
    batch = eval_batch(rows, range(len(rows)))
    unknown = batch.tokens == int(N)
    assert unknown.any() and batch.given is not None and torch.equal(batch.given, unknown)
    exists = torch.ones_like(unknown) if batch.present is None else batch.present
    assert exists[unknown].all() and not batch.weight()[unknown].any()
    assert torch.equal(batch.free(), exists & ~unknown)
    assert torch.equal(batch.weight() | unknown, exists)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_both_estimators_give_one_number_for_a_genome_with_n(tmp_path: Path, estimator: str) -> None:
    """By enumeration, and not where N is hidden: that is far away."""
    genome = "".join(base if i % 3 else "N" for i, base in enumerate(random_bases(120, 5)))
    (tmp_path / "genome.fa").write_text(f">chr1\n{genome}\n")
    lm = dna_lm("objective.cutoff=0.05", length=6, scale=1.0)
    spec = DataConfig(source=str(tmp_path / "genome.fa"), tokenizer="dna", length=6, valid_fraction=0.5)
    rows = prepare(spec).split("train")
    truth = 0.0
    for row in eval_batch(rows, range(len(rows))).tokens.numpy():
        places = [i for i, token in enumerate(row) if FIRST <= token < N]
        for size in range(1, len(places) + 1):
            for hidden in itertools.combinations(places, size):
                log_x = log_softmax(logits(lm, np.where(np.isin(np.arange(6), hidden), DNA_MASK, row)))
                cost = -sum(log_x[i, row[i]] for i in hidden)
                truth += sum(coefficient(size, len(places), 0.05)) * cost
    likelihood = evaluate(lm.model, rows, draws=200, estimator=ESTIMATORS[estimator])
    assert likelihood.stderr_nats is not None and likelihood.stderr_nats < 0.1
    assert abs(likelihood.nats_per_token - truth / likelihood.tokens) < 4 * likelihood.stderr_nats


@pytest.mark.parametrize("method", ["mdlm", "sedd", "no-carry-over", "d3pm", "plaid", "ar"])
def test_variants_see_the_n_beside_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """Whatever the method hides, it is never N, nor an end of the row."""
    lm = dna_lm(f"model.method={method}", "data.block_ends=true", length=8)
    genome, seen = genome_of(tmp_path, chr1="ACGNNTNACGT"), []
    (tmp_path / "v.vcf").write_text(VCF_HEAD + "chr1\t6\t.\tT\tG\n")
    if method == "plaid":
        plain = type(lm.model).hidden

        def spied(self: Any, z: torch.Tensor, *more: Any) -> torch.Tensor:
            seen.append(z)
            return plain(self, z, *more)

        monkeypatch.setattr(type(lm.model), "hidden", spied)
    else:
        network = type(lm.model.backbone)
        forward = network.forward

        def watched(self: Any, inputs: Any) -> Any:
            seen.append(inputs.content)
            return forward(self, inputs)

        monkeypatch.setattr(network, "forward", watched)
    (effect,) = score_variants(lm, tmp_path / "v.vcf", genome, VariantRequest(draws=12))
    assert effect.score is not None and math.isfinite(effect.score)
    want = torch.tensor([2, *ids("NNTNAC"), 1])
    given = torch.tensor([True, True, True, False, True, False, False, True])
    for z in seen:
        if method == "plaid":
            with torch.no_grad():
                assert (z[:, given] == lm.model.embeddings()[want[given]]).all()
        else:
            assert method == "ar" or (z[:, given] == want[given]).all()
    assert seen
