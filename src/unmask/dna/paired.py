"""log p(alternative) - log p(reference) of two windows, from paired predictions (paper section 3.4 on two rows).

The bound of a row is E[sum over hidden tokens of their nats], over times and masks. Of two windows that differ in a few
bases only a difference is wanted. Three things make its noise small.

1. Both windows have the same times and the same masks: a base of the genome has one uniform number, whatever its
   column. Most terms cancel.
2. The term of the differing bases themselves is rare and large: a base is hidden with chance p and then weighs 1/p. So
   it has separate rows, in which one of the k differing bases, drawn evenly, is certainly hidden. A mask comes up
   in them with chance (hidden ones among the k) / (k p) times its own, so their nats weigh k p / (hidden ones).
3. The term of all other bases is nothing where the differing ones are hidden: both windows are the same then. So in
   its rows one of the k certainly stays visible, with the weight k (1 - p) / (visible ones). That needs alleles of
   one length; others have ordinary masks.

Times are in strata over the draws of a variant. The error is from neighbouring strata, two at a time; as their means
may differ it is too large rather than too small.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ..data.genome.bases import A, N
from ..errors import UserError, choose
from ..evaluation.exact import pseudo_nats, time_of
from ..evaluation.likelihood import refuse_nan
from ..evaluation.uncertainty import standard_errors
from ..lm import LM
from ..models.language_model import LanguageModel
from ..models.masked import as_masked
from ..networks.conjoined import backwards
from ..process import bounds
from ..process.keys import Keys
from ..process.masking import at_tokens
from ..process.schedule import Draw
from ..types import Batch
from .alleles import NONE, Pair
from .strands import complement_of, equivariant, side_by_side

METHODS = {
    "bound": "bound of the window with the reference minus that with the alternative, paired draws",
    "pll": "pseudo-log-likelihood of the windows, each base given all others: not the likelihood of anything",
    "masked": "log p of the bases that differ, hidden together, each given all others: not the likelihood of anything",
}


def law_of(model: LanguageModel, method: str) -> str:
    """The law of a score, for protocols."""
    return "exact log-likelihoods of both windows" if model.exact and method == "bound" else METHODS[method]


def check_method(model: LanguageModel, method: str) -> None:
    """Raise if a model does not support a method."""
    choose(method, METHODS, "method")
    if not model.likelihood:
        raise UserError("this model has no likelihood, so it cannot score variants; give another one")
    if method == "masked" and not model.fills_masks:
        raise UserError("method 'masked' hides a base, which needs a masked diffusion model; use method 'bound'")


@dataclass
class PairedPredictions:
    """Rows with hidden bases, and what is asked about them: sparse, as most positions are asked for nothing."""

    rows: list[np.ndarray] = field(default_factory=list)  # (L,) ids with [MASK] each
    clock: list[int] = field(default_factory=list)  # the entry of `draw` of each row
    row: list[np.ndarray] = field(default_factory=list)  # of each question: its row, ...
    column: list[np.ndarray] = field(default_factory=list)  # ... its column, ...
    token: list[np.ndarray] = field(default_factory=list)  # ... the token whose nats are wanted, ...
    weight: list[np.ndarray] = field(default_factory=list)  # ... how much they count, ...
    answer: list[np.ndarray] = field(default_factory=list)  # ... and for which (pair, draw)

    def ask(self, row: int, columns: np.ndarray, tokens: np.ndarray, weight: float, answer: int) -> None:
        """Questions about one row."""
        self.row.append(np.full(len(columns), row))
        self.column.append(columns)
        self.token.append(tokens)
        self.weight.append(np.full(len(columns), weight))
        self.answer.append(np.full(len(columns), answer))

    def add_row(self, z: np.ndarray, clock: int) -> int:
        """One more row; its number."""
        self.rows.append(z)
        self.clock.append(clock)
        return len(self.rows) - 1


@dataclass(frozen=True)
class PairedScorer:
    """How pairs are scored."""

    lm: LM
    keys: Keys
    method: str = "bound"
    draws: int = 8
    batch_size: int = 32
    both_strands: bool = False

    @property
    def strands(self) -> tuple[bool, ...]:
        """Which strands are read (True = the other one); an equivariant network predicts the same for both."""
        both = self.both_strands and not equivariant(self.lm.model.backbone)
        return (False, True) if both else (False,)

    @torch.no_grad()
    def __call__(self, pairs: Sequence[Pair]) -> tuple[np.ndarray, np.ndarray | None]:
        """(scores (n,), standard errors (n,) or None where one draw cannot tell)."""
        if not pairs:
            return np.zeros(0), np.zeros(0)
        model = self.lm.model
        if self.method == "pll":
            return self._mean(self._pseudo, pairs), np.zeros(len(pairs))
        if self.method == "masked":
            return self._masked(pairs), np.zeros(len(pairs))
        net = as_masked(model)
        if net is not None and net.carry_over:
            return summarise(self._bound(pairs), stratified=True)
        if model.exact:
            return self._mean(functools.partial(self._whole, draw=0), pairs), np.zeros(len(pairs))
        each = [self._mean(functools.partial(self._whole, draw=d), pairs) for d in range(self.draws)]
        return summarise(np.stack(each, 1), stratified=False)

    def _mean(self, scores: Callable[[Sequence[Pair], bool], np.ndarray], pairs: Sequence[Pair]) -> np.ndarray:
        """The mean over strands of a function of (pairs, which strand)."""
        return np.mean([scores(pairs, turned) for turned in self.strands], axis=0)

    # -- rows of the network -----------------------------------------------------------------------------------------

    def _dress(self, rows: Sequence[np.ndarray], turned: bool) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Rows with block ends, padded; which columns exist (None = all); where each went on the other strand."""
        z, present = side_by_side(self.lm, rows)
        if not turned:
            return z, present, None
        turn = backwards(z, present)
        return complement_of(self.lm)[z].gather(1, turn), present, turn

    @property
    def _first(self) -> int:
        """The column of the first base of a row."""
        return 0 if self.lm.prompt_builder.block_ends is None else 1

    def _batch(self, pairs: Sequence[Pair], turned: bool) -> Batch:
        """Windows with the reference, then those with the alternative; a pair shares its random streams."""
        z, present, _ = self._dress([p.ref for p in pairs] + [p.alt for p in pairs], turned)
        bases = (z >= A) & (z < N)
        index = torch.tensor([self.keys.digest(pair.name)[0] >> 33 for pair in pairs])
        return Batch(z, index.repeat(2), 2**31, bases, present, given=~bases)

    # -- the methods -------------------------------------------------------------------------------------------------

    def _whole(self, pairs: Sequence[Pair], turned: bool, draw: int) -> np.ndarray:
        """Nats of whole windows as the model itself draws them, for methods that hide nothing or carry nothing over."""
        batch, nats = self._batch(pairs, turned), []
        for start in range(0, len(batch), self.batch_size):
            part = batch.rows(torch.arange(start, min(start + self.batch_size, len(batch))))
            value = self.lm.model.nats(part.to(self.lm.model.device), self.keys.at(draw)).nats
            nats.append(value.double().sum(-1).cpu())
        refuse_nan(torch.cat(nats), "likelihoods of windows")
        ref, alt = torch.cat(nats).chunk(2)
        return (ref - alt).numpy()

    def _pseudo(self, pairs: Sequence[Pair], turned: bool) -> np.ndarray:
        batch = self._batch(pairs, turned)
        ref, alt = pseudo_nats(self.lm.model, batch, batch.weight(), self.batch_size).sum(-1).chunk(2)
        return (ref - alt).numpy()

    def _masked(self, pairs: Sequence[Pair]) -> np.ndarray:
        """Of substitutions: the differing bases hidden, everything else visible; one row per pair."""
        questions = PairedPredictions()
        shares = []
        for i, pair in enumerate(pairs):
            differing = pair.differing[0]
            z = pair.ref.copy()
            z[differing] = self.lm.tokenizer.vocab.mask
            row = questions.add_row(z, i)
            questions.ask(row, differing, pair.ref[differing], 1.0, i)
            questions.ask(row, differing, pair.alt[differing], -1.0, i)
            shares.append(len(differing) / len(z))
        model = as_masked(self.lm.model)
        assert model is not None
        t = time_of(model.schedule, torch.tensor(shares, dtype=torch.float64))
        return self._answers(questions, t, None, len(pairs))

    def _bound(self, pairs: Sequence[Pair]) -> np.ndarray:
        """(n, draws) differences of the bound."""
        model = as_masked(self.lm.model)
        assert model is not None
        questions, times = PairedPredictions(), []
        for i, pair in enumerate(pairs):
            random = self.keys.stream(pair.name)
            times.append((np.arange(self.draws) + random.random(self.draws)) / self.draws)
            uniform = random.random((self.draws, len(pair.ref) + len(pair.alt) + 1))
            keep = model.law.draw(torch.from_numpy(times[-1]), model.schedule).keep.numpy()
            for d in range(self.draws):
                _ask_draw(questions, pair, uniform[d], 1 - keep[d], i * self.draws + d, self.lm.tokenizer.vocab.mask)
        draw = model.law.draw(torch.from_numpy(np.concatenate(times)), model.schedule)
        return self._answers(questions, draw.t, draw, len(pairs) * self.draws).reshape(len(pairs), self.draws)

    def _answers(self, questions: PairedPredictions, t: Tensor, draw: Draw | None, count: int) -> np.ndarray:
        """(count,) sums of weighted nats, mean over strands. Without a draw nats are -log x̂, scaled to 1."""
        names = ("row", "column", "token", "weight", "answer")
        asked = [np.concatenate(getattr(questions, name)) for name in names]
        row, column, token, weight, answer = (torch.from_numpy(values) for values in asked)
        clock, out = torch.tensor(questions.clock), torch.zeros(count, dtype=torch.float64)
        order = torch.argsort(row, stable=True)
        ends = torch.searchsorted(row[order], torch.arange(len(questions.rows) + 1))
        for start in range(0, len(questions.rows), self.batch_size):
            stop = min(start + self.batch_size, len(questions.rows))
            part = order[int(ends[start]) : int(ends[stop])]
            when = clock[start:stop]
            for turned in self.strands:
                z, present, turn = self._dress(questions.rows[start:stop], turned)
                which, place, target = row[part] - start, column[part] + self._first, token[part]
                if turn is not None:
                    place, target = turn[which, place], complement_of(self.lm)[target]
                nats = self._nats(z, present, t[when], which, place, target, draw, when)
                out.index_add_(0, answer[part], nats * weight[part] / len(self.strands))
        refuse_nan(out, "scores")
        return out.numpy()

    def _nats(
        self,
        z: Tensor,
        present: Tensor | None,
        t: Tensor,
        which: Tensor,
        place: Tensor,
        target: Tensor,
        draw: Draw | None,
        when: Tensor,
    ) -> Tensor:
        """(n,) nats of tokens at places of rows."""
        model = as_masked(self.lm.model)
        assert model is not None
        device = model.device
        hidden = model.hidden(z.to(device), t, present)[which.to(device), place.to(device)]
        tokens = target.to(device)
        if draw is None:
            log_x = torch.log_softmax(model.log_x(hidden), -1)
            return -at_tokens(log_x, tokens).double().cpu()
        position_draw = draw.rows(when[which])
        nll, mass = model.parameterization.target(
            model.backbone.head(hidden), tokens, position_draw.keep.float().to(device), model.vocab.mask
        )
        return bounds.nats(position_draw, nll.cpu(), mass.cpu(), model.parameterization.is_measure).double()


