"""The config.json of published models: MDLM's, SEDD's, BD3-LM's and BlockGen's.

For what they do not say, the paper's run on OpenWebText is assumed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...config import Config, parse
from ...networks.foreign.fields import HARMLESS, Allowed, mapping, only, understood, value
from ...recipes import owt
from ...types import UserError, Vocab
from .terms import GPT2, ROLES, SHAPE, Described, inside, known_vocab, read_vocab

NETWORK = {"hidden_size": "hidden_dim", "n_blocks": "n_blocks", "n_heads": "n_heads", "cond_dim": "cond_dim"}
# What the config of an MDLM may add: its successors have block diffusion, and networks that look to the left.
PLAIN: Allowed = {
    "adaln": (True,),
    "attn_backend": ("flash_attn", "flex", "sdpa"),
    "block_size": (None,),
    "causal": (False,),
    "cross_attn": (False,),
    "parameterization": ("subs",),
    "tie_word_embeddings": (False,),
}
FIXED: Allowed = {"type": ("ddit",), "tie_word_embeddings": (False,)}  # of a section `model`
SIZES = {*NETWORK, "length", "dropout", "name", "scale_by_sigma"}
NOISE = {"type", "eps", "sigma_min", "sigma_max"}
RUN = {  # of SEDD's config: how it was trained and sampled
    "data", "eval", "hydra", "model", "ngpus", "noise", "graph", "optim", "sampling", "tokens", "training",
    "wandb_name", "work_dir",
}  # fmt: skip
CLIPPING = {"var_min", "sampling_eps_min", "sampling_eps_max"}  # of BD3-LM's training: which mask rates it draws
BLOCKGEN: Allowed = {"type": ("block-dit",), "attn_backend": ("flex", "sdpa"), "adaLN": (True,)}
# Where a BlockGen lies in its repository, which says what its config.json does not.
BLOCKGEN_PLACE = re.compile(
    r"(?P<kind>single|multi)_block_size/(?P<size>\d+)/(?P<data>\w+)/(?:(?P<shares>[\w.]+)/)?(?P<noise>absorb|uniform)$"
)


def read_mdlm(tree: Mapping[str, Any], where: str | Path) -> Described:
    """The paper's run on OpenWebText, with the network that config.json describes."""
    length = value(tree, "model_length", int, where)
    model = _mdlm_network(tree, {**PLAIN, "block_size": (None, length)}, where)
    config = inside(where, lambda: paper_config("mdlm", model, length))
    return Described(config, _mdlm_vocab(tree, where), (), tree["vocab_size"])


def _mdlm_network(tree: Mapping[str, Any], fixed: Allowed, where: str | Path) -> dict[str, Any]:
    """The network in our terms; `fixed` are the fields that may have these values only."""
    wanted = {
        "hidden_dim": int,
        "n_blocks": int,
        "n_heads": int,
        "cond_dim": int,
        "model_length": int,
        "vocab_size": int,
        "time_conditioning": bool,
    }
    for key, kind in wanted.items():
        value(tree, key, kind, where)
    optional = {"mlp_ratio": int, "dropout": float}
    only(tree, fixed, where)
    understood(tree, {*HARMLESS, *fixed, *wanted, *optional}, where)
    model = {key: tree[key] for key in SHAPE if key in wanted}
    return model | {key: value(tree, key, kind, where) for key, kind in optional.items() if key in tree}


def _mdlm_vocab(tree: Mapping[str, Any], where: str | Path) -> Vocab | None:
    size = tree["vocab_size"]
    if tree.get("mask_token_id") is None:
        return known_vocab(size)
    return read_vocab({"size": size} | {role: tree.get(f"{role}_token_id") for role in ROLES}, where)


def read_bd3lm(tree: Mapping[str, Any], where: str | Path) -> Described:
    """Block diffusion with a clean stream that is causal by blocks: kuleshov-group/bd3lm-owt-block_size*.

    Their rows are wrapped without ends. The mask rates that they were trained on do not change what they compute.
    """
    size, length = (value(tree, key, int, where) for key in ("block_size", "model_length"))
    whole = size == length  # one block is MDLM, with or without a second stream
    fixed = {**PLAIN, "block_size": (size,), "cross_attn": (True, False) if whole else (True,)}
    fixed["time_conditioning"] = (False,)
    rest = {key: setting for key, setting in tree.items() if key not in CLIPPING}
    model = _mdlm_network(rest, fixed, where)
    blocks = {"size": "full" if whole else size, "clean": "blocks"}
    config = inside(where, lambda: paper_config("block", model, length, data={"block_ends": False}, block=blocks))
    return Described(config, _mdlm_vocab(tree, where), (), tree["vocab_size"])


def is_blockgen(tree: Mapping[str, Any]) -> bool:
    """Whether a config.json is the section `model` of a BlockGen."""
    return "model_type" not in tree and {"x0_causal", "hidden_size", "length"} <= tree.keys()


