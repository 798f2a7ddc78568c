"""Published networks for DNA: files of the layouts of Caduceus, Mamba and HyenaDNA, and every way to spoil them.

The files are written here from the lists of names alone. What the loaded networks compute is compared with
transformers' Mamba, and with slow networks that are written below, one column after the other.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Backend
from tokenizers import models
from torch import Tensor

import unmask
from support.fake_hub import FakeHub
from unmask.data.genome.bases import dna_tokenizer
from unmask.data.tokenization import bytes_tokenizer
from unmask.hub.convert import convert
from unmask.hub.resolve import layout
from unmask.lm import LM
from unmask.models import registry
from unmask.recipes import recipe
from unmask.types import UserError

DIM, LAYERS, STATE, WIDTH, ROWS = 18, 3, 4, 4, 16
INNER, RANK = 2 * DIM, 2  # ceil(18 / 16)
COMPLEMENT = [0, 1, 2, 3, 4, 5, 6, 10, 9, 8, 7, 11, 12, 13, 14, 15]
CADUCEUS: dict[str, Any] = {
    "architectures": ["CaduceusForMaskedLM"],
    "auto_map": {"AutoConfig": "configuration_caduceus.CaduceusConfig", "AutoModel": "modeling_caduceus.Caduceus"},
    "bidirectional": True,
    "bidirectional_strategy": "add",
    "bidirectional_weight_tie": True,
    "complement_map": {str(i): j for i, j in enumerate(COMPLEMENT)},
    "d_model": DIM,
    "fused_add_norm": True,
    "initializer_cfg": {"initializer_range": 0.02},
    "model_type": "caduceus",
    "n_layer": LAYERS,
    "norm_epsilon": 1e-05,
    "pad_token_id": -100,
    "pad_vocab_size_multiple": 8,
    "rcps": False,
    "residual_in_fp32": False,
    "rms_norm": True,
    "ssm_cfg": {
        "bias": False,
        "conv_bias": True,
        "d_conv": WIDTH,
        "d_state": STATE,
        "dt_init": "random",
        "dt_init_floor": 1e-4,
        "dt_max": 0.1,
        "dt_min": 0.001,
        "dt_rank": "auto",
        "dt_scale": 1.0,
        "expand": 2,
        "use_fast_path": True,
    },
    "torch_dtype": "float32",
    "transformers_version": "4.38.1",
    "vocab_size": ROWS,
}


def draw(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    found = {name: 0.4 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return {name: 1 + 0.2 * tensor if "norm" in name else tensor for name, tensor in found.items()}


def mixer_shapes(prefix: str, dim: int, projections: bool, state: int = STATE) -> dict[str, tuple[int, ...]]:
    inner, rank = 2 * dim, math.ceil(dim / 16)
    shapes: dict[str, tuple[int, ...]] = {
        "A_log": (inner, state),
        "D": (inner,),
        "conv1d.weight": (inner, 1, WIDTH),
        "conv1d.bias": (inner,),
        "x_proj.weight": (rank + 2 * state, inner),
        "dt_proj.weight": (inner, rank),
        "dt_proj.bias": (inner,),
    }
    if projections:
        shapes |= {"in_proj.weight": (2 * inner, dim), "out_proj.weight": (dim, inner)}
    return {prefix + name: shape for name, shape in shapes.items()}


def caduceus_tensors(
    ps: bool = False, fused: bool = True, dim: int = DIM, layers: int = LAYERS, state: int = STATE
) -> dict[str, Tensor]:
    """As published: tied weights are there once, and "ps" has its wrappers and complements."""
    word = "caduceus.backbone.embeddings.word_embeddings." + ("embedding." if ps else "")
    norm, mixer = ("submodule." if ps and not fused else ""), ("submodule." if ps else "")
    shapes: dict[str, tuple[int, ...]] = {f"{word}weight": (ROWS, dim)}
    for i in range(layers):
        at = f"caduceus.backbone.layers.{i}."
        shapes |= mixer_shapes(f"{at}mixer.{mixer}mamba_fwd.", dim, True, state)
        shapes |= mixer_shapes(f"{at}mixer.{mixer}mamba_rev.", dim, False, state)
        shapes[f"{at}norm.{norm}weight"] = (dim,)
    shapes[f"caduceus.backbone.norm_f.{norm}weight"] = (dim,)
    tensors = draw(shapes)
    if ps:
        for name in ("caduceus.backbone.embeddings.word_embeddings.", "lm_head."):
            tensors[f"{name}complement_map"] = torch.tensor(COMPLEMENT)
    return tensors


def write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    """A folder with code that must not run, and the tokenizer's settings without a tokenizer, as published."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    mine = {"auto_map": {"AutoTokenizer": ["tokenization_caduceus.CaduceusTokenizer", None]}, "characters": "ACGTN"}
    (folder / "tokenizer_config.json").write_text(json.dumps(mine))
    for name in ("configuration_caduceus", "modeling_caduceus", "tokenization_caduceus"):
        (folder / f"{name}.py").write_text(f"open({str(folder / 'RAN')!r}, 'w').close()\n")
    return folder


def caduceus(folder: Path, ps: bool = False, fused: bool = True, edit: Any = None, **config: Any) -> Path:
    tensors = caduceus_tensors(ps, fused)
    changed = CADUCEUS | {"rcps": ps, "fused_add_norm": fused} | config
    return write(folder, changed, tensors if edit is None else edit(tensors))


