"""The autoregressive model: its likelihood against GPT-NeoX and by enumeration, its samples, and a cache that fits."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from support.causal_nets import VOCAB, causal, neox, neox_logits, tokens_of
from support.drawing import Case, Law, check, finish, generate, judge, keys_of, mixed, tensors, texts
from unmask.models.autoregressive import AutoRegressive, CachedDenoiser
from unmask.process.keys import Keys
from unmask.sampling import (
    Adaptive,
    Choice,
    FirstHitting,
    GivenOrder,
    LeftToRight,
    Request,
    Rules,
    Sampler,
    Slot,
    Windows,
    replay,
)
from unmask.types import Batch, Ending, State, TokenNats, UserError, Vocab

MASK = VOCAB.mask
SMALL = Vocab(4, mask=1)  # three tokens to write, and [MASK] is not the last id
CLEAN, M = (0, 2, 3), SMALL.mask
Shape = Callable[[np.ndarray], np.ndarray]  # what temperature and the like do to chances
both = pytest.mark.parametrize("start", [True, False])


def model_of(start: bool = True, vocab: Vocab = VOCAB, seed: int = 0) -> AutoRegressive:
    return AutoRegressive(causal(seed, vocab=vocab), start).eval()


def text(batch: int = 3, length: int = 9, seed: int = 1) -> Tensor:
    """Tokens without [MASK]."""
    tokens = tokens_of(batch, length, seed)
    return torch.where(tokens == MASK, 6, tokens)


def batch_of(tokens: Tensor, **more) -> Batch:
    return Batch(tokens, torch.arange(len(tokens)), len(tokens), **more)


def nats(model: AutoRegressive, tokens: Tensor, **more) -> TokenNats:
    with torch.no_grad():
        return model.nats(batch_of(tokens, **more), Keys(0))


def true_nats(model: AutoRegressive, tokens: Tensor) -> Tensor:
    """From the logits of GPT-NeoX in float64: log-sum-exp over all tokens but [MASK], minus the logit of the token."""
    mask = model.vocab.mask
    first = torch.full((len(tokens), 1), mask)
    logits = neox_logits(model.backbone, torch.cat([first, tokens], 1) if model.start else tokens)[:, :-1].double()
    targets = tokens if model.start else tokens[:, 1:]
    logits[..., mask] = -math.inf
    out = logits.logsumexp(-1) - logits.gather(-1, targets[..., None]).squeeze(-1)
    return out if model.start else torch.cat([torch.zeros(len(tokens), 1, dtype=out.dtype), out], 1)


# -- the likelihood --------------------------------------------------------------------------------------------------


@both
def test_nats_are_those_of_gpt_neox(start):
    model, tokens = model_of(start), text(4, 23)
    got = nats(model, tokens)
    assert got.nats.dtype == torch.float32 and got.nats.std() > 0.5
    torch.testing.assert_close(got.nats.double(), true_nats(model, tokens), rtol=1e-5, atol=1e-5)
    assert got.weight.equal(torch.tensor([start] + [True] * 22).expand(4, -1))


def test_the_loss_and_its_gradient_are_those_of_gpt_neox():
    """Its own loss knows no [MASK] that is ruled out: a logit of -1e4 is none."""
    model, tokens = model_of(start=False), text(4, 23)
    net = model.backbone
    with torch.no_grad():
        net.output_layer.linear.bias.zero_()
        net.output_layer.norm_final.weight[0] = 0.0  # one channel is left free: it says how little [MASK] is worth
    oracle = neox(net)
    oracle.gpt_neox.final_layer_norm.bias.data[0] = 1.0
    oracle.lm_head.weight.data[:, 0] = 0.0
    oracle.lm_head.weight.data[MASK, 0] = -1e4
    truth = oracle(input_ids=tokens, labels=tokens).loss
    truth.backward()
    total, weight = model(batch_of(tokens), Keys(0))
    (total / weight).backward()
    assert weight == 4 * 22
    torch.testing.assert_close(total / weight, truth, rtol=1e-5, atol=1e-5)
    layer, block = oracle.gpt_neox.layers[0], net.blocks[0]
    torch.testing.assert_close(
        net.vocab_embed.embedding.grad, oracle.gpt_neox.embed_in.weight.grad, rtol=1e-4, atol=1e-6
    )
    torch.testing.assert_close(block.mlp[0].weight.grad, layer.mlp.dense_h_to_4h.weight.grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(block.norm1.weight.grad, layer.input_layernorm.weight.grad, rtol=1e-4, atol=1e-6)


@both
def test_the_chances_of_all_texts_sum_to_1(start):
    """Without a start symbol, of all texts that begin with a given token."""
    model, length = model_of(start, SMALL), 4
    xs = torch.tensor(list(itertools.product(CLEAN, repeat=length)))
    chance = torch.exp(-nats(model, xs).nats.double().sum(1))
    assert chance.max() > 3 * chance.min()
    for first in [None] if start else CLEAN:
        own = chance if first is None else chance[xs[:, 0] == first]
        assert float(own.sum()) == pytest.approx(1, abs=1e-5)


def test_a_fresh_model_finds_all_tokens_but_the_mask_alike():
    model = AutoRegressive(type(causal())(VOCAB, 32, 1, 2))
    torch.testing.assert_close(nats(model, text()).nats, torch.full((3, 9), math.log(VOCAB.size - 1)))


@both
@pytest.mark.parametrize("length", [1, 2, 3])
def test_short_rows(start, length):
    model, tokens = model_of(start), text(2, length)
    torch.testing.assert_close(nats(model, tokens).nats.double(), true_nats(model, tokens), rtol=1e-5, atol=1e-5)


@both
def test_padding_costs_nothing_and_changes_nothing(start):
    model, tokens, lengths = model_of(start), text(), [9, 4, 1]
    present = torch.arange(9) < torch.tensor(lengths)[:, None]
    junk = torch.where(present, tokens, MASK)  # whatever stands there
    got = nats(model, junk, scored=present, present=present)
    assert (got.nats[~present] == 0).all() and not got.weight[~present].any()
    for row, n in enumerate(lengths):
        alone = nats(model, tokens[row : row + 1, :n])
        torch.testing.assert_close(got.nats[row, :n], alone.nats[0], rtol=1e-5, atol=1e-5)
        assert got.weight[row, :n].equal(alone.weight[0])


def test_columns_that_do_not_exist_are_not_seen():
    """Whatever stands at an absent column in the middle of a row."""
    model, tokens = model_of(), text()
    present = torch.ones(3, 9, dtype=torch.bool)
    present[:, 3] = False
    other = tokens.clone()
    other[:, 3] = 7
    one, two = (nats(model, x, scored=present, present=present).nats for x in (tokens, other))
    assert torch.equal(one, two)
    assert not torch.allclose(one[:, 4:], nats(model, tokens).nats[:, 4:], atol=1e-3)


@both
def test_only_scored_tokens_count(start):
    model, tokens = model_of(start), text()
    scored = torch.rand(3, 9, generator=torch.Generator().manual_seed(3)) < 0.5
    scored[:, 0] = True
    got, whole = nats(model, tokens, scored=scored), nats(model, tokens)
    assert got.weight.equal(scored & whole.weight)
    torch.testing.assert_close(got.nats, whole.nats * scored, rtol=1e-5, atol=1e-5)
    none = nats(model, tokens, scored=torch.zeros_like(scored))
    assert not none.nats.any() and not none.weight.any()


def test_nothing_is_drawn_and_batches_may_be_cut():
    """Neither keys nor the place in the global batch matter, nor who else is in it."""
    model, tokens = model_of(), text(6)
    whole = nats(model, tokens).nats
    parts = []
    with torch.no_grad():
        for i, rows in enumerate(tokens.split([1, 3, 2])):
            parts.append(model.nats(Batch(rows, torch.arange(len(rows)) + 100 * i, 1000), Keys(i, step=i)).nats)
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-5, atol=1e-5)
    assert model.exact and model.likelihood
    assert torch.equal(model.nats(batch_of(tokens), Keys(1)).nats, model.nats(batch_of(tokens), Keys(2)).nats)


def test_large_logits_come_in_chunks(monkeypatch):
    def run() -> tuple[Tensor, list[Tensor]]:
        model = model_of()
        total, _ = model(batch_of(text()), Keys(0))
        total.backward()
        return total.detach(), [p.grad for p in model.parameters()]

    whole, truth = run()
    seen: list[int] = []
    head = type(causal()).head
    monkeypatch.setattr("unmask.process.chunks.LOGITS_AT_ONCE", 4 * VOCAB.size)
    monkeypatch.setattr(type(causal()), "head", lambda self, rows: (seen.append(len(rows)), head(self, rows))[1])
    total, grads = run()
    assert max(seen) == 4
    torch.testing.assert_close(total, whole, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(grads, truth, rtol=1e-4, atol=1e-5)


def test_every_weight_learns():
    model = model_of()
    model(batch_of(text()), Keys(0))[0].backward()
    for name, parameter in model.named_parameters():
        grad = parameter.grad
        assert grad is not None and grad.isfinite().all() and grad.abs().max() > 0, name
    assert model.backbone.output_layer.linear.bias.grad[MASK] == 0  # which is never predicted
    assert model.backbone.vocab_embed.embedding.grad[MASK].abs().max() > 0  # but begins every row


def test_half_precision_scores_in_float32():
    model, tokens = model_of(), text()
    with torch.autocast("cpu", torch.bfloat16):
        got = nats(model, tokens).nats
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, nats(model, tokens).nats, rtol=0.1, atol=0.2)


def test_it_says_what_it_is():
    assert model_of().describe() == {"bound": "exact", "order": "left to right", "start_token": True}
    assert model_of(start=False).describe()["start_token"] is False
    assert model_of().default_sampler == "left-to-right"


# -- samples ---------------------------------------------------------------------------------------------------------


class Truth:
    """The next token after a prefix, by GPT-NeoX."""

    def __init__(self, model: AutoRegressive) -> None:
        self.model, self.oracle = model, neox(model.backbone)
        self.logits = functools.cache(self._logits)

    def _logits(self, prefix: tuple[int, ...]) -> np.ndarray:
        mask = self.model.vocab.mask
        read = (mask, *prefix) if self.model.start else prefix
        with torch.no_grad():
            last = self.oracle(input_ids=torch.tensor([read])).logits[0, -1]
        logits = (last + self.model.backbone.output_layer.linear.bias).detach().double().numpy()
        logits[mask] = -math.inf
        return logits

    def __call__(self, prefix: Sequence[int], shape: Shape = lambda p: p) -> np.ndarray:
        """(V,) chances, reshaped."""
        logits = self.logits(tuple(prefix))
        p = shape(np.exp(logits - logits.max()))
        return p / p.sum()


def true_law(
    truth: Truth,
    canvas: Sequence[int],
    shape: Shape = lambda p: p,
    window: tuple[int, int] | None = None,
    frame: tuple[int, ...] = (),
) -> Law:
    """Every text with its chance, token after token; under windows (length, stride) only the window is seen."""
    law: Law = {(): 1.0}
    for j, given in enumerate(canvas):
        begin = window_start(j, len(canvas), *window) if window else 0
        grown: Law = {}
        for x, chance in law.items():
            if given != M:
                grown[(*x, given)] = chance
                continue
            chances = truth((*frame, *x[begin:]), shape)
            grown |= {(*x, y): chance * p for y, p in enumerate(chances) if p > 0}
        law = grown
    return law


def window_start(j: int, total: int, length: int, stride: int) -> int:
    """Where the window begins in which position j is written."""
    start = 0
    while start + length <= j:
        start = min(start + stride, total - length)
    return start


def cool(p: np.ndarray) -> np.ndarray:
    return p**2


def best_two(p: np.ndarray) -> np.ndarray:
    return p * (p >= np.sort(p)[-2])


def no_2(p: np.ndarray) -> np.ndarray:
    return p * (np.arange(4) != 2)


def cases_of(model: AutoRegressive) -> list[Case]:
    """All the ways through each other in one batch; without a start symbol all of them begin with a token."""
    truth, b = Truth(model), () if model.start else (3,)
    long, open_ = (*b, M, M, M), (*b, M, M)
    plan, control = LeftToRight(), Rules(banned=frozenset([2]))
    cases = [
        Case(plan, lambda: true_law(truth, long), long),
        Case(plan, lambda: true_law(truth, (2, 0, M, M)), (2, 0, M, M)),
        Case(plan, lambda: true_law(truth, open_, cool), open_, Choice(temperature=0.5)),
        Case(plan, lambda: true_law(truth, open_, best_two), open_, Choice(top_k=2)),
        Case(plan, lambda: true_law(truth, open_, no_2), open_, control=control),
        Case(Windows(plan, 2, 1), lambda: true_law(truth, long, window=(2, 1)), long),
    ]
    wide = (*b, M, M, M, M)
    framed = Windows(plan, 5, 2, frame=(2, 0))
    return [*cases, Case(framed, lambda: true_law(truth, wide, window=(3, 2), frame=(2,)), wide)]


@both
def test_samples_follow_the_law(start):
    """Seven ways of writing through each other, so that rows of all kinds join and leave all the time."""
    model = model_of(start, SMALL, seed=3)
    cases = cases_of(model)
    states = mixed(model, cases, keys_of(200, seed=1), batch_size=200)
    for case, own in zip(cases, states, strict=True):
        assert judge(own, case.law()) > 1e-3, case


def test_a_state_reports_the_chance_of_its_token_and_the_best():
    model = model_of(vocab=SMALL)
    truth, before = Truth(model), [0]
    for state in generate(model, tensors([[0, M, M, M]]), LeftToRight(), keys_of(1), tops=2):
        law = truth(before)
        best = np.argsort(-law)[:2]
        assert float(state.probs) == pytest.approx(law[int(state.tokens)], rel=1e-4)
        assert state.tops is not None and state.tops[0].tolist() == [best.tolist()]
        assert state.tops[1][0].tolist() == pytest.approx(law[best], rel=1e-4)
        before.append(int(state.tokens))
    assert state.done and state.fixed == 4 and state.calls == 3


@both
def test_the_most_likely_text_and_its_replay(start):
    """A replay through the cache has the likelihood that `nats` gives without one."""
    model, tokens = model_of(start), text(4, 12)
    canvas = torch.full((12,), MASK)
    canvases = [torch.cat([row[:n], canvas[n:]]) for row, n in zip(tokens, (1, 3, 1, 7), strict=True)]
    got = replay(CachedDenoiser(model), canvases, list(tokens), LeftToRight(), keys_of(4), batch_size=3)
    truth = true_nats(model, tokens)
    for row, n in enumerate((1, 3, 1, 7)):
        torch.testing.assert_close(-got[row][n:], truth[row, n:], rtol=1e-5, atol=1e-5)
    greedy = texts(model, [c.tolist() for c in canvases], LeftToRight(), keys_of(4), choice=Choice(temperature=0))
    best = Truth(model)
    for row, n in zip(greedy, (1, 3, 1, 7), strict=True):
        for j in range(n, 12):
            assert row[j] == best(row[:j]).argmax()


# -- the cache -------------------------------------------------------------------------------------------------------


def plain_hidden(model: AutoRegressive, z: Tensor, queries: Tensor) -> Tensor:
    """Each row alone, read from its beginning up to the column that is asked for."""
    out = torch.zeros(*queries.shape, model.backbone.hidden_dim)
    with torch.no_grad():
        for b, row in enumerate(z):
            for m, j in enumerate(queries[b].tolist()):
                read = torch.cat([torch.tensor([model.vocab.mask]), row[:j]]) if model.start else row[:j]
                out[b, m] = model.backbone(read[None])[0][0, -1]
    return out


class Watched(CachedDenoiser):
    """A reader whose every answer is compared with the truth; counts the columns that the network read."""

    read = 0
    asked = 0

    def hidden(self, z, t, present=None, label=None, queries=None, slots=None) -> Tensor:
        def count(module, args) -> None:
            Watched.read += args[0].tokens.numel()

        hook = self.model.backbone.register_forward_pre_hook(count)
        got = super().hidden(z, t, present, label, queries, slots)
        hook.remove()
        Watched.asked += int((queries + 1).sum())
        torch.testing.assert_close(got, plain_hidden(self.model, z, queries), rtol=1e-4, atol=1e-4)
        return got


@pytest.fixture
def watched(monkeypatch) -> type[Watched]:
    from unmask.models import autoregressive

    monkeypatch.setattr(autoregressive, "CachedDenoiser", Watched)
    Watched.read = Watched.asked = 0
    return Watched


MIXED = [(1, 12), (5, 20), (1, 1), (3, 7), (2, 20), (9, 12), (1, 17), (4, 5), (6, 20)]  # given, length


def mixed_canvases() -> list[list[int]]:
    tokens = text(len(MIXED), 20).tolist()
    for row in tokens[3:6]:
        row[:3] = tokens[0][:3]  # a prompt that several share
    return [row[:given] + [MASK] * (n - given) for row, (given, n) in zip(tokens, MIXED, strict=True)]


def stop(state: State, row: int | None = None) -> bool:
    """Some rows stop early."""
    return (state.row if row is None else row) % 3 == 0 and int(state.tokens[-1]) in (3, 4, 7, 8)


def mixed_plans() -> list[Sampler]:
    return [Windows(LeftToRight(), 8, 5) if i in (1, 4, 6) else LeftToRight() for i in range(len(MIXED))]


@functools.cache
def alone(start: bool) -> list[torch.Tensor]:
    """The mixed canvases, each written by itself."""
    model, rows = model_of(start), zip(mixed_canvases(), mixed_plans(), keys_of(len(MIXED)), strict=True)
    return [
        finish(model, [canvas], plan, [key], until=functools.partial(stop, row=i))[0].canvas
        for i, (canvas, plan, key) in enumerate(rows)
    ]


@both
@pytest.mark.parametrize(("batch_size", "at_once"), [(1, 2048), (4, 60), (9, 1), (9, 2048)])
def test_cached_is_uncached(start, batch_size, at_once, watched, monkeypatch):
    """Mixed prompts, lengths, plans and stops, also where the desk takes few rows at a time."""
    from unmask.sampling import token_step

    monkeypatch.setattr(token_step, "TOKENS_AT_ONCE", at_once)
    model = model_of(start)
    plans, keys, canvases = mixed_plans(), keys_of(len(MIXED)), mixed_canvases()
    last = finish(model, canvases, plans, keys, batch_size=batch_size, until=stop)
    assert watched.asked > 300  # columns that would be read without a cache, if nothing were padded
    assert watched.read < 0.75 * watched.asked
    for i, (state, canvas) in enumerate(zip(last, canvases, strict=True)):
        assert state.canvas.equal(alone(start)[i]), i
        given = torch.tensor(canvas)
        assert state.canvas[given != MASK].equal(given[given != MASK])
    assert any((state.canvas == MASK).any() for state in last)  # somebody was stopped


def test_equal_rows_are_read_once(watched):
    """Eight samples of one prompt: one new column each in every round but the first."""
    model, prompt = model_of(), text(1, 10)[0].tolist()
    finish(model, [[*prompt, *[MASK] * 6]] * 8, LeftToRight(), keys_of(8), batch_size=8)
    assert watched.read == 8 * (10 + 1) + 8 * 5


def test_a_row_that_joins_costs_its_own_prompt_once(watched):
    """Rows that have written much go on one column at a time next to new ones."""
    model, prompt = model_of(), text(1, 4)[0].tolist()
    finish(model, [[MASK] * 30, [MASK] * 9, [*prompt, *[MASK] * 5]], LeftToRight(), keys_of(3), batch_size=2)
    first, second, third = 9 * 2, 2 * 5, 5 * 2 - 2  # two rows, then the prompt joins (5 columns each), ...
    assert watched.read <= first + second + third + (30 - 9 - 5)


def test_samples_of_one_prompt_read_it_once(watched):
    """Rows that begin together read it as one, and those that join later go on from it."""
    model, prompt = model_of(), text(1, 10)[0]
    canvas, shared = torch.cat([prompt, torch.full((6,), MASK)]), object()
    requests = [Request(i, canvas, LeftToRight(), Keys(i), prompt=shared) for i in range(9)]
    requests[0] = dataclasses.replace(
        requests[0], stop=lambda state: Ending("", "stop", 0) if state.step == 2 else None
    )
    last = {state.row: state for state in model.generate(requests, 8) if state.done}
    assert watched.read == 11 + 8 * 5 + 3  # eight share 11 columns, one leaves, and the ninth reads one per token
    for request in requests[1:]:
        (alone,) = finish(model, [canvas.tolist()], LeftToRight(), [request.key])
        assert last[request.row].canvas.equal(alone.canvas)


def test_windows_of_one_prompt_are_not_mixed_up(watched):
    """The same prompt, but what the network sees of it begins elsewhere."""
    model, prompt = model_of(), text(1, 14)[0]
    canvas, shared = torch.cat([prompt, torch.full((6,), MASK)]), object()
    samplers = [LeftToRight(), *[Windows(LeftToRight(), 8, 5)] * 2, Windows(LeftToRight(), 10, 7)]
    requests = [Request(i, canvas, sampler, Keys(i), prompt=shared) for i, sampler in enumerate(samplers)]
    last = {state.row: state for state in model.generate(requests, 4) if state.done}
    for request in requests:
        (alone,) = finish(model, [canvas.tolist()], request.sampler, [request.key])
        assert last[request.row].canvas.equal(alone.canvas)


@both
def test_a_denoiser_takes_any_slots(start):
    """Rows that no batcher would send: shuffled, cut back to anywhere, any columns in any order, few or many."""
    model, g = model_of(start), torch.Generator().manual_seed(11)
    denoiser = CachedDenoiser(model)
    pool, kept = text(4, 14), [0] * 4

    def draw(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=g)

    for _ in range(60):
        row, place = int(draw(4, 1)), int(draw(14, 1))
        pool[row, place], kept[row] = draw(MASK, 1), min(kept[row], place)
        rows = torch.randperm(4, generator=g)[: int(draw(4, 1)) + 1].tolist()
        z = pool[rows][:, : int(draw(13, 1)) + 2]
        queries = draw(z.shape[1] - 1, len(z), int(draw(3, 1)) + 1) + 1
        slots = [Slot(i, kept[i], None, 0) for i in rows]
        with torch.no_grad():
            got = denoiser.hidden(z, torch.ones(len(z)), queries=queries, slots=slots)
        for i in rows:
            kept[i] = 14
        torch.testing.assert_close(got, plain_hidden(model, z, queries), rtol=1e-4, atol=1e-4)
    for slot in range(4):
        denoiser.release(SimpleNamespace(slot=slot))
    assert not denoiser.read


def test_without_queries_all_columns_come():
    model, tokens = model_of(), text()
    every = torch.arange(9).expand(3, 9)
    with torch.no_grad():
        got = CachedDenoiser(model).hidden(tokens, torch.ones(3))
    torch.testing.assert_close(got, plain_hidden(model, tokens, every), rtol=1e-4, atol=1e-4)


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "plan",
    [LeftToRight(2), FirstHitting(), Adaptive("entropy", k=1), GivenOrder([0, 1]), Windows(LeftToRight(2), 4, 2)],
)
def test_it_writes_from_left_to_right_only(plan):
    model, canvas = model_of(), torch.tensor([3, MASK, MASK])
    with pytest.raises(UserError, match="writes from left to right, one token at a time; choose the sampler"):
        check(model, canvas, plan)
    with pytest.raises(UserError, match="from left to right"):
        generate(model, [canvas], plan, keys_of(1))


@pytest.mark.parametrize("canvas", [[MASK, 3], [2, MASK, 3, MASK], [MASK, MASK, 7, 7]])
@pytest.mark.parametrize("plan", [LeftToRight(), Windows(LeftToRight(), 2, 1)])
def test_it_does_not_see_what_comes_after(canvas, plan):
    with pytest.raises(UserError, match="give a prompt, without a suffix or gaps"):
        check(model_of(), torch.tensor(canvas), plan)
    with pytest.raises(UserError, match="give a prompt, without a suffix or gaps"):
        generate(model_of(), [torch.tensor([2, MASK]), torch.tensor(canvas)], plan, keys_of(2))


def test_without_a_start_symbol_the_first_token_is_given():
    model, plan = model_of(start=False), LeftToRight()
    with pytest.raises(UserError, match="no start symbol; give it the first token"):
        check(model, torch.tensor([MASK, MASK]), plan)
    with pytest.raises(UserError, match="no start symbol"):
        check(model, torch.tensor([MASK] * 9), Windows(plan, 4, 2))
    check(model, torch.tensor([MASK] * 9), Windows(plan, 6, 2, frame=(1, 2)))  # the frame is the first token
    check(model, torch.tensor([2, MASK]), plan)
    check(model_of(), torch.tensor([MASK, MASK]), plan)


def test_a_canvas_with_nothing_to_write():
    (state,) = generate(model_of(), [torch.tensor([2, 3])], LeftToRight(), keys_of(1))
    assert state.done and state.canvas.tolist() == [2, 3] and state.calls == 0


@pytest.mark.parametrize("more", [{"labels": [0]}, {"guidance": 2.0}, {"labels": [1], "guidance": 2.0}])
def test_it_has_no_labels(more):
    with pytest.raises(UserError, match="trained without labels"):
        generate(model_of(), [torch.tensor([MASK])], LeftToRight(), keys_of(1), **more)


def test_rows_with_labels_are_refused():
    with pytest.raises(ValueError, match="does not take labels"):
        nats(model_of(), text(), label=torch.tensor([0, 1, -1]))
    with pytest.raises(UserError, match="no noise schedule"):
        model_of().under()
