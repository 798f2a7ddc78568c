"""The choice of a gap's length: against enumeration, with true error bars, and a word where it is undecided."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
import torch

from oracles.enumeration import MASK, SCHEDULES, State, TableNet
from support.dna_models import dna_lm
from support.helpers import random_lm
from unmask.data.tokenization import chars_tokenizer
from unmask.evaluation.gap_lengths import MOST, ROWS, compare_lengths
from unmask.models.masked import MaskedDiffusion
from unmask.process.keys import Keys
from unmask.types import Sample

SHORT, LONG = (0, MASK, 3, 2), (0, MASK, MASK, 3, 2)
PLACES = [[0, 2, 3], [0, 3, 4]]
NODE, WEIGHT = np.polynomial.legendre.leggauss(16)
RATES = (NODE + 1) / 2


def truth(net: TableNet, canvas: State, places: list[int]) -> float:
    """The integral over the mask rate p of E[nll of what is hidden] / p, by enumeration."""
    denoise, total = net.denoiser("log-linear uncut"), 0.0
    for size in range(1, len(places) + 1):
        for hidden in itertools.combinations(places, size):
            z = tuple(MASK if i in hidden else token for i, token in enumerate(canvas))
            for p, weight in zip(RATES, WEIGHT / 2, strict=True):
                chance = p ** (size - 1) * (1 - p) ** (len(places) - size)
                total -= weight * chance * sum(denoise(z, p)[i, canvas[i]] for i in hidden)
    return total


def compare(net: TableNet, seed: int = 0, draws: int | None = None):
    model = MaskedDiffusion(net, SCHEDULES["log-linear uncut"]).eval()
    canvases = [torch.tensor(canvas) for canvas in (SHORT, LONG)]
    return compare_lengths(model, canvases, [torch.tensor(place) for place in PLACES], Keys(seed), draws)


@pytest.mark.parametrize("timed", [False, True])
def test_the_bound_and_its_error(timed: bool) -> None:
    net = TableNet.random(2, timed, length=5)
    want = [truth(net, canvas, places) for canvas, places in zip((SHORT, LONG), PLACES, strict=True)]
    found = [compare(net, seed, draws=128) for seed in range(60)]
    nats = np.array([run.nats for run in found])
    assert (abs(nats.mean(0) - want) < 4 * nats.std(0, ddof=1) / math.sqrt(60) + 0.01).all()
    differences = nats[:, 1] - nats[:, 0]
    claimed = math.sqrt(np.mean([max(run.errors) ** 2 for run in found]))
    assert 0.8 < claimed / differences.std(ddof=1) < 2.0  # strata make it smaller than it is said to be


@pytest.mark.parametrize("timed", [False, True])
def test_what_is_decided_is_right(timed: bool) -> None:
    """Networks whose two lengths are close: a decision is the true one, however many draws it takes."""
    decided, drawn = 0, set()
    for seed in range(30):
        net = TableNet.random(seed, timed, length=5, spread=0.5)
        run = compare(net)
        values = [truth(net, canvas, places) for canvas, places in zip((SHORT, LONG), PLACES, strict=True)]
        drawn.add(run.draws)
        if not run.undecided:
            decided += 1
            assert run.best == int(np.argmin(values)), (seed, run, values)
        else:
            assert abs(values[0] - values[1]) < 5 * max(run.errors)
    assert decided > 15 and len(drawn) > 2 and max(drawn) <= MOST


def test_a_tie_is_said_to_be_one() -> None:
    """The longer canvas costs what the shorter one does, only with other sets: no number of draws can decide."""
    net = TableNet.random(4, length=5)
    with torch.no_grad():  # position 0 and the last of the long canvas cost what those of the short one do, swapped
        net.table.fill_(0.0)
        for first in (0, MASK):
            for last in (2, MASK):
                for middle in (3, MASK):
                    cost = torch.randn(3, generator=torch.Generator().manual_seed(9 * first + 3 * last + middle))
                    for place, value in zip((0, 2, 3), cost, strict=True):
                        net.table[first, MASK, middle, last, 4, place, SHORT[place]] = 2 * value
                    swapped_first, swapped_last = (MASK if last == MASK else 0), (MASK if first == MASK else 2)
                    for place, value in zip((4, 3, 0), cost, strict=True):
                        net.table[swapped_first, MASK, MASK, middle, swapped_last, place, LONG[place]] = 2 * value
    assert truth(net, SHORT, PLACES[0]) == pytest.approx(truth(net, LONG, PLACES[1]), rel=1e-6)
    run = compare(net)
    assert run.undecided == [1 - run.best] and run.draws * 2 <= ROWS and run.draws == MOST
    assert max(run.errors) > 0


def test_one_length_of_equal_canvases_needs_no_draws_beyond_the_first() -> None:
    net = TableNet.random(4, length=5)
    model = MaskedDiffusion(net, SCHEDULES["log-linear uncut"]).eval()
    canvas, place = torch.tensor(SHORT), torch.tensor(PLACES[0])
    run = compare_lengths(model, [canvas, canvas], [place, place], Keys(0))
    assert run.best == 0 and run.undecided == [1] and run.draws == 32 and run.errors == [0.0, 0.0]


def test_samples_say_that_a_length_is_undecided(caplog: pytest.LogCaptureFixture) -> None:
    sample = Sample([1], "a", 0, 1, gaps=[2], gap_nats={"1": 2.0, "2": 1.9}, gap_undecided=["1"])
    assert sample.as_dict()["gap_undecided"] == ["1"]
    lm = dna_lm(length=8, scale=0.0)  # knows nothing, so that all lengths are alike
    canvas = lm.gap_canvas("AC{{1-3}}G")
    assert canvas.undecided == ["2", "3"] and canvas.lengths == [1]
    assert "undecided after 32 draws: 1 tokens" in caplog.text


def test_n_beside_a_gap_is_seen_and_never_hidden() -> None:
    lm = dna_lm(length=8, scale=1.5)
    seen = []
    network = type(lm.model.backbone)
    forward = network.forward
    try:
        network.forward = lambda self, inputs: (seen.append(inputs.content), forward(self, inputs))[1]  # type: ignore[method-assign]
        lm.gap_canvas("AN{{1-2}}GN", draws=32)
    finally:
        network.forward = forward  # type: ignore[method-assign]
    unknown, mask = 11, 3
    for z in seen:
        gap = z.shape[1] - 4
        assert (z[:, 1] == unknown).all() and (z[:, -1] == unknown).all() and (z[:, 2 : 2 + gap] == mask).all()


# -- under a constraint ----------------------------------------------------------------------------------------------


def fits_by_length(lm, text, pattern, lengths):
    """-log p(a free gap of each length matches | the given text): every text that matches, in any order."""
    before, _, after = text.partition("{{")[0], None, text.partition("}}")[2]
    result = []
    for n in lengths:
        inside = ["".join(letters) for letters in itertools.product("abcd", repeat=n)]
        scores = [
            lm.score(before + letters + after, span=(len(before), len(before) + n), method="exact").nats
            for letters in inside
            if re.fullmatch(pattern, letters)
        ]
        result.append(-math.log(sum(math.exp(-nats) for nats in scores)))
    return result


@pytest.mark.parametrize(
    ("pattern", "sampler"), [("[bcd]|cda", "first-hitting"), ("(ab|c)+", "first-hitting"), ("(ab|c)+", "remask-cap")]
)
def test_a_length_counts_by_its_chance_to_fit(pattern, sampler):
    lm = random_lm(chars_tokenizer(["abcd"]), "data.length=12")
    free = lm.gap_canvas("a{{1-3}}b", draws=256)
    how = lm.sampling_params({"regex": pattern, "sampler": sampler})
    formed = lm.gap_canvas("a{{1-3}}b", draws=256, options=how)
    lengths = [int(name) for name in formed.nats]
    assert lengths == ([1, 3] if "|cda" in pattern else [1, 2, 3])
    wanted = fits_by_length(lm, "a{{1-3}}b", pattern, lengths)
    for n, more in zip(lengths, wanted, strict=True):  # the same draws of the bound, so only the chance is left
        assert formed.nats[str(n)] - free.nats[str(n)] == pytest.approx(more, abs=0.25)
    total = {n: free.nats[str(n)] + more for n, more in zip(lengths, wanted, strict=True)}
    assert formed.lengths == [min(total, key=total.__getitem__)]
    assert formed.lengths != free.lengths or "|cda" not in pattern
    assert all(error < 0.3 for error in formed.errors.values())
