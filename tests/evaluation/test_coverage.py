"""How often do intervals cover the truth? On short texts at the default cut-off, against enumeration."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from oracles.enumeration import SCHEDULES, XS, TableNet, last_step, nelbo_continuous, random_joint
from support.dna_models import bound, dna_lm
from support.helpers import tiny_config
from unmask.evaluation import STRATA, TIMES, default_estimator, default_method, score
from unmask.evaluation.likelihood import Estimator, draw_nats, eval_keys
from unmask.models.masked import MaskedDiffusion
from unmask.models.registry import model as registered
from unmask.process.parameterization import Mean, Score
from unmask.process.schedule import ClippedTime, ContinuousTime, DiscreteTime
from unmask.types import Batch, Vocab

CUTOFF = 1e-3


def coverage(estimator: Estimator, rows: int, draws: int, trials: int) -> tuple[float, float]:
    """(the share of intervals that cover the bound, their mean half width) of a data set of texts of three tokens.

    An interval is the mean of the draws ± Student's t times its standard error.
    """
    net = TableNet.exact(random_joint(3))
    denoise = net.denoiser("log-linear uncut")
    model = MaskedDiffusion(net, SCHEDULES["log-linear uncut"], ContinuousTime(CUTOFF)).eval()
    xs = XS[:: 27 // rows][:rows]
    keep = 1 - CUTOFF
    truth = sum(nelbo_continuous(x, denoise, 0.0, keep) + last_step(x, denoise, keep, math.nan) for x in xs)
    batch = Batch(torch.tensor(xs), torch.arange(rows), rows)
    nats, _ = draw_nats(model, batch, draws * trials, eval_keys(1), estimator)
    drawn = nats.sum(0).reshape(trials, draws)
    half = stats.t.ppf(0.975, draws - 1) * drawn.std(1, ddof=1) / math.sqrt(draws)
    return float(np.mean(np.abs(drawn.mean(1) - truth) <= half)), float(half.mean())


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "draws"), [(9, 4), (27, 4)])
def test_intervals_of_the_default_cover_what_they_say(rows: int, draws: int) -> None:
    covered, width = coverage(STRATA, rows, draws, 800)
    assert 0.93 < covered < 0.975
    by_times, wider = coverage(TIMES, rows, draws, 400)
    assert by_times < covered - 0.01 and wider > 3 * width


def test_a_text_with_few_sets_is_scored_by_all_of_them() -> None:
    """4 draws of 8 calls can see every set of up to 5 hidden tokens: no error, whatever the seed."""
    lm = dna_lm(f"objective.cutoff={CUTOFF}", length=8)
    for text in ("A", "ACG", "ACGTA"):
        likelihood = score(lm.model, lm.prompt_builder, text, seed=1)
        assert likelihood.nats == pytest.approx(bound(lm, text), rel=1e-5) and likelihood.stderr_nats == 0
        assert likelihood.nats == score(lm.model, lm.prompt_builder, text, seed=2).nats
    assert score(lm.model, lm.prompt_builder, "ACGTAC").stderr_nats != 0


def test_the_default_is_strata_where_it_is_unbiased() -> None:
    schedule = SCHEDULES["log-linear"]
    for law in (ContinuousTime(), DiscreteTime(5)):
        model = MaskedDiffusion(TableNet.random(0), schedule, law)
        assert default_estimator(model) is STRATA and default_method(model) == "strata"
    others = [
        MaskedDiffusion(TableNet.random(0, timed=True), schedule),
        MaskedDiffusion(TableNet.random(0), schedule, ClippedTime(0.2, 0.8)),
        MaskedDiffusion(TableNet.random(0), schedule, parameterization=Score()),
        MaskedDiffusion(TableNet.random(0), schedule, parameterization=Mean(carry_over=False)),
        registered(tiny_config("model.method=ar"), Vocab(9, 4)),
        registered(tiny_config("model.method=plaid"), Vocab(9, 4)),
    ]
    for model in others:
        assert default_estimator(model) is TIMES and default_method(model) == "bound"


def test_a_score_without_a_method_takes_the_default() -> None:
    lm = dna_lm()
    likelihood = score(lm.model, lm.prompt_builder, "ACGT")
    assert likelihood.protocol["method"] == lm.score("ACGT").protocol["method"] == "strata"
    assert likelihood.nats == lm.score("ACGT", method="strata").nats
    timed = dna_lm("model.time_conditioning=true")
    assert timed.score("ACGT").protocol["method"] == "bound"