BASES = torch.tensor([[7, 8, 3, 9, 10, 10, 3, 11, 7, 9, 8, 7]])


@torch.no_grad()
def said(lm: LM, ids: Tensor = BASES) -> Tensor:
    """Logits in float64."""
    net = lm.model.double().backbone
    return net.head(net(ids)[0])


# -- slow networks ---------------------------------------------------------------------------------------------------


def short(t: dict[str, Tensor], at: str, x: Tensor) -> Tensor:
    """A causal convolution of each channel, column by column."""
    weight, bias = t[f"{at}.weight"][:, 0], t[f"{at}.bias"]
    width = weight.shape[1]
    columns = []
    for j in range(len(x)):
        total = bias.clone()
        for k in range(width):
            if j - width + 1 + k >= 0:
                total = total + weight[:, k] * x[j - width + 1 + k]
        columns.append(total)
    return torch.stack(columns)


def mamba(t: dict[str, Tensor], at: str, x: Tensor, shared: str | None = None) -> Tensor:
    """(L, dim) to (L, dim): one direction, with a state that goes from column to column."""
    inner, gate = (x @ t[f"{shared or at}.in_proj.weight"].T).chunk(2, dim=-1)
    inner = F.silu(short(t, f"{at}.conv1d", inner))
    state_dim = t[f"{at}.A_log"].shape[1]
    rank = t[f"{at}.dt_proj.weight"].shape[1]
    decay, state, out = -t[f"{at}.A_log"].exp(), torch.zeros_like(t[f"{at}.A_log"]), []
    for u in inner:
        dt, b, c = (t[f"{at}.x_proj.weight"] @ u).split([rank, state_dim, state_dim])
        delta = F.softplus(t[f"{at}.dt_proj.weight"] @ dt + t[f"{at}.dt_proj.bias"])
        state = (delta[:, None] * decay).exp() * state + (delta * u)[:, None] * b[None]
        out.append(state @ c + t[f"{at}.D"] * u)
    return (torch.stack(out) * F.silu(gate)) @ t[f"{shared or at}.out_proj.weight"].T


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def slow_caduceus(tensors: dict[str, Tensor], ids: Tensor, ps: bool, fused: bool) -> Tensor:
    """(L,) to (L, 12) logits in float64; "ps" on 2 dim channels, strand after strand."""
    t = {name.removeprefix("caduceus.backbone."): tensor.double() for name, tensor in tensors.items()}
    t = {name.replace("submodule.", "").replace("embedding.weight", "weight"): tensor for name, tensor in t.items()}
    table = t["embeddings.word_embeddings.weight"]
    dim, layers = table.shape[1], sum(name.endswith("mamba_fwd.D") for name in t)
    opposite = torch.tensor(COMPLEMENT)

    def turned(x: Tensor) -> Tensor:
        return x.flip(0, 1)

    def both(x: Tensor, f: Any) -> Tensor:
        if not ps:
            return f(x)
        return torch.cat((f(x[:, :dim]), turned(f(turned(x[:, dim:])))), dim=1)

    def mixed(i: int, x: Tensor) -> Tensor:
        fwd, rev = f"layers.{i}.mixer.mamba_fwd", f"layers.{i}.mixer.mamba_rev"
        return mamba(t, fwd, x) + mamba(t, rev, x.flip(0), fwd).flip(0)

    stream = table[ids]
    if ps:
        stream = torch.cat((stream, turned(table[opposite[ids].flip(0)])), dim=1)
    hidden = torch.zeros_like(stream)
    for i in range(layers):
        stream = stream + hidden
        if ps and fused:  # what was one strand is now the other
            stream = torch.cat((stream[:, dim:], stream[:, :dim]), dim=1)
        normed = both(stream, lambda x, i=i: rms(x, t[f"layers.{i}.norm.weight"]))
        hidden = both(normed, lambda x, i=i: mixed(i, x))
    out = both(stream + hidden, lambda x: rms(x, t["norm_f.weight"]))
    if not ps:
        return (out @ table.T)[:, :12]
    return (out[:, :dim] @ table.T + out[:, dim:].flip(1) @ table[opposite].T)[:, :12]


# -- Caduceus --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ps", "fused"), [(False, True), (False, False), (True, True), (True, False)])
def test_caduceus_is_the_slow_network(ps, fused, tmp_path):
    folder = caduceus(tmp_path / "there", ps, fused)
    lm = unmask.load(folder)
    net = lm.config.model
    assert (net.method, net.backbone, net.strands, net.swap_strands) == (
        "mdlm",
        "caduceus",
        "ps" if ps else "ph",
        ps and fused,
    )
    assert (lm.tokenizer.kind, lm.tokenizer.vocab.size, lm.config.data.tokenizer) == ("dna", 12, "dna")
    assert lm.config.data.reverse_complement == (not ps) and lm.config.schedule.name == "log-linear"
    truth = slow_caduceus(load_file(folder / "model.safetensors"), BASES[0], ps, fused)
    torch.testing.assert_close(said(lm)[0], truth, rtol=1e-9, atol=1e-9)
    assert not (folder / "RAN").exists() and not list(folder.rglob("__pycache__"))


