"""The autoregressive model that the paper compares with: -log p of every token given those before it, exactly.

The likelihood covers the same tokens as that of a diffusion model: every row is preceded by a start symbol (the id of
[MASK], which never occurs in text), so that the first token is scored too. Without it (`start=False`) the protocol is
that of the published runs: the first token is given and not scored.

Sampling uses the same batcher as diffusion models, with the sampler `LeftToRight`. `CachedDenoiser` keeps what the
network has read of each sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..networks.dit import KeyValue, pick
from ..networks.interface import Network
from ..process.keys import Keys
from ..process.masking import at_tokens
from ..process.parameterization import Mean
from ..process.schedule import Polynomial, Schedule
from ..sampling import LeftToRight, Request, Slot, Trajectory, Windows
from ..types import Batch, TokenNats, UserError
from .cached_rows import CachedRows, ModelDenoiser, Read, cached_columns, only_readers, row_bytes, same_rows
from .language_model import LanguageModel, in_chunks


class AutoRegressive(LanguageModel):
    """A causal network; with `start`, every row begins with a start symbol."""

    exact = True
    default_sampler = "left-to-right"

    def __init__(self, backbone: Network, start: bool = True) -> None:
        super().__init__()
        assert backbone.causal, "a network that looks both ways has seen the token that it predicts"
        self.backbone, self.start = backbone, start
        self.unscored = 0 if start else 1
        self.meaning = Mean()  # softmax over all tokens but [MASK]

    def started(self, columns: Tensor, symbol: int | bool) -> Tensor:
        """(B, L) to (B, L + 1): each row after the start symbol; unchanged if there is none."""
        return F.pad(columns, (1, 0), value=symbol) if self.start else columns

    def nats(self, batch: Batch, keys: Keys) -> TokenNats:
        """-log p(token | tokens before it): nothing is drawn."""
        self.backbone.condition(torch.zeros(len(batch)), batch.label)  # refuses labels
        x, length = batch.tokens, batch.tokens.shape[1]
        every = torch.arange(length, device=x.device).expand(x.shape)
        weight, source, valid = batch.counted(), every, None  # what follows the end of a text is never written
        if not self.start:  # the state of a token predicts the next one, and nothing predicts the first
            weight, source = weight & (every > 0), every - 1
        if batch.present is not None:  # the state of an absent column has read its token: use the last state before it
            valid = self.started(batch.present, True)[:, :length]
            source = torch.where(valid, every, 0).cummax(1).values.gather(1, source.clamp(min=0))
        hidden = self.backbone(self.started(x, self.vocab.mask)[:, :length], valid=valid)[0]
        row, column = torch.nonzero(weight, as_tuple=True)
        (value,) = in_chunks(self._target, self.vocab.size, hidden[row, source[row, column]], x[row, column])
        empty = torch.zeros(weight.shape, dtype=value.dtype, device=value.device)
        return TokenNats(empty.index_put((row, column), value), weight)

    def _target(self, hidden: Tensor, tokens: Tensor) -> tuple[Tensor]:
        return (-at_tokens(self.log_x(hidden), tokens),)

    def states(self, tokens: Tensor, present: Tensor | None = None) -> Tensor:
        """(B, L, hidden): the state of each token, which has read it and all tokens before it."""
        valid = None if present is None else self.started(present, True)
        hidden = self.backbone(self.started(tokens, self.vocab.mask), valid=valid)[0]
        return hidden[:, hidden.shape[1] - tokens.shape[1] :]

    def log_x(self, rows: Tensor) -> Tensor:
        """Log-probabilities (N, V) in float32 of the next token, from rows of hidden states."""
        return self.meaning.log_x(self.backbone.head(rows), self.vocab.mask)

    def denoiser(self) -> CachedDenoiser:
        """The model with a cache for each sequence."""
        return CachedDenoiser(self)

    def cache_bytes(self, tokens: int) -> int:
        """Bytes that its denoiser keeps for a sequence of so many tokens."""
        return row_bytes(self.backbone.empty_cache(1), tokens + self.start)

    def check(self, request: Request) -> None:
        """Raise if the model cannot follow a request."""
        sampler = request.sampler
        inner = sampler.plan if isinstance(sampler, Windows) else sampler
        if not isinstance(inner, LeftToRight) or inner.k != 1:
            raise UserError(
                "an autoregressive model writes from left to right, one token at a time; "
                "choose the sampler left-to-right with k=1"
            )
        free = request.writable(self.vocab)
        if (free[:-1] & ~free[1:]).any():
            raise UserError(
                "an autoregressive model writes from left to right and does not see what follows; "
                "give a prompt, without a suffix or gaps"
            )
        framed = isinstance(sampler, Windows) and sampler.frame is not None
        if not self.start and free[:1].any() and not framed:
            raise UserError(
                "this autoregressive model has no start symbol; give it the first token or a prompt, or train it with "
                "objective.start_token=true"
            )
        if request.label is not None or request.guidance != 1:
            raise UserError("this autoregressive model was trained without labels; leave out label and guidance")

    def describe(self) -> dict[str, Any]:
        """How its likelihood is defined, for protocols."""
        return {"bound": "exact", "order": "left to right", "start_token": self.start}


APART = 8  # rows that have this many times more to read than others go through the network separately


class CachedDenoiser(ModelDenoiser):
    """An autoregressive model as a denoiser, for one batcher.

    Column j of `hidden` predicts token j. The network reads only the part of each slot that it has not read yet; a slot
    says how much of its canvas is unchanged. Sequences with the same prompt that begin together read it once, and one
    that joins later continues from the prompt of another, or of one that has ended (`PrefixCache`).
    """

    one_way = True

    def __init__(self, model: AutoRegressive) -> None:
        self.model, self.start = model, int(model.start)
        self.schedule: Schedule = Polynomial()  # part of the interface; left to right does not use it
        self.read: dict[int, Read] = {}  # by slot

    def unread(self, trajectory: Trajectory) -> int:
        """One token, once the prompt is read."""
        return 1

    def name(self, slot: int) -> int:
        """The slot itself."""
        return slot

    def hidden(
        self,
        z: Tensor,
        t: Tensor,
        present: Tensor | None = None,
        label: Tensor | None = None,
        queries: Tensor | None = None,
        slots: Sequence[Slot] | None = None,
    ) -> Tensor:
        """(B, M, hidden): the states that predict the tokens of columns (B, M). What follows them is not read.

        So `present` does not matter: rows are padded at their ends. Without slots nothing is cached.
        """
        self.model.backbone.condition(t, label)  # refuses labels
        inputs = self.model.started(z, self.vocab.mask)
        columns = torch.arange(z.shape[1], device=z.device).expand(z.shape) if queries is None else queries
        columns = columns - (0 if self.model.start else 1)  # of `inputs`
        assert (columns >= 0).all(), "without a start symbol nothing predicts the first token"
        return self._hidden(inputs, columns, slots)

    def _hidden(self, inputs: Tensor, columns: Tensor, slots: Sequence[Slot] | None) -> Tensor:
        if slots is not None and (first := self._first(slots)) is not None:
            once = sorted(set(first))
            hidden = self._hidden(inputs[once], columns[once], [slots[i] for i in once])
            for i, slot in enumerate(slots):
                self.read[slot.number] = self.read[slots[first[i]].number]
            return hidden[[once.index(i) for i in first]]
        sources = [None] * len(inputs) if slots is None else [self._source(slot) for slot in slots]
        kept = torch.tensor([0 if source is None else source[1] for source in sources], device=inputs.device)
        kept = torch.minimum(kept, columns.amin(1))  # a column in `queries` is always read, again if necessary
        if self.model.backbone.recurrent:  # a state cannot be cut: continue from all that was read, or from nothing
            whole = torch.tensor([-1 if s is None else s[0].n for s in sources], device=inputs.device)
            kept = torch.where(kept == whole, kept, 0)
            return self._read(inputs, columns, kept, sources, slots)
        # A row that has just joined and has much to read goes separately: all others would have to read as much again.
        unread = columns.amax(1) + 1 - kept
        far = unread > APART * unread.min()
        if not far.any():
            return self._read(inputs, columns, kept, sources, slots)
        out: Tensor | None = None
        for rows in (torch.nonzero(which).squeeze(-1) for which in (far, ~far)):
            few = None if slots is None else [slots[i] for i in rows.tolist()]
            part = self._hidden(inputs[rows], columns[rows], few)
            out = part.new_empty(len(inputs), *part.shape[1:]) if out is None else out
            out[rows] = part
        assert out is not None
        return out

    def _first(self, slots: Sequence[Slot]) -> list[int] | None:
        """For each row the first row that reads the same, or None if all rows differ."""
        seen: dict[tuple[int, ...], int] = {}
        first = list(range(len(slots)))
        for i, slot in enumerate(slots):
            source = self._source(slot)
            if slot.prompt is not None and (source is None or source[1] < self.start + slot.shared):
                first[i] = seen.setdefault((*slot.prompt, slot.shared), i)
        return first if len(set(first)) < len(first) else None

    def _source(self, slot: Slot) -> tuple[Read, int] | None:
        """What was read of a slot, or of another slot with the same prompt, and how many of its columns are valid."""
        before = self.read.get(slot.number)
        best = None if before is None else (before, min(before.n, self.start + slot.kept))
        later = before is not None and not slot.shared  # not its first call
        if slot.prompt is None or self.model.backbone.recurrent or later:
            return best
        for read in self.read.values():
            if read.prompt == slot.prompt and read.shared == slot.shared:
                n = min(read.n, self.start + slot.shared)
                best = (read, n) if best is None or n > best[1] else best
        return best

    def _read(
        self,
        inputs: Tensor,
        columns: Tensor,
        kept: Tensor,
        sources: Sequence[tuple[Read, int] | None],
        slots: Sequence[Slot] | None,
    ) -> Tensor:
        """One network call. All rows read the same number of columns, and each ends with its last one.

        If a row has fewer, it is padded before its first token (with a recurrent network: before what is new to it).
        """
        last = columns.amax(1)
        new = int((last + 1 - kept).max())
        begin = (last + 1 - new)[:, None]
        reads = [None if source is None else source[0] for source in sources]
        positions = grow = None
        if self.model.backbone.recurrent:
            cache = self._states(reads, kept.tolist())
            place = begin + torch.arange(new, device=inputs.device)  # (B, new) of `inputs`
            valid, shown = place >= kept[:, None], place.clamp(min=0)
        else:
            empty = self.model.backbone.empty_cache(len(inputs))
            cache = cached_columns(reads, begin.squeeze(1).clamp(min=0).tolist(), empty)
            place = begin + torch.arange(-cache[0][0].shape[2], new, device=inputs.device)  # (B, cached and new)
            valid, shown = place >= 0, place[:, -new:].clamp(min=0)
            positions = shown
            if slots is not None and "grow" in self.model.backbone.takes:
                grow = only_readers(self.read, [slot.number for slot in slots], reads)
        known = None if valid.all() else valid
        tokens = inputs.gather(1, shown)
        hidden, cache = self.model.backbone(tokens, valid=known, positions=positions, cache=cache, grow=grow)
        if slots is not None:
            rows = CachedRows((last + 1).tolist(), cache)
            for row, slot in enumerate(slots):
                old = self.read.get(slot.number)
                named = (slot.prompt, slot.shared) if old is None else (old.prompt, old.shared)
                self.read[slot.number] = Read(rows, row, *(named if slot.kept or old is None else (None, 0)))
        return pick(hidden, columns - begin)

    def _states(self, reads: Sequence[Read | None], kept: list[int]) -> list[KeyValue]:
        """The states from which rows continue: those of what was read, or empty ones if nothing is kept."""
        empty: list[KeyValue] = self.model.backbone.empty_cache(len(kept))
        if not any(kept):
            return empty
        if (same := same_rows(reads)) is not None and all(kept):
            return same.cache
        rows = [
            [
                (layer[0][i], layer[1][i])
                if read is None or not n
                else (read.rows.cache[at][0][read.row], read.rows.cache[at][1][read.row])
                for i, (read, n) in enumerate(zip(reads, kept, strict=True))
            ]
            for at, layer in enumerate(empty)
        ]
        return [(torch.stack([a for a, _ in layer]), torch.stack([b for _, b in layer])) for layer in rows]
