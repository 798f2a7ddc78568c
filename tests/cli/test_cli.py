"""The command line: every mistake is one sentence and exit code 2; `--json` is one document and nothing else."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import yaml

from support.helpers import cli, folder, once, refused, run, sentence, settings, trained
from unmask.config import parse
from unmask.recipes import recipe
from unmask.version import __version__

# -- mistakes --------------------------------------------------------------------------------------------------------


@functools.cache
def file(name: str, content: bytes = b"") -> str:
    return str(once(name, lambda path: path.write_bytes(content)))


@functools.cache
def empty_folder(name: str = "nothing here") -> str:
    path = folder() / name
    path.mkdir(exist_ok=True)
    return str(path)


def sample(*args: str) -> list[str]:
    return ["sample", str(trained()), *args]


def evaluate(*args: str) -> list[str]:
    return ["eval", str(trained()), *args]


def train(*overrides: str) -> list[str]:
    return ["train", "tiny", *settings(*overrides), "--quiet", "--out", str(folder() / "never made")]


def missing(name: str = "missing.txt") -> str:
    return str(folder() / name)


BAD_BYTES = b"good text and then \xff\xfe" + b"more" * 100
MISTAKES: dict[str, tuple[Callable[[], list[str]], str]] = {
    # data
    "missing file": (lambda: train(f"data.source={missing()}"), r"missing\.txt does not exist"),
    "missing file without a folder": (lambda: train("data.source=nowhere.txt"), r"nowhere\.txt does not exist"),
    "empty corpus": (lambda: train(f"data.source={file('empty.txt')}"), r"empty\.txt holds no text"),
    "blank corpus": (lambda: train(f"data.source={file('blank.txt', b' ' * 50)}"), r"blank\.txt holds no text"),
    "folder without text": (lambda: train(f"data.source={empty_folder()}"), "nothing here holds no .txt"),
    "shorter than a block": (lambda: train(f"data.source={file('short.txt', b'short')}"), r"short\.txt"),
    "block longer than the text": (lambda: train("data.length=30000"), "shorter than one block.*data.length=30000"),
    "not UTF-8": (lambda: train(f"data.source={file('latin.txt', BAD_BYTES)}"), r"latin\.txt is not UTF-8.*offset 19"),
    "not a corpus": (lambda: train(f"data.source={file('x.zip', b'PK')}"), r"x\.zip is not a corpus"),
    "unknown corpus": (lambda: train("data.source=python-doc"), "did you mean 'python-docs'"),
    "unknown data set": (lambda: train("data.source=nobody/nothing"), "nobody/nothing"),
    "unknown tokenizer": (lambda: train("data.tokenizer=byte"), "did you mean 'bytes'"),
    "missing tokenizer": (lambda: train(f"data.tokenizer={missing('tok.json')}"), r"tok\.json does not exist"),
    "broken tokenizer": (lambda: train(f"data.tokenizer={file('tok2.json', b'{}')}"), r"tok2\.json is damaged"),
    "tokenizer nowhere": (lambda: train("data.tokenizer=nobody/nothing"), "nobody/nothing"),
    "too few tokens": (lambda: train("data.tokenizer=bpe", "data.vocab_size=100"), "at least 259"),
    "no valid split": (lambda: train("data.valid_fraction=0"), "no split 'valid'"),
    # config
    "unknown recipe": (lambda: ["train", "tinny"], "did you mean 'tiny'"),
    "missing recipe file": (lambda: ["train", "mine.yaml"], r"mine\.yaml does not exist"),
    "unknown key": (lambda: train("train.step=3"), "did you mean 'train.steps'"),
    "no override": (lambda: train("train.steps"), "key=value"),
    "zero steps": (lambda: train("train.steps=0"), "train.steps=0"),
    "negative batch": (lambda: train("train.batch_size=-1"), "train.batch_size=-1"),
    "zero length": (lambda: train("data.length=0"), "data.length=0"),
    "negative size": (lambda: train("model.hidden_dim=-64"), "model.hidden_dim=-64"),
    "odd heads": (lambda: train("model.n_heads=3"), "n_heads=3"),
    "unknown schedule": (lambda: train("schedule.name=linar"), "schedule.name='linar'"),
    "crossed sigmas": (lambda: train("schedule.sigma_min=30"), "sigma_min=30"),
    "unknown device": (lambda: train("train.device=abacus"), "unknown device 'abacus'"),
    "unknown sink": (lambda: train("train.sinks=[paper]"), "train.sinks"),
    "huge seed": (lambda: train("seed=99999999999999999999"), "seed=99999999999999999999"),
    "out is a file": (lambda: [*train(), "--out", file("out.txt")], r"out\.txt.*another --out"),
    "out is in a file": (lambda: [*train(), "--out", file("out.txt") + "/run"], r"out\.txt/run.*another --out"),
    # models
    "no such model": (lambda: ["sample", missing("no-model")], "no model at .*no-model"),
    "no such model to score": (lambda: ["eval", missing("no-model")], "no model at .*no-model"),
    "folder without a model": (lambda: ["sample", empty_folder()], "no checkpoint in .*nothing here"),
    "model is a file": (lambda: ["sample", file("model.txt")], r"no checkpoint in .*model\.txt"),
    "which": (lambda: sample("--which", "first"), "'last' or 'best'"),
    "weights": (lambda: sample("--weights", "gold"), "'ema' or 'raw'"),
    "device": (lambda: sample("--device", "abacus"), "unknown device 'abacus'"),
    "device to score on": (lambda: evaluate("--device", "abacus"), "unknown device 'abacus'"),
    # sampling
    "no samples": (lambda: sample("-n", "0"), "-n 0"),
    "fewer than none": (lambda: sample("-n", "-2"), "-n -2"),
    "no denoising steps": (lambda: sample("--steps", "0"), "steps=0"),
    "no length": (lambda: sample("--length", "0"), "length=0"),
    "negative length": (lambda: sample("--length", "-4"), "length=-4"),
    "longer than the model": (lambda: sample("--length", "33"), "length=33 .*32"),
    "prompt longer than the model": (lambda: sample("--prompt", "x" * 40), "prompt has 40 tokens"),
    "prompt as long as the model": (lambda: sample("--prompt", "x" * 32), "nothing to write"),
    "prompt longer than the length": (lambda: sample("--prompt", "abcdef", "--length", "5"), "raise the length"),
    "prompt that is no text": (lambda: sample("--prompt", "\udcff"), "UTF-8"),
    "gap of nothing": (lambda: sample("--infill", "a {{0}} b"), r"\{\{0\}\} is not a gap"),
    "malformed gap": (lambda: sample("--infill", "a {{x}} b"), r"\{\{x\}\} is not a gap"),
    "gap on two lines": (lambda: sample("--infill", "a {{x\ny}} b"), "is not a gap"),
    "superscript gap": (lambda: sample("--infill", "a {{²}} b"), "is not a gap"),
    "no gap": (lambda: sample("--infill", "no gap"), "no gap to fill"),
    "gap longer than the model": (lambda: sample("--infill", "a {{40}}"), "longer than the 32 tokens"),
    "text longer than the model": (lambda: sample("--infill", "{{1}}" + "x" * 40), "41 tokens"),
    "infill with a length": (lambda: sample("--infill", "{{1}}", "--length", "3"), "--length"),
    "infill with a prompt": (lambda: sample("--infill", "{{1}}", "--prompt", "a"), "--prompt or --infill"),
    "temperature": (lambda: sample("--temperature", "-1"), "temperature=-1"),
    "temperature that is no number": (lambda: sample("--temperature", "nan"), "temperature=nan"),
    "top_k": (lambda: sample("--top-k", "0"), "top_k=0"),
    "top_p": (lambda: sample("--top-p", "2"), "top_p=2"),
    "sampler": (lambda: sample("--sampler", "magic"), "unknown sampler 'magic'"),
    "nearly a sampler": (lambda: sample("--sampler", "remaskcap"), "did you mean 'remask-cap'"),
    "steps without a use": (lambda: sample("--sampler", "first-hitting", "--steps", "4"), "does not take steps"),
    "tokens a step": (lambda: sample("--sampler", "left-to-right", "-k", "0"), "k=0"),
    "threshold without a use": (lambda: sample("--threshold", "0.5"), "not take threshold; it belongs to confidence"),
    "threshold": (lambda: sample("--sampler", "margin", "--threshold", "2"), "threshold=2"),
    "too many steps": (lambda: sample("--steps", "99999999999"), "steps=99999999999 must be at most 10,000,000"),
    "order without numbers": (lambda: sample("--sampler", "order", "--order", "1,b"), "--order 1,b"),
    "empty order": (lambda: sample("--sampler", "order", "--order", ""), "--order"),
    "no order": (lambda: sample("--sampler", "order", "--infill", "a{{2}}"), "needs the order"),
    "order twice": (lambda: sample("--sampler", "order", "--order", "1,1", "--infill", "{{2}}"), "position 1 twice"),
    "order too short": (lambda: sample("--sampler", "order", "--order", "1", "--infill", "{{2}}"), "leaves out .* 0"),
    "order too far": (lambda: sample("--sampler", "order", "--order", "0,2", "--infill", "{{2}}"), "names .* 2, but"),
    "order in windows": (lambda: sample("--sampler", "order", "--order", "0", "--stride", "4"), "given order"),
    "eta": (lambda: sample("--sampler", "remask-cap", "--eta", "7"), "eta=7"),
    "window of one time": (lambda: sample("--sampler", "remask-cap", "--window", "0.5"), r"--window 0\.5"),
    "window upside down": (lambda: sample("--sampler", "remask-cap", "--window", "0.1,0.9"), r"\(0\.1, 0\.9\)"),
    "keep": (lambda: sample("--sampler", "remask-loop", "--keep", "1"), "keep=1"),
    "corrections": (lambda: sample("--sampler", "corrector", "--corrections", "0"), "corrections=0"),
    "min_p": (lambda: sample("--min-p", "-1"), "min_p=-1"),
    "only two tokens": (lambda: sample("--only", "ab"), "'ab' is 2 tokens"),
    "ban of nothing": (lambda: sample("--ban", ""), "empty"),
    "ban outside the vocabulary": (lambda: sample("--ban", "#300"), "token 300"),
    "negative min_length": (lambda: sample("--min-length", "-1"), "min_length=-1"),
    "empty stop": (lambda: sample("--stop", ""), "stop="),
    "stop before given text": (lambda: sample("--stop", "x", "--suffix", "y"), "ends in given text"),
    "end of text before given text": (lambda: sample("--stop-at-eos", "--infill", "{{2}}y"), "ends in given text"),
    "label of a model without any": (lambda: sample("--label", "pos"), "trained without labels"),
    "guidance without a label": (lambda: sample("--guidance", "2"), "guidance=2.0 needs a label"),
    "guidance": (lambda: sample("--guidance", "-1", "--label", "a"), "guidance=-1"),
    "no stride": (lambda: sample("--stride", "0"), "stride=0"),
    "stride of a window": (lambda: sample("--stride", "32", "--length", "50"), "stride=32"),
    "endless text": (lambda: sample("--stride", "8", "--length", "99999999999"), "99,999,999,999 tokens"),
    "endless gap": (lambda: sample("--stride", "8", "--infill", "{{999999999}}"), "999,999,999 tokens"),
    "prompt and suffix": (lambda: sample("--prompt", "x" * 20, "--suffix", "y" * 20), "the suffix have 40 tokens"),
    "infill with a suffix": (lambda: sample("--infill", "{{1}}", "--suffix", "a"), "--infill"),
    "range upside down": (lambda: sample("--infill", "a{{6-2}}"), r"\{\{2-6\}\}"),
    "range with nothing beside": (lambda: sample("--infill", "{{2-6}}"), "needs given text"),
    "too many lengths": (lambda: sample("--infill", "a{{1-17}}{{1-17}}"), "more than 256 combinations"),
    "ranges that cannot fit": (lambda: sample("--infill", "x" * 30 + "{{3-9}}"), "even the shortest"),
    "range in windows": (lambda: sample("--infill", "a{{1-2}}", "--stride", "4"), "stride"),
    "two kinds of json": (lambda: sample("--json", "--jsonl"), "either --json .* or --jsonl"),
    "page nowhere": (lambda: sample("--html", missing("no/page.html")), "there is no folder"),
    "page on a folder": (lambda: sample("--html", empty_folder()), "it is a folder"),
    "template and prompt": (
        lambda: sample("--template", file("t.jsonl"), "--prompt", "a"),
        "does not go with --prompt",
    ),
    "template that is not there": (lambda: sample("--template", missing("no.jsonl")), r"no\.jsonl: no such file"),
    "template of nothing": (lambda: sample("--template", file("t.jsonl")), r"t\.jsonl is empty"),
    "batch of nothing": (lambda: sample("--batch-size", "0"), "batch_size=0"),
    "seed of a sample": (lambda: sample("--seed", "99999999999999999999"), "seed=99999999999999999999"),
    # evaluation
    "unknown split": (lambda: evaluate("--split", "nope"), "no split 'nope'"),
    "unknown schedule to score": (lambda: evaluate("--schedule", "linar"), "schedule.name='linar'"),
    "unknown bound": (lambda: evaluate("--bound", "tight"), "objective.bound='tight'"),
    "bound without steps": (lambda: evaluate("--bound", "discrete"), "steps"),
    "steps without the bound": (lambda: evaluate("--bound", "continuous", "--steps", "3"), "--bound discrete"),
    "no steps": (lambda: evaluate("--steps", "0"), "steps=0"),
    "no draws": (lambda: evaluate("--draws", "0"), "draws=0"),
    "no rows": (lambda: evaluate("--rows", "0"), "rows=0"),
    "negative rows": (lambda: evaluate("--rows", "-3"), "rows=-3"),
    "no batch": (lambda: evaluate("--batch-size", "0"), "batch_size=0"),
    "seed of an evaluation": (lambda: evaluate("--seed", "-99999999999999999999"), "seed=-99999999999999999999"),
    "missing data": (lambda: evaluate("--data", missing()), r"missing\.txt does not exist"),
    "empty data": (lambda: evaluate("--data", file("empty.txt")), r"empty\.txt holds no text"),
    "data without a name": (lambda: evaluate("--data", ""), "--data"),
    "data that is no text": (lambda: evaluate("--data", file("latin.txt", BAD_BYTES)), r"latin\.txt is not UTF-8"),
}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for a network that may not be there."""
    monkeypatch.setattr("unmask.data.online.reachable", lambda: False)


