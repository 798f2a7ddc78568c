"""How far is a constrained text from the model's own law, given that it fits? Against masking logits left to right.

Texts are 6 letters of three, with the law of a random chain (each letter given the two before it), and must match a
pattern: everything can be enumerated. Both models know that law perfectly: the autoregressive one says p(letter | those
before), the diffusion model p(letter | those that are known). Columns are total variations from the true law given the
pattern, the mean over chains:

    left to right   logits are masked where nothing could be completed any more, as engines do (enumerated)
    each step       `unmask`, one letter a step from left to right, or in random order (enumerated)
    N particles     `particles=N`, from left to right: the mean law of runs, by sampling
    exact           as many draws from the true law itself, for comparison

    python benchmarks/conditional_law.py [--chains 4] [--particles 4,16,64] [--draws 1024] [--json]
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.constraints import over_tokens, regex
from unmask.models.masked import MaskedDiffusion
from unmask.networks.interface import Network, NetworkInput
from unmask.process.keys import Keys
from unmask.process.schedule import Polynomial
from unmask.sampling import Constraint, FormedSpan, LeftToRight, Request, run_particles
from unmask.text_tables import markdown_table
from unmask.types import Vocab

LETTERS, LENGTH, MASK = "abc", 6, 3
TEXTS = np.array(list(itertools.product(range(3), repeat=LENGTH)))  # (729, 6)
PATTERNS = ("(ab|ba|c)*", "a*b*c*", "[abc]*(abc|cba)[abc]*", "(a|bb|ccc)*")
FEWEST = 0.05  # of the texts of a chain must fit at least, and at most 1 minus that
State = tuple[int, ...]


def chain_law(seed: int) -> np.ndarray:
    """(729,): the chances of all texts under a chain in which a letter depends on the two before it."""
    rng = np.random.default_rng(seed)
    first, rest = rng.dirichlet(np.full(9, 0.5)).reshape(3, 3), rng.dirichlet(np.full(3, 0.4), size=(3, 3))
    law = first[TEXTS[:, 0], TEXTS[:, 1]]
    for i in range(2, LENGTH):
        law = law * rest[TEXTS[:, i - 2], TEXTS[:, i - 1], TEXTS[:, i]]
    return np.asarray(law / law.sum())


def marginals(law: np.ndarray, state: State) -> np.ndarray:
    """(6, 3): the chances of letters, given those of a state that are not MASK."""
    agrees = np.all([(TEXTS[:, i] == y) | (y == MASK) for i, y in enumerate(state)], axis=0)
    counts = np.stack([np.bincount(TEXTS[agrees, i], law[agrees], 3) for i in range(LENGTH)])
    return counts / np.maximum(counts.sum(1, keepdims=True), 1e-300)


class KnownLaw(Network):
    """A network that knows a law: its hidden states are the logits."""

    takes = frozenset({"tokens", "valid"})

    def __init__(self, law: np.ndarray) -> None:
        super().__init__()
        self.vocab, self.hidden_dim, self.law = Vocab(4, MASK), 4, law
        self.scale = torch.nn.Parameter(torch.ones(1))  # a model has weights
        self.known: dict[State, Tensor] = {}

    def _logits(self, state: State) -> Tensor:
        if state not in self.known:
            with np.errstate(divide="ignore"):
                said = np.log(marginals(self.law, state))
            self.known[state] = torch.tensor(np.pad(np.maximum(said, -60.0), ((0, 0), (0, 1))), dtype=torch.float32)
        return self.known[state]

    def forward(self, inputs: NetworkInput) -> tuple[Tensor, None]:
        """Logits (B, 6, 4) by looking them up."""
        return torch.stack([self._logits(tuple(row)) for row in inputs.content.tolist()]) * self.scale, None

    def head(self, rows: Tensor) -> Tensor:
        """As they are."""
        return rows


def masked_left_to_right(law: np.ndarray, fits: np.ndarray) -> np.ndarray:
    """(729,): each letter by its chance among those after which some text that fits is left."""
    result = fits.astype(float)
    for n, x in enumerate(TEXTS):
        for i in range(LENGTH) if fits[n] else ():
            before = (TEXTS[:, :i] == x[:i]).all(1)
            possible = np.bincount(TEXTS[before & fits, i], minlength=3) > 0
            chances = np.bincount(TEXTS[before, i], law[before], 3) * possible
            result[n] *= chances[x[i]] / chances.sum() if chances.sum() else 0.0
    return result


def step_exact(law: np.ndarray, fits: np.ndarray, order: str) -> np.ndarray:
    """(729,): in each step one position is due, and gets a letter by independent marginals given that all fits."""
    reached: dict[State, float] = {(MASK,) * LENGTH: 1.0}
    for _ in range(LENGTH):
        after: dict[State, float] = {}
        for state, chance in reached.items():
            said = marginals(law, state)
            whole = fits & np.all([(TEXTS[:, i] == y) | (y == MASK) for i, y in enumerate(state)], axis=0)
            open_at = [i for i, y in enumerate(state) if y == MASK]
            weight = np.prod([said[i, TEXTS[:, i]] for i in open_at], axis=0) * whole
            for i in open_at[:1] if order == "left" else open_at:
                letters = np.bincount(TEXTS[:, i], weight, 3)
                for y in np.flatnonzero(letters):
                    new = (*state[:i], int(y), *state[i + 1 :])
                    share = 1 if order == "left" else len(open_at)
                    after[new] = after.get(new, 0.0) + chance * letters[y] / letters.sum() / share
        reached = after
    return np.array([reached.get(tuple(x), 0.0) for x in TEXTS.tolist()])


def with_particles(law: np.ndarray, pattern: str, n: int, draws: int) -> np.ndarray:
    """(729,): the mean law of what is drawn out of n particles, over draws / n sets of them."""
    model = MaskedDiffusion(KnownLaw(law), Polynomial()).eval()
    automaton = over_tokens(regex(pattern), [letter.encode() for letter in LETTERS] + [None], MASK)
    form = Constraint((FormedSpan(automaton, 0, LENGTH),))
    number, result = {tuple(x): i for i, x in enumerate(TEXTS.tolist())}, np.zeros(len(TEXTS))
    for seed in range(sets := max(1, draws // n)):
        request = Request(0, torch.full((LENGTH,), MASK), LeftToRight(), Keys(seed), constraint=form)
        runs = run_particles(model.denoiser(), request, n, n)
        weights = np.exp(runs.log_weights - runs.log_weights.max())
        for state, weight in zip(runs.states, weights / weights.sum(), strict=True):
            result[number[tuple(state.canvas.tolist())]] += weight / sets
    return result


def distance(law: np.ndarray, true: np.ndarray) -> float:
    """Total variation."""
    return float(abs(law - true).sum() / 2)


def measured(pattern: str, chains: int, particles: Sequence[int], draws: int) -> dict[str, Any]:
    """The mean distances of one pattern."""
    fits = np.array([re.fullmatch(pattern, "".join(LETTERS[y] for y in x)) is not None for x in TEXTS])
    rows: list[dict[str, float]] = []
    for seed in itertools.count():
        law = chain_law(seed)
        chance = law[fits].sum()
        if not FEWEST < chance < 1 - FEWEST:
            continue
        true = np.where(fits, law, 0) / chance
        row = {
            "left to right": distance(masked_left_to_right(law, fits), true),
            "each step": distance(step_exact(law, fits, "left"), true),
            "each step, random order": distance(step_exact(law, fits, "random"), true),
        }
        row |= {f"{n} particles": distance(with_particles(law, pattern, n, draws), true) for n in particles}
        drawn = np.random.default_rng(seed).multinomial(draws, true / true.sum()) / draws
        rows.append(row | {"exact": distance(drawn, true)})
        if len(rows) == chains:
            break
    means = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    return {"pattern": pattern, "texts": int(fits.sum()), **means}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--particles", default="4,16,64")
    parser.add_argument("--draws", type=int, default=1024)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    particles = [int(n) for n in args.particles.split(",") if n]
    records = [measured(pattern, args.chains, particles, args.draws) for pattern in PATTERNS]
    if args.json:
        print(json.dumps(records, indent=1))
        return
    shown = [[f"{value:.3f}" if isinstance(value, float) else str(value) for value in r.values()] for r in records]
    print(markdown_table([list(records[0]), *shown]))


if __name__ == "__main__":
    main()
