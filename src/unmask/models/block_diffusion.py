"""Block diffusion (Arriola et al. 2025): blocks from left to right, and inside a block a masked diffusion.

p(x) is the product over blocks of p(block | blocks before it), and its bound the sum of their bounds. Blocks of one
token are an autoregressive model, exactly; a single block is MDLM. One network may be trained on a mixture of sizes and
is then all of them.

In training the network reads a row twice at once, noisy and clean (`TwoStreams`): a noisy block sees itself and the
clean blocks before it. By default the clean stream is causal by tokens, so that what was computed for a finished text
is the same for every block size; published models have it causal by blocks.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor

from ..networks.dit import KeyValue, pick
from ..networks.interface import Network
from ..networks.kernels.attention import Attention, PartlyCausal, Streams, TwoStreams
from ..process.blocks import block_batch, block_times, join_blocks
from ..process.counts import hidden_sets
from ..process.keys import Keys
from ..process.parameterization import Mean
from ..process.schedule import Law, Schedule
from ..sampling import Slot, Trajectory
from ..types import Batch, UserError
from .cached_rows import (
    CachedRows,
    ModelDenoiser,
    Read,
    cached_columns,
    only_readers,
    row_bytes,
    same_rows,
    side_by_side,
)
from .language_model import LanguageModel
from .masked import MaskedDiffusion, Objective

GOLDEN = (5**0.5 - 1) / 2  # multiples of it, without their whole part, are spread evenly
APART = 3  # rows that have this many times more to read than others go through the network separately
CleanStream = Literal["tokens", "blocks"]
Model = TypeVar("Model", bound=LanguageModel)


class BlockDiffusion(MaskedDiffusion):
    """Masked diffusion in blocks of `block` tokens (None: the whole row), trained on a `mixture` of sizes.

    Without a mixture it is trained on `block` alone. The weights of a mixture are shares of the training steps.
    """

    cached = True
    writes_blocks = True

    def __init__(
        self,
        backbone: Network,
        schedule: Schedule,
        law: Law | None = None,
        objective: Objective | None = None,
        *,
        block: int | None,
        mixture: Mapping[int | None, float] | None = None,
        clean: CleanStream = "tokens",
    ) -> None:
        super().__init__(backbone, schedule, law, Mean(), objective)
        if self.time_conditioned:
            raise UserError("the blocks of a row have times of their own; set model.time_conditioning=false")
        self.block_size, self.clean = block, clean
        self.mixture = dict(mixture or {block: 1.0})

    @property
    def exact(self) -> bool:  # type: ignore[override]
        """Whether nats are -log p itself, as those of blocks of one token are."""
        return self.block_size == 1

    def under(
        self,
        schedule: Schedule | None = None,
        law: Law | None = None,
        *,
        objective: Objective | None = None,
        backbone: Network | None = None,
    ) -> BlockDiffusion:
        """The same network and weights, scored under another schedule or law (or another network around them)."""
        other = BlockDiffusion(
            backbone or self.backbone,
            schedule or self.schedule,
            law or self.law,
            objective or self.objective,
            block=self.block_size,
            mixture=self.mixture,
            clean=self.clean,
        )
        return other.train(self.training)

    def in_blocks(self, size: int | None) -> BlockDiffusion:
        """The same network and weights under the law of another block size; None is the whole row."""
        other = copy.copy(self)
        other.block_size = size
        return other

    def block_of(self, step: int) -> int | None:
        """The block size of a training step: in any stretch of steps each has its share of them."""
        ends = list(itertools.accumulate(self.mixture.values()))
        place = (0.5 + step * GOLDEN) % 1 * ends[-1]
        return next(size for size, end in zip(self.mixture, ends, strict=True) if place < end or end == ends[-1])

    def streams(self, step: int | None = None) -> float:
        """Two, the noisy and the clean one, unless a row is a single block."""
        if step is not None:
            return 1.0 if self.block_of(step) is None else 2.0
        return 2.0 - self.mixture.get(None, 0.0) / sum(self.mixture.values())

    def loss(self, batch: Batch, keys: Keys) -> tuple[Tensor, Tensor]:
        """(sum to minimise, weight it is a sum over), in the blocks of this step."""
        law = self.in_blocks(self.block_of(keys.step))
        if law.exact:
            return LanguageModel.loss(law, batch, keys)
        return MaskedDiffusion.loss(law, batch, keys)

    def hidden(
        self,
        z: Tensor,
        t: Tensor,
        present: Tensor | None = None,
        label: Tensor | None = None,
        queries: Tensor | None = None,
        clean: Tensor | None = None,
    ) -> Tensor:
        """As in MDLM; with the `clean` tokens each block of z is read after the clean blocks before it."""
        length = z.shape[1]
        if clean is None or self.block_size is None or self.block_size >= length:
            return super().hidden(z, t, present, label, queries)
        valid = None if present is None else torch.cat([present, present], 1).to(z.device)
        columns = torch.arange(length, device=z.device)
        attention: Attention = TwoStreams(length, self.block_size, self.clean)
        hidden = self.backbone(
            torch.cat([z, clean.to(z.device)], 1),
            condition=self.condition(z, t, label),
            attention=attention if self.sight is None else PartlyCausal(attention, self.sight),
            valid=valid,
            positions=columns.repeat(2),
            queries=columns.expand(z.shape),
        )[0]
        return hidden if queries is None else pick(hidden, queries)

    def _nats(self, batch: Batch, keys: Keys, law: Law) -> Tensor:
        if not self.exact:
            return super()._nats(batch, keys, law)
        free = batch.free()  # a block of one token is always hidden, and costs -log p of it
        z = torch.where(free, self.vocab.mask, batch.tokens)
        t = torch.ones(len(batch), dtype=torch.float64)
        row, column, nll = self._guessed(batch, z, free & batch.weight(), t)
        return torch.zeros(z.shape, dtype=nll.dtype, device=nll.device).index_put((row, column), nll)

    def _times(self, batch: Batch, keys: Keys, law: Law) -> Tensor:
        if self.block_size is None or self.block_size >= batch.tokens.shape[1]:
            return super()._times(batch, keys, law)
        return block_times(law, batch, self.block_size, keys, self.objective.stratified)

    def _hidden_sets(self, batch: Batch, keys: Keys, law: Law) -> tuple[Tensor, Tensor]:
        length = batch.tokens.shape[1]
        if self.block_size is None or self.block_size >= length:
            return super()._hidden_sets(batch, keys, law)
        weighted, pairs = not self.objective.cross_entropy, self.objective.pairs
        blocks = block_batch(batch, self.block_size)
        hidden, weight = hidden_sets(blocks, keys, law, self.schedule, weighted=weighted, pairs=pairs)
        return join_blocks(hidden, length), join_blocks(weight[:, None].expand(-1, self.block_size), length)

    def denoiser(self) -> CachedBlocks:  # type: ignore[override]
        """The model with a cache for each sequence."""
        return CachedBlocks(self)

    def cache_bytes(self, tokens: int) -> int:
        """Bytes that its denoiser keeps for a sequence of so many tokens, if that is more than one block."""
        return row_bytes(self.backbone.empty_cache(1), tokens)

    def describe(self) -> dict[str, Any]:
        """How its likelihood is defined, for protocols."""
        facts = {"block": _named(self.block_size), "clean_stream": f"causal by {self.clean}"}
        if self.block_size not in self.mixture:
            facts["trained_blocks"] = ", ".join(str(_named(size)) for size in self.mixture)
        if self.exact:
            return {"bound": "exact", "order": "left to right", **facts}
        return super().describe() | facts


def as_blocks(model: LanguageModel) -> BlockDiffusion | None:
    """The model as one with blocks, or None if it has none."""
    return cast(BlockDiffusion, model) if model.writes_blocks else None


def whole_row(model: Model) -> Model:
    """The model under the law in which a row is a single block and every token sees all others."""
    blocks = as_blocks(model)
    return model if blocks is None or blocks.block_size is None else cast(Model, blocks.in_blocks(None))


def _named(size: int | None) -> int | str:
    return "the whole row" if size is None else size


class CachedBlocks(ModelDenoiser):
    """A block diffusion model as a denoiser, for one batcher: it keeps what it has read of finished blocks.

    A slot says which tokens of its canvas are clean; all others are noisy. The network reads the noisy ones in every
    call, and the clean ones once: those of a finished block in the first call of the next. What was read of a sequence
    that has ended may be kept (`PrefixCache`).
    """

    one_way = False

    def __init__(self, model: BlockDiffusion) -> None:
        self.model, self.schedule = model, model.schedule
        self.read: dict[Name, Read] = {}

    def unread(self, trajectory: Trajectory) -> int:
        """The tokens of a block, which may be the whole text."""
        return len(trajectory.canvas) - trajectory.clean

    def name(self, slot: int) -> Name:
        """The slot, as the row with a label if it has one."""
        return slot, False

    def unit(self, trajectory: Trajectory) -> int:
        """A token, or a block where clean tokens see all of theirs; a text in a single block reads no clean ones."""
        if trajectory.block is None and not trajectory.clean:
            return 0
        return (trajectory.block or 0) if self.model.clean == "blocks" else 1

    def prompt(self, slot: Slot, label: int | None = None) -> tuple[int, ...] | None:
        """With the label and, in a stream of blocks, their size: what is read depends on them, too."""
        if slot.prompt is None:
            return None
        size = slot.block if self.model.clean == "blocks" else None
        return (*slot.prompt, -1 if label is None else label, size or 0)

    def release(self, trajectory: Trajectory) -> None:
        """Forget what was read of a slot, or keep it for others."""
        self.read.pop((trajectory.slot, True), None)
        super().release(trajectory)

    def hidden(
        self,
        z: Tensor,
        t: Tensor,
        present: Tensor | None = None,
        label: Tensor | None = None,
        queries: Tensor | None = None,
        slots: Sequence[Slot] = (),
    ) -> Tensor:
        """(B, M, hidden): the states of noisy columns (B, M) of canvases z, whose slots say what is clean."""
        assert queries is not None
        ends = [z.shape[1]] * len(z) if present is None else present.sum(1).tolist()
        labels = [None] * len(z) if label is None else label.tolist()
        names = [(slot.number, number > 0) for number, slot in _counted(slots)]
        self._read_prompts(z, t, label, names, slots, labels)
        rows = [
            self._row(name, slot, kind, end, slot.clean)
            for name, slot, kind, end in zip(names, slots, labels, ends, strict=True)
        ]
        least = min(row.new for row in rows)
        far = [row.new > APART * least for row in rows]
        hidden: Tensor | None = None
        for apart in (True, False):
            which = [i for i, other in enumerate(far) if other is apart]
            if which:
                some = torch.tensor(which, device=z.device)
                wanted = queries[some] - torch.tensor([rows[i].clean for i in which], device=z.device)[:, None]
                part = self._call(
                    z[some], t[which], None if label is None else label[some], [rows[i] for i in which], wanted
                )
                hidden = part.new_empty(*queries.shape, part.shape[-1]) if hidden is None else hidden
                hidden[some] = part
        assert hidden is not None
        return hidden

    def _row(self, name: Name, slot: Slot, label: int | None, end: int, clean: int) -> _Row:
        """What a slot has to read: positions from `clean` to `end` as noisy ones, and what is new before them."""
        prompt = self.prompt(slot, label)
        seen = clean if slot.block is None else max(clean, (end - 1) // slot.block * slot.block)
        source, kept = self.read.get(name), slot.kept
        if prompt is not None and slot.shared:  # its first call
            shares = (read for read in self.read.values() if (read.prompt, read.shared) == (prompt, slot.shared))
            source, kept = max(shares, key=lambda read: read.n, default=None), slot.shared
        kept = 0 if source is None else min(source.n, kept, seen)
        if self.model.clean == "blocks" and slot.block is not None:
            kept -= kept % slot.block  # a clean token has seen all of its block
        return _Row(name, slot, prompt, source, kept, clean, seen, end)

    def _read_prompts(
        self,
        z: Tensor,
        t: Tensor,
        label: Tensor | None,
        names: Sequence[Name],
        slots: Sequence[Slot],
        labels: Sequence[int | None],
    ) -> None:
        """Read a prompt that several new sequences begin with once; their own calls continue from there."""
        first: dict[tuple[int, ...], int] = {}
        for i, (name, slot) in enumerate(zip(names, slots, strict=True)):
            shared = min(slot.shared, slot.clean)
            row = self._row(name, slot, labels[i], shared, shared)
            known = row.source is not None and row.source.n >= shared
            if row.prompt is None or known or not shared:
                continue
            before = first.setdefault((*row.prompt, shared), i)
            if before != i:
                which = slice(before, before + 1)
                again = self._row(names[before], slots[before], labels[before], shared, shared)
                self._call(z[which], t[which], None if label is None else label[which], [again])

    def _call(
        self, z: Tensor, t: Tensor, label: Tensor | None, rows: Sequence[_Row], wanted: Tensor | None = None
    ) -> Tensor:
        """One network call, and the states of the `wanted` noisy columns (B, M) of each row; others are padding.

        All rows read the same number of columns: clean ones, then noisy ones to the end. If a row has fewer, it reads
        some clean columns again, or is padded before its first token.
        """
        device, model = z.device, self.model
        new = max(row.new for row in rows)
        noisy, seen, clean = (torch.tensor([getattr(row, name) for row in rows]) for name in ("noisy", "seen", "clean"))
        kept = (seen - (new - noisy)).clamp(min=0)
        cache = cached_columns([row.source for row in rows], kept.tolist(), model.backbone.empty_cache(len(rows)))
        width = cache[0][0].shape[2] + new
        column, border = torch.arange(width)[None], (width - noisy)[:, None]
        is_noisy = column >= border
        place = column - border + torch.where(is_noisy, clean[:, None], seen[:, None])
        size = torch.tensor([row.slot.block or width for row in rows])[:, None]
        begin = place // size * size
        sees = place + 1 if model.clean == "tokens" else begin + size
        sees = torch.where(is_noisy, torch.maximum(begin, clean[:, None]), sees)
        tokens = z.gather(1, place[:, width - new :].clamp(min=0).to(device))
        among = _laid_out(rows, place, sees, is_noisy, new, device)
        valid, shown = place >= 0, place[:, width - new :].clamp(min=0).to(device)
        single = torch.tensor([row.slot.block == 1 for row in rows])[:, None]
        tokens = tokens.masked_fill((is_noisy & single)[:, width - new :].to(device), self.vocab.mask)
        queries = torch.full((len(rows), 1), new - 1, device=device)
        if wanted is not None:
            queries = (wanted + (new - noisy).to(device)[:, None]).clamp(0, new - 1)
        some = 2 * queries.shape[1] <= new
        hidden, cache = model.backbone(
            tokens,
            condition=model.condition(z, t, label),
            attention=Streams(place.to(device), sees.to(device), is_noisy.to(device), among),
            valid=None if valid.all() else valid.to(device),
            positions=shown,
            queries=queries if some else None,
            cache=cache,
            grow=only_readers(self.read, [row.name for row in rows], [row.source for row in rows]),
        )
        held = same_rows([self.read.get(row.name) for row in rows])
        if not seen.any():
            for row in rows:
                self.read.pop(row.name, None)
        elif held is None or any(not n == row.kept == row.seen for n, row in zip(held.n, rows, strict=True)):
            self._keep(rows, cache, seen.tolist(), border.flatten().tolist())  # which lets go of rows that have ended
        return hidden if some else pick(hidden, queries)

    def _keep(self, rows: Sequence[_Row], cache: list[KeyValue], seen: list[int], ends: list[int]) -> None:
        """Keep the clean columns of a call: those of row i end at column ends[i]."""
        if len(set(ends)) == 1:
            kept = [(k[:, :, : ends[0]], v[:, :, : ends[0]]) for k, v in cache]
        else:
            kept = [
                cast(
                    KeyValue,
                    tuple(
                        side_by_side(
                            [
                                x[i, :, end - n : end].transpose(0, 1)
                                for i, (n, end) in enumerate(zip(seen, ends, strict=True))
                            ]
                        )
                        for x in layer
                    ),
                )
                for layer in cache
            ]
        together = CachedRows(seen, kept)
        for i, row in enumerate(rows):
            old = self.read.get(row.name)
            named = (row.prompt, row.slot.shared) if old is None else (old.prompt, old.shared)
            self.read[row.name] = Read(together, i, *(named if row.kept or old is None else (None, 0)))


Name = tuple[int, bool]  # the number of a slot, and whether it is the row without a label (guidance)


@dataclass(frozen=True)
class _Row:
    """What one sequence reads in a call."""

    name: Name
    slot: Slot
    prompt: tuple[int, ...] | None
    source: Read | None
    kept: int  # columns that are cached
    clean: int  # positions from here to `end` are noisy
    seen: int  # positions before this are read as clean ones
    end: int

    @property
    def noisy(self) -> int:
        """The number of noisy columns."""
        return self.end - self.clean

    @property
    def new(self) -> int:
        """The number of columns that must be read."""
        return self.seen - self.kept + self.noisy


def _laid_out(
    rows: Sequence[_Row], place: Tensor, sees: Tensor, noisy: Tensor, new: int, device: torch.device
) -> Tensor | None:
    """Put the noisy columns of rows where their slots say; (B, N, N): which of the N new columns see each other."""
    if all(row.slot.columns is None for row in rows):
        return None
    sees, noisy = sees[:, -new:], noisy[:, -new:]
    among = (sees[:, :, None] == sees[:, None]) & noisy[:, :, None] & noisy[:, None]
    for i, row in enumerate(rows):
        if row.slot.columns is not None and row.noisy:  # else only a prompt is read
            place[i, -row.noisy :] = row.slot.columns.place
            among[i, -row.noisy :, -row.noisy :] = row.slot.columns.sees
    return among.to(device)


def _counted(slots: Sequence[Slot]) -> list[tuple[int, Slot]]:
    """Each slot, and how many rows before it have the same number."""
    numbers = [slot.number for slot in slots]
    return [(numbers[:i].count(slot.number), slot) for i, slot in enumerate(slots)]