def test_the_fused_network_is_another_one_and_both_know_the_other_strand(tmp_path):
    """The same numbers with and without the exchange; Ph is not equivariant."""
    opposite = torch.tensor(COMPLEMENT)

    def apart(lm: LM) -> float:
        other = said(lm, opposite[BASES].flip(1))
        return float((other - said(lm)[..., opposite[:12]].flip(1)).abs().max())

    fused, plain, ph = (
        unmask.load(caduceus(tmp_path / str(n), *how)) for n, how in enumerate([(True, True), (True, False), (False,)])
    )
    assert apart(fused) < 1e-10 and apart(plain) < 1e-10 and apart(ph) > 0.01
    own = dict(plain.model.state_dict())
    assert all(torch.equal(tensor, own[name]) for name, tensor in fused.model.state_dict().items())
    assert float((said(fused) - said(plain)).abs().max()) > 0.1


def test_the_size_of_the_paper(tmp_path):
    """470,702 weights, which is the published file of 1.89 MB; and twice as many channels are no more weights."""
    config = CADUCEUS | {"d_model": 118, "n_layer": 4, "ssm_cfg": None}
    for ps in (False, True):
        tensors = caduceus_tensors(ps, dim=118, layers=4, state=16)
        folder = write(tmp_path / str(ps), config | {"rcps": ps}, tensors)
        lm = unmask.load(folder)
        assert sum(p.numel() for p in lm.model.parameters()) == 470_702
    data, header = 4 * 470_702, (tmp_path / "False" / "model.safetensors").read_bytes()[:8]
    assert data == 1_882_808
    assert (tmp_path / "False" / "model.safetensors").stat().st_size == data + 8 + int.from_bytes(header, "little")
    lm.save_pretrained(tmp_path / "ours")
    size = (tmp_path / "ours" / "model.safetensors").stat().st_size
    assert data < size < data + 20_000  # every weight once, here too


def tied(tensors: dict[str, Tensor], ps: bool) -> dict[str, Tensor]:
    """With all that older files have twice."""
    word = next(tensor for name, tensor in tensors.items() if "word_embeddings" in name and tensor.dim() == 2)
    twice = {"lm_head.lm_head.weight" if ps else "lm_head.weight": word.clone()}
    for name, tensor in tensors.items():
        if name.endswith(("in_proj.weight", "out_proj.weight")):
            twice[name.replace("mamba_fwd", "mamba_rev")] = tensor.clone()
    return tensors | twice


@pytest.mark.parametrize("ps", [False, True])
def test_what_is_there_twice_must_be_the_same(ps, tmp_path):
    want = said(unmask.load(caduceus(tmp_path / "once", ps)))
    assert torch.equal(said(unmask.load(caduceus(tmp_path / "twice", ps, edit=lambda t: tied(t, ps)))), want)
    for n, part in enumerate(("lm_head", "layers.1.mixer.mamba_rev.out_proj")):
        wrapped = part.replace("mixer.", "mixer.submodule.") if ps else part

        def other(tensors: dict[str, Tensor], part: str = wrapped) -> dict[str, Tensor]:
            return {name: t + (part in name and t.dtype.is_floating_point) for name, t in tied(tensors, ps).items()}

        with pytest.raises(UserError, match=rf"{part}.weight is not .*, to which it is tied"):
            unmask.load(caduceus(tmp_path / str(n), ps, edit=other))


def test_complements_are_those_of_dna(tmp_path):
    def swapped(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return tensors | {"lm_head.complement_map": torch.arange(ROWS)}

    with pytest.raises(UserError, match=r"lm_head.complement_map is not that of A and T, C and G$"):
        unmask.load(caduceus(tmp_path / "a", True, edit=swapped))
    for n, found in enumerate([None, {}, {str(i): i for i in range(16)}, {"7": 10}]):
        with pytest.raises(UserError, match="a complement_map other"):
            unmask.load(caduceus(tmp_path / str(n), True, complement_map=found))
    small = {str(i): j for i, j in enumerate(COMPLEMENT[:12])}  # before their code pads it
    assert unmask.load(caduceus(tmp_path / "b", True, complement_map=small, vocab_size=12)).config.model.swap_strands


# -- what is not ours ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rms_norm": False}, "has rms_norm false, but unmask reads such networks only with true"),
        ({"bidirectional": False}, "bidirectional false"),
        ({"bidirectional_strategy": "ew_multiply"}, 'bidirectional_strategy "ew_multiply", .* only with "add" or null'),
        ({"bidirectional_weight_tie": False}, "bidirectional_weight_tie false"),
        ({"norm_epsilon": 1e-6}, "norm_epsilon 1e-06"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings false"),
        ({"ssm_cfg": {"conv_bias": False}}, "ssm_cfg.conv_bias false"),
        ({"ssm_cfg": {"bias": True}}, "ssm_cfg.bias true"),
        ({"ssm_cfg": {"dt_rank": 7}}, 'ssm_cfg.dt_rank 7, .* only with "auto" or 2'),
        ({"ssm_cfg": {"layer": "Mamba2"}}, 'ssm_cfg.layer "Mamba2"'),
        ({"ssm_cfg": {"headdim": 64}}, "ssm_cfg.headdim, which unmask does not know"),
        ({"ssm_cfg": {"d_state": "16"}}, "has d_state '16', which is not a number"),
        ({"ssm_cfg": [1]}, "is damaged: its ssm_cfg"),
        ({"d_model": None}, "does not have d_model"),
        ({"d_model": 0}, "model.hidden_dim"),
        ({"n_layer": True}, "has n_layer True, which is not a number"),
        ({"rcps": "yes"}, "has rcps 'yes', which is not true or false"),
        ({"vocab_size": 4096}, "has vocab_size 4096; unmask reads a caduceus of 12 tokens of DNA"),
        ({"n_layer": 10**9}, "does not fit this model of 1000000000 blocks"),
        ({"d_model": 10**6}, "does not fit this model: .* has shape"),
        ({"n_layer": LAYERS + 1}, "it lacks 17 tensor"),
        ({"n_layer": LAYERS - 1}, "it has unknown 17 tensor"),
        ({"attn_cfg": {"heads": 2}}, "has attn_cfg .*, but unmask reads such networks only with"),
        ({"dilation": 2}, "has dilation 2, which unmask does not know and which may change what the network computes"),
    ],
)
def test_other_settings_are_one_sentence(change, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence) as error:
        unmask.load(caduceus(tmp_path / "there", **change))
    assert "\n" not in str(error.value) and str(tmp_path / "there") in str(error.value)