@pytest.mark.parametrize("what", MISTAKES)
def test_mistakes_are_one_sentence(what: str) -> None:
    args, piece = MISTAKES[what]
    said = refused(*args())
    assert re.search(piece, said), said
    assert len(said) < 500
    assert not (folder() / "never made" / "checkpoints").exists()


@pytest.mark.parametrize(("ppl", "words"), [(12.5, "12.50 ± 0.25"), (7.7975e75, "7.8e+75 ± 1.56e+74")])
def test_a_large_perplexity_is_not_seventy_digits(ppl: float, words: str) -> None:
    figures = {"perplexity": ppl, "stderr_nats": 0.02, "stderr_data": None, "bits_per_byte": 1.0}
    line = cli.figures_line(figures | {"bits_per_token": 2.0, "tokens": 9})
    assert line == f"perplexity {words} (Monte Carlo), 2.000 bits/token, 1.000 bits/byte, 9 tokens"


@pytest.mark.parametrize(
    "args",
    [["nonsense"], ["train"], ["train", "tiny", "--nope"], ["sample", "x", "-n", "many"], ["eval", "x", "--draws"]],
)
def test_usage_errors_exit_2(args: list[str]) -> None:
    ran = run(*args)
    assert ran.code == 2 and ran.out == "" and ran.err
    assert "Traceback" not in ran.err


