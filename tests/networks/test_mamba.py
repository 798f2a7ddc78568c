"""Mamba against transformers and mambapy, forward and backward; its state, its padding, its size, its likelihood."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from support.drawing import generate
from unmask.data.genome.bases import VOCAB as DNA
from unmask.models.autoregressive import AutoRegressive
from unmask.networks.kernels import scan
from unmask.networks.layers import padded
from unmask.networks.mamba import Mamba, Mixer
from unmask.process.keys import Keys
from unmask.sampling import Choice, LeftToRight
from unmask.types import Batch, Vocab

VOCAB = Vocab(13, mask=3, pad=4)
DIM, LAYERS, STATE, WIDTH, EXPAND = 24, 2, 5, 4, 2


def mamba(seed: int = 0, vocab: Vocab = VOCAB, width: int = WIDTH) -> Mamba:
    """A small network in which no weight is what it is at the start."""
    torch.manual_seed(seed)
    net = Mamba(vocab, DIM, LAYERS, STATE, width, EXPAND)
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.4)
    return net.eval()


def some_tokens(batch: int = 3, length: int = 9, seed: int = 1) -> Tensor:
    return torch.randint(VOCAB.size, (batch, length), generator=torch.Generator().manual_seed(seed))


def hidden_of(net: Mamba, tokens: Tensor, valid: Tensor | None = None) -> Tensor:
    with torch.no_grad():
        return net(tokens, valid=valid)[0]


def near(found: Tensor, truth: Tensor, tolerance: float = 1e-5) -> None:
    """As near as the largest number of the truth allows."""
    torch.testing.assert_close(found, truth, rtol=0, atol=tolerance * max(1.0, float(truth.detach().abs().max())))


def learned(net: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in net.named_parameters()}


# -- other libraries ---------------------------------------------------------------------------------------------------


def hf(net: Mamba):
    """The same network as transformers has it: our names below `backbone.`, one weight for embedding and head."""
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(
        vocab_size=padded(net.vocab.size),
        hidden_size=DIM,
        state_size=STATE,
        num_hidden_layers=LAYERS,
        expand=EXPAND,
        conv_kernel=WIDTH,
        use_bias=False,
        use_conv_bias=True,
        layer_norm_epsilon=1e-5,
        time_step_rank=math.ceil(DIM / 16),
        tie_word_embeddings=True,
        use_mambapy=False,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    oracle = MambaForCausalLM(config)
    found = oracle.load_state_dict(
        {f"backbone.{name}": value for name, value in net.state_dict().items()}, strict=False
    )
    assert set(found.missing_keys) <= {"lm_head.weight"} and not found.unexpected_keys
    oracle.tie_weights()
    return oracle.eval()


def test_it_is_that_of_transformers_forward_and_backward():
    net, tokens = mamba(), some_tokens(3, 37)
    oracle = hf(net)
    truth = oracle(input_ids=tokens, use_cache=False).logits[..., : VOCAB.size]
    logits = net.head(net(tokens)[0])
    assert truth.std() > 0.5
    near(logits, truth)
    up = torch.randn(truth.shape, generator=torch.Generator().manual_seed(0))
    truth.backward(up)
    logits.backward(up)
    wanted = {name.removeprefix("backbone."): grad for name, grad in learned(oracle).items()}
    assert set(wanted) == set(learned(net)) and all(grad.abs().max() > 1e-3 for grad in wanted.values())
    for name, grad in learned(net).items():
        near(grad, wanted[name])


def test_padding_before_a_row_is_that_of_transformers():
    net, tokens = mamba(), some_tokens()
    valid = torch.arange(9) >= torch.tensor([0, 3, 8])[:, None]
    with torch.no_grad():
        truth = hf(net)(input_ids=tokens, attention_mask=valid.long(), use_cache=False).logits[..., : VOCAB.size]
    near(net.head(hidden_of(net, tokens, valid))[valid], truth[valid])


def mambapy_config(pscan: bool):
    from mambapy.mamba import MambaConfig

    return MambaConfig(DIM, LAYERS, d_state=STATE, expand_factor=EXPAND, d_conv=WIDTH, pscan=pscan)


@pytest.mark.parametrize("pscan", [True, False])
def test_its_layers_are_those_of_mambapy_forward_and_backward(pscan):
    from mambapy.mamba import Mamba as Other

    net, tokens = mamba(), some_tokens(3, 37)
    oracle = Other(mambapy_config(pscan))
    own = {name: value for name, value in net.state_dict().items() if name.startswith("layers.")}
    oracle.load_state_dict(own, strict=True)
    with torch.no_grad():
        x = net.embeddings(tokens)
    stream = oracle(x)
    truth = stream * (stream.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * net.norm_f.weight.detach()
    hidden = net(tokens)[0]
    near(hidden, truth)
    up = torch.randn(truth.shape, generator=torch.Generator().manual_seed(0))
    truth.backward(up)
    hidden.backward(up)
    for name, grad in learned(oracle).items():
        near(learned(net)[name], grad)


def test_a_block_and_its_step_are_those_of_mambapy():
    from mambapy.mamba import MambaBlock

    torch.manual_seed(0)
    mixer = Mixer(DIM, STATE, WIDTH, EXPAND)
    oracle = MambaBlock(mambapy_config(True))
    oracle.load_state_dict(mixer.state_dict(), strict=True)
    x = torch.randn(2, 19, DIM, requires_grad=True)
    truth, (found, none) = oracle(x), mixer(x)
    near(found, truth)
    assert none is None
    up = torch.randn_like(truth)
    pair = [torch.autograd.grad(out, [x, *m.parameters()], up) for out, m in ((truth, oracle), (found, mixer))]
    names = [[name for name, _ in m.named_parameters()] for m in (oracle, mixer)]
    wanted = dict(zip(["input", *names[0]], pair[0], strict=True))
    for name, grad in zip(["input", *names[1]], pair[1], strict=True):
        near(grad, wanted[name])
    inner = EXPAND * DIM
    theirs = (None, torch.zeros(2, inner, WIDTH - 1))
    ours = (torch.zeros(2, WIDTH - 1, inner), torch.zeros(2, STATE, inner))
    with torch.no_grad():
        for column in x.unbind(1):
            wanted, theirs = oracle.step(column, theirs)
            found, ours = mixer(column[:, None], memory=ours)
            near(found[:, 0], wanted)
    near(ours[0], theirs[1].mT)
    near(ours[1], theirs[0].mT)


# -- published facts ---------------------------------------------------------------------------------------------------


def test_the_size_of_the_paper():
    assert sum(p.numel() for p in Mamba(DNA).parameters()) == 468_608


def test_names_are_the_published_ones():
    parts = ["A_log", "D", "in_proj.weight", "conv1d.weight", "conv1d.bias", "x_proj.weight", "dt_proj.weight"]
    parts += ["dt_proj.bias", "out_proj.weight"]
    names = {f"layers.{i}.{part}" for i in range(LAYERS) for part in ["norm.weight", *(f"mixer.{p}" for p in parts)]}
    assert set(mamba().state_dict()) == names | {"embeddings.weight", "norm_f.weight"}


def test_how_it_begins():
    """A is -1 .. -N, steps from 0.001 to 0.1 evenly in their logarithm, what is added is small."""
    torch.manual_seed(0)
    net = Mamba(DNA, 128, 4)
    for layer in net.layers:
        mixer = layer.mixer
        near(mixer.A_log.exp(), torch.arange(1.0, 17.0).expand(256, 16), 1e-6)
        assert (mixer.D == 1).all() and (layer.norm.weight == 1).all()
        step = F.softplus(mixer.dt_proj.bias).log10().detach()
        assert -3.001 < step.min() < -2.9 and -1.1 < step.max() < -0.999
        assert step.mean() == pytest.approx(-2, abs=0.15)
        assert mixer.dt_proj.weight.abs().max() <= 8**-0.5 and mixer.dt_proj.weight.std() > 0.15
        bound = 256**-0.5 / 2  # torch's own of a matrix with 256 inputs, over the root of 4 layers
        assert 0.95 * bound < mixer.out_proj.weight.abs().max() <= bound
    assert net.embeddings.weight.detach().std() == pytest.approx(0.02, rel=0.1)


def test_what_is_not_pulled_to_zero():
    names = {name for name, p in mamba().named_parameters() if p.ndim < 2} - {"norm_f.weight"}
    names -= {f"layers.{i}.norm.weight" for i in range(LAYERS)}
    assert mamba().no_decay() == names | {"embeddings.weight"} | {f"layers.{i}.mixer.A_log" for i in range(LAYERS)}


def test_the_padding_of_the_vocabulary_is_never_predicted_and_never_learns():
    net = mamba()
    logits = net.head(net(some_tokens())[0].flatten(0, 1))
    assert logits.shape == (27, 13) and net.embeddings.num_embeddings == 16
    logits.logsumexp(-1).sum().backward()
    assert net.embeddings.weight.grad[13:].abs().max() == 0 < net.embeddings.weight.grad[:13].abs().min()


# -- the past ----------------------------------------------------------------------------------------------------------


def test_no_column_sees_what_follows_it():
    net, tokens = mamba(), some_tokens(2, 30)
    before = hidden_of(net, tokens)
    for j in range(30):
        other = tokens.clone()
        other[:, j] = (other[:, j] + 1) % VOCAB.size
        gap = (hidden_of(net, other) - before).abs().amax(-1)
        assert not gap[:, :j].any() and (gap[:, j] > 1e-3).all()


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("cuts", [[9], [1, 8], [5, 4], [2, 1, 1, 5], [1] * 9])
def test_a_state_changes_nothing(cuts, width):
    """Columns in one call or in several, each after what the state has read."""
    net, tokens = mamba(width=width), some_tokens()
    cache, parts = net.empty_cache(3), []
    with torch.no_grad():
        for piece in tokens.split(cuts, dim=1):
            hidden, cache = net(piece, cache=cache)
            parts.append(hidden)
    near(torch.cat(parts, 1), hidden_of(net, tokens))
    sizes = [[tuple(part.shape) for part in memory] for memory in cache]
    assert sizes == [[(3, width - 1, EXPAND * DIM), (3, STATE, EXPAND * DIM)]] * LAYERS, "whatever was read"


def test_a_state_is_not_written_into_and_comes_only_if_asked_for():
    net, tokens = mamba(), some_tokens()
    assert net(tokens)[1] is None
    with torch.no_grad():
        _, cache = net(tokens[:, :4], cache=net.empty_cache(3))
        copies = [[part.clone() for part in memory] for memory in cache]
        first, second = (net(tokens[:, 4:], cache=cache)[0] for _ in range(2))
    assert torch.equal(first, second)
    for own, copy in zip(itertools.chain(*cache), itertools.chain(*copies), strict=True):
        assert torch.equal(own, copy)


PLACES = {  # of rows with padding: which columns of 9 exist
    "left": lambda: torch.arange(9) >= torch.tensor([0, 4, 8])[:, None],
    "right": lambda: torch.arange(9) < torch.tensor([9, 5, 1])[:, None],
    "middle": lambda: torch.tensor([[1] * 9, [1, 1, 0, 0, 0, 1, 1, 0, 1], [0, 1, 0, 1, 0, 0, 0, 0, 0]]).bool(),
}
each_place = pytest.mark.parametrize("place", PLACES)


@each_place
@pytest.mark.parametrize("cuts", [[9], [3, 4, 2], [1] * 9])
def test_padding_in_what_a_state_reads(cuts, place):
    """In any of the calls, and whole calls of nothing but padding for some rows: the rest is as without it."""
    net, tokens, valid = mamba(), some_tokens(), PLACES[place]()
    cache, parts, end = net.empty_cache(3), [], 0
    with torch.no_grad():
        for piece in tokens.split(cuts, dim=1):
            end += piece.shape[1]
            hidden, cache = net(piece, valid=valid[:, :end], cache=cache)  # of all that was read so far
            parts.append(hidden)
    hidden = torch.cat(parts, 1)
    assert hidden.isfinite().all()
    for row in range(3):
        alone, memory = tokens[row, valid[row]][None], net.empty_cache(1)
        with torch.no_grad():
            wanted, memory = net(alone, cache=memory)
        near(hidden[row, valid[row]], wanted[0])
        near(hidden[row, valid[row]], hidden_of(net, alone)[0])
        for own, other in zip(itertools.chain(*cache), itertools.chain(*memory), strict=True):
            near(own[row], other[0])


# -- padding -----------------------------------------------------------------------------------------------------------


@each_place
def test_pads_never_change_a_token(place):
    net, tokens, valid = mamba(), some_tokens(), PLACES[place]()
    first = hidden_of(net, tokens, valid)
    other = torch.where(valid, tokens, some_tokens(seed=7))
    assert not torch.equal(other, tokens)
    assert torch.equal(first[valid], hidden_of(net, other, valid)[valid]) and first.isfinite().all()
    for row in range(3):
        near(first[row, valid[row]], hidden_of(net, tokens[row, valid[row]][None])[0])


@each_place
def test_pads_teach_nothing(place):
    """The gradient of every weight is that of the rows alone."""
    net, tokens, valid = mamba(), some_tokens(), PLACES[place]()
    up = torch.randn(3, 9, VOCAB.size, generator=torch.Generator().manual_seed(2))

    def taught(rows: list[tuple[Tensor, Tensor | None, Tensor]]) -> dict[str, Tensor]:
        net.zero_grad(set_to_none=True)
        for own, exists, weight in rows:
            logits = net.head(net(own, valid=exists)[0])
            (logits * weight).sum().backward()
        return learned(net)

    found = taught([(tokens, valid, up * valid[..., None])])
    alone = taught([(tokens[i, valid[i]][None], None, up[i, valid[i]][None]) for i in range(3)])
    for name, grad in alone.items():
        near(found[name], grad)


def test_a_row_of_nothing_but_padding_is_finite():
    net, tokens = mamba(), some_tokens()
    valid = torch.tensor([True, False, True])[:, None].expand(3, 9)
    hidden = net(tokens, valid=valid)[0]
    hidden[valid].sum().backward()
    assert hidden.isfinite().all() and all(grad.isfinite().all() for grad in learned(net).values())
    near(hidden[0], hidden_of(net, tokens)[0])


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_it_trains_through_one_node_a_scan_at_any_length(monkeypatch):
    """Never a column at a time: the graph of a long row is that of a short one."""

    def size(length: int) -> int:
        hidden = mamba()(some_tokens(1, length))[0]
        todo, seen = [hidden.grad_fn], {hidden.grad_fn}
        while todo:
            for node, _ in todo.pop().next_functions:
                if node is not None and node not in seen:
                    seen.add(node)
                    todo.append(node)
        assert sum(node.name() == "_FusedBackward" for node in seen) == LAYERS
        return len(seen)

    assert size(8) == size(700) < 150
    monkeypatch.setattr("unmask.networks.mamba.selective_scan", scan.scan_loop)
    with pytest.raises(AssertionError):
        size(8)


def test_half_precision():
    net, tokens = mamba(), some_tokens()
    with torch.autocast("cpu", torch.bfloat16):
        hidden = net(tokens)[0]
        hidden.square().mean().backward()
        with torch.no_grad():
            _, cache = net(tokens[:, :5], cache=net.empty_cache(3))
            rest, cache = net(tokens[:, 5:], cache=cache)
    assert hidden.dtype == torch.float32 and cache[0][1].dtype == torch.float32  # the state of the scan is never short
    truth, found = hidden_of(net, tokens), hidden.detach()
    assert (found - truth).std() < 0.05 * truth.std() and (rest - truth[:, 5:]).std() < 0.05 * truth.std()
    assert all(grad.isfinite().all() for grad in learned(net).values())


@pytest.mark.parametrize("start", [True, False])
def test_the_likelihood_is_one_over_all_texts(start):
    vocab = Vocab(4, mask=1)
    model = AutoRegressive(mamba(vocab=vocab), start=start).eval()
    every = torch.tensor(list(itertools.product((0, 2, 3), repeat=4)))
    with torch.no_grad():
        nats = model.nats(Batch(every, torch.arange(81), 81), Keys(0)).nats.double().sum(1)
    chances = torch.exp(-nats)
    assert chances.max() > 2 / 81  # it says something
    if start:
        assert chances.sum() == pytest.approx(1, abs=1e-5)
    else:  # the first token is given
        for token in (0, 2, 3):
            assert chances[every[:, 0] == token].sum() == pytest.approx(1, abs=1e-5)


def test_nats_of_padded_rows_are_those_of_rows_alone():
    model = AutoRegressive(mamba()).eval()
    tokens, present = some_tokens(3, 8) % 2 + 5, torch.arange(8) < torch.tensor([8, 3, 5])[:, None]
    with torch.no_grad():
        nats = model.nats(Batch(tokens, torch.arange(3), 3, present, present), Keys(0)).nats
        for row in range(3):
            alone = tokens[row, present[row]][None]
            near(nats[row, present[row]], model.nats(Batch(alone, torch.arange(1), 1), Keys(0)).nats[0])


def test_samples_follow_the_likelihood():
    """From states that rows share, leave and join again: some begin with a prompt."""
    vocab, n = Vocab(4, mask=1), 300
    model = AutoRegressive(mamba(vocab=vocab)).eval()
    every = torch.tensor(list(itertools.product((0, 2, 3), repeat=3)))
    with torch.no_grad():
        chances = torch.exp(-model.nats(Batch(every, torch.arange(27), 27), Keys(0)).nats.double().sum(1))
    canvases = [torch.tensor([1, 1, 1]) if i % 2 else torch.tensor([2, 1, 1]) for i in range(2 * n)]
    counts = torch.zeros(2, 27)
    states = generate(model, canvases, LeftToRight(), [Keys(i) for i in range(2 * n)], choice=Choice(), batch_size=50)
    done = [state for state in states if state.done]
    assert len(done) == 2 * n
    for state in done:
        place = int((every == state.canvas).all(1).nonzero())
        counts[state.row % 2, place] += 1
    prompted = torch.where(every[:, 0] == 2, chances, 0.0)
    for found, law in zip(counts, (prompted / prompted.sum(), chances), strict=True):
        wanted = law * n
        likely = wanted > 5
        chi = float((((found - wanted) ** 2) / wanted)[likely].sum())
        freedom = int(likely.sum())
        assert chi < freedom + 4 * math.sqrt(2 * freedom) and not found[law == 0].any()
