"""What a user holds: given text stays as it was typed, a seed is a text, tokens add up to texts add up to the whole."""

from __future__ import annotations

import functools
import itertools
import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

import unmask
from support.helpers import SENTENCE, random_lm, trained
from unmask.data.rows import Rows
from unmask.data.tokenization import Tokenizer, bpe_tokenizer, bytes_tokenizer, chars_tokenizer
from unmask.evaluation.likelihood import eval_keys, evaluate
from unmask.lm import LM
from unmask.models.masked import MaskedDiffusion
from unmask.networks.interface import Network, NetworkInput
from unmask.types import Batch, State, UserError, Vocab

CORPUS = ["the naïve café of the 日本 and the 🙂 of the other café, again and again"] * 3
MAKERS = {
    "bytes": bytes_tokenizer,
    "chars": lambda: chars_tokenizer(CORPUS),
    "bpe": lambda: bpe_tokenizer(CORPUS, 290),
}


@functools.cache
def make(kind: str, *overrides: str) -> LM:
    """A random model: it writes any token anywhere, special ones included."""
    tokenizer: Tokenizer = MAKERS[kind]()
    return random_lm(tokenizer, "data.length=40", *overrides, scale=2.0)


@functools.cache
def learnt() -> LM:
    return unmask.load(trained())


def fits(template: str, text: str) -> bool:
    """Whether a text is the template with something in its gaps."""
    given_parts = re.split(r"\{\{\d+\}\}", template)
    return re.fullmatch("(.*)".join(map(re.escape, given_parts)), text, re.DOTALL) is not None


# -- infilling -------------------------------------------------------------------------------------------------------

TEMPLATES = [
    "the {{3}} of {{1}}.",
    "{{2}}naïve 日本{{1}}",
    "🙂{{4}}🙂 ",
    "  {{1}}\n{{1}}\t",
    "{{5}}",
    "žluť {{ 2 }} kůň",
]


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("sampler", ["plan", "ancestral"])
def test_given_text_and_tokens_stay(kind: str, template: str, sampler: str) -> None:
    lm = make(kind)
    canvas = lm.gap_canvas(template)
    mask = lm.tokenizer.vocab.mask
    parts = re.split(r"\{\{[\d ]+\}\}", template)
    if kind == "bpe":  # the space before a gap is the beginning of the gap's first word
        parts[:-1] = [part.removesuffix(" ") for part in parts[:-1]]
    typed = [lm.tokenizer.encode(part) if part else [] for part in parts]
    gaps = [int(k) for k in re.findall(r"\{\{([\d ]+)\}\}", template)]
    want = typed[0] + [i for k, part in zip(gaps, typed[1:], strict=True) for i in [mask] * k + part]
    assert canvas.ids.tolist() == want
    for sample in lm.write([canvas] * 3, steps=5, sampler=sampler, temperature=1.5):
        assert len(sample.ids) == len(want)
        assert mask not in sample.ids
        assert all(b == a for a, b in zip(want, sample.ids, strict=True) if a != mask)
        assert fits(template.replace("{{ 2 }}", "{{2}}"), sample.text)
        assert "[MASK]" not in sample.text


@effort(max_examples=25)
@given(st.lists(st.text(max_size=6), min_size=2, max_size=4), st.integers(0, 2**62))
def test_any_text_around_gaps_stays(parts: list[str], seed: int) -> None:
    if any("{" in part or "}" in part for part in parts):
        return
    for kind in MAKERS:
        lm = make(kind)
        template = "{{1}}".join(parts)
        if any(0xD800 <= ord(c) < 0xE000 for c in template):
            with pytest.raises(UserError, match="UTF-8"):
                lm.gap_canvas(template)
            continue
        if sum(len(part.encode()) for part in parts) + len(parts) > 40:
            continue
        [text] = lm.infill(template, seed=seed, steps=3)
        assert fits(template, text)


