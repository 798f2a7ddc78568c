"""Caduceus: both strands by its weights, both directions, against slow sums; padding, size; MDLM and SEDD on it."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from support.drawing import generate
from unmask.data.genome.bases import VOCAB
from unmask.models.masked import MaskedDiffusion, Objective
from unmask.networks.caduceus import BiMamba, Caduceus
from unmask.process import ctmc
from unmask.process.keys import Keys
from unmask.process.parameterization import Mean, Parameterization, Score
from unmask.process.schedule import Draw, Law, Polynomial, Schedule
from unmask.sampling import FirstHitting
from unmask.types import Batch, UserError, Vocab

DIM, LAYERS, STATE, WIDTH, EXPAND = 10, 3, 3, 4, 2
OPPOSITE = [0, 1, 2, 3, 4, 5, 6, 10, 9, 8, 7, 11]  # A7 with T10, C8 with G9
KINDS = {"ps": ("ps", False), "ps, swap": ("ps", True), "ph": ("ph", False)}
each_kind = pytest.mark.parametrize("kind", KINDS)
each_ps = pytest.mark.parametrize("swap", [False, True])


def caduceus(strands: str = "ps", swap: bool = False, seed: int = 0, vocab: Vocab = VOCAB, net=Caduceus) -> Caduceus:
    """A small network in float64 in which no weight is what it is at the start."""
    torch.manual_seed(seed)
    made = net(vocab, DIM, LAYERS, STATE, WIDTH, EXPAND, strands, swap)
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.5)
    return made.double().eval()


def some_tokens(batch: int = 3, length: int = 9, seed: int = 1) -> Tensor:
    """All of the vocabulary, bases most often."""
    g = torch.Generator().manual_seed(seed)
    tokens = torch.randint(7, 11, (batch, length), generator=g)
    return torch.where(
        torch.rand(batch, length, generator=g) < 0.3, torch.randint(12, tokens.shape, generator=g), tokens
    )


def other_strand(tokens: Tensor) -> Tensor:
    return torch.tensor([[OPPOSITE[token] for token in reversed(row)] for row in tokens.tolist()])


def logits_of(net: Caduceus, tokens: Tensor, valid: Tensor | None = None) -> Tensor:
    with torch.no_grad():
        return net.head(net(tokens, valid=valid)[0])


def turned_logits(logits: Tensor) -> Tensor:
    """(B, L, V) of the other strand, read as this one."""
    return logits.flip(1)[..., OPPOSITE]


def near(found: Tensor, truth: Tensor | np.ndarray, tolerance: float = 1e-10) -> None:
    truth = torch.as_tensor(truth)
    torch.testing.assert_close(found, truth, rtol=0, atol=tolerance * max(1.0, float(truth.detach().abs().max())))


# -- both strands ----------------------------------------------------------------------------------------------------


@each_ps
def test_what_it_says_of_the_other_strand_is_the_same(swap):
    net, tokens = caduceus(swap=swap), some_tokens(4, 23)
    logits = logits_of(net, tokens)
    assert logits.std() > 0.3 and (logits - logits.flip(1)).abs().max() > 0.3
    near(turned_logits(logits_of(net, other_strand(tokens))), logits)


@each_ps
def test_so_do_its_hidden_states(swap):
    """hidden(R x) = R hidden(x): length and channels turned over."""
    net, tokens = caduceus(swap=swap), some_tokens()
    with torch.no_grad():
        one, other = (net(own)[0] for own in (tokens, other_strand(tokens)))
    assert net.hidden_dim == one.shape[-1] == 2 * DIM
    near(other.flip(1, 2), one)


@each_ps
def test_with_padding_too(swap):
    net, tokens = caduceus(swap=swap), some_tokens()
    valid = torch.tensor([[1] * 9, [1, 1, 0, 0, 0, 1, 1, 0, 1], [0, 1, 0, 1, 0, 0, 0, 0, 0]]).bool()
    one, other = logits_of(net, tokens, valid), logits_of(net, other_strand(tokens), valid.flip(1))
    near(turned_logits(other)[valid], one[valid])


@each_ps
def test_the_whole_of_mdlm_is_equivariant(swap):
    model = MaskedDiffusion(caduceus(swap=swap), Polynomial()).eval()
    z = some_tokens(4, 12)
    z[torch.rand(z.shape, generator=torch.Generator().manual_seed(3)) < 0.5] = VOCAB.mask
    t = torch.full((4,), 0.5, dtype=torch.float64)
    with torch.no_grad():
        one, other = (model.log_x(model.hidden(own, t)) for own in (z, other_strand(z)))
    assert (one[..., VOCAB.mask] == -math.inf).all() and one.exp()[..., 7].std() > 0.02
    clean = [token for token in range(VOCAB.size) if token != VOCAB.mask]
    near(turned_logits(other)[..., clean], one[..., clean], 1e-6)  # log x̂ is float32


def test_one_strand_alone_is_not_and_the_mean_of_both_is():
    net, tokens = caduceus("ph"), some_tokens(4, 23)

    def both(own: Tensor) -> Tensor:
        return (logits_of(net, own) + turned_logits(logits_of(net, other_strand(own)))) / 2

    assert (turned_logits(logits_of(net, other_strand(tokens))) - logits_of(net, tokens)).abs().max() > 0.3
    near(turned_logits(both(other_strand(tokens))), both(tokens))


def test_the_swap_is_another_function():
    tokens = some_tokens()
    assert (logits_of(caduceus(), tokens) - logits_of(caduceus(swap=True), tokens)).abs().max() > 0.3


# -- both directions -------------------------------------------------------------------------------------------------


def test_reversed_input_and_exchanged_directions_reverse_the_output():
    """Of the two mixers only what they do not share is exchanged."""
    torch.manual_seed(0)
    one, other = (BiMamba(DIM, STATE, WIDTH, EXPAND).double() for _ in range(2))
    for parameter in one.parameters():
        nn.init.normal_(parameter, std=0.5)
    own = one.state_dict()
    exchange = {"mamba_fwd": "mamba_rev", "mamba_rev": "mamba_fwd"}
    shared = {name for name in own if "in_proj" in name or "out_proj" in name}
    assert {name.split(".")[0] for name in shared} == {"mamba_fwd"}, "M_r has no projections of its own"
    state = {
        name if name in shared else f"{exchange[name.split('.', 1)[0]]}.{name.split('.', 1)[1]}": value
        for name, value in own.items()
    }
    other.load_state_dict(state, strict=True)
    x = torch.randn(2, 15, DIM, dtype=torch.float64)
    with torch.no_grad():
        truth = one(x)[0]
        near(other(x.flip(1))[0].flip(1), truth)
        assert (one(x.flip(1))[0].flip(1) - truth).abs().max() > 0.1  # not without the exchange


@each_kind
def test_every_column_sees_every_other(kind):
    net, tokens = caduceus(*KINDS[kind]), some_tokens(2, 12)
    before = logits_of(net, tokens)
    for j in (0, 5, 11):
        other = tokens.clone()
        other[:, j] = torch.where(other[:, j] == 7, 9, 7)
        assert ((logits_of(net, other) - before).abs().amax(-1) > 1e-9).all()


# -- slow and literal: numpy, one row, 2 d channels ------------------------------------------------------------------


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def slow_mamba(w: dict[str, np.ndarray], at: str, projections: str, x: np.ndarray) -> np.ndarray:
    """(L, d) to (L, d): a whole Mamba with its own inner weights, and in_proj and out_proj from elsewhere."""
    inner = EXPAND * DIM
    both = x @ w[projections + "in_proj.weight"].T
    u, z = both[:, :inner], both[:, inner:]
    conv = np.zeros_like(u)
    for t, e, k in itertools.product(range(len(u)), range(inner), range(WIDTH)):
        if t - (WIDTH - 1) + k >= 0:
            conv[t, e] += w[at + "conv1d.weight"][e, 0, k] * u[t - (WIDTH - 1) + k, e]
    u = silu(conv + w[at + "conv1d.bias"])
    low = u @ w[at + "x_proj.weight"].T
    rank = math.ceil(DIM / 16)
    dt, b, c = low[:, :rank], low[:, rank : rank + STATE], low[:, rank + STATE :]
    delta = np.log1p(np.exp(dt @ w[at + "dt_proj.weight"].T + w[at + "dt_proj.bias"]))
    y = np.zeros_like(u)
    for e in range(inner):
        h = np.zeros(STATE)
        for t in range(len(u)):
            for n in range(STATE):
                decay = math.exp(-delta[t, e] * math.exp(w[at + "A_log"][e, n]))
                h[n] = decay * h[n] + delta[t, e] * b[t, n] * u[t, e]
            y[t, e] = c[t] @ h + w[at + "D"][e] * u[t, e]
    return (y * silu(z)) @ w[projections + "out_proj.weight"].T


def slow_logits(net: Caduceus, tokens: list[int]) -> np.ndarray:
    """(L, V) of one row, the sub-modules as functions on [a, b]: [f(a), R f(R b)]."""
    w = {name: value.detach().numpy() for name, value in net.state_dict().items()}
    table, d = w["embeddings.word_embeddings.weight"], DIM

    def turn(x: np.ndarray) -> np.ndarray:
        return x[::-1, ::-1]

    def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weight

    def bimamba(x: np.ndarray, i: int) -> np.ndarray:
        at = f"layers.{i}.mixer.mamba_"
        forth = slow_mamba(w, at + "fwd.", at + "fwd.", x)
        return forth + slow_mamba(w, at + "rev.", at + "fwd.", x[::-1])[::-1]

    def on_both(f, x: np.ndarray) -> np.ndarray:
        if net.strands == "ph":
            return f(x)
        return np.concatenate([f(x[:, :d]), turn(f(turn(x[:, d:])))], 1)

    stream = table[tokens]
    if net.strands == "ps":
        stream = np.concatenate([stream, turn(table[[OPPOSITE[token] for token in reversed(tokens)]])], 1)
    added = np.zeros_like(stream)
    for i in range(LAYERS):
        stream = stream + added
        if net.swap:  # the fused norm reads the second half as the first strand, hidden states and stream alike
            stream = np.concatenate([stream[:, d:], turn(turn(stream[:, :d]))], 1)
        normed = on_both(lambda x, i=i: norm(x, w[f"layers.{i}.norm.weight"]), stream)
        added = on_both(lambda x, i=i: bimamba(x, i), normed)
    hidden = on_both(lambda x: norm(x, w["norm_f.weight"]), stream + added)
    if net.strands == "ph":
        return hidden @ table[:12].T
    return hidden[:, :d] @ table[:12].T + hidden[:, d:][:, ::-1] @ table[OPPOSITE].T


@each_kind
def test_logits_are_those_of_the_slow_sums(kind):
    net, tokens = caduceus(*KINDS[kind]), some_tokens(2, 8)
    found = logits_of(net, tokens)
    for row in range(2):
        near(found[row], slow_logits(net, tokens[row].tolist()))


# -- padding ---------------------------------------------------------------------------------------------------------

PLACES = {  # of rows with padding: which columns of 9 exist
    "left": lambda: torch.arange(9) >= torch.tensor([0, 4, 8])[:, None],
    "right": lambda: torch.arange(9) < torch.tensor([9, 5, 1])[:, None],
    "middle": lambda: torch.tensor([[1] * 9, [1, 1, 0, 0, 0, 1, 1, 0, 1], [0, 1, 0, 1, 0, 0, 0, 0, 0]]).bool(),
}


@each_kind
@pytest.mark.parametrize("place", PLACES)
def test_pads_never_change_a_token_and_teach_nothing(kind, place):
    """Neither state nor short convolution sees them, in either direction: values and gradients of rows alone."""
    net, tokens, valid = caduceus(*KINDS[kind]), some_tokens(), PLACES[place]()
    up = torch.randn(3, 9, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    logits = net.head(net(tokens, valid=valid)[0])
    (logits * up * valid[..., None]).sum().backward()
    taught = {name: p.grad.clone() for name, p in net.named_parameters()}
    net.zero_grad()
    other = torch.where(valid, tokens, some_tokens(seed=7))
    assert not torch.equal(other, tokens)
    near(logits_of(net, other, valid)[valid], logits[valid].detach(), 1e-12)
    for row in range(3):
        alone = net.head(net(tokens[row, valid[row]][None])[0])[0]
        near(logits[row, valid[row]].detach(), alone.detach())
        (alone * up[row, valid[row]]).sum().backward()
    assert logits.isfinite().all()
    for name, parameter in net.named_parameters():
        near(taught[name], parameter.grad)


# -- inputs in the place of embeddings -------------------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize("place", [None, "middle"])
def test_given_the_embeddings_it_says_the_same(kind, place):
    net, tokens = caduceus(*KINDS[kind]), some_tokens()
    valid = None if place is None else PLACES[place]()
    table = net.embedding.weight.detach()
    inputs = table[tokens]
    if net.strands == "ps":  # of a column: its own embedding, and that of the opposite base with its channels turned
        inputs = torch.cat((inputs, table[torch.tensor(OPPOSITE)[tokens]].flip(-1)), -1)
        if valid is None:
            near(inputs[..., DIM:], table[other_strand(tokens)].flip(1, 2), 0)  # R E(R x)
    with torch.no_grad():
        found, none = net(embeddings=inputs, valid=valid)
        truth = net(tokens, valid=valid)[0]
    assert none is None
    keep = slice(None) if valid is None else valid
    near(found[keep], truth[keep], 1e-12)


# -- published facts, refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("strands", ["ps", "ph"])
def test_the_size_of_the_paper(strands):
    assert sum(p.numel() for p in Caduceus(VOCAB, strands=strands).parameters()) == 470_702


def test_names_are_the_published_ones():
    own = ["A_log", "D", "conv1d.weight", "conv1d.bias", "x_proj.weight", "dt_proj.weight", "dt_proj.bias"]
    parts = ["norm.weight", *(f"mixer.mamba_{way}.{part}" for way in ("fwd", "rev") for part in own)]
    parts += ["mixer.mamba_fwd.in_proj.weight", "mixer.mamba_fwd.out_proj.weight"]
    names = {f"layers.{i}.{part}" for i in range(LAYERS) for part in parts}
    names |= {"embeddings.word_embeddings.weight", "norm_f.weight"}
    assert set(caduceus().state_dict()) == set(caduceus("ph").state_dict()) == names


def test_another_vocabulary_is_refused_for_both_strands():
    with pytest.raises(UserError, match=r"data\.tokenizer=dna, or model\.strands=ph") as caught:
        Caduceus(Vocab(40, mask=3), DIM, LAYERS)
    assert "\n" not in str(caught.value)
    assert Caduceus(Vocab(40, mask=3), DIM, 1, strands="ph").hidden_dim == DIM
    with pytest.raises(UserError, match=r"model\.swap_strands belongs to model\.strands=ps"):
        Caduceus(VOCAB, DIM, 1, strands="ph", swap=True)


@each_kind
def test_the_padding_of_the_vocabulary_is_never_predicted_and_never_learns(kind):
    net = caduceus(*KINDS[kind])
    logits = net.head(net(some_tokens())[0].flatten(0, 1))
    assert logits.shape == (27, 12) and net.embedding.num_embeddings == 16
    logits.logsumexp(-1).sum().backward()
    assert net.embedding.weight.grad[12:].abs().max() == 0 < net.embedding.weight.grad[:12].abs().min()


@each_kind
def test_half_precision(kind):
    net, tokens = caduceus(*KINDS[kind]).float(), some_tokens()
    with torch.autocast("cpu", torch.bfloat16):
        hidden = net(tokens)[0]
        hidden.square().mean().backward()
    truth = net(tokens)[0].detach()
    assert hidden.dtype == torch.float32 and (hidden.detach() - truth).std() < 0.1 * truth.std()
    assert all(p.grad.isfinite().all() for p in net.parameters())


# -- masked diffusion on it ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scripted(Keys):
    """Keys that say what is masked."""

    hidden: Tensor = field(default_factory=lambda: torch.empty(0))  # (N, L) bool

    def uniform(self, purpose: str, index: object, *shape: int) -> Tensor:
        if purpose == "time":
            return torch.full((len(self.hidden),), 0.5, dtype=torch.float64)
        assert purpose == "mask"
        return self.hidden.double() * (1 - 2.0**-53)  # 0 is below any keep, and this one below none


class At(Law):
    """Every row at one time, with the weight of the integral there, or with weight 1."""

    def __init__(self, t: float, weighted: bool = True) -> None:
        self.t, self.weighted = t, weighted

    def draw(self, uniform: Tensor, schedule: Schedule) -> Draw:
        t = torch.full_like(uniform, self.t)
        never = torch.zeros_like(t, dtype=torch.bool)
        return Draw(t, schedule.keep(t), never, never.double(), schedule.rate(t) if self.weighted else t**0)

    def last(self, schedule: Schedule) -> float:
        return 0.0

    def describe(self) -> dict[str, object]:
        return {}


class SubsScore(Caduceus):
    """A network whose SEDD score is that of SUBS: alpha/(1 - alpha) x̂, where x̂ is its softmax without [MASK]."""

    def head(self, rows: Tensor) -> Tensor:
        logits = super().head(rows)
        logits[..., VOCAB.mask] = -math.inf
        x = torch.exp(logits) / torch.exp(logits).sum(-1, keepdim=True)
        x[..., VOCAB.mask] = 0.7  # what it says of [MASK] is of no matter
        return torch.log(x) + math.log(VOCAB.size - 1)  # SEDD's output layer takes log(V - 1) and log(e^sigma - 1) off


@each_kind
def test_sedd_with_the_score_of_subs_is_mdlm(kind):
    """Token by token, at any time, in the integral and in the last step; no time is told."""
    batch = Batch(some_tokens(16, 12) % 4 + 7, torch.arange(16), 16)
    mdlm = MaskedDiffusion(caduceus(*KINDS[kind]), Polynomial()).eval()
    sedd = MaskedDiffusion(caduceus(*KINDS[kind], net=SubsScore), Polynomial(), parameterization=Score()).eval()
    assert not sedd.time_conditioned
    with torch.no_grad():
        for draw in range(3):
            truth, found = (model.nats(batch, Keys(4, draw)).nats for model in (mdlm, sedd))
            assert (truth > 0).sum() > 40
            near(found, truth, 1e-5)
        for t in (0.03, 0.5, 0.99):
            mdlm.law = sedd.law = At(t)
            near(sedd.nats(batch, Keys(1)).nats, mdlm.nats(batch, Keys(1)).nats, 1e-5)


@pytest.mark.parametrize("subs", [True, False])
def test_sedd_is_the_published_loss_with_the_true_sigma(subs):
    """The formula of appendix C in float64, of the network's own logits and of the score of SUBS."""
    net, schedule, t = caduceus(net=SubsScore if subs else Caduceus), Polynomial(), 0.4
    batch = Batch(some_tokens(16, 12) % 4 + 7, torch.arange(16), 16)
    model = MaskedDiffusion(net, schedule, parameterization=Score()).eval()
    model.law = At(t)
    hidden = torch.rand(16, 12, generator=torch.Generator().manual_seed(0)) < 0.5
    z = torch.where(hidden, VOCAB.mask, batch.tokens)
    with torch.no_grad():
        found = model.nats(batch, Scripted(0, 0, hidden)).nats
        logits = net.head(net(z)[0])
    sigma, dsigma = -math.log(1 - 0.999 * t), 0.999 / (1 - 0.999 * t)
    r = 1 / math.expm1(sigma)
    log_s = logits - math.log(math.expm1(sigma)) - math.log(VOCAB.size - 1)
    clean = [token for token in range(VOCAB.size) if token != VOCAB.mask]
    at_x = log_s.gather(-1, batch.tokens[..., None]).squeeze(-1)
    truth = dsigma * (log_s.exp()[..., clean].sum(-1) - r * at_x + r * (math.log(r) - 1))
    near(found, torch.where(hidden, truth, 0.0).float(), 1e-5)
    if subs:  # and by the functions of ctmc, from log x̂
        log_x = (logits - math.log(VOCAB.size - 1)).index_fill(-1, torch.tensor([VOCAB.mask]), -math.inf)
        level = torch.tensor(sigma, dtype=torch.float64)
        score = ctmc.log_score(log_x[hidden], z[hidden], level, VOCAB.mask)
        near(ctmc.score_entropy(score, batch.tokens[hidden], level, level * 0 + dsigma, VOCAB.mask), truth[hidden])


