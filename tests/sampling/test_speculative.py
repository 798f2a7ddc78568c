"""Speculative sampling has the law of blocks of one token, whatever is drafted: enumeration over tables of p and q."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from oracles.blocks import Reader
from oracles.enumeration import CLEAN, MASK, SCHEDULES, VOCAB, V
from oracles.laws import filtered
from support.block_models import block_model, every_network
from support.drawing import Law, judge, keys_of, p_value
from support.helpers import random_lm, random_model, tiny_config
from support.writers import make
from unmask.constraints import over_tokens, regex
from unmask.data.tokenization import bytes_tokenizer
from unmask.lm import Job, TextStream
from unmask.models.block_diffusion import CachedBlocks
from unmask.process.keys import Keys
from unmask.sampling import (
    Batcher,
    BlockByBlock,
    Choice,
    Constraint,
    FormedSpan,
    LeftToRight,
    Request,
    RevealPlan,
    Rules,
    Sampler,
    Slot,
    Speculative,
    Trajectory,
    Windows,
    Written,
    advance_tokens,
    replay,
    run_particles,
    speculative,
    token_step,
)
from unmask.sampling.params import SamplingParams
from unmask.sampling.phrases import Phrase
from unmask.sampling.trace import Trace
from unmask.types import Batch, State, UserError, Vocab

Prefix = tuple[int, ...]
Table = Callable[[Prefix], np.ndarray]  # of p: the text before; of q: with the place in the draft at the end


def random_table(seed: int, spread: float = 0.6) -> Table:
    """Chances of the next token that depend on all tokens before it."""

    def table(prefix: Prefix) -> np.ndarray:
        chances = np.random.default_rng([seed, *(token + 1 for token in prefix)]).gamma(spread, size=V)
        chances[MASK] = 0
        return chances / chances.sum()

    return table


def by_position(prefix: Prefix) -> np.ndarray:
    """Chances that depend on the position alone, so that a draft can know them."""
    return random_table(3)((len(prefix),))


class Tables:
    """A block model that looks its predictions up; it checks that what it is told to be clean is."""

    schedule = SCHEDULES["log-linear"]
    vocab, device, clean = VOCAB, torch.device("cpu"), "tokens"
    cached = normalised = carry_over = writes_blocks = True
    time_conditioned = one_way = False

    def __init__(self, p: Table, q: Table) -> None:
        self.p, self.q = p, q
        self.known: dict[Any, Tensor] = {}

    def check(self, request: Request) -> None:
        request.sampler.check(self)

    def advance(self, trajectories: Sequence[Trajectory]) -> list[Written | None]:
        return advance_tokens(self, trajectories)

    def admit(self, trajectory: Trajectory) -> None:
        pass

    def release(self, trajectory: Trajectory) -> None:
        pass

    def log_x(self, rows: Tensor) -> Tensor:
        return rows.clone()

    def hidden(
        self, z: Tensor, t: Tensor, present: Any, label: Any, queries: Tensor, slots: Sequence[Slot] = ()
    ) -> Tensor:
        return torch.stack(
            [
                torch.stack([self.look_up(tuple(row), slot, place) for place in places])
                for row, slot, places in zip(z.tolist(), slots, queries.tolist(), strict=True)
            ]
        )

    def look_up(self, row: Prefix, slot: Slot, place: int) -> Tensor:
        """P where a mask sees a text and no other mask, else q; tokens before `clean` may be asked in padding."""
        index = place - slot.clean
        if slot.columns is None:
            before = row[: max(slot.clean, place)] if slot.block == 1 else row[: slot.clean]
            alone, ahead = slot.block == 1, max(0, index)
        elif index < 0:
            return self.known.setdefault("padding", torch.zeros(V).log_softmax(0))
        else:
            places, rest = slot.columns.place.tolist(), row[slot.clean :]
            seen = [i for i, sees in enumerate(slot.columns.sees[index].tolist()) if sees]
            path = {places[i]: rest[i] for i in seen if rest[i] != MASK}
            assert sorted(path) == list(range(slot.clean, slot.clean + len(path)))  # one token for each position
            masks = [places[i] for i in seen if rest[i] == MASK]
            before = (*row[: slot.clean], *(path[i] for i in sorted(path)))
            assert masks == list(range(len(before), len(before) + len(masks))) and rest[index] == MASK
            alone, ahead = len(masks) == 1, places[index] - len(before)
        assert MASK not in before
        key = before if alone else (*before, -1, ahead)
        if key not in self.known:
            chances = self.p(before) if alone else self.q((*before, ahead))
            with np.errstate(divide="ignore"):
                self.known[key] = torch.from_numpy(np.log(chances))
        return self.known[key]


P = random_table(1)
HALF = np.array([0.5, 0, 0.25, 0.25])
SPELLING = [b"a", None, b"b", b"c"]


def concentrated(on: Callable[[np.ndarray], int], share: float) -> Table:
    """Drafts that put nearly all, or all, on one token, which `on` picks from p of the first place."""

    def q(prefix: Prefix) -> np.ndarray:
        rest = random_table(2)(prefix)
        return (1 - share) * rest + share * np.eye(V)[on(P(prefix[:-1]))]

    return q


def without_best(prefix: Prefix) -> np.ndarray:
    """Nothing on what p says is most likely."""
    chances = random_table(2)(prefix)
    chances[np.argmax(P(prefix[:-1]))] = 0
    return chances / chances.sum()


def least(chances: np.ndarray) -> int:
    return min(CLEAN, key=lambda token: chances[token])


DRAFTS: dict[str, Table] = {
    "random": random_table(2),
    "same at the first place": lambda prefix: P(prefix[:-1]),
    "wrong": concentrated(least, 0.97),
    "certain and wrong": concentrated(least, 1.0),
    "certain and right": concentrated(lambda chances: int(np.argmax(chances)), 1.0),
    "without the best": without_best,
}


def left_to_right(canvas: Sequence[int], p: Table) -> Law:
    """The law of writing the masks at the end of a canvas one after another."""
    given = tuple(token for token in canvas if token != MASK)
    law: Law = {given: 1.0}
    for _ in range(len(canvas) - len(given)):
        law = {(*x, y): chance * p(x)[y] for x, chance in law.items() for y in CLEAN if p(x)[y] > 0}
    return law


def shaped(p: Table, **choice: Any) -> Table:
    """The table under temperature, top-k, top-p and min-p."""

    def row(prefix: Prefix) -> np.ndarray:
        with np.errstate(divide="ignore"):
            log_p = np.log(p(prefix))[None]
        return np.exp(filtered(lambda _z, _t: log_p, **choice)((), 0.0)[0])

    return row


def only(p: Table, may: Callable[[Prefix, int], bool]) -> Table:
    """The table without some tokens."""

    def row(prefix: Prefix) -> np.ndarray:
        chances = p(prefix) * [may(prefix, token) for token in range(V)]
        return chances / chances.sum()

    return row


def run(
    model: Any, canvas: Sequence[int], samplers: Sequence[Sampler], n: int, batch_size: int = 64, **how: Any
) -> list[list[State]]:
    """N texts of each sampler, all through each other; their last states by sampler."""
    batcher, last = Batcher(model, batch_size), {}
    for row in range(n * len(samplers)):
        key = Keys(row // len(samplers))
        batcher.add(Request(row, torch.tensor(canvas), samplers[row % len(samplers)], key, **how))
    for state in batcher.run():
        last[state.row] = state
    assert len(last) == n * len(samplers) and all(state.done for state in last.values())
    return [[last[row] for row in range(i, len(last), len(samplers))] for i in range(len(samplers))]


# -- the law ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draft", DRAFTS)
def test_the_law_is_that_of_blocks_of_one_token_whatever_is_drafted(draft: str) -> None:
    """With other samplers in the same calls."""
    samplers = [Speculative(), Speculative(k=2), BlockByBlock(RevealPlan(2), 2), BlockByBlock(LeftToRight(), 1)]
    states = run(Tables(P, DRAFTS[draft]), [MASK] * 4, samplers, 250)
    law = left_to_right([MASK] * 4, P)
    for which in (0, 1, 3):
        assert judge(states[which], law) > 1e-4
    assert all(state.drafts[1] <= state.drafts[0] for state in states[0])


@pytest.mark.parametrize(
    ("p", "q"),
    [(P, DRAFTS["same at the first place"]), (lambda _: HALF, lambda _: np.eye(V)[0])],
    ids=["mixed", "half"],
)
def test_draft_check_and_correction_are_drawn_independently(p: Table, q: Table) -> None:
    """Where they share a uniform number, these laws are off by far."""
    [states] = run(Tables(p, q), [MASK] * 3, [Speculative()], 800, batch_size=200)
    assert judge(states, left_to_right([MASK] * 3, p)) > 1e-4


def test_the_law_after_a_prompt() -> None:
    for canvas in ([2, MASK, MASK, MASK, MASK], [0, 3, 2, MASK], [2, 2, MASK, MASK]):
        [states] = run(Tables(P, DRAFTS["random"]), canvas, [Speculative(k=2)], 400)
        assert judge(states, left_to_right(canvas, P)) > 1e-4


CHOICES: list[dict[str, Any]] = [
    {"temperature": 0.5},
    {"temperature": 2.0, "top_k": 2},
    {"top_p": 0.7},
    {"min_p": 0.4},
    {"temperature": 0.0},
]


@pytest.mark.parametrize("choice", CHOICES, ids=map(str, CHOICES))
def test_temperature_and_filters_shape_the_law(choice: dict[str, Any]) -> None:
    sharp = {"top_k": 1} if choice == {"temperature": 0.0} else choice
    for draft in ("random", "without the best"):
        [states] = run(Tables(P, DRAFTS[draft]), [MASK] * 4, [Speculative()], 400, choice=Choice(**choice))
        assert judge(states, left_to_right([MASK] * 4, shaped(P, **sharp))) > 1e-4


def no_repeats(log_p: Tensor, positions: Tensor, canvas: Tensor) -> Tensor:
    """A rule that must know the token before."""
    [place] = positions.tolist()
    assert (canvas[place:] == MASK).all() and (canvas[:place] != MASK).all()
    return log_p if not place else log_p.index_fill(1, canvas[place - 1], -torch.inf)


RULES: dict[str, tuple[Rules, Callable[[Prefix, int], bool]]] = {
    "banned": (Rules(banned=frozenset({2})), lambda _, token: token != 2),
    "allowed": (Rules(allowed={2: [0, 3]}), lambda prefix, token: len(prefix) != 2 or token in (0, 3)),
    "word": (Rules(phrases=(Phrase(b"ab", SPELLING),)), lambda prefix, token: (*prefix[-1:], token) != (0, 2)),
    "function": (Rules(constrain=no_repeats), lambda prefix, token: prefix[-1:] != (token,)),
}


@pytest.mark.parametrize("name", RULES)
def test_rules_shape_the_law_as_from_left_to_right(name: str) -> None:
    rules, may = RULES[name]
    samplers = [Speculative(), BlockByBlock(LeftToRight(), 1)]
    states = run(Tables(P, DRAFTS["random"]), [MASK] * 4, samplers, 400, rules=rules)
    law = left_to_right([MASK] * 4, only(P, may))
    assert judge(states[0], law) > 1e-4 and judge(states[1], law) > 1e-4


def network(**how: Any) -> Any:
    """A random network of blocks over four tokens, which says quite different things of a draft and of a check."""
    config = tiny_config("data.length=6", "model.method=block", "block.size=2", *(f"{k}={v}" for k, v in how.items()))
    return random_model(config, Vocab(V, MASK), scale=5.0).eval()


def test_the_law_of_a_network() -> None:
    model, length = network(), 5
    rows = torch.tensor(list(itertools.product(CLEAN, repeat=length)))
    with torch.no_grad():
        nats = model.in_blocks(1).nats(Batch(rows, torch.arange(len(rows)), len(rows)), Keys(0)).nats.double().sum(1)
    law = dict(zip(map(tuple, rows.tolist()), (-nats).exp().tolist(), strict=True))
    total = sum(law.values())
    assert total == pytest.approx(1, abs=1e-5)
    law = {x: p / total for x, p in law.items()}
    [states] = run(model.denoiser(), [MASK] * length, [Speculative(k=3)], 1000, batch_size=100)
    drafted, accepted = (sum(state.drafts[i] for state in states) for i in range(2))
    assert 0.2 < accepted / drafted < 0.95  # both happen
    assert judge(states, law) > 1e-4
    for state in states[:20]:  # what is reported is the chance under this law
        assert state.history is not None
        chance = law[tuple(state.canvas.tolist())]
        assert float(state.history[1].double().log().sum()) == pytest.approx(math.log(chance), abs=1e-3)
    texts = [state.canvas for state in states[:20]]
    scored = replay(model.denoiser(), [torch.full((length,), MASK)] * 20, texts, Speculative(), keys_of(20))
    for text, log_p in zip(texts, scored, strict=True):
        assert float(log_p.sum()) == pytest.approx(math.log(law[tuple(text.tolist())]), abs=1e-4)


@every_network
def test_chances_are_those_of_the_chain_rule_on_every_network(network: str) -> None:
    """Token by token by single calls, also with labels and guidance; the same texts with any drafts."""
    labels = 0 if "llama" in network else 2
    model, length = block_model(network, length=8, n_labels=labels), 8

    def by_hand(x: Prefix, at: int, label: int | None, scale: float) -> float:
        labelled, plain = (Reader(model, 1, which).log_x(x[:at], (MASK,))[0, list(CLEAN)] for which in (label, None))
        mixed = scale * labelled + (1 - scale) * plain
        return float(mixed[CLEAN.index(x[at])] - np.logaddexp.reduce(mixed))

    for label, scale in ((None, 1.0), (0, 1.0), (1, 2.0))[: 1 + labels]:
        how = {"label": label, "guidance": scale}
        found = run(model.denoiser(), [2, 3] + [MASK] * 6, [Speculative(k) for k in (1, 2, 6, None)], 12, 7, **how)
        assert any(state.drafts[1] for state in found[2]) and all(state.error is None for state in found[2])
        for several in zip(*found, strict=True):
            assert len({tuple(state.canvas.tolist()) for state in several}) == 1
        for state in found[2][:6]:
            x = tuple(state.canvas.tolist())
            assert state.history is not None
            told = state.history[1].double().log()[2:].tolist()
            assert told == pytest.approx([by_hand(x, at, label, scale) for at in range(2, length)], abs=1e-4)


# -- under a constraint ----------------------------------------------------------------------------------------------

FORM = "(ab|c)*a?"


def fits(x: Prefix) -> bool:
    return re.fullmatch(FORM, b"".join(SPELLING[token] or b"?" for token in x).decode()) is not None


def formed(p: Table, start: int = 0, length: int = 4, **choice: Any) -> Table:
    """The table over tokens after which positions `start` to `length` can be completed; without filters if none is."""

    def may(prefix: Prefix, token: int) -> bool:
        left = itertools.product(CLEAN, repeat=length - len(prefix) - 1)
        return token != MASK and any(fits((*prefix, token, *rest)[start:]) for rest in left)

    def row(prefix: Prefix) -> np.ndarray:
        for table in (shaped(p, **choice), shaped(p, temperature=choice.get("temperature", 1.0))):
            chances = table(prefix) * [may(prefix, token) for token in range(V)]
            if chances.sum():
                return chances / chances.sum()
        raise AssertionError("nothing fits")

    return functools.cache(row)


def form(start: int = 0, stop: int = 4) -> Constraint:
    return Constraint((FormedSpan(over_tokens(regex(FORM), SPELLING, MASK), start, stop),))


@pytest.mark.parametrize("draft", DRAFTS)
def test_under_a_constraint_the_law_is_that_of_blocks_of_one_token_under_it(draft: str) -> None:
    samplers = [Speculative(), Speculative(k=2), BlockByBlock(LeftToRight(), 1)]
    states = run(Tables(P, DRAFTS[draft]), [MASK] * 4, samplers, 250, constraint=form())
    law = left_to_right([MASK] * 4, formed(P))
    for some in states:
        assert judge(some, law) > 1e-4
    assert any(state.drafts[0] for state in states[0])
    for state in itertools.chain(*states):  # what a text weighs is the free chance of it over that under the form
        x = tuple(state.canvas.tolist())
        free = math.prod(P(x[:i])[token] for i, token in enumerate(x))
        assert state.log_weight == pytest.approx(math.log(free / law[x]), abs=1e-5)


def test_a_constraint_after_a_prompt_on_a_part_of_the_text() -> None:
    canvas = [2, 0, MASK, MASK, MASK]
    for start, stop in ((1, 5), (2, 4)):
        states = run(Tables(P, DRAFTS["random"]), canvas, [Speculative()], 400, constraint=form(start, stop))[0]
        row = formed(P, start, stop)
        law = left_to_right(canvas, lambda x, row=row, stop=stop: row(x) if len(x) < stop else P(x))
        assert judge(states, law) > 1e-4


@pytest.mark.parametrize("choice", [*CHOICES, {"top_k": 1}], ids=str)
def test_temperature_and_filters_under_a_constraint(choice: dict[str, Any]) -> None:
    """Filters shape p first; where they leave nothing that fits, the token is drawn without them."""
    samplers = [Speculative(), BlockByBlock(LeftToRight(), 1)]
    how = {"choice": Choice(**choice), "constraint": form()}
    states = run(Tables(P, DRAFTS["random"]), [MASK] * 4, samplers, 300, **how)
    if choice == {"temperature": 0.0}:
        assert len({tuple(state.canvas.tolist()) for some in states for state in some}) == 1
        return
    law = left_to_right([MASK] * 4, formed(P, **choice))
    assert judge(states[0], law) > 1e-4 and judge(states[1], law) > 1e-4
    weights = [{tuple(state.canvas.tolist()): state.log_weight for state in some} for some in states]
    for x in weights[0].keys() & weights[1].keys():
        assert weights[0][x] == pytest.approx(weights[1][x], abs=1e-5)


def in_pairs(q: Table, confined: bool = False) -> Law:
    """The law of two blocks of two tokens, each written at once; confined: to pairs after which the text can fit."""
    law: Law = {(): 1.0}
    for _ in range(2):
        out: Law = {}
        for x, chance in law.items():
            first, second = q((*x, 0)), q((*x, 1))
            rests = list(itertools.product(CLEAN, repeat=2 - len(x)))
            pairs = {
                (y, z): first[y] * second[z]
                for y, z in itertools.product(CLEAN, repeat=2)
                if not confined or any(fits((*x, y, z, *rest)) for rest in rests)
            }
            total = sum(pairs.values()) if confined else 1.0
            out |= {(*x, *pair): chance * p / total for pair, p in pairs.items()}
        law = out
    return law


def test_blocks_under_a_constraint_fit_and_can_be_completed() -> None:
    q = DRAFTS["random"]
    [states] = run(Tables(P, q), [MASK] * 4, [BlockByBlock(LeftToRight(2), 2)], 600, constraint=form())
    free, law = in_pairs(q), in_pairs(q, confined=True)
    assert judge(states, law) > 1e-4
    for state in states:
        x = tuple(state.canvas.tolist())
        assert state.log_weight == pytest.approx(math.log(free[x] / law[x]), abs=1e-5)


@pytest.mark.parametrize(
    ("sampler", "free"),
    [
        (BlockByBlock(LeftToRight(), 1), lambda: left_to_right([MASK] * 4, P)),
        (BlockByBlock(LeftToRight(2), 2), lambda: in_pairs(DRAFTS["random"])),
        (Speculative(2), lambda: left_to_right([MASK] * 4, P)),
    ],
    ids=["one token", "two tokens", "drafts"],
)
def test_particles_of_blocks_and_drafts_are_unbiased(
    sampler: Sampler, free: Callable[[], Law], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resampled after every call: copies go their own ways."""
    monkeypatch.setattr("unmask.sampling.particles.RESAMPLE", 1.1)
    model, sets, n = Tables(P, DRAFTS["random"]), 120, 5
    requests = [Request(0, torch.full((4,), MASK), sampler, Keys(seed), constraint=form()) for seed in range(sets)]
    runs = [run_particles(model, request, n) for request in requests]
    assert all(fits(tuple(state.canvas.tolist())) for some in runs for state in some.states)
    law = free()
    chances = np.array([math.exp(some.log_chance) for some in runs])
    assert abs(chances.mean() - sum(p for x, p in law.items() if fits(x))) < 4.5 * chances.std() / sets**0.5
    for x in (x for x in law if fits(x) and law[x] > 0.01):
        mass = [
            sum(math.exp(weight) / n for state, weight in zip(some.states, some.log_weights, strict=True)
                if tuple(state.canvas.tolist()) == x)
            for some in runs
        ]  # fmt: skip
        assert abs(np.mean(mass) - law[x]) < 4.5 * np.std(mass) / sets**0.5 + 2e-3