FIRST = "caduceus.backbone.layers.0.mixer.mamba_fwd."


def rows_of(tensors: dict[str, Tensor], rows: int) -> dict[str, Tensor]:
    return {name: t[:rows].clone() if "word_embeddings" in name else t for name, t in tensors.items()}


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (lambda t: {n: v for n, v in t.items() if n != f"{FIRST}A_log"}, r"lacks 1 tensor\(s\): \S*0.mixer\S*A_log$"),
        (lambda t: t | {"caduceus.backbone.more": torch.zeros(2)}, r"has unknown 1 tensor\(s\): backbone.more$"),
        (lambda t: t | {f"{FIRST}D": torch.zeros(3)}, r"mamba_fwd.D has shape \(3,\), the model wants \(36,\)$"),
        (lambda t: t | {f"{FIRST}D": torch.zeros(INNER, dtype=torch.int64)}, "mamba_fwd.D holds torch.int64"),
        (lambda t: t | {f"{FIRST[9:]}D": t[f"{FIRST}D"].clone()}, "mamba_fwd.D twice, once as caduceus"),
        (lambda t: caduceus_tensors(ps=True), "needs a network with rcps, but its config has none"),
        (lambda t: rows_of(t, 14), r"word_embeddings.weight has shape \(14, 18\), the model wants \(16, 18\)$"),
    ],
)
def test_every_tensor_is_accounted_for(edit, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        unmask.load(caduceus(tmp_path / "there", edit=edit))


def test_an_embedding_without_padding(tmp_path):
    lm = unmask.load(caduceus(tmp_path / "there", vocab_size=12, edit=lambda t: rows_of(t, 12)))
    assert torch.equal(said(lm), said(unmask.load(caduceus(tmp_path / "padded"))))


def test_damaged_and_absent_files(tmp_path):
    folder = caduceus(tmp_path / "there")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"model.safetensors is damaged: .*; copy or download it again"):
        unmask.load(folder)
    file.unlink()
    with pytest.raises(UserError, match=r"has no weights: it holds neither model.safetensors nor pytorch_model.bin"):
        unmask.load(folder)
    (folder / "weights.ckpt").write_bytes(b"no zip at all")
    with pytest.raises(UserError, match=r"weights.ckpt cannot be read"):
        unmask.load(folder)
    torch.save({"optimizer": 1}, folder / "weights.ckpt")
    with pytest.raises(UserError, match=r"weights.ckpt does not hold a dictionary of tensors"):
        unmask.load(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(UserError, match="is damaged"):
        unmask.load(folder)


def test_the_tokenizer_is_that_of_dna(tmp_path):
    folder = caduceus(tmp_path / "there")
    for given in ("dna", dna_tokenizer()):
        assert unmask.load(folder, tokenizer=given).tokenizer.vocab.mask == 3
    with pytest.raises(UserError, match="has 259 tokens with"):
        unmask.load(folder, tokenizer=bytes_tokenizer())
    with pytest.raises(UserError, match="already has a head; leave out --new-head"):
        unmask.load(folder, new_head=True)


def test_caduceus_of_the_hub(there: FakeHub):
    name = "kuleshov-group/caduceus-ps_seqlen-1k_d_model-256_n_layer-4_lr-8e-3"
    folder = caduceus(there.repositories / name, True)
    lm = unmask.load(name)
    torch.testing.assert_close(
        said(lm)[0], slow_caduceus(caduceus_tensors(True), BASES[0], True, True), rtol=1e-9, atol=1e-9
    )
    got = sorted(p.name for p in (there.cache / name).rglob("*") if p.is_file())
    assert got == ["config.json", "model.safetensors", "tokenizer_config.json"] and not (folder / "RAN").exists()


# -- Mamba -----------------------------------------------------------------------------------------------------------

WORDS = ["[UNK]", "<|endoftext|>", *"abcdefghijklmnopqrstu"]  # 23 tokens, without a mask token


def hf_mamba(rows: int, dim: int = 32, layers: int = 2, **more: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    settings = {"state_size": 4, "tie_word_embeddings": True, **more}
    config = transformers.MambaConfig(vocab_size=rows, hidden_size=dim, num_hidden_layers=layers, **settings)
    torch.manual_seed(1)
    model = transformers.MambaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.endswith(("norm.weight", "norm_f.weight", "A_log", "dt_proj.bias")):
                parameter.normal_(std=0.3 if dim < 64 else 0.05)  # so that float32 tells
    return model


def save(model: Any, folder: Path, words: list[str] | None = None) -> Path:
    model.save_pretrained(folder)
    if words is not None:
        backend = Backend(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
        backend.add_special_tokens(["<|endoftext|>"])
        backend.save(str(folder / "tokenizer.json"))
    return folder


@torch.no_grad()
def theirs(model: Any, ids: Tensor, size: int) -> Tensor:
    return model(input_ids=ids).logits[..., :size].double()


@pytest.mark.parametrize("rows", [24, 23, 40])
def test_mamba_is_that_of_transformers(rows, tmp_path):
    """With a spare row for the mask token, without one, and with rows that no token has."""
    model = hf_mamba(rows)
    folder = save(model, tmp_path / "there", WORDS)
    lm = unmask.load(folder)
    assert (lm.config.model.method, lm.config.model.backbone, lm.config.objective.start_token) == ("ar", "mamba", False)
    assert (lm.tokenizer.vocab.size, lm.tokenizer.vocab.mask) == (24, 23)
    assert lm.config.data.tokenizer == str(folder) and lm.config.data.eos_between and not lm.config.data.block_ends
    table = lm.model.backbone.embeddings.weight.detach().clone()
    mask = torch.zeros(32) if rows == 23 else model.backbone.embeddings.weight[23]
    assert table.shape == (24, 32) and torch.equal(table[23], mask.detach())
    ids = torch.tensor([[1, 5, 6, 7, 22, 3, 3, 9, 2], [4, 4, 4, 1, 8, 20, 11, 12, 13]])
    truth = theirs(model, ids, 23)
    torch.testing.assert_close(said(lm, ids)[..., :23], truth, rtol=1e-5, atol=1e-5)
    lm = unmask.load(folder)
    lm.save_pretrained(tmp_path / "ours")
    again = unmask.load(tmp_path / "ours")
    assert again.config == lm.config and same(again, lm)


def test_the_likelihood_is_that_of_transformers(tmp_path):
    """Of every token but the first, among those that there are."""
    model = hf_mamba(23)
    lm = unmask.load(save(model, tmp_path / "there", WORDS))
    ids = torch.tensor([[5, 6, 7, 22, 3, 3, 9, 2]])
    batch = unmask.types.Batch(ids, torch.tensor([0]), 1)
    with torch.no_grad():
        found = lm.model.nats(batch, unmask.process.keys.Keys(0))
    truth = F.cross_entropy(theirs(model, ids, 23)[0, :-1], ids[0, 1:], reduction="none")
    assert found.weight[0].tolist() == [False] + [True] * 7
    torch.testing.assert_close(found.nats[0, 1:].double(), truth, rtol=1e-5, atol=1e-5)


def test_mamba_as_state_spaces_wrote_it(tmp_path):
    """Other names, a pickled file, a head that is the embedding, and no tokenizer."""
    model = hf_mamba(24)
    folder = tmp_path / "mamba-130m"
    folder.mkdir()
    config = {"d_model": 32, "n_layer": 2, "vocab_size": 23, "ssm_cfg": {"d_state": 4}, "rms_norm": True,
              "residual_in_fp32": True, "fused_add_norm": True, "pad_vocab_size_multiple": 8}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    state = {name.replace("backbone.embeddings.", "backbone.embedding."): t for name, t in model.state_dict().items()}
    assert "lm_head.weight" in state and "backbone.embedding.weight" in state
    torch.save(state, folder / "pytorch_model.bin")
    shelf = tmp_path / "words"
    shelf.mkdir()
    save(model, shelf, WORDS)
    ids = torch.tensor([[1, 5, 6, 7, 22, 3]])
    lm = unmask.load(folder, tokenizer=shelf)
    torch.testing.assert_close(said(lm, ids)[..., :23], theirs(model, ids, 23), rtol=1e-5, atol=1e-5)
    assert lm.config.data.tokenizer == str(shelf)
    with pytest.raises(UserError, match="has 259 tokens with"):
        unmask.load(folder, tokenizer="bytes")
    assert layout.read_folder(folder).config.data.tokenizer == "EleutherAI/gpt-neox-20b"


def test_mamba_of_dna_has_the_size_of_the_paper(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dna").mkdir()  # a folder of this name is no tokenizer
    model = hf_mamba(16, 128, 4, state_size=16)
    lm = unmask.load(save(model, tmp_path / "there"))
    assert sum(p.numel() for p in lm.model.parameters()) == model.num_parameters() == 468_608
    assert lm.tokenizer.kind == "dna" and lm.config.data.tokenizer == "dna" and lm.config.data.reverse_complement
    torch.testing.assert_close(said(lm), theirs(model, BASES, 12), rtol=1e-5, atol=1e-5)
    (made,) = unmask.load(tmp_path / "there").sample(1, length=12, seed=0, prompt="ACG")
    assert made.startswith("ACG")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"use_bias": True}, "use_bias true"),
        ({"use_conv_bias": False}, "use_conv_bias false"),
        ({"hidden_act": "gelu"}, 'hidden_act "gelu"'),
        ({"tie_word_embeddings": False}, "tie_word_embeddings false"),
        ({"time_step_rank": 3}, "time_step_rank 3"),
        ({"intermediate_size": 96}, "intermediate_size 96, .* only with 64"),
        ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon 1e-06"),
        ({"mixer_rms_eps": 1e-6}, "has mixer_rms_eps 1e-06, which unmask does not know"),
        ({"vocab_size": 200}, "has 24 tokens with .* and the model 200"),
        ({"vocab_size": 30}, r"embeddings.weight has shape \(26, 32\)"),
    ],
)
def test_another_mamba(change, sentence, tmp_path):
    folder = save(hf_mamba(26), tmp_path / "there", WORDS)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(UserError, match=sentence):
        unmask.load(folder)


