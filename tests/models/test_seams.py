"""Two methods that the package does not have, each from this file alone: bound, sampler and batcher, end to end.

A diffusion whose noise is uniform instead of [MASK] (so what may be written is `free`, not "holds [MASK]"), and a block
diffusion with a time for each block, whose denoiser keeps what it has read of each slot. Truth is enumeration in numpy.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unmask
from oracles.enumeration import CLEAN, TableNet, subs
from oracles.enumeration import V as SIZE
from support.drawing import p_value
from unmask.models.language_model import LanguageModel
from unmask.models.masked import MaskedDiffusion
from unmask.process import bounds
from unmask.process.keys import Keys
from unmask.process.masking import corrupt, posterior
from unmask.process.schedule import DiscreteTime, Polynomial, Schedule, strata
from unmask.sampling import Request, Sampler, Slot, Trajectory, Written, advance_tokens
from unmask.sampling.orders import PlannedTrajectory, Reveal, RevealPlan
from unmask.types import Batch, Ending, State, TokenNats, Vocab

UNCUT = Polynomial(eps=0.0)
STEPS = 3


class Table(nn.Module):
    """Logits for each state, random, and the vocabulary: all that a model needs of a network here."""

    def __init__(self, vocab: Vocab, *shape: int) -> None:
        super().__init__()
        self.vocab = vocab
        generator = torch.Generator().manual_seed(5)
        self.logits = nn.Parameter(1.5 * torch.randn(*shape, generator=generator))


class Toy(LanguageModel):
    """What both models share."""

    schedule: Schedule = UNCUT
    time_conditioned = False
    normalised = True
    carry_over = True

    def denoiser(self) -> Toy:
        return self

    def check(self, request: Request) -> None:
        pass

    def describe(self) -> dict[str, Any]:
        return {"bound": "discrete", "steps": STEPS}

    def advance(self, trajectories: Sequence[Trajectory]) -> list[Written | None]:
        return advance_tokens(self, trajectories)  # type: ignore[arg-type]

    def log_x(self, rows: Tensor) -> Tensor:
        allowed = torch.arange(self.vocab.size) != self.vocab.mask
        return torch.log_softmax(rows.masked_fill(~allowed, -torch.inf), -1)


def estimated(model: LanguageModel, xs: list[tuple[int, ...]], draws: int) -> tuple[np.ndarray, np.ndarray]:
    """(mean, standard error) of the nats of each text."""
    tokens = torch.tensor(xs).repeat_interleave(draws, 0)
    batch = Batch(tokens, torch.arange(len(tokens)), len(tokens))
    with torch.no_grad():
        nats = model.nats(batch, Keys(1)).nats.double().sum(1).view(len(xs), draws).numpy()
    return nats.mean(1), nats.std(1) / math.sqrt(draws)


def assert_is_the_bound(model: LanguageModel, truth: dict[tuple[int, ...], float], draws: int = 2000) -> None:
    """The mean of the nats is the bound, and the bound is one: the sum of exp(-nats) is at most 1."""
    mean, error = estimated(model, list(truth), draws)
    assert (np.abs(mean - list(truth.values())) < 5 * error + 1e-9).all()
    assert np.exp(-np.array(list(truth.values()))).sum() <= 1
    assert np.exp(-mean).sum() <= 1.02


def test_nobody_outside_the_models_asks_which_class_a_model_is():
    """A model says what it can do."""
    source = Path(unmask.__file__).parent
    classes = "MaskedDiffusion|AutoRegressive|Plaid|SimplexDiffusion"
    asks = re.compile(rf"(isinstance|issubclass)\([^)]*\b({classes})\b|type\([^)]*\) (is|==) ({classes})\b")
    files = [path for path in source.rglob("*.py") if path.parent.name != "models"]
    assert len(files) > 100
    assert not [f"{path}: {match.group()}" for path in files for match in asks.finditer(path.read_text())]


# -- uniform noise ---------------------------------------------------------------------------------------------------

N, LENGTH = 3, 2  # tokens 0, 1 and 2; the id of [MASK] is there and never seen
XS = list(itertools.product(range(N), repeat=LENGTH))


class UniformDiffusion(Toy):
    """q(z_t | x) = alpha_t x + (1 - alpha_t)/N, in T steps."""

    carry_over = False

    def __init__(self) -> None:
        super().__init__()
        self.backbone = Table(Vocab(N + 1, N), N, N, LENGTH, N + 1)  # type: ignore[assignment]

    def hidden(self, z: Tensor, t: Tensor, present=None, label=None, queries=None) -> Tensor:
        logits = self.backbone.logits[z[:, 0], z[:, 1]]  # (B, L, V)
        return logits if queries is None else logits.gather(1, queries[..., None].expand(-1, -1, N + 1))

    def nats(self, batch: Batch, keys: Keys) -> TokenNats:
        """T times the divergence of one step from the true posterior, at one step per row."""
        step = torch.floor(strata(batch.index, batch.total, keys) * STEPS).clamp(max=STEPS - 1)
        alpha_s, alpha_t = (1 - (step + i)[:, None, None] / STEPS for i in (0, 1))
        x = nn.functional.one_hot(batch.tokens, N).double()
        uniform = keys.uniform("noise", batch.index, LENGTH, 2)
        noise = (uniform[..., 1] * N).long()
        z = nn.functional.one_hot(torch.where(uniform[..., 0] < alpha_t[..., 0], batch.tokens, noise), N).double()
        prior = torch.full((N,), 1 / N, dtype=torch.float64)
        guess = self.log_x(self.hidden(z.argmax(-1), alpha_t)).exp()[..., :N].double()
        true, said = (posterior(z, of, alpha_s, alpha_t, prior) for of in (x, guess))
        nats = STEPS * (torch.xlogy(true, true) - torch.xlogy(true, said)).sum(-1)
        return TokenNats(nats.float(), batch.weight())


@dataclass(frozen=True)
class Denoising(Sampler):
    """From noise, T times a draw of all positions that are free."""

    def trajectory(self, request: Request, model: Any) -> Trajectory:
        return _Denoising(request, model.vocab)


class _Denoising(Trajectory):
    final = False

    def __init__(self, request: Request, vocab: Vocab) -> None:
        super().__init__(request, vocab)
        noise = (self.key.uniform("prior", [0], len(self.canvas))[0] * N).long()
        self.canvas = torch.where(self.free, noise, self.canvas)

    @property
    def finished(self) -> bool:
        return self.step == STEPS or not self.free.any()

    def due(self) -> Tensor:
        return torch.nonzero(self.free).squeeze(-1)

    def uniform(self, positions: Tensor) -> Tensor:
        return self.key.uniform("step", [self.step], len(self.canvas))[0][positions]

    def law(self, log_x: Tensor, positions: Tensor) -> Tensor:
        alpha_t = torch.tensor(self.step / STEPS, dtype=torch.float64)
        z = nn.functional.one_hot(self.canvas[positions], N).double()
        prior = torch.full((N,), 1 / N, dtype=torch.float64)
        said = posterior(z, log_x[:, :N].exp().double(), alpha_t + 1 / STEPS, alpha_t, prior)
        return nn.functional.pad(said.log(), (0, 1), value=-torch.inf)

    def write(self, positions: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        changes = super().write(positions, tokens)
        self.step += 1
        self.t = 1 - self.step / STEPS
        return changes


def uniform_step(model: UniformDiffusion, z: tuple[int, ...], at: int) -> list[np.ndarray]:
    """p(z_s | z_t) of each position, from Bayes' rule in numpy; the step from `at` to `at - 1` of T."""
    x_hat = np.exp(model.log_x(model.backbone.logits.detach().double()[z]).numpy()[:, :N])
    alpha_t, alpha_s = 1 - at / STEPS, 1 - (at - 1) / STEPS
    out = []
    for position, token in enumerate(z):
        jump = alpha_t / alpha_s * np.eye(N) + (1 - alpha_t / alpha_s) / N  # q(z_t | z_s)
        joint = (alpha_s * x_hat[position] + (1 - alpha_s) / N) * jump[:, token]
        out.append(joint / joint.sum())
    return out


