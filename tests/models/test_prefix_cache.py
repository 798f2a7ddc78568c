"""What is kept of sequences that have ended: the same texts as without it, nothing is read twice, and it is bounded."""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch

from oracles.enumeration import CLEAN, MASK
from oracles.enumeration import VOCAB as FEW
from support.block_models import block_model, each_stream, every_network
from support.causal_nets import causal
from unmask.models.autoregressive import AutoRegressive
from unmask.models.language_model import LanguageModel
from unmask.models.prefix_cache import KeptPrefix, PrefixCache
from unmask.process.keys import Keys
from unmask.sampling import BlockByBlock, LeftToRight, Request, RevealPlan, Sampler, Speculative, Windows

PLENTY = 2**30
BYTES = 2 * 2 * 3 * 4  # of a column below: keys and values, two heads of three numbers of four bytes


def prefix(*tokens: int, unit: int = 1) -> KeptPrefix:
    """A sequence in which the keys of a token are its number."""
    keys = torch.tensor(tokens, dtype=torch.float32)[None, :, None].expand(2, -1, 3)
    return KeptPrefix(torch.tensor(tokens), unit, [(keys, keys + 1)])


def found(cache: PrefixCache, *tokens: int, unit: int = 1) -> int:
    hit = cache.longest(torch.tensor(tokens), unit)
    return 0 if hit is None else hit[1]


# -- the records -----------------------------------------------------------------------------------------------------


def test_the_longest_beginning_in_the_same_units():
    cache = PrefixCache(PLENTY)
    for one in (prefix(1, 2, 3, 4), prefix(1, 2, 9, 9, 9), prefix(1, 2, 3, 4, 5, 6, unit=4)):
        cache.add(one)
    assert found(cache, 1, 2, 3, 7) == 3 and found(cache, 1, 2, 9, 9) == 4 and found(cache, 1, 2, 3, 4, 5) == 4
    assert found(cache, 7, 2) == found(cache) == 0
    assert found(cache, 1, 2, 3, 4, 5, 6, unit=4) == 4  # whole blocks only
    assert found(cache, 1, 2, 3, 7, unit=4) == found(cache, 1, 2, 3, 4, unit=2) == 0


def test_a_longer_sequence_replaces_what_it_begins_with():
    cache = PrefixCache(PLENTY)
    for one in (prefix(1, 2), prefix(1, 2, 3), prefix(1), prefix(1, 2, 4)):
        cache.add(one)
    assert len(cache) == 2 and cache.bytes == 6 * BYTES and cache.dropped == 0


def test_the_least_recently_used_are_dropped():
    cache = PrefixCache(6 * BYTES)
    cache.add(prefix(1, 1, 1))
    cache.add(prefix(2, 2))
    assert found(cache, 1, 1, 5) == 2  # so it was used after the other
    cache.add(prefix(3, 3, 3))
    assert found(cache, 2, 2) == 0 and found(cache, 1, 1, 1) == found(cache, 3, 3, 3) == 3
    assert cache.bytes == 6 * BYTES and cache.dropped == 1
    cache.add(prefix(*range(7)))  # never fits, and takes nobody's place
    assert len(cache) == 2 and cache.dropped == 2
    cache.resize(3 * BYTES)
    assert len(cache) == 1 and found(cache, 3, 3, 3) == 3 and cache.bytes == 3 * BYTES
    cache.resize(0)
    assert len(cache) == cache.bytes == 0


def test_what_is_kept_is_nobody_elses_memory():
    batch = torch.arange(2 * 2 * 5 * 3, dtype=torch.float32).view(2, 2, 5, 3)
    cache, truth = PrefixCache(PLENTY), batch[1, :, :4].clone()
    cache.add(KeptPrefix(torch.tensor([1, 2, 3, 4]), 1, [(batch[1, :, :4], batch[1, :, :4])]))
    batch.fill_(-1)
    kept, n = cache.longest(torch.tensor([1, 2, 3]), 1)
    ((keys, values),) = kept.first(n)
    assert torch.equal(keys[0], truth[:, :3])
    keys.fill_(-1), values.fill_(-1)
    assert torch.equal(kept.columns[0][0], truth)
    assert keys.untyped_storage().nbytes() == 3 * BYTES // 2  # and no more than asked for


# -- in a batcher ----------------------------------------------------------------------------------------------------


@dataclass
class Talk:
    """Random conversations with one batcher: every text is compared with what a new batcher writes alone."""

    model: LanguageModel
    rng: random.Random
    prefixes: PrefixCache = field(default_factory=lambda: PrefixCache(PLENTY))
    texts: list[list[int]] = field(default_factory=lambda: [[]])
    rows: int = 0

    def __post_init__(self) -> None:
        self.batcher = self.model.batcher(4, prefixes=self.prefixes)

    def request(self, sampler: Sampler, prompt: object = None) -> Request:
        """It continues one of the texts so far, from anywhere in it."""
        before = self.rng.choice(self.texts)
        given = [*before[: self.rng.randint(0, len(before))], *self.rng.choices(CLEAN, k=self.rng.randint(1, 4))][:14]
        self.rows += 1
        canvas = torch.tensor(given + [MASK] * self.rng.randint(1, 6))
        return Request(self.rows, canvas, sampler, Keys(self.rows), prompt=prompt or SimpleNamespace())

    def again(self, request: Request) -> Request:
        """Another sample of a request, which shares its prompt."""
        self.rows += 1
        return Request(self.rows, request.canvas, request.sampler, Keys(self.rows), prompt=request.prompt)

    def run(self, requests: list[Request], stopped: bool = False) -> None:
        for request in requests:
            self.batcher.add(request)
        for _ in range(self.rng.randint(0, 4)) if stopped else ():
            self.batcher.step()
        for request in requests if stopped else ():
            self.batcher.drop(request.row)
        ours = self.states(self.batcher)
        for request in () if stopped else requests:
            alone = self.model.batcher(1)
            alone.add(request)
            for (canvas, log_probs), (other, expected) in zip(
                ours[request.row], self.states(alone)[request.row], strict=True
            ):
                assert torch.equal(canvas, other)
                torch.testing.assert_close(log_probs, expected, rtol=1e-4, atol=1e-5)
            self.texts.append(ours[request.row][-1][0].tolist())
        assert not self.batcher.busy and not self.batcher.model.read

    def states(self, batcher):
        out: dict[int, list] = {}
        while batcher.busy:
            for state, log_probs in batcher.step():
                assert state.error is None
                out.setdefault(state.row, []).append((state.canvas, log_probs))
        return out


