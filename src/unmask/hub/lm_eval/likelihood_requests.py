"""The likelihood of a continuation after its context, and of a whole text, by which the harness compares answers.

For a diffusion model it is the bound on -log p(continuation | context): the context is always visible, only the
continuation is ever masked. A continuation of M tokens has 2^M - 1 sets that can be masked. If that is at most the
number of draws, the bound is the sum over all of them and has no Monte Carlo error, as for most answers of
multiple-choice tasks. Otherwise it is estimated. A model with blocks has the bound of its blocks, and M is that of a
block. For an autoregressive model, and for blocks of one token, the log-likelihood is exact.

Random numbers are named by (seed, context, length of the continuation). So they do not depend on the batch, and answers
of equal length to the same question mask the same positions: the noise that they share cancels in the comparison.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...data.canvas import PromptBuilder
from ...data.documents import storable
from ...errors import UserError, at_least, choose
from ...evaluation import ESTIMATORS, default_method, strata_nats, times_nats
from ...evaluation.estimators import every_set, few_sets
from ...evaluation.exact import time_of
from ...evaluation.likelihood import eval_keys, evaluating, need_likelihood, refuse_nan
from ...evaluation.predictions import diffusion
from ...evaluation.spans import Passage, lay_out, with_end
from ...lm import LM
from ...models.language_model import LanguageModel
from ...models.masked import MaskedDiffusion, as_masked
from ...process.chunks import in_chunks
from ...process.keys import Keys
from ...process.masking import at_tokens
from ...types import Batch

Answer = Callable[[int, float, bool], None]  # (which request, log-likelihood, whether it is the greedy one)


@dataclass
class LikelihoodRequests:
    """A model, and how its bound is estimated."""

    lm: LM
    draws: int = 32  # network rows per continuation, or per block of a text
    estimator: str | None = None  # strata or times; None: the one with the least noise that the model allows
    seed: int = 0
    rows: int = 32  # of a network call
    seen: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("contexts_cut", "continuations_in_windows"), 0))

    def __post_init__(self) -> None:
        if self.estimator is not None:
            choose(self.estimator, ESTIMATORS, "estimator")
        at_least("draws", self.draws)
        at_least("rows", self.rows)
        if self.estimator == "strata" and not self.exact:
            diffusion(self.lm.model, "strata", timeless=True)  # what it refuses is said before anything is read
        self.keys = eval_keys(self.seed)

    @property
    def exact(self) -> bool:
        """Whether nothing is drawn."""
        return self.lm.model.exact

    @property
    def used(self) -> str:
        """The estimator in use."""
        if self.exact:
            return "none: exact"
        return self.estimator or ("strata" if default_method(self.lm.model) == "strata" else "times")

    @property
    def room(self) -> int:
        """The number of tokens of a text that the model can see at once."""
        return room(self.lm.prompt_builder)

    # -- requests ----------------------------------------------------------------------------------------------------

    def pairs(self, pairs: Sequence[tuple[str, str]], answer: Answer) -> None:
        """The log-likelihood of each continuation after its context, and whether it is the greedy one."""
        self._read([self._continued(i, *pair) for i, pair in enumerate(pairs)], answer)

    def texts(self, texts: Sequence[str], answer: Answer) -> None:
        """The log-likelihood of whole texts, in blocks of the model's length, each without the others as context."""
        self._read([self._blocks(i, text) for i, text in enumerate(texts)], answer, greedy=False)

    def _continued(self, number: int, context: str, continuation: str) -> list[Passage]:
        before, after = split(self.lm.prompt_builder, storable(context), storable(continuation))
        if after and not before:
            before = self._prefix()
        parts = list(windows(before, after, self.room, self._given()))
        if len(parts) > 1:
            self.seen["continuations_in_windows"] += 1
        elif parts and len(parts[0][0]) < len(before):
            self.seen["contexts_cut"] += 1
        return [
            Passage(number, [*seen, *asked], list(range(len(seen), len(seen) + len(asked)))) for seen, asked in parts
        ]

    def _blocks(self, number: int, text: str) -> list[Passage]:
        ids, prefix = self.lm.prompt_builder.encode(storable(text)), self._prefix() if text else []
        size = self.room - len(prefix)
        blocks = [ids[i : i + size] for i in range(0, len(ids), size)]
        passages = [Passage(number, [*prefix, *block], None, len(prefix)) for block in blocks]
        return [*passages[:-1], *(with_end(self.lm.prompt_builder, last) for last in passages[-1:])]

    def _given(self) -> int:
        """The number of tokens at the start of a row that the model cannot score, such as BOS."""
        return self.lm.model.unscored if self.lm.prompt_builder.block_ends is None else 0

    def _prefix(self) -> list[int]:
        return start_of_text(self.lm)

    # -- rows --------------------------------------------------------------------------------------------------------

    def _read(self, requests: list[list[Passage]], answer: Answer, greedy: bool = True) -> None:
        """Requests of one or more rows, each answered as soon as possible."""
        need_likelihood(self.lm.model)
        left = [len(passages) for passages in requests]
        nats, same = [0.0] * len(requests), [True] * len(requests)
        for number in (i for i, count in enumerate(left) if not count):
            answer(number, 0.0, True)  # nothing is asked, and nothing is what it writes
        with evaluating(self.lm.model), torch.no_grad():
            for passage, value, right in self._rows([p for passages in requests for p in passages], greedy):
                refuse_nan(np.array([value]), "log-likelihoods")
                nats[passage.text] += value
                same[passage.text] &= right
                left[passage.text] -= 1
                if not left[passage.text]:
                    answer(passage.text, -nats[passage.text], same[passage.text])

    def _rows(self, passages: Sequence[Passage], greedy: bool) -> Iterator[tuple[Passage, float, bool]]:
        model, builder = self.lm.model, self.lm.prompt_builder
        if model.exact:
            order = sorted(passages, key=lambda passage: -len(passage.ids))  # rows of a call are of one length, nearly
            for start in range(0, len(order), self.rows):
                part = order[start : start + self.rows]
                yield from zip(part, *next_tokens(model, builder, part), strict=True)
            return
        net = as_masked(model)
        assert net is not None
        for passage in passages:
            batch, free = lay_out(builder, [passage], 0, 1)
            right = greedy and is_greedy(net, batch, free[0], self.rows)
            yield passage, self._nats(net, passage, batch, free), right

    def _nats(self, model: MaskedDiffusion, passage: Passage, batch: Batch, free: Tensor) -> float:
        """The bound of one row; `batch` holds nothing else."""
        keys = self.keys.fork(_name(passage))
        if self.used == "strata":
            if few_sets(model, free[0], self.draws):
                return float(every_set(model, batch, 0, free[0], self.rows).sum())
            drawn = strata_nats(model, batch, keys, calls=self.draws, free=free, batch_size=self.rows)
            return float(drawn.nats.double().sum())
        return self._times(model, batch, free, keys)

    def _times(self, model: MaskedDiffusion, batch: Batch, free: Tensor, keys: Keys) -> float:
        """The mean over draws, each in a different stratum of time."""
        hidden = None if torch.equal(free, batch.free()) else free  # None: any method can do it
        total = 0.0
        for index in torch.arange(self.draws).split(self.rows):
            copies = replace(batch.rows(torch.zeros_like(index)), index=index, total=self.draws).to(model.device)
            rows = None if hidden is None else hidden.expand(len(index), -1)
            total += float(times_nats(model, copies, keys, rows).nats.double().sum())
        return total / self.draws