def test_ctrl_c_outside_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("unmask.hub.resolve.load", interrupted)
    ran = run(*sample())
    assert ran.code == 130 and ran.out == "" and "Traceback" not in ran.err


def test_a_real_process() -> None:
    """The same through the interpreter: exit code, streams, no traceback."""

    def unmask(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "unmask", *args], capture_output=True, text=True)

    shown = unmask("--version")
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, f"unmask {__version__}\n", "")
    wrong = unmask("sample", missing("no-model"))
    assert wrong.returncode == 2 and wrong.stdout == ""
    assert "no-model" in sentence(wrong.stderr)


# -- what is printed -------------------------------------------------------------------------------------------------


def test_json_of_samples() -> None:
    ran = run(*sample("-n", "3", "--length", "10", "--seed", "5", "--json"))
    found = ran.json()
    assert set(found) == {"samples", "protocol"}
    assert [set(s) for s in found["samples"]] == [{"text", "ids", "seed", "network_calls", "stopped"}] * 3
    assert [s["seed"] for s in found["samples"]] == [5, 6, 7]
    assert all(len(s["ids"]) == 10 and 258 not in s["ids"] for s in found["samples"])
    assert all(1 <= s["network_calls"] <= 10 for s in found["samples"])
    said = found["protocol"]
    assert said["sampler"] == "plan" and said["steps"] == 128 and said["length"] == 10 and said["weights"] == "ema"
    assert run(*sample("-n", "3", "--length", "10", "--seed", "5", "--json")).json() == found
    [second] = run(*sample("--length", "10", "--seed", "6", "--json")).json()["samples"]
    assert second == found["samples"][1]


