"""Shared by the system tests: a text that is easy to learn, a network of a few thousand weights, the command line.

Training happens once a session (`trained`), by the worker that asks first; other tests copy its folder. Child
processes that get killed are forked from a server that has imported torch already, so that each of them starts in a
moment instead of seconds.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import typer
from filelock import FileLock
from torch import nn

from unmask import cli
from unmask.config import Config
from unmask.data.rows import Rows
from unmask.data.tokenization import Tokenizer
from unmask.lm import LM
from unmask.models import registry
from unmask.recipes import with_overrides
from unmask.types import Vocab

SENTENCE = "one two three four.\n"
NETWORK = ["model.hidden_dim=16", "model.n_blocks=1", "model.n_heads=2", "model.cond_dim=8"]
TEXT = ["data.tokenizer=bytes", "data.length=16"]


@functools.cache
def folder() -> Path:
    """A folder for the whole session and all its workers: the text, the cache of tokens, the trained run."""
    return Path(os.environ["UNMASK_TESTS_FOLDER"])


def once(name: str, make: Callable[[Path], object]) -> Path:
    """The path of this name in the folder of the session; the first worker that asks for it makes it."""
    path, made = folder() / name, folder() / f"{name}.made"
    with FileLock(folder() / f"{name}.lock"):
        if not made.exists():
            make(path)
            made.touch()
    return path


def train_once(name: str, *arguments: str) -> Path:
    """The run of `unmask train ARGUMENTS`, trained once a session. Do not write into it."""

    def train(out: Path) -> None:
        ran = run("train", *arguments, "--out", str(out), "--quiet")
        assert ran.code == 0, ran.err

    return once(name, train)


@functools.cache
def text_file() -> Path:
    """Twenty bytes again and again: what a masked byte was can be read off its neighbours."""
    return once("sentence.txt", lambda path: path.write_text(SENTENCE * 1000))


def settings(*more: str) -> list[str]:
    """Overrides of the recipe `tiny` for runs of a second."""
    return [f"data.source={text_file()}", f"data.cache={folder() / 'cache'}", *TEXT, *NETWORK, *more]


TRAINED = [
    "data.length=32",
    "model.hidden_dim=32",
    "model.dropout=0.05",
    "train.steps=300",
    "train.lr=0.007",
    "train.ema=0.97",
    "train.checkpoint_every=150",
    "train.keep_last=3",
    "eval.every=150",
    "eval.rows=24",
    "sample.recommended=none",  # laws are tested by what it writes
    "seed=1",
]


@functools.cache
def trained() -> Path:
    """A finished run with checkpoints at 150 and 300 steps. Do not write into it: `shutil.copytree` it."""
    return train_once("trained", "tiny", *settings(*TRAINED))


# -- the command line ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Standard output as the one JSON document that it must be."""
        assert self.code == 0, self.err
        return json.loads(self.out)


command_tree = functools.cache(typer.main.get_command)  # nine tenths of a call; `cache_clear` where options are added