def test_a_language_model_drafts_text_of_a_form() -> None:
    lm, how = block_lm(), {"sampler": "speculative", "k": 4, "length": 12, "prompt": "ab", "stop_at_eos": False}
    for seed in range(4):
        [sample] = lm.write_samples(1, **how, seed=seed, regex=r"(\d\d-|[a-f]+;)*")
        assert re.fullmatch(r"(\d\d-|[a-f]+;)*", sample.text[2:]) and sample.drafted


def test_rules_that_forbid_what_a_constraint_needs_are_said() -> None:
    def never_a(log_p: Tensor, positions: Tensor, canvas: Tensor) -> Tensor:
        return log_p.index_fill(1, torch.tensor([0]), -torch.inf)

    only_a = Constraint((FormedSpan(over_tokens(regex("a*"), SPELLING, MASK), 0, 4),))
    with pytest.raises(UserError, match="leaves no token to write at position 0"):
        run(Tables(P, P), [MASK] * 4, [Speculative()], 1, rules=Rules(constrain=never_a), constraint=only_a)


# -- calls -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "length", "calls"), [(1, 9, 5), (2, 10, 4), (3, 13, 5), (16, 140, 14)])
def test_drafts_that_are_right_are_all_accepted(k: int, length: int, calls: int) -> None:
    """One call writes one token more than it was right about; the first call has no draft."""

    def known(place: int) -> np.ndarray:
        return np.eye(V)[CLEAN[place**2 % 3]]

    model = Tables(lambda prefix: known(len(prefix)), lambda prefix: known(len(prefix) - 1 + prefix[-1]))
    [states] = run(model, [MASK] * length, [Speculative(k)], 3)
    for state in states:
        assert state.calls <= calls and state.drafts[1] == length - state.calls