def _name(passage: Passage) -> str:
    """The key of a row's random numbers: for a continuation its length and context, for a block its tokens."""
    first = len(passage.ids) if passage.asked is None else passage.asked[0]
    name = f"{passage.ids[:first]} {len(passage.ids)}"
    return "harness " + hashlib.sha256(name.encode()).hexdigest()


def room(builder: PromptBuilder) -> int:
    """The tokens of a text that fit into a row beside BOS and EOS."""
    return builder.capacity


def start_of_text(lm: LM) -> list[int]:
    """The tokens before a text: an end-of-text token for a model that cannot predict the first token."""
    if not lm.model.unscored or lm.prompt_builder.block_ends is not None:
        return []
    vocab = lm.tokenizer.vocab
    token = vocab.eos if vocab.bos is None else vocab.bos
    if token is None:
        raise UserError(
            "this autoregressive model has no start symbol and its tokenizer no end-of-text token, so nothing predicts "
            "a first token; train it with objective.start_token=true"
        )
    return [token]


def split(builder: PromptBuilder, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """The tokens of both, split where the continuation begins; a token that spans both belongs to the continuation."""
    if not continuation:
        return builder.encode(context), []
    whole = builder.encode(context + continuation)
    ids, offsets = builder.tokenizer.offsets(context + continuation)
    if ids != whole:  # a vocabulary with [MASK] as an ordinary word, which we take apart
        return builder.encode(context), builder.encode(continuation)
    first = next((i for i, (_, end) in enumerate(offsets) if end > len(context)), len(ids))
    return ids[:first], ids[first:]


def tail(ids: list[int], most: int) -> list[int]:
    """The last tokens."""
    return ids[max(0, len(ids) - most) :]


def windows(
    context: list[int], continuation: list[int], room: int, least: int = 0
) -> Iterator[tuple[list[int], list[int]]]:
    """(visible tokens, scored tokens): one pair if the continuation fits, else half a row at a time.

    At least `least` tokens are visible. The context is cut from the left.
    """
    step = len(continuation) if len(continuation) <= room - least else max(1, room // 2)
    for start in range(0, len(continuation), max(1, step)):
        asked = continuation[start : start + step]
        yield tail([*context, *continuation[:start]], room - len(asked)), asked


def is_greedy(model: MaskedDiffusion, batch: Batch, free: Tensor, rows: int) -> bool:
    """Whether greedy decoding of the free positions of one row, from left to right, gives its tokens.

    Token i is predicted with the tokens before it visible and the rest masked. A network with time conditioning gets
    the time at which that share of them is masked.
    """
    places = torch.nonzero(free).squeeze(-1)
    n, x = len(places), batch.tokens.to(model.device)
    for i in torch.arange(n).split(rows):
        masked = free & (torch.arange(len(free)) >= places[i][:, None])  # (k, L)
        z = torch.where(masked.to(model.device), model.vocab.mask, x)
        present = None if batch.present is None else batch.present.expand(len(i), -1)
        t = time_of(model.schedule, (n - i).double() / n)
        at = places[i].to(model.device)
        log_x = model.log_x(model.hidden(z, t, present, queries=at[:, None], clean=x.expand(z.shape))[:, 0])
        if not torch.equal(_likeliest(log_x, model.vocab.mask), x[0, at]):
            return False
    return True


def next_tokens(
    model: LanguageModel, builder: PromptBuilder, passages: Sequence[Passage]
) -> tuple[list[float], list[bool]]:
    """-log p of the scored tokens of each row, and whether each of them is the most likely next one."""
    batch, _ = lay_out(builder, passages, 0, len(passages))
    masked = as_masked(model)  # in blocks of one token
    x, asked = batch.tokens.to(model.device), batch.counted() if masked is None else batch.weight()
    places = [torch.nonzero(row).squeeze(-1) for row in asked]
    most = max(map(len, places))
    columns = torch.stack([torch.cat([row, row[-1:].expand(most - len(row))]) for row in places]).to(x.device)
    counts = torch.arange(most) < torch.tensor([len(row) for row in places])[:, None]  # (B, M): not a repetition
    net: Any = model.denoiser()
    if masked is None:
        hidden = net.hidden(x, torch.zeros(len(x)), queries=columns)
    else:
        hidden = masked.hidden(torch.full_like(x, model.vocab.mask), torch.ones(len(x)), queries=columns, clean=x)

    def judge(rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        log_x = net.log_x(rows)
        return -at_tokens(log_x, targets), _likeliest(log_x, model.vocab.mask) == targets

    scored = counts.to(x.device)
    nll, right = in_chunks(judge, model.vocab.size, hidden[scored], x.gather(1, columns)[scored])
    sizes = counts.sum(1).tolist()
    nats = [float(part.double().sum()) for part in nll.cpu().split(sizes)]
    return nats, [bool(part.all()) for part in right.cpu().split(sizes)]


def _likeliest(log_x: Tensor, mask: int) -> Tensor:
    """(N,) the most likely token of each row that is not [MASK]."""
    return log_x.index_fill(-1, torch.tensor([mask], device=log_x.device), -math.inf).argmax(-1)
