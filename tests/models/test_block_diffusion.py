"""Block diffusion: its likelihood at every block size, by enumeration and block by block; its training; its config."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from oracles.blocks import Reader, block_bound, block_law, chain_rule, hidden_sets, read_block
from oracles.enumeration import CLEAN, MASK, VOCAB, State, continuous_nodes, stretches
from oracles.laws import random_order_law
from support.block_models import block_model, each_network, each_stream, every_network
from support.drawing import finish, keys_of
from support.helpers import tiny_config
from unmask.config import Config, load_yaml, parse
from unmask.models import registry
from unmask.models.block_diffusion import BlockDiffusion
from unmask.models.language_model import LanguageModel
from unmask.models.masked import MaskedDiffusion
from unmask.process.blocks import block_batch
from unmask.process.counts import hidden_sets as draw_sets
from unmask.process.keys import Keys
from unmask.process.parameterization import Mean
from unmask.process.schedule import ClippedTime, ContinuousTime
from unmask.sampling import FirstHitting, RevealPlan
from unmask.types import Batch, UserError, Vocab

LENGTH, CUTOFF = 4, 0.1
XS: list[State] = list(itertools.product(CLEAN, repeat=LENGTH))
FEW = [XS[i] for i in (5, 33, 70)]
TIMES, COUNTS = ["objective.loss=bound"], ["objective.loss=bound", "objective.times=counts"]
PAIRS = [*COUNTS, "objective.pairs=true"]
OBJECTIVES = {
    "times": TIMES,
    "counts": COUNTS,
    "pairs": PAIRS,
    "clipped": [*COUNTS, "objective.clip=[0.2,0.7]"],
    "plain": ["objective.loss=cross-entropy"],
    "plain counts": ["objective.loss=cross-entropy", "objective.times=counts"],
    "plain pairs": ["objective.loss=cross-entropy", "objective.times=counts", "objective.pairs=true"],
}
each_size = pytest.mark.parametrize("size", [1, 2, 3, 4])


def batch_of(texts: Iterable[State], **more) -> Batch:
    tokens = torch.tensor(list(texts))
    return Batch(tokens, torch.arange(len(tokens)), len(tokens), **more)


def flags(*rows: str) -> Tensor:
    return torch.tensor([[c == "1" for c in row] for row in rows])


def nats(model: LanguageModel, batch: Batch, keys: Keys | None = None) -> Tensor:
    with torch.no_grad():
        return model.nats(batch, keys or Keys(0)).nats.double()


def trained_on(model: BlockDiffusion, size: int | None) -> BlockDiffusion:
    """The same weights in training, with blocks that need not divide a row."""
    settings = (model.backbone, model.schedule, model.law, model.objective)
    return BlockDiffusion(*settings, block=size, clean=model.clean).eval()


# -- the likelihood --------------------------------------------------------------------------------------------------


@every_network
@each_stream
def test_blocks_of_one_token_are_the_chain_rule(network, clean):
    """One call for each position, clean tokens and a single [MASK]; and the chances of all texts sum to 1."""
    model = block_model(network, clean, size=1)
    reader = Reader(model, 1)
    got = nats(model, batch_of(XS))
    truth = torch.tensor([chain_rule(reader, x) for x in XS], dtype=torch.float64)
    assert got.std(0).min() > 0.2
    torch.testing.assert_close(got, truth, rtol=1e-6, atol=2e-6)
    assert float(torch.exp(-got.sum(1)).sum()) == pytest.approx(1, abs=1e-6)
    assert model.exact and torch.equal(got, nats(model, batch_of(XS), Keys(9, 5)))
    assert not block_model(network, clean, size=2).exact


@every_network
@each_stream
@each_size
def test_two_streams_are_block_by_block(network, clean, size):
    """Any z, also in rows that end early, whatever stands after their end."""
    model = block_model(network, clean).in_blocks(size)
    g = torch.Generator().manual_seed(size)
    x = torch.tensor(CLEAN)[torch.randint(3, (3, 7), generator=g)]
    z = torch.where(torch.rand(3, 7, generator=g) < 0.5, MASK, x)
    present = torch.arange(7) < torch.tensor([7, 6, 4])[:, None]
    got = model.hidden(z, torch.ones(3), present, clean=torch.where(present, x, 0))
    alone = model.hidden(z[:1], torch.ones(1), clean=x[:1])
    some = model.hidden(z, torch.ones(3), present, queries=torch.tensor([[3, 0], [5, 5], [2, 1]]), clean=x)
    for row, n in enumerate((7, 6, 4)):
        parts = [
            read_block(model, [*x[row, :at].tolist(), *z[row, at : min(at + size, n)].tolist()], at, size)
            for at in range(0, n, size)
        ]
        torch.testing.assert_close(got[row, :n], torch.cat(parts), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(alone[0], got[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(some[:, 0], got[[0, 1, 2], [3, 5, 2]], rtol=1e-5, atol=1e-5)


def test_the_clean_stream_by_tokens_does_not_depend_on_the_block_size():
    """What a first block says after a clean prefix is the same law, whether the prefix was read in blocks or not."""
    x, z = torch.tensor([[0, 3, 2, 2]]), torch.tensor([[0, 3, MASK, 2]])
    by_tokens, by_blocks = (block_model("dit", clean) for clean in ("tokens", "blocks"))
    for model, same in ((by_tokens, True), (by_blocks, False)):
        two = model.hidden(z, torch.ones(1), clean=x)[0, 2:]
        alone = read_block(model, [0, 3, MASK, 2], 2, 1)
        assert torch.allclose(two, alone, atol=1e-5) is same


@each_network
def test_labels_reach_every_block(network):
    model = block_model(network, n_labels=2)
    x, z = torch.tensor([[0, 3, 2, 2]] * 3), torch.tensor([[0, MASK, MASK, MASK]] * 3)
    got = model.hidden(z, torch.ones(3), label=torch.tensor([0, 1, -1]), clean=x)
    for row, label in enumerate((0, 1, -1)):
        truth = read_block(model, [0, 3, MASK, MASK], 2, 2, label)
        torch.testing.assert_close(got[row, 2:], truth, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(got[0], got[1], atol=1e-3)


# -- one block is MDLM -----------------------------------------------------------------------------------------------


@each_network
@pytest.mark.parametrize("size", ["full", 4])
def test_a_single_block_is_mdlm_bit_for_bit(network, size):
    for name, settings in OBJECTIVES.items():
        model = block_model(network, "tokens", *settings, size=size)
        mdlm = MaskedDiffusion(model.backbone, model.schedule, model.law, Mean(), model.objective).eval()
        batch = batch_of(XS[::7], present=flags(*["1111", "1110", "1100"] * 4))
        for step in range(2):
            keys = Keys(1, step)
            assert torch.equal(model.nats(batch, keys).nats, mdlm.nats(batch, keys).nats)
            for ours, theirs in zip(model.loss(batch, keys), mdlm.loss(batch, keys), strict=True):
                assert torch.equal(ours, theirs), name
    assert not torch.equal(trained_on(model, 2).nats(batch, keys).nats, mdlm.nats(batch, keys).nats)
    for plan in (RevealPlan(3), FirstHitting()):
        canvases = [[MASK] * 4, [0, MASK, MASK, 2], [MASK] * 3]
        ours, theirs = (finish(each, canvases, plan, keys_of(3)) for each in (model, mdlm))
        assert [state.canvas.tolist() for state in ours] == [state.canvas.tolist() for state in theirs]


# -- the bound -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Scripted(Keys):
    """Keys that say what they are told: the stratum of all blocks, and the uniforms of positions."""

    place: float = 0.0
    positions: Tensor | None = None

    def permute(self, purpose: str, index, total: int) -> np.ndarray:
        return np.full(tuple(index.shape), self.place * total)

    def uniform(self, purpose: str, index, *shape: int) -> Tensor:
        value = torch.zeros(()) if purpose == "time" or self.positions is None else self.positions
        return value.double().expand(index.numel(), *shape).view(*index.shape, *shape)  # of all alike, or of each


def mean_nats(model: BlockDiffusion, x: State) -> float:
    """The mean over all masks of each block and, by quadrature, over its time."""
    size, length, total = model.block_size or len(x), len(x), 0.0
    patterns = torch.tensor(list(itertools.product((False, True), repeat=size)))
    assert isinstance(model.law, ContinuousTime)
    uniform, weight, last = continuous_nodes(model.schedule, model.law, 8)  # the integrand is a polynomial
    for u, w in [(0.0, last), *zip(uniform.tolist(), weight.tolist(), strict=True)]:
        hidden = patterns.repeat(1, -(-length // size))[:, :length]
        keys = Scripted(0, 0, u, hidden * (1 - 1e-9))
        rows = nats(model, batch_of([x] * len(patterns)), keys)
        keep = model.law.draw(torch.tensor([u], dtype=torch.float64), model.schedule).keep
        chance = torch.where(hidden, 1 - keep, keep)
        for at in range(0, length, size):
            end = min(at + size, length)
            total += w * float((rows[:, at:end].sum(1) * chance[:, at:end].prod(1)).sum()) / 2 ** (at + size - end)
    return total


@each_network
@each_stream
@each_size
def test_the_mean_of_nats_is_the_bound_of_enumeration(network, clean, size):
    model = block_model(network, clean, *TIMES, f"objective.cutoff={CUTOFF}").in_blocks(size)
    for x in FEW[: 1 if network == "modern" else 3]:
        truth = block_bound(Reader(model, size), x, (CUTOFF, 1.0))
        found = float(nats(model, batch_of([x])).sum()) if size == 1 else mean_nats(model, x)
        assert found == pytest.approx(truth, rel=1e-5)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_chances_that_a_bound_promises_sum_to_at_most_1(size):
    """And no bound is below -log p of the process it bounds, first-hitting in every block."""
    reader = Reader(block_model(), size)
    for rates in ((CUTOFF, 1.0), (0.0, 1.0)):
        promised = {x: math.exp(-block_bound(reader, x, rates)) for x in XS}
        assert sum(promised.values()) <= 1 + 1e-9
        assert (sum(promised.values()) > 1 - 1e-6) == (size == 1)
    law = block_law(reader, (MASK,) * LENGTH, random_order_law)
    assert sum(law.values()) == pytest.approx(1)
    assert all(promised[x] <= law[x] * (1 + 1e-9) for x in XS)


ROWS = {  # what may be hidden, and what counts; the last row is one token shorter
    "whole": ("1111", "1111"),
    "given": ("1011", "1011"),
    "scored": ("1111", "0110"),
    "a block that is given": ("0011", "0011"),
    "short": ("111", "110"),
}


def row_of(x: State, free: str, counts: str) -> Batch:
    """One row, filled up with what does not exist."""
    rest = LENGTH - len(free)
    present, given = "1" * len(free) + "0" * rest, "".join("10"[int(c)] for c in free) + "0" * rest
    return batch_of([x], present=flags(present), given=flags(given), scored=flags(counts + "0" * rest))


def mean_loss(model: BlockDiffusion, batch: Batch) -> tuple[float, float]:
    """The means of (loss, weight) over all that is drawn: one place in [0, 1) for all blocks, the order of positions.

    Costs of blocks add up, so that it does not matter whether they draw together.
    """
    objective, size = model.objective, model.block_size or LENGTH
    law = objective.law or model.law
    blocks = block_batch(batch, size)

    def numbers(place: float) -> list[int]:
        drawn = draw_sets(
            blocks,
            Scripted(0, 0, place, torch.full((size,), 0.5)),
            law,
            model.schedule,
            weighted=not objective.cross_entropy,
            pairs=objective.pairs,
        )
        return drawn[0].sum(1).tolist()

    orders = torch.tensor(list(itertools.permutations([(i + 0.5) / size for i in range(size)])))
    rows = replace(batch.rows(torch.zeros(len(orders), dtype=torch.int64)), total=1)  # one for every order
    positions = orders.repeat_interleave(len(blocks), 0)
    total = np.zeros(2)
    for chance, place in stretches(numbers):
        with torch.no_grad():
            found = model.loss(rows, Scripted(0, 0, place, positions if size > 1 else torch.zeros(1)))
        total += chance / len(orders) * np.array([float(each) for each in found])
    return float(total[0]), float(total[1])


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name not in ("times", "plain")])
@each_size
def test_the_mean_of_the_loss_by_counts(name, size):
    """The bound of the blocks, a part of it where it is clipped, or every number of masks in a block alike."""
    model = trained_on(block_model("dit", "tokens", *OBJECTIVES[name], f"objective.cutoff={CUTOFF}"), size)
    for kind, (free, counts) in ROWS.items():
        x = FEW[1][: len(free)]
        loss, weight = mean_loss(model, row_of(FEW[1], free, counts))
        reader = Reader(model, size)
        if "plain" not in name:
            rates = (0.2, 0.7) if name == "clipped" and size > 1 else (CUTOFF, 1.0)
            truth = block_bound(reader, x, rates, rates[1] == 1, free, counts)
            assert (loss, weight) == pytest.approx((truth, counts.count("1")), rel=2e-5, abs=1e-6), kind
            continue
        sums = np.zeros(2)
        for n, m, counted, cost in hidden_sets(reader, x, free, counts):
            drawn = (1 + (n < m and "pairs" in name)) / m / math.comb(m, n)  # of a pair, a set or its complement
            sums += drawn * cost, drawn * counted
        assert (loss, weight) == pytest.approx(tuple(sums), rel=2e-5, abs=1e-6), kind


def test_a_clipped_range_is_one_of_training_only():
    model = block_model("dit", "tokens", *OBJECTIVES["clipped"])
    assert model.objective.law == ClippedTime(0.2, 0.7)
    plain = block_model("dit", "tokens", *TIMES)
    assert torch.equal(nats(model, batch_of(XS)), nats(plain, batch_of(XS)))


# -- training --------------------------------------------------------------------------------------------------------

MIXTURE = "block.mixture={1: 0.2, 2: 0.3, full: 0.5}"
LARGER = Vocab(11, 4, pad=0)


def text(rows: int, length: int = 8, padded: bool = True) -> Batch:
    tokens = torch.randint(5, 11, (rows, length), generator=torch.Generator().manual_seed(3))
    there = torch.arange(length) < (torch.arange(rows) % length + 1 if padded else torch.full((rows,), length))[:, None]
    return Batch(tokens, torch.arange(rows), rows, scored=there, present=there)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_batch_may_be_cut_in_any_way(name):
    model = block_model("modern", "tokens", *OBJECTIVES[name], MIXTURE, length=8, vocab=LARGER)
    batch = text(13)
    with torch.no_grad():
        for step in range(4):  # three sizes
            keys = Keys(0, step)
            whole = [float(each) for each in model.loss(batch, keys)]
            for cut in ([0, 7, 13], [0, 1, 5, 12, 13]):
                shares = [batch.rows(torch.arange(a, b)) for a, b in itertools.pairwise(cut)]
                parts = [[float(each) for each in model.loss(share, keys)] for share in shares]
                assert np.sum(parts, 0).tolist() == pytest.approx(whole, rel=1e-5)


def test_a_step_of_a_mixture_is_one_of_its_sizes():
    model, batch, seen = block_model("dit", "tokens", *PAIRS, MIXTURE), batch_of(XS), []
    for step in range(8):
        size = model.block_of(step)
        alone = trained_on(model, size).loss(batch, Keys(0, step))
        assert torch.equal(model.loss(batch, Keys(0, step))[0], alone[0])
        seen.append(size)
    assert set(seen) == {1, 2, None} and model.block_size == 2  # by which it is scored


def test_any_stretch_of_steps_has_the_shares_of_the_mixture():
    model = block_model("dit", "tokens", MIXTURE)
    sizes = [model.block_of(step) for step in range(3000)]
    for begin, end in ((0, 3000), (0, 20), (700, 760), (2111, 2311)):
        for size, share in {1: 0.2, 2: 0.3, None: 0.5}.items():
            assert abs(sizes[begin:end].count(size) - share * (end - begin)) < 2.5
    shares = block_model("dit", "tokens", "block.mixture={2: 3, 4: 1}")  # of a sum that is not 1
    assert [shares.block_of(step) for step in range(400)].count(2) == pytest.approx(300, abs=2)
    only = block_model("dit", "tokens", size=2)
    assert {only.block_of(step) for step in range(50)} == {2}


def test_a_block_as_long_as_a_row_is_the_whole_row():
    """By its name, too: one stream, no note, one share of a mixture that names it twice."""
    model = block_model("dit", "tokens", "block.mixture={2: 0.5, 4: 0.2, full: 0.3}", size=4)
    assert model.block_size is None and model.mixture == {2: 0.5, None: 0.5} and model.streams() == 1.5
    for law in (model, model.in_blocks(2)):
        assert "trained_blocks" not in law.describe()
    assert "trained_blocks" in model.in_blocks(1).describe()
    assert block_model("dit", "tokens", size=4).mixture == {None: 1.0}


@each_network
@each_stream
def test_every_weight_learns_at_every_size(network, clean):
    model = block_model(network, clean, *PAIRS, n_labels=2).train()
    for size in (1, 2, None):
        model.zero_grad()
        labelled = replace(batch_of(XS), label=torch.arange(len(XS)) % 3 - 1)
        trained_on(model, size).train().loss(labelled, Keys(0))[0].backward()
        for name, parameter in model.named_parameters():
            grad = parameter.grad
            assert grad is not None and grad.isfinite().all() and grad.abs().max() > 0, (size, name)


def test_the_gradient_of_two_streams_is_that_of_block_by_block():
    """Through what is clean, too: the loss of a later block trains the reading of an earlier one."""
    model, x = block_model("dit", "tokens", *TIMES), torch.tensor([[0, 3, 2, 2]])
    z = torch.tensor([[0, MASK, MASK, 2]])
    weights = list(model.backbone.blocks.parameters())  # type: ignore[union-attr]

    def gradients(hidden: Tensor) -> list[Tensor]:
        said = model.log_x(hidden)[torch.arange(4), x[0]]
        return list(torch.autograd.grad(said[[1, 2]].sum(), weights))

    apart = torch.cat([read_block(model, [0, MASK], 0, 2), read_block(model, [0, 3, MASK, 2], 2, 2)])
    torch.testing.assert_close(
        gradients(model.hidden(z, torch.ones(1), clean=x)[0]), gradients(apart), rtol=1e-4, atol=1e-6
    )


def test_padding_costs_nothing_and_changes_nothing():
    model = block_model("modern", "tokens", *TIMES, length=8, vocab=LARGER)
    batch = text(8)
    for size in (1, 2, 4):
        law = model.in_blocks(size)
        got = law.nats(batch, Keys(0, 1))
        assert (got.nats[~batch.scored] == 0).all() and torch.equal(got.weight, batch.scored)
        junk = replace(batch, tokens=torch.where(batch.present, batch.tokens, 9))
        torch.testing.assert_close(law.nats(junk, Keys(0, 1)).nats, got.nats)


# -- config ----------------------------------------------------------------------------------------------------------


def test_a_mixture_comes_back_from_yaml(tmp_path):
    config = tiny_config("model.method=block", "block.size=full", "block.mixture={1: 0.2, 4: 0.4, full: 0.4}")
    assert config.block.mixture == {1: 0.2, 4: 0.4, "full": 0.4}
    path = tmp_path / "config.yaml"
    path.write_text(config.to_yaml())
    again = load_yaml(path)
    assert again == config
    model = registry.model(again, VOCAB)
    assert isinstance(model, BlockDiffusion)
    assert model.mixture == {1: 0.2, 4: 0.4, None: 0.4} and model.block_size is None


def test_a_config_from_before_has_the_usual_blocks():
    tree = tiny_config().model_dump(mode="json")
    del tree["block"]
    assert parse(tree) == tiny_config()


WRONG = {
    "size": (["block.size=3"], "blocks of 3 tokens do not divide rows of data.length=16"),
    "mixture": (["block.mixture={1: 0.5, 5: 0.5}"], "blocks of 5 tokens do not divide rows of data.length=16"),
    "longer": (["block.size=32"], "blocks of 32 tokens do not divide rows of data.length=16"),
    "zero": (["block.size=0"], "block.size: 0 is no block size; give a whole number of at least 1, or full"),
    "negative": (["block.size=-4"], "block.size: -4 is no block size; give a whole number"),
    "words": (["block.size=all"], "block.size: 'all' is no block size; give a whole number"),
    "half": (["block.size=2.5"], "block.size: 2.5 is no block size; give a whole number"),
    "mixed": (["block.mixture={0: 1}"], "block.mixture.0: 0 is no block size; give a whole number"),
    "nothing": (["block.mixture={}"], "mixture names no block size"),
    "no share": (["block.mixture={1: 0, 4: 1}"], "block.mixture"),
    "stream": (["block.clean=characters"], "'tokens' or 'blocks'"),
    "mlm": (["objective.loss=mlm"], "masked language modeling has no blocks; set model.method=mdlm"),
    "time": (["model.time_conditioning=true"], "set model.time_conditioning=false"),
    "start": (["objective.start_token=false"], "objective.start_token belongs to model.method=ar"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_is_a_sentence_with_its_fix(what):
    settings, words = WRONG[what]
    with pytest.raises(UserError) as caught:
        registry.model(tiny_config("model.method=block", "block.size=4", *settings), VOCAB)
    said = str(caught.value)
    assert words in said and "\n" not in said and len(said) < 250


@pytest.mark.parametrize("network", ["caduceus", "mosaicbert", "mamba", "hyena"])
def test_a_network_that_cannot_says_which_can(network):
    with pytest.raises(UserError, match=r"set model.network=dit, modern or llama"):
        registry.model(Config(model={"network": network, "method": "block"}), VOCAB)


def test_it_says_what_it_is():
    model = block_model("dit", "blocks", *TIMES)
    assert model.describe()["block"] == 2 and model.describe()["clean_stream"] == "causal by blocks"
    assert model.in_blocks(None).describe()["block"] == "the whole row"
    exact = model.in_blocks(1).describe()
    assert exact == {
        "bound": "exact",
        "order": "left to right",
        "block": 1,
        "clean_stream": "causal by blocks",
        "trained_blocks": "2",
    }
    other = model.under(law=ContinuousTime(0.3))
    assert (other.block_size, other.clean, other.mixture) == (2, "blocks", {2: 1.0}) and other.law.cutoff == 0.3