def test_json_of_an_infill() -> None:
    args = sample("--infill", "one {{3}} three", "--json", "--sampler", "ancestral", "--steps", "4")
    [found] = run(*args).json()["samples"]
    assert found["text"].startswith("one ") and found["text"].endswith(" three")
    assert found["ids"][:4] == list(b"one ") and found["ids"][7:] == list(b" three")
    assert found["network_calls"] == 4


def test_choices_are_a_table_or_json() -> None:
    args = ["choose", str(trained()), "one {{}} three", "--choices", "two", "--choices", "the"]
    shown = run(*args).out.splitlines()
    document = run(*args, "--json").json()
    best = max(document["choices"], key=lambda choice: choice["probability"])
    assert shown[0].split()[:2] == ["choice", "probability"] and best["text"] in "\n".join(shown[1:3])
    assert sum(choice["probability"] for choice in document["choices"]) == pytest.approx(1)
    assert "at least two different choices" in refused("choose", str(trained()), "one {{}}", "--choices", "two")


def test_marginals_are_a_table_or_json() -> None:
    args = ["marginals", str(trained()), "one {{2}} three", "a{{1}}"]
    texts = run(*args, "--top", "2", "--json").json()["texts"]
    assert [text["text"] for text in texts] == args[2:] and [text["gaps"] for text in texts] == [[2], [1]]
    (last,) = texts[1]["positions"]
    lines = run(*args, "--top", "2").out.splitlines()
    assert lines[0] == args[2] and lines[4:6] == ["", args[3]] and lines[6].split() == ["position", "entropy", "tokens"]
    shown = [f"{piece!r} {prob:.3g}" for piece, prob in zip(last["pieces"], last["probs"], strict=True)]
    assert lines[7].split(maxsplit=2)[:2] == ["1", f"{last['entropy']:.3f}"] and all(cell in lines[7] for cell in shown)
    assert "no gap" in refused("marginals", str(trained()), "one two")
    assert "top=0" in refused(*args, "--top", "0")