def test_infill_uses_what_it_learnt() -> None:
    """One letter is missing somewhere in a sentence that it has seen hundreds of times."""
    sentence = SENTENCE.strip()
    holes = [f"{sentence[:i]}{{{{1}}}}{sentence[i + 1 :]}" for i in range(len(sentence))]
    filled = [learnt().infill(hole, temperature=0)[0] for hole in holes]
    assert filled.count(sentence) >= 0.7 * len(sentence)


def test_braces_that_are_no_gap() -> None:
    lm = make("bytes")
    for wrong in ("a {{x}} b", "a {{}} b", "{{0}}", "{{-1}}", "{{1.5}}", "{{²}}", "{{٣}}", "{{1 2}}", "{{00}}"):
        with pytest.raises(UserError, match="is not a gap"):
            lm.infill(wrong)
    for none in ("no gap", "", "3}}", "{3}", "a _ b"):
        with pytest.raises(UserError, match="no gap to fill"):
            lm.infill(none)
    for long in ("{{41}}", "{{30}}{{11}}", "x" * 40 + "{{1}}", "{{1}}" + "x" * 40, "{{999999999}}"):
        with pytest.raises(UserError, match="40"):
            lm.infill(long)
    with pytest.raises(UserError, match="is not a gap"):
        lm.infill("{{" + "9" * 5000 + "}}")
    assert len(lm.gap_canvas("{{40}}").ids) == 40
    assert len(lm.gap_canvas("{single} {{2}} {").ids) == len("{single} ") + 2 + len(" {")


# -- gaps of unknown length ------------------------------------------------------------------------------------------


class Layout(Network):
    """Knows one text with its gaps by heart: at every position it expects the token that stands there, else anything.

    Its bound on any layout is known without looking at masks: a token in its place costs little, another one a lot.
    """

    def __init__(self, vocab: Vocab, text: str) -> None:
        super().__init__()
        self.vocab, self.hidden_dim, self.time_conditioning = vocab, vocab.size, False
        self.logits = torch.nn.Parameter(torch.zeros(40, vocab.size))
        with torch.no_grad():
            for place, character in enumerate(text):
                if character != "_":
                    self.logits[place, ord(character)] = 9.0

    def condition(self, sigma: torch.Tensor, label: torch.Tensor | None = None) -> None:
        return None

    def forward(self, inputs: NetworkInput) -> tuple[torch.Tensor, None]:
        return self.logits[: inputs.content.shape[1]].expand(len(inputs.content), -1, -1), None

    def head(self, rows: torch.Tensor) -> torch.Tensor:
        return rows

    def cost(self, text: str) -> float:
        """Nats of the letters of a layout of the text."""
        log_p = torch.log_softmax(self.logits[:, :-1].detach().double(), -1)  # [MASK] is the last
        return -sum(float(log_p[place, ord(letter)]) for place, letter in enumerate(text) if letter != "_")


def knows(text: str) -> tuple[LM, Layout]:
    lm = make("bytes")
    network = Layout(lm.tokenizer.vocab, text)
    model = MaskedDiffusion(network, lm.model.schedule)  # type: ignore[arg-type]
    return LM(model.eval(), lm.tokenizer, lm.config), network


@pytest.mark.parametrize("right", range(1, 7))
def test_the_length_under_which_the_given_text_is_likeliest(right: int) -> None:
    lm, network = knows("ab" + "_" * right + "cdef")
    canvas = lm.gap_canvas("ab{{1-6}}cdef")
    assert canvas.lengths == [right] and len(canvas.ids) == 6 + right
    assert canvas.nats == pytest.approx({str(k): network.cost("ab" + "_" * k + "cdef") for k in range(1, 7)}, rel=1e-4)
    [sample] = lm.write([canvas])
    assert sample.gaps == [right] and sample.gap_nats == canvas.nats
    assert sample.as_dict()["gap_nats"] == canvas.nats and sample.as_dict()["gaps"] == [right]
    assert "gap_nats" not in lm.write([lm.gap_canvas("a{{3}}")])[0].as_dict()


