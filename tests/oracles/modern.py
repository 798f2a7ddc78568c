"""The modern transformer, slowly: one row, one head and one column after the other, from its weights by name.

Written from the description of the network, in float64; nothing of the package is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

State = Mapping[str, Tensor]


def rms(x: Tensor) -> Tensor:
    """A vector of which the mean square is 1."""
    return x / math.sqrt(float((x * x).mean()) + 1e-6)


def turned(x: Tensor, position: int) -> Tensor:
    """A vector of a head: channels i and i + D/2 are a point of the plane, turned by position · 10000^(-2i/D)."""
    half = len(x) // 2
    out = x.clone()
    for i in range(half):
        angle = position * 10_000.0 ** (-2 * i / len(x))
        cos, sin = math.cos(angle), math.sin(angle)
        out[i] = cos * x[i] - sin * x[i + half]
        out[i + half] = sin * x[i] + cos * x[i + half]
    return out


def attended(q: list[Tensor], k: list[Tensor], v: list[Tensor], allowed: Tensor) -> list[Tensor]:
    """One head: each column's mean of the values that it may see."""
    out = []
    for column, query in enumerate(q):
        weights = torch.zeros(len(k), dtype=torch.float64)
        for other, key in enumerate(k):
            if allowed[column, other]:
                weights[other] = math.exp(float(query @ key) / math.sqrt(len(query)))
        out.append(sum(w * value for w, value in zip(weights / weights.sum(), v, strict=True)))
    return out


def row_states(state: State, n_heads: int, tokens: list[int], allowed: Tensor, condition: Tensor | None) -> Tensor:
    """(L, dim): the hidden states of one row under a mask (L, L)."""
    n_blocks = len([name for name in state if name.endswith(".qkv.weight")])
    start = [rms(state["vocab_embed.embedding"][token]) for token in tokens]
    start = start if condition is None else [x + condition for x in start]
    xs, first_values = start, None
    for number in range(n_blocks):
        weight = {name: state.get(f"blocks.{number}.{name}") for name in ("x0_skip", "value_skip")}
        qkv, out, fc, proj = (state[f"blocks.{number}.{name}.weight"] for name in ("qkv", "out", "fc", "proj"))
        if weight["x0_skip"] is not None:
            a, b = weight["x0_skip"]
            xs = [a * x + b * x0 for x, x0 in zip(xs, start, strict=True)]
        dim = len(xs[0])
        columns = [qkv @ rms(x) for x in xs]  # queries, keys and values one after the other
        values = [column[2 * dim :] for column in columns]
        first_values = values if first_values is None else first_values
        if weight["value_skip"] is not None:
            a, b = weight["value_skip"]
            values = [a * v + b * v0 for v, v0 in zip(values, first_values, strict=True)]
        heads = []
        for head in range(n_heads):
            part = slice(head * dim // n_heads, (head + 1) * dim // n_heads)
            q = [turned(rms(column[:dim][part]), place) for place, column in enumerate(columns)]
            k = [turned(rms(column[dim : 2 * dim][part]), place) for place, column in enumerate(columns)]
            heads.append(attended(q, k, [v[part] for v in values], allowed))
        xs = [x + out @ torch.cat([head[place] for head in heads]) for place, x in enumerate(xs)]
        xs = [x + proj @ (fc @ rms(x)).clamp(min=0) ** 2 for x in xs]
    return torch.stack([rms(x) for x in xs])


def modern_logits(
    state: State, n_heads: int, tokens: Tensor, allowed: Tensor, condition: Tensor | None = None
) -> Tensor:
    """(B, L, V) logits under masks (1 or B, L, L); the condition (1 or B, dim) is added to the embeddings."""
    state = {name: tensor.double() for name, tensor in state.items()}
    rows = []
    for number, row in enumerate(tokens.tolist()):
        told = None if condition is None else condition.double().expand(len(tokens), -1)[number]
        states = row_states(state, n_heads, row, allowed.expand(len(tokens), -1, -1)[number], told)
        rows.append(states @ state["vocab_embed.embedding"].T + state["head_bias"])
    return torch.stack(rows)


def time_by_hand(state: State, sigma: float) -> Tensor:
    """A sinusoid of 256 channels, cosines first, periods up to 1e4; Linear, SiLU, Linear."""
    angles = [sigma * 10_000.0 ** (-i / 128) for i in range(128)]
    wave = torch.tensor([*map(math.cos, angles), *map(math.sin, angles)], dtype=torch.float64)
    first, second = (
        (state[f"sigma_map.mlp.{i}.weight"].double(), state[f"sigma_map.mlp.{i}.bias"].double()) for i in (0, 2)
    )
    h = first[0] @ wave + first[1]
    return second[0] @ (h / (1 + torch.exp(-h))) + second[1]