def uniform_bound(model: UniformDiffusion, x: tuple[int, ...]) -> float:
    """Sum over the steps of the expected divergence, position after position."""
    total = 0.0
    for at in range(1, STEPS + 1):
        alpha_t, alpha_s = 1 - at / STEPS, 1 - (at - 1) / STEPS
        for z in XS:
            chance = math.prod(alpha_t * (a == b) + (1 - alpha_t) / N for a, b in zip(z, x, strict=True))
            for position, said in enumerate(uniform_step(model, z, at)):
                jump = alpha_t / alpha_s * np.eye(N) + (1 - alpha_t / alpha_s) / N
                joint = (alpha_s * np.eye(N)[x[position]] + (1 - alpha_s) / N) * jump[:, z[position]]
                true = joint / joint.sum() if joint.sum() else said
                total += chance * sum(q * math.log(q / p) for q, p in zip(true, said, strict=True) if q)
    return total


def uniform_law(model: UniformDiffusion, given: dict[int, int]) -> dict[tuple[int, ...], float]:
    """The law of what is written, all positions drawn anew in each step but those that are given."""
    law = {x: float(all(x[p] == token for p, token in given.items())) for x in XS}
    law = {x: p / sum(law.values()) for x, p in law.items()}
    for at in range(STEPS, 0, -1):
        new = dict.fromkeys(XS, 0.0)
        for z, chance in law.items():
            rows = uniform_step(model, z, at) if chance else []
            for x in XS if chance else ():
                kept = all(x[p] == token for p, token in given.items())
                free = (row[token] for p, (row, token) in enumerate(zip(rows, x, strict=True)) if p not in given)
                new[x] += chance * math.prod(free) * kept
        law = new
    return law