@pytest.mark.parametrize("right", [(1, 3), (2, 2), (3, 1), (4, 3)])
def test_two_gaps_of_unknown_length(right: tuple[int, int]) -> None:
    """Layouts of the same total length differ in where the text between the gaps stands."""
    lm, network = knows("ab" + "_" * right[0] + "cd" + "_" * right[1] + "ef")
    canvas = lm.gap_canvas("ab{{1-4}}cd{{1-3}}ef")
    want = {f"{i}+{j}": network.cost(f"ab{'_' * i}cd{'_' * j}ef") for i in range(1, 5) for j in range(1, 4)}
    assert canvas.nats == pytest.approx(want, rel=1e-4) and list(canvas.nats) == list(want)
    assert tuple(canvas.lengths) == right


@pytest.mark.parametrize("timed", [False, True])
def test_the_bound_of_a_length_is_that_of_all_orders(timed: bool) -> None:
    """By enumeration: the integral over mask rates p of the nll of hidden tokens, over p; the gap stays masked.

    A set of n of m tokens is hidden with chance p^n (1 - p)^(m - n). Without time conditioning that is the sum over n
    of the mean nll of n hidden tokens, over all sets of n.
    """
    node, weight = np.polynomial.legendre.leggauss(12)
    rates, weight = (node + 1) / 2, weight / 2
    lm = make("bytes", f"model.time_conditioning={str(timed).lower()}", "data.block_ends=true")
    found = lm.gap_canvas("ab{{1-2}}cd", draws=4096).nats
    for length in (1, 2):
        ids = lm.gap_canvas(f"ab{{{{{length}}}}}cd").ids  # BOS first: it is always seen and never scored
        places = [i for i in range(1, len(ids)) if ids[i] != lm.tokenizer.vocab.mask]
        total = 0.0
        for n in range(1, 5):
            for hidden in itertools.combinations(places, n):
                z = ids.clone()
                z[list(hidden)] = lm.tokenizer.vocab.mask
                t = torch.from_numpy(rates)  # log-linear: the share of masks is the time
                with torch.no_grad():
                    log_x = lm.model.log_x(lm.model.hidden(z.expand(len(t), -1), t))  # type: ignore[operator]
                nll = -sum(log_x[:, i, ids[i]] for i in hidden).double().numpy()
                total += float((weight * rates ** (n - 1) * (1 - rates) ** (4 - n) * nll).sum())
        assert found[str(length)] == pytest.approx(total, rel=0.01)


def test_lengths_are_compared_on_the_same_masks() -> None:
    """A network that sees which letters stand, but not where: no length is better, and none may seem to be."""

    class Bag(Layout):
        def forward(self, inputs: NetworkInput) -> tuple[torch.Tensor, None]:
            seen = torch.nn.functional.one_hot(inputs.content, self.vocab.size).float()
            seen[..., self.vocab.mask] = 0
            return torch.sin(seen.sum(1) @ self.mix)[:, None].expand(-1, seen.shape[1], -1), None

    lm, _ = knows("")
    network = Bag(lm.tokenizer.vocab, "")
    network.mix = torch.randn(259, 259)
    lm = LM(MaskedDiffusion(network, lm.model.schedule).eval(), lm.tokenizer, lm.config)  # type: ignore[arg-type]
    nats = list(lm.gap_canvas("abcdef{{1-5}}ghi").nats.values())
    assert max(nats) - min(nats) < 1e-5 * nats[0]


def test_lengths_need_given_text_and_whole_rows() -> None:
    lm = make("bytes")
    for text in ("{{1-3}}", "{{1-3}}{{2}}"):
        with pytest.raises(UserError, match="needs given text"):
            lm.infill(text)
    with pytest.raises(UserError, match="does not work with a stride"):
        lm.infill("a{{1-3}}", stride=4)
    with pytest.raises(UserError, match="needs given text"):
        make("bytes", "data.block_ends=true").infill("{{1-3}}")
    assert lm.infill("a{{2-2}}", stride=4)[0].startswith("a")
    assert lm.infill("a{{1-3}}b", n=3, seed=1) == [lm.infill("a{{1-3}}b", seed=1 + i)[0] for i in range(3)]


