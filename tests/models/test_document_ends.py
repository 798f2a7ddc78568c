"""Documents of their own length: a row is text, an end, padding; all of it is learned, and samples stop at the end.

The vocabulary is one letter, [MASK], [PAD] and [EOS], so that rows of three tokens can be enumerated.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml
from tokenizers import Tokenizer as Backend
from tokenizers import models

from oracles.enumeration import MASK, SCHEDULES, TableNet, ancestral_law, d3pm, nelbo_continuous, random_joint, subs
from oracles.laws import guided, order_law
from support.drawing import p_value
from support.helpers import random_lm, tiny_config
from unmask.config import Config, differences, load_yaml, parse
from unmask.data.loader import eval_batch
from unmask.data.rows import Rows
from unmask.data.tokenization import Tokenizer, bytes_tokenizer
from unmask.evaluation.estimators import strata_nats
from unmask.lm import LM
from unmask.models.masked import MaskedDiffusion
from unmask.process.keys import Keys
from unmask.process.parameterization import Mean
from unmask.process.schedule import ContinuousTime
from unmask.recipes import recipe
from unmask.sampling.params import SAMPLERS
from unmask.training.text import continued
from unmask.types import Batch, Vocab

LETTER, PAD, EOS, LENGTH = 0, 2, 3, 3
VOCAB = Vocab(4, MASK, pad=PAD, bos=EOS, eos=EOS)
START = (MASK,) * LENGTH
DOCUMENTS = [(EOS, PAD, PAD), (LETTER, EOS, PAD), (LETTER, LETTER, EOS), (LETTER,) * 3]  # the last is cut: it goes on
ENDED = ["data.layout=pad", f"data.length={LENGTH}"]


def tokenizer() -> Tokenizer:
    backend = Backend(models.WordLevel({"a": LETTER, "[MASK]": MASK, "[PAD]": PAD, "[EOS]": EOS}, unk_token="a"))
    backend.add_special_tokens(["[MASK]", "[PAD]", "[EOS]"])
    return Tokenizer(backend, VOCAB, "one letter")


def lm_of(net: TableNet, labels: int = 0) -> LM:
    net.vocab = VOCAB
    model = MaskedDiffusion(net, SCHEDULES["log-linear"]).eval()
    names = [f"label {i}" for i in range(labels)]
    return LM(model, tokenizer(), tiny_config(*ENDED), labels=names)


def documents_law() -> dict[tuple[int, ...], float]:
    """A law of documents of 0 to 3 letters."""
    chances = list(random_joint(3).values())[:4]
    return {row: p / sum(chances) for row, p in zip(DOCUMENTS, chances, strict=True)}


def letters(row: tuple[int, ...]) -> int:
    """The length of the text of a row: what stands before the first end."""
    return next((i for i, token in enumerate(row) if token in (EOS, PAD)), len(row))


def lengths(law: dict[tuple[int, ...], float]) -> dict[tuple[int, ...], float]:
    out: dict[tuple[int, ...], float] = {}
    for row, p in law.items():
        out[(letters(row),)] = out.get((letters(row),), 0.0) + p
    return out


def drawn(lm: LM, n: int = 400, **how) -> Counter[tuple[int, ...]]:
    samples = lm.write_samples(n, batch_size=100, **how)
    assert all((s.stopped == "eos") == (len(s.ids) < LENGTH) for s in samples)
    return Counter((len(s.ids),) for s in samples)


# -- samples stop at their end, and their lengths have the enumerated law --------------------------------------------


@pytest.mark.parametrize("how", [{"sampler": "first-hitting"}, {"sampler": "left-to-right"}, {"sampler": "confidence"}])
def test_lengths_of_samples_are_those_of_the_documents(how):
    """One token at a time, a network that knows the law of the documents writes exactly that law."""
    law = documents_law()
    lm = lm_of(TableNet.exact(law))
    assert p_value(drawn(lm, **how), lengths(law)) > 1e-3


CASES = {
    "without a label": (lambda net: ancestral_law(START, net.denoiser(), "log-linear", 2), {"steps": 2}),
    "a label": (
        lambda net: ancestral_law(START, net.denoiser(label=1), "log-linear", 2),
        {"steps": 2, "label": 1},
    ),
    "guided by a label": (
        lambda net: order_law(START, guided(net.denoiser(label=0), net.denoiser(), 2.0), [[0], [1], [2]]),
        {"sampler": "left-to-right", "label": 0, "guidance": 2.0},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_lengths_of_samples_of_any_network(case):
    """A random network that knows nothing of rows: the text ends at the first end or padding that was written."""
    law, how = CASES[case]
    net = TableNet.random(5, labels=2)
    how = dict(how) | ({"label": f"label {how['label']}"} if "label" in how else {})
    assert p_value(drawn(lm_of(net, labels=2), **how), lengths(law(net))) > 1e-3


def ways() -> list[tuple[str, str]]:
    masked = [
        name for name in SAMPLERS if name not in ("simplex", "gaussian", "analytic", "euler", "order", "speculative")
    ]
    methods = [("d3pm", "ancestral"), ("no-carry-over", "ancestral"), ("sedd", "analytic"), ("sedd", "euler")]
    others = [("ar", "left-to-right"), ("plaid", "gaussian"), ("ssd-lm", "simplex")]
    return [*(("mdlm", name) for name in masked), *methods, *others]


@pytest.mark.parametrize(("method", "sampler"), ways())
def test_every_sampler_of_every_method_stops_at_the_end(method, sampler):
    """With one seed, the text that stops is the beginning of the canvas that is written to its end."""
    more = {"ssd-lm": ["simplex.block=4"], "sedd": ["model.time_conditioning=true"]}.get(method, [])
    more += ["model.time_conditioning=true"] if method == "d3pm" else []
    lm = random_lm(bytes_tokenizer(), "data.layout=pad", "data.length=8", f"model.method={method}", *more, scale=0.0)
    vocab = lm.tokenizer.vocab
    how = {"sampler": sampler, "seed": 5, "only": ["a", vocab.eos, vocab.pad]}
    steps = {"steps": 8} if "steps" in SAMPLERS[sampler].takes else {}
    how = {"sampler": sampler, "seed": 5} if method in ("plaid", "ssd-lm") else how
    stopped = lm.write_samples(6, **how, **steps)
    whole = lm.write_samples(6, stop_at_eos=False, **how, **steps)
    assert all(sample.stopped == "length" and len(sample.ids) == 8 for sample in whole)
    for sample, full in zip(stopped, whole, strict=True):
        end = next((i for i, token in enumerate(full.ids) if token in (vocab.eos, vocab.pad)), 8)
        assert sample.ids == full.ids[:end] and sample.stopped == ("eos" if end < 8 else "length")
    if "only" in how:
        assert any(sample.stopped == "eos" for sample in stopped)


def test_rules_know_both_ends():
    lm = random_lm(bytes_tokenizer(), "data.layout=pad", "data.length=8", scale=0.0)
    vocab = lm.tokenizer.vocab
    samples = lm.write_samples(20, only=["a", vocab.eos, vocab.pad], min_length=3)
    assert min(len(sample.ids) for sample in samples) == 3
    text = lm.write_samples(4, prompt="a", suffix="z", length=6)  # the end is given after the suffix
    assert all(len(s.ids) == 5 and s.text.endswith("z") and s.stopped == "length" for s in text)
    assert lm.prompt_canvas("a", 6, "z").ids[-1] == vocab.eos
    assert lm.gap_canvas("a{{2}}z").ids.tolist() == [97, vocab.mask, vocab.mask, 122, vocab.eos]
    assert lm.gap_canvas("a{{2}}").ids.tolist() == [97, vocab.mask, vocab.mask]


# -- what is learned and scored --------------------------------------------------------------------------------------


def rows_of(*counts: int) -> Rows:
    stream = np.full(sum(counts), LETTER, dtype=np.uint16)
    ends, facts = np.cumsum(counts).astype(np.uint64), {"documents": len(counts), "bytes": sum(counts)}
    return Rows(stream, ends, facts, LENGTH, pad=PAD, end=EOS)


def test_rows_have_an_end_and_padding_that_is_learned():
    batch = eval_batch(rows_of(1, 2, 3, 5), range(4))
    assert batch.tokens.tolist() == [list(row) for row in [*DOCUMENTS[1:], DOCUMENTS[-1]]]
    assert batch.present is None and batch.weight().all()
    assert batch.counted().sum(1).tolist() == [2, 3, 3, 3]
    assert rows_of(1, 2, 3, 5).bytes_per_token == pytest.approx((1 + 2 + 3 + 3) / 11)


@pytest.mark.parametrize(  # strata are for predictions that sum to 1
    ("kind", "estimate"), [("mdlm", "times"), ("mdlm", "strata"), ("d3pm's x", "times")]
)
def test_the_bound_of_padded_documents_is_the_enumerated_one(kind, estimate):
    net, n = TableNet.random(8), 20_000
    net.vocab = VOCAB
    parameterization, log_x = {"mdlm": (Mean(), subs), "d3pm's x": (Mean(zero_mask=False), d3pm)}[kind]
    law = ContinuousTime(1e-12)
    model = MaskedDiffusion(net, SCHEDULES["log-linear uncut"], law, parameterization).eval()
    for i, (row, tokens) in enumerate(zip(DOCUMENTS[1:], (2, 3, 3), strict=True)):
        one = eval_batch(rows_of(1, 2, 3), [i])
        batch = replace(one.rows(torch.zeros(n, dtype=torch.int64)), index=torch.arange(n), total=n)
        with torch.no_grad():
            take = model.nats if estimate == "times" else lambda b, k: strata_nats(model, b, k)
            result = take(batch, Keys(i))
        nats = result.nats.double().sum(1)
        truth = nelbo(row, net.denoiser(log_x=log_x), kind)
        assert abs(float(nats.mean()) - truth) < 4.5 * float(nats.std()) / math.sqrt(n)
        assert (result.weight.sum(1) == tokens).all()


def nelbo(row: tuple[int, ...], denoise, kind: str) -> float:
    """The bound of a whole row, its padding included: that is what makes it a bound on -log p of the document."""
    if kind == "mdlm":
        return nelbo_continuous(row, denoise, 0.0, 1.0)
    nodes, weights = np.polynomial.legendre.leggauss(60)
    total = 0.0
    for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):  # of alpha
        for hidden in itertools.product((False, True), repeat=LENGTH):
            z = tuple(MASK if h else token for token, h in zip(row, hidden, strict=True))
            chance = math.prod(1 - node if h else node for h in hidden)
            guess = np.exp(denoise(z, math.nan))
            for i in range(LENGTH):
                if hidden[i]:
                    fold = 1 + node * guess[i, MASK] / (1 - node)
                    mass = sum(guess[i, y] for y in range(4) if y != MASK) / fold
                    total += weight * chance / (1 - node) * (-math.log(guess[i, row[i]] / fold) + mass - 1)
    return total


def test_the_gate_needs_the_padding():
    """Without the nats of padding the chances of all documents would sum to more than 1 for some networks."""
    law = {DOCUMENTS[0]: 0.5, DOCUMENTS[1]: 0.01, DOCUMENTS[2]: 0.01, DOCUMENTS[3]: 0.48}
    denoise = TableNet.exact(law).denoiser()
    whole = sum(math.exp(-nelbo(row, denoise, "mdlm")) for row in DOCUMENTS)

    def without(row: tuple[int, ...]) -> float:
        """The same integral with the positions of padding left out of the sum."""
        seen = [i for i in range(LENGTH) if not (row[i] == PAD and i > row.index(EOS))]
        total = 0.0
        for hidden in itertools.product((False, True), repeat=LENGTH):
            z = tuple(MASK if h else token for token, h in zip(row, hidden, strict=True))
            n = sum(hidden)
            if n:
                weight = math.factorial(n - 1) * math.factorial(LENGTH - n) / math.factorial(LENGTH)
                total -= weight * sum(denoise(z, 0.0)[i, row[i]] for i in seen if hidden[i])
        return total

    assert whole <= 1 + 1e-6
    assert sum(math.exp(-without(row)) for row in DOCUMENTS) > 1.1


def test_an_autoregressive_model_pays_for_the_end_and_not_for_padding():
    lm = random_lm(bytes_tokenizer(), "data.layout=pad", "data.length=8", "model.method=ar")
    eos, pad = lm.tokenizer.vocab.eos, lm.tokenizer.vocab.pad
    row = torch.tensor([[97, 98, eos, pad, pad, pad, pad, pad]])
    padding = torch.arange(8)[None] > 2
    zero = torch.zeros(1, dtype=torch.int64)
    padded = lm.model.nats(Batch(row, zero, 1, padding=padding), Keys(0))
    short = lm.model.nats(Batch(row[:, :3], zero, 1), Keys(0))
    assert padded.weight.sum() == 3
    assert float(padded.nats.sum()) == pytest.approx(float(short.nats.sum()), abs=1e-5)
    assert lm.score("ab").nats == pytest.approx(float(short.nats.sum()), abs=1e-5)


@pytest.mark.parametrize("method", ["bound", "strata", "orders", "plan"])
def test_score_counts_the_end_and_gives_it_the_padding(method):
    lm = random_lm(bytes_tokenizer(), "data.layout=pad", "data.length=6")
    score = lm.score(["ab", "abcdef", "abcdefgh"], method=method)
    assert [text.tokens for text in score.texts] == [3, 6, 9]
    assert score.texts[0].pieces == ["a", "b", "[EOS]"] and score.texts[1].pieces == list("abcdef")
    assert score.tokens == 18 and "ends" in score.protocol["scored"]
    for text in score.texts:
        if text.token_nats is not None:
            assert len(text.token_nats) == text.tokens and sum(text.token_nats) == pytest.approx(text.nats)


def test_score_is_the_bound_of_evaluation():
    """The same row, by `score` and by the rows of a split."""
    net = TableNet.random(4)
    lm = lm_of(net)
    batch = eval_batch(rows_of(2), [0])
    with torch.no_grad():
        rows = strata_nats(lm.model, batch, Keys(0), calls=4000)
    score = lm.score("a", method="strata", calls=4000, draws=1)
    one = eval_batch(rows_of(1), [0])
    with torch.no_grad():
        expected = strata_nats(lm.model, one, Keys(1), calls=4000)
    assert score.tokens == 2 and score.nats == pytest.approx(float(expected.nats.sum()), rel=0.02)
    assert int(rows.weight.sum()) == 3


# -- settings --------------------------------------------------------------------------------------------------------


def test_by_default_for_rows_of_one_document_only():
    assert tiny_config("data.layout=pad").data.has_ends
    assert not tiny_config().data.has_ends
    assert not tiny_config("data.layout=pad", "data.learn_end=false").data.has_ends
    assert not tiny_config("data.layout=pad", "objective.loss=mlm").data.has_ends  # BERT never predicts them
    assert not recipe("lm1b").data.has_ends and not recipe("mosaicbert").data.has_ends  # as the paper has it


def test_saved_configs_of_older_versions_keep_their_meaning():
    tree = yaml.safe_load(tiny_config("data.layout=pad").to_yaml())
    assert parse(tree).data.has_ends
    del tree["data"]["learn_end"]
    assert not parse(tree).data.has_ends
    assert Config.model_validate({"data": {"layout": "pad"}}).data.has_ends  # written by hand


def test_an_older_run_is_continued_as_it_was(tmp_path):
    asked = tiny_config("data.layout=pad")
    lines = asked.to_yaml().splitlines(keepends=True)
    (tmp_path / "config.yaml").write_text("".join(line for line in lines if "learn_end" not in line))
    config = continued(asked, tmp_path)
    assert not config.data.has_ends and not differences(load_yaml(tmp_path / "config.yaml"), config)
    assert continued(asked, tmp_path / "new") == asked