def test_json_of_a_training_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    args = ["train", "tiny", *settings("train.steps=3", "train.batch_size=2", "eval.rows=2"), "--out", str(out)]
    ran = run(*args, "--json")
    found = ran.json()
    assert found["out"] == str(out) and found["step"] == 3 and found["finished"] is True
    assert found["valid"]["tokens"] == 2 * 16 and found["tokens_per_second"] > 0
    assert "step 3/3" in ran.err, "progress goes to standard error"
    plain = run(*args)
    assert plain.code == 0 and "trained 3 steps" in plain.out


def test_plain_samples_are_the_text_and_nothing_else() -> None:
    ran = run(*sample("--prompt", "one [bold]:cat:", "--length", "20"))
    assert ran.out.startswith("one [bold]:cat:") and ran.out.endswith("\n") and ran.err == ""
    several = run(*sample("-n", "2", "--length", "4"))
    assert several.err.count("seed") == 2 and "seed" not in several.out


def test_sentences_with_brackets_and_colons_stay_as_they_are() -> None:
    assert "[red]:cat:[/red].txt does not exist" in refused(*evaluate("--data", "[red]:cat:[/red].txt"))


@pytest.mark.parametrize("name", ["tiny", "demo", "lm1b"])
def test_printed_config_is_a_recipe(name: str, tmp_path: Path) -> None:
    ran = run("train", name, "train.lr=0.125", "data.source=a b.txt", "--print-config")
    assert ran.code == 0 and ran.err == ""
    made = parse(yaml.safe_load(ran.out))
    assert made == recipe(name).override(["train.lr=0.125", "data.source=a b.txt"])
    path = tmp_path / "mine.yaml"
    path.write_text(ran.out)
    assert run("train", str(path), "--print-config").out == ran.out


@pytest.mark.parametrize("command", [[], ["train"], ["eval"], ["sample"], ["demo"]])
def test_help(command: list[str]) -> None:
    ran = run(*command, "--help")
    assert ran.code == 0 and "Usage" in ran.out