def test_the_length_that_was_learnt() -> None:
    """The trained model has only ever seen "one two three four."."""
    for text, right in [("one {{1-6}} three four.", 3), ("two {{3-8}} four.", 5), ("four.\n{{1-6}}two three", 4)]:
        assert learnt().gap_canvas(text).lengths == [right]


# -- sampling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["plan", "ancestral"])
@pytest.mark.parametrize("model", ["random", "learnt"])
def test_a_seed_is_a_text(sampler: str, model: str) -> None:
    """Sample i of seed s is sample 0 of seed s + i, whatever is sampled beside it.

    Products of other batch shapes may differ in their last bits, so a choice exactly on an edge could fall the other
    way; these seeds have none on one thread.
    """
    lm = make("bytes") if model == "random" else learnt()
    how = {"length": 12, "steps": 7, "sampler": sampler}
    together = lm.write_samples(5, seed=3, **how)
    assert [s.seed for s in together] == [3, 4, 5, 6, 7] and [s.index for s in together] == list(range(5))
    for i, sample in enumerate(together):
        [alone] = lm.write_samples(1, seed=3 + i, **how)
        assert (alone.ids, alone.text, alone.network_calls) == (sample.ids, sample.text, sample.network_calls)
    for size in (1, 2, 4):
        assert [s.ids for s in lm.write_samples(5, seed=3, batch_size=size, **how)] == [s.ids for s in together]
    assert len({s.text for s in together}) > 1


def test_history_does_not_matter() -> None:
    lm = make("chars")
    first = lm.sample(2, seed=1)
    torch.manual_seed(3)
    lm.sample(1, seed=2)
    assert lm.sample(2, seed=1) == first
    assert lm.sample(2, seed=10) != first


@pytest.mark.parametrize("kind", MAKERS)
def test_the_prompt_stays(kind: str) -> None:
    lm = make(kind)
    for prompt in ("the café", "日本 🙂", " ", "ß"):
        for sample in lm.write_samples(2, prompt=prompt, length=30, steps=6):
            seen = prompt.removesuffix(" ") if kind == "bpe" else prompt
            ids = lm.tokenizer.encode(seen) if seen else []
            assert sample.text.startswith(prompt)
            assert sample.ids[: len(ids)] == ids and len(sample.ids) == 30
            assert lm.tokenizer.vocab.mask not in sample.ids


def test_a_space_before_a_gap_is_not_doubled() -> None:
    """GPT-2's way: " word" is one token. The gap may write its space, the given text has one: the result has one."""
    lm = make("bpe")
    canvas = lm.gap_canvas("the {{1}} of")
    word = lm.tokenizer.encode(" the")
    assert len(word) == 1 and lm.joins_spaces and not make("bytes").joins_spaces and not make("chars").joins_spaces
    ids = canvas.ids.clone()
    ids[ids == lm.tokenizer.vocab.mask] = word[0]
    assert lm.text(canvas, ids) == "the the of"
    ids[canvas.ids == lm.tokenizer.vocab.mask] = lm.tokenizer.encode("a")[0]
    assert lm.text(canvas, ids) == "the a of"


def test_block_ends_are_given_as_in_training() -> None:
    lm = make("bytes", "data.block_ends=true")
    bos = lm.tokenizer.vocab.bos
    [sample] = lm.write_samples(1, prompt="ab", length=8)
    assert sample.ids[:3] == [bos, *b"ab"] and sample.text.startswith("ab")
    canvas = lm.gap_canvas("a{{2}}b")
    assert canvas.ids.tolist() == [bos, ord("a"), *[lm.tokenizer.vocab.mask] * 2, ord("b")]
    assert fits("a{{2}}b", lm.infill("a{{2}}b")[0])


def test_calls_are_counted() -> None:
    lm = make("bytes")
    for steps, most in ((1, 1), (3, 3), (1000, 10)):
        [sample] = lm.write_samples(1, length=10, steps=steps)
        assert 1 <= sample.network_calls <= most
    [sample] = lm.write_samples(1, length=10, steps=9, sampler="ancestral")
    assert sample.network_calls == 9


