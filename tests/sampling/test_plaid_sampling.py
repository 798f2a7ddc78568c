"""Sampling Plaid: the step against Bayes' rule, the writing against a slow loop, exact models against their law."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from support.drawing import generate
from support.helpers import refused, run, settings, train_once
from support.plaid_models import DIM, MASK, SIZE, VOCAB, model_of, pairs, table_model
from unmask.models.plaid import Plaid
from unmask.process.keys import Keys
from unmask.sampling import Choice, Gaussian, RevealPlan, Rules, Simplex, Windows, make_sampler
from unmask.sampling.gaussian import alpha, ancestral, cooled, noised, sigma
from unmask.types import State, UserError, Vocab


def write(
    model: Plaid, canvases: Sequence[Sequence[int]], plan: Any, seeds: Sequence[int] | None = None, **how: Any
) -> tuple[list[list[int]], list[State]]:
    """The finished canvases, and all states."""
    keys = [Keys(seed) for seed in (range(len(canvases)) if seeds is None else seeds)]
    states = list(generate(model, [torch.tensor(c, dtype=torch.int64) for c in canvases], plan, keys, **how))
    last = {state.row: state for state in states}
    return [last[row].canvas.tolist() for row in range(len(canvases))], states


# -- one step --------------------------------------------------------------------------------------------------------


def test_a_step_is_the_posterior_of_the_noise() -> None:
    """z_s and z_t given x are jointly normal: Bayes' rule by precisions."""
    torch.manual_seed(0)
    x, z = torch.randn(2, 4, dtype=torch.float64).unbind()
    for low, high in ((-3.0, 2.0), (0.0, 0.1), (4.0, 6.0)):
        s, t = torch.tensor(low, dtype=torch.float64), torch.tensor(high, dtype=torch.float64)
        a_s, v_s, a_t, v_t = torch.sigmoid(-s).sqrt(), torch.sigmoid(s), torch.sigmoid(-t).sqrt(), torch.sigmoid(t)
        torch.testing.assert_close(torch.stack([alpha(s), sigma(s)]), torch.stack([a_s, v_s.sqrt()]))
        rate = a_t / a_s  # z_t = rate z_s + noise of this variance
        v_ts = v_t - rate**2 * v_s
        precision = 1 / v_s + rate**2 / v_ts
        mean = (a_s * x / v_s + rate * z / v_ts) / precision
        torch.testing.assert_close(ancestral(z, x, t, s, torch.zeros_like(z)), mean)
        noise = ancestral(z, x, t, s, torch.ones_like(z)) - mean
        torch.testing.assert_close(noise, precision.rsqrt().expand(4))
        torch.testing.assert_close(noised(x, t, z), a_t * x + v_t.sqrt() * z)


def test_a_score_temperature_divides_the_noise_that_is_implied() -> None:
    torch.manual_seed(0)
    x, z = torch.randn(2, 4, dtype=torch.float64).unbind()
    gamma = torch.tensor(0.7, dtype=torch.float64)
    implied = (z - alpha(gamma) * x) / sigma(gamma)
    same = (z - alpha(gamma) * cooled(x, z, gamma, 0.8)) / sigma(gamma)
    torch.testing.assert_close(same, implied / 0.8)
    torch.testing.assert_close(cooled(x, z, gamma, 1.0), x)


# -- the law ---------------------------------------------------------------------------------------------------------


def test_an_exact_model_of_one_token_writes_its_law() -> None:
    """A canvas of 6000 tokens that know nothing of each other."""
    model, p = table_model()
    (text,), (state,) = write(model, [[MASK] * 6000], Gaussian(60), seeds=[1])
    counts = np.bincount(text, minlength=SIZE)
    kept = [token for token in range(SIZE) if token != MASK]
    assert counts[MASK] == 0
    assert stats.chisquare(counts[kept], 6000 * p[kept].numpy() / float(p[kept].sum())).pvalue > 1e-3
    assert state.done and state.calls == 61 and state.fixed == 6000
    cold = np.bincount(write(model, [[MASK] * 6000], Gaussian(60, 0.5), seeds=[1])[0][0], minlength=SIZE)
    assert cold.max() > counts.max() + 300  # and a temperature sharpens it


