"""MosaicBERT: its size and slopes against published ones, its sums against slow ones, pads, the past and the cache."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from support.drawing import generate
from unmask.config import ModelConfig
from unmask.models import registry
from unmask.models.autoregressive import AutoRegressive
from unmask.models.masked import MaskedDiffusion, Objective
from unmask.networks.kernels.positions import alibi_slopes
from unmask.networks.mosaicbert import MosaicBert, padded
from unmask.process.keys import Keys
from unmask.process.schedule import Polynomial
from unmask.sampling import Choice, FirstHitting, LeftToRight
from unmask.types import Batch, UserError, Vocab

VOCAB = Vocab(19, mask=5, pad=0, bos=1, eos=2)
DIM, HEADS, LAYERS = 24, 3, 2
either = pytest.mark.parametrize("causal", [False, True])


def bert(causal: bool = False, seed: int = 0, dropout: float = 0.0, vocab: Vocab = VOCAB) -> MosaicBert:
    """A small network in which no weight is zero."""
    torch.manual_seed(seed)
    net = MosaicBert(vocab, DIM, LAYERS, HEADS, mlp_ratio=2, dropout=dropout, causal=causal)
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.3)
    return net.eval()


def some_tokens(batch: int = 3, length: int = 9, seed: int = 1) -> Tensor:
    return torch.randint(VOCAB.size, (batch, length), generator=torch.Generator().manual_seed(seed))


def hidden_of(net: MosaicBert, tokens: Tensor, types: Tensor | None = None, **more) -> Tensor:
    with torch.no_grad():
        return net(tokens, types=types, **more)[0]


# -- slow and obvious: one row, one head, one pair of columns at a time -----------------------------------------------


def slow_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-12) * weight + bias


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def slow_hidden(net: MosaicBert, tokens: list[int], types: list[int] | None = None) -> np.ndarray:
    """(L, dim) of one row without padding, in float64, from the published names."""
    w = {name: value.detach().double().numpy() for name, value in net.state_dict().items()}
    own = "bert.embeddings."
    x = w[own + "word_embeddings.weight"][tokens] + w[own + "token_type_embeddings.weight"][types or [0] * len(tokens)]
    x = slow_norm(x, w[own + "LayerNorm.weight"], w[own + "LayerNorm.bias"])
    slopes = [2 ** (-8 / 2), 2 ** (-16 / 2), 2 ** (-8 / 4)]  # of 3 heads: those of 2, then the first of 4
    size = DIM // HEADS
    for layer in range(LAYERS):
        at = f"bert.encoder.layer.{layer}."
        qkv = x @ w[at + "attention.self.Wqkv.weight"].T + w[at + "attention.self.Wqkv.bias"]
        heads = np.zeros_like(x)
        for head, i in itertools.product(range(HEADS), range(len(tokens))):
            part = slice(head * size, (head + 1) * size)
            q = qkv[i, :DIM][part]
            seen = range(i + 1) if net.causal else range(len(tokens))
            scores = np.array(
                [q @ qkv[j, DIM : 2 * DIM][part] / math.sqrt(size) - slopes[head] * abs(i - j) for j in seen]
            )
            chances = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
            heads[i, part] = sum(p * qkv[j, 2 * DIM :][part] for p, j in zip(chances, seen, strict=True))
        out = heads @ w[at + "attention.output.dense.weight"].T + w[at + "attention.output.dense.bias"]
        x = slow_norm(out + x, w[at + "attention.output.LayerNorm.weight"], w[at + "attention.output.LayerNorm.bias"])
        both = x @ w[at + "mlp.gated_layers.weight"].T
        gated = gelu(both[:, : both.shape[1] // 2]) * both[:, both.shape[1] // 2 :]
        out = gated @ w[at + "mlp.wo.weight"].T + w[at + "mlp.wo.bias"]
        x = slow_norm(out + x, w[at + "mlp.layernorm.weight"], w[at + "mlp.layernorm.bias"])
    return x


def slow_logits(net: MosaicBert, hidden: np.ndarray) -> np.ndarray:
    w = {name: value.detach().double().numpy() for name, value in net.state_dict().items()}
    at = "cls.predictions."
    x = gelu(hidden @ w[at + "transform.dense.weight"].T + w[at + "transform.dense.bias"])
    x = slow_norm(x, w[at + "transform.LayerNorm.weight"], w[at + "transform.LayerNorm.bias"])
    return (x @ w["bert.embeddings.word_embeddings.weight"].T + w[at + "decoder.bias"])[:, : net.vocab.size]


@either
def test_hidden_states_and_logits_are_those_of_the_slow_sums(causal):
    net, tokens = bert(causal), some_tokens(2, 7)
    types = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0] * 7])
    hidden = hidden_of(net, tokens, types)
    for row in range(2):
        wanted = slow_hidden(net, tokens[row].tolist(), types[row].tolist())
        np.testing.assert_allclose(hidden[row].numpy(), wanted, rtol=2e-4, atol=2e-5)
        logits = net.head(hidden[row]).detach().numpy()
        np.testing.assert_allclose(logits, slow_logits(net, wanted), rtol=2e-4, atol=1e-4)
    assert hidden_of(net, tokens)[1].equal(hidden[1]), "without types all tokens are of the first text"
    assert not torch.allclose(hidden_of(net, tokens)[0], hidden[0])


# -- published facts --------------------------------------------------------------------------------------------------


@either
def test_the_size_of_the_paper(causal):
    spec = ModelConfig(backbone="mosaicbert")  # 12 x 768 with 12 heads is the default of the section
    with torch.device("meta"):
        net = registry.network(spec, Vocab(30522, mask=103, pad=0, bos=101, eos=102), causal=causal)
    assert sum(p.numel() for p in net.parameters()) == 137_400_384
    assert net.embeddings["word_embeddings"].num_embeddings == padded(30522) == 30528


def test_names_are_the_published_ones():
    names = set(bert().state_dict())
    for wanted in (
        "bert.embeddings.word_embeddings.weight",
        "bert.embeddings.token_type_embeddings.weight",
        "bert.embeddings.LayerNorm.bias",
        "bert.encoder.layer.1.attention.self.Wqkv.bias",
        "bert.encoder.layer.1.attention.output.LayerNorm.weight",
        "bert.encoder.layer.1.mlp.gated_layers.weight",
        "bert.encoder.layer.1.mlp.wo.bias",
        "bert.encoder.layer.1.mlp.layernorm.weight",
        "cls.predictions.transform.dense.weight",
        "cls.predictions.decoder.bias",
    ):
        assert wanted in names


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 5, 6, 8, 12, 16, 20])
def test_slopes_are_those_of_mpt_and_bloom(heads):
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    mpt = -build_mpt_alibi_tensor(heads, 2)[:, 0, 0]
    bloom = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
    torch.testing.assert_close(alibi_slopes(heads), mpt, rtol=1e-6, atol=0)
    torch.testing.assert_close(alibi_slopes(heads), bloom, rtol=1e-6, atol=0)


def test_the_slopes_of_twelve_heads_by_hand():
    wanted = [2.0**-i for i in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
    torch.testing.assert_close(alibi_slopes(12), torch.tensor(wanted))


# -- who sees whom ----------------------------------------------------------------------------------------------------


@either
def test_pads_never_change_a_token(causal):
    net, tokens = bert(causal), some_tokens(3, 9)
    lengths = torch.tensor([9, 5, 1])
    valid = torch.arange(9) < lengths[:, None]
    first = hidden_of(net, tokens, valid=valid)
    other = torch.where(valid, tokens, some_tokens(3, 9, seed=7))
    assert first[valid].equal(hidden_of(net, other, valid=valid)[valid])
    for row, length in enumerate(lengths.tolist()):
        alone = hidden_of(net, tokens[row : row + 1, :length])
        torch.testing.assert_close(first[row, :length], alone[0], rtol=1e-4, atol=1e-5)
    assert first.isfinite().all()


def test_pads_on_the_left_and_in_the_middle_change_nothing_that_positions_say():
    net, tokens = bert(), some_tokens(1, 5)
    alone = hidden_of(net, tokens)
    spread = torch.tensor([[0, 7, 9, 8, 6, 3, 4, 11]])
    places = [1, 2, 4, 6, 7]
    spread[0, places] = tokens[0]
    valid, positions = torch.zeros(1, 8, dtype=torch.bool), torch.zeros(1, 8, dtype=torch.int64)
    valid[0, places], positions[0, places] = True, torch.arange(5)
    found = hidden_of(net, spread, valid=valid, positions=positions)
    torch.testing.assert_close(found[0, places], alone[0], rtol=1e-4, atol=1e-5)


def test_the_causal_network_sees_no_later_token_and_the_other_does():
    for causal in (True, False):
        net, tokens = bert(causal), some_tokens(1, 8)
        changed = tokens.clone()
        changed[0, 5] = (tokens[0, 5] + 1) % VOCAB.size
        same = torch.isclose(hidden_of(net, tokens), hidden_of(net, changed)).all(-1)[0]
        assert same[:5].all().item() == causal
        assert not same[5:].any()


@pytest.mark.parametrize("cuts", [[1] * 9, [4, 5], [3, 1, 5]])
def test_the_cache_changes_nothing(cuts):
    net, tokens = bert(causal=True), some_tokens(3, 9)
    whole, parts, cache = hidden_of(net, tokens), [], net.empty_cache(3)
    with torch.no_grad():
        for part in tokens.split(cuts, dim=1):
            hidden, cache = net(part, cache=cache)
            parts.append(hidden)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-5)


def test_chosen_columns_are_columns_of_the_whole():
    net, tokens = bert(), some_tokens(3, 9)
    queries = torch.tensor([[0, 3], [8, 8], [4, 1]])
    valid = torch.arange(9) < torch.tensor([9, 9, 6])[:, None]
    for mask in (None, valid):
        whole = hidden_of(net, tokens, valid=mask)
        some = hidden_of(net, tokens, valid=mask, queries=queries)
        wanted = whole[torch.arange(3)[:, None], queries]
        torch.testing.assert_close(some, wanted, rtol=1e-4, atol=1e-5)


def test_what_it_has_no_use_for_is_refused():
    tokens = some_tokens()
    with pytest.raises(ValueError, match="no cache"):
        bert().empty_cache(1)
    with pytest.raises(ValueError, match="cache"):
        bert()(tokens, cache=bert(causal=True).empty_cache(3))


def test_the_padding_of_the_vocabulary_is_never_predicted_and_never_learns():
    net = bert()
    assert net.embeddings["word_embeddings"].num_embeddings == 24
    logits = net.head(net(some_tokens())[0].flatten(0, 1))
    assert logits.shape == (27, 19)
    logits.logsumexp(-1).sum().backward()
    gradient = net.embeddings["word_embeddings"].weight.grad
    assert gradient[19:].abs().max() == 0 and gradient[:19].abs().min() > 0


# -- as a language model ----------------------------------------------------------------------------------------------


def test_the_causal_likelihood_is_one_over_all_texts_and_samples_follow_it():
    vocab = Vocab(4, mask=1)
    model = AutoRegressive(bert(causal=True, vocab=vocab)).eval()
    every = torch.tensor(list(itertools.product((0, 2, 3), repeat=3)))
    with torch.no_grad():
        nats = model.nats(Batch(every, torch.arange(27), 27), Keys(0)).nats.double().sum(1)
    chances = torch.exp(-nats)
    assert chances.sum() == pytest.approx(1, abs=1e-5)
    n = 600
    canvases = [torch.full((3,), 1)] * n
    counts = {tuple(row): 0 for row in every.tolist()}
    states = generate(model, canvases, LeftToRight(), [Keys(i) for i in range(n)], choice=Choice(), batch_size=64)
    for state in states:
        if state.done:
            counts[tuple(state.canvas.tolist())] += 1
    wanted = chances / chances.sum() * n
    found = torch.tensor([counts[tuple(row)] for row in every.tolist()])
    likely = wanted > 5
    chi = float((((found - wanted) ** 2) / wanted)[likely].sum())
    freedom = int(likely.sum())
    assert chi < freedom + 4 * math.sqrt(2 * freedom)


def test_a_network_that_looks_both_ways_is_no_autoregressive_model():
    with pytest.raises(AssertionError, match="looks both ways"):
        AutoRegressive(bert())


def test_masked_diffusion_writes_with_it():
    model = MaskedDiffusion(bert(), Polynomial()).eval()
    canvas = torch.tensor([7, 5, 5, 9, 5])
    last = next(s for s in generate(model, [canvas], FirstHitting(), [Keys(3)]) if s.done).canvas
    assert last[[0, 3]].tolist() == [7, 9] and (last != VOCAB.mask).all() and (last < VOCAB.size).all()


# -- masked language modeling -----------------------------------------------------------------------------------------


class Spy(MosaicBert):
    """Keeps what it was shown."""

    def forward(self, inputs):
        self.seen.append(inputs.tokens)
        return super().forward(inputs)


def mlm_model(rate: float = 0.15) -> tuple[MaskedDiffusion, Spy]:
    torch.manual_seed(0)
    net = Spy(VOCAB, DIM, LAYERS, HEADS, mlp_ratio=2, dropout=0.0)
    net.seen = []
    return MaskedDiffusion(net, Polynomial(), objective=Objective(mask_rate=rate)).eval(), net


def text_batch(rows: int, length: int) -> Batch:
    """Ordinary tokens between the ends of a row, some padding."""
    tokens = torch.randint(6, VOCAB.size, (rows, length), generator=torch.Generator().manual_seed(2))
    tokens[:, 0], tokens[:, -4] = VOCAB.bos, VOCAB.eos
    tokens[:, -3:] = VOCAB.pad
    scored = torch.ones(rows, length, dtype=torch.bool)
    scored[:, -3:] = False
    return Batch(tokens, torch.arange(rows), rows, scored, scored)


@pytest.mark.parametrize("rate", [0.15, 0.3])
def test_mlm_hides_as_bert_does(rate):
    model, net = mlm_model(rate)
    batch = text_batch(64, 132)
    with torch.no_grad():
        _, weight = model.loss(batch, Keys(0))
    z, x = net.seen[0], batch.tokens
    ordinary = torch.zeros_like(x, dtype=torch.bool)
    ordinary[:, 1:-4] = True
    assert z[~ordinary].equal(x[~ordinary]), "special tokens and padding stay"
    n, chosen = int(ordinary.sum()), int(weight)

    def near(count: float, of: float, share: float) -> bool:
        return abs(count - of * share) < 4.5 * math.sqrt(of * share * (1 - share))

    masked, changed = (z == VOCAB.mask), (z != x) & (z != VOCAB.mask)
    assert near(chosen, n, rate)
    assert near(int(masked.sum()), chosen, 0.8 + 0.1 / VOCAB.size)  # a random token may be [MASK] itself
    assert near(int(changed.sum()), chosen, 0.1 * (1 - 2 / VOCAB.size))
    counts = torch.bincount(z[changed], minlength=VOCAB.size)
    assert counts[VOCAB.pad] > 0 and counts[VOCAB.bos] > 0, "any token of the vocabulary"


def test_the_loss_of_mlm_is_the_cross_entropy_of_the_chosen_tokens():
    model, net = mlm_model(0.3)
    batch = text_batch(4, 40)
    with torch.no_grad():
        total, weight = model.loss(batch, Keys(5))
        whole = net(net.seen[0], valid=batch.present)[0]
    uniform = Keys(5).uniform("mlm", range(4), 40, 3)[..., 0]
    wanted, count = 0.0, 0
    for row, column in itertools.product(range(4), range(1, 36)):
        if uniform[row, column] < 0.3:
            logits = net.head(whole[row, column][None]).detach()[0].double()
            logits[VOCAB.mask] = -math.inf
            wanted += float(logits.logsumexp(0) - logits[batch.tokens[row, column]])
            count += 1
    assert weight == count > 20
    assert total.item() == pytest.approx(wanted, rel=1e-5)


def test_mlm_depends_on_the_place_in_the_global_batch_only():
    model, _ = mlm_model(0.3)
    batch = text_batch(6, 40)
    with torch.no_grad():
        total, weight = model.loss(batch, Keys(1))
        parts = [model.loss(batch.rows(torch.tensor(rows)), Keys(1)) for rows in ([0, 4], [1], [5, 3, 2])]
    assert sum(int(own) for _, own in parts) == int(weight)
    assert sum(float(own) for own, _ in parts) == pytest.approx(float(total), rel=1e-6)


def test_the_bound_of_an_mlm_is_that_of_mdlm():
    model, net = mlm_model(0.3)
    plain = MaskedDiffusion(net, Polynomial()).eval()
    batch = text_batch(6, 40)
    with torch.no_grad():
        assert model.nats(batch, Keys(1)).nats.equal(plain.nats(batch, Keys(1)).nats)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["model.method=ar", "objective.loss=mlm"], "looks both ways"),
        (["model.method=sedd", "model.time_conditioning=false", "objective.loss=mlm"], "SEDD"),
        (["model.method=d3pm", "objective.loss=mlm"], "whole bound"),
        (["objective.mask_rate=0.3"], "objective.loss=mlm"),
        (["objective.loss=mlm", "objective.mask_rate=1.5"], "mask_rate"),
        (["objective.loss=mlm", "objective.clip=[0.1,0.5]"], "a single rate"),
        (["model.backbone=mosaicbert", "model.time_conditioning=true"], "does not take a time"),
        (["model.backbone=mosaicbert", "model.n_heads=5"], "multiple of n_heads"),
        (["model.backbone=transformers"], "unmask finetune MODEL mdlm"),
        (["model.backbone=mosaicbert", "model.method=ssd-lm"], "SSD-LM"),
    ],
)
def test_settings_that_do_not_fit_are_one_sentence(changes, said):
    from unmask.config import Config

    with pytest.raises(UserError, match=said) as caught:
        registry.model(
            Config().override(["model.hidden_dim=16", "model.n_heads=2", "model.n_blocks=1", *changes]), VOCAB
        )
    assert "\n" not in str(caught.value)