@pytest.mark.parametrize("sampler", ["plan", "ancestral"])
def test_the_single_best_token(sampler: str) -> None:
    lm = make("bytes")
    how = {"length": 16, "steps": 8, "seed": 2, "sampler": sampler}
    coldest = lm.sample(3, temperature=0, **how)
    assert lm.sample(3, top_k=1, **how) == coldest
    assert lm.sample(3, top_p=1e-9, **how) == coldest
    assert lm.sample(3, **how) != coldest
    assert lm.sample(3, top_p=1.0, **how) == lm.sample(3, top_k=10**6, **how) == lm.sample(3, **how)


def test_both_samplers_write_what_was_learnt() -> None:
    """Cool samples of the trained model are made of its letters; of a random one they are not."""
    letters = set(SENTENCE)
    for sampler in ("plan", "ancestral"):
        texts = learnt().sample(4, steps=32, temperature=0.5, sampler=sampler)
        assert all(set(text) <= letters for text in texts)
    assert not all(set(text) <= letters for text in make("bytes").sample(4, temperature=0.5))


def test_watching_sees_every_token_once() -> None:
    lm = make("bytes")
    canvas = lm.prompt_canvas("ab", 12)
    seen: list[State] = []
    samples = lm.write([canvas] * 3, steps=6, batch_size=2, watch=seen.append)
    for row, sample in enumerate(samples):
        states = [state for state in seen if state.row == row]
        written = torch.cat([state.positions for state in states]).tolist()
        assert sorted(written) == list(range(2, 12))
        assert [state.done for state in states] == [False] * (len(states) - 1) + [True]
        assert states[-1].canvas.tolist() == sample.ids
        assert [state.calls for state in states] == list(range(1, len(states) + 1))


def test_wrong_numbers_are_sentences() -> None:
    lm = make("bytes")
    for how in (
        {"steps": 0},
        {"steps": -1},
        {"temperature": -1.0},
        {"temperature": math.nan},
        {"top_k": 0},
        {"top_p": 0.0},
        {"top_p": 2.0},
        {"sampler": "nope"},
        {"batch_size": 0},
        {"length": 0},
        {"length": 41},
        {"n": 0},
        {"n": -3},
        {"seed": 2**63},
        {"seed": -(2**63) - 1},
        {"prompt": "x" * 40},
        {"prompt": "bad \udcff"},
    ):
        with pytest.raises(UserError):
            lm.sample(**how)
        assert not lm.model.training
    for n in (0, -1):
        with pytest.raises(UserError, match="at least 1"):
            lm.infill("{{1}}", n=n)


def test_training_mode_comes_back() -> None:
    lm = random_lm(bytes_tokenizer(), "model.dropout=0.9")
    want = lm.sample(1, length=8)
    lm.model.train()
    assert lm.sample(1, length=8) == want, "no dropout in a sample"
    assert lm.model.training
    with pytest.raises(UserError):
        lm.sample(1, length=8, steps=0)
    assert lm.model.training
    assert lm.score("abc") == lm.score("abc")
    assert lm.model.training


# -- scoring ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MAKERS)
def test_tokens_add_up_to_texts_and_texts_to_the_whole(kind: str) -> None:
    lm = make(kind)
    texts = ["the café", "日本 🙂 and more of the other", "x"]
    whole = lm.score(texts, draws=5)
    assert len(whole.texts) == 3
    for text, part in zip(texts, whole.texts, strict=True):
        ids = lm.tokenizer.encode(text)
        assert part.token_nats is not None and part.pieces is not None
        assert part.tokens == len(ids) == len(part.token_nats) == len(part.pieces)
        assert sum(part.token_nats) == pytest.approx(part.nats, rel=1e-9)
        assert part.bytes == len(text.encode())
        assert part.stderr_nats is not None and part.stderr_data is None
        assert part.as_dict()["bits_per_byte"] == pytest.approx(part.nats / math.log(2) / len(text.encode()))
    assert sum(part.nats for part in whole.texts) == pytest.approx(whole.nats, rel=1e-9)
    assert whole.tokens == sum(part.tokens for part in whole.texts)
    assert whole.bytes == sum(len(text.encode()) for text in texts)
    assert whole.protocol["draws"] == 5 and whole.protocol["bound"] == "continuous"


