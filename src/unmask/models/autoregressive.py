"""The autoregressive model that the paper compares with: -log p of every token given those before it, exactly.

The likelihood is of the same tokens as that of a diffusion model: a start symbol, for which the id of [MASK] serves (it
never occurs in text), stands before every row, so that the first token is scored too. Without it (`start=False`) it is
the protocol of the published runs: the first token is given and not scored.

Sampling goes through the same batcher as that of diffusion models, with the sampler `LeftToRight`. `CachedDenoiser`
keeps what the network said of the prefixes that it has read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..networks.dit import KeyValue, pick
from ..networks.interface import Network
from ..process.keys import Keys
from ..process.parameterization import Mean
from ..process.schedule import Polynomial, Schedule
from ..sampling import Batcher, LeftToRight, Request, Sampler, Windows, run
from ..types import Batch, State, TokenNats, UserError, Vocab
from .language_model import LanguageModel, Until, in_chunks


class AutoRegressive(LanguageModel):
    """A causal backbone; with `start`, every row begins with a start symbol of its own."""

    exact = True
    usual_sampler = "left-to-right"

    def __init__(self, backbone: Network, start: bool = True) -> None:
        super().__init__()
        assert backbone.causal, "a network that looks both ways has seen what it is to predict"
        self.backbone, self.start = backbone, start
        self.given = 0 if start else 1
        self.meaning = Mean()  # softmax over all tokens but [MASK]

    def started(self, columns: Tensor, symbol: int | bool) -> Tensor:
        """(B, L) to (B, L + 1): with the start symbol before each row, if there is one."""
        return F.pad(columns, (1, 0), value=symbol) if self.start else columns

    def nats(self, batch: Batch, keys: Keys) -> TokenNats:
        """-log p(token | tokens before it): nothing is drawn."""
        self.backbone.condition(torch.zeros(len(batch)), batch.label)  # refuses labels
        x, length = batch.tokens, batch.tokens.shape[1]
        every = torch.arange(length, device=x.device).expand(x.shape)
        weight, source, valid = batch.weight(), every, None
        if not self.start:  # the state of a token predicts the next one, and nothing predicts the first
            weight, source = weight & (every > 0), every - 1
        if batch.present is not None:  # the state of an absent column has seen its token: the last one before it counts
            valid = self.started(batch.present, True)[:, :length]
            source = torch.where(valid, every, 0).cummax(1).values.gather(1, source.clamp(min=0))
        hidden = self.backbone(self.started(x, self.vocab.mask)[:, :length], valid=valid)[0]
        row, column = torch.nonzero(weight, as_tuple=True)
        (value,) = in_chunks(self._target, self.vocab.size, hidden[row, source[row, column]], x[row, column])
        empty = torch.zeros(weight.shape, dtype=value.dtype, device=value.device)
        return TokenNats(empty.index_put((row, column), value), weight)

    def _target(self, hidden: Tensor, tokens: Tensor) -> tuple[Tensor]:
        return (-self.log_x(hidden).gather(-1, tokens[:, None]).squeeze(-1),)

    def log_x(self, rows: Tensor) -> Tensor:
        """Log-probabilities (N, V) in float32 of the next token, of chosen rows of hidden states."""
        return self.meaning.log_x(self.backbone.head(rows), self.vocab.mask)

    def write(self, tasks: Sequence[Request], batch_size: int, until: Until | None) -> Iterator[State]:
        """Write every canvas from left to right, all of them through the network together."""
        for task in tasks:
            self.check(task.canvas, task.plan)
            if task.label is not None or task.guidance != 1:
                raise UserError("this autoregressive model was trained without labels; leave out label and guidance")
        return run(CachedDenoiser(self, batch_size), tasks, batch_size, until)

    def desk(self, batch_size: int, share: int | None = None) -> Batcher:
        """Where tasks join and leave between network calls; each costs one token a call, so all go every time."""
        return Batcher(CachedDenoiser(self, batch_size), batch_size)

    def check(self, canvas: Tensor, plan: Sampler) -> None:
        """Raise if a plan cannot be followed on a canvas."""
        inner = plan.plan if isinstance(plan, Windows) else plan
        if not isinstance(inner, LeftToRight) or inner.k != 1:
            raise UserError(
                "an autoregressive model writes from left to right, one token at a time; "
                "choose the sampler left-to-right with k=1"
            )
        masked = canvas == self.vocab.mask
        if (masked[:-1] & ~masked[1:]).any():
            raise UserError(
                "an autoregressive model writes from left to right and does not see what comes after; "
                "give a prompt and no suffix or gap"
            )
        framed = isinstance(plan, Windows) and plan.frame is not None
        if not self.start and masked[:1].any() and not framed:
            raise UserError(
                "this autoregressive model has no start symbol; give it the first token or a prompt, or train it with "
                "objective.start_token=true"
            )

    def describe(self) -> dict[str, Any]:
        """The law of its likelihood, for protocols."""
        return {"bound": "exact", "order": "left to right", "start_token": self.start}


@dataclass(frozen=True)
class Shelf:
    """What one call has read: rows of lengths n, and what the network keeps of them."""

    tokens: Tensor  # (B, W) int64: row b begins with what was read, n[b] tokens
    n: list[int]
    cache: list[KeyValue]  # (B, H, W, D): row b *ends* with what belongs to it, n[b] columns; or states (B, ·, ·)

    def common(self, inputs: Tensor) -> Tensor:
        """(rows of inputs, B): how many tokens each of them has in common with each row here, from the first on."""
        width = min(self.tokens.shape[1], inputs.shape[1])
        same = inputs[:, None, :width] == self.tokens[None, :, :width]
        return torch.minimum(same.long().cumprod(-1).sum(-1), torch.tensor(self.n, device=inputs.device))

    def part(self, row: int, kept: int) -> list[KeyValue]:
        """Keys and values of the first `kept` tokens of a row, (kept, H, D) each."""
        begin = self.tokens.shape[1] - self.n[row]
        here = slice(begin, begin + kept)
        return [(k[row, :, here].transpose(0, 1), v[row, :, here].transpose(0, 1)) for k, v in self.cache]


APART = 8  # rows that have so many times more to read than others go through the network by themselves
Source = tuple[Shelf, int]  # a row of a shelf


class CachedDenoiser:
    """An autoregressive model as a denoiser, for one generation.

    Column j of `hidden` predicts token j. The network reads only what it has not read yet: each row goes on from the
    longest prefix that it shares with any row of the last calls, found by comparing tokens. So rows may leave, join,
    move to another window or change as they like; a cache that does not fit is never used.
    """

    time_conditioned = False
    normalised = True
    carry_over = True

    def __init__(self, model: AutoRegressive, rows: int) -> None:
        self.model, self.rows = model, rows  # how many rows are under way at a time
        self.schedule: Schedule = Polynomial()  # a denoiser has one; left to right nobody asks for it
        self.shelves: list[Shelf] = []  # the newest first

    @property
    def vocab(self) -> Vocab:
        """The vocabulary."""
        return self.model.vocab

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.model.device

    def log_x(self, rows: Tensor) -> Tensor:
        """Log-probabilities of the next token, of chosen rows of hidden states."""
        return self.model.log_x(rows)

    def hidden(
        self,
        z: Tensor,
        t: Tensor,
        present: Tensor | None = None,
        label: Tensor | None = None,
        queries: Tensor | None = None,
    ) -> Tensor:
        """(B, M, hidden): the states that predict the tokens of columns (B, M). What stands after them is not read.

        That is why `present` does not matter: rows are padded at their ends.
        """
        self.model.backbone.condition(t, label)  # refuses labels
        inputs = self.model.started(z, self.vocab.mask)
        columns = torch.arange(z.shape[1], device=z.device).expand(z.shape) if queries is None else queries
        columns = columns - (0 if self.model.start else 1)  # of `inputs`
        assert (columns >= 0).all(), "without a start symbol nothing predicts the first token"
        last = columns.amax(1)
        source, common = self._find(inputs)
        if self.model.backbone.recurrent:
            return self._go_on(inputs, columns, source, common)
        # All rows read equally many columns, those up to their last one, so that all of them end together. Where a row
        # has fewer than that, what stands before its first token is padding. A row that has just joined, with much to
        # read, goes apart: it would have all others read as much again.
        unread = last + 1 - torch.minimum(common, columns.amin(1))
        far = unread > APART * unread.min()
        if far.any():
            return self._apart(far, z, t, queries)
        new = int(unread.max())
        begin = (last + 1 - new)[:, None]
        cache = self._take(source, begin.squeeze(1).clamp(min=0).tolist())
        place = begin + torch.arange(-cache[0][0].shape[2], new, device=z.device)  # (B, cached and new) of `inputs`
        positions = place[:, -new:].clamp(min=0)
        valid = None if (place >= 0).all() else place >= 0
        tokens = inputs.gather(1, positions)
        hidden, cache = self.model.backbone(tokens, valid=valid, positions=positions, cache=cache)
        self._keep(Shelf(inputs[:, : int(last.max()) + 1].clone(), (last + 1).tolist(), cache))
        return pick(hidden, columns - begin)

    def _apart(self, far: Tensor, z: Tensor, t: Tensor, queries: Tensor | None) -> Tensor:
        """Two calls: rows that have read what stands before, and rows that have not."""
        groups = [torch.nonzero(which).squeeze(-1) for which in (far, ~far)]
        parts = [self.hidden(z[rows], t, None, None, None if queries is None else queries[rows]) for rows in groups]
        hidden = parts[0].new_empty(len(z), *parts[0].shape[1:])
        for rows, part in zip(groups, parts, strict=True):
            hidden[rows] = part
        return hidden

    def _go_on(self, inputs: Tensor, columns: Tensor, source: list[Source], common: Tensor) -> Tensor:
        """The same for a network whose cache is a state: it goes on from the end of what was read, or from nothing.

        Rows read what is new to them, and end together; what stands before that is padding.
        """
        ends = torch.tensor([shelf.n[row] for shelf, row in source], device=common.device) if source else common
        whole = (common == ends) & (common <= columns.amin(1))
        kept = torch.where(whole, common, 0)
        last = columns.amax(1)
        new = int((last + 1 - kept).max())
        begin = (last + 1 - new)[:, None]
        place = begin + torch.arange(new, device=inputs.device)  # (B, new) of `inputs`
        fresh = place >= kept[:, None]
        valid = None if fresh.all() else fresh
        cache = self._states(source, kept.tolist())
        hidden, cache = self.model.backbone(inputs.gather(1, place.clamp(min=0)), valid=valid, cache=cache)
        self._keep(Shelf(inputs[:, : int(last.max()) + 1].clone(), (last + 1).tolist(), cache))
        return pick(hidden, columns - begin)

    def _states(self, source: list[Source], kept: list[int]) -> list[KeyValue]:
        """The states from which rows go on: that of their source, or of nothing where none is kept."""
        empty: list[KeyValue] = self.model.backbone.empty_cache(len(kept))
        if not any(kept):
            return empty
        shelf = source[0][0]
        if (
            all(kept)
            and len(kept) == len(shelf.n)
            and all(own is shelf and row == i for i, (own, row) in enumerate(source))
        ):
            return shelf.cache
        rows = [
            [
                (own.cache[layer][0][row], own.cache[layer][1][row]) if n else (old[0][i], old[1][i])
                for i, ((own, row), n) in enumerate(zip(source, kept, strict=True))
            ]
            for layer, old in enumerate(empty)
        ]
        return [(torch.stack([a for a, _ in layer]), torch.stack([b for _, b in layer])) for layer in rows]

    def _find(self, inputs: Tensor) -> tuple[list[Source], Tensor]:
        """For each row the shelf and the row there with the longest common prefix, and its length (B,)."""
        if not self.shelves:
            return [], inputs.new_zeros(len(inputs))
        common, best = torch.cat([shelf.common(inputs) for shelf in self.shelves], dim=1).max(1)
        rows = [(shelf, row) for shelf in self.shelves for row in range(len(shelf.n))]
        return [rows[i] for i in best.tolist()], common

    def _take(self, source: list[Source], kept: list[int]) -> list[KeyValue]:
        """The keys and values of the first `kept` columns of each row, padded on the left."""
        if not any(kept):
            return self.model.backbone.empty_cache(len(kept))
        shelf = source[0][0]
        if kept == shelf.n and all(own is shelf and row == i for i, (own, row) in enumerate(source)):
            return shelf.cache  # the rows of the last call, one token further: the common case needs no copy
        parts = [own.part(row, n) for (own, row), n in zip(source, kept, strict=True)]
        return [
            (_side_by_side([k for k, _ in block]), _side_by_side([v for _, v in block]))
            for block in zip(*parts, strict=True)
        ]

    def _keep(self, shelf: Shelf) -> None:
        """Put it before the others, and forget those that are older than one call for every row under way."""
        shelves, rows = [shelf], len(shelf.n)
        for older in self.shelves:
            if rows >= self.rows:
                break
            shelves.append(older)
            rows += len(older.n)
        self.shelves = shelves


def _side_by_side(rows: Sequence[Tensor]) -> Tensor:
    """(n, H, D) of any n to (B, H, the largest n, D), padded on the left."""
    return pad_sequence(list(rows), batch_first=True, padding_side="left").transpose(1, 2)