def _ask_draw(questions: PairedPredictions, pair: Pair, uniform: np.ndarray, p: float, answer: int, mask: int) -> None:
    """The rows of one draw: hidden with chance p, by one uniform number for each base of the genome."""
    ref_differing, alt_differing = pair.differing
    ref_uniform, fresh = uniform[: len(pair.ref)], uniform[len(pair.ref) : -1]
    alt_uniform = np.where(pair.partner == NONE, fresh, ref_uniform[pair.partner])
    both = min(len(ref_differing), len(alt_differing))
    alt_uniform[alt_differing[:both]] = ref_uniform[ref_differing[:both]]
    first: int | None = None  # the row of the reference's differing bases, which may serve for the alternative too
    sides = ((1, pair.ref, ref_differing, ref_uniform), (-1, pair.alt, alt_differing, alt_uniform))
    for sign, window, differing, numbers in sides:
        hidden = (numbers < p) & (window != N)
        differing = differing[window[differing] != N]
        k = len(differing)
        if k:
            forced = differing[int(uniform[-1] * k)]
            seen = hidden.copy()
            seen[forced] = True
            asked = differing[seen[differing]]
            shared = sign < 0 and first is not None and pair.aligned and len(asked) == k
            row = first if shared else questions.add_row(np.where(seen, mask, window), answer)
            assert row is not None
            first = row if sign > 0 else None
            questions.ask(row, asked, window[asked], sign * k * p / len(asked), answer)
        others = np.ones(len(window), dtype=bool)
        others[differing] = False
        scale = 1.0
        if pair.aligned and k:
            hidden[differing[int(uniform[-1] * k)]] = False
            scale = k * (1 - p) / (k - int(hidden[differing].sum()))
        asked = np.flatnonzero(hidden & others)
        if len(asked) and scale:
            row = questions.add_row(np.where(hidden, mask, window), answer)
            questions.ask(row, asked, window[asked], sign * scale, answer)


def summarise(values: np.ndarray, stratified: bool) -> tuple[np.ndarray, np.ndarray | None]:
    """(mean, standard error) over draws (n, draws); with strata from neighbours, two (or the last three) at a time."""
    draws = values.shape[1]
    if draws == 1:
        return values[:, 0], None
    if not stratified:
        return values.mean(1), standard_errors(values)
    cuts = list(range(2, draws - 1, 2))
    groups = np.split(values, cuts, axis=1)
    variance = sum(group.shape[1] * group.var(1, ddof=1) for group in groups)
    return values.mean(1), np.sqrt(variance) / draws
