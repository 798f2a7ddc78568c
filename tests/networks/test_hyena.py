"""HyenaDNA: against slow sums in float64, its size and names, the past, pads, the cache, and as a language model."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from support.drawing import generate
from unmask.models.autoregressive import AutoRegressive
from unmask.networks.foreign.hyenadna import published
from unmask.networks.hyena import Hyena
from unmask.process.keys import Keys
from unmask.sampling import LeftToRight
from unmask.types import Batch, UserError, Vocab

VOCAB = Vocab(12, mask=3, pad=4, bos=2, eos=1)
DIM, LAYERS, FILTER, LONGEST = 6, 2, 5, 40


def hyena(seed: int = 0, dropout: float = 0.0, vocab: Vocab = VOCAB, **more) -> Hyena:
    """A small network in which no weight is zero, and whose filters reach back."""
    torch.manual_seed(seed)
    sizes = {"hidden_dim": DIM, "n_blocks": LAYERS, "mlp_ratio": 2, "filter_dim": FILTER, "filter_length": LONGEST}
    net = Hyena(vocab, dropout=dropout, **(sizes | more))
    for name, parameter in net.named_parameters():
        nn.init.normal_(parameter, mean=3.0 if name.endswith("freq") else 0.0, std=0.4)
    return net.eval()


def some_tokens(batch: int = 3, length: int = 21, seed: int = 1) -> Tensor:
    return torch.randint(VOCAB.size, (batch, length), generator=torch.Generator().manual_seed(seed))


def hidden_of(net: Hyena, tokens: Tensor, **more) -> Tensor:
    with torch.no_grad():
        return net(tokens, **more)[0]


# -- slow and obvious: one row, one column, one product at a time -----------------------------------------------------


def weights_of(net: Hyena) -> dict[str, np.ndarray]:
    return {name: value.detach().double().numpy() for name, value in net.state_dict().items()}


def slow_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    out = np.zeros_like(x)
    for i, row in enumerate(x):
        out[i] = (row - row.mean()) / math.sqrt(row.var() + 1e-5) * weight + bias
    return out


def slow_tables(dim: int, longest: int) -> dict[str, np.ndarray]:
    """z, t and deltas, in the shapes of published files."""
    z, t = np.zeros((longest, 5)), np.zeros((longest, 1))
    for i in range(longest):
        t[i] = i / (longest - 1)
        waves = [np.exp(-1j * f * 2 * np.pi * i / longest) for f in (1e-4, 1.0)]
        z[i] = [t[i, 0], waves[0].real, waves[1].real, waves[0].imag, waves[1].imag]
    slow, fast = math.log(0.01) / 1.5, math.log(0.01) / 0.3
    decay = np.array([slow + (fast - slow) * c / (dim - 1) for c in range(dim)])
    return {"pos_emb.z": z[None], "pos_emb.t": t[None], "modulation.deltas": decay[None, None]}


def slow_filter(w: dict[str, np.ndarray], at: str, dim: int, longest: int, shift: float) -> np.ndarray:
    """(longest, dim)."""
    tables = slow_tables(dim, longest)
    freq = w[at + "implicit_filter.1.freq"][0]
    k = np.zeros((longest, dim))
    for i in range(longest):
        h = tables["pos_emb.z"][0, i]
        for name in "024":
            h = np.sin(freq * (w[f"{at}implicit_filter.{name}.weight"] @ h + w[f"{at}implicit_filter.{name}.bias"]))
        decay = np.exp(-tables["pos_emb.t"][0, i, 0] * np.abs(tables["modulation.deltas"][0, 0]))
        k[i] = (w[at + "implicit_filter.6.weight"] @ h) * (decay + shift)
    return k


def slow_hidden(net: Hyena, tokens: list[int], shift: float = 0.0) -> np.ndarray:
    """(L, dim) of one row without padding, in float64, from the published names."""
    w, length, dim = weights_of(net), len(tokens), net.hidden_dim
    x = w["embeddings.word_embeddings.weight"][tokens]
    for layer in range(len(net.blocks)):
        at = f"layers.{layer}."
        h = slow_norm(x, w[at + "norm1.weight"], w[at + "norm1.bias"])
        p = h @ w[at + "mixer.in_proj.weight"].T + w[at + "mixer.in_proj.bias"]
        taps, k = w[at + "mixer.short_filter.weight"], slow_filter(w, at + "mixer.filter_fn.", dim, LONGEST, shift)
        short = np.zeros_like(p)
        for i, c in itertools.product(range(length), range(3 * dim)):
            short[i, c] = w[at + "mixer.short_filter.bias"][c]
            short[i, c] += sum(taps[c, 0, 2 - back] * p[i - back, c] for back in range(3) if i >= back)
        x0, x1, v = short[:, :dim], short[:, dim : 2 * dim], short[:, 2 * dim :]
        v = v * x1
        y = np.zeros_like(v)
        for i, c in itertools.product(range(length), range(dim)):
            y[i, c] = sum(k[i - j, c] * v[j, c] for j in range(i + 1)) + w[at + "mixer.filter_fn.bias"][c] * v[i, c]
        x = x + (y * x0) @ w[at + "mixer.out_proj.weight"].T + w[at + "mixer.out_proj.bias"]
        h = slow_norm(x, w[at + "norm2.weight"], w[at + "norm2.bias"])
        h = h @ w[at + "mlp.fc1.weight"].T + w[at + "mlp.fc1.bias"]
        h = 0.5 * h * (1 + np.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
        x = x + h @ w[at + "mlp.fc2.weight"].T + w[at + "mlp.fc2.bias"]
    return slow_norm(x, w["ln_f.weight"], w["ln_f.bias"])


@pytest.mark.parametrize("length", [1, 2, 3, 21, LONGEST])
@pytest.mark.parametrize("shift", [0.0, 0.05])
def test_hidden_states_and_logits_are_those_of_the_slow_sums(length, shift):
    net, tokens = hyena(shift=shift).double(), some_tokens(2, length)
    hidden = hidden_of(net, tokens)
    assert hidden.dtype == torch.float64
    for row in range(2):
        wanted = slow_hidden(net, tokens[row].tolist(), shift)
        np.testing.assert_allclose(hidden[row].numpy(), wanted, rtol=0, atol=1e-10)
        logits = wanted @ weights_of(net)["embeddings.word_embeddings.weight"][:12].T
        np.testing.assert_allclose(net.head(hidden[row]).detach().numpy(), logits, rtol=0, atol=1e-10)
    single = hidden_of(net.float(), tokens)
    assert single.dtype == torch.float32
    np.testing.assert_allclose(single[-1].numpy(), wanted, rtol=0, atol=2e-3)


def test_the_shift_is_added_to_the_window():
    tokens = some_tokens()
    assert not torch.allclose(hidden_of(hyena(), tokens), hidden_of(hyena(shift=0.05), tokens), atol=1e-3)


# -- published facts --------------------------------------------------------------------------------------------------


def test_the_size_of_the_paper():
    """By hand: all that is trained is counted, shared tensors once, and no fixed table."""
    with torch.device("meta"):
        net = Hyena(VOCAB)
    made_of = {
        "embedding": 16 * 128, "norms": 2 * 2 * 256 + 256, "in": 2 * (128 * 384 + 384), "out": 2 * (128 * 128 + 128),
        "short": 2 * (384 * 3 + 384), "mlp": 2 * (128 * 512 + 512 + 512 * 128 + 128), "bias": 2 * 128,
        "filter": 2 * (5 * 64 + 64 + 2 * (64 * 64 + 64) + 64 * 128), "freq": 2 * 64,
    }  # fmt: skip
    count = sum(p.numel() for p in net.parameters())
    assert count == sum(made_of.values()) == 436_096
    assert all(p.requires_grad for p in net.parameters())
    assert (net.longest, net.causal, net.hidden_dim, len(net.blocks)) == (1026, True, 128, 2)


def wanted_names() -> set[str]:
    own = {f"{norm}.{kind}" for norm in ("norm1", "norm2") for kind in ("weight", "bias")}
    own |= {f"mixer.{part}.{kind}" for part in ("in_proj", "out_proj", "short_filter") for kind in ("weight", "bias")}
    own |= {f"mlp.{part}.{kind}" for part in ("fc1", "fc2") for kind in ("weight", "bias")}
    own |= {f"mixer.filter_fn.implicit_filter.{i}.{kind}" for i in (0, 2, 4) for kind in ("weight", "bias")}
    own |= {f"mixer.filter_fn.{name}" for name in ("bias", "implicit_filter.6.weight", "implicit_filter.1.freq")}
    return {f"layers.{i}.{name}" for i in range(LAYERS) for name in own} | {
        "embeddings.word_embeddings.weight",
        "ln_f.weight",
        "ln_f.bias",
    }


def test_names_are_the_published_ones_each_once():
    net = hyena()
    assert set(net.state_dict()) == wanted_names()
    assert list(net.state_dict()) == [name for name, _ in net.named_parameters()]  # an average has the same names
    assert not list(net.buffers())
    assert net.layers[0].mixer.short_filter.weight.shape == (3 * DIM, 1, 3)
    assert net.layers[0].mixer.filter_fn.implicit_filter["1"].freq.shape == (1, FILTER)


def test_built_without_memory_and_filled_it_is_the_same():
    """As `unmask.load` does it: nothing of the network is outside its state."""
    net, tokens = hyena(), some_tokens()
    with torch.device("meta"):
        other = Hyena(VOCAB, DIM, LAYERS, 2, 0.0, FILTER, LONGEST)
    other = other.to_empty(device="cpu").eval()
    with torch.no_grad():
        for name, target in other.state_dict().items():
            target.copy_(net.state_dict()[name])
    assert hidden_of(other, tokens).equal(hidden_of(net, tokens))


def published_file(net: Hyena, prefix: str, layer: str = "") -> dict[str, Tensor]:
    """The tensors of a network as a published file has them: tables, one frequency under three names, and a head."""
    file = {}
    for name, tensor in net.state_dict().items():
        for part in ("mixer", "mlp"):
            name = name.replace(f".{part}.", f".{part}{layer}.")
        file[f"{prefix}backbone.{name}"] = tensor.detach().clone()
        if name.endswith("freq"):
            for i in "35":
                file[f"{prefix}backbone.{name[: -len('1.freq')]}{i}.freq"] = tensor.detach().clone()
    for i, (name, table) in itertools.product(range(LAYERS), slow_tables(DIM, LONGEST).items()):
        file[f"{prefix}backbone.layers.{i}.mixer{layer}.filter_fn.{name}"] = torch.from_numpy(table).float()
    return file | {f"{prefix}lm_head.weight": net.table.detach().clone()}


@pytest.mark.parametrize(("prefix", "layer"), [("model.", ""), ("model.", ".layer"), ("hyena.", ""), ("", "")])
def test_published_files_come_under_our_names(prefix, layer):
    net = hyena()
    found = published(published_file(net, prefix, layer), LONGEST, "file")
    wanted = {f"backbone.{name}": tensor for name, tensor in net.state_dict().items()}
    assert found.keys() == wanted.keys()
    assert all(found[name].equal(wanted[name]) for name in wanted)
    half = {name: tensor.bfloat16() for name, tensor in published_file(net, prefix, layer).items()}
    assert published(half, LONGEST, "file").keys() == wanted.keys()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("layers.1.mixer.filter_fn.pos_emb.z", "that of filters for 40 columns"),
        ("layers.0.mixer.filter_fn.pos_emb.t", "that of filters for 40 columns"),
        ("layers.0.mixer.filter_fn.modulation.deltas", "that of filters for 40 columns"),
        ("layers.1.mixer.filter_fn.implicit_filter.5.freq", "the first sines"),
        ("lm_head.weight", "the embedding"),
    ],
)
def test_published_files_with_something_else_are_refused(changed, said):
    file = published_file(hyena(), "hyena.")
    name = next(name for name in file if name.endswith(changed))
    file[name] = file[name] + 0.01
    with pytest.raises(UserError, match=said) as caught:
        published(file, LONGEST, "file")
    assert "\n" not in str(caught.value) and changed in str(caught.value)


def test_published_files_of_another_length_are_refused():
    with pytest.raises(UserError, match=r"pos_emb\.z is not that of filters for 41 columns"):
        published(published_file(hyena(), ""), 41, "file")


def test_the_start_is_that_of_gpt_2():
    torch.manual_seed(0)
    net = Hyena(VOCAB, 128, 2)
    state = net.state_dict()

    def near(name: str, std: float) -> None:
        assert float(state[name].std()) == pytest.approx(std, rel=0.06), name

    for name in ("in_proj", "filter_fn.implicit_filter.2", "filter_fn.implicit_filter.6"):
        near(f"layers.1.mixer.{name}.weight", 0.02)
    near("layers.0.mlp.fc1.weight", 0.02)
    near("embeddings.word_embeddings.weight", 0.02)
    near("layers.0.mlp.fc2.weight", 0.02 / math.sqrt(4))
    near("layers.1.mixer.out_proj.weight", 0.02 / math.sqrt(4))
    assert float(state["layers.0.mixer.filter_fn.bias"].std()) == pytest.approx(1, rel=0.25)
    assert (state["layers.0.mixer.filter_fn.implicit_filter.1.freq"] == 10).all()
    for name in ("mixer.in_proj", "mixer.out_proj", "mlp.fc1", "mlp.fc2", "mixer.filter_fn.implicit_filter.0"):
        assert (state[f"layers.0.{name}.bias"] == 0).all()


def test_what_decays():
    net = hyena()
    decays = {name for name, _ in net.named_parameters()} - net.no_decay()
    parts = ("mixer.in_proj", "mixer.out_proj", "mixer.short_filter", "mlp.fc1", "mlp.fc2")
    assert decays == {f"layers.{i}.{part}.weight" for i in range(LAYERS) for part in parts}


# -- who sees whom ----------------------------------------------------------------------------------------------------


def test_no_column_sees_what_follows_it_and_all_see_what_stands_before():
    net, tokens = hyena().double(), some_tokens(2, LONGEST)
    before = hidden_of(net, tokens)
    for j in range(LONGEST):
        other = tokens.clone()
        other[:, j] = (other[:, j] + 1) % VOCAB.size
        change = (hidden_of(net, other) - before).abs().amax(-1)
        assert (change[:, :j] < 1e-11).all()  # all columns are in one transform, so that rounding errors mix
        assert (change[:, j:] > 1e-8).all()


def spread(tokens: Tensor, places: list[list[int]], length: int) -> tuple[Tensor, Tensor]:
    """Rows whose tokens stand at some places, and where these are; elsewhere there is something else."""
    rows, valid = some_tokens(len(places), length, seed=5), torch.zeros(len(places), length, dtype=torch.bool)
    for row, own in enumerate(places):
        rows[row, own], valid[row, own] = tokens[row, : len(own)], True
    return rows, valid


@pytest.mark.parametrize(
    "places",
    [
        [list(range(9)), list(range(5)), [0]],  # padding on the right,
        [list(range(9)), list(range(4, 9)), [8]],  # on the left,
        [[0, 1, 2, 6, 7, 8], [1, 3, 5, 7], [0, 8]],  # and in the middle
        [[2, 3, 7], [], [4]],
    ],
)
def test_pads_change_nothing(places):
    net, tokens = hyena(), some_tokens(3, 9)
    rows, valid = spread(tokens, places, 9)
    hidden = hidden_of(net, rows, valid=valid)
    assert hidden.isfinite().all()
    for row, own in enumerate(places):
        if own:
            alone = hidden_of(net, tokens[row : row + 1, : len(own)])
            torch.testing.assert_close(hidden[row, own], alone[0], rtol=1e-4, atol=1e-4)
    other = torch.where(valid, rows, some_tokens(3, 9, seed=8))
    torch.testing.assert_close(hidden_of(net, other, valid=valid)[valid], hidden[valid], rtol=1e-4, atol=1e-4)


def test_pads_change_no_gradient():
    net, tokens = hyena().double(), some_tokens(2, 6)
    rows, valid = spread(tokens, [[0, 2, 3, 5, 6, 9], [4, 5, 6, 7, 8, 9]], 10)
    weight = torch.randn(2, 6, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    sums = [net(tokens)[0], net(rows, valid=valid)[0][valid].view(2, 6, DIM)]
    parameters = list(net.parameters())
    for one, other in zip(*(torch.autograd.grad((x * weight).sum(), parameters) for x in sums), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


# -- the cache --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cuts", [[21], [1] * 21, [4, 17], [3, 1, 17], [19, 2]])
def test_the_cache_changes_nothing(cuts):
    net, tokens = hyena(), some_tokens()
    parts, cache = [], net.empty_cache(3)
    with torch.no_grad():
        for part in tokens.split(cuts, dim=1):
            hidden, cache = net(part, cache=cache)
            parts.append(hidden)
    assert [(tuple(a.shape), tuple(b.shape)) for a, b in cache] == [((3, 1, 21, 3 * DIM), (3, 1, 21, DIM))] * LAYERS
    for row in range(3):
        truth = slow_hidden(net, tokens[row].tolist())
        np.testing.assert_allclose(torch.cat(parts, 1)[row].numpy(), truth, rtol=0, atol=1e-3)


def test_a_cache_is_not_written_into_and_without_one_none_comes_back():
    net, tokens = hyena(), some_tokens()
    with torch.no_grad():
        _, cache = net(tokens[:, :4], cache=net.empty_cache(3))
        copies = [(a.clone(), b.clone()) for a, b in cache]
        first, second = (net(tokens[:, 4:], cache=cache)[0] for _ in range(2))
    assert first.equal(second)
    assert all(a.equal(c) and b.equal(d) for (a, b), (c, d) in zip(cache, copies, strict=True))
    assert net(tokens)[1] is None


@pytest.mark.parametrize("cuts", [[5, 3, 1], [9], [1] * 9])
def test_rows_that_end_together(cuts):
    """Padding before a row, in the cache and in what is new: the row is as it is alone."""
    net, tokens, n = hyena(), some_tokens(3, 9), torch.tensor([9, 6, 2])
    place = torch.arange(9) - (9 - n)[:, None]
    rows = tokens.gather(1, place.clamp(min=0))
    cache, parts = net.empty_cache(3), []
    with torch.no_grad():
        for columns in torch.arange(9).split(cuts):
            valid, positions = (place >= 0)[:, : columns[-1] + 1], place[:, columns].clamp(min=0)
            hidden, cache = net(rows[:, columns], valid=valid, positions=positions, cache=cache)
            parts.append(hidden)
    hidden = torch.cat(parts, 1)
    assert hidden.isfinite().all()
    for row, count in enumerate(n.tolist()):
        alone = hidden_of(net, tokens[row : row + 1, :count])
        torch.testing.assert_close(hidden[row : row + 1, -count:], alone, rtol=1e-4, atol=1e-4)


def test_what_a_cache_holds_of_padding_is_not_looked_at():
    net, tokens = hyena(), some_tokens(1, 7)
    valid = torch.arange(7) >= 3
    with torch.no_grad():
        _, cache = net(tokens[:, :5], cache=net.empty_cache(1))  # as if all were there
        hidden, _ = net(tokens[:, 5:], valid=valid[None], cache=cache)
        dirty = [(a.clone(), b.clone()) for a, b in cache]
        for a, b in dirty:
            a[:, :, :3], b[:, :, :3] = float("nan"), float("nan")
        assert net(tokens[:, 5:], valid=valid[None], cache=dirty)[0].equal(hidden)


def test_with_a_cache_padding_stands_before_the_rows():
    net, tokens = hyena(), some_tokens(1, 3)
    with pytest.raises(ValueError, match="padding before the rows only"):
        net(tokens, valid=torch.tensor([[True, False, True]]), cache=net.empty_cache(1))


# -- what it refuses, types and training ------------------------------------------------------------------------------


def test_rows_longer_than_the_filters_are_refused():
    net = hyena()
    assert hidden_of(net, some_tokens(1, LONGEST)).shape == (1, LONGEST, DIM)
    with pytest.raises(UserError, match=r"41 tokens are more than the 40 .* data\.length to at most 40") as caught:
        net(some_tokens(1, LONGEST + 1))
    assert "\n" not in str(caught.value)
    with torch.no_grad():
        _, cache = net(some_tokens(1, LONGEST), cache=net.empty_cache(1))
    with pytest.raises(UserError, match="41 tokens"):
        net(some_tokens(1, 1), cache=cache)


def test_dropout_is_of_the_embedding_in_training_only():
    net, tokens = hyena(dropout=0.5), some_tokens()
    assert hidden_of(net, tokens).equal(hidden_of(hyena(), tokens))
    seen: list[Tensor] = []
    net.layers[0].norm1.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    hidden_of(net.train(), tokens)
    embedded = net.table[tokens].detach()
    dropped = seen[0] == 0
    assert 0.35 < dropped.float().mean() < 0.65
    torch.testing.assert_close(seen[0][~dropped], 2 * embedded[~dropped])


def test_half_precision_with_a_residual_stream_in_float32():
    net, tokens = hyena(), some_tokens()
    streams: list[Tensor] = []
    for block in net.layers:
        block.register_forward_hook(lambda _module, _given, out: streams.append(out[0]))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        whole = net(tokens)[0]
        _, cache = net(tokens[:, :15], cache=net.empty_cache(3))
        rest, _ = net(tokens[:, 15:], cache=cache)
        filters = net.layers[0].mixer.filter_fn(LONGEST)
    assert all(stream.dtype == torch.float32 for stream in streams) and whole.dtype == torch.float32
    assert cache[0][0].dtype == torch.bfloat16
    assert filters.dtype == torch.float32 and filters.equal(net.layers[0].mixer.filter_fn(LONGEST))
    torch.testing.assert_close(whole, hidden_of(net, tokens), rtol=0.1, atol=0.1)
    torch.testing.assert_close(rest, whole[:, 15:], rtol=0.1, atol=0.1)


def test_the_padding_of_the_vocabulary_is_never_predicted_and_never_learns():
    net = hyena()
    assert net.table.shape == (16, DIM)
    logits = net.head(net(some_tokens())[0].flatten(0, 1))
    assert logits.shape == (63, 12)
    logits.logsumexp(-1).sum().backward()
    assert net.table.grad[12:].abs().max() == 0 and net.table.grad[:12].abs().amin(1).max() > 0


def text_model(vocab: Vocab = VOCAB, **more) -> AutoRegressive:
    return AutoRegressive(hyena(vocab=vocab, **more)).eval()


def batch_of(tokens: Tensor, present: Tensor | None = None) -> Batch:
    return Batch(tokens, torch.arange(len(tokens)), len(tokens), present=present, scored=present)


def test_gradients_are_finite_and_reach_every_weight():
    torch.manual_seed(0)
    model = AutoRegressive(Hyena(VOCAB, 16, 2, filter_dim=8, filter_length=300))  # as it begins
    total, weight = model(batch_of(torch.randint(7, 11, (2, 300))), Keys(0))
    (total / weight).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.dtype == torch.float32, name
        assert parameter.grad.isfinite().all() and parameter.grad.abs().max() > 0, name


MOTIF = [7] * 7 + [8] + [7] * 7 + [9]  # which base follows seven times A is told by the one before them


def rows_of_motif(n: int, length: int, seed: int) -> Tensor:
    begin = torch.randint(16, (n, 1), generator=torch.Generator().manual_seed(seed))
    return torch.tensor(MOTIF)[(begin + torch.arange(length)) % 16]


def nats_of_order(order: int) -> float:
    """Mean -log p of a base of the endless motif given those of `order` columns before it, by counting."""
    pairs = [(tuple(MOTIF[(i + j) % 16] for j in range(order)), MOTIF[(i + order) % 16]) for i in range(16)]
    contexts = [context for context, _ in pairs]
    return sum(math.log(contexts.count(pair[0]) / pairs.count(pair)) for pair in pairs) / 16


def test_it_learns_what_only_the_long_filters_see():
    """Short filters of two blocks see four columns back; a run of seven is longer than that."""
    torch.manual_seed(0)
    steps, losses = 200, []
    model = AutoRegressive(Hyena(VOCAB, 16, LAYERS, 2, dropout=0.0, filter_dim=16, filter_length=64))
    optimizer = torch.optim.AdamW(model.parameters())
    for i in range(steps):
        total, weight = model(batch_of(rows_of_motif(8, 48, i)), Keys(0))
        optimizer.zero_grad()
        (total / weight).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = 1e-2 * (1 - i / steps)
        optimizer.step()
        losses.append(float(total.detach() / weight))
    with torch.no_grad():
        late = model.nats(batch_of(rows_of_motif(16, 48, 999)), Keys(0)).nats[:, 16:].mean()  # after a whole motif
    assert losses[0] > 2 and losses[-1] < 0.5
    assert nats_of_order(8) == 0 and nats_of_order(4) > 0.36
    assert late < nats_of_order(4) / 2


# -- as a language model ----------------------------------------------------------------------------------------------


def test_the_likelihood_is_one_over_all_texts():
    vocab = Vocab(5, mask=1)
    model = text_model(vocab)
    every = torch.tensor(list(itertools.product((0, 2, 3, 4), repeat=4)))
    with torch.no_grad():
        nats = model.nats(batch_of(every), Keys(0)).nats.double().sum(1)
    assert torch.exp(-nats).sum() == pytest.approx(1, abs=1e-5)
    assert nats.std() > 0.5  # not all texts alike


@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_samples_have_the_chances_of_a_network_without_a_cache(batch_size):
    """Rows of several lengths and prompts, which join and leave: chances are those of the slow sums."""
    model, mask = text_model(), VOCAB.mask
    prompts = [[], [7, 8, 9], [10], [7, 8, 9, 7, 7, 10, 8], [7, 8]]
    canvases = [torch.tensor([*prompt, *[mask] * more]) for prompt, more in zip(prompts, (8, 3, 20, 6, 1), strict=True)]
    written: list[dict[int, float]] = [{} for _ in canvases]
    texts: dict[int, list[int]] = {}
    keys = [Keys(i) for i in range(len(canvases))]
    for state in generate(model, canvases, LeftToRight(), keys, batch_size=batch_size):
        written[state.row] |= dict(zip(state.positions.tolist(), state.probs.tolist(), strict=True))
        if state.done:
            texts[state.row] = state.canvas.tolist()
    table = weights_of(model.backbone)["embeddings.word_embeddings.weight"][:12]
    for row, prompt in enumerate(prompts):
        text = texts[row]
        assert text[: len(prompt)] == prompt and mask not in text
        logits = slow_hidden(model.backbone, [mask, *text[:-1]]) @ table.T
        logits[:, mask] = -np.inf
        chances = np.exp(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))
        assert sorted(written[row]) == list(range(len(prompt), len(text)))
        for column, chance in written[row].items():
            assert chance == pytest.approx(chances[column, text[column]], rel=5e-3, abs=1e-4)


def test_the_likelihood_of_rows_with_padding_is_that_of_the_rows():
    model, tokens = text_model(), some_tokens(3, 9)
    tokens = torch.where(tokens == VOCAB.mask, 7, tokens)
    rows, valid = spread(tokens, [list(range(9)), [3, 4, 5, 6], [1, 2, 6, 8]], 9)
    rows = torch.where(rows == VOCAB.mask, 7, rows)
    with torch.no_grad():
        nats = model.nats(batch_of(rows, valid), Keys(0)).nats
        for row in range(3):
            alone = model.nats(batch_of(rows[row, valid[row]][None]), Keys(0)).nats[0]
            torch.testing.assert_close(nats[row, valid[row]], alone, rtol=1e-4, atol=1e-4)