# -- HyenaDNA --------------------------------------------------------------------------------------------------------

HDIM, HINNER, HFILTER, HLONGEST = 8, 32, 6, 20
HYENA = {
    "activation_freq": 10, "architectures": ["HyenaDNAForCausalLM"], "d_inner": HINNER, "d_model": HDIM, "emb_dim": 5,
    "auto_map": {"AutoConfig": "configuration_caduceus.X"}, "embed_dropout": 0.1, "filter_order": HFILTER,
    "hyena_dropout": 0.0, "hyena_filter_dropout": 0.0, "hyena_order": 2, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "max_seq_len": HLONGEST, "model_type": "hyenadna", "n_layer": 2, "num_inner_mlps": 2,
    "pad_token_id": 4, "pad_vocab_size_multiple": 8, "short_filter_order": 3, "tie_word_embeddings": False,
    "torch_dtype": "float32", "train_freq": True, "transformers_version": "4.35.0.dev0", "use_bias": True,
    "vocab_size": 12,
}  # fmt: skip
ORIGINAL = {
    "d_model": HDIM, "n_layer": 2, "d_inner": HINNER, "vocab_size": 12, "resid_dropout": 0.0, "embed_dropout": 0.1,
    "fused_mlp": False, "fused_dropout_add_ln": True, "checkpoint_mixer": True, "checkpoint_mlp": True,
    "residual_in_fp32": True, "pad_vocab_size_multiple": 8, "return_hidden_state": True,
    "layer": {"_name_": "hyena", "emb_dim": 5, "filter_order": HFILTER, "local_order": 3, "l_max": HLONGEST,
              "modulate": True, "w": 10, "lr": 6e-4, "wd": 0.0, "lr_pos_emb": 0.0},
}  # fmt: skip