def run(*args: str) -> Ran:
    """`unmask ARGS` in this process."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", ["unmask", *args]),
        mock.patch.object(typer.main, "get_command", command_tree),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    return Ran(code, out.getvalue(), err.getvalue())


def refused(*args: str) -> str:
    """The sentence with which `unmask ARGS` is refused: exit code 2, one line, nothing else anywhere."""
    ran = run(*args)
    assert ran.code == 2, f"exit code {ran.code}\n{ran.out}\n{ran.err}"
    assert ran.out == ""
    return sentence(ran.err)


def sentence(err: str) -> str:
    """What standard error says, if it is one sentence of ours."""
    assert "Traceback" not in err
    assert err.startswith("unmask: ") and err.endswith("\n") and err.count("\n") == 1, err
    return err.removeprefix("unmask: ").rstrip("\n")


def zero_shot_sets(root: Path) -> Path:
    """The seven sets of the paper's zero-shot table, a few lines each, as they are distributed."""
    sentences = [f" it was n't the N cats of {name} 's house \n" for name in ("mr. smith", "<unk>", "the mill")]
    papers = json.dumps({"article_id": "1", "article_text": ["we show that x @xmath0 .", "it ( holds ) ."] * 20})
    files = {
        "ptb/ptb.valid.txt": "".join(sentences * 8),
        "wikitext2/valid.txt": " \n = A = \n \n A b . \n" * 40,
        "lm1b/test.txt": 'He said : " no , " .\n' * 30,
        "lambada/test.jsonl": '{"text": "a “b” c"}\n' * 40,
        "ag_news/test.csv": '"3","A title","Some text , here ."\n' * 30,
        "scientific_papers/pubmed_val.txt": papers + "\n",
        "scientific_papers/arxiv_val.txt": papers + "\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


# -- processes that may be killed ------------------------------------------------------------------------------------


@functools.cache
def _server() -> Any:
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["unmask.cli", "unmask.cli.sample", "unmask.training.text", "torch._dynamo"])
    return context


def start(args: list[str], err: Path, before: Callable[..., None] | None = None, *given: Any) -> BaseProcess:
    """`unmask ARGS` in a process of its own, both streams into a file; `before(*given)` runs there first."""
    process: BaseProcess = _server().Process(target=_child, args=(args, str(err), before, given))
    process.start()
    return process


def _child(args: list[str], err: str, before: Callable[..., None] | None, given: tuple[Any, ...]) -> None:
    handle = os.open(err, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    torch.set_num_threads(1)
    if before is not None:
        before(*given)
    sys.argv = ["unmask", *args]
    cli.main()


def _rank(rank: int, size: int, port: int) -> None:
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in own.items()})


def run_together(processes: int, args: list[str], err: Path) -> None:
    """`unmask ARGS` in processes of one world, as torchrun starts them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = [start(args, err, _rank, rank, processes, port) for rank in range(processes)]
    for process in started:
        process.join(120)
    assert [process.exitcode for process in started] == [0] * processes, err.read_text()


# -- small models ----------------------------------------------------------------------------------------------------


def tiny_config(*overrides: str) -> Config:
    """The config of a network of a few thousand weights."""
    return with_overrides("tiny", [*TEXT, *NETWORK, *overrides])


def random_model(config: Config, vocab: Vocab, scale: float = 1.0, n_labels: int = 0) -> Any:
    """A model whose every weight is random: a fresh one says nothing but "all tokens alike"."""
    torch.manual_seed(7)
    model = registry.model(config, vocab, n_labels)
    for name, p in model.named_parameters():
        if p.ndim == 2:
            nn.init.normal_(p, std=scale / p.shape[1] ** 0.5)
        elif name.endswith("bias"):
            nn.init.normal_(p, std=0.1)
    return model.eval()


def random_lm(tokenizer: Tokenizer, *overrides: str, scale: float = 1.0) -> LM:
    """A random model with a tokenizer."""
    config = tiny_config(*overrides)
    return LM(random_model(config, tokenizer.vocab, scale), tokenizer, config)


def random_rows(vocab: Vocab, n: int, length: int, *, padded: bool = False, seed: int = 0) -> Rows:
    """Rows of random ordinary tokens; padded rows have from 1 to `length` of them."""
    rng = np.random.default_rng(seed)
    ordinary = [token for token in range(vocab.size) if token not in (vocab.mask, vocab.pad)]
    lengths = rng.integers(1, length + 1, n) if padded else np.full(n, length)
    stream = rng.choice(ordinary, int(lengths.sum())).astype(np.uint16)
    ends = np.cumsum(lengths).astype(np.uint64) if padded else None
    facts = {"documents": n, "bytes": 2 * len(stream)}
    return Rows(stream, ends, facts, length, pad=vocab.pad)
