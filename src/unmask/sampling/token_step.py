"""One network call for trajectories over tokens, and the head on the rows that they need.

Each sequence is at its own time and has its own length. The head runs a chunk of rows at a time: no (B, L, V) tensor is
ever made. Guidance, rules, replay and the drawing of tokens are implemented here for all samplers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from ..process.chunks import rows_at_once
from ..process.masking import at_tokens
from .choice import NEVER, Choice
from .constrained import Guide, Part, SpanStep, add_rows, draw_tokens, needed, parts, solve
from .request import NOTHING, Written, read_off
from .rules import Rules
from .sampler import Slot, TokenDenoiser, Trajectory, stack

Segments = list[tuple[int, Tensor]]  # sequences by their number, with positions of each
TOKENS_AT_ONCE = 2048  # tokens that go through the network together on a CPU
PADDING = 128  # tokens of padding among them: more than that costs more than another call
LOGITS_AT_ONCE = 2**25  # float32 logits held at a time (128 MiB)
LOGITS_ON_CPU = 2**22  # computed at a time on a CPU: more of them do not stay in its caches


def advance_tokens(model: TokenDenoiser, trajectories: Sequence[Trajectory]) -> list[Written | None]:
    """One network call for all trajectories: tokens for the positions that are due."""
    candidates = [trajectory.candidates() for trajectory in trajectories]
    asked = [c if len(c) else trajectory.due() for c, trajectory in zip(candidates, trajectories, strict=True)]
    spans = [  # where positions are scored first it is not yet known which of them are due
        parts(trajectory, positions.numpy(), trajectory.request.constraint is None or model.one_way, len(c) > 0)
        for trajectory, positions, c in zip(trajectories, asked, candidates, strict=True)
    ]
    wanted = [needed(positions, some) for positions, some in zip(asked, spans, strict=True)]
    rows = _HeadRows(model, trajectories, wanted)
    for trajectory, scores in zip(trajectories, rows.scores(candidates), strict=True):
        if scores is not None:
            trajectory.choose(scores)
    due = [NOTHING if trajectory.in_turn else trajectory.due() for trajectory in trajectories]
    for i, c in enumerate(candidates):
        if len(c):
            spans[i] = parts(trajectories[i], due[i].numpy(), model.one_way)
    rows.confine(due, spans)
    in_turn = rows.written_in_turn()
    return [in_turn.get(i, written) for i, written in enumerate(rows.written(due))]


class _HeadRows:
    """The hidden states of one call, and the head on any rows of them, in chunks."""

    def __init__(self, model: TokenDenoiser, trajectories: Sequence[Trajectory], wanted: Sequence[Tensor]) -> None:
        self.model, self.active = model, trajectories
        requests = [trajectory.request for trajectory in trajectories]
        guided = [i for i, request in enumerate(requests) if request.guidance != 1]
        self.twin = torch.full((len(trajectories),), -1)  # the row without a label, for those that are guided
        self.twin[guided] = torch.arange(len(trajectories), len(trajectories) + len(guided))
        every = [*trajectories, *(trajectories[i] for i in guided)]
        z, present = stack([trajectory.canvas for trajectory in every], model.vocab)
        t = torch.tensor([trajectory.t for trajectory in every], dtype=torch.float64)
        label = None
        if any(request.label is not None for request in requests):
            label = torch.full((len(every),), -1)
            for i, request in enumerate(requests):
                label[i] = -1 if request.label is None else request.label
            label = label.to(model.device)
        queries = torch.nn.utils.rnn.pad_sequence([*wanted, *(wanted[i] for i in guided)], batch_first=True)
        if not queries.shape[1]:  # an ancestral step after the last reveal: one column, as no network accepts zero
            queries = queries.new_zeros(len(every), 1)
        self.column = torch.full((len(trajectories), z.shape[1]), -1)  # of a position in `hidden`
        for i, positions in enumerate(wanted):
            self.column[i, positions] = torch.arange(len(positions))
        counts = [len(positions) for positions in wanted]
        counts += [counts[i] for i in guided]
        slots = [trajectory.in_slot() for trajectory in every] if model.cached else None
        self.hidden = _hidden(model, z, t, present, label, queries, counts, slots)
        self.spans: dict[int, list[SpanStep]] = {}  # by sequence: what its constraint lets this step write
        self.kept: list[tuple[Tensor, Tensor]] = []  # rows (N, V) of due positions, without and with rules
        self.kept_at = torch.full_like(self.column, -1)  # which row of `kept` a position has
        self.guides: dict[int, Guide] = {}  # by sequence, of those that draw in turn under a constraint
        self.pending: dict[int, list[int]] = {}  # by sequence: its canvas with what this step has written so far
        self.most_kept = rows_at_once(model.vocab.size, LOGITS_AT_ONCE)
        on_cpu = min(LOGITS_ON_CPU, LOGITS_AT_ONCE)
        self.at_once = rows_at_once(model.vocab.size, on_cpu if model.device.type == "cpu" else LOGITS_AT_ONCE)
        self.tops = min(max(request.tops for request in requests), model.vocab.size - 1)

    def _chunks(self, wanted: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor, Segments]]:
        """Positions of all sequences in chunks: the sequence of each, the positions, and the positions by sequence."""
        which = torch.repeat_interleave(torch.arange(len(wanted)), torch.tensor([len(p) for p in wanted]))
        if not len(which):
            return
        chunks = zip(which.split(self.at_once), torch.cat(list(wanted)).split(self.at_once), strict=True)
        for part, positions in chunks:
            numbers, counts = part.unique_consecutive(return_counts=True)
            yield part, positions, list(zip(numbers.tolist(), positions.split(counts.tolist()), strict=True))

    def scores(self, candidates: Sequence[Tensor]) -> list[Tensor | None]:
        """The scores that each trajectory gives its candidates."""
        parts: list[list[Tensor]] = [[] for _ in candidates]
        for which, positions, segments in self._chunks(candidates):
            shaped = self._ruled(self._log_x(which, positions), segments, scoring=True)
            for (i, _), rows in zip(segments, shaped.split([len(p) for _, p in segments]), strict=True):
                parts[i].append(self.active[i].score(rows).cpu())
        return [torch.cat(scores) if scores else None for scores in parts]

    def confine(self, due: Sequence[Tensor], spans: Sequence[Sequence[Part]]) -> None:
        """For sequences with a constraint: draw the classes of tokens that the due positions of these parts get."""
        known = [NOTHING] * len(due)
        for i, trajectory in enumerate(self.active):
            if spans[i] and trajectory.error is None:
                self.spans[i] = [SpanStep(trajectory, part, due[i]) for part in spans[i]]
                known[i] = torch.cat([torch.from_numpy(step.start + step.known) for step in self.spans[i]])
        keeps = sum(map(len, due)) <= self.most_kept
        for which, positions, segments in self._chunks(known):
            log_x, shaped = self._shaped(which, positions, segments)
            owners, rows = self._owners(segments)
            add_rows(owners, shaped if len(rows) == len(shaped) else shaped[rows.to(shaped.device)])
            if keeps:
                self._keep(which, positions, due, log_x, shaped)
        solve([step for steps in self.spans.values() for step in steps])

    def _keep(self, which: Tensor, positions: Tensor, due: Sequence[Tensor], log_x: Tensor, shaped: Tensor) -> None:
        """Keep the rows of due positions: they are needed again when tokens are drawn."""
        wanted = torch.zeros_like(self.column, dtype=torch.bool)
        for i, places in enumerate(due):
            wanted[i, places] = True
        rows = torch.nonzero(wanted[which, positions]).squeeze(-1)
        self.kept_at[which[rows], positions[rows]] = sum(len(part) for part, _ in self.kept) + torch.arange(len(rows))
        rows = rows.to(log_x.device)
        plain = log_x[rows]
        self.kept.append((plain, plain if shaped is log_x else shaped[rows]))

    def _kept(self, which: Tensor, positions: Tensor) -> tuple[Tensor, Tensor] | None:
        """What `_shaped` would give, if all of it was kept."""
        at = self.kept_at[which, positions]
        if not self.kept or (at < 0).any():
            return None
        log_x, shaped = (torch.cat(parts)[at.to(parts[0].device)] for parts in zip(*self.kept, strict=True))
        return log_x, shaped

    def _owners(self, segments: Segments) -> tuple[list[tuple[SpanStep, np.ndarray]], Tensor]:
        """The spans that hold the positions of segments, with these counted from their starts; and their rows."""
        owners, rows, begin = [], [NOTHING], 0
        for i, positions in segments:
            for step in self.spans.get(i, ()) if self.active[i].error is None else ():
                at = positions.numpy() - step.start
                inside = np.flatnonzero((at >= 0) & (at < len(step.open)))
                inside = inside[step.open[at[inside]]]
                if len(inside):
                    owners.append((step, at[inside]))
                    rows.append(torch.from_numpy(begin + inside))
            begin += len(positions)
        return owners, torch.cat(rows)

    def written(self, due: Sequence[Tensor]) -> list[Written]:
        """A token for every position that is due."""
        whole = self._joined([self._write(*chunk, self.tops) for chunk in self._chunks(due)])
        counts = [len(positions) for positions in due]
        ends = torch.tensor(counts).cumsum(0).tolist()
        return [whole.part(end - count, end) for count, end in zip(counts, ends, strict=True)]

    def written_in_turn(self) -> dict[int, Written]:
        """What the sequences write that ask for distributions in turn, each given the tokens that it drew before."""
        known, parts = dict[int, Tensor](), dict[int, list[Written]]()
        for i, trajectory in enumerate(self.active):
            if trajectory.in_turn:
                known[i], parts[i] = trajectory.whole().clone(), []
                known[i][trajectory.place(trajectory.due())] = self.model.vocab.mask
                if trajectory.request.constraint is not None:
                    self.guides[i] = Guide(trajectory.request.constraint, known[i], self.model.vocab.mask)
        while segments := self._asked(known):
            counts = [len(positions) for _, positions in segments]
            which = torch.repeat_interleave(torch.tensor([i for i, _ in segments]), torch.tensor(counts))
            log_x = self._log_x(which, torch.cat([positions for _, positions in segments]))
            log_x[:, self.model.vocab.mask] = NEVER
            rows = dict(zip([i for i, _ in segments], log_x.split(counts), strict=True))
            drawn = self._drawn_in_turn(segments, rows, known)
            parts = {i: part + drawn.get(i, []) for i, part in parts.items()}
        return {i: self._joined(part) for i, part in parts.items()}

    def _asked(self, numbers: Iterable[int]) -> Segments:
        """What sequences ask for next."""
        asked = [(i, self.active[i].asked()) for i in numbers if self.active[i].error is None]
        return [(i, positions) for i, positions in asked if len(positions)]

    def _drawn_in_turn(
        self, segments: Segments, rows: dict[int, Tensor], known: dict[int, Tensor]
    ) -> dict[int, list[Written]]:
        """Let sequences draw from rows of log x̂ under their rules, and note what they draw in `known`."""
        weights, written = dict[int, Tensor](), dict[int, list[Written]]()
        for i, positions in segments:
            trajectory, rules = self.active[i], self.active[i].rules()
            try:
                place = trajectory.place(positions)
                weights[i] = rows[i] if rules is None else rules(rows[i], place, known[i], self.model.vocab)
            except UserError as error:
                trajectory.stuck(error)
        positions_of = dict(segments)
        for choice, members in self._by_choice([one for one in segments if one[0] in weights]).items():
            chances = choice.chances(torch.cat([weights[i] for i in members]))
            for i, part in zip(members, chances.split([len(weights[i]) for i in members]), strict=True):
                trajectory, place = self.active[i], self.active[i].place(positions_of[i])
                if i in self.guides:
                    try:
                        part, fits = self.guides[i].chances(place, weights[i], choice)
                    except UserError as error:
                        trajectory.stuck(error)
                        continue
                    trajectory.log_weight += 0.0 if trajectory.drafting else fits
                tokens = known[i][place] = trajectory.draw(part).cpu()
                written[i] = [read_off(rows[i], positions_of[i], tokens, self.tops)]
        return written

    def _joined(self, parts: Sequence[Written]) -> Written:
        empty = torch.empty(0, self.tops)
        none = Written(NOTHING, NOTHING, torch.empty(0, dtype=torch.float64), empty.long(), empty)
        return Written(*(torch.cat([getattr(part, f.name) for part in (none, *parts)]) for f in fields(Written)))

    def _write(self, which: Tensor, positions: Tensor, segments: Segments, m: int) -> Written:
        """Tokens for one chunk of rows, which may belong to several sequences."""
        log_x, shaped = self._kept(which, positions) or self._shaped(which, positions, segments)
        tokens, positions_of = torch.zeros(len(which), dtype=torch.int64), dict(segments)
        owners, confined = self._owners(segments) if self.spans else ([], NOTHING)
        for choice, members in self._by_choice(segments).items() if len(confined) < len(which) else ():
            chosen = torch.isin(which, torch.tensor(members))
            uniform = torch.cat([self.active[i].uniform(positions_of[i]) for i in members])
            rows = shaped if chosen.all() else shaped[chosen.to(shaped.device)]
            tokens[chosen] = choice.tokens(rows, uniform).cpu()
        self._redraw(tokens, shaped, segments)
        if len(confined):
            uniform = torch.cat([step.trajectory.uniform(torch.from_numpy(step.start + at)) for step, at in owners])
            tokens[confined] = draw_tokens(owners, shaped[confined.to(shaped.device)], uniform)
        replayed = torch.zeros(len(which), dtype=torch.bool)
        for i, p in segments:
            target = self.active[i].request.target
            if target is not None:
                tokens[which == i] = target[self.active[i].place(p)]
                replayed |= which == i
        law = log_x
        if replayed.any():  # the likelihood of a replay is that of the text under its rules
            law = torch.where(replayed.to(log_x.device)[:, None], shaped, log_x)
        written = read_off(log_x, positions, tokens, m)
        if law is log_x:
            return written
        return replace(written, log_probs=at_tokens(law, tokens.to(law.device)).double().cpu())

    def _shaped(self, which: Tensor, positions: Tensor, segments: Segments) -> tuple[Tensor, Tensor]:
        """The distributions (N, V) of tokens that are written now, without and with the rules of their sequences."""
        log_x = self._log_x(which, positions)
        log_x[:, self.model.vocab.mask] = NEVER  # never written, whatever its probability
        if not self.model.normalised:
            log_x = torch.log_softmax(log_x, -1)  # of a token that is written now
        log_x = self._law(log_x, segments)
        return log_x, self._ruled(log_x, segments)

    def _redraw(self, tokens: Tensor, shaped: Tensor, segments: Segments) -> None:
        """Draw again where a token could complete a banned word with tokens that are written in the same step."""
        start = 0
        for i, positions in segments:
            trajectory, rows = self.active[i], slice(start, start + len(positions))
            start += len(positions)
            rules = trajectory.request.rules
            if rules is None or not rules.phrases or trajectory.request.target is not None or trajectory.error:
                continue
            try:
                self._without_phrases(trajectory, rules, self._known(i), tokens[rows], shaped[rows], positions)
            except UserError as error:
                trajectory.error = error

    def _known(self, i: int) -> list[int]:
        """The canvas of a sequence with what this step has written so far, to be written on."""
        if i not in self.pending:
            whole = self.active[i].whole().clone()
            whole[self.active[i].place(self.active[i].due())] = self.model.vocab.mask
            self.pending[i] = whole.tolist()
        return self.pending[i]

    def _without_phrases(
        self, trajectory: Trajectory, rules: Rules, canvas: list[int], tokens: Tensor, shaped: Tensor, positions: Tensor
    ) -> None:
        """From left to right, each given those before it, with the uniform number that it had."""
        places = trajectory.place(positions)
        for row in places.argsort().tolist():
            place = int(places[row])
            banned = rules.forbidden(canvas, place, self.model.vocab).to(shaped.device)
            if not torch.isneginf(shaped[row, banned]).all():  # also where another token was drawn: one law
                left = shaped[row : row + 1].clone()
                left[0, banned] = NEVER
                rules.some_left(left, places[row : row + 1])
                choice = trajectory.choice(trajectory.request.choice)
                tokens[row] = choice.tokens(left, trajectory.uniform(positions[row : row + 1])).cpu()[0]
            canvas[place] = int(tokens[row])

    def _law(self, log_x: Tensor, segments: Segments) -> Tensor:
        """The distribution that tokens are drawn from: a trajectory may change x̂."""
        if all(type(self.active[i]).law is Trajectory.law for i, _ in segments):
            return log_x
        rows = log_x.split([len(positions) for _, positions in segments])
        return torch.cat([self.active[i].law(part, p) for part, (i, p) in zip(rows, segments, strict=True)])

    def _by_choice(self, segments: Segments) -> dict[Choice, list[int]]:
        """Sequences that draw their tokens the same way, all at once (a replay draws none)."""
        groups: dict[Choice, list[int]] = {}
        for i, _ in segments:
            request = self.active[i].request
            if request.target is None:
                groups.setdefault(self.active[i].choice(request.choice), []).append(i)
        return groups

    def _log_x(self, which: Tensor, positions: Tensor) -> Tensor:
        """Log x̂ (N, V) at positions of sequences, with guidance where it was asked for."""
        device = self.hidden.device
        columns = self.column[which, positions]
        assert (columns >= 0).all(), "a position was not asked for"
        columns = columns.to(device)
        log_x = self.model.log_x(self.hidden[which.to(device), columns])
        twin = self.twin[which]
        guided = torch.nonzero(twin >= 0).squeeze(-1)
        if not len(guided):
            return log_x
        plain = self.model.log_x(self.hidden[twin[guided].to(device), columns[guided.to(device)]])
        scale = torch.tensor([self.active[int(i)].request.guidance for i in which[guided]], device=device)[:, None]
        log_x = log_x.clone()
        log_x[guided.to(device)] = mixture(log_x[guided.to(device)], plain, scale)
        return log_x

    def _ruled(self, log_x: Tensor, segments: Segments, scoring: bool = False) -> Tensor:
        """The same rows under the rules of their sequences; rows are in the order of the segments."""
        if all(trajectory.request.rules is None for trajectory in self.active):
            return log_x
        out, start = [], 0
        for i, positions in segments:
            trajectory, rules = self.active[i], self.active[i].request.rules
            rows = log_x[start : start + len(positions)]
            start += len(positions)
            if rules is not None and (trajectory.ruled or not scoring):
                try:
                    rows = rules(rows, trajectory.place(positions), trajectory.whole(), self.model.vocab)
                except UserError as error:  # it is this sequence that ends, and not the others of the batch
                    trajectory.error = error
            out.append(rows)
        return torch.cat(out)


def mixture(labelled: Tensor, plain: Tensor, scale: Tensor) -> Tensor:
    """Log x̂ under guidance: plain^(1 - scale) labelled^scale, as large in all as the two are together.

    Both sum to 1 where x̂ is a distribution. Where it is a measure (SEDD), its size says how likely a reveal is, and
    that changes with the scale as smoothly as all else: 0 is without the label, 1 with it. A token that is impossible
    with the label stays so, except at 0; one that is impossible without it stays so below 1, and does not gain above 1.
    """
    mixed = plain + scale * (labelled - plain)
    mixed = torch.where(torch.isneginf(plain), torch.where(scale < 1, plain, labelled), mixed)
    mixed = torch.where(torch.isneginf(labelled), torch.where(scale == 0, plain, labelled), mixed)
    size = (1 - scale) * plain.logsumexp(-1, keepdim=True) + scale * labelled.logsumexp(-1, keepdim=True)
    return torch.log_softmax(mixed, -1) + size


def _hidden(
    model: TokenDenoiser,
    z: Tensor,
    t: Tensor,
    present: Tensor | None,
    label: Tensor | None,
    queries: Tensor,
    counts: Sequence[int],
    slots: Sequence[Slot] | None,
) -> Tensor:
    """One network call; on a CPU a few rows at a time, so that activations stay in its caches.

    There rows of similar lengths go together, each part as wide as its longest row: padding costs as much as text.
    """

    def ask(rows: list[int], z: Tensor, t: Tensor, present: Tensor | None, label: Tensor | None, q: Tensor) -> Tensor:
        more = {} if slots is None else {"slots": [slots[i] for i in rows]}
        return model.hidden(z, t, present, label, q, **more)

    device, everyone = model.device, list(range(len(z)))
    if device.type != "cpu" or slots is not None:  # with a cache a row is as long as what is new in it
        return ask(everyone, z.to(device), t, present, label, queries.to(device))
    lengths = torch.full((len(z),), z.shape[1]) if present is None else present.sum(1)
    order = torch.arange(len(z)) if present is None else lengths.argsort(stable=True)
    hidden: Tensor | None = None
    for rows in _parts(order.tolist(), lengths.tolist()):
        width, columns = int(lengths[rows].max()), max(1, *(counts[i] for i in rows))
        exists = None if present is None or (lengths[rows] == width).all() else present[:, :width]
        if len(rows) == len(z):  # no copy, and no other order than without padding
            return ask(everyone, z[:, :width], t, exists, label, queries[:, :columns])
        part = torch.tensor(rows)
        exists = None if exists is None else exists[part]
        said = ask(
            rows, z[part, :width], t[part], exists, None if label is None else label[part], queries[part, :columns]
        )
        if hidden is None:
            hidden = said.new_zeros(len(z), queries.shape[1], said.shape[-1])
        hidden[part, :columns] = said
    assert hidden is not None
    return hidden


def _parts(order: Sequence[int], lengths: Sequence[int]) -> Iterator[list[int]]:
    """Rows in this order, from the shortest on: a part has at most `TOKENS_AT_ONCE` tokens and `PADDING` of padding."""
    rows: list[int] = []
    padding = 0
    for row in order:
        more = len(rows) * (lengths[row] - lengths[rows[-1]]) if rows else 0
        if rows and (padding + more > PADDING or (len(rows) + 1) * lengths[row] > TOKENS_AT_ONCE):
            yield rows
            rows, padding, more = [], 0, 0
        rows.append(row)
        padding += more
    if rows:
        yield rows
