"""Settings: every wrong one is a sentence that names it; rules and stops do what they say; records are true."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from support.writers import EACH_SAMPLER, forced, make
from unmask.lm import LM, Job
from unmask.sampling import SAMPLERS, Rules
from unmask.sampling.params import SamplingParams, tokens_of
from unmask.types import Sample, State, UserError

EOS = 256  # of the bytes tokenizer

# -- mistakes --------------------------------------------------------------------------------------------------------

ALONE: list[tuple[dict[str, Any], str]] = [  # wrong whatever the model is
    ({"seed": 2**63}, "seed=9223372036854775808"), ({"seed": 1.5}, "seed=1.5"), ({"seed": True}, "seed=True"),
    ({"seed": None}, "seed=None"), ({"sampler": "left-to-rigt"}, "did you mean 'left-to-right'"),
    ({"sampler": 5}, "sampler=5"), ({"sampler": ""}, "unknown sampler ''"), ({"steps": "3"}, "steps='3'"),
    ({"steps": 2.0}, "steps=2.0"), ({"k": "x"}, "k='x'"), ({"threshold": "x"}, "threshold='x'"),
    ({"eta": "x"}, "eta='x'"), ({"keep": []}, r"keep=\[\]"), ({"corrections": 1.5}, "corrections=1.5"),
    ({"temperature": "hot"}, "temperature='hot'"), ({"temperature": None}, "temperature=None"),
    ({"temperature": -1}, "temperature=-1"), ({"temperature": math.nan}, "temperature=nan"),
    ({"temperature": math.inf}, "temperature=inf"), ({"temperature": True}, "temperature=True"),
    ({"top_k": 0}, "top_k=0"), ({"top_k": 1.5}, "top_k=1.5"), ({"top_p": 0}, "top_p=0"), ({"top_p": 1.5}, "top_p=1.5"),
    ({"top_p": "x"}, "top_p='x'"), ({"min_p": -0.1}, "min_p=-0.1"), ({"min_p": math.nan}, "min_p=nan"),
    ({"ban": "x"}, "ban='x'"), ({"ban": [1.5]}, r"ban=\[1.5\]"), ({"ban": [None]}, r"ban=\[None\]"),
    ({"ban": ["x"] * 999 + [True]}, r"ban=\['x'.{40,60}\.\.\. must be a list"), ({"allowed": ["a"]}, "allowed="),
    ({"allowed": {"0": ["a"]}}, "allowed="), ({"allowed": {0: "ab"}}, "allowed="),
    ({"allowed": {0: [1.5]}}, r"allowed=\{0: \[1.5\]\}"),
    ({"min_length": -1}, "min_length=-1"), ({"min_length": 0.5}, "min_length=0.5"), ({"label": []}, r"label=\[\]"),
    ({"guidance": -1}, "guidance=-1"), ({"guidance": "x"}, "guidance='x'"), ({"guidance": math.nan}, "guidance=nan"),
    ({"guidance": 1e30}, r"guidance=1e\+30"), ({"stride": "4"}, "stride='4'"), ({"stop": "ab"}, "stop='ab'"),
    ({"stop": [""]}, r"stop=\[''\]"), ({"stop": [5]}, r"stop=\[5\]"), ({"stop_at_eos": "yes"}, "stop_at_eos='yes'"),
    ({"order": ["a"]}, r"order=\['a'\]"), ({"order": [1.0, 0]}, r"order=\[1.0"), ({"order": 3}, "order=3"),
    ({"window": (1.0,)}, r"window=\[1.0\]"), ({"window": (1.0, 0.5, 0)}, "window="), ({"window": "ab"}, "window='ab'"),
    ({"window": ("a", "b")}, "window="),
]  # fmt: skip

WITH_MODEL: list[tuple[dict[str, Any], str]] = [  # n samples after "ab" with 40 tokens in all, of bytes
    ({"steps": 0}, "steps=0"),
    ({"steps": 10**12}, "steps=1000000000000 must be at most 10,000,000"),
    ({"sampler": "ancestral", "steps": -1}, "steps=-1"),
    ({"sampler": "confidence", "steps": 0}, "steps=0"),
    ({"sampler": "corrector", "corrections": 0}, "corrections=0"),
    ({"sampler": "corrector", "corrections": 10**9}, "corrections=1000000000 must be at most 10,000,000"),
    ({"sampler": "corrector", "steps": 5000, "corrections": 2000}, "steps=5000 with corrections=2000 are too many"),
    ({"sampler": "left-to-right", "k": 0}, "k=0"),
    ({"sampler": "confidence", "k": -1}, "k=-1"),
    ({"sampler": "confidence", "threshold": 1.5}, "threshold=1.5"),
    ({"sampler": "margin", "threshold": -1}, "=-1"),
    ({"sampler": "entropy", "threshold": math.nan}, "threshold=nan"),
    ({"sampler": "confidence", "k": 1, "steps": 3}, "either tokens per step"),
    ({"sampler": "confidence", "k": 1, "threshold": 0.5}, "either tokens per step"),
    ({"sampler": "entropy", "threshold": 0.5, "entropy_bound": 0.1}, "or an entropy bound"),
    ({"sampler": "entropy", "entropy_bound": -0.1}, "entropy_bound=-0.1 must be at least 0"),
    ({"entropy_bound": 0.1}, "not take entropy_bound; it belongs to confidence, entropy, margin"),
    ({"sampler": "remask-cap", "eta": 2}, "eta=2"),
    ({"sampler": "remask-cap", "eta": math.nan}, "eta=nan"),
    ({"sampler": "remask-loop", "keep": 1.0}, "keep=1.0"),
    ({"sampler": "remask-cap", "keep": 0.5}, "does not take keep"),
    ({"sampler": "remask-loop", "window": (0.1, 0.9)}, r"window \(0.1, 0.9\)"),
    ({"steps": 5, "sampler": "left-to-right"}, "'left-to-right' does not take steps"),
    ({"k": 2}, "not take k.*left"),
    ({"eta": 0.1}, "'plan' does not take eta; it belongs to remask-cap"),
    ({"order": [0]}, "does not take order"),
    ({"sampler": "first-hitting", "steps": 4}, "does not take steps"),
    ({"corrections": 1}, "belongs to corrector"),
    ({"sampler": "order"}, "needs the order"),
    ({"sampler": "order", "order": [0, 1]}, "leaves out masked position 2"),
    ({"sampler": "order", "order": [*range(37), 36]}, "position 36 twice"),
    ({"sampler": "order", "order": [*range(37), 38]}, "position 38, but there are 38"),
    ({"sampler": "order", "order": [-1, *range(37)]}, "position -1"),
    ({"stride": 0}, "stride=0"),
    ({"stride": 40}, "stride=40"),
    ({"stride": -4}, "stride=-4"),
    ({"stride": 8, "sampler": "order", "order": [0]}, "given order"),
    ({"length": 41}, "length=41.*a stride below 40"),
    ({"length": 0}, "length=0"),
    ({"length": 2}, "the prompt has 2 tokens.*raise the length"),
    ({"suffix": "x" * 38}, "the prompt and the suffix have 40 tokens.*shorten them$"),
    ({"n": 0}, "n=0"),
    ({"n": -1}, "n=-1"),
    ({"seed": 2**63 - 1, "n": 2}, "seed=9223372036854775808"),
    ({"batch_size": 0}, "batch_size=0"),
    ({"label": "pos"}, "trained without labels"),
    ({"label": 0}, "trained without labels"),
    ({"guidance": 2}, "guidance=2 needs a label"),
    ({"stop": ["x"], "suffix": "y"}, "ends in given text"),
    ({"stop_at_eos": True, "suffix": "y"}, "ends in given text"),
    ({"only": ["the cat"]}, "'the cat' is 7 tokens"),
    ({"ban": [""]}, "token in a rule is empty"),
    ({"ban": [259]}, "token 259 is outside"),
    ({"ban": [-1]}, "token -1"),
    ({"allowed": {38: ["a"]}}, r"masked token 38, but there are 38 \(from 0\)"),
    ({"allowed": {-1: ["a"]}}, "token -1"),
    ({"allowed": {0: []}}, "allowed set of position 0 is empty"),
    ({"allowed": {0: ["ab"]}}, "'ab' is 2 tokens"),
    ({"allowed": {0: [258]}}, r"\[MASK\]"),
    ({"ban": list(range(258))}, "every token is banned"),
    ({"ban": ["a", "b"], "allowed": {1: ["a", "b"]}}, "contradiction at position 1.*only 'a', 'b', which is banned"),
    ({"min_length": 3, "allowed": {2: [EOS]}}, "contradiction at position 2.*end of text before min_length"),
    ({"min_length": 1, "ban": [*range(256), 257]}, "ban leaves only the end of text, which min_length forbids"),
    ({"prompt": "\udcff"}, "UTF-8"),
]


def one_sentence(call: Callable[[], object], piece: str) -> None:
    with pytest.raises(UserError, match=piece) as caught:
        call()
    said = str(caught.value)
    assert "\n" not in said and len(said) < 300 and not said.endswith(".")


@pytest.mark.parametrize(("how", "piece"), ALONE, ids=[str(how)[:40] for how, _ in ALONE])
def test_a_wrong_setting_is_a_sentence_that_names_it(how: dict[str, Any], piece: str) -> None:
    one_sentence(lambda: SamplingParams(**how), piece)


@pytest.mark.parametrize(("how", "piece"), WITH_MODEL, ids=[str(how)[:40] for how, _ in WITH_MODEL])
def test_what_cannot_be_done_is_a_sentence_that_names_it(how: dict[str, Any], piece: str) -> None:
    lm = make("bytes")
    seen: list[State] = []
    one_sentence(lambda: lm.sample(**{"prompt": "ab", **how}, watch=seen.append), piece)
    assert not seen, "said before anything is written"
    if not {"n", "batch_size", "length", "suffix", "prompt"} & set(how):
        one_sentence(lambda: lm.check(Job(lm.prompt_canvas("ab"), SamplingParams(**how))), piece)


def test_settings_that_are_right() -> None:
    for how in (
        {"seed": np.int64(3)},
        {"temperature": 0},
        {"temperature": np.float32(0.5)},
        {"top_k": 10**30},
        {"min_p": 0},
        {"sampler": "left-to-right", "k": 10**30},
        {"sampler": "confidence", "k": 10**30},
        {"min_length": 10**30},
        {"steps": 1_000_000},
        {"guidance": 1.0},
        {"stride": 39},
        {"ban": ("a", 98)},
        {"label": None},
        {"window": None},
        {"sampler": "remask-cap", "window": [0.9, 0.1]},
        {"stop": ["x"] * 3},
        {"sampler": "order", "order": range(10)},
        {"seed": -(2**63)},
    ):
        [sample] = make("bytes").write_samples(1, **{"length": 10, **how})
        assert len(sample.ids) == 10 or sample.stopped == "stop"
        SamplingParams(**how).describe()


def test_a_model_that_is_told_the_time_follows_no_timeless_plan() -> None:
    lm = make("bytes", "model.time_conditioning=true")
    for sampler in SAMPLERS:
        how: dict[str, Any] = {"order": [1, 0]} if sampler == "order" else {}
        if sampler in ("left-to-right", "order", "confidence", "entropy", "margin", "gibbs"):
            one_sentence(lambda: lm.infill("a{{2}}", sampler=sampler, **how), "time conditioning")  # noqa: B023
        elif sampler == "speculative":
            one_sentence(lambda: lm.infill("a{{2}}", sampler=sampler), "models of method block")  # noqa: B023
        elif sampler in ("simplex", "gaussian"):
            one_sentence(lambda: lm.infill("a{{2}}", sampler=sampler), "models \\(model.method=")  # noqa: B023
        else:
            assert lm.infill("a{{2}}", sampler=sampler, **how)[0].startswith("a")


@pytest.mark.parametrize(
    ("method", "usual"),
    [
        ("mdlm", "plan"),
        ("d3pm", "ancestral"),
        ("no-carry-over", "ancestral"),
        ("sedd", "ancestral"),
        ("ar", "left-to-right"),
    ],
)
def test_where_no_sampler_is_named_it_is_the_models_own(method: str, usual: str) -> None:
    lm = make("bytes", f"model.method={method}")
    options = SamplingParams()
    assert options.sampler is None and options.settle(lm.model) == SamplingParams(sampler=usual)
    named = SamplingParams(sampler="confidence", k=1)
    assert named.settle(lm.model) is named
    own, same = (lm.write_samples(1, length=10, prompt="ab", seed=3, **how) for how in ({}, {"sampler": usual}))
    assert own[0].ids == same[0].ids and own[0].text.startswith("ab")
    lm.check(Job(lm.prompt_canvas("ab"), options))
    assert options.settle(lm.model).describe()["sampler"] == usual
    if method != "mdlm":
        one_sentence(lambda: lm.sample(prompt="ab", sampler="plan"), usual)
    assert SamplingParams().describe()["sampler"] == "plan"  # of a template that no model has settled yet


def test_a_stream_of_a_model_that_rewrites_shows_nothing_before_the_end() -> None:
    """Without carry-over the last step writes all tokens anew, so that until then nothing is fixed."""
    lm = make("bytes", "model.method=d3pm")
    states: list[State] = []
    [sample] = lm.write_samples(1, length=10, prompt="ab", steps=4, watch=states.append)
    assert [state.fixed for state in states] == [2] * (len(states) - 1) + [10] and len(states) == 4
    assert states[-1].canvas.tolist()[:2] == list(b"ab") and sample.text.startswith("ab")


def test_labels_are_found_by_name_or_number() -> None:
    options = SamplingParams(label="neg", guidance=2.0)
    assert options.label_id(["pos", "neg"]) == 1
    assert replace(options, label=7).label_id(["9", "7"]) == 1
    assert replace(options, label=True).label_id(["false", "true"]) == 1
    one_sentence(lambda: replace(options, label="negg").label_id(["pos", "neg"]), "did you mean 'neg'.*knows pos, neg")
    one_sentence(lambda: options.label_id([]), "without labels")
    one_sentence(lambda: replace(options, label=None).label_id(["pos"]), "needs a label")
    assert SamplingParams().label_id(["pos"]) is None
    one_sentence(lambda: replace(options, label="x").label_id([f"k{i}" for i in range(99)]), r"k19, and 79 more$")


# -- rules -----------------------------------------------------------------------------------------------------------


def test_rules_shape_what_is_written() -> None:
    lm = make("bytes")
    canvas = lm.gap_canvas("a{{3}}bcdef{{9}}")
    how: dict[str, Any] = {"temperature": 0.0, "steps": 4}
    free = lm.write([canvas], **how)[0].ids
    banned = [free[1], free[2], free[3]]
    ruled = lm.write([canvas] * 4, ban=banned, allowed={0: ["x"], 3: ["y", 90]}, temperature=2.0, steps=4)
    for sample in ruled:
        assert sample.ids[1] == ord("x") and sample.ids[9] in (ord("y"), 90)
        written = [token.id for token in sample.tokens if not token.given]
        assert len(written) == 12 and not set(written[1:]) & set(banned)


@pytest.mark.parametrize("least", [1, 3, 4, 7, 12, 50])
def test_min_length_counts_the_tokens_that_are_written(least: int) -> None:
    """Over two gaps: given text between them does not count. A model that wants to end everywhere may end after it."""
    lm = make("bytes")
    canvas = lm.gap_canvas("a{{3}}bcdef{{9}}")

    def eager(log_p: torch.Tensor, positions: torch.Tensor, canvas: torch.Tensor) -> torch.Tensor:
        log_p[:, EOS] += 1000
        return log_p

    [sample] = lm.write([canvas], min_length=least, constrain=eager, sampler="left-to-right")
    written = [token.id for token in sample.tokens if not token.given]
    assert [token == EOS for token in written] == [i >= least for i in range(12)]


def test_words_are_single_tokens() -> None:
    painters = {kind: make(kind).prompt_builder for kind in ("bytes", "chars", "bpe", "wordpiece")}
    assert tokens_of("a", painters["bytes"]) == [97] and tokens_of(5, painters["bytes"]) == [5]
    bpe = painters["bpe"].tokenizer
    assert tokens_of("the", painters["bpe"]) == sorted(bpe.encode("the") + bpe.encode(" the"))
    assert tokens_of(" the", painters["bpe"]) == bpe.encode(" the")
    assert tokens_of("CAT", painters["wordpiece"]) == painters["wordpiece"].encode("cat")
    one_sentence(lambda: tokens_of("é", painters["bytes"]), "'é' is 2 tokens")
    one_sentence(lambda: tokens_of("☃", painters["wordpiece"]), "'☃' is unknown")
    one_sentence(lambda: tokens_of("ж", painters["chars"]), "'ж' is unknown")
    one_sentence(lambda: tokens_of("", painters["bpe"]), "empty")
    assert tokens_of("\ufffd", painters["chars"]) == [0]


def test_a_given_token_outside_its_set_is_named() -> None:
    """Settings count masked tokens only; the record below them counts all positions."""
    lm = make("bytes")
    control = Rules(allowed={0: [98]})
    one_sentence(
        lambda: control.check(lm.gap_canvas("a{{1}}").ids, lm.tokenizer.vocab, lm.tokenizer.piece),
        "position 0 is given as 'a', which its allowed set excludes",
    )


# -- where a text ends -----------------------------------------------------------------------------------------------


def ended(lm: LM, target: bytes | list[int], prompt: str = "", **how: Any) -> Sample:
    """A sample of a model that is made to write these bytes after the prompt."""
    wanted = [*lm.encode(prompt), *target]
    [sample] = lm.write_samples(1, prompt=prompt, length=len(wanted), constrain=forced(wanted), **how)
    return sample


@EACH_SAMPLER
def test_a_text_ends_before_the_first_stop_string(how: dict[str, Any]) -> None:
    """Its ids go on to the token that completed the stop string, and not further, however it was written."""
    lm = make("bytes")
    sample = ended(lm, b"one two three two one two.", "two ", stop=["ee", "three", "x"], **how)
    assert (sample.text, sample.stopped) == ("two one two ", "stop")
    assert bytes(sample.ids) == b"two one two three" and len(sample.tokens) == len(sample.ids)


@EACH_SAMPLER
def test_a_text_ends_at_an_end_of_text(how: dict[str, Any]) -> None:
    lm = make("bytes")
    target = [*b"one two", EOS, *b"three", EOS, *b"more"]
    sample = ended(lm, target, "a", stop_at_eos=True, **how)
    assert (sample.text, sample.stopped, bytes(sample.ids)) == ("aone two", "eos", b"aone two")
    sample = ended(lm, target, "a", **how)
    assert (sample.text, sample.stopped) == ("aone two\nthree\nmore", "length") and len(sample.ids) == 19
    sample = ended(lm, target, "a", stop_at_eos=True, stop=["tw"], **how)
    assert (sample.text, sample.stopped, bytes(sample.ids)) == ("aone ", "stop", b"aone tw")
    sample = ended(lm, target, "a", stop_at_eos=True, stop=["three"], **how)
    assert (sample.text, sample.stopped) == ("aone two", "eos")


def test_what_stops_a_text_and_what_does_not() -> None:
    lm = make("bytes")
    assert ended(lm, b"xyz", "stop", stop=["stop", "px"]).stopped == "length", "what was given does not count"
    assert ended(lm, b"stop", "x", stop=["stop"]).text == "x"
    assert ended(lm, b"abc", stop=["abcd"]).text == "abc"
    assert ended(lm, "日本".encode(), stop=["本"]).text == "日"
    assert ended(lm, "日本".encode(), stop=["日"]).ids == list("日".encode())
    assert ended(lm, [EOS, *b"ab"], "x", stop=["\n"]).text == "x", "an end of text reads as a line break"
    canvas = lm.gap_canvas("{{4}}:{{3}}")
    wanted = [*b"stop", *b":", EOS, *b"ab"]
    [sample] = lm.write([canvas], constrain=forced(wanted), stop=["top"], stop_at_eos=True)
    assert (sample.text, sample.stopped) == ("stop:", "eos"), "only the last gap can end a text"


@pytest.mark.parametrize("k", [1, 4])
def test_stopping_early_saves_network_calls(k: int) -> None:
    lm = make("bytes")
    how: dict[str, Any] = {"sampler": "left-to-right", "k": k}
    calls = [ended(lm, b"ab." + b"x" * 33, stop=stop, **how).network_calls for stop in ([], ["."])]
    assert calls == [36 // k, -(-3 // k)]


# -- records ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timed", ["false", "true"])
@pytest.mark.parametrize(
    "how",
    [
        {"sampler": "plan", "steps": 6},
        {"sampler": "ancestral", "steps": 5, "temperature": 0.5},
        {"sampler": "first-hitting", "top_k": 3},
        {"sampler": "left-to-right", "k": 2},
        {"sampler": "margin", "k": 3},
        {"sampler": "remask-cap", "eta": 0.5, "steps": 8},
        {"sampler": "corrector", "eta": 0.4, "steps": 4},
        {"ban": ["a"], "steps": 5},
    ],
    ids=str,
)
def test_every_token_says_when_it_was_written_and_how_sure_the_network_was(how: dict[str, Any], timed: str) -> None:
    """By hand: the network on the canvas before the step, at the time of the step."""
    lm = make("bytes", f"model.time_conditioning={timed}")
    if timed == "true" and how.get("sampler") in ("left-to-right", "margin"):
        return
    canvas = lm.gap_canvas("one{{6}} two {{9}}")
    states: list[State] = []
    [sample] = lm.write([canvas], watch=states.append, **how)
    before, want = canvas.ids, {}
    for state in states:
        with torch.no_grad():
            hidden = lm.model.hidden(before[None], torch.tensor([state.t], dtype=torch.float64))[0]  # type: ignore[operator]
            log_x = lm.model.log_x(hidden)  # type: ignore[operator]
        for position, token in zip(state.positions.tolist(), state.tokens.tolist(), strict=True):
            if token == lm.tokenizer.vocab.mask:
                want.pop(position)
            else:
                want[position] = (state.step, token, float(log_x[position, token].exp()))
        before = state.canvas
    assert len(sample.tokens) == len(sample.ids) == len(canvas.ids)
    pieces = lm.tokenizer.pieces(sample.ids)
    for position, token in enumerate(sample.tokens):
        assert (token.id, token.piece) == (sample.ids[position], pieces[position])
        assert token.given == (canvas.ids[position] != lm.tokenizer.vocab.mask)
        if token.given:
            assert token.step is None and token.prob is None
        else:
            step, written, prob = want[position]
            assert (token.step, token.id) == (step, written)
            assert token.prob == pytest.approx(prob, rel=1e-4)
    assert sorted(want) == [i for i, token in enumerate(sample.tokens) if not token.given]


def test_the_protocol_says_what_was_used() -> None:
    assert SamplingParams().describe() == {
        "law": "T-step ancestral",
        "sampler": "plan",
        "temperature": 1.0,
        "top_k": None,
        "top_p": None,
        "steps": 128,
    }
    told = SamplingParams(sampler="remask-loop", temperature=0.0, ban=["a"], stride=4, seed=3).describe()
    assert told["eta"] == 0.02 and told["keep"] == 0.9 and told["window"] == (0.55, 0.05) and told["steps"] == 128
    assert told["ban"] == ["a"] and told["stride"] == 4 and told["temperature"] == 0.0 and "stop" not in told
    assert (
        SamplingParams(sampler="confidence", k=3).describe()["k"] == 3
        and "steps" not in SamplingParams(sampler="margin", k=1).describe()
    )
    assert SamplingParams(sampler="left-to-right").describe()["k"] == 1
    assert SamplingParams(sampler="order").describe()["law"] == "a given order", "a template's lines may give the order"
    assert SamplingParams(constrain=forced([1])).describe()["constrain"] == "constrain"
