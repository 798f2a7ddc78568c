"""The laws of all samplers and of what shapes a distribution, by enumeration: plain numpy, no line of the package."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from oracles.enumeration import ALPHAS, CLEAN, MASK, Denoiser, State, V, keep_grid

# -- the laws of orders, remasking and windows -----------------------------------------------------------------------


def masks_of(z: State) -> list[int]:
    return [i for i, token in enumerate(z) if token == MASK]


def collect(pairs: Iterable[tuple[State, float]]) -> dict[State, float]:
    """Sum the chances of equal states."""
    law: dict[State, float] = {}
    for state, chance in pairs:
        law[state] = law.get(state, 0.0) + chance
    return law


def written(z: State, log_x: np.ndarray, positions: Sequence[int]) -> list[tuple[State, float]]:
    """Every way of writing some positions at once, with its chance."""
    options = [
        [(y, math.exp(v)) for y, v in enumerate(log_x[i]) if v > -math.inf] if i in positions else [(token, 1.0)]
        for i, token in enumerate(z)
    ]
    return [
        (tuple(token for token, _ in combination), math.prod(p for _, p in combination))
        for combination in itertools.product(*options)
    ]


Write = Callable[[State, np.ndarray, Sequence[int]], list[tuple[State, float]]]


def formed(fits: Callable[[State], bool]) -> Write:
    """`written` under a constraint: of whole completions that fit, by their chance, some positions are written."""

    def write(z: State, log_x: np.ndarray, positions: Sequence[int]) -> list[tuple[State, float]]:
        whole = [(x, p) for x, p in written(z, log_x, masks_of(z)) if fits(x)]
        total = sum(p for _, p in whole)
        return list(
            collect(
                (tuple(x[i] if i in positions else y for i, y in enumerate(z)), p / total) for x, p in whole
            ).items()
        )

    return write


def order_law(
    start: State, denoise: Denoiser, groups: Iterable[Sequence[int]], write: Write = written
) -> dict[State, float]:
    """Groups of positions one after the other, those of a group at once."""
    law = {start: 1.0}
    for group in groups:
        law = collect(
            (state, chance * p) for z, chance in law.items() for state, p in write(z, denoise(z, math.nan), group)
        )
    return law


def random_order_law(start: State, denoise: Denoiser, write: Write = written) -> dict[State, float]:
    """The mean over all orders, one position at a time."""
    orders = list(itertools.permutations(masks_of(start)))
    return collect(
        (x, p / len(orders))
        for order in orders
        for x, p in order_law(start, denoise, [[i] for i in order], write).items()
    )


def plan_law(start: State, denoise: Denoiser, name: str, steps: int, write: Write = written) -> dict[State, float]:
    """T steps, the step of every position drawn ahead: the mean over all ways to assign them."""
    keep, masks = [*keep_grid(name, steps, cut=True)[::-1], 1.0], masks_of(start)
    chances = [after - before for before, after in itertools.pairwise(keep)]
    law: list[tuple[State, float]] = []
    for assigned in itertools.product(range(steps + 1), repeat=len(masks)):
        chance = math.prod(chances[step] for step in assigned)
        groups = [[i for i, own in zip(masks, assigned, strict=True) if own == step] for step in range(steps + 1)]
        if chance > 0:
            ends = order_law(start, denoise, [group for group in groups if group], write)
            law += [(x, chance * p) for x, p in ends.items()]
    return collect(law)


def time_of(name: str, keep: float) -> float:
    """The time at which this share is unmasked, by bisection."""
    low, high, end = 0.0, 1.0, ALPHAS[name](1.0)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if (ALPHAS[name](middle) - end) / (1 - end) > keep else (low, middle)
    return (low + high) / 2


def hitting_law(start: State, denoise: Denoiser, name: str, nodes: int = 12) -> dict[State, float]:
    """Infinitely many steps. Every mask has a uniform level of `keep` at which it is revealed; the next is the lowest.

    Its density among n masks beyond level k is n (1 - u)^(n - 1) / (1 - k)^n, integrated by Gauss-Legendre; levels that
    a cut schedule does not reach are revealed together at t = 0.
    """
    last = keep_grid(name, 1, cut=True)[0]
    x, w = np.polynomial.legendre.leggauss(nodes)

    def go(z: State, level: float) -> dict[State, float]:
        masks = masks_of(z)
        if not masks:
            return {z: 1.0}
        n, out = len(masks), []
        rest = ((1 - last) / (1 - level)) ** n
        if rest > 0:
            out += [(state, rest * p) for state, p in written(z, denoise(z, 0.0), masks)]
        for node, weight in zip(x, w, strict=True):
            u = level + (last - level) * (node + 1) / 2
            density = n * (1 - u) ** (n - 1) / (1 - level) ** n * weight * (last - level) / 2
            guess = denoise(z, time_of(name, u))
            for position in masks:
                for state, p in written(z, guess, [position]):
                    out += [(end, density / n * p * q) for end, q in go(state, u).items()]
        return collect(out)

    return go(start, 0.0)


SCORES: dict[str, Callable[[Sequence[float]], float]] = {
    "confidence": max,
    "entropy": lambda probs: sum(p * math.log(p) for p in probs if p > 0),  # minus the entropy: more is surer
    "margin": lambda probs: sorted(probs)[-1] - sorted(probs)[-2],
}


def surest(
    z: State, log_x: np.ndarray, measure: str, k: int | None, threshold: float | None, bound: float | None = None
) -> list[int]:
    """The masks that are written next: the k surest, or all that are sure enough and at least one.

    Or, under a bound, the longest beginning of the order whose entropies sum to no more than it, the largest left out.
    """
    score = {i: SCORES[measure](np.exp(log_x[i]).tolist()) for i in masks_of(z)}
    order = sorted(score, key=lambda i: (-round(score[i], 5), i))  # rounding does not choose between equals
    if bound is not None:
        nats = [-SCORES["entropy"](np.exp(log_x[i]).tolist()) for i in order]
        fitting = [n for n in range(2, len(order) + 1) if sum(nats[:n]) - max(nats[:n]) <= bound]
        return order[: max(fitting, default=1)]
    if threshold is None:
        return order[:k]
    least = -threshold if measure == "entropy" else threshold
    return [i for i in order if score[i] >= least] or order[:1]


def surest_law(
    start: State,
    denoise: Denoiser,
    measure: str,
    k: int | None = None,
    threshold: float | None = None,
    bound: float | None = None,
    write: Write = written,
) -> dict[State, float]:
    """Look, write the surest, look again."""
    law = {start: 1.0}
    while any(masks_of(z) for z in law):
        guess = {z: denoise(z, math.nan) for z in law}
        law = collect(
            (state, chance * p)
            for z, chance in law.items()
            for state, p in write(z, guess[z], surest(z, guess[z], measure, k, threshold, bound))
        )
    return law


Leg = tuple[float, float, float]  # (time that the network is told, chance of a reveal, chance of being taken back)


def leg(t: float, keep_t: float, keep_s: float, sigma: float) -> Leg:
    """The chance of a reveal that leaves the share of masks to the schedule."""
    return t, (keep_s - (1 - sigma) * keep_t) / (1 - keep_t), sigma


def sigma_limit(keep_t: float, keep_s: float) -> float:
    """Beyond it more would be taken back than there are masks in the end."""
    return min(1.0, (1 - keep_s) / keep_t) if keep_t > 0 else float(keep_s < 1)


def remask_legs(
    name: str, steps: int, kind: str, eta: float, window: tuple[float, float] = (1.0, 0.0), hold: float = 0.9
) -> list[Leg]:
    """ReMDM, typed from its paper (section 4.1), with keep for its alpha."""
    end, (on, off) = ALPHAS[name](1.0), window
    rest = time_of(name, hold)

    def clock(u: float) -> float:
        if kind != "loop" or u in (0.0, 1.0):
            return u
        if u > on:
            return rest + (1 - rest) * (u - on) / (1 - on)
        return rest if u > off else rest * u / off

    def keep(t: float) -> float:
        return (ALPHAS[name](t) - end) / (1 - end)

    legs = []
    for i in range(steps):
        t, s = 1 - i / steps, 1 - (i + 1) / steps
        before, after = keep(clock(t)), keep(clock(s))
        limit = sigma_limit(before, after)
        sigma = {"cap": min(eta, limit), "rescale": eta * limit, "loop": min(eta, limit)}[kind]
        inside = clock(t) == clock(s) == rest if kind == "loop" else off < t <= on
        legs.append(leg(clock(t), before, after, sigma if inside else 0.0))
    return legs if keep(0.0) == 1 else [*legs, (0.0, 1.0, 0.0)]


def corrector_legs(name: str, steps: int, corrections: int, eta: float, window: tuple[float, float]) -> list[Leg]:
    """Ancestral steps; after each, legs that lead nowhere: a share is taken back, as much is written anew."""
    keep, legs = keep_grid(name, steps, cut=True)[::-1], []
    for i in range(steps):
        t, s = 1 - i / steps, 1 - (i + 1) / steps
        legs.append(leg(t, keep[i], keep[i + 1], 0.0))
        if window[1] < s <= window[0] and keep[i + 1] < 1:
            sigma = min(eta, sigma_limit(keep[i + 1], keep[i + 1]))
            legs += [leg(s, keep[i + 1], keep[i + 1], sigma)] * corrections
    return legs if keep[-1] == 1 else [*legs, (0.0, 1.0, 0.0)]


def legs_law(start: State, denoise: Denoiser, legs: Sequence[Leg]) -> dict[State, float]:
    """Leg by leg: every mask is revealed or not, everything that was not given is taken back or not."""
    law, ours = {start: 1.0}, masks_of(start)
    for t, reveal, sigma in legs:
        out = []
        for z, chance in law.items():
            guess = np.exp(denoise(z, t))
            options = []
            for i, token in enumerate(z):
                if token == MASK:
                    options.append([(MASK, 1 - reveal), *((y, reveal * p) for y, p in enumerate(guess[i]))])
                else:
                    options.append([(token, 1 - sigma), (MASK, sigma)] if i in ours else [(token, 1.0)])
            for combination in itertools.product(*options):
                p = math.prod(p for _, p in combination)
                if p > 0:
                    out.append((tuple(y for y, _ in combination), chance * p))
        law = collect(out)
    return law


def windows_law(
    start: State, room: int, stride: int, inner: Callable[[State], dict[State, float]]
) -> dict[State, float]:
    """Window after window, each by the law of its plan given what stands in it; the last one ends with the text."""
    law, at = {start: 1.0}, 0
    while True:
        law = collect(
            (z[:at] + part + z[at + room :], chance * p)
            for z, chance in law.items()
            for part, p in inner(z[at : at + room]).items()
        )
        if at + room >= len(start):
            return law
        at = min(at + stride, len(start) - room)


# -- what shapes a distribution --------------------------------------------------------------------------------------


def normal(log_x: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return log_x - np.log(np.exp(log_x).sum(-1, keepdims=True))


def ruled(denoise: Denoiser, may: Callable[[int, int], bool]) -> Denoiser:
    """Only tokens that `may(position, token)` be written, renormalised."""

    def rules(z: State, t: float) -> np.ndarray:
        out = denoise(z, t).copy()
        for position, token in np.ndindex(out.shape):
            if not may(position, token):
                out[position, token] = -np.inf
        return normal(out)

    return rules


def guided(own: Denoiser, plain: Denoiser, scale: float) -> Denoiser:
    """softmax(log p_plain + scale (log p_own - log p_plain)) over the clean tokens."""

    def mixed(z: State, t: float) -> np.ndarray:
        a, b = own(z, t)[:, CLEAN], plain(z, t)[:, CLEAN]
        out = np.full((len(z), V), -np.inf)
        out[:, CLEAN] = b + scale * (a - b)
        return normal(out)

    return mixed


def filtered(
    denoise: Denoiser,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> Denoiser:
    """Temperature, top-k, top-p (with the token that crosses it) and min-p, each on what the one before it left."""

    def row(log_probs: Sequence[float]) -> list[float]:
        probs = [math.exp(v / temperature) for v in log_probs]
        order = sorted(range(len(probs)), key=lambda y: -probs[y])[:top_k]
        total, kept, before = sum(probs[y] for y in order), [], 0.0
        for y in order:
            if top_p is None or before < top_p * total:
                kept.append(y)
            before += probs[y]
        kept = [y for y in kept if probs[y] > 0 and probs[y] >= (min_p or 0.0) * probs[order[0]]]
        total = sum(probs[y] for y in kept)
        return [math.log(probs[y] / total) if y in kept else -math.inf for y in range(len(probs))]

    return lambda z, t: np.array([row(values) for values in denoise(z, t).tolist()])
