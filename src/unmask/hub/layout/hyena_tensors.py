"""The tensors of published HyenaDNA files: names, what is fixed, and what is there twice."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...networks.hyena import BANDS, deltas, positions
from ...types import UserError


def published(tensors: Mapping[str, Tensor], longest: int, where: str) -> dict[str, Tensor]:
    """The tensors of a published file under the names that they have in a language model, each of them once.

    What is fixed or there twice is left out, if it is what it has to be; `longest` is the length of the filters.
    """
    named = {_our_name(name): tensor for name, tensor in tensors.items()}
    found = {}
    for name, tensor in named.items():
        owner, _, leaf = name.rpartition(".")
        if leaf in ("z", "t", "deltas") and ".filter_fn." in name:
            right = _is_fixed(leaf, tensor, longest)
            what = f"that of filters for {longest} columns"
        elif leaf == "freq" and not owner.endswith(".1"):
            right = _is_same(tensor, named.get(f"{owner.rpartition('.')[0]}.1.freq"))
            what = "the tensor of the first sines"
        elif name.endswith("lm_head.weight"):
            right = _is_same(tensor, named.get("backbone.embeddings.word_embeddings.weight"))
            what = "the embedding, to which the head is tied"
        else:
            found[name] = tensor
            continue
        if not right:
            raise UserError(f"{where} does not fit this model: {name} is not {what}")
    return found


def _our_name(name: str) -> str:
    """From "backbone." on, and without the ".layer" that files of checkpointed networks have."""
    _, inside, rest = name.rpartition("backbone.")
    return inside + rest.replace(".mixer.layer.", ".mixer.").replace(".mlp.layer.", ".mlp.")


def _is_same(tensor: Tensor, other: Tensor | None) -> bool:
    return other is not None and torch.equal(tensor, other)


def _is_fixed(leaf: str, table: Tensor, longest: int) -> bool:
    """Whether a fixed table is ours, up to rounding. Ours is made only if the file has as many numbers."""
    if leaf == "deltas":
        wanted = deltas(table.numel(), table)
    elif table.numel() == longest * (1 + 2 * BANDS if leaf == "z" else 1):
        wanted = positions(longest, table)[0 if leaf == "z" else 1]
    else:
        return False
    near = 1e-4 if table.dtype == torch.float32 else 1e-2
    return torch.allclose(table.to(wanted.dtype).reshape(wanted.shape), wanted, near, near)
