"""Llama-2-style models in the file format of llama2.c (github.com/karpathy/llama2.c): a judge of about a megabyte.

A model file is seven int32 (dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len; a negative vocab_size
means that the classifier has separate weights), then all weights in float32. A tokenizer file is one int32, then for
every token a float32 score, an int32 length and its bytes; ids 1 and 2 are BOS and EOS, 3 + b is the byte b.
"""

from __future__ import annotations

import heapq
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ....types import UserError
from ..scorers import CausalScorer

BOS, BYTES, GONE = 1, 3, -1
HEADER = struct.Struct("<7i")
MAGIC = 0x616B3432  # "ak42": the later layouts, which begin with a version
LARGEST = 1 << 26  # bytes of a tokenizer
EPS, THETA = 1e-5, 10000.0


@dataclass(frozen=True)
class Shape:
    """The seven numbers of the header."""

    dim: int
    hidden_dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    vocab_size: int
    seq_len: int
    shared: bool  # the classifier is the embedding

    @property
    def head_dim(self) -> int:
        """The width of one head."""
        return self.dim // self.n_heads

    def layout(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the tensors, in the order of the file."""
        d, h, n, v = self.dim, self.hidden_dim, self.n_layers, self.vocab_size
        kv, turns = self.n_kv_heads * self.head_dim, (self.seq_len, self.head_dim // 2)
        shapes: dict[str, tuple[int, ...]] = {
            "embed": (v, d),
            "norm_att": (n, d),
            "wq": (n, d, d),
            "wk": (n, kv, d),
            "wv": (n, kv, d),
            "wo": (n, d, d),
            "norm_ffn": (n, d),
            "w1": (n, h, d),
            "w2": (n, d, h),
            "w3": (n, h, d),
            "norm": (d,),
            "cos": turns,
            "sin": turns,
        }
        return shapes if self.shared else shapes | {"classifier": (v, d)}


def read_model(path: Path) -> tuple[Shape, dict[str, Tensor]]:
    """The shape and the weights of a model file; raises if the file does not match its header."""
    size = path.stat().st_size
    with path.open("rb") as file:
        content = file.read(HEADER.size)
    if len(content) < HEADER.size:
        raise UserError(f"{path} is too short for a llama2.c model: {len(content)} bytes")
    d, h, n, heads, kv, v, length = HEADER.unpack_from(content)
    if d == MAGIC:
        raise UserError(f"{path} is a llama2.c model of version {h}; export it with version 0 (float32)")
    sane = all(0 < value < 1 << 20 for value in (d, h, n, heads, kv, abs(v), length))
    if not sane or d % heads or heads % kv or (d // heads) % 2:
        raise UserError(f"{path} is not a llama2.c model: its header makes no sense")
    shape = Shape(d, h, n, heads, kv, abs(v), length, shared=v > 0)
    layout = shape.layout()
    expected = HEADER.size + 4 * sum(math.prod(part) for part in layout.values())
    if size != expected:  # before it is read
        raise UserError(f"{path} is damaged: it has {size} bytes but its header requires {expected}")
    content = path.read_bytes()
    weights, at = {}, HEADER.size
    for name, part in layout.items():
        flat = np.frombuffer(content, dtype="<f4", count=math.prod(part), offset=at)
        weights[name] = torch.from_numpy(flat.astype(np.float32).reshape(part))
        at += flat.nbytes
    del weights["cos"], weights["sin"]  # tables that are computed anew
    return shape, weights


def forward(shape: Shape, weights: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """Rows of tokens (B, L) to last hidden states (B, L, D), final norm applied."""
    cos, sin = _turns(shape, tokens.shape[1], tokens.device)
    x = weights["embed"][tokens]
    for layer in range(shape.n_layers):
        w = {name: value[layer] for name, value in weights.items() if value.ndim > 1 and name not in _OUTER}
        x = x + _attention(shape, w, _norm(x, w["norm_att"]), cos, sin)
        y = _norm(x, w["norm_ffn"])
        x = x + (F.silu(y @ w["w1"].T) * (y @ w["w3"].T)) @ w["w2"].T
    return _norm(x, weights["norm"])


_OUTER = ("embed", "classifier")


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def _turns(shape: Shape, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotations, (L, head_dim / 2)."""
    rate = THETA ** (-torch.arange(0, shape.head_dim, 2, device=device, dtype=torch.float64) / shape.head_dim)
    angle = torch.arange(length, device=device, dtype=torch.float64)[:, None] * rate
    return angle.cos().float(), angle.sin().float()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate neighbouring pairs of each head (B, heads, L, head_dim)."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


def _attention(shape: Shape, w: dict[str, Tensor], x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    q, k, v = (
        (x @ w[name].T).unflatten(-1, (heads, shape.head_dim)).transpose(1, 2)
        for name, heads in (("wq", shape.n_heads), ("wk", shape.n_kv_heads), ("wv", shape.n_kv_heads))
    )
    q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
    groups = shape.n_heads // shape.n_kv_heads
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return out.transpose(1, 2).flatten(-2) @ w["wo"].T


class SentencePieces:
    """The tokenizer of llama2.c: start with characters, then repeatedly merge the neighbours with the best score."""

    def __init__(self, pieces: list[bytes], scores: list[float]) -> None:
        self.pieces, self.scores = pieces, scores
        self.ids = {piece: token for token, piece in reversed(list(enumerate(pieces)))}

    @classmethod
    def read(cls, path: Path, size: int) -> SentencePieces:
        """The tokenizer file of a model with `size` tokens."""
        if (held := path.stat().st_size) > LARGEST:
            raise UserError(f"{path} is not a tokenizer of llama2.c: it has {held:,} bytes")
        content, at = path.read_bytes(), 4
        pieces, scores = [], []
        try:
            for _ in range(size):
                score, length = struct.unpack_from("<fi", content, at)
                if length < 0 or at + 8 + length > len(content):
                    raise struct.error
                scores.append(score)
                pieces.append(content[at + 8 : at + 8 + length])
                at += 8 + length
        except struct.error:
            raise UserError(f"{path} is damaged or not for this model: it has fewer than {size} tokens") from None
        if at != len(content):
            raise UserError(f"{path} is not for this model: it has more than {size} tokens")
        return cls(pieces, scores)

    def encode(self, text: str) -> list[int]:
        """The ids of a text; a space is put before it, as in training."""
        ids: list[int] = []
        for piece in (character.encode("utf-8", "replace") for character in (" " + text if text else "")):
            known = self.ids.get(piece)
            ids += [known] if known is not None else [byte + BYTES for byte in piece]
        return self._merge(ids)

    def _merge(self, ids: list[int]) -> list[int]:
        """Merge the best pair, the leftmost in a tie, until no pair is in the vocabulary: a heap over a linked list."""
        end = len(ids)
        ids, after, before = list(ids), list(range(1, end + 1)), list(range(-1, end - 1))
        heap: list[tuple[float, int, int, int]] = []  # score, left, and the two ids that would be merged

        def offer(left: int) -> None:
            if left >= 0 and after[left] < end:
                pair = ids[left], ids[after[left]]
                token = self.ids.get(self.pieces[pair[0]] + self.pieces[pair[1]])
                if token is not None:
                    heapq.heappush(heap, (-self.scores[token], left, *pair))

        for left in range(end):
            offer(left)
        while heap:
            _, left, first, second = heapq.heappop(heap)
            right = after[left]
            if ids[left] != first or right >= end or ids[right] != second:
                continue  # one of the two was merged meanwhile
            ids[left], ids[right] = self.ids[self.pieces[first] + self.pieces[second]], GONE
            after[left] = after[right]
            if after[left] < end:
                before[after[left]] = left
            offer(left)
            offer(before[left])
        return [token for token in ids if token != GONE]


class Llama2cScorer(CausalScorer):
    """A llama2.c model as a judge."""

    bos = BOS

    def __init__(self, where: str, device: str | torch.device = "cpu") -> None:
        self.path, tokenizer = locate(Path(where).expanduser())
        self.shape, weights = read_model(self.path)
        file = tokenizer(self.shape.vocab_size)
        self.pieces = SentencePieces.read(file, self.shape.vocab_size)
        self.weights = {name: value.to(device) for name, value in weights.items()}
        self.context, self.vocab_size = self.shape.seq_len, self.shape.vocab_size

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return self.weights["embed"].device

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        return self.pieces.encode(text)

    def hidden(self, tokens: Tensor, present: Tensor) -> tuple[Tensor, Callable[[int, Tensor], Tensor]]:
        """Padding is at the end, where no scored token of a causal network can see it."""
        hidden = forward(self.shape, self.weights, tokens)
        head = self.weights["embed" if self.shape.shared else "classifier"]
        return hidden, lambda row, positions: hidden[row, positions] @ head.T

    def about(self) -> dict[str, Any]:
        """A description of the network."""
        return {"scorer": f"llama2c:{self.path}", "vocabulary": self.vocab_size, "dtype": "float32"}


def locate(where: Path) -> tuple[Path, Callable[[int], Path]]:
    """The model file of a folder (or the file itself), and the path of its tokenizer, given the vocabulary."""
    if not where.exists():
        raise UserError(f"scorer {where} does not exist")
    folder = where if where.is_dir() else where.parent
    tokenizers = sorted(folder.glob("tok*.bin"))
    models = [file for file in sorted(folder.glob("*.bin")) if file not in tokenizers] if where.is_dir() else [where]
    if len(models) != 1:
        count = f"{len(models)} models" if models else "no model"
        raise UserError(f"{where} holds {count}; name one .bin file of llama2.c")

    def tokenizer(size: int) -> Path:
        named = [file for file in tokenizers if file.stem in (f"tok{size}", "tokenizer")]
        chosen = named or tokenizers
        if len(chosen) != 1:
            raise UserError(
                f"{folder} holds {len(chosen)} tokenizers for {models[0].name}; put tok{size}.bin beside it"
            )
        return chosen[0]

    return models[0], tokenizer
