"""Networks that give NaN, or leave no token possible: a sentence that names the step, and nothing is written."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from oracles.enumeration import LENGTH, MASK, SCHEDULES, XS, TableNet
from support.drawing import generate, keys_of, request_of
from support.helpers import random_rows, tiny_config
from support.plaid_models import model_of as plaid_of
from unmask.evaluation import ESTIMATORS
from unmask.evaluation.exact import exact_nats, pseudo_nats
from unmask.evaluation.likelihood import draw_nats, evaluate
from unmask.models.masked import MaskedDiffusion
from unmask.models.registry import model as registered
from unmask.process.keys import Keys
from unmask.process.parameterization import Mean, Parameterization, Score
from unmask.sampling import (
    Adaptive,
    Ancestral,
    FirstHitting,
    Gibbs,
    LeftToRight,
    PredictorCorrector,
    Remasking,
    RevealPlan,
    Rules,
    Sampler,
    Windows,
)
from unmask.sampling.batcher import Batcher
from unmask.sampling.gaussian import Gaussian
from unmask.sampling.simplex import Simplex
from unmask.types import Batch, State, UserError, Vocab

EMPTY = torch.full((LENGTH,), MASK)
METHODS: dict[str, Parameterization] = {
    "mdlm": Mean(),
    "no-carry-over": Mean(carry_over=False),
    "d3pm": Mean(zero_mask=False, carry_over=False),
    "sedd": Score(),
}
SAMPLERS: list[Sampler] = [
    RevealPlan(4),
    FirstHitting(),
    LeftToRight(),
    Adaptive("confidence", k=1),
    Adaptive("entropy", threshold=0.3),
    Adaptive("margin", steps=2),
    Adaptive("margin", entropy_bound=0.5),
    Ancestral(4),
    Remasking(6),
    PredictorCorrector(3),
    Gibbs(6),
    Windows(LeftToRight(), 3, 1),
]
SAYS = r"step \d+ cannot be written: for \d of \d positions the network gave NaN, or no token that is possible"


def broken(logit: float, position: int | None = 2) -> TableNet:
    """NaN or infinity at one position, or a network that finds nothing but [MASK] possible."""
    net = TableNet.random(3)
    with torch.no_grad():
        if position is None:
            net.table.fill_(-math.inf)
            net.table[..., MASK] = 0.0
        else:
            net.table[..., position, :] = logit
    return net


def diffusion(net: TableNet, method: str = "mdlm") -> MaskedDiffusion:
    return MaskedDiffusion(net, SCHEDULES["log-linear"], parameterization=METHODS[method]).eval()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("logit", "position"), [(math.nan, 2), (math.inf, 0), (-math.inf, 1), (0.0, None)])
def test_no_sampler_writes_what_no_network_said(method: str, logit: float, position: int | None) -> None:
    model = diffusion(broken(logit, position), method)
    tried = 0
    for sampler in SAMPLERS:
        if not (model.normalised or sampler.any_mass):
            continue
        states: list[State] = []
        with pytest.raises(UserError, match=SAYS):
            states.extend(itertools.islice(generate(model, [EMPTY], sampler, keys_of(1)), 50))  # or it never ends
        assert not any(state.done or torch.isnan(state.probs).any() for state in states)
        tried += 1
    assert tried >= (1 if method != "mdlm" else len(SAMPLERS))


def test_other_sequences_of_the_batch_go_on() -> None:
    """A network that fails on one text only: the other one is the sample that it is alone."""
    net = TableNet.random(3)
    with torch.no_grad():
        net.table[0] = math.nan
    model = diffusion(net)
    bad, good = torch.tensor([0, MASK, MASK]), torch.tensor([2, MASK, MASK])
    batcher = Batcher(model, 2)
    for row, canvas in enumerate((bad, good)):
        batcher.add(replace(request_of(canvas, LeftToRight(), Keys(row)), row=row))
    states = [state for _ in range(5) if batcher.busy for state, _ in batcher.step()]
    (failed,) = [state for state in states if state.row == 0]
    assert failed.done and "step 0" in str(failed.error) and failed.canvas.tolist() == bad.tolist()
    assert not len(failed.tokens)
    last = [state for state in states if state.row == 1][-1]
    (alone,) = [state for state in generate(model, [good], LeftToRight(), [Keys(1)]) if state.done]
    assert last.done and last.error is None and last.canvas.tolist() == alone.canvas.tolist()
    assert not batcher.busy


def test_rules_that_leave_nothing_end_one_sequence_only() -> None:
    net = TableNet.random(3)
    with torch.no_grad():
        net.table[..., 0, 3] = -math.inf
    batcher = Batcher(diffusion(net), 2)
    batcher.add(replace(request_of(EMPTY, LeftToRight(), Keys(0)), row=0, rules=Rules(allowed={0: [3]})))
    batcher.add(replace(request_of(EMPTY, LeftToRight(), Keys(1)), row=1))
    states = [state for _ in range(4) if batcher.busy for state, _ in batcher.step()]
    errors = {state.row: str(state.error) for state in states if state.done}
    assert "leave no token to write at position 0" in errors[0] and errors[1] == "None"


def test_plaid_and_ssd_lm_say_so_in_the_step_in_which_it_happens() -> None:
    plaid = plaid_of(1, Vocab(4, MASK))
    ssd = registered(tiny_config("model.method=ssd-lm", "simplex.block=3"), Vocab(4, MASK)).eval()
    for model, sampler in ((plaid, Gaussian(5)), (ssd, Simplex(5))):
        with torch.no_grad():
            for weight in model.backbone.parameters():
                weight.fill_(math.nan)
        with pytest.raises(UserError, match=r"step 0 cannot be written: for 3 of 3 positions"):
            list(generate(model, [EMPTY], sampler, keys_of(1)))


def test_a_replay_may_have_probability_zero_but_not_nan() -> None:
    from unmask.sampling import replay

    net = TableNet.random(3)
    with torch.no_grad():
        net.table[..., 0, 3] = -math.inf
    (log_p,) = replay(diffusion(net), [EMPTY], [torch.tensor([3, 0, 2])], LeftToRight(), keys_of(1))
    assert log_p[0] == -math.inf and torch.isfinite(log_p[1:]).all()
    with pytest.raises(UserError, match=SAYS):
        replay(diffusion(broken(math.nan)), [EMPTY], [torch.tensor([3, 0, 2])], LeftToRight(), keys_of(1))


# -- likelihoods -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_likelihood_that_is_nan_is_refused_and_an_infinite_one_is_not(estimator: str) -> None:
    batch = Batch(torch.tensor(XS), torch.arange(len(XS)), len(XS))
    with pytest.raises(UserError, match="are NaN, so the network predicts nothing there"):
        draw_nats(diffusion(broken(math.nan)), batch, 2, Keys(0), ESTIMATORS[estimator])
    net = TableNet.random(3)
    with torch.no_grad():
        net.table[..., 0, 3] = -math.inf
    nats, _ = draw_nats(diffusion(net), batch, 20, Keys(0), ESTIMATORS[estimator])
    assert np.isposinf(nats).any() and not np.isnan(nats).any()
    rows, _ = draw_nats(diffusion(net, "d3pm"), batch, 20, Keys(0))
    assert not np.isnan(rows).any()


def test_exact_and_pseudo_likelihoods_of_nan_are_refused() -> None:
    batch = Batch(torch.tensor(XS[:2]), torch.arange(2), 2)
    for nats in (exact_nats, pseudo_nats):
        with pytest.raises(UserError, match="are NaN"):
            nats(diffusion(broken(math.nan)), batch, batch.weight(), 8)


def test_an_evaluation_of_nan_weights_is_a_sentence() -> None:
    vocab = Vocab(12, mask=11, pad=10)
    model = registered(tiny_config(), vocab)
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    with pytest.raises(UserError, match="check the weights"):
        evaluate(model, random_rows(vocab, 4, 8), draws=2)
