"""Parts that networks share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MULTIPLE = 8  # vocabularies of networks with tied heads are padded to a multiple of this


def wide(x: Tensor) -> Tensor:
    """At least float32, in which norms, sums and times are computed, whatever the type of the weights."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def padded(size: int) -> int:
    """Rows of the embedding for a vocabulary: 30522 -> 30528."""
    return -(-size // MULTIPLE) * MULTIPLE


def weight_of(linear: nn.Linear) -> Tensor:
    """The matrix of a linear layer with what adapters add to it (`hub.lora`)."""
    layer: Any = linear
    weight: Tensor = layer.weight
    for name in getattr(layer, "active_adapters", ()):
        weight = weight + layer.get_delta_weight(name).to(weight.dtype)
    return weight


class LayerNorm(nn.Module):
    """Layer norm with a scale and without a bias, in at least float32, fused with the shift and scale of adaLN."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor, shift: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
        """LN(x) · weight · (1 + scale) + shift; shift and scale are (1 or B, 1, dim)."""
        dim = x.shape[-1:]
        with torch.autocast(x.device.type, enabled=False):
            if shift is None or scale is None:
                return F.layer_norm(wide(x), dim, wide(self.weight))
            if scale.shape[0] == 1:  # one condition for all rows: it folds into the affine part
                weight = (self.weight * (1 + wide(scale))).view(dim)
                return F.layer_norm(wide(x), dim, weight, wide(shift).view(dim))
            return torch.addcmul(wide(shift), F.layer_norm(wide(x), dim, wide(self.weight)), 1 + wide(scale))


class RMSNorm(nn.Module):
    """Root mean square norm with a scale, in at least float32."""

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x: Tensor) -> Tensor:
        """(..., dim) to (..., dim)."""
        x = wide(x)
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps)


class Embedding(nn.Module):
    """Token embedding; a bare parameter named as in the published checkpoints."""

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(size, dim))
        nn.init.kaiming_uniform_(self.embedding, a=math.sqrt(5))

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, L) to (B, L, dim)."""
        return F.embedding(tokens, self.embedding)


class TiedEmbedding(Embedding):
    """Token embedding that is the projection to the vocabulary, too; `std` is that of the logits of a fresh network."""

    def __init__(self, size: int, dim: int, std: float) -> None:
        super().__init__(size, dim)
        nn.init.normal_(self.embedding, std=std / math.sqrt(dim))


class LabelEmbedding(Embedding):
    """Embedding of labels 0 .. n - 1; its last row means "no label"."""

    def __init__(self, n_labels: int, dim: int) -> None:
        super().__init__(n_labels + 1, dim)
        self.n_labels = n_labels

    def forward(self, label: Tensor | None) -> Tensor:
        """(B, dim) for labels (B,), of which -1 is none, or (1, dim) for "no label" in all rows."""
        if label is None:
            return self.embedding[-1:]
        beyond = label >= self.n_labels  # n_labels must fail like all larger ids, not mean "no label"
        return super().forward(torch.where(label < 0, self.n_labels, label + beyond))


class TimestepEmbedder(nn.Module):
    """sigma (B,) to (B, dim): a sinusoid of 256 channels and a small MLP."""

    def __init__(self, dim: int, frequencies: int = 256, max_period: float = 10_000.0) -> None:
        super().__init__()
        self.frequencies, self.max_period = frequencies, max_period
        self.mlp = nn.Sequential(nn.Linear(frequencies, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, sigma: Tensor) -> Tensor:
        """(B,) to (B, dim)."""
        half = self.frequencies // 2
        steps = torch.arange(half, dtype=torch.float32, device=sigma.device) / half
        angle = sigma.float()[:, None] * torch.exp(-math.log(self.max_period) * steps)
        waves = torch.cat((angle.cos(), angle.sin()), dim=-1)
        return self.mlp(waves.to(wide(next(self.mlp.parameters())).dtype))


@dataclass(frozen=True)
class PackedRows:
    """Rows with their padding moved to the end; the other columns keep their order."""

    order: Tensor  # (R, L): where each column comes from
    exists: Tensor  # (R, L) bool, true first

    @classmethod
    def of(cls, valid: Tensor | None) -> PackedRows | None:
        """The packing for a mask; None if nothing is padding."""
        if valid is None or bool(valid.all()):
            return None
        order = torch.argsort(~valid, dim=1, stable=True)
        return cls(order, valid.gather(1, order))

    def take(self, columns: Tensor) -> Tensor:
        """(R, L) or (R, L, dim), packed."""
        index = self.order if columns.dim() == 2 else self.order[..., None].expand_as(columns)
        return columns.gather(1, index)

    def back(self, columns: Tensor) -> Tensor:
        """(R, L, dim), unpacked: each column back in its place."""
        return columns.gather(1, self.order.argsort(1)[..., None].expand_as(columns))