def test_an_exact_model_of_pairs_writes_its_law() -> None:
    model = pairs(1)
    n = 200
    texts, _ = write(model, [[0, 0]] * n, Gaussian(25), batch_size=n)
    counts = np.zeros((4, 4))
    for a, b in texts:
        counts[a, b] += 1
    assert counts[0].sum() == counts[:, 0].sum() == 0
    wanted = n * model.joint[1:, 1:].numpy().ravel()
    seen = counts[1:, 1:].ravel()
    few = wanted < 8
    wanted, seen = (np.append(v[~few], v[few].sum()) if few.any() else v for v in (wanted, seen))
    assert stats.chisquare(seen, wanted).pvalue > 1e-3


def test_what_is_given_steers_the_rest() -> None:
    model = pairs()
    joint = torch.full((4, 4), 0.01, dtype=torch.float64)
    joint[0], joint[:, 0] = 0, 0
    joint[1, 2], joint[2, 3], joint[3, 1] = 0.3, 0.3, 0.34
    model.joint = joint / joint.sum()
    follows = {1: 2, 2: 3, 3: 1}
    n, right = 25, {"forth": 0, "back": 0}
    for first, second in follows.items():
        texts, _ = write(model, [[first, 0]] * n, Gaussian(25), batch_size=n)
        assert all(text[0] == first for text in texts)
        right["forth"] += sum(text[1] == second for text in texts)
        back, _ = write(model, [[0, second]] * n, Gaussian(25), batch_size=n)
        right["back"] += sum(text[0] == first for text in back)
    assert min(right.values()) > 0.55 * 3 * n  # without the given token a third; the exact conditional has 94 %


# -- against a slow loop ---------------------------------------------------------------------------------------------

CANVASES = [
    [MASK] * 6,
    [1, MASK, MASK, 4],
    [MASK, 3, MASK, MASK, 5, MASK, 6],
    [MASK],
    [5, 4, MASK, MASK, MASK],
    [MASK, 1],
]