def test_hopeless_drafts_are_soon_given_up() -> None:
    """Without a draft a token is one call, and so it is with a bad one; now and then one is tried again."""
    model = Tables(lambda _: np.eye(V)[0], lambda _: np.eye(V)[2])
    [[state]] = run(model, [MASK] * 400, [Speculative()], 1)
    assert set(state.canvas.tolist()) == {0} and state.drafts[1] == 0 < state.drafts[0] < 150
    assert state.calls == 400


def test_drafts_go_as_far_ahead_as_they_are_accepted() -> None:
    """The two places after the next token are right, later ones wrong."""

    def q(prefix: Prefix) -> np.ndarray:
        return np.eye(V)[0 if prefix[-1] < 3 else 2]

    [[state]] = run(Tables(lambda _: np.eye(V)[0], q), [MASK] * 300, [Speculative()], 1)
    assert state.drafts[1] >= 190 and state.drafts[0] < 1.4 * state.drafts[1] and state.calls < 110


def test_a_tree_has_several_tokens_for_a_place() -> None:
    """With room for all tokens of a place, one of them is always right, whatever the draft says."""
    for draft in ("random", "wrong"):
        [states] = run(Tables(P, DRAFTS[draft]), [MASK] * 12, [Speculative(3 + 9 + 27)], 20)
        assert all(state.calls <= 1 + math.ceil(11 / 2) for state in states)


