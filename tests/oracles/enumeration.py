"""Slow, obvious truths: dense matrices, loops over every state, exact integrals. Nothing here is clever on purpose.

Bounds, laws and matrices are plain numpy and share no line with the package; `continuous_nodes` only says where to
look. A *state* is a tuple of token ids that may hold MASK; a *denoiser* maps (state, time) to an (L, V) array of log x̂.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from unmask.networks.interface import Network, NetworkInput
from unmask.process.schedule import Bell, ContinuousTime, Cosine, Geometric, Linear, Polynomial, Schedule
from unmask.types import Vocab

V, MASK, LENGTH = 4, 1, 3  # [MASK] is not the last id: code that assumes so must fail
CLEAN = [token for token in range(V) if token != MASK]
XS = list(itertools.product(CLEAN, repeat=LENGTH))
VOCAB = Vocab(V, MASK)

State = tuple[int, ...]
Denoiser = Callable[[State, float], np.ndarray]

# -- schedules, typed from the paper's appendix E.1 ------------------------------------------------------------------

ALPHAS: dict[str, Callable[[float], float]] = {
    "log-linear": lambda t: 1 - 0.999 * t,
    "log-linear uncut": lambda t: 1 - t,
    "square": lambda t: 1 - 0.99 * t * t,
    "root": lambda t: 1 - math.sqrt(t),
    "cosine": lambda t: 1e-3 + 0.999 * math.cos(math.pi * t / 2),
    "cosine uncut": lambda t: math.cos(math.pi * t / 2),
    "cosine-squared": lambda t: 1e-3 + 0.999 * math.cos(math.pi * t / 2) ** 2,
    "linear": lambda t: math.exp(-20.0 * t),
    "linear 3": lambda t: math.exp(-3.0 * t),
    "linear 1e8": lambda t: math.exp(-1e8 * t),
    "geometric": lambda t: math.exp(-(1e-3 ** (1 - t)) * 20.0**t),
    "geometric wide cut": lambda t: math.exp(-(0.2 ** (1 - t)) * 2.0**t),
    "bell": lambda t: 1 - 0.999 * (0.5 + math.atanh((2 * t - 1) * math.tanh(2.0)) / 4),
}
SCHEDULES: dict[str, Schedule] = {
    "log-linear": Polynomial(),
    "log-linear uncut": Polynomial(eps=0.0),
    "square": Polynomial(2.0, 1e-2),
    "root": Polynomial(0.5, 0.0),
    "cosine": Cosine(),
    "cosine uncut": Cosine(eps=0.0),
    "cosine-squared": Cosine(2),
    "linear": Linear(),
    "linear 3": Linear(3.0),
    "linear 1e8": Linear(1e8),
    "geometric": Geometric(),
    "geometric wide cut": Geometric(0.2, 2.0),
    "bell": Bell(),
}


def keep_grid(name: str, steps: int, cut: bool = False) -> list[float]:
    """Chance of being unmasked at times 0, 1/T, ..., 1, rescaled to end in all masks; 1 at time 0 unless cut."""
    alpha = [ALPHAS[name](i / steps) for i in range(steps + 1)]
    keep = [(a - alpha[-1]) / (1 - alpha[-1]) for a in alpha]
    return keep if cut else [1.0, *keep[1:]]


# -- denoisers -------------------------------------------------------------------------------------------------------


def random_joint(seed: int = 0) -> dict[State, float]:
    """An arbitrary joint law of 3 tokens with 3 values, far from a product."""
    weights = np.random.default_rng(seed).gamma(0.7, size=len(XS)) + 0.02
    return dict(zip(XS, weights / weights.sum(), strict=True))


def conditionals(joint: dict[State, float]) -> Denoiser:
    """p(x_l | the unmasked part) by summing over everything that agrees with it."""

    def denoise(z: State, _t: float) -> np.ndarray:
        out = np.zeros((LENGTH, V))
        for x, p in joint.items():
            if all(b in (MASK, a) for a, b in zip(x, z, strict=True)):
                for position, token in enumerate(x):
                    out[position, token] += p
        with np.errstate(divide="ignore"):
            return np.log(out / out.sum(1, keepdims=True))

    return denoise


def subs(logits: np.ndarray) -> np.ndarray:
    """Log softmax over the clean tokens; -inf for [MASK]."""
    out = np.full(logits.shape, -np.inf)
    for index in np.ndindex(logits.shape[:-1]):
        total = math.log(sum(math.exp(logits[(*index, token)]) for token in CLEAN))
        for token in CLEAN:
            out[(*index, token)] = logits[(*index, token)] - total
    return out


def d3pm(logits: np.ndarray) -> np.ndarray:
    """Log softmax over all tokens, [MASK] included."""
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


# -- the forward process as matrices ---------------------------------------------------------------------------------


def one_hot(token: int, size: int = V) -> np.ndarray:
    return np.eye(size)[token]


def noise_matrix(alpha: float, prior: np.ndarray) -> np.ndarray:
    """Q[i, j] = q(z = j | x = i): stay with chance alpha, else draw from the prior."""
    return alpha * np.eye(len(prior)) + (1 - alpha) * np.tile(prior, (len(prior), 1))


def bayes(z_t: int, x: np.ndarray, alpha_s: float, alpha_t: float, prior: np.ndarray) -> np.ndarray:
    """q(z_s | z_t, x) from the joint q(z_s | x) q(z_t | z_s), normalised; x is a distribution over tokens."""
    ratio = alpha_t / alpha_s if alpha_s > 0 else 1.0  # nothing happens between two times that are all prior
    joint = (x @ noise_matrix(alpha_s, prior)) * noise_matrix(ratio, prior)[:, z_t]
    return joint / joint.sum()


def kl(q: np.ndarray, p: np.ndarray) -> float:
    return sum(a * math.log(a / b) for a, b in zip(q, p, strict=True) if a > 0)


# -- bounds ----------------------------------------------------------------------------------------------------------


def masked_states(x: State) -> list[tuple[State, list[int]]]:
    """Every z that x can become, with the positions that are masked in it."""
    out = []
    for pattern in itertools.product((False, True), repeat=len(x)):
        z = tuple(MASK if hidden else token for token, hidden in zip(x, pattern, strict=True))
        out.append((z, [i for i, hidden in enumerate(pattern) if hidden]))
    return out


def nelbo_discrete(x: State, denoise: Denoiser, keep: Sequence[float], times: Sequence[float]) -> float:
    """Sum over steps and over all z_t of q(z_t|x) KL(q(z_s|z_t,x) || p(z_s|z_t)), from dense matrices."""
    prior, total = one_hot(MASK), 0.0
    for i in range(1, len(keep)):
        for z, masked in masked_states(x):
            chance = (1 - keep[i]) ** len(masked) * keep[i] ** (len(x) - len(masked))
            if not masked or not chance:
                continue
            guess = np.exp(denoise(z, times[i]))
            for position in masked:
                q = bayes(MASK, one_hot(x[position]), keep[i - 1], keep[i], prior)
                p = bayes(MASK, guess[position], keep[i - 1], keep[i], prior)
                total += chance * kl(q, p)
    return total


def nelbo_continuous(x: State, denoise: Denoiser, low: float, high: float) -> float:
    """Integral over alpha from low to high of E[sum of -log x̂ at masked positions] / (1 - alpha), as a polynomial.

    With n of L positions masked the integrand is (1 - alpha)^(n - 1) alpha^(L - n): no quadrature is needed.
    """
    total = 0.0
    for z, masked in masked_states(x):
        if masked:
            n, length = len(masked), len(x)
            integrand = np.polynomial.Polynomial([1, -1]) ** (n - 1) * np.polynomial.Polynomial([0, 1]) ** (length - n)
            integral = integrand.integ()
            guess = denoise(z, math.nan)
            total -= (integral(high) - integral(low)) * sum(guess[position, x[position]] for position in masked)
    return total


def last_step(x: State, denoise: Denoiser, keep: float, t: float) -> float:
    """E[sum of -log x̂ at masked positions] where all that is masked at this time is revealed at once."""
    total = 0.0
    for z, masked in masked_states(x):
        chance = (1 - keep) ** len(masked) * keep ** (len(x) - len(masked))
        if masked and chance:
            guess = denoise(z, t)
            total -= chance * sum(guess[position, x[position]] for position in masked)
    return total


def continuous_nodes(schedule: Schedule, law: ContinuousTime, n: int = 400) -> tuple[Tensor, Tensor, float]:
    """(uniforms, weights, chance of the last step): Gauss-Legendre in alpha, as uniforms that `draw` turns into it.

    A schedule that squeezes everything into a sliver of time (linear 1e8) is then as easy as any other.
    """
    end = law.draw(torch.zeros(1, dtype=torch.float64), schedule)
    last, t_low = float(1 - end.keep), float(end.t)
    low, high = (float(schedule.alpha(torch.tensor(t, dtype=torch.float64))) for t in (1.0, t_low))
    x, w = np.polynomial.legendre.leggauss(n)
    t = schedule.inverse(torch.from_numpy(low + (high - low) * (x + 1) / 2)).requires_grad_()
    slope = torch.autograd.grad(schedule.alpha(t).sum(), t)[0].abs()
    t = t.detach()
    uniform = last + (t - t_low) / (1 - t_low) * (1 - last)
    return uniform, torch.from_numpy(w) * (high - low) / 2 / slope * (1 - last) / (1 - t_low), last


def stretches(fact: Callable[[float], object]) -> Iterator[tuple[float, float]]:
    """(length, a place inside) of every stretch of [0, 1) in which a fact stays the same, by bisection."""
    begin = 0.0
    while begin < 1:
        now, low, high = fact(begin), begin, 1.0
        while high - low > 1e-13:
            middle = (low + high) / 2
            low, high = (middle, high) if fact(middle) == now else (low, middle)
        yield high - begin, (begin + high) / 2 if high - begin > 1e-9 else begin
        begin = high if high < 1 - 1e-12 else 1.0


# -- the law of a sampler --------------------------------------------------------------------------------------------


def step_law(
    law: dict[State, float], denoise: Denoiser, t: float, alpha_s: float, alpha_t: float
) -> dict[State, float]:
    """Every state to every state it can become: the product over positions of p(z_s | z_t), by enumeration."""
    out: dict[State, float] = {}
    for z, chance in law.items():
        guess = np.exp(denoise(z, t))
        options = []
        for position, token in enumerate(z):
            if token == MASK:
                probs = bayes(MASK, guess[position], alpha_s, alpha_t, one_hot(MASK, guess.shape[1]))
                options.append([(y, p) for y, p in enumerate(probs) if p > 0])
            else:
                options.append([(token, 1.0)])
        for combination in itertools.product(*options):
            state = tuple(y for y, _ in combination)
            out[state] = out.get(state, 0.0) + chance * math.prod(p for _, p in combination)
    return out


def ancestral_law(start: State, denoise: Denoiser, name: str, steps: int) -> dict[State, float]:
    """The exact law of T ancestral steps from a canvas; what a cut schedule leaves over goes in one more step."""
    alpha = [ALPHAS[name](i / steps) for i in range(steps + 1)]
    law = {start: 1.0}
    for i in range(steps, 0, -1):
        law = step_law(law, denoise, i / steps, alpha[i - 1], alpha[i])
    return step_law(law, denoise, 0.0, 1.0, alpha[0]) if alpha[0] < 1 else law


# -- a network that is a table ---------------------------------------------------------------------------------------


class TableNet(Network):
    """Any function of (z, sigma, label): logits are looked up by the whole state, `head` is the identity.

    A position that does not exist reads as a symbol of its own, so a short row gives the same alone and padded.
    """

    takes = frozenset({"tokens", "condition", "valid"})

    def __init__(
        self, table: np.ndarray, drift: np.ndarray | None = None, labels: Sequence[np.ndarray] | None = None
    ) -> None:
        super().__init__()
        self.vocab, self.hidden_dim, self.length = VOCAB, V, table.ndim - 2
        self.table = nn.Parameter(torch.tensor(table, dtype=torch.float32))  # (V + 1,) * LENGTH + (LENGTH, V)
        self.drift = None if drift is None else torch.tensor(drift, dtype=torch.float32)
        self.tables = [torch.tensor(own, dtype=torch.float32) for own in labels or ()]  # one for each label
        self.time_conditioning, self.n_labels = drift is not None, len(self.tables)
        self.calls: list[int] = []  # batch size of every call

    @classmethod
    def random(
        cls, seed: int = 0, timed: bool = False, spread: float = 1.5, length: int = LENGTH, labels: int = 0
    ) -> TableNet:
        rng = np.random.default_rng(seed)
        shape = (V + 1,) * length + (length, V)
        table, drift = spread * rng.normal(size=shape), 2 * rng.normal(size=shape) if timed else None
        return cls(table, drift, [spread * rng.normal(size=shape) for _ in range(labels)])

    @classmethod
    def exact(cls, joint: dict[State, float]) -> TableNet:
        table = np.zeros((V + 1,) * LENGTH + (LENGTH, V))
        denoise = conditionals(joint)
        for z in itertools.product(range(V), repeat=LENGTH):
            guess = denoise(z, math.nan)
            guess[:, MASK] = 1.0  # a network knows nothing of [MASK] being impossible: SUBS has to take it out
            table[z] = np.maximum(guess, -50.0)
        return cls(table)

    def condition(self, sigma: Tensor, label: Tensor | None = None) -> Tensor | None:
        """(B, 2): the squashed noise level and the label."""
        if not self.tables:
            super().condition(sigma, label)  # refuses labels
        if self.drift is None and not self.tables:
            return None
        told = torch.full(sigma.shape, -1.0) if label is None else label.float()
        return torch.stack([squash(sigma), told], -1)

    def forward(self, inputs: NetworkInput) -> tuple[Tensor, None]:
        tokens, cond = inputs.content, inputs.condition
        assert tokens.shape[1] <= self.length
        self.calls.append(len(tokens))
        if inputs.valid is not None:
            tokens = torch.where(inputs.valid, tokens, V)
        digits = nn.functional.pad(tokens, (0, self.length - tokens.shape[1]), value=V).unbind(1)
        hidden = self.table[digits]  # (B, LENGTH, V)
        assert (cond is None) == (self.drift is None and not self.tables)
        for label, table in enumerate(self.tables):
            assert cond is not None and (cond[:, 1] < len(self.tables)).all()
            hidden = torch.where((cond[:, 1] == label)[:, None, None], table[digits], hidden)
        if self.drift is not None:
            assert cond is not None
            hidden = hidden + cond[:, :1, None] * self.drift[digits]
        return hidden[:, : tokens.shape[1]], None

    def head(self, rows: Tensor) -> Tensor:
        return rows

    def denoiser(
        self, name: str = "log-linear", log_x: Callable[[np.ndarray], np.ndarray] = subs, label: int = -1
    ) -> Callable[[State, float], np.ndarray]:
        """The same network for the oracles."""
        table = (self.table.detach() if label < 0 else self.tables[label]).double().numpy()
        drift = None if self.drift is None else self.drift.double().numpy()
        cache: dict[tuple[State, float], np.ndarray] = {}

        def denoise(z: State, t: float) -> np.ndarray:
            key = (z, t if drift is not None else 0.0)
            if key not in cache:
                cond = 0.0 if drift is None else float(squash(torch.tensor(-math.log(ALPHAS[name](t)))))
                cell = z + (V,) * (self.length - len(z))
                cache[key] = log_x(table[cell] + (0.0 if drift is None else cond * drift[cell]))[: len(z)]
            return cache[key]

        return denoise


def squash(sigma: Tensor) -> Tensor:
    """What a time-conditioned table is told: moves over all of 0 < sigma < infinity."""
    return torch.tanh(sigma - 0.7)