def slow_write(model: Plaid, canvas: Sequence[int], plan: Gaussian, seed: int, choice: Choice) -> list[int]:
    """One canvas alone, position after position, in numpy where it can be."""
    key, n = Keys(seed), len(canvas)
    main, shown = key.stream("noise"), key.stream("given")
    with torch.no_grad():
        table = model.embeddings().double().numpy()
        z, guess = main.standard_normal((n, DIM)), np.zeros((n, DIM))
        given = [i for i in range(n) if canvas[i] != MASK]
        for step in range(plan.steps + 1):
            times = torch.tensor([1 - step / plan.steps, max(0.0, 1 - (step + 1) / plan.steps)], dtype=torch.float64)
            gamma_t, gamma_s = model.gamma(times).tolist()
            a_t, s_t = math.sqrt(1 / (1 + math.exp(gamma_t))), math.sqrt(1 / (1 + math.exp(-gamma_t)))
            a_s, s_s = math.sqrt(1 / (1 + math.exp(gamma_s))), math.sqrt(1 / (1 + math.exp(-gamma_s)))
            noise = shown.standard_normal((len(given), DIM))
            for i, own in zip(given, noise, strict=True):
                z[i] = a_t * table[canvas[i]] + s_t * own
            level = torch.tensor([gamma_t], dtype=torch.float64)
            hidden = model.hidden(torch.from_numpy(z).float()[None], level, torch.from_numpy(guess).float()[None])[0]
            logits = model.backbone.head(hidden).double().numpy() + a_t / s_t**2 * (z @ table.T)
            logits[:, MASK] = -np.inf
            p = np.exp(logits - logits.max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
            if step == plan.steps:
                break
            x = p @ table
            x[given] = table[[canvas[i] for i in given]]
            guess = x.copy()
            x = x / plan.score_temperature + (1 - 1 / plan.score_temperature) * z / a_t
            c = 1 - math.exp(gamma_s - gamma_t)
            z = (1 - c) * a_s / a_t * z + c * a_s * x + math.sqrt(c) * s_s * main.standard_normal((n, DIM))
    hidden_places = [i for i in range(n) if canvas[i] == MASK]
    text, uniform = list(canvas), key.stream("token").random(len(hidden_places))
    for i, u in zip(hidden_places, uniform, strict=True):
        text[i] = int(p[i].argmax()) if choice.temperature == 0 else int(np.searchsorted(p[i].cumsum(), u, "right"))
    return text


@pytest.mark.parametrize(
    ("plan", "choice"),
    [(Gaussian(5), Choice()), (Gaussian(9, 0.8), Choice(temperature=0)), (Gaussian(1), Choice())],
)
def test_writing_is_that_of_a_slow_loop(plan: Gaussian, choice: Choice) -> None:
    model = model_of()
    texts, states = write(model, CANVASES, plan, choice=choice, batch_size=4)
    for seed, (canvas, text) in enumerate(zip(CANVASES, texts, strict=True)):
        assert text == slow_write(model, canvas, plan, seed, choice)
        assert all(token == given for token, given in zip(text, canvas, strict=True) if given != MASK)
        assert MASK not in text
    assert len(states) == len(CANVASES) and all(state.done for state in states)
    assert {state.calls for state in states} == {plan.steps + 1}


def test_a_sample_does_not_depend_on_its_neighbours() -> None:
    model, plans = model_of(), [Gaussian(4), Gaussian(7), Gaussian(2, 0.9), Gaussian(4), Gaussian(11), Gaussian(3)]
    together, _ = write(model, CANVASES, plans)
    for batch_size in (1, 4):
        assert write(model, CANVASES, plans, batch_size=batch_size)[0] == together
    assert write(model, CANVASES, plans, seeds=range(10, 16))[0] != together


def test_a_model_without_self_conditioning_gets_no_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    own = Plaid.hidden

    def hidden(self: Plaid, z: Tensor, gamma: Tensor, guess: Tensor | None = None, *rest: Any) -> Tensor:
        seen.append(guess is None)
        return own(self, z, gamma, guess, *rest)

    monkeypatch.setattr(Plaid, "hidden", hidden)
    write(model_of(self_condition=0.0), CANVASES[:1], Gaussian(3))
    assert seen == [True] * 4
    write(model_of(), CANVASES[:1], Gaussian(3))
    assert seen[4:] == [False] * 4


# -- states, rules, refusals -----------------------------------------------------------------------------------------


def test_a_state_says_what_was_written() -> None:
    model = model_of()
    (text,), (state,) = write(model, [[1, MASK, 4, MASK, MASK]], Gaussian(3), tops=2)
    assert state.positions.tolist() == [1, 3, 4]
    assert state.tokens.tolist() == [text[i] for i in (1, 3, 4)] and text[0] == 1 and text[2] == 4
    assert state.tops is not None and state.tops[0].shape == (3, 2)
    for token, prob, best, chances in zip(state.tokens, state.probs, *state.tops, strict=True):
        assert 0 < float(prob) <= float(chances[0]) + 1e-6 and float(chances.sum()) < 1 + 1e-6
        assert (int(token) != int(best[0])) or float(prob) == pytest.approx(float(chances[0]))
    assert (state.step, state.t, state.done, state.fixed) == (3, 0.0, True, 5)
    (text,), (state,) = write(model, [[1, 3]], Gaussian(3))  # nothing to write
    assert text == [1, 3] and state.done and state.calls == 0 and not len(state.positions)


def test_rules_are_kept() -> None:
    model = model_of()
    free = write(model, CANVASES, Gaussian(6))[0]
    used = sorted({token for text in free for token in text} - {1, 3})
    control = Rules(banned=frozenset(used[:2]))
    for canvas, text in zip(CANVASES, write(model, CANVASES, Gaussian(6), controls=[control] * 6)[0], strict=True):
        written = [token for token, given in zip(text, canvas, strict=True) if given == MASK]
        assert not set(written) & set(used[:2])
    control = Rules(allowed={2: [5], 4: [6]})
    (text,), _ = write(model, [[MASK] * 6], Gaussian(6), controls=[control])
    assert (text[2], text[4]) == (5, 6)


def test_big_vocabularies_are_read_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(gamma_0=3.0, gamma_1=5.0)  # z_0 says little: tokens are drawn
    whole, states = write(model, CANVASES, Gaussian(4), tops=3)
    monkeypatch.setattr("unmask.sampling.gaussian.LOGITS_AT_ONCE", 2 * SIZE)
    parts, same = write(model, CANVASES, Gaussian(4), tops=3)
    assert parts == whole
    for one, two in zip(states, same, strict=True):
        assert torch.equal(one.positions, two.positions)
        torch.testing.assert_close(one.probs, two.probs)


def test_labels_are_told() -> None:
    model, plan = model_of(n_labels=2), Gaussian(5)
    texts = {label: write(model, CANVASES, plan, labels=[label] * 6)[0] for label in (None, 0, 1)}
    assert texts[0] != texts[1] and texts[None] != texts[0]
    mixed = write(model, CANVASES, plan, labels=[0, 1, None, 1, 0, None])[0]
    assert mixed == [texts[label][i] for i, label in enumerate([0, 1, None, 1, 0, None])]


def test_what_cannot_be_written_is_a_sentence() -> None:
    model, canvas = model_of(), [torch.tensor([MASK] * 4)]
    for plan in (RevealPlan(3), Simplex(3), Windows(Gaussian(3), 4, 2)):
        with pytest.raises(UserError, match="choose the gaussian sampler, without a stride"):
            generate(model, canvas, plan, [Keys(0)])
    with pytest.raises(UserError, match="leave it at 1"):
        generate(model, canvas, Gaussian(3), [Keys(0)], guidance=2.0)
    with pytest.raises(UserError, match="batch_size=0"):
        generate(model, canvas, Gaussian(3), [Keys(0)], batch_size=0)
    with pytest.raises(UserError, match="steps=0"):
        Gaussian(0)
    for wrong in (0.0, math.inf, math.nan, -1.0):
        with pytest.raises(UserError, match="score_temperature"):
            Gaussian(3, wrong)
    with pytest.raises(UserError, match="only Plaid models"):
        Gaussian(3).check(object())
    assert make_sampler("gaussian") == Gaussian() and Vocab(SIZE, MASK, pad=0) == VOCAB


# -- on the command line ---------------------------------------------------------------------------------------------


@functools.cache
def trained() -> str:
    more = ("model.method=plaid", "train.steps=4", "eval.every=0", "eval.rows=4", "sample.every=2", "sample.steps=3")
    return str(train_once("plaid sampling", "tiny", *settings(*more)))


def test_samples_on_the_command_line() -> None:
    found = run("sample", trained(), "-n", "2", "--steps", "4", "--json").json()
    assert found["protocol"]["sampler"] == "gaussian" and found["protocol"]["steps"] == 4
    assert [sample["network_calls"] for sample in found["samples"]] == [5, 5]
    filled = run("sample", trained(), "--infill", "one {{3}} four{{2}}.", "--steps", "3", "--json").json()["samples"][0]
    assert filled["text"].startswith("one ") and filled["text"].endswith(".")
    cold = ["sample", trained(), "--steps", "3", "--temperature", "0", "--with", "score_temperature=0.9"]
    assert run(*cold, "--prompt", "one", "--suffix", "four").out.startswith("one")
    assert "choose the gaussian sampler" in refused("sample", trained(), "--sampler", "plan")
    assert "without a stride" in refused("sample", trained(), "--stride", "8", "--length", "24")
    assert "score_temperature=0" in refused("sample", trained(), "--with", "score_temperature=0")
