"""The config.json of published models: MDLM's and SEDD's. For the rest, the paper's run on OpenWebText is assumed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...config import Config, parse
from ...networks.foreign.fields import HARMLESS, Allowed, mapping, only, understood, value
from ...recipes import owt
from ...types import UserError, Vocab
from .terms import ROLES, SHAPE, Described, inside, known_vocab, read_vocab

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


def read_mdlm(tree: Mapping[str, Any], where: str | Path) -> Described:
    """The paper's run on OpenWebText, with the network that config.json describes."""
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
    only(tree, {**PLAIN, "block_size": (None, tree["model_length"])}, where)
    understood(tree, {*HARMLESS, *PLAIN, *wanted, *optional}, where)
    model = {key: tree[key] for key in SHAPE if key in wanted}
    model |= {key: value(tree, key, kind, where) for key, kind in optional.items() if key in tree}
    config = inside(where, lambda: paper_config("mdlm", model, tree["model_length"]))
    return Described(config, _mdlm_vocab(tree, where), (), tree["vocab_size"])


def _mdlm_vocab(tree: Mapping[str, Any], where: str | Path) -> Vocab | None:
    size = tree["vocab_size"]
    if tree.get("mask_token_id") is None:
        return known_vocab(size)
    return read_vocab({"size": size} | {role: tree.get(f"{role}_token_id") for role in ROLES}, where)


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
    config = inside(where, lambda: paper_config("sedd", network, length, noise_schedule(noise, where)))
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


def paper_config(
    method: str, network: Mapping[str, Any], length: int, schedule: Mapping[str, Any] | None = None
) -> Config:
    """The paper's run on OpenWebText with another network, method, length or schedule."""
    tree = owt().model_dump(mode="json")
    tree["model"] |= {"method": method, **network}
    tree["data"]["length"] = length
    tree["schedule"] |= dict(schedule or {})
    return parse(tree)
