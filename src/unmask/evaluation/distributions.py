"""What a model says of the open positions of a text: its distribution at each, all from one network call.

Each is the law of that position alone, given all that is given (a marginal): tokens drawn from two of them at once do
not know of each other. It is the plain law, without temperature, rules or guidance. [MASK] is left out, and the others
are scaled to 1 where a method predicts a measure (SEDD) or something for [MASK] (D3PM). A network with time
conditioning is at the time at which this share of a text is hidden; a block diffusion model reads the text as a single
block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..data.canvas import Canvas
from ..data.tokenization import Tokenizer
from ..errors import UserError, at_least, known_keywords
from ..models.language_model import LanguageModel
from ..models.masked import MaskedDiffusion, as_masked
from ..process.chunks import in_chunks
from ..sampling.sampler import stack
from .exact import time_of
from .likelihood import evaluating, refuse_nan


@dataclass(frozen=True)
class OpenPosition:
    """The most likely tokens of a position, the likeliest first, and the entropy of all in nats."""

    position: int  # on the canvas, which may begin with BOS
    ids: list[int]
    pieces: list[str]
    probs: list[float]
    entropy: float


@dataclass(frozen=True, repr=False)
class Marginals:
    """The open positions of one text, from left to right."""

    ids: list[int | None]  # the canvas; None where it is open
    positions: list[OpenPosition]
    gaps: list[int]  # lengths of the gaps
    gap_nats: dict[str, float] = field(default_factory=dict)  # these three as in `Sample`
    gap_errors: dict[str, float] = field(default_factory=dict)
    gap_undecided: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        ranged = ("gap_nats", "gap_errors", "gap_undecided")
        return {name: value for name, value in asdict(self).items() if self.gap_nats or name not in ranged}

    def __repr__(self) -> str:
        first = ", ".join(f"{place.pieces[0]!r} {place.probs[0]:.3g}" for place in self.positions[:8])
        return f"Marginals({len(self.positions)} open: {first}{', ...' if len(self.positions) > 8 else ''})"


def need_masks(model: LanguageModel) -> MaskedDiffusion:
    """The model, if it predicts masked positions; one sentence if it does not."""
    net = as_masked(model)
    if net is None:
        raise UserError(
            "this model has no distribution at a position inside a text; marginals are for methods that fill masks "
            "(mdlm, d3pm, sedd, block), and an autoregressive model gives the next token's with tops or logprobs"
        )
    return net


@known_keywords
@torch.no_grad()
def marginals(
    net: MaskedDiffusion,
    tokenizer: Tokenizer,
    canvases: Sequence[Canvas],
    *,
    top: int = 5,
    label: int | None = None,
    batch_size: int = 16,
) -> list[Marginals]:
    """The distributions at the open positions of canvases, `batch_size` of them in a network call; nothing is written.

    `top` tokens of each, or all that there are.
    """
    at_least("top", top)
    at_least("batch_size", batch_size)
    result: list[Marginals] = []
    with evaluating(net):
        for start in range(0, len(canvases), batch_size):
            part = canvases[start : start + batch_size]
            ids, probs, entropy = (values.tolist() for values in _most_likely(net, part, top, label))
            at = 0
            for canvas in part:
                tokens = [None if token == net.vocab.mask else token for token in canvas.ids.tolist()]
                places = [i for i, token in enumerate(tokens) if token is None]
                positions = [
                    OpenPosition(place, ids[n], tokenizer.pieces(ids[n]), probs[n], entropy[n])
                    for n, place in enumerate(places, at)
                ]
                at += len(places)
                ranged = (canvas.nats, canvas.errors, canvas.undecided)
                result.append(Marginals(tokens, positions, canvas.lengths, *ranged))
    return result


def _most_likely(
    net: MaskedDiffusion, canvases: Sequence[Canvas], top: int, label: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Ids (N, top), probabilities (N, top) and entropies (N,) of all open positions, canvas after canvas."""
    mask = net.vocab.mask
    z, present = stack([canvas.ids for canvas in canvases], net.vocab)
    hidden = z == mask if present is None else (z == mask) & present
    share = hidden.sum(1).double() / torch.tensor([len(canvas.ids) for canvas in canvases])
    row, column = torch.nonzero(hidden.to(net.device), as_tuple=True)
    labels = None if label is None else torch.full((len(z),), label)
    states = net.hidden(z.to(net.device), time_of(net.schedule, share), present, labels)[row, column]

    def read(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_x = net.log_x(rows)
        p = torch.softmax(log_x.index_fill(-1, torch.tensor([mask], device=log_x.device), float("-inf")), -1)
        best = p.topk(min(top, net.vocab.size - 1))
        return best.indices.cpu(), best.values.cpu(), torch.special.entr(p).sum(-1).cpu()

    ids, probs, entropy = in_chunks(read, net.vocab.size, states)
    refuse_nan(probs, "probabilities")
    return ids, probs, entropy