def written(model: LanguageModel, requests: list[Request], batch_size: int) -> list[State]:
    last = {state.row: state for state in model.generate(requests, batch_size)}
    assert all(state.done for state in last.values())
    return [last[row] for row in range(len(requests))]


def test_uniform_noise_has_its_bound():
    model = UniformDiffusion()
    assert_is_the_bound(model, {x: uniform_bound(model, x) for x in XS})


@pytest.mark.parametrize("given", [{}, {0: 2}, pytest.param({1: 0}, marks=pytest.mark.slow)], ids=str)
def test_uniform_noise_is_sampled_where_the_canvas_is_free(given):
    """The canvas holds ordinary tokens everywhere: only `free` says what may be written."""
    model, n = UniformDiffusion(), 800
    canvas = torch.tensor([given.get(p, 1) for p in range(LENGTH)])
    free = torch.tensor([p not in given for p in range(LENGTH)])
    requests = [Request(i, canvas, Denoising(), Keys(i), free=free) for i in range(n)]
    states = written(model, requests, 500)
    assert p_value(Counter(tuple(state.canvas.tolist()) for state in states), uniform_law(model, given)) > 1e-3
    assert {state.calls for state in states} == {STEPS}
    assert all(state.fixed == LENGTH for state in states)


def test_uniform_noise_stops_in_the_batcher():
    """A text that ends early makes room for the next; nobody outside the batcher looks at it."""
    model = UniformDiffusion()

    def stop(state: State) -> Ending | None:
        return Ending("", "stop", 1) if state.row == 1 and state.step == 1 else None

    free = torch.tensor([True, True])
    requests = [
        Request(i, torch.zeros(2, dtype=torch.int64), Denoising(), Keys(i), free=free, stop=stop) for i in range(3)
    ]
    states = list(model.generate(requests, batch_size=1))
    assert [(state.row, state.done) for state in states] == [
        (0, False), (0, False), (0, True), (1, False), (1, True), (2, False), (2, False), (2, True),
    ]  # fmt: skip
    assert states[4].ending == Ending("", "stop", 1) and states[2].ending is None


# -- blocks ----------------------------------------------------------------------------------------------------------

BLOCK, BLOCKS, TOKENS, MASK = 2, 2, 2, 2  # two blocks of two tokens, 0 or 1
TEXTS = list(itertools.product(range(TOKENS), repeat=BLOCK * BLOCKS))
NOTHING_READ = TOKENS**BLOCK  # the first block comes after nothing; else a block comes after one of four


