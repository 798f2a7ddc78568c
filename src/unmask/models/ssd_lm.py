"""SSD-LM (Han et al. 2022): diffusion on the logits of a block of tokens, after a context of tokens.

The network sees the context as tokens and, after it, the block as a mixture of embeddings, embed_sum(softmax(z_t)), and
the time. It learns the tokens of the block by plain cross-entropy, which is not a bound on a likelihood.

In training a block begins at the same place in all rows of a step, as in the published code (there: in the batch of a
device), so that contexts have the same length and need no padding. A row whose text ends earlier uses its last block.
Contexts may be empty (in the published code they have at least one token), so that a text can begin from nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import UserError, at_least
from ..networks.interface import Network
from ..networks.layers import Embedding
from ..process.keys import Keys
from ..process.masking import at_tokens
from ..process.parameterization import Mean
from ..process.schedule import strata
from ..sampling import Request, Written
from ..sampling.simplex import Simplex, SimplexTrajectory, advance_blocks, almost_one_hot, noised
from ..types import Batch, TokenNats
from .language_model import LanguageModel, in_chunks


@dataclass(frozen=True)
class Cut:
    """A context and a block of each row: (B, C) tokens, (B, W) tokens and whether they count, (B, C + W) exists."""

    context: Tensor
    x: Tensor
    weight: Tensor
    valid: Tensor | None
    given: Tensor | None = None  # (B, W): tokens of the block that are never hidden


class SimplexDiffusion(LanguageModel):
    """A bidirectional network that fills a block of logits."""

    likelihood = False
    any_length = True
    default_sampler = "simplex"
    reads_tokens = False

    def __init__(
        self, backbone: Network, block: int = 25, steps: int = 5000, scale: float = 5.0, context: int | None = None
    ) -> None:
        super().__init__()
        _check_settings(backbone, block, steps, scale, context)
        self.backbone, self.block, self.steps, self.scale = backbone, block, steps, scale
        self.context = context  # the most tokens that a block sees before it; None = all
        self.embed_sum = nn.Linear(backbone.vocab.size, backbone.hidden_dim, bias=False)
        self.timestep = nn.Linear(1, backbone.hidden_dim)
        with torch.no_grad():  # initially a z that is sure of a token is read as the embedding of that token
            self.embed_sum.weight.copy_(_embedding(backbone).embedding.T)

    def hidden(
        self, context: Tensor, z: Tensor, t: Tensor, valid: Tensor | None = None, label: Tensor | None = None
    ) -> Tensor:
        """Hidden states (B, W, hidden) of blocks z (B, W, V) at times t (B,) in [0, 1], after contexts (B, C)."""
        shown = self.embed_sum(torch.softmax(z, -1)) + self.timestep(t.float().to(z.device)[:, None])[:, None]
        # An empty context goes through the embedding too: under DDP every weight needs a gradient in every step.
        inputs = torch.cat([_embedding(self.backbone)(context), shown.to(self.embed_sum.weight)], dim=1)
        first, last = context.shape[1], inputs.shape[1]
        queries, positions = None, None
        if "queries" in self.backbone.takes:
            queries = torch.arange(first, last, device=z.device).expand(len(z), -1)
        if valid is not None:  # padding is on the left: the first token that exists has position 0
            positions = (torch.arange(last, device=z.device) - valid.long().argmax(1, keepdim=True)).clamp(min=0)
        cond = self.backbone.condition(torch.zeros(len(z), device=z.device), label)
        fields = {"condition": cond, "valid": valid, "positions": positions, "queries": queries}
        hidden = self.backbone(embeddings=inputs, **fields)[0]
        return hidden if queries is not None else hidden[:, first:]

    def log_x(
        self, context: Tensor, z: Tensor, t: Tensor, valid: Tensor | None = None, label: Tensor | None = None
    ) -> Tensor:
        """Log x̂ (B, W, V) of blocks, without mass on [MASK]."""
        return Mean().log_x(self.backbone.head(self.hidden(context, z, t, valid, label)), self.vocab.mask)

    def nats(self, batch: Batch, keys: Keys) -> TokenNats:
        """Raise, as there is no likelihood."""
        raise UserError("an SSD-LM model has no likelihood; judge its samples with unmask eval --generative")

    def loss(self, batch: Batch, keys: Keys) -> tuple[Tensor, Tensor]:
        """Unweighted cross-entropy of the scored tokens in one block per row, each at one time."""
        cut = self.cut(batch, keys)
        device = batch.tokens.device
        step = (torch.floor(strata(batch.index, batch.total, keys) * self.steps) + 1).clamp(max=self.steps)
        t = step / self.steps  # uniform on 1/T, 2/T, ..., 1
        z = noised(
            almost_one_hot(cut.x, self.vocab.size, self.scale), t, self._noise(batch, keys).to(device), self.scale
        )
        if cut.given is not None:
            z = torch.where(cut.given[..., None], almost_one_hot(cut.x, self.vocab.size, self.scale).to(z), z)
        hidden = self.hidden(cut.context, z, t, cut.valid, batch.label)
        (nll,) = in_chunks(self._nll, self.vocab.size, hidden[cut.weight], cut.x[cut.weight])
        return nll.sum(), cut.weight.sum()

    def cut(self, batch: Batch, keys: Keys) -> Cut:
        """The blocks of a training step and their contexts: the same place in all rows that are long enough."""
        length = batch.tokens.shape[1]
        if length < self.block:
            raise UserError(
                f"rows of {length} tokens are shorter than a block of {self.block}; "
                f"set simplex.block to at most {length} or raise data.length"
            )
        start = int(keys.stream("context").integers(length - self.block + 1))
        weight, device = batch.weight(), batch.tokens.device
        place = torch.arange(1, length + 1, device=device)
        ends = (batch.counted() * place).amax(1)  # (B,) where the text of a row ends
        starts = (ends - self.block).clamp(min=0, max=start)
        seen = int(starts.max()) if self.context is None else min(self.context, int(starts.max()))
        columns = starts[:, None] + torch.arange(-seen, self.block, device=device)  # (B, C + W)
        exists, columns = columns >= 0, columns.clamp(min=0)
        if batch.present is not None:
            exists = exists & batch.present.gather(1, columns)
            exists = exists | ~exists.any(1, keepdim=True)  # an empty row would be a softmax over nothing
        tokens = batch.tokens.gather(1, columns)
        valid = None if exists.all() else exists
        given = None if batch.given is None else batch.given.gather(1, columns)[:, seen:]
        return Cut(tokens[:, :seen], tokens[:, seen:], weight.gather(1, columns)[:, seen:], valid, given)

    def _noise(self, batch: Batch, keys: Keys) -> Tensor:
        """(B, W, V) normal numbers, from one random stream per row."""
        shape = (self.block, self.vocab.size)
        rows = [keys.stream("noise", int(i)).standard_normal(shape, dtype=np.float32) for i in batch.index]
        return torch.from_numpy(np.stack(rows))

    def _nll(self, hidden: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
        log_x = Mean().log_x(self.backbone.head(hidden), self.vocab.mask)
        return (-at_tokens(log_x, tokens),)

    def denoiser(self) -> SimplexDiffusion:
        """The model itself."""
        return self

    def check(self, request: Request) -> None:
        """Raise if the model cannot follow a request."""
        sampler = request.sampler
        if not isinstance(sampler, Simplex):
            raise UserError(
                f"an SSD-LM model writes blocks from left to right and cannot follow {type(sampler).__name__}; "
                "choose the simplex sampler, without a stride"
            )
        free = request.writable(self.vocab)
        if (free[:-1] & ~free[1:]).any():
            raise UserError(
                "an SSD-LM model writes from left to right: it cannot fill gaps or write towards a suffix; "
                "give only a prompt, or use a masked diffusion model"
            )
        sampler.check_choice(request.choice)
        if request.guidance != 1:
            raise UserError(f"guidance={request.guidance} is not supported by SSD-LM models; leave it at 1")

    def advance(self, trajectories: Sequence[SimplexTrajectory]) -> list[Written | None]:
        """Move the blocks of all canvases to their next time; tokens for those that have reached the end."""
        return advance_blocks(self, trajectories)

    def describe(self) -> dict[str, Any]:
        """How its loss is defined, for protocols."""
        return {
            "bound": "none: cross-entropy of a noised block",
            "block": self.block,
            "steps": self.steps,
            "scale": self.scale,
            "context": self.context,
        }


def _embedding(backbone: Network) -> Embedding:
    """The token embedding of a network."""
    embedding = getattr(backbone, "vocab_embed", None)
    if not isinstance(embedding, Embedding):
        raise UserError(f"SSD-LM needs a network with a token embedding, which {type(backbone).__name__} does not have")
    return embedding


def _check_settings(backbone: Network, block: int, steps: int, scale: float, context: int | None) -> None:
    """Raise for settings that do not make a model."""
    for name, value in (("block", block), ("steps", steps), ("context", context)):
        at_least(f"simplex.{name}", value)
    if not 0 < scale < float("inf"):
        raise UserError(f"simplex.scale={scale} must be a number above 0")
    if backbone.time_conditioning:
        raise UserError("SSD-LM passes the time in the input of the network; set model.time_conditioning=false")
