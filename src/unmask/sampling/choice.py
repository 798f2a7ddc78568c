"""How a token is drawn from x̂. None of this changes the chance of being revealed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..process.masking import at_tokens, categorical
from .settings import check_settings, setting

NEVER = float("-inf")
HEAD = 512  # tokens of which top-p is likely to need no more


@dataclass(frozen=True)
class Choice:
    """Temperature, then top-k, top-p and min-p, each applied to what the previous one left."""

    temperature: float = setting(1.0, "Divides the log-probabilities; 0 takes the most likely token", least=0)
    top_k: int | None = setting(  # tokens as likely as the k-th are kept too
        None, "Only the k most likely tokens", title="Top-k", least=1, off=True
    )
    top_p: float | None = setting(  # the smallest such set, the token that crosses p included
        None, "Only the most likely tokens that hold this much", title="Top-p", above=0, most=1
    )
    min_p: float | None = setting(
        None, "Only tokens at least this likely, relative to the best", title="Min-p", least=0, most=1, off=True
    )

    def __post_init__(self) -> None:
        check_settings(self)

    def __call__(self, log_x: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """(tokens, their probabilities under the network) for rows of log x̂ (N, V) and one uniform number per row."""
        tokens = self.tokens(log_x, uniform)
        return tokens, at_tokens(log_x, tokens).exp()

    def tokens(self, log_x: Tensor, uniform: Tensor) -> Tensor:
        """(N,) tokens for rows of log weights (N, V), which need not be normalised, and one uniform number per row."""
        return log_x.argmax(-1) if self.temperature == 0 else categorical(self.filtered(log_x), uniform)

    def chances(self, log_x: Tensor) -> Tensor:
        """(N, V) float64: the distribution that `tokens` draws from."""
        if self.temperature == 0:
            return torch.zeros_like(log_x, dtype=torch.float64).scatter(-1, log_x.argmax(-1, keepdim=True), 1.0)
        return torch.softmax(self.filtered(log_x).double(), -1)

    def filtered(self, log_x: Tensor) -> Tensor:
        """Unnormalised log weights after temperature, top-k, top-p and min-p."""
        logits = log_x
        if self.temperature != 1:  # the largest is shifted to 0 first, so that no temperature is too small
            logits = (log_x - log_x.amax(-1, keepdim=True)).double() / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            least = logits.topk(self.top_k, dim=-1).values[:, -1:]
            logits = logits.masked_fill(logits < least, NEVER)
        if self.top_p is not None and self.top_p < 1:
            logits = logits.masked_fill(~_nucleus(logits, self.top_p), NEVER)
        if self.min_p:
            least = logits.amax(-1, keepdim=True) + torch.tensor(self.min_p, dtype=torch.float64).log().to(logits)
            logits = logits.masked_fill(logits < least, NEVER)
        return logits


def _nucleus(logits: Tensor, p: float) -> Tensor:
    """(N, V) bool: the most likely tokens, without which all more likely ones hold less than p."""
    size = logits.shape[-1]
    total = logits.double().logsumexp(-1, keepdim=True)
    for n in (min(HEAD, size), size):  # sorting all of a large vocabulary takes twenty times as long
        order = logits.topk(n, dim=-1)
        before = F.pad((order.values.double() - total).exp().cumsum(-1)[:, :-1], (1, 0))
        if n == size or (before[:, -1] >= p).all():
            break
    return torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order.indices, before < p)
