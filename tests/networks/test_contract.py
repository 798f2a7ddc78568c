"""What every network promises, checked for each of them: a new one gets a line in `SMALL`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unmask.data.genome.bases import COMPLEMENT
from unmask.networks.caduceus import Caduceus
from unmask.networks.causal import CausalTransformer
from unmask.networks.conjoined import Conjoined
from unmask.networks.dit import DiT
from unmask.networks.encoder import Encoder
from unmask.networks.hyena import Hyena
from unmask.networks.interface import Network, NetworkInput
from unmask.networks.kernels.attention import Blocks, Causal, Full
from unmask.networks.llama import Llama
from unmask.networks.mamba import Mamba
from unmask.networks.modern import Modern
from unmask.networks.mosaicbert import MosaicBert
from unmask.types import Vocab

VOCAB, DIM, LENGTH = Vocab(12, mask=3, pad=4), 16, 9
BERT = {
    "model_type": "bert",
    "vocab_size": 12,
    "hidden_size": DIM,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
    "pad_token_id": 4,
}


def _dit(**more: Any) -> DiT:
    return DiT(VOCAB, DIM, n_blocks=2, n_heads=2, cond_dim=8, dropout=0.0, **more)


def _modern(**more: Any) -> Modern:
    return Modern(VOCAB, DIM, n_blocks=2, n_heads=2, **more)


def _llama(**more: Any) -> Llama:
    return Llama(VOCAB, DIM, n_blocks=2, n_heads=4, n_kv_heads=2, mlp_dim=24, **more)


SMALL: dict[str, Callable[[], Network]] = {
    "dit": _dit,
    "dit with time": lambda: _dit(time_conditioning=True),
    "dit with labels": lambda: _dit(n_labels=2),
    "causal": lambda: CausalTransformer(VOCAB, DIM, 2, 2, dropout=0.0),
    "modern": _modern,
    "modern with time": lambda: _modern(time_conditioning=True, skips="both"),
    "modern with labels": lambda: _modern(n_labels=2, skips="none"),
    "modern causal": lambda: _modern(causal=True, skips="both"),
    "llama": _llama,
    "llama like qwen2": lambda: _llama(qkv_bias=True, tied=False, causal=True),
    "llama like qwen3": lambda: _llama(qk_norm=True, head_dim=6, embedding_rows=20),
    "llama shifted": lambda: _llama(prediction="shifted", tied=False),
    "mosaicbert": lambda: MosaicBert(VOCAB, DIM, 2, 2, dropout=0.0),
    "mosaicbert causal": lambda: MosaicBert(VOCAB, DIM, 2, 2, dropout=0.0, causal=True),
    "mamba": lambda: Mamba(VOCAB, DIM, 2, 4),
    "caduceus ps": lambda: Caduceus(VOCAB, DIM, 2, 4),
    "caduceus swapped": lambda: Caduceus(VOCAB, DIM, 2, 4, swap=True),
    "caduceus ph": lambda: Caduceus(VOCAB, DIM, 2, 4, strands="ph"),
    "hyena": lambda: Hyena(VOCAB, DIM, 2, dropout=0.0, filter_dim=8, filter_length=24),
    "encoder": lambda: Encoder.from_architecture(BERT, VOCAB, 0.0),
    "conjoined": lambda: Conjoined(_dit(time_conditioning=True), torch.from_numpy(COMPLEMENT[: VOCAB.size])),
}


@cache
def network(name: str) -> Network:
    """In float64, with weights of which none is zero; tests do not change it."""
    if name == "encoder":
        pytest.importorskip("transformers")
    torch.manual_seed(0)
    net = SMALL[name]()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return net.double().eval()


@pytest.fixture(params=SMALL)
def net(request) -> Network:
    return network(request.param)


def tokens_of(rows: int = 3, length: int = LENGTH, seed: int = 1) -> Tensor:
    return torch.randint(VOCAB.size, (rows, length), generator=torch.Generator().manual_seed(seed))


def levels(rows: int) -> Tensor:
    return torch.linspace(0.2, 2.0, rows, dtype=torch.float64)


def condition(net: Network, rows: int) -> Tensor | None:
    return net.condition(levels(rows))


@torch.no_grad()
def hidden(net: Network, tokens: Tensor, **more: Any) -> Tensor:
    more.setdefault("condition", condition(net, len(tokens)))
    return net(tokens, **more)[0]


def same(a: Tensor, b: Tensor) -> None:
    """Equal but for rounding: the DiT norms in float32 whatever the type."""
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_states_and_logits_have_their_shapes(net):
    states, cache = net(tokens_of(), condition=condition(net, 3))
    assert states.shape == (3, LENGTH, net.hidden_dim) and cache is None
    assert net.head(states[:, 0]).shape == (3, VOCAB.size)


def test_padding_changes_nothing_wherever_it_stands(net):
    """Each row as alone, whatever stands in its padding; and a row of nothing but padding is finite."""
    tokens, lengths = tokens_of(4), [LENGTH, 5, 1, 0]
    valid = torch.arange(LENGTH) < torch.tensor(lengths)[:, None]
    other = torch.where(valid, tokens, (tokens + 1) % VOCAB.size)
    told = condition(net, 4)
    got, again = (hidden(net, rows, condition=told, valid=valid) for rows in (tokens, other))
    assert got.isfinite().all()
    same(got[valid], again[valid])
    for row, n in enumerate(lengths[:3]):
        alone = None if told is None else told[row : row + 1] if len(told) > 1 else told
        same(got[row, :n], hidden(net, tokens[row : row + 1, :n], condition=alone)[0])
    if "positions" in net.takes or not hasattr(net, "vocab_embed"):
        left = torch.cat((torch.full((4, 3), 7), tokens), 1)
        there = torch.cat((torch.zeros(4, 3, dtype=torch.bool), torch.ones_like(valid)), 1)
        positions = (torch.arange(LENGTH + 3) - 3).clamp(min=0) if "positions" in net.takes else None
        whole = hidden(net, tokens, condition=told)
        if not isinstance(net, Conjoined):  # positions are those of its network
            same(hidden(net, left, condition=told, valid=there, positions=positions)[:, 3:], whole)


def test_rows_do_not_see_each_other(net):
    tokens, told = tokens_of(), condition(net, 3)
    other = tokens.clone()
    other[1] = (other[1] + 1) % VOCAB.size
    first, second = hidden(net, tokens, condition=told), hidden(net, other, condition=told)
    same(first[[0, 2]], second[[0, 2]])
    assert (first[1] - second[1]).abs().amax(-1).min() > 1e-3


def test_what_a_column_sees(net):
    """A causal network sees nothing that follows, and all that stands before; the others see everything."""
    tokens, told = tokens_of(1, 8), condition(net, 1)
    before = hidden(net, tokens, condition=told)
    for j in range(8):
        other = tokens.clone()
        other[0, j] = (other[0, j] + 1) % VOCAB.size
        change = (hidden(net, other, condition=told) - before).abs().amax(-1)[0]
        assert (change[j:] > 1e-7).all()
        assert (change[:j] < 1e-6).all() if net.causal else (change[:j] > 1e-7).all()


@pytest.mark.parametrize("cuts", [[LENGTH], [4, 5], [3, 1, 5], [1] * LENGTH])
def test_a_cache_changes_nothing(net, cuts):
    if "cache" not in net.takes:
        with pytest.raises(ValueError, match=f"{net.name} network looks both ways and has no cache"):
            net.empty_cache(3)
        return
    spec = None if net.causal else Causal()  # such a network has a cache under this
    tokens, told = tokens_of(), condition(net, 3)
    cache, parts = net.empty_cache(3), []
    copies: list[Any] = []
    with torch.no_grad():
        for piece in tokens.split(cuts, dim=1):
            copies = [tuple(part.clone() for part in layer) for layer in cache]
            part, new = net(piece, condition=told, attention=spec, cache=cache)
            assert all(torch.equal(a, b) for x, y in zip(cache, copies, strict=True) for a, b in zip(x, y, strict=True))
            parts.append(part)
            cache = new
    same(torch.cat(parts, 1), hidden(net, tokens, condition=told, attention=spec))


@pytest.mark.parametrize("padded", [False, True])
def test_columns_that_are_asked_for_are_those_of_all(net, padded):
    if "queries" not in net.takes:
        pytest.skip("it does not take queries")
    tokens, told = tokens_of(), condition(net, 3)
    valid = torch.arange(LENGTH) < torch.tensor([9, 6, 4])[:, None] if padded else None
    queries = torch.tensor([[0, 8, 3], [5, 0, 0], [3, 1, 2]])
    for spec in (None, Full(), Causal(), Blocks(2)):
        more = {"condition": told, "valid": valid, "attention": spec}
        some = hidden(net, tokens, queries=queries, **more)
        same(some, hidden(net, tokens, **more)[torch.arange(3)[:, None], queries])


def test_the_head_of_some_rows_is_some_rows_of_the_head(net):
    states = hidden(net, tokens_of())
    row, column = torch.tensor([0, 2, 2, 1]), torch.tensor([8, 0, 3, 3])
    same(net.head(states[row, column]), net.head(states.flatten(0, 1)).view(3, LENGTH, -1)[row, column])
    assert net.head(states[:0, 0]).shape == (0, VOCAB.size)


FIELDS = [field.name for field in fields(NetworkInput)]
GIVEN = {
    "tokens": tokens_of(),
    "embeddings": torch.zeros(3, LENGTH, DIM),
    "types": torch.zeros(3, LENGTH, dtype=torch.int64),
    "condition": torch.zeros(3, 8),
    "valid": torch.ones(3, LENGTH, dtype=torch.bool),
    "positions": torch.arange(LENGTH),
    "queries": torch.zeros(3, 1, dtype=torch.int64),
    "cache": [],
    "grow": True,
}


@pytest.mark.parametrize("field", [field for field in FIELDS if field not in ("tokens", "attention")])
def test_fields_that_it_does_not_take_are_refused_in_one_sentence(net, field):
    if field in net.takes:
        pytest.skip("it takes this")
    with pytest.raises(ValueError, match=f"^the {net.name} network does not take {field}$"):
        net(GIVEN["tokens"], **{field: GIVEN[field]})


def test_it_refuses_what_it_cannot_do(net):
    assert net.takes <= set(FIELDS) and {"tokens", "valid"} <= net.takes
    with pytest.raises(ValueError, match=f"^give the {net.name} network (either tokens or embeddings|tokens)$"):
        net()
    if "attention" not in net.takes:
        other = Full() if net.causal else Causal()
        with pytest.raises(ValueError, match=rf"the {net.name} network looks .* not take the attention \w+\(\)"):
            net(GIVEN["tokens"], attention=other)
        hidden(net, GIVEN["tokens"], attention=net.attention)  # what it does anyway may be said
    if not net.n_labels:
        with pytest.raises(ValueError, match="does not take labels"):
            net.condition(levels(3), torch.zeros(3, dtype=torch.int64))


def test_every_weight_is_saved_once_and_nothing_else(net):
    """So that files, averages and optimizers speak of the same names."""
    assert set(net.state_dict()) == {name for name, _ in net.named_parameters()}
    assert net.no_decay() <= set(net.state_dict())


@pytest.mark.parametrize("name", SMALL)
def test_a_gradient_reaches_every_weight(name):
    net = network(name)
    told = net.condition(levels(3), torch.tensor([0, 1, -1])) if net.n_labels else condition(net, 3)
    more = {"types": torch.arange(LENGTH).expand(3, -1) % 2} if "types" in net.takes else {}
    states = net(tokens_of(), condition=told, **more)[0]
    net.head(states.flatten(0, 1)).square().sum().backward()
    missing = [n for n, p in net.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]
    finite = all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)
    for p in net.parameters():
        p.grad = None
    assert finite and missing == [], missing


def test_a_network_is_a_module(net):
    assert isinstance(net, nn.Module) and len(net.blocks if hasattr(net, "blocks") else net.inner.blocks) == 2