# -- samples do not depend on their batch, nor on a cache ------------------------------------------------------------


class Uncached(CachedBlocks):
    """Reads everything in every call."""

    def hidden(self, *args: Any, **more: Any) -> Tensor:
        self.read.clear()
        return super().hidden(*args, **more)


def test_a_sample_alone_is_the_sample_in_a_batch_with_and_without_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config("data.length=24", "model.method=block", "block.size=4")
    model = random_model(config, Vocab(12, 11), scale=1.5).eval()
    canvases = [torch.tensor([*range(i % 5), *[11] * (24 - i)]) for i in range(8)]
    plans = [Speculative(), Speculative(3), BlockByBlock(RevealPlan(3), 4), BlockByBlock(LeftToRight(), 1)]
    requests = [Request(i, canvas, plans[i % 4], Keys(i), prompt="shared") for i, canvas in enumerate(canvases)]
    requests = [Request(r.row, canvases[0], r.sampler, r.key, prompt=requests) for r in requests[:4]] + requests[4:]

    def ends(denoiser: Callable[[], Any], batch_size: int) -> list[tuple[list[int], int]]:
        done = {}
        for together in [requests] if batch_size > 1 else [[request] for request in requests]:
            batcher = Batcher(denoiser(), batch_size)
            for request in together:
                batcher.add(request)
            done |= {state.row: (state.canvas.tolist(), state.calls) for state in batcher.run() if state.done}
        return [done[row] for row in sorted(done)]

    whole = ends(model.denoiser, 8)
    assert whole == ends(model.denoiser, 3) == ends(model.denoiser, 1)
    assert whole == ends(lambda: Uncached(model), 8)
    monkeypatch.setattr(token_step, "LOGITS_AT_ONCE", 3 * 12)  # a draft is drawn in several parts
    assert whole == ends(model.denoiser, 8)


