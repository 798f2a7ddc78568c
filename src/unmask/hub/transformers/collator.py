"""MDLM in other trainers: masked batches from rows of tokens, and the loss (paper, eq. 10).

`transformers.Trainer` hands a loss function nothing but the outputs and `labels`, and counts the labels that are not
-100 over all accumulation steps and processes: that count is what the sum is divided by. MDLM must divide by *all*
tokens that are not padding, and needs one weight per row. So by default the labels are packed: one integer per position
holds the clean token and its weight (0 where it is not masked), and padding is -100. Then the count is right, the loss
knows its weights, and any masked language model can be trained. `unpack` separates them again; `packed=False` never
combines them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import get_worker_info

from ...config import Config
from ...data.tokenization import Tokenizer
from ...errors import UserError, at_least
from ...models import registry
from ...models.masked import MAX_SIGMA
from ...process import bounds
from ...process.keys import Keys
from ...process.masking import corrupt
from ...process.schedule import Law, Schedule, strata

IGNORED = -100  # of a label: not a token that counts
_MARK, _BITS = 1 << 62, 31  # packed: the mark, 31 bits of a float32 that is not negative, 31 bits of the token
_LOW = (1 << _BITS) - 1

Row = Mapping[str, Any]


# -- labels that carry their weights -----------------------------------------------------------------------------------


def pack(tokens: Tensor, weights: Tensor, counted: Tensor) -> Tensor:
    """(B, L) labels from clean tokens, weights (0 = not masked) and which positions count."""
    bits = weights.float().contiguous().view(torch.int32).long()
    return torch.where(counted, _MARK | (bits << _BITS) | tokens, IGNORED)


def is_packed(labels: Tensor) -> bool:
    """Whether labels are packed; labels without any counted token might be."""
    return labels.dtype == torch.int64 and bool(((labels >= _MARK) | (labels == IGNORED)).all())


def unpack(labels: Tensor) -> tuple[Tensor, Tensor]:
    """(clean tokens, -100 = padding; weights, 0 = not masked) of packed labels."""
    if not is_packed(labels):
        raise UserError("these labels are not from MDLMCollator(packed=True); give labels and weights separately")
    counted = labels >= _MARK
    weights = ((labels >> _BITS) & _LOW).to(torch.int32).view(torch.float32)
    return torch.where(counted, labels & _LOW, IGNORED), torch.where(counted, weights, 0.0)


def mdlm_loss(
    outputs: Any,
    labels: Tensor,
    num_items_in_batch: Tensor | int | None = None,
    *,
    weights: Tensor | None = None,
    tokens: Tensor | int | None = None,
    mask_token_id: int | None = None,
) -> Tensor:
    """The bound per token: the weighted cross-entropy of masked tokens, over *all* tokens that are not padding.

    For packed labels `num_items_in_batch` is the number of tokens of the whole step (Trainer passes it; default: those
    of this batch). If labels and weights (B,) or (B, L) are separate, give `tokens` instead. `mask_token_id` removes
    [MASK] from the predictions of networks that do not do so themselves (SUBS).
    """
    logits = outputs if isinstance(outputs, Tensor) else outputs["logits"]
    if weights is None:
        labels, weights = unpack(labels)
        total = (labels != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
        masked = weights > 0
    else:
        if tokens is None:
            raise UserError(
                "with separate labels and weights, mdlm_loss needs the number of non-padding tokens: tokens=..."
            )
        masked, total = labels != IGNORED, tokens
        weights = weights.reshape(len(labels), -1).expand_as(labels)
    chosen = logits[masked].float()  # (N, V)
    if mask_token_id is not None:
        chosen = chosen.index_fill(-1, torch.tensor([mask_token_id], device=chosen.device), float("-inf"))
    nll = F.cross_entropy(chosen, labels[masked], reduction="none")
    return (weights[masked] * nll).sum() / total


# -- batches -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Process:
    """How tokens are masked: the schedule, and how times are drawn."""

    schedule: Schedule
    law: Law
    timed: bool  # whether the network sees sigma

    @classmethod
    def of(cls, config: Any) -> Process:
        """The process of a `Config`, of an `MDLMConfig`, or (None) of the paper."""
        config = config.described().config if hasattr(config, "described") else config or Config()
        if not isinstance(config, Config):
            raise UserError("config must be the config of an MDLM model (model.config) or an unmask Config")
        objective = registry.objective(config.objective, config.train)
        if objective.cross_entropy or config.model.method != "mdlm":
            raise UserError("MDLMCollator trains on the bound of MDLM; leave objective.loss and model.method alone")
        clipped = objective.law if objective.law_until is None else None  # else it ends, at a step that nobody counts
        law = clipped or registry.law(config.objective, config.schedule)
        return cls(registry.schedule(config.schedule), law, getattr(config.model, "time_conditioning", False))


class MDLMCollator:
    """A data collator: draws a time for every row, masks the row, and returns what a network and `mdlm_loss` need.

    `tokenizer` is one of transformers or of unmask. `config` (model.config) sets the schedule and the bound; default:
    the paper's. Rows are dicts with input_ids and, where they hold padding, attention_mask; shorter rows are padded.

    Gives input_ids, attention_mask, labels (packed) and, for networks that use them, timesteps. With packed=False
    labels are -100 outside masked positions, and weights (B,) are separate.

    Times are stratified over the batch. The draws depend on the seed, the call, the process (RANK) and the worker; with
    num_workers > 0 torch seeds the workers anew for every epoch. `freeze` makes an evaluation set with fixed masks.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        config: Any = None,
        seed: int = 0,
        packed: bool = True,
        pad_to_multiple_of: int | None = None,
        rank: int | None = None,
    ) -> None:
        ours = isinstance(tokenizer, Tokenizer)
        self.mask: int | None = tokenizer.vocab.mask if ours else tokenizer.mask_token_id
        self.pad: int | None = tokenizer.vocab.pad if ours else tokenizer.pad_token_id
        self.never_hidden = torch.tensor(tokenizer.never_hidden if ours else (), dtype=torch.int64)
        if self.mask is None:
            raise UserError(
                "this tokenizer has no mask token; add one: tokenizer.add_special_tokens({'mask_token': '[MASK]'})"
            )
        if self.mask == self.pad:
            raise UserError("the mask token of this tokenizer is also its pad token; give it a separate one")
        at_least("pad_to_multiple_of", pad_to_multiple_of)
        self.process = Process.of(config)
        self.seed, self.packed, self.multiple = seed, packed, pad_to_multiple_of
        self.rank = int(os.environ.get("RANK", "0")) if rank is None else rank
        self.calls = 0

    def __call__(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """Make a batch; rows from `freeze` keep their masks."""
        if not rows:
            raise UserError("a batch needs at least one row")
        if all(_frozen(row) for row in rows):
            return self._stack(rows)
        self.calls += 1
        worker = get_worker_info()
        keys = Keys(self.seed).fork(f"collator {self.rank} {worker.seed if worker else 'main'}").at(self.calls)
        return self._stack(self._draw(rows, keys))

    def freeze(self, rows: Sequence[Row], draws: int = 1) -> list[dict[str, Any]]:
        """Rows with fixed times (stratified over the whole set) and masks, `draws` of each."""
        keys = Keys(self.seed).fork("frozen")
        return [row for draw in range(draws) for row in self._draw(rows, keys.at(draw))]

    def loss(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """`mdlm_loss` without [MASK] in the prediction: the compute_loss_func of Trainer, for any network."""
        return mdlm_loss(outputs, labels, num_items_in_batch, mask_token_id=self.mask)

    def _draw(self, rows: Sequence[Row], keys: Keys) -> list[dict[str, Any]]:
        """The rows, masked."""
        schedule = self.process.schedule
        index = torch.arange(len(rows))
        draw = self.process.law.draw(strata(index, len(rows), keys), schedule)
        unit = torch.ones(len(rows), dtype=torch.float64)
        weights = bounds.nats(draw, unit, unit).float()  # the bound is linear in the cross-entropy: its factor
        sigma = schedule.sigma(draw.t).clamp(max=MAX_SIGMA).float()
        return [self._mask(row, i, draw.keep[i], weights[i], sigma[i], keys) for i, row in enumerate(rows)]

    def _mask(self, row: Row, i: int, keep: Tensor, weight: Tensor, sigma: Tensor, keys: Keys) -> dict[str, Any]:
        tokens, present = self._tokens(row)
        assert self.mask is not None
        uniform = keys.uniform("mask", [i], len(tokens))[0]
        free = present & ~torch.isin(tokens, self.never_hidden)
        z = torch.where(free, corrupt(tokens, keep, uniform, self.mask), tokens)
        masked = free & (z == self.mask)
        out: dict[str, Any] = {"input_ids": z, "attention_mask": present.long()}
        if self.packed:
            out["labels"] = pack(tokens, torch.where(masked, weight, 0.0), free)
        else:
            out |= {"labels": torch.where(masked, tokens, IGNORED), "weights": weight}
        if self.process.timed:
            out["timesteps"] = sigma
        if "classes" in row:
            out["classes"] = torch.as_tensor(row["classes"])
        return out

    def _tokens(self, row: Row) -> tuple[Tensor, Tensor]:
        if "input_ids" not in row:
            raise UserError(f"rows need input_ids, but this one has {', '.join(row) or 'nothing'}; tokenize first")
        tokens = torch.as_tensor(row["input_ids"]).long()
        if tokens.ndim != 1 or not len(tokens):
            raise UserError(f"input_ids of a row must be a list of tokens; this one has shape {tuple(tokens.shape)}")
        mask = row.get("attention_mask")
        present = torch.ones_like(tokens, dtype=torch.bool) if mask is None else torch.as_tensor(mask).bool()
        if present.shape != tokens.shape:
            raise UserError(f"a row has {len(tokens)} tokens and an attention_mask of shape {tuple(present.shape)}")
        if ((tokens == self.mask) & present).any():
            raise UserError(f"a row already has the mask token ({self.mask}); give clean text, the collator masks it")
        return tokens, present

    def _stack(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """Pad to the longest row, or to a multiple, and stack."""
        lengths = [len(row["input_ids"]) for row in rows]
        longest = max(lengths)
        if self.multiple:
            longest = -(-longest // self.multiple) * self.multiple
        if self.pad is None and min(lengths) < longest:
            raise UserError("rows differ in length and this tokenizer has no pad token; set one, or cut the rows")
        filler = {"input_ids": self.pad or 0, "attention_mask": 0, "labels": IGNORED}
        out = {}
        for name in ("input_ids", "attention_mask", "labels", "weights", "timesteps", "classes"):
            if name not in rows[0]:
                continue
            values = [torch.as_tensor(row[name]) for row in rows]
            if name in filler:
                values = [F.pad(value, (0, longest - len(value)), value=filler[name]) for value in values]
            out[name] = torch.stack(values)
        return out


def _frozen(row: Row) -> bool:
    """Whether a row was masked by `freeze`."""
    if "labels" not in row:
        return False
    return "weights" in row or is_packed(torch.as_tensor(row["labels"]))