@dataclass(frozen=True)
class TimePerBlock(DiscreteTime):
    """T steps, and each block of a row is in a step of its own."""

    block: int = BLOCK

    def uniforms(self, index: Tensor, total: int, length: int, keys: Keys, stratified: bool) -> Tensor:
        return keys.uniform("time", index, length // self.block).repeat_interleave(self.block, 1)


class BlockDiffusion(Toy):
    """A block is masked diffusion given the clean blocks before it (here: the last one)."""

    cached = True

    def __init__(self) -> None:
        super().__init__()
        vocab = Vocab(TOKENS + 1, MASK)
        self.backbone = Table(vocab, NOTHING_READ + 1, 3, 3, BLOCK, TOKENS + 1)  # type: ignore[assignment]
        self.law = TimePerBlock(2)
        self.slots: dict[int, list[int]] = {}  # what was read of each: a number for each clean block
        self.blocks_read = 0

    def logits(self, before: Tensor, z: Tensor) -> Tensor:
        """(N, BLOCK, V) of noisy blocks z (N, BLOCK) after blocks with the numbers `before` (N,)."""
        return self.backbone.logits[before, z[:, 0], z[:, 1]]

    def nats(self, batch: Batch, keys: Keys) -> TokenNats:
        uniform = self.law.uniforms(batch.index, batch.total, batch.tokens.shape[1], keys, True)
        draw = self.law.draw(uniform, self.schedule)
        assert draw.t.shape == batch.tokens.shape
        z = corrupt(batch.tokens, draw.per_position(draw.keep), keys.uniform("mask", batch.index, 4), MASK)
        numbers = batch.tokens.view(-1, BLOCKS, BLOCK) @ torch.tensor([TOKENS, 1])
        before = torch.cat([torch.full((len(z), 1), NOTHING_READ), numbers[:, :-1]], 1)
        logits = self.logits(before.flatten(), z.view(-1, BLOCK)).view(*z.shape, -1)
        row, column = torch.nonzero(z == MASK, as_tuple=True)
        nll = -self.log_x(logits[row, column]).gather(-1, batch.tokens[row, column, None]).squeeze(-1)
        value = bounds.nats(draw.at(row, column), nll, torch.ones_like(nll)).float()
        return TokenNats(torch.zeros(z.shape).index_put((row, column), value), batch.weight())

    def hidden(
        self, z: Tensor, t: Tensor, present=None, label=None, queries=None, slots: Sequence[Slot] = ()
    ) -> Tensor:
        """Of each slot only what is new is read: the blocks that were finished since its last call."""
        assert queries is not None and len({slot.number for slot in slots}) == len(slots)
        rows = []
        for row, columns, slot in zip(z, queries, slots, strict=True):
            now = int(columns[0]) // BLOCK  # what follows the first may be padding
            read = self.slots.setdefault(slot.number, [])
            del read[slot.kept // BLOCK :]
            for block in range(len(read), now):
                read.append(int(row[block * BLOCK : (block + 1) * BLOCK] @ torch.tensor([TOKENS, 1])))
                self.blocks_read += 1
            before = torch.tensor([read[now - 1] if now else NOTHING_READ])
            logits = self.logits(before, row[None, now * BLOCK : (now + 1) * BLOCK])[0]
            rows.append(logits[(columns - now * BLOCK).clamp(min=0)])
        return torch.stack(rows)

    def release(self, trajectory: Trajectory) -> None:
        del self.slots[trajectory.slot]


@dataclass(frozen=True)
class BlockAfterBlock(Sampler):
    """Each block by the reveal plan, from left to right."""

    steps: int = 2

    def trajectory(self, request: Request, model: Any) -> Trajectory:
        free, events = request.writable(model.vocab), []
        alphas = model.schedule.alpha(1 - torch.arange(self.steps + 1, dtype=torch.float64) / self.steps)
        for start in range(0, len(free), BLOCK):
            inside = torch.zeros_like(free)
            inside[start : start + BLOCK] = free[start : start + BLOCK]
            reveal = RevealPlan.draw(inside, alphas, request.key.fork(f"block {start}"))
            for step in sorted(set(reveal.tolist()) - {-1}):
                events.append(Reveal(len(events), 1 - step / self.steps, torch.nonzero(reveal == step).squeeze(-1)))
        return PlannedTrajectory(request, model.vocab, events)


def block_log_x(model: BlockDiffusion) -> Callable[[int, tuple[int, ...]], np.ndarray]:
    def log_x(before: int, z: tuple[int, ...]) -> np.ndarray:
        return model.log_x(model.backbone.logits.detach().double()[before][z]).numpy()

    return log_x


def block_bound(model: BlockDiffusion, x: tuple[int, ...]) -> float:
    """Block after block: two steps, from all masked through each set of masks."""
    log_x, total, before = block_log_x(model), 0.0, NOTHING_READ
    for start in range(0, len(x), BLOCK):
        block = x[start : start + BLOCK]
        for keep, u in ((0.0, 0.5), (0.5, 1.0)):  # of the steps at t = 1 and t = 1/2
            for masked in itertools.product((False, True), repeat=BLOCK):
                z = tuple(MASK if hidden else token for hidden, token in zip(masked, block, strict=True))
                chance = math.prod(1 - keep if hidden else keep for hidden in masked)
                said = log_x(before, z)
                total -= chance * u * sum(said[i, block[i]] for i in range(BLOCK) if masked[i])
        before = block[0] * TOKENS + block[1]
    return total


def block_law(model: BlockDiffusion) -> dict[tuple[int, ...], float]:
    """Of each block: both tokens at once with chance 1/2, else either first."""
    log_x, law = block_log_x(model), {}
    for x in TEXTS:
        p, before = 1.0, NOTHING_READ
        for start in range(0, len(x), BLOCK):
            a, b = x[start : start + BLOCK]
            none = np.exp(log_x(before, (MASK, MASK)))
            left, right = np.exp(log_x(before, (a, MASK)))[1, b], np.exp(log_x(before, (MASK, b)))[0, a]
            p *= 0.5 * none[0, a] * none[1, b] + 0.25 * none[0, a] * left + 0.25 * none[1, b] * right
            before = a * TOKENS + b
        law[x] = p
    return law


def test_blocks_have_their_bound():
    model = BlockDiffusion()
    assert_is_the_bound(model, {x: block_bound(model, x) for x in TEXTS})


def test_blocks_are_sampled_and_each_is_read_once():
    model, n = BlockDiffusion(), 900
    requests = [Request(i, torch.full((4,), MASK), BlockAfterBlock(), Keys(i)) for i in range(n)]
    states = written(model, requests, 7)
    assert p_value(Counter(tuple(state.canvas.tolist()) for state in states), block_law(model)) > 1e-3
    assert (
        model.blocks_read == n and not model.slots
    )  # one finished block each, and nothing is kept of those that ended


def test_a_block_that_is_given_is_read_and_not_written():
    model, law = BlockDiffusion(), block_law(BlockDiffusion())
    canvas, n = torch.tensor([1, 0, MASK, MASK]), 600
    states = written(model, [Request(i, canvas, BlockAfterBlock(), Keys(i)) for i in range(n)], 64)
    given = {x: p for x, p in law.items() if x[:2] == (1, 0)}
    given = {x: p / sum(given.values()) for x, p in given.items()}
    assert p_value(Counter(tuple(state.canvas.tolist()) for state in states), given) > 1e-3


# -- a time for each position, in masked diffusion -------------------------------------------------------------------


def test_masked_diffusion_takes_a_time_for_each_position():
    """A network that sees the position alone: then every draw of times gives -log x̂(x), whatever the steps."""
    rng = np.random.default_rng(3)
    alone = rng.normal(size=(3, SIZE))
    table = np.broadcast_to(alone, (SIZE + 1,) * 3 + (3, SIZE)).copy()
    model = MaskedDiffusion(TableNet(table), UNCUT, TimePerBlock(4, block=1)).eval()
    log_x = np.stack([subs(row) for row in alone])
    truth = {x: -sum(log_x[i, token] for i, token in enumerate(x)) for x in itertools.product(CLEAN, repeat=3)}
    mean, error = estimated(model, list(truth), 1500)
    assert (np.abs(mean - list(truth.values())) < 5 * error).all()
    index = torch.arange(64)
    uniform = model.law.uniforms(index, 64, 3, Keys(0), True)
    assert (model.law.draw(uniform, UNCUT).t.std(1) > 0).float().mean() > 0.5  # the times of a row differ