def hyena_tensors(head: bool = True) -> dict[str, Tensor]:
    """As the port to transformers has them: one frequency a filter, positions and decays as they are computed."""
    shapes: dict[str, tuple[int, ...]] = {"embeddings.word_embeddings.weight": (ROWS, HDIM)}
    for i in range(2):
        own: dict[str, tuple[int, ...]] = {
            "norm1.weight": (HDIM,), "norm1.bias": (HDIM,), "norm2.weight": (HDIM,), "norm2.bias": (HDIM,),
            "mixer.in_proj.weight": (3 * HDIM, HDIM), "mixer.in_proj.bias": (3 * HDIM,),
            "mixer.out_proj.weight": (HDIM, HDIM), "mixer.out_proj.bias": (HDIM,),
            "mixer.short_filter.weight": (3 * HDIM, 1, 3), "mixer.short_filter.bias": (3 * HDIM,),
            "mixer.filter_fn.bias": (HDIM,), "mixer.filter_fn.implicit_filter.0.weight": (HFILTER, 5),
            "mixer.filter_fn.implicit_filter.0.bias": (HFILTER,),
            "mixer.filter_fn.implicit_filter.1.freq": (1, HFILTER),
            "mixer.filter_fn.implicit_filter.2.weight": (HFILTER, HFILTER),
            "mixer.filter_fn.implicit_filter.2.bias": (HFILTER,),
            "mixer.filter_fn.implicit_filter.4.weight": (HFILTER, HFILTER),
            "mixer.filter_fn.implicit_filter.4.bias": (HFILTER,),
            "mixer.filter_fn.implicit_filter.6.weight": (HDIM, HFILTER),
            "mlp.fc1.weight": (HINNER, HDIM), "mlp.fc1.bias": (HINNER,),
            "mlp.fc2.weight": (HDIM, HINNER), "mlp.fc2.bias": (HDIM,),
        }  # fmt: skip
        shapes |= {f"layers.{i}.{name}": shape for name, shape in own.items()}
    tensors = draw(shapes | {"ln_f.weight": (HDIM,), "ln_f.bias": (HDIM,)}, seed=5)
    for i in range(2):
        at = f"layers.{i}.mixer.filter_fn."
        z = [[k / (HLONGEST - 1)] for k in range(HLONGEST)]
        for k, row in enumerate(z):
            angles = [f * 2 * math.pi * k / HLONGEST for f in (1e-4, 1.0)]
            row += [*map(math.cos, angles), *(-math.sin(angle) for angle in angles)]
        tensors[f"{at}pos_emb.z"] = torch.tensor(z)[None]
        tensors[f"{at}pos_emb.t"] = torch.tensor(z)[None, :, :1].clone()
        slow, fast = math.log(0.01) / 1.5, math.log(0.01) / 0.3
        rates = [slow + (fast - slow) * k / (HDIM - 1) for k in range(HDIM)]
        tensors[f"{at}modulation.deltas"] = torch.tensor(rates)[None, None]
    named = {f"hyena.backbone.{name}": tensor for name, tensor in tensors.items()}
    return named | ({"lm_head.weight": tensors["embeddings.word_embeddings.weight"].clone()} if head else {})


