"""Parts of a span that do not depend on each other: against an enumeration of all classes, over forms and canvases."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
import torch

from support.drawing import model_of
from unmask.constraints import TokenAutomaton, over_tokens, regex
from unmask.constraints.reach import ANY, Reach
from unmask.process.keys import Keys
from unmask.sampling import Constraint, FormedSpan, GivenOrder, Request
from unmask.sampling.constrained import Part, parts

SPELLING = [b"a", None, b"b", b'"', b"\\", b'",', b'a"']
MASK = 1
FORMS = {
    "strings": r'"[ab]*",("[ab]*",)?"[ab]*"',
    "strings with escapes": r'("([ab]|\\[ab"\\])*",){0,2}"([ab]|\\[ab"\\])*"',
    "pairs": r"((ab|ba)*,?)*\"?(ab|ba)*",
    "counted": r'(aa|b)*"(aa|b)*',
    "two ways": r'(a*b*|"a*b*)\\*',
}
LENGTH = 9


def automaton(name: str) -> TokenAutomaton:
    return over_tokens(regex(FORMS[name]), SPELLING, MASK)


def walk(form: TokenAutomaton, state: int, classes: tuple[int, ...]) -> int:
    """The state that classes lead to; -1: none."""
    for label in classes:
        edges = slice(form.first[state], form.first[state + 1])
        leads = np.flatnonzero(form.label[edges] == label)
        if not len(leads):
            return -1
        state = int(form.target[edges][leads[0]])
    return state


def fillings(form: TokenAutomaton, classes: np.ndarray) -> itertools.product[tuple[int, ...]]:
    every = range(form.n_classes)
    return itertools.product(*(every if label == ANY else [int(label)] for label in classes))


def due_in(part: Part, due: np.ndarray) -> list[int]:
    """The due positions that a part writes."""
    inside = due[(due >= part.start) & (due < part.start + len(part.classes))]
    return [int(i) for i in inside if part.classes[i - part.start] == ANY]


def law(form: TokenAutomaton, part: Part, chances: np.ndarray, due: np.ndarray) -> dict[tuple[int, ...], float]:
    """The law of the classes at the due positions of a part, by enumeration; chances (L, C) of the whole canvas."""
    result: Counter[tuple[int, ...]] = Counter()
    inside = due_in(part, due)
    for filling in fillings(form, part.classes):
        end = walk(form, part.state, filling)
        if end >= 0 and part.ends >> end & 1:
            open_at = np.flatnonzero(part.classes == ANY)
            weight = np.prod([chances[part.start + i, filling[i]] for i in open_at])
            result[tuple(filling[i - part.start] for i in inside)] += float(weight)
    total = sum(result.values())
    return {key: value / total for key, value in result.items()}


def texts(form: TokenAutomaton, rng: np.random.Generator, n: int) -> list[list[int]]:
    """Texts that fit, of `LENGTH` tokens."""
    sets, result = form.reach.along([ANY] * LENGTH), []
    tokens = [token for token in range(len(SPELLING)) if form.classes[token] >= 0]
    while len(result) < n:
        state, text = 0, list[int]()
        for i in range(LENGTH):
            led = {token: walk(form, state, (int(form.classes[token]),)) for token in tokens}
            able = [token for token, end in led.items() if end >= 0 and sets[i + 1] >> end & 1]
            text.append(int(rng.choice(able)))
            state = led[text[-1]]
        result.append(text)
    return result


def product(laws: list[dict[tuple[int, ...], float]], places: list[list[int]]) -> dict[tuple[int, ...], float]:
    """The joint law of independent parts whose due positions are at these places, in the order of the places."""
    order = np.argsort([place for some in places for place in some])
    result: Counter[tuple[int, ...]] = Counter()
    for keys in itertools.product(*laws):
        joint = np.array([label for key in keys for label in key])[order]
        result[tuple(joint.tolist())] += float(np.prod([p[key] for p, key in zip(laws, keys, strict=True)]))
    return result


@pytest.mark.parametrize("name", FORMS)
def test_the_law_of_parts_is_that_of_the_whole(name: str) -> None:
    """Where something in the middle is a part of its own, each part has the law that it has in the whole."""
    form, rng, model = automaton(name), np.random.default_rng(0), model_of("log-linear", seed=0)
    constraint, saved = Constraint((FormedSpan(form, 0, LENGTH),)), 0
    for text in texts(form, rng, 100):
        opened = rng.permutation(LENGTH)[: rng.integers(2, 6)]
        canvas = torch.tensor(text)
        canvas[torch.from_numpy(opened)] = MASK
        sampler = GivenOrder(list(range(len(opened))), k=int(rng.integers(1, 3)))
        trajectory = sampler.trajectory(Request(0, canvas, sampler, Keys(0), constraint=constraint), model)
        due = np.sort(trajectory.due().numpy())
        chances = rng.gamma(0.5, size=(LENGTH, form.n_classes)) + 1e-3
        cut, whole = (parts(trajectory, due, False, whole=way) for way in (False, True))
        assert sorted(place for part in cut for place in due_in(part, due)) == due.tolist()
        saved += sum(int((p.classes == ANY).sum()) for p in whole) - sum(int((p.classes == ANY).sum()) for p in cut)
        found, expected = (
            product([law(form, part, chances, due) for part in some], [due_in(part, due) for part in some])
            for some in (cut, whole)
        )
        assert found.keys() == expected.keys()
        assert all(found[key] == pytest.approx(value, rel=1e-9) for key, value in expected.items())
    assert saved > 5 or "strings" not in name


@pytest.mark.parametrize("name", FORMS)
def test_a_stretch_is_filled_alike_from_every_state(name: str) -> None:
    form, rng = automaton(name), np.random.default_rng(1)
    for text in texts(form, rng, 30):
        classes = form.classes[text].astype(np.int64)
        classes[rng.permutation(LENGTH)[: rng.integers(1, 6)]] = ANY
        sets = form.reach.along(classes.tolist())
        for stretch in form.reach.stretches(classes.tolist(), sets):
            states = np.flatnonzero(form.reach.members(sets[stretch.start])).tolist()
            assert len(states) > 1 and stretch.state in states
            ways = []
            for state in states:
                led = {f: walk(form, state, f) for f in fillings(form, classes[stretch.start : stretch.stop])}
                led = {f: end for f, end in led.items() if end >= 0 and sets[stretch.stop] >> end & 1}
                assert len(set(led.values())) == 1 and tuple(stretch.classes) in led
                assert state != stretch.state or set(led.values()) == {stretch.end}
                ways.append(led.keys())
            assert all(way == ways[0] for way in ways)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """And forgetting changes nothing."""
    form = automaton("strings with escapes")
    canvases = [form.classes[text].astype(np.int64) for text in texts(form, np.random.default_rng(2), 10)]
    for classes in canvases:
        classes[[2, 4, 5]] = ANY
    lists = [classes.tolist() for classes in canvases]
    whole = [form.reach.stretches(classes, form.reach.along(classes)) for classes in lists]
    monkeypatch.setattr("unmask.constraints.reach.MOST", 3000)
    small = Reach(form.source, form.label, form.target, form.accepting)
    assert [small.stretches(classes, small.along(classes)) for classes in lists] == whole
    assert small.nbytes < 12_000
