"""One look: some positions of a row are hidden, and the network says what it thinks of the tokens that stood there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..models.language_model import LOGITS_AT_ONCE, LanguageModel
from ..models.masked import MaskedDiffusion, as_masked
from ..types import Batch, UserError


@dataclass(frozen=True)
class RowNats:
    """-log p of rows: a column a draw, and where it makes sense the share of each token."""

    nats: np.ndarray  # (B, draws)
    tokens: np.ndarray | None  # (B, L), mean over draws
    error: np.ndarray | None  # (B,) standard error of a row's nats; None = what the draws say


OTHERWISE = {  # method: what a user calls it, and what to do where a model cannot be asked that way
    "span": ("a span given its context", "score whole texts"),
    "strata": ("method 'strata'", "use 'bound' on whole texts (unmask eval: --estimator times)"),
    "ranged gaps": ("a gap of unknown length", "say how long it is, for example {{3}} for three tokens"),
}


def diffusion(model: LanguageModel, method: str, *, timeless: bool = False) -> MaskedDiffusion:
    """The model, if it is one that a method can ask: its x̂ sums to 1 over the tokens that are not [MASK]."""
    net = as_masked(model)
    if net is None or not net.normalised:
        what, instead = OTHERWISE.get(method, (f"method {method!r}", "use 'bound' on whole texts"))
        raise UserError(
            f"{what} needs a masked diffusion model whose prediction sums to 1 over the tokens and that carries them "
            f"over; {instead}"
        )
    if timeless and net.time_conditioned:
        raise UserError(
            f"method {method!r} is for networks that are not told the time, and this one is: "
            "there the result is an integral over times; use 'bound' or 'orders' (unmask eval: --estimator times)"
        )
    return net


def free_positions(batch: Batch) -> Tensor:
    """(B, L) bool: what the process may hide in a row of training, which is everything that exists."""
    return torch.ones_like(batch.tokens, dtype=torch.bool) if batch.present is None else batch.present


@torch.no_grad()
def token_nll(
    model: MaskedDiffusion,
    batch: Batch,
    row: Tensor,
    masked: Tensor,
    wanted: Tensor,
    t: Tensor,
    batch_size: int,
) -> Tensor:
    """(N, L) float64 on the CPU: -log x̂(token) where `wanted`, 0 elsewhere.

    Look i is at row `row[i]` of the batch at time `t[i]`, with the positions `masked[i]` hidden; (N,), (N, L) each.
    """
    out = torch.zeros(wanted.shape, dtype=torch.float64)
    at_once = max(1, LOGITS_AT_ONCE // model.vocab.size)
    for start in range(0, len(row), batch_size):
        part = slice(start, start + batch_size)
        here = row[part]
        tokens = batch.tokens[here.to(batch.tokens.device)].to(model.device)
        present = None if batch.present is None else batch.present[here.to(batch.present.device)]
        label = None if batch.label is None else batch.label[here.to(batch.label.device)]
        z = torch.where(masked[part].to(model.device), model.vocab.mask, tokens)
        which, place = torch.nonzero(wanted[part].to(model.device), as_tuple=True)
        hidden = model.hidden(z, t[part], present, label)[which, place]  # (n, hidden)
        target = tokens[which, place]
        found = [
            model.log_x(rows).gather(-1, own[:, None]).squeeze(-1)
            for rows, own in zip(hidden.split(at_once), target.split(at_once), strict=True)
        ]
        if found:
            out[start + which.cpu(), place.cpu()] = -torch.cat(found).double().cpu()
    return out