def read_blockgen(tree: Mapping[str, Any], where: str | Path) -> Described:
    """A folder of jdeschena/blockgen: config.json has the network alone, its place the block sizes and the noise."""
    understood(tree, {*BLOCKGEN, *SIZES, "x0_causal"}, where)
    only(tree, BLOCKGEN, where)
    network = {ours: value(tree, theirs, int, where) for theirs, ours in NETWORK.items()}
    network["dropout"] = value(tree, "dropout", float, where, 0.1)
    length, causal = value(tree, "length", int, where), value(tree, "x0_causal", bool, where)
    place = BLOCKGEN_PLACE.search(Path(where).parent.resolve().as_posix())
    if place is None:
        raise UserError(
            f"{where} does not say the block size and the noise of this BlockGen; leave it in the folders of its "
            "repository, as blockgen/single_block_size/16/owt/absorb"
        )
    if place["noise"] != "absorb" or place["data"] != "owt":
        what = f"noise {place['noise']!r}" if place["noise"] != "absorb" else f"the text {place['data']!r}"
        raise UserError(f"{where} describes a BlockGen of {what}; unmask reads those with masks (absorb) on owt")
    blocks = {"size": int(place["size"]), "clean": "tokens" if causal else "blocks", "mixture": _shares(place, where)}
    loss = {"loss": "cross-entropy"}
    config = inside(where, lambda: paper_config("block", network, length, block=blocks, objective=loss))
    return Described(config, GPT2, (), GPT2.size)


def _shares(place: re.Match[str], where: str | Path) -> dict[int, float] | None:
    """The block sizes of a BlockGen: blocks of one token and the largest ones, or all powers of two alike."""
    size, shares = int(place["size"]), place["shares"]
    if place["kind"] == "single":
        return None
    if shares == "uniform":
        return {2**power: 1.0 for power in range(size.bit_length())}
    try:
        one, largest = map(float, str(shares).split("_"))
    except ValueError:
        raise UserError(f"{where} lies in {shares!r}, which is not two shares as 0.05_0.95, nor uniform") from None
    return {1: one, size: largest}


def read_sedd(tree: Mapping[str, Any], where: str | Path) -> Described:
    """The config of louaaron/sedd-small and -medium: sections model, noise, graph, and the number of tokens."""
    net, noise, graph = (mapping(tree, key, where) for key in ("model", "noise", "graph"))
    if graph.get("type") != "absorb":
        raise UserError(f"{where} describes a SEDD of graph {graph.get('type')!r}; unmask reads only the absorbing one")
    understood(tree, {*HARMLESS, *RUN}, where)
    understood(graph, {"type", "file", "report_all"}, where, "graph.")
    need_scale(net, where)
    network = read_network(net, where) | {"time_conditioning": True}
    length = value(net, "length", int, where)
    config = inside(where, lambda: paper_config("sedd", network, length, schedule=noise_schedule(noise, where)))
    size = value(tree, "tokens", int, where) + 1
    return Described(config, known_vocab(size), (), size)


def need_scale(net: Mapping[str, Any], where: str | Path) -> None:
    """Raise if a SEDD does not scale its output by the noise."""
    if net.get("scale_by_sigma") is False:
        raise UserError(f"{where} describes a SEDD without scale_by_sigma, whose outputs mean something else")


def read_network(net: Mapping[str, Any], where: str | Path, causal: bool = False) -> dict[str, Any]:
    """The network that a section `model` of the public repositories describes, in our terms."""
    fixed: Allowed = {**FIXED, "causal": (causal,)}
    only(net, fixed, where, "model.")
    understood(net, {*fixed, *SIZES}, where, "model.")
    sizes = {ours: value(net, theirs, int, where) for theirs, ours in NETWORK.items()}
    return sizes | {"dropout": value(net, "dropout", float, where, 0.1)}


def noise_schedule(noise: Mapping[str, Any], where: str | Path) -> dict[str, Any]:
    """The schedule section for a noise of the public repositories."""
    name = noise.get("type")
    understood(noise, NOISE, where, "noise.")
    with_eps = {"loglinear": "log-linear", "cosine": "cosine", "cosinesqr": "cosine-squared"}
    if name in with_eps:
        return {"name": with_eps[name], "eps": value(noise, "eps", float, where, 1e-3)}
    if name == "geometric":
        low, high = (value(noise, key, float, where) for key in ("sigma_min", "sigma_max"))
        return {"name": "geometric", "sigma_min": low, "sigma_max": high}
    raise UserError(f"{where} has noise type {name!r}; unmask reads {', '.join(with_eps)} and geometric")


def paper_config(method: str, network: Mapping[str, Any], length: int, **sections: Mapping[str, Any]) -> Config:
    """The paper's run on OpenWebText with another network, method or length, and other settings by section."""
    tree = owt().model_dump(mode="json")
    tree["model"] |= {"method": method, **network}
    tree["data"]["length"] = length
    for name, settings in sections.items():
        tree[name] |= settings
    return parse(tree)