def test_the_demo_shows_what_it_promises(tmp_path: Path) -> None:
    own = settings("data.length=64", "train.steps=2", "train.batch_size=2", "eval.rows=2", "eval.draws=2")
    ran = run("demo", *own, "--out", str(tmp_path / "run"))
    assert ran.code == 0, ran.err
    ppl = {
        name: float(re.search(rf"{name} .*?([\d.]+)", ran.out)[1])  # type: ignore[index]
        for name in ("uniform model", "unigram model", r"masked diffusion \(bound\)")
    }
    assert ppl["uniform model"] == pytest.approx(258, abs=0.1) and 5 < ppl["unigram model"] < 20
    assert "±" in ran.out and "cutoff_mask_rate" in ran.out
    assert ran.out.count("[seed ") == 4
    assert len(re.findall(r"^  This .{1,} is called when the .{1,} of the object", ran.out, re.MULTILINE)) >= 1
    assert f"unmask sample {tmp_path / 'run'} --watch" in ran.out


def test_a_terminal_without_the_characters() -> None:
    """Where only ASCII can be written, other characters appear as their numbers."""
    for args, piece in (
        (sample("--prompt", "é", "--length", "4"), b"\\xe9"),
        (evaluate("--rows", "2"), b"perplexity"),
        (["sample", "ñandú"], b"no model at \\xf1and\\xfa"),
    ):
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="ascii") for _ in range(2))
        with mock.patch.multiple(sys, argv=["unmask", *args], stdout=out, stderr=err):
            with contextlib.suppress(SystemExit):
                cli.main()
            out.flush()
            err.flush()
        assert piece in out.buffer.getvalue() + err.buffer.getvalue()  # type: ignore[attr-defined]


# -- a terminal ------------------------------------------------------------------------------------------------------


def on_terminal(*args: str) -> tuple[int, str]:
    """`unmask ARGS` with a pseudo-terminal for both streams."""
    master, slave = pty.openpty()
    shown: list[bytes] = []

    def drain() -> None:
        while True:
            try:
                data = os.read(master, 65536)
            except OSError:  # the other end is closed
                return
            if not data:
                return
            shown.append(data)

    reader = threading.Thread(target=drain)
    reader.start()
    code = 0
    with os.fdopen(slave, "w") as terminal:
        streams = (mock.patch.object(sys, name, terminal) for name in ("stdout", "stderr"))
        with mock.patch.object(sys, "argv", ["unmask", *args]), next(streams), next(streams):
            try:
                cli.main()
            except SystemExit as stop:
                code = int(stop.code or 0)
    reader.join(10)
    os.close(master)
    return code, b"".join(shown).decode()


@pytest.fixture
def _xterm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("_xterm")
def test_watch_on_a_terminal() -> None:
    code, shown = on_terminal(*sample("-n", "2", "--length", "12", "--steps", "6", "--prompt", "one ", "--watch"))
    assert code == 0 and "Traceback" not in shown
    assert "░░" in shown and "masks left" in shown and "\x1b[" in shown
    plain = run(*sample("-n", "2", "--length", "12", "--steps", "6", "--prompt", "one "))
    assert plain.out.splitlines()[-1] in shown


def test_watch_without_a_terminal() -> None:
    quiet, watched = (run(*sample("-n", "2", "--length", "9", "--json", *more)) for more in ([], ["--watch"]))
    assert watched.code == 0 and "Traceback" not in watched.err
    assert watched.out == quiet.out
    assert run(*sample("--infill", "one {{3}}", "--watch", "--sampler", "ancestral", "--steps", "3")).code == 0


@pytest.mark.usefixtures("_xterm")
def test_training_and_evaluation_on_a_terminal(tmp_path: Path) -> None:
    own = settings("train.steps=6", "train.batch_size=2", "eval.every=3", "eval.rows=2", "sample.every=3", "sample.n=1")
    code, shown = on_terminal("train", "tiny", *own, "--out", str(tmp_path / "run"))
    assert code == 0 and "Traceback" not in shown
    for piece in ("step 6/6", "tokens/s", "valid ppl", "loss", "trained 6 steps"):
        assert piece in shown
    code, shown = on_terminal("eval", str(tmp_path / "run"), "--json", "--rows", "2")
    assert code == 0
    assert json.loads(shown[shown.index("{") :])["tokens"] == 32