def test_the_same_seed_gives_the_same_text_with_any_drafts_and_with_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a call says of a token must not depend on the tree around it, nor on how much of the text is cached."""
    config = tiny_config("data.length=40", "model.method=block", "block.size=4")
    model = random_model(config, Vocab(12, 11), scale=1.5).eval()
    canvas = torch.tensor([3, 1, *[11] * 38])

    def texts(k: int | None) -> tuple[list[list[int]], float]:
        [states] = run(model.denoiser(), canvas.tolist(), [Speculative(k)], 6, batch_size=4, choice=Choice(0.8))
        return [state.canvas.tolist() for state in states], sum(state.calls for state in states) / 6

    found = {k: texts(k) for k in (None, 1, 2, 5, 16, 40)}
    monkeypatch.setattr(speculative._SpeculativeTrajectory, "_ahead", lambda self: [0] * len(self.tree.ends))
    plain, calls = texts(None)
    assert calls == 38 and all(written == plain for written, _ in found.values())
    assert len(set(map(tuple, plain))) == 6 and found[40][1] < found[1][1] < 38


# -- what others see -------------------------------------------------------------------------------------------------


def block_lm(*more: str) -> Any:
    return random_lm(bytes_tokenizer(), "data.length=40", "model.method=block", "block.size=4", *more, scale=1.2)


def test_what_is_final_never_changes_and_a_trace_shows_what_is_taken_back() -> None:
    lm = block_lm()
    canvas = lm.prompt_canvas("ab", 30)
    trace, states = Trace(lm.tokenizer, [canvas.ids]), []
    pieces = TextStream(lm.prompt_builder, canvas)
    text, how = "", {"sampler": "speculative", "k": 5, "seed": 2, "stop_at_eos": False}
    for state, sample in lm.run([Job(canvas, SamplingParams(**how))], tops=2):
        trace(state)
        states.append(state)
        text += pieces(state, sample)
    mask, last = lm.tokenizer.vocab.mask, states[-1]
    assert trace.recordings[0].replay(mask) == last.canvas.tolist() and mask not in last.canvas
    for state in states:
        assert state.canvas[: state.fixed].tolist() == last.canvas[: state.fixed].tolist()
        assert (state.tokens == mask).tolist() == (state.probs == 0).tolist()
    assert [state.fixed for state in states] == sorted(state.fixed for state in states)
    drafted = [dict(zip(state.positions.tolist(), state.tokens.tolist(), strict=True)) for state in states]
    assert any(
        first.get(place, token) != token for first, then in itertools.pairwise(drafted) for place, token in then.items()
    )  # a draft was shown and refused
    [sample] = lm.write([canvas], **how)
    assert text == sample.text and last.drafts == (sample.drafted, sample.accepted)
    assert 0 < sample.accepted < sample.drafted and sample.as_dict()["drafted"] == sample.drafted
    steps = [token.step for token in sample.tokens if not token.given]
    assert steps == sorted(steps) and all(token.prob for token in sample.tokens if not token.given)


def test_a_text_ends_where_it_would_have_ended() -> None:
    lm = block_lm()
    eos, how = lm.tokenizer.vocab.eos, {"sampler": "speculative", "k": 4, "seed": 1, "only": ["a", "b", "c", 256]}
    assert eos == 256
    stopped, whole = (lm.write_samples(6, **how, stop_at_eos=stop) for stop in (True, False))
    for short, long in zip(stopped, whole, strict=True):
        assert len(long.ids) == 40
        cut = long.ids.index(eos) if eos in long.ids else 40
        assert short.ids == long.ids[:cut] and (short.stopped == "eos") == (cut < 40)
    assert any(short.stopped == "eos" and short.network_calls < 10 for short in stopped)
    [sample] = lm.write_samples(1, **how, stop=["ba"], stop_at_eos=False)
    text = whole[0].text
    assert sample.text == text[: text.index("ba")] and sample.stopped == "stop"


def test_in_windows_each_window_has_the_law() -> None:
    """Windows of three tokens that move by one: each token sees the two before it."""

    def near(prefix: Prefix) -> np.ndarray:
        return P(prefix[-2:])

    plans = [Windows(Speculative(), 3, 1), Windows(BlockByBlock(LeftToRight(), 1), 3, 1)]
    drafted, plain = run(Tables(near, DRAFTS["random"]), [MASK] * 4, plans, 400)
    law = left_to_right([MASK] * 4, near)
    assert judge(drafted, law) > 1e-4 and judge(plain, law) > 1e-4
    assert any(state.drafts[1] for state in drafted)


def test_a_broken_network_is_said() -> None:
    def broken(_prefix: Prefix) -> np.ndarray:
        return np.full(V, np.nan)

    for model in (Tables(broken, P), Tables(P, broken)):
        with pytest.raises(UserError, match="NaN"):
            run(model, [MASK] * 4, [Speculative()], 1)


def test_constraints_that_leave_nothing_end_one_sequence_alone() -> None:
    def nothing(log_p: Tensor, positions: Tensor, canvas: Tensor) -> Tensor:
        return torch.full_like(log_p, -torch.inf) if int(positions[0]) == 2 else log_p

    batcher = Batcher(Tables(P, P), 2)
    for row, rules in enumerate([Rules(constrain=nothing), None]):
        batcher.add(Request(row, torch.full((4,), MASK), Speculative(), Keys(row), rules=rules))
    last: dict[int, State] = {}
    while batcher.busy:
        last |= {state.row: state for state, _ in batcher.step()}
    assert "no token to write at position 2" in str(last[0].error) and last[1].error is None
    assert MASK not in last[1].canvas


def test_a_draft_may_lead_where_nothing_can_be_written() -> None:
    """After 2 nothing may follow. Drafts write it, p never does."""

    def dead_end(log_p: Tensor, positions: Tensor, canvas: Tensor) -> Tensor:
        place = int(positions[0])
        return torch.full_like(log_p, -torch.inf) if place and canvas[place - 1] == 2 else log_p

    p = only(P, lambda _, token: token != 2)
    for draft in (DRAFTS["random"], lambda _: np.eye(V)[2]):
        [states] = run(Tables(p, draft), [MASK] * 4, [Speculative()], 200, rules=Rules(constrain=dead_end))
        assert judge(states, left_to_right([MASK] * 4, p)) > 1e-4


@pytest.mark.parametrize(
    ("method", "how", "says"),
    [
        ("mdlm", {}, "is for models of method block"),
        ("ar", {}, "choose the sampler left-to-right"),
        ("block", {"block": 4}, "leave block out"),
        ("block", {"suffix": "b"}, "does not see what follows a gap"),
        ("block", {"k": 0}, "k=0 must be at least 1"),
        ("by blocks", {}, "causally by tokens"),
    ],
)
def test_what_it_is_not_for(method: str, how: dict[str, Any], says: str) -> None:
    sizes = ["block.size=4"] if "block" in method else []
    lm = make(
        "bytes", f"model.method={'block' if sizes else method}", *sizes, *["block.clean=blocks"] * ("by" in method)
    )
    with pytest.raises(UserError, match=says) as error:
        lm.sample(sampler="speculative", prompt="a", **how)
    assert "\n" not in str(error.value)


def test_chances_are_those_that_tokens_are_drawn_from() -> None:
    weights = torch.tensor([[0.3, -1.0, 1.2, -torch.inf]])
    grid = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    for choice in (Choice(), Choice(0.5), Choice(top_p=0.8), Choice(top_k=2), Choice(min_p=0.2), Choice(0.0)):
        drawn = Counter((int(y),) for y in choice.tokens(weights.expand(4000, -1), grid))
        law = {(y,): float(p) for y, p in enumerate(choice.chances(weights)[0])}
        assert p_value(drawn, law) > 0.99