def follow(talk: Talk, samplers: list[Sampler]) -> None:
    for turn in range(25):
        requests = [talk.request(talk.rng.choice(samplers)) for _ in range(talk.rng.randint(1, 3))]
        if turn % 3 == 0:
            requests += [talk.again(requests[0]) for _ in range(4)]  # one of them has to wait for a place
        talk.run(requests, stopped=turn % 5 == 4)
        kept = talk.prefixes._kept
        assert talk.prefixes.bytes == sum(one.bytes for one in kept) <= talk.prefixes.limit
        if turn == 15:
            talk.prefixes.resize(talk.prefixes.bytes // 3)
    assert talk.prefixes.reused > 50 and talk.prefixes.dropped


@every_network
@each_stream
@pytest.mark.parametrize("seed", [0, 1])
def test_blocks_write_the_same(network, clean, seed):
    samplers = [BlockByBlock(RevealPlan(2), size) for size in (1, 2, 4)]
    samplers += [BlockByBlock(RevealPlan(2), 32), Windows(BlockByBlock(RevealPlan(2), 2), 8, 4)]
    samplers += [Speculative(4)] if clean == "tokens" else []
    follow(Talk(block_model(network, clean), random.Random(seed)), samplers)


@pytest.mark.parametrize("start", [True, False])
@pytest.mark.parametrize("seed", [0, 1])
def test_autoregressive_models_write_the_same(start, seed):
    model = AutoRegressive(causal(vocab=FEW), start).eval()
    follow(Talk(model, random.Random(seed)), [LeftToRight(), Windows(LeftToRight(), 8, 4)])


@functools.cache
def models() -> dict[str, LanguageModel]:
    return {"ar": AutoRegressive(causal(vocab=FEW)).eval(), "blocks": block_model("llama", "blocks")}


def columns_read(model: LanguageModel, monkeypatch) -> list[tuple[int, int]]:
    """Rows and columns of every network call from now on."""
    read, forward = [], type(model.backbone).forward

    def counting(self, *args, **more):
        read.append(tuple(args[0].tokens.shape))
        return forward(self, *args, **more)

    monkeypatch.setattr(type(model.backbone), "forward", counting)
    return read


@pytest.mark.parametrize(("kind", "sampler"), [("ar", LeftToRight()), ("blocks", BlockByBlock(RevealPlan(1), 2))])
def test_only_what_is_new_is_read_and_once_for_all_samples(kind, sampler, monkeypatch):
    model, prefixes = models()[kind], PrefixCache(PLENTY)
    batcher, rng = model.batcher(8, prefixes=prefixes), random.Random(1)
    history = rng.choices(CLEAN, k=40)
    read = columns_read(model, monkeypatch)

    def ask(row: int, given: list[int], n: int = 1) -> None:
        prompt, canvas = SimpleNamespace(), torch.tensor([*given, MASK, MASK])
        for i in range(n):
            batcher.add(Request(row + i, canvas, sampler, Keys(row + i), prompt=prompt))
        read.clear()
        list(batcher.run())

    ask(0, history)
    assert read[0][1] >= 40
    new = rng.choices(CLEAN, k=6)
    for given, n, reused in (([*history, *new], 1, 40), ([*history[:20], *new, *new], 5, 20)):
        prefixes.reused = 0
        ask(10, given, n)
        assert prefixes.reused == n * reused
        extra = 0 if kind == "ar" else 2  # the block that is written
        assert sum(rows * columns for rows, columns in read[:1]) <= len(given) - reused + extra
        assert all(rows * columns <= 5 * 4 for rows, columns in read[1:])  # the rest of the samples is short


def test_a_sequence_that_fails_is_not_kept():
    model = block_model("dit")
    prefixes = PrefixCache(PLENTY)
    batcher = model.batcher(1, prefixes=prefixes)
    batcher.add(Request(0, torch.tensor([*CLEAN, *CLEAN, MASK]), BlockByBlock(RevealPlan(1), 2), Keys(0)))
    with torch.no_grad():
        next(model.backbone.parameters()).fill_(float("nan"))
    states = batcher.step()
    assert states[0][0].error is not None and len(prefixes) == 0


def test_labels_and_recurrent_states_are_not_shared():
    model = block_model("dit", n_labels=2)
    prefixes = PrefixCache(PLENTY)
    batcher = model.batcher(1, prefixes=prefixes)
    for row, label in enumerate((0, 1)):
        canvas = torch.tensor([*CLEAN, *CLEAN, MASK])
        batcher.add(Request(row, canvas, BlockByBlock(RevealPlan(1), 2), Keys(row), label=label, guidance=2.0))
    list(batcher.run())
    assert len(prefixes) == 0 and not batcher.model.read
