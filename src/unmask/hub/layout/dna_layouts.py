"""Networks of others that read bases: the config.json and the tensors of Caduceus, Mamba and HyenaDNA.

Caduceus was trained as a masked language model and becomes a model of method mdlm; Mamba (of text, too) and HyenaDNA
are autoregressive, and their first token is given and not scored, as they never saw a start symbol. A setting that
our network has no word for is an error that names its key. Whatever is there twice (tied weights) or is fixed
(complements, positions) must be what it has to be, and is left out.

The published "ps" Caduceus has fused_add_norm: true, and so exchanges the strands before every layer;
the port of HyenaDNA to transformers adds 0.05 to the decay of its filters, the training code nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...config import Config, DataConfig, parse
from ...data.genome.bases import COMPLEMENT, ROWS, VOCAB
from ...data.tokenization import JSON_FILE, Tokenizer
from ...networks.layers import padded
from ...recipes import dna_hyena, dna_mamba, dna_mdlm, owt
from ...types import UserError
from .hyena_tensors import published
from .terms import Described, inside, mapping, value

BACKBONES = ("caduceus", "mamba", "hyena")
LENGTH = 1024  # bases or tokens a row, where the filters are made for so many
NEOX = "EleutherAI/gpt-neox-20b"  # the tokenizer of the Mambas that read text
PADDING = 1024  # rows that an embedding may have beyond its tokenizer
PORT_SHIFT = 0.05  # of HyenaDNA in transformers
SIZES = {"d_state": "state_dim", "d_conv": "conv_width", "expand": "expand"}  # of ssm_cfg
NO_MATTER = {"dt_min", "dt_max", "dt_init", "dt_scale", "dt_init_floor", "use_fast_path"}  # a fresh network, and speed
BEFORE = re.compile(r"^(model\.)?(caduceus\.|hyena\.)?(?=backbone\.|lm_head\.)")
EMBEDDINGS = "backbone.embeddings."

Allowed = Mapping[str, tuple[Any, ...]]


def kind_of(tree: Mapping[str, Any]) -> str | None:
    """Which of these networks a config.json describes; None: none of them."""
    kind, layer = tree.get("model_type"), tree.get("layer")
    if kind in ("caduceus", "mamba"):
        return str(kind)
    if kind == "hyenadna" or (kind is None and isinstance(layer, Mapping) and layer.get("_name_") == "hyena"):
        return "hyena"
    return "mamba" if kind is None and {"d_model", "ssm_cfg"} <= tree.keys() else None


def read_genomic(tree: Mapping[str, Any], where: str | Path, tokenizer: str | None = None) -> Described:
    """Caduceus, Mamba or HyenaDNA; `tokenizer` says where that of a Mamba is found, if it has one."""
    kind = kind_of(tree)
    if kind == "mamba":
        return _mamba(tree, where, tokenizer)
    size = value(tree, "vocab_size", int, where)
    if not VOCAB.size <= size <= ROWS:
        raise UserError(f"{where} has vocab_size {size}; unmask reads a {kind} of {VOCAB.size} tokens of DNA")
    made = _caduceus(tree, where) if kind == "caduceus" else _hyena(tree, where)
    return Described(made, VOCAB, (), VOCAB.size)


def _only(tree: Mapping[str, Any], allowed: Allowed, where: str | Path, name: str = "") -> None:
    """Raise if a setting is another than our networks have; one that is not there is as usual."""
    for key, values in allowed.items():
        if key in tree and not any(type(tree[key]) is type(known) and tree[key] == known for known in values):
            shown, wanted = json.dumps(tree[key])[:80], " or ".join(map(json.dumps, values))
            raise UserError(f"{where} has {name}{key} {shown}, and unmask reads such a network with {wanted} only")


def _config(base: Config, network: Mapping[str, Any], data: Mapping[str, Any], where: str | Path) -> Config:
    """A recipe of the paper with another network."""
    tree = base.model_dump(mode="json")
    tree["model"] |= dict(network)
    tree["data"] |= dict(data)
    tree["objective"]["start_token"] = tree["model"]["method"] != "ar"
    return inside(where, lambda: parse(tree))


# -- what a config.json says -----------------------------------------------------------------------------------------


def _state_space(tree: Mapping[str, Any], where: str | Path) -> dict[str, Any]:
    """The sizes of a Mamba, in the words of mamba_ssm and Caduceus."""
    dim = value(tree, "d_model", int, where)
    _only(
        tree,
        {
            "rms_norm": (True,),
            "norm_epsilon": (1e-5,),
            "tie_word_embeddings": (True,),
            "tie_embeddings": (True,),
            "d_intermediate": (0,),
            "attn_layer_idx": ([], None),
        },
        where,
    )
    own = tree.get("ssm_cfg") or {}
    if not isinstance(own, Mapping):
        raise UserError(f"{where} is damaged: its ssm_cfg is {str(own)[:80]!r}")
    fixed: Allowed = {
        "layer": ("Mamba1",),
        "dt_rank": ("auto", math.ceil(dim / 16)),
        "conv_bias": (True,),
        "bias": (False,),
    }
    _only(own, fixed, where, "ssm_cfg.")
    if unknown := sorted(own.keys() - SIZES.keys() - fixed.keys() - NO_MATTER):
        raise UserError(f"{where} has ssm_cfg.{str(unknown[0])[:80]}, which unmask does not know")
    sizes = {ours: value(own, theirs, int, where) for theirs, ours in SIZES.items() if theirs in own}
    return {"hidden_dim": dim, "n_blocks": value(tree, "n_layer", int, where), "dropout": 0.0, **sizes}


def _caduceus(tree: Mapping[str, Any], where: str | Path) -> Config:
    _only(
        tree,
        {"bidirectional": (True,), "bidirectional_strategy": ("add", None), "bidirectional_weight_tie": (True,)},
        where,
    )
    both = value(tree, "rcps", bool, where, False)
    fused = value(tree, "fused_add_norm", bool, where, True)
    if both:
        _check_complements(tree.get("complement_map"), where)
    network = {"strands": "ps" if both else "ph", "swap_strands": both and fused, **_state_space(tree, where)}
    return _config(dna_mdlm(), network, {"length": LENGTH, "reverse_complement": not both}, where)


def _check_complements(found: Any, where: str | Path) -> None:
    """The complement of every id, as config.json has it: text to id."""
    wanted = {str(token): int(other) for token, other in enumerate(COMPLEMENT)}
    own = {str(token): other for token, other in found.items()} if isinstance(found, Mapping) else None
    if own is None or not own.items() <= wanted.items() or len(own) < VOCAB.size:
        raise UserError(f"{where} has another complement_map than A and T, C and G (ids 7 and 10, 8 and 9)")


def _mamba(tree: Mapping[str, Any], where: str | Path, tokenizer: str | None) -> Described:
    network = _ported_mamba(tree, where) if "hidden_size" in tree else _state_space(tree, where)
    size = value(tree, "vocab_size", int, where)
    bases = VOCAB.size <= size <= ROWS
    usual = "dna" if bases else NEOX
    name = tokenizer if tokenizer and (Path(where).parent / JSON_FILE).is_file() else usual
    data = _data(name).model_dump(mode="json")
    made = _config(dna_mamba() if bases else owt(), {"method": "ar", "backbone": "mamba", **network}, data, where)
    return Described(made, None, (), size)


def _data(tokenizer: str) -> DataConfig:
    """Rows as a Mamba reads them: windows of a genome, or texts one after the other with their ends between."""
    if tokenizer == "dna":
        return dna_mamba().data
    return owt().data.model_copy(
        update={"tokenizer": tokenizer, "length": LENGTH, "eos_between": True, "block_ends": False}
    )


def _ported_mamba(tree: Mapping[str, Any], where: str | Path) -> dict[str, Any]:
    """The sizes of a Mamba, in the words of transformers."""
    names = {"hidden_dim": "hidden_size", "n_blocks": "num_hidden_layers"}
    more = {"state_dim": "state_size", "conv_width": "conv_kernel", "expand": "expand"}
    network = {ours: value(tree, theirs, int, where) for ours, theirs in names.items()}
    network |= {ours: value(tree, theirs, int, where) for ours, theirs in more.items() if theirs in tree}
    dim = network["hidden_dim"]
    _only(
        tree,
        {
            "use_bias": (False,),
            "use_conv_bias": (True,),
            "hidden_act": ("silu",),
            "layer_norm_epsilon": (1e-5,),
            "tie_word_embeddings": (True,),
            "time_step_rank": ("auto", math.ceil(dim / 16)),
            "intermediate_size": (network.get("expand", 2) * dim,),
        },
        where,
    )
    return network | {"dropout": 0.0}


def _hyena(tree: Mapping[str, Any], where: str | Path) -> Config:
    """HyenaDNA: of transformers with all settings side by side, or of the training code with those of its `layer`."""
    port = tree.get("model_type") == "hyenadna"
    layer = tree if port else mapping(tree, "layer", where)
    names = ("hyena_order", "max_seq_len", "use_bias") if port else ("order", "l_max", "bias")
    _only(
        {"emb_dim": 3} | dict(layer),
        {  # 3 is what both take where nothing is said
            "emb_dim": (5,),
            names[0]: (2,),
            "num_inner_mlps": (2,),
            "short_filter_order": (3,),
            "local_order": (3,),
            names[2]: (True,),
            "modulate": (True,),
            "normalized": (False,),
            "bidirectional": (False,),
            "num_heads": (1,),
            "num_blocks": (1,),
            "inner_factor": (1,),
            "outer_mixing": (False,),
            "post_order_ffn": (False,),
            "activation": ("id",),
        },
        where,
        "" if port else "layer.",
    )
    _only(tree, {"layer_norm_epsilon": (1e-5,), "attn_layer_idx": ([], None), "max_position_embeddings": (0,)}, where)
    dim = value(tree, "d_model", int, where)
    inner = value(tree, "d_inner", int, where, 4 * dim)
    if inner < 1 or dim < 1 or inner % dim:
        raise UserError(f"{where} has d_inner {inner}, which is no multiple of its d_model")
    longest = value(layer, names[1], int, where)
    network = {
        "hidden_dim": dim,
        "n_blocks": value(tree, "n_layer", int, where),
        "mlp_ratio": inner // dim,
        "dropout": value(tree, "embed_dropout", float, where, 0.1),
        "filter_length": longest,
        "filter_dim": value(layer, "filter_order", int, where, 64),
        "filter_shift": PORT_SHIFT if port else value(layer, "shift", float, where, 0.0),
    }
    room = min(LENGTH, max(2, longest - 2))  # without the two ends that their rows have
    return _config(dna_hyena(), network, {"length": room}, where)


# -- tokenizers ------------------------------------------------------------------------------------------------------


def fits_mamba(size: int, rows: int) -> bool:
    """Whether a tokenizer of that size may be the one of a Mamba: a mask token that we add needs no row."""
    return size - 1 <= rows <= min(size + PADDING, 2 * size)


def mamba_with(described: Described, tokenizer: Tokenizer, given: Any = None) -> Described:
    """A Mamba whose tokenizer is found, which decides what its rows are."""
    config = described.config
    bases = tokenizer.kind == "dna"
    named = config.data.tokenizer if given is None or isinstance(given, Tokenizer) else str(given)
    data = _data("dna" if bases else named)
    if not bases and tokenizer.vocab.eos is None:
        data = data.model_copy(update={"eos_between": False})
    return replace(described, config=config.model_copy(update={"data": data}), vocab=tokenizer.vocab)


# -- tensors ---------------------------------------------------------------------------------------------------------


def our_tensors(described: Described, tensors: Mapping[str, Tensor], where: str | Path) -> dict[str, Tensor]:
    """The tensors of a file under our names, each of them once, with an embedding of as many rows as ours has."""
    net = described.config.model
    if net.strands == "ph" and (odd := sorted(name for name in tensors if ".submodule." in name)):
        raise UserError(f"{where} does not fit this model: {odd[0]} is of a network with rcps, which its config denies")
    found = {_our_name(name): tensor for name, tensor in tensors.items()}
    if len(found) < len(tensors):
        twice = next(name for name in tensors if _our_name(name) != name and _our_name(name) in tensors)
        raise UserError(f"{where} does not fit this model: it has {_our_name(twice)} twice, once as {twice}")
    found = _without_copies(found, where)
    if net.backbone == "hyena":
        found = published(found, net.filter_length, str(where))
    return _fitted(described, found)


def _our_name(name: str) -> str:
    """Without the first prefixes, and without those of the wrappers for two strands."""
    name = BEFORE.sub("", name).replace(".submodule.", ".").replace("lm_head.lm_head.", "lm_head.")
    name = name.replace(".word_embeddings.embedding.", ".word_embeddings.")
    return re.sub(r"^backbone\.embedding\.", EMBEDDINGS, name)  # as state-spaces wrote it first


def _table(names: Mapping[str, Tensor]) -> str:
    """The name of the embedding."""
    return next((name for name in (f"{EMBEDDINGS}word_embeddings.weight", f"{EMBEDDINGS}weight") if name in names), "")


def _without_copies(found: Mapping[str, Tensor], where: str | Path) -> dict[str, Tensor]:
    """Without tied weights and complements, if they are what they have to be."""
    kept = dict(found)
    for name, tensor in found.items():
        wanted, what = None, ""
        if name == "lm_head.weight":
            what = _table(found) or "an embedding"
            wanted = found.get(what)
        elif re.search(r"\.mamba_rev\.(in|out)_proj\.", name):
            what = name.replace(".mamba_rev.", ".mamba_fwd.")
            wanted = found.get(what)
        elif name.endswith(".complement_map"):
            wanted, what = torch.from_numpy(COMPLEMENT[: tensor.numel()]), "that of A and T, C and G"
        else:
            continue
        if wanted is None or wanted.shape != tensor.shape or not torch.equal(wanted, tensor):
            tied = "" if name.endswith(".complement_map") else ", to which it is tied"
            raise UserError(f"{where} does not fit this model: {name} is not {what}{tied}")
        del kept[name]
    return kept


def _fitted(described: Described, found: dict[str, Tensor]) -> dict[str, Tensor]:
    """With an embedding of our number of rows: new ones are zero, and those of no token are left out.

    A new row is that of a [MASK] which the network does not have: it is neither read nor predicted. An embedding that
    has not the size that config.json says stays as it is, and is refused later.
    """
    name, vocab, said = _table(found), described.vocab, described.vocab_size
    if not name or vocab is None or found[name].dim() != 2:
        return found
    rows, wanted = len(found[name]), padded(vocab.size)
    least = vocab.size - (1 if vocab.mask == vocab.size - 1 else 0)
    if rows not in (said, padded(said)) or rows < least:
        return found
    return found | {name: F.pad(found[name], (0, 0, 0, wanted - rows)) if rows != wanted else found[name]}