def test_score_is_evaluate_on_the_same_blocks() -> None:
    lm = make("bytes")
    text = "".join(chr(97 + (i * i) % 26) for i in range(160))  # four blocks of 40
    rows = Rows(np.frombuffer(text.encode(), np.uint8).astype(np.uint16), None, {"documents": 1, "bytes": 160}, 40)
    want = evaluate(lm.model, rows, draws=6, seed=2)
    found = lm.score(text, method="bound", draws=6, seed=2)
    assert found.tokens == want.tokens == 160
    assert found.nats == pytest.approx(want.nats, rel=1e-6)
    assert found.stderr_nats == pytest.approx(want.stderr_nats, rel=1e-4)
    assert found.as_dict()["bits_per_byte"] == pytest.approx(want.as_dict()["bits_per_byte"], rel=1e-6)


def test_a_long_text_is_scored_in_blocks() -> None:
    lm = make("bytes")
    text = "0123456789" * 9 + "abcde"  # blocks of 40, 40 and 15
    whole = lm.score(text, draws=4)
    blocks = lm.score([text[:40], text[40:80], text[80:]], draws=4)
    assert whole.tokens == 95
    assert whole.nats == pytest.approx(blocks.nats, rel=1e-6)
    assert whole.texts[0].token_nats == pytest.approx(
        [nats for part in blocks.texts for nats in part.token_nats or []], rel=1e-4
    )


def test_score_does_not_depend_on_the_batch() -> None:
    """Nor on the padding beside longer texts."""
    lm = make("bytes")
    texts = ["short", "a rather longer text of some words", "mid-size text"]
    want = lm.score(texts, draws=3)
    for size in (1, 2):
        found = lm.score(texts, draws=3, batch_size=size)
        assert [t.nats for t in found.texts] == pytest.approx([t.nats for t in want.texts], rel=1e-4)


def test_what_was_learnt_is_likelier() -> None:
    good, bad = learnt().score([SENTENCE * 2, "ruof eerht owt eno.\n" * 2], draws=32).texts
    assert good.nats + 4 * good.tokens * (good.stderr_nats or 0) < bad.nats


def test_nothing_to_score() -> None:
    lm = make("bytes")
    for texts in ("", [], ["a", ""]):
        with pytest.raises(UserError):
            lm.score(texts)
    for how in ({"draws": 0}, {"batch_size": 0}, {"seed": 2**63}):
        with pytest.raises(UserError):
            lm.score("a", **how)
    with pytest.raises(UserError, match="UTF-8"):
        lm.score("\udcff")
    assert lm.score("a", draws=1).stderr_nats is None


@pytest.mark.parametrize("attend", [False, True])
def test_score_lays_rows_out_as_in_training(attend: bool) -> None:
    """A block-ends model is scored on [BOS] text [EOS]: by hand with `nats` on the same row, text tokens only."""
    extra = ["data.layout=pad", "data.learn_end=false", f"data.attend_pads={str(attend).lower()}"]
    lm = make("bytes", "data.block_ends=true", "data.length=12", *extra)
    vocab = lm.tokenizer.vocab
    row = [vocab.bos, *b"hello", vocab.eos] + [vocab.pad] * 5
    tokens = torch.tensor([row])
    scored = torch.tensor([[False] + [True] * 5 + [False] * 6])
    present = None if attend else torch.tensor([[True] * 7 + [False] * 5])
    batch = Batch(tokens, torch.tensor([0]), 1, scored, present)
    lm.model.eval()
    with torch.no_grad():
        draws = [lm.model.nats(batch, eval_keys(0).at(d)).nats[0, 1:6] for d in range(3)]
    got = lm.score("hello", method="bound", draws=3)
    np.testing.assert_allclose(got.texts[0].token_nats, torch.stack(draws).mean(0).numpy(), rtol=1e-4, atol=1e-5)
    assert got.tokens == 5
    assert [t.tokens for t in lm.score("x" * 23, draws=2).texts] == [23]  # three blocks of at most ten