@each_kind
@pytest.mark.parametrize("meaning", [Mean(), Score()], ids=["mdlm", "sedd"])
def test_it_gives_no_more_than_one_in_all(kind, meaning: Parameterization):
    """The sum over all x of exp(-nats(x)): nats of every x and mask, weighed by the integral of t^(n-1) (1-t)^(L-n)."""
    length = 2
    net = caduceus(*KINDS[kind])
    model = MaskedDiffusion(net, Polynomial(), parameterization=meaning, objective=Objective(stratified=False)).eval()
    model.law = At(0.5, weighted=False)
    clean = [token for token in range(VOCAB.size) if token != VOCAB.mask]
    if isinstance(meaning, Score):  # a mass near 1, or the gate is far away
        net.head = lambda rows: torch.log_softmax(Caduceus.head(net, rows), -1) + math.log(VOCAB.size - 1)
    xs = list(itertools.product(clean, repeat=length))
    masks = [mask for mask in itertools.product([False, True], repeat=length) if any(mask)]
    tokens = torch.tensor(xs).repeat_interleave(len(masks), 0)
    hidden = torch.tensor(masks).repeat(len(xs), 1)
    with torch.no_grad():
        nats = model.nats(Batch(tokens, torch.arange(len(tokens)), 1), Scripted(0, 0, hidden)).nats
    weight = [math.factorial(n - 1) * math.factorial(length - n) / math.factorial(length) for n in map(sum, masks)]
    whole = nats.double().sum(1).view(len(xs), len(masks)) @ torch.tensor(weight, dtype=torch.float64)
    total = float(torch.exp(-whole).sum())
    assert 0.3 < total <= 1 + 1e-6
    once = nats.double().sum(1).view(len(xs), len(masks))[:, masks.index((True,) * length)]
    if isinstance(meaning, Mean):  # all at once is a product of two laws
        assert float(torch.exp(-once).sum()) == pytest.approx(1, abs=1e-5)


@each_kind
def test_masked_diffusion_writes_with_it(kind):
    model = MaskedDiffusion(caduceus(*KINDS[kind]), Polynomial()).eval()
    canvas = torch.tensor([7, 3, 3, 9, 3])
    last = next(s for s in generate(model, [canvas], FirstHitting(), [Keys(3)]) if s.done).canvas
    assert last[[0, 3]].tolist() == [7, 9] and (last != VOCAB.mask).all() and (last < VOCAB.size).all()
