"""One prediction: some positions of a row are hidden, and the network gives the log-probability of their tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..models.language_model import LanguageModel
from ..models.masked import MaskedDiffusion, as_masked
from ..process.chunks import in_chunks
from ..process.masking import at_tokens
from ..types import Batch, UserError
from .likelihood import refuse_nan


@dataclass(frozen=True)
class RowNats:
    """-log p of rows: one column per draw, and where it makes sense the share of each token."""

    nats: np.ndarray  # (B, draws)
    tokens: np.ndarray | None  # (B, L), mean over draws
    error: np.ndarray | None  # (B,) standard error of a row's nats; None = what the draws say


OTHERWISE = {  # method: its name in a sentence, and what to do where a model does not support it
    "span": ("a span given its context", "score whole texts"),
    "strata": ("method 'strata'", "use 'bound' on whole texts (unmask eval: --estimator times)"),
    "choices": ("choosing between texts of different lengths", "give choices of equally many tokens"),
    "ranged gaps": ("a gap of unknown length", "say how long it is, for example {{3}} for three tokens"),
}


def diffusion(model: LanguageModel, method: str, *, timeless: bool = False) -> MaskedDiffusion:
    """The model, if it supports a method: its x̂ sums to 1 over the tokens that are not [MASK]."""
    net = as_masked(model)
    if net is None or not net.normalised:
        what, instead = OTHERWISE.get(method, (f"method {method!r}", "use 'bound' on whole texts"))
        raise UserError(
            f"{what} needs a masked diffusion model whose prediction sums to 1 over the tokens and that carries them "
            f"over; {instead}"
        )
    if timeless and net.time_conditioned:
        raise UserError(
            f"method {method!r} is for networks without time conditioning, and this one has it: "
            "its result is an integral over times; use 'bound' or 'orders' (unmask eval: --estimator times)"
        )
    return net


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

    Prediction i is for row `row[i]` of the batch at time `t[i]`, with the positions `masked[i]` hidden; (N,), (N, L)
    each.
    """
    out = torch.zeros(wanted.shape, dtype=torch.float64)

    def log_probs(hidden: Tensor, tokens: Tensor) -> tuple[Tensor]:
        return (at_tokens(model.log_x(hidden), tokens),)

    for start in range(0, len(row), batch_size):
        part = slice(start, start + batch_size)
        chosen = row[part]
        tokens = batch.tokens[chosen.to(batch.tokens.device)].to(model.device)
        present = None if batch.present is None else batch.present[chosen.to(batch.present.device)]
        label = None if batch.label is None else batch.label[chosen.to(batch.label.device)]
        z = torch.where(masked[part].to(model.device), model.vocab.mask, tokens)
        which, place = torch.nonzero(wanted[part].to(model.device), as_tuple=True)
        hidden = model.hidden(z, t[part], present, label, clean=tokens)[which, place]  # (n, hidden)
        if len(hidden):
            (values,) = in_chunks(log_probs, model.vocab.size, hidden, tokens[which, place])
            out[start + which.cpu(), place.cpu()] = -values.double().cpu()
    refuse_nan(out, "log-probabilities")
    return out