def checkpointed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The names of the training code, which puts a layer around mixer and MLP; sines are there three times."""
    found = {}
    for name, tensor in tensors.items():
        new = f"model.{name.removeprefix('hyena.')}".replace(".mixer.", ".mixer.layer.").replace(".mlp.", ".mlp.layer.")
        found[new] = tensor
        if name.endswith("1.freq"):
            found |= {new.replace("1.freq", f"{n}.freq"): tensor for n in (3, 5)}
    return found


def slow_hyena(tensors: dict[str, Tensor], ids: Tensor, shift: float) -> Tensor:
    """(L,) to (L, 12) logits in float64: the long convolution is a double loop."""
    t = {name.removeprefix("hyena.backbone."): tensor.double() for name, tensor in tensors.items()}
    length, x = len(ids), t["embeddings.word_embeddings.weight"][ids]
    for i in range(2):
        at, f = f"layers.{i}", f"layers.{i}.mixer.filter_fn"
        normed = F.layer_norm(x, (HDIM,), t[f"{at}.norm1.weight"], t[f"{at}.norm1.bias"])
        p = normed @ t[f"{at}.mixer.in_proj.weight"].T + t[f"{at}.mixer.in_proj.bias"]
        x0, x1, v = short(t, f"{at}.mixer.short_filter", p).chunk(3, dim=1)
        h = t[f"{f}.pos_emb.z"][0, :length]
        for layer in (0, 2, 4):
            h = h @ t[f"{f}.implicit_filter.{layer}.weight"].T + t[f"{f}.implicit_filter.{layer}.bias"]
            h = torch.sin(t[f"{f}.implicit_filter.1.freq"] * h)
        window = torch.exp(-t[f"{f}.pos_emb.t"][0, :length] * t[f"{f}.modulation.deltas"][0].abs()) + shift
        k = (h @ t[f"{f}.implicit_filter.6.weight"].T) * window
        u = x1 * v
        y = torch.stack([sum(k[j - m] * u[m] for m in range(j + 1)) + t[f"{f}.bias"] * u[j] for j in range(length)])
        x = x + (y * x0) @ t[f"{at}.mixer.out_proj.weight"].T + t[f"{at}.mixer.out_proj.bias"]
        normed = F.layer_norm(x, (HDIM,), t[f"{at}.norm2.weight"], t[f"{at}.norm2.bias"])
        inner = F.gelu(normed @ t[f"{at}.mlp.fc1.weight"].T + t[f"{at}.mlp.fc1.bias"], approximate="tanh")
        x = x + inner @ t[f"{at}.mlp.fc2.weight"].T + t[f"{at}.mlp.fc2.bias"]
    out = F.layer_norm(x, (HDIM,), t["ln_f.weight"], t["ln_f.bias"])
    return (out @ t["embeddings.word_embeddings.weight"].T)[:, :12]


@pytest.mark.parametrize("head", [True, False])
def test_hyena_is_the_slow_network(head, tmp_path):
    tensors = hyena_tensors(head)
    lm = unmask.load(write(tmp_path / "there", HYENA, tensors))
    net = lm.config.model
    assert (net.method, net.filter_length, net.filter_shift, lm.length) == ("ar", HLONGEST, 0.05, HLONGEST - 2)
    assert not lm.config.objective.start_token and lm.tokenizer.kind == "dna" and net.dropout == 0.1
    torch.testing.assert_close(said(lm)[0], slow_hyena(tensors, BASES[0], 0.05), rtol=1e-6, atol=1e-6)
    assert not (tmp_path / "there" / "RAN").exists()


class Trap:
    """What runs something when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.place),)


def test_hyena_as_its_authors_wrote_it(tmp_path):
    """weights.ckpt beside config.json: a pickle of which nothing runs, without a shift."""
    tensors, folder = hyena_tensors(), tmp_path / "hyenadna-tiny-1k-seqlen"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(ORIGINAL))
    ran = tmp_path / "RAN"
    torch.save({"state_dict": checkpointed(tensors), "callbacks": Trap(ran), "epoch": 3}, folder / "weights.ckpt")
    truth = slow_hyena(tensors, BASES[0], 0.0)
    report = convert(str(folder / "weights.ckpt"), tmp_path / "out")
    assert (report["method"], report["weights"], report["vocab"]["size"]) == ("ar", "raw", 12)
    for place in (folder, tmp_path / "out"):
        lm = unmask.load(place)
        assert lm.config.model.filter_shift == 0.0
        torch.testing.assert_close(said(lm)[0], truth, rtol=1e-6, atol=1e-6)
    assert float((slow_hyena(tensors, BASES[0], 0.05) - truth).abs().max()) > 1e-3 and not ran.exists()
    with pytest.raises(UserError, match="is a pickled file; convert it to a folder first with: unmask convert"):
        unmask.load(folder / "weights.ckpt")
    (folder / "config.json").unlink()
    with pytest.raises(UserError, match="is not a checkpoint of the paper's code"):
        convert(str(folder / "weights.ckpt"), tmp_path / "more")


def test_hyena_of_the_hub(there: FakeHub):
    folder = there.repositories / "LongSafari" / "hyenadna-tiny-1k-seqlen"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(ORIGINAL))
    torch.save({"state_dict": checkpointed(hyena_tensors())}, folder / "weights.ckpt")
    lm = unmask.load("LongSafari/hyenadna-tiny-1k-seqlen")
    torch.testing.assert_close(said(lm)[0], slow_hyena(hyena_tensors(), BASES[0], 0.0), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"emb_dim": 3}, "emb_dim 3"),
        ({"hyena_order": 3}, "hyena_order 3"),
        ({"num_inner_mlps": 1}, "num_inner_mlps 1"),
        ({"short_filter_order": 5}, "short_filter_order 5"),
        ({"use_bias": False}, "use_bias false"),
        ({"gated": True}, "has gated true, which unmask does not know"),
        ({"d_inner": 20}, "d_inner 20, which is not a multiple of its d_model"),
        ({"max_seq_len": None}, "does not have max_seq_len"),
        ({"max_seq_len": 30}, "pos_emb.* is not that of filters for 30 columns"),
        ({"vocab_size": 50257}, "vocab_size 50257"),
    ],
)
def test_another_hyena(change, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        unmask.load(write(tmp_path / "there", HYENA | change, hyena_tensors()))


def test_another_hyena_of_the_training_code():
    layer = ORIGINAL["layer"]
    for change, sentence in (({"order": 3}, "layer.order 3"), ({"modulate": False}, "layer.modulate false")):
        with pytest.raises(UserError, match=sentence):
            layout.from_json(ORIGINAL | {"layer": layer | change})
    told = layout.from_json(ORIGINAL | {"layer": layer | {"shift": 0.05}})
    assert told.config.model.filter_shift == 0.05


def test_a_hyena_with_another_head(tmp_path):
    tensors = hyena_tensors()
    tensors["lm_head.weight"] = tensors["lm_head.weight"] + 1e-3
    with pytest.raises(
        UserError, match=r"lm_head.weight is not backbone\S*word_embeddings.weight, to which it is tied"
    ):
        unmask.load(write(tmp_path / "there", HYENA, tensors))


# -- our own folders -------------------------------------------------------------------------------------------------


def same(one: LM, other: LM) -> bool:
    mine, yours = dict(one.model.state_dict()), dict(other.model.state_dict())
    return mine.keys() == yours.keys() and all(torch.equal(tensor, yours[name]) for name, tensor in mine.items())


@pytest.mark.parametrize(
    ("method", "backbone", "more"),
    [
        ("mdlm", "caduceus", {"strands": "ps"}),
        ("mdlm", "caduceus", {"strands": "ph"}),
        ("mdlm", "caduceus", {"strands": "ps", "swap_strands": True}),
        ("sedd", "caduceus", {}),
        ("d3pm", "caduceus", {}),
        ("plaid", "caduceus", {}),
        ("ar", "mamba", {"state_dim": 5, "conv_width": 3, "expand": 1}),
        ("ar", "hyena", {"filter_dim": 7, "filter_length": 40, "filter_shift": 0.01}),
    ],
)
def test_our_networks_travel(method, backbone, more, tmp_path):
    base = recipe("dna-tiny").model_dump(mode="json")
    network = {"method": method, "backbone": backbone, "hidden_dim": 16, "n_blocks": 2, "dropout": 0.0, **more}
    base["model"] |= network
    base["data"]["length"] = 32
    if method != "mdlm":
        base["objective"] = {}
    config = unmask.config.parse(base)
    tokenizer = dna_tokenizer()
    torch.manual_seed(3)
    model = registry.model(config, tokenizer.vocab)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    lm = LM(model.eval(), tokenizer, config)
    lm.save_pretrained(tmp_path / "out")
    again = unmask.load(tmp_path / "out")
    assert same(again, lm) and again.config.model == config.model and again.config.plaid == config.plaid
    assert again.tokenizer.vocab == tokenizer.vocab and again.tokenizer.kind == "dna"
    assert again.tokenizer.encode("acgtNRx") == tokenizer.encode("acgtNRx") == [7, 8, 9, 10, 11, 11, 6]
    again.save_pretrained(tmp_path / "half", dtype="float16")
    assert (tmp_path / "half" / "model.safetensors").stat().st_size < (
        tmp_path / "out" / "model.safetensors"
    ).stat().st_size
    assert unmask.load(tmp_path / "half").config == again.config
    report = convert(str(tmp_path / "out"), tmp_path / "third")
    assert report["parameters"] == sum(p.numel() for p in model.parameters()) and same(
        unmask.load(tmp_path / "third"), lm
    )
    with pytest.raises(UserError, match="the published layout cannot express"):
        convert(str(tmp_path / "out"), tmp_path / "fourth", to="published")
