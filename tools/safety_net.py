"""A safety net for refactoring: record what the program does, and compare two recordings.

python tools/safety_net.py record OLD.json --work OLD    train tiny runs, ask everything of them, write down answers
python tools/safety_net.py record NEW.json --runs OLD    the same questions to runs that are there already
python tools/safety_net.py compare OLD.json NEW.json     exit code 1 if something differs

Only what users see is touched: the command line, the files of a run, the HTTP API, and `unmask.load`, `unmask.recipe`
and the methods of a loaded model. So one script runs on old and on new code; PYTHONPATH says on which.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gzip
import hashlib
import http.client
import io
import json
import math
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

SHARED = Path("/work/shared/data")
VOLATILE = re.compile(
    r"(^|_)(seconds|secs|created|version|versions|machine|host|cpu|date|minutes|memory|hours|commit|duration)(_|$)|^(wall_)?time$|^Sec/"
    r"|per_second|^(python|platform|threads|pid|address)$"
)
REQUEST_ID = re.compile(r"^[a-z]+-[0-9a-f]{8,}$")
RELATIVE, ABSOLUTE = 1e-4, 1e-6
TRAINING = ("train", "finetune", "resume", "reproduce")  # groups that --runs leaves out


# -- materials: everything is written here, the same each time -------------------------------------------------------

NOUNS = ["cat", "dog", "bird", "king", "child", "river", "stone", "house", "lamp", "storm"]
VERBS = ["sees", "finds", "keeps", "wants", "loses", "paints", "follows", "forgets"]
KINDS = ["red", "old", "small", "quiet", "bright", "sad", "lucky", "tall"]


def sentences(n: int, seed: int) -> list[str]:
    """Simple English that is easy to learn."""
    rng = random.Random(seed)
    pick = rng.choice
    return [f"the {pick(KINDS)} {pick(NOUNS)} {pick(VERBS)} the {pick(KINDS)} {pick(NOUNS)}." for _ in range(n)]


def bases(n: int, seed: int) -> str:
    """Bases that repeat a motif with mistakes."""
    rng = random.Random(seed)
    return "".join(rng.choice("ACGT") if rng.random() < 0.4 else "ACGTTGCAAC"[i % 10] for i in range(n))


def write(path: Path, text: str) -> None:
    """A file, with its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def materials(data: Path) -> None:
    """All data sets of the recordings."""
    write(data / "text.txt", "\n".join(sentences(1500, 0)) + "\n")
    write(data / "other.txt", "\n".join(sentences(40, 1)) + "\n")
    rows = []
    for i, line in enumerate(sentences(240, 2)):
        rows.append(json.dumps({"text": line.upper() if i % 2 else line, "kind": "loud" if i % 2 else "soft"}))
    write(data / "labels.jsonl", "\n".join(rows) + "\n")
    genome = {"chr1": bases(6000, 0), "chr2": bases(3000, 1)[:1500] + "N" * 60 + bases(1440, 2).lower()}
    write(data / "genome.fa", "".join(f">{name} made up\n{text}\n" for name, text in genome.items()))
    one, lines = genome["chr1"], ["##fileformat=VCFv4.2", "#CHROM\tPOS\tID\tREF\tALT"]
    for i, at in enumerate((40, 700, 1500, 2900, 5990)):
        old = one[at - 1]
        lines.append(f"chr1\t{at}\tv{i}\t{old}\t{'ACGT'[('ACGT'.index(old) + 1) % 4]}")
    lines.append(f"chr1\t3000\tdel\t{one[2999:3002]}\t{one[2999]}")
    lines.append(f"chr1\t3100\tins\t{one[3099]}\t{one[3099]}GA,{'A' if one[3099] != 'A' else 'C'}")
    lines.append("chr1\t3200\twrong\tN\tA")
    lines.append("chr9\t10\tnowhere\tA\tC")
    write(data / "some.vcf", "\n".join(lines) + "\n")
    write(data / "seqs.fa", "".join(f">s{i}\n{bases(50 + 7 * i, i + 5)}\n" for i in range(5)))
    write(data / "peaks.bed", "chr1\t100\t140\tp0\nchr2\t200\t260\tp1\n")
    template = [
        {"text": "the {{3}} cat {{2}}.", "n": 2, "id": "cat"},
        {"prompt": "the old ", "length": 16, "sampler": "confidence", "steps": 4, "seed": 7},
        {"suffix": "stone.", "length": 16, "ban": ["q"], "temperature": 0.8},
        {"text": "the {{2}} dog", "allowed": {"0": ["a", "b"], "1": ["t"]}},
        {"text": "no gap", "wrong": 1},
    ]
    write(data / "template.jsonl", "".join(json.dumps(line) + "\n" for line in template))
    spans = [{"text": "the red cat.", "span": [4, 7]}, {"text": "the old dog.", "span": [[0, 3], [8, 11]]}]
    write(data / "spans.jsonl", "".join(json.dumps(line) + "\n" for line in spans))
    questions = [
        {"q": f"the {noun}", "choices": [" sees", " keeps", " forgets"], "gold": i % 3} for i, noun in enumerate(NOUNS)
    ]
    write(data / "harness/questions.jsonl", "".join(json.dumps(line) + "\n" for line in questions))
    task = {
        "task": "net_choice", "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data / "harness/questions.jsonl")}},
        "test_split": "test", "output_type": "multiple_choice", "doc_to_text": "{{q}}", "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{gold}}", "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }  # fmt: skip
    write(data / "harness/task.yaml", json.dumps(task))
    heads(data)
    bert(data / "bert")


def heads(data: Path) -> None:
    """The first rows of real tasks."""
    for path, split, n in (("SST-2", "train", 60), ("SST-2", "dev", 24), ("RTE", "train", 40), ("RTE", "dev", 20)):
        source = SHARED / "glue" / path / f"{split}.tsv"
        if source.is_file():
            with source.open(encoding="utf-8") as file:
                write(
                    data / "glue" / path / f"{split}.tsv",
                    "".join(line for line, _ in zip(file, range(n + 1), strict=False)),
                )
    for split in ("train", "dev", "test"):
        source = SHARED / "gue/tf_0" / f"{split}.csv.gz"
        if source.is_file():
            with gzip.open(source, "rt", encoding="utf-8") as file:
                write(
                    data / "gue/tf_0" / f"{split}.csv", "".join(line for line, _ in zip(file, range(31), strict=False))
                )
    for name in ("ptb", "lambada"):
        for source in sorted((SHARED / "text" / name).glob("*")):
            with source.open(encoding="utf-8") as file:
                write(
                    data / "sets" / name / source.name, "".join(line for line, _ in zip(file, range(60), strict=False))
                )


def bert(folder: Path) -> None:
    """A random BERT of transformers, with a vocabulary of letters and words."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz.,'"]
    words += [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"] + ["the", *NOUNS, *VERBS, *KINDS]
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        pad_token_id=0,
    )
    with contextlib.redirect_stderr(io.StringIO()):
        BertForMaskedLM(config).save_pretrained(folder)
    write(folder / "vocab.txt", "\n".join(words) + "\n")


# -- runs -----------------------------------------------------------------------------------------------------------

SMALL = [
    "data.length=32", "model.hidden_dim=32", "model.n_blocks=2", "train.steps=8", "train.batch_size=8",
    "train.warmup=2", "train.lr=0.01", "train.log_every=1", "train.checkpoint_every=4", "train.device=cpu",
    "train.ema=0.9", "eval.every=4", "eval.rows=8", "eval.draws=2",
]  # fmt: skip
TEXT = [*SMALL, "model.n_heads=2", "model.cond_dim=16", "data.tokenizer=chars", "sample.every=4", "sample.n=1"]
BASES = [*SMALL, "data.length=64", "model.hidden_dim=16", "train.precision=float32", "train.micro_batch_size=null"]
TEXTS: dict[str, list[str]] = {
    "mdlm": [],
    "mdlm-dropout": [
        "model.dropout=0.2",
        "train.micro_batch_size=3",
        "train.decay=cosine",
        "train.weight_decay=0.01",
        "train.betas=[0.9,0.98]",
        "train.final_lr=0.1",
        "seed=3",
    ],
    "mdlm-cutoff": ["objective.cutoff=0.001", "train.ema=0", "train.clip=null", "train.decay=linear"],
    "mdlm-discrete": ["objective.bound=discrete", "objective.steps=20"],
    "mdlm-clip": ["objective.clip=[0.3,0.8]"],
    "mdlm-cross-entropy": ["objective.loss=cross-entropy"],
    "mdlm-mlm": ["objective.loss=mlm"],
    "mdlm-time": ["model.time_conditioning=true", "schedule.name=cosine"],
    "mdlm-time-discrete": [
        "model.time_conditioning=true",
        "schedule.name=geometric",
        "objective.bound=discrete",
        "objective.steps=10",
    ],
    "mdlm-proposal": ["objective.proposal=polynomial", "objective.times=independent"],
    "mdlm-linear": ["schedule.name=linear", "schedule.sigma_max=8"],
    "mdlm-cosine-squared": ["schedule.name=cosine-squared"],
    "mdlm-log-uniform": ["schedule.name=log-uniform", "schedule.low=0.01"],
    "mdlm-polynomial": ["schedule.name=polynomial", "schedule.power=3"],
    "mdlm-bf16": ["train.precision=bf16"],
    "mdlm-ends": ["data.block_ends=true", "data.document=line"],
    "mdlm-pad": ["data.layout=pad", "data.document=line"],
    "mdlm-pad-attended": ["data.layout=pad", "data.document=line", "data.attend_pads=true", "data.block_ends=true"],
    "mdlm-bytes": ["data.tokenizer=bytes", "data.eos_between=false"],
    "mdlm-bpe": ["data.tokenizer=bpe", "data.vocab_size=300", "data.split_seed=5"],
    "no-carry-over": ["model.method=no-carry-over"],
    "no-carry-over-discrete": ["model.method=no-carry-over", "objective.bound=discrete", "objective.steps=12"],
    "d3pm": ["model.method=d3pm"],
    "d3pm-discrete": ["model.method=d3pm", "objective.bound=discrete", "objective.steps=12"],
    "sedd": ["model.method=sedd"],
    "sedd-time": ["model.method=sedd", "model.time_conditioning=true", "schedule.name=geometric"],
    "ar": ["model.method=ar", "objective.cutoff=0.001"],
    "ar-no-start": [
        "model.method=ar",
        "objective.cutoff=0.001",
        "objective.start_token=false",
        "model.dropout=0.1",
        "sample.every=0",
    ],
    "ssd-lm": ["model.method=ssd-lm", "objective.cutoff=0.001", "simplex.block=8", "simplex.steps=50"],
    "plaid": ["model.method=plaid", "objective.cutoff=0.001", "plaid.bias_warmup=3"],
    "mosaicbert": ["model.backbone=mosaicbert", "objective.loss=mlm", "objective.mask_rate=0.3", "model.dropout=0.1"],
    "mosaicbert-mdlm": ["model.backbone=mosaicbert"],
    "mosaicbert-ar": ["model.backbone=mosaicbert", "model.method=ar", "objective.cutoff=0.001"],
}
LABELS = ["data.layout=pad", "data.label=kind", "train.label_drop=0.2"]
GENOMES: dict[str, tuple[str, list[str]]] = {
    "caduceus": ("dna-tiny", []),
    "caduceus-swap": ("dna-tiny", ["model.swap_strands=true", "data.soft_mask=mask"]),
    "caduceus-ph": ("dna-tiny", ["model.strands=ph", "data.reverse_complement=true"]),
    "caduceus-mlm": ("dna-caduceus", []),
    "caduceus-mdlm": ("dna-mdlm", []),
    "caduceus-plaid": ("dna-tiny", ["model.method=plaid", "objective.cutoff=0.001"]),
    "mamba": ("dna-mamba", []),
    "hyena": ("dna-hyena", ["model.filter_length=130", "model.filter_dim=16"]),
}
LANGUAGE = [
    "train.steps=4",
    "train.batch_size=8",
    "train.micro_batch_size=null",
    "train.warmup=1",
    "train.lr=0.002",
    "train.log_every=1",
    "train.checkpoint_every=4",
    "train.device=cpu",
    "eval.every=2",
    "eval.rows=8",
    "eval.draws=2",
]
TASK = [
    "task.rows=32", "task.eval_rows=16", "task.length=32", "task.epochs=1", "train.batch_size=8", "train.lr=0.003",
    "train.log_every=1", "train.device=cpu", "task.dropout=0.1",
]  # fmt: skip


SWEPT = ["task.rows=16", "task.eval_rows=8", "task.length=24", "task.max_steps=2", "task.epochs=1", "train.device=cpu"]


def tuned(data: Path, runs: Path) -> dict[str, list[str]]:
    """The commands of all fine-tunings, by the name of their run."""
    text, genome, glue = str(data / "text.txt"), str(data / "genome.fa"), str(data / "glue")
    letters, dna = [*LANGUAGE, "data.length=32"], [*LANGUAGE, "train.precision=float32"]
    on_text, on_dna = ["--data", text], ["--data", genome]
    gue = ["--local", str(data / "gue")]
    return {
        "bert-mdlm": [str(data / "bert"), "mdlm", *letters, "data.layout=pad", *on_text],
        "bert-mlm": [str(data / "bert"), "mlm", *letters, "data.layout=pad", *on_text],
        "mdlm-sedd": [str(runs / "mdlm"), "sedd", *letters, *on_text],
        "mdlm-d3pm": [str(runs / "mdlm"), "d3pm", *letters, *on_text],
        "mosaicbert-on": [str(runs / "mosaicbert"), "mdlm", *letters, *on_text],
        "ar-on": [str(runs / "ar"), "ar", *letters, "--data", str(data / "other.txt")],
        "caduceus-sedd": [str(runs / "caduceus-mlm"), "sedd", *dna, *on_dna],
        "caduceus-to-plaid": [str(runs / "caduceus-mlm"), "plaid", *dna, *on_dna],
        "sst2": [str(runs / "mdlm-bytes"), "glue/sst2", *TASK, "--local", glue],
        "sst2-ar-mean": [str(runs / "mosaicbert-ar"), "glue/sst2", *TASK, "task.pooling=mean", "--local", glue],
        "rte-bert": [str(runs / "bert-mdlm"), "glue/rte", *TASK, "task.length=48", "--local", glue, "--seeds", "0,1"],
        "tf0-caduceus": [str(runs / "caduceus"), "gue/tf_0", *TASK, "task.strands=conjoin", *gue],
        "tf0-mamba": [str(runs / "mamba"), "gue/tf_0", *TASK, "task.strands=augment", "task.max_steps=3", *gue],
        "tf0-sweep": [str(runs / "caduceus"), "gue/tf_0", *SWEPT, *gue, "--sweep", "--seeds", "1"],
        "tf0-hyena": [str(runs / "hyena"), "gue/tf_0", *TASK, "task.pooling=mean", "task.max_steps=3", *gue],
    }


CLASSIFIERS = ("sst2", "sst2-ar-mean", "rte-bert", "tf0-caduceus", "tf0-mamba", "tf0-hyena", "tf0-sweep")


# -- the recorder ---------------------------------------------------------------------------------------------------


class Net:
    """Names and values, and how they are come by."""

    def __init__(self, work: Path, earlier: Path | None, only: str | None) -> None:
        self.work = work.resolve()
        own = earlier.resolve() if earlier else self.work
        self.roots = sorted({str(self.work), str(own)}, key=len, reverse=True)
        self.data, self.runs, self.out = own / "data", own / "runs", self.work / "out"
        self.only = re.compile(only) if only else None
        self.entries: dict[str, Any] = {}
        self.failures: list[str] = []
        self.models: dict[str, Any] = {}
        self.group = ""

    def put(self, name: str, value: Any) -> None:
        """One entry."""
        name = f"{self.group}/{name}"
        if name in self.entries:
            raise KeyError(f"{name} is recorded twice")
        if "semi-ar" in name and isinstance(value, dict):  # its claims are about seconds
            value = {key: own for key, own in value.items() if key != "checks"}
        self.entries[name] = self.plain(value)

    def plain(self, value: Any) -> Any:
        """A tree without what changes from run to run."""
        if isinstance(value, dict):
            kept = {str(key): own for key, own in value.items() if not VOLATILE.search(str(key))}
            return {k: self.plain(v) for k, v in kept.items() if not (k == "id" and REQUEST_ID.match(str(v)))}
        if isinstance(value, list | tuple):
            return [self.plain(own) for own in value]
        if isinstance(value, Path):
            value = str(value)
        if isinstance(value, str):
            for root in self.roots:
                value = value.replace(root, "ROOT")
            return value
        if isinstance(value, float) and not math.isfinite(value):
            return repr(value)
        if isinstance(value, bool | int | float) or value is None:
            return value
        return self.plain(value.tolist()) if hasattr(value, "tolist") else repr(value)

    def unmask(self, *args: str, stdin: str = "") -> tuple[int, str, str]:
        """`unmask ARGS` in this process: exit code, output, errors."""
        from unmask.cli import main

        out, err, code = io.StringIO(), io.StringIO(), 0
        with (
            mock.patch.object(sys, "argv", ["unmask", *args]),
            mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8")),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                main()
            except SystemExit as stop:
                code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
            except Exception as error:  # a crash is a result, too
                traceback.print_exc()
                code = f"{type(error).__name__}"  # type: ignore[assignment]
        return code, out.getvalue(), err.getvalue()

    def ask(self, name: str, *args: str, stdin: str = "", want: int = 0) -> Any:
        """Record what a command prints: a JSON document, JSON lines, or lines."""
        code, out, err = self.unmask(*args, stdin=stdin)
        if code != want:
            last = (err.strip() or "(nothing)").splitlines()[-1]
            self.failures.append(f"{self.group}/{name}: exit {code}: {last}")
            self.put(name, {"exit": code, "said": last})
            return None
        found = read(out)
        self.put(name, {"exit": code, "out": found} if code else found)
        return found

    def call(self, name: str, function: Callable[[], Any]) -> None:
        """Record what a function returns."""
        try:
            self.put(name, function())
        except Exception as error:
            self.failures.append(f"{self.group}/{name}: {type(error).__name__}: {error}")
            self.put(name, {"raised": type(error).__name__, "said": str(error)})

    def run(self, name: str) -> str:
        """The folder of a run."""
        return str(self.runs / name)

    def lm(self, name: str) -> Any:
        """A loaded run, kept."""
        import unmask

        if name not in self.models:
            self.models[name] = unmask.load(name if name == "tiny-en" else self.run(name))
        return self.models[name]


def read(text: str) -> Any:
    """JSON, JSON lines, or plain lines."""
    with contextlib.suppress(ValueError):
        return json.loads(text)
    lines = text.splitlines()
    with contextlib.suppress(ValueError):
        return [json.loads(line) for line in lines]
    return lines


def journal(folder: Path) -> list[Any]:
    """The log of a run."""
    return [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]


def weights(folder: Path) -> dict[str, Any]:
    """Sums of the tensors in all checkpoints of a run, and the names of its files."""
    from safetensors.torch import load_file

    found: dict[str, Any] = {"files": sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())}
    for path in sorted(folder.rglob("*.safetensors")):
        tensors = load_file(path)
        size = {name: t.double().abs().sum().item() for name, t in sorted(tensors.items())}
        found[str(path.relative_to(folder))] = {"names": list(size), "sums": list(size.values())}
    return found


def trained(net: Net, name: str, *command: str) -> None:
    """Train a run, and record what it printed and wrote."""
    folder = net.runs / name
    net.ask(f"{name}/printed", *command, "--out", str(folder), "--quiet", "--json")
    for log in sorted(folder.rglob("log.jsonl")):
        net.put(f"{log.parent.relative_to(net.runs)}/log", journal(log.parent))
    for path in sorted(folder.rglob("results.json")):
        net.put(str(path.relative_to(net.runs)), read(path.read_text(encoding="utf-8")))
    for path in sorted(folder.glob("predictions*.tsv")):
        with path.open(encoding="utf-8") as file:
            net.put(
                str(path.relative_to(net.runs)), [[number(x) for x in row] for row in csv.reader(file, delimiter="\t")]
            )
    if folder.is_dir():
        net.put(f"{name}/weights", weights(folder))


def number(text: str) -> Any:
    """A number where it is one."""
    try:
        return float(text)
    except ValueError:
        return text


# -- groups ---------------------------------------------------------------------------------------------------------


def group_train(net: Net) -> None:
    """Every method and network from nothing."""
    text = f"data.source={net.data / 'text.txt'}"
    for name, own in TEXTS.items():
        trained(
            net, name, "train", "tiny", *TEXT, text, *(["sample.steps=4"] if "ar" not in name.split("-") else []), *own
        )
    trained(net, "labels", "train", "tiny", *TEXT, f"data.source={net.data / 'labels.jsonl'}", *LABELS)
    for name, (recipe, own) in GENOMES.items():
        trained(net, name, "train", recipe, *BASES, f"data.source={net.data / 'genome.fa'}", *own)


def group_finetune(net: Net) -> None:
    """Models that go on, and classifiers."""
    for name, command in tuned(net.data, net.runs).items():
        trained(net, name, "finetune", *command)


def group_resume(net: Net) -> None:
    """A run that is extended and one that is stopped by a signal end as one that was left alone."""
    own = [
        "train", "tiny", *TEXT, f"data.source={net.data / 'text.txt'}", "sample.steps=4", "model.dropout=0.1",
        "train.checkpoint_every=2", "train.micro_batch_size=3",
    ]  # fmt: skip
    whole, halves, stopped = (net.runs / f"resume-{name}" for name in ("whole", "halves", "stopped"))
    net.ask("whole", *own, "train.steps=8", "--out", str(whole), "--quiet", "--json")
    net.ask("first-half", *own, "train.steps=4", "--out", str(halves), "--quiet", "--json")
    net.ask("second-half", *own, "train.steps=8", "--out", str(halves), "--quiet", "--json")
    net.put("whole-log", journal(whole))
    net.put("halves-log", journal(halves))
    net.put("halves-equal", same_weights(whole, halves))
    long = [*own, "train.steps=160", "eval.every=0", "sample.every=0", "train.keep_last=1", "train.checkpoint_every=50"]
    child = subprocess.Popen(
        [sys.executable, "-m", "unmask", *long, "--out", str(stopped), "--quiet"], cwd=net.out,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and child.poll() is None:
        if (stopped / "log.jsonl").is_file() and len((stopped / "log.jsonl").read_text().splitlines()) >= 10:
            break
        time.sleep(0.02)
    child.send_signal(signal.SIGTERM)
    net.put("signal-exit", child.wait(60))
    steps = [line["step"] for line in journal(stopped)]
    net.put("signal-stopped-early", max(steps) < 160)
    net.ask("signal-resumed", *long, "--out", str(stopped), "--quiet", "--json")
    straight = net.runs / "resume-straight"
    net.ask("signal-straight", *long, "--out", str(straight), "--quiet", "--json")
    net.put("signal-equal", same_weights(straight, stopped))
    net.put("signal-log-equal", net.plain(journal(straight)) == net.plain(journal(stopped)))
    net.put("signal-log", journal(straight)[::40])
    for name, more in {"changed-seed": ["seed=5"], "changed-model": ["model.hidden_dim=64"]}.items():
        net.ask(f"refused-{name}", *own, "train.steps=10", *more, "--out", str(whole), "--quiet", want=2)
    net.ask("done-again", *own, "train.steps=8", "--out", str(whole), "--quiet", "--json")
    for folder in (stopped, straight):
        shutil.rmtree(folder)


def same_weights(one: Path, other: Path) -> bool:
    """Whether the last checkpoints of two runs have the same bytes."""
    last = [sorted((folder / "checkpoints").iterdir())[-1] for folder in (one, other)]
    names = sorted(path.name for path in last[0].glob("*.safetensors"))
    return bool(names) and all((last[0] / name).read_bytes() == (last[1] / name).read_bytes() for name in names)


def language_models(net: Net) -> list[str]:
    """The runs that are language models."""
    return [*TEXTS, "labels", *GENOMES, *(name for name in tuned(net.data, net.runs) if name not in CLASSIFIERS)]


def group_eval(net: Net) -> None:
    """Perplexities of every run, and all kinds of them of a few."""
    few = ["--rows", "8", "--draws", "2", "--device", "cpu", "--json"]
    for name in language_models(net):
        draws = ["--draws", "1"] if name.startswith(("ar", "mamba", "hyena", "mosaicbert-ar")) else []
        net.ask(name, "eval", net.run(name), *few, *draws, want=2 if name == "ssd-lm" else 0)
    kinds = {
        "discrete": ["--bound", "discrete", "--steps", "10"], "strata": ["--estimator", "strata"],
        "test": ["--split", "test"], "all": ["--data", str(net.data / "other.txt"), "--split", "all"],
        "raw": ["--weights", "raw"], "best": ["--which", "best"], "seed": ["--seed", "5", "--batch-size", "3"],
        **{schedule: ["--schedule", schedule] for schedule in (
            "cosine", "cosine-squared", "linear", "geometric", "polynomial", "log-uniform")},
    }  # fmt: skip
    for kind, own in kinds.items():
        net.ask(f"mdlm-as-{kind}", "eval", net.run("mdlm"), *few, *own)
    for name in ("mdlm-time", "d3pm", "no-carry-over", "mdlm-pad", "mdlm-ends", "mdlm-discrete", "caduceus"):
        net.ask(f"{name}-as-discrete", "eval", net.run(name), *few, "--bound", "discrete", "--steps", "7")
    for name in ("mdlm-pad", "mdlm-ends", "mdlm-discrete", "caduceus", "mosaicbert-mdlm"):
        net.ask(f"{name}-as-strata", "eval", net.run(name), *few, "--estimator", "strata")
    net.ask("sedd-as-cosine", "eval", net.run("sedd-time"), *few, "--schedule", "cosine")
    net.ask("labels-as-none", "eval", net.run("labels"), *few, "--label-column", "none")
    net.ask(
        "labels-other", "eval", net.run("labels"), *few, "--data", str(net.data / "labels.jsonl"), "--split", "test"
    )
    net.ask("tiny-en", "eval", "tiny-en", *few, "--data", str(net.data / "other.txt"), "--split", "all", "--rows", "3")
    suite = ["--suite", "zero-shot", "--sets", "ptb,lambada", "--local", str(net.data / "sets")]
    net.ask("suite", "eval", net.run("mdlm-bytes"), *suite, "--rows", "6", "--draws", "2", "--json")
    net.ask("suite-ar", "eval", "tiny-en", *suite, "--rows", "2", "--draws", "1", "--estimator", "strata", "--json")
    plain = net.ask("as-text", "eval", net.run("mdlm"), *few[:-1])
    net.put("as-text-lines", len(plain or []))


def group_generative(net: Net) -> None:
    """Samples, judged."""
    own = ["--generative", "-n", "4", "--length", "24", "--json", "--device", "cpu", "--rows", "6"]
    judge = ["--scorer", f"unmask:{net.run('ar')}"]
    net.ask("mdlm", "eval", net.run("mdlm"), *own, *judge, "--steps", "6")
    net.ask("ar", "eval", net.run("ar"), *own, "--scorer", f"unmask:{net.run('mosaicbert-ar')}", "--top-k", "5")
    net.ask("ssd-lm", "eval", net.run("ssd-lm"), *own, *judge, "--steps", "6", "--with", "projection=greedy")
    net.ask("plaid", "eval", net.run("plaid"), *own, *judge, "--steps", "6", "--reference", "none")
    net.ask(
        "confidence", "eval", net.run("mdlm-bpe"), *own, *judge, "--sampler", "confidence", "-k", "3", "--top-p", "0.9"
    )
    net.ask("no-judge", "eval", net.run("mdlm"), *own, "--steps", "6", "--temperature", "0.7", "--reference", "train")
    if (SHARED / "weights/stories260K").is_dir():
        story = [*own[:-2], "--scorer", f"llama2c:{SHARED / 'weights/stories260K'}", "--steps", "8"]
        net.ask("tiny-en", "eval", "tiny-en", *story, "--reference", str(net.data / "other.txt"))


def group_sample(net: Net) -> None:
    """Every sampler with every setting."""
    own = ["-n", "2", "--seed", "3", "--length", "24", "--jsonl", "--device", "cpu"]
    plans: dict[str, list[str]] = {
        "plan": ["--steps", "6"], "plan-many": ["--steps", "500"], "ancestral": ["--steps", "6"],
        "analytic": ["--steps", "6"], "euler": ["--steps", "6"], "first-hitting": [], "left-to-right": [],
        "left-to-right-3": ["-k", "3"], "order": ["--order", ",".join(str((7 * i) % 24) for i in range(24)), "-k", "2"],
        "confidence": ["--steps", "6"], "confidence-k": ["-k", "5"], "confidence-threshold": ["--threshold", "0.2"],
        "entropy": ["--steps", "6"], "entropy-threshold": ["--threshold", "2.5"], "margin": ["--steps", "6"],
        "margin-k": ["-k", "4"], "remask-cap": ["--steps", "8", "--eta", "0.2"],
        "remask-rescale": ["--steps", "8", "--eta", "0.3", "--window", "0.9,0.1"],
        "remask-loop": ["--steps", "12", "--keep", "0.7", "--eta", "0.1"],
        "remask-loop-window": ["--steps", "12", "--window", "0.8,0.2"],
        "corrector": ["--steps", "6", "--corrections", "2", "--eta", "0.1"],
        "corrector-window": ["--steps", "6", "--window", "0.7,0.1"],
        "gibbs": ["--steps", "30", "--with", "burn=10", "--top-k", "4"],
        "gibbs-sequential": ["--steps", "30", "--with", "scan=sequential"],
        "gibbs-parallel": ["--steps", "4", "--with", "scan=parallel"],
    }  # fmt: skip
    known = ("plan", "ancestral", "analytic", "euler", "first-hitting", "left-to-right", "order", "confidence",
             "entropy", "margin", "remask-cap", "remask-rescale", "remask-loop", "corrector", "gibbs")  # fmt: skip
    for name, settings in plans.items():
        sampler = max((one for one in known if name.startswith(one)), key=len)
        net.ask(f"mdlm/{name}", "sample", net.run("mdlm"), *own, "--sampler", sampler, *settings)
        if name in ("plan", "ancestral", "first-hitting", "remask-cap", "corrector", "euler"):
            for run in ("mdlm-time", "mdlm-ends"):
                net.ask(f"{run}/{name}", "sample", net.run(run), *own, "--sampler", sampler, *settings)
    for run in ("no-carry-over", "d3pm", "sedd", "sedd-time", "mdlm-d3pm"):
        net.ask(f"{run}/ancestral", "sample", net.run(run), *own, "--sampler", "ancestral", "--steps", "6")
        net.ask(
            f"{run}/infill", "sample", net.run(run), *own[:4], "--jsonl", "--infill", "the {{5}} cat", "--steps", "6"
        )
    for run in ("sedd", "sedd-time"):
        net.ask(f"{run}/euler", "sample", net.run(run), *own, "--sampler", "euler", "--steps", "6")
        net.ask(f"{run}/analytic", "sample", net.run(run), *own, "--sampler", "analytic", "--steps", "6")
    ssd = {
        "plain": ["--steps", "6"], "multi-hot": ["--with", "projection=multi-hot", "--top-p", "0.9"],
        "greedy": ["--with", "projection=greedy"], "context": ["--with", "context=5", "--prompt", "the old "],
        "sampling": ["--with", "projection=sampling", "--length", "40", "--top-k", "3"],
    }  # fmt: skip
    for name, settings in ssd.items():
        net.ask(f"ssd-lm/{name}", "sample", net.run("ssd-lm"), *own, "--steps", "6", *settings)
    gauss = {
        "plain": [], "score": ["--with", "score_temperature=0.9", "--temperature", "0"],
        "around": ["--prompt", "the ", "--suffix", "dog."], "top-p": ["--top-p", "0.8"],
    }  # fmt: skip
    for run in ("plaid", "caduceus-plaid"):
        for name, settings in gauss.items():
            given = ["--prompt", "ACG", "--suffix", "TT"] if name == "around" and run != "plaid" else settings
            net.ask(f"{run}/{name}", "sample", net.run(run), *own, "--steps", "6", *given)
    for run in ("ar", "mosaicbert-ar", "ar-no-start", "ar-on"):
        net.ask(f"{run}/prompt", "sample", net.run(run), *own, "--prompt", "the old ", "--top-k", "6")
        net.ask(f"{run}/stride", "sample", net.run(run), *own, "--prompt", "the ", "--length", "48", "--stride", "16")
    for run in ("mdlm-pad", "mdlm-pad-attended", "mdlm-bytes", "mdlm-bpe", "mdlm-discrete", "mdlm-polynomial",
                "mosaicbert", "bert-mdlm", "mosaicbert-on", "mdlm-bf16"):  # fmt: skip
        net.ask(f"{run}/usual", "sample", net.run(run), *own, "--steps", "6")
    choices = {
        "temperature": ["--temperature", "0.5"],
        "coldest": ["--temperature", "0"],
        "top-k": ["--top-k", "3"],
        "top-p": ["--top-p", "0.7"],
        "min-p": ["--min-p", "0.3"],
        "all-filters": ["--temperature", "0.8", "--top-k", "9", "--top-p", "0.9", "--min-p", "0.05"],
        "prompt": ["--prompt", "the red "],
        "suffix": ["--suffix", " dog."],
        "both": ["--prompt", "the ", "--suffix", "king.", "--length", "20"],
        "windows": ["--length", "70", "--stride", "16"],
        "windows-prompt": ["--length", "50", "--stride", "8", "--prompt", "the "],
        "ban": ["--ban", "e", "--ban", "#3", "--ban", "t"],
        "min-length": ["--min-length", "20", "--stop-at-eos"],
        "stop": ["--stop", "e", "--stop", "th"],
        "stop-at-eos": ["--stop-at-eos"],
        "only": ["--with", "only=[a,b,c]"],
        "allowed": ["--with", "allowed={0: [a, b], 3: [t]}"],
        "raw": ["--weights", "raw"],
        "best": ["--which", "best"],
        "batch": ["-n", "5", "--batch-size", "2"],
    }
    for name, settings in choices.items():
        net.ask(f"rules/{name}", "sample", net.run("mdlm"), *own, "--steps", "8", *settings)
    for name in ("windows", "windows-prompt", "prompt", "suffix", "both"):
        net.ask(f"ends/{name}", "sample", net.run("mdlm-ends"), *own, "--steps", "8", *choices[name])
    gaps = {
        "one": "the {{4}} cat",
        "several": "the {{3}} cat {{5}} the {{2}}.",
        "ranged": "the {{2-5}} cat sees",
        "two-ranged": "the {{1-2}} cat {{2-3}}.",
        "first": "{{3}} cat",
        "whole": "{{8}}",
    }
    for name, text in gaps.items():
        for run in ("mdlm", "mdlm-bpe", "mdlm-ends", "bert-mdlm"):
            net.ask(f"gaps/{run}/{name}", "sample", net.run(run), "-n", "2", "--json", "--steps", "5", "--infill", text)
    labels = [*own, "--steps", "6", "--label", "loud"]
    for name, settings in {"label": [], "guidance": ["--guidance", "2.5"], "none": ["--guidance", "0"]}.items():
        net.ask(f"labels/{name}", "sample", net.run("labels"), *labels, *settings)
    net.ask(
        "labels/guided-order",
        "sample",
        net.run("labels"),
        "-n",
        "2",
        "--jsonl",
        "--sampler",
        "confidence",
        "-k",
        "2",
        "--label",
        "soft",
        "--guidance",
        "3",
        "--infill",
        "the {{6}} cat",
    )
    net.ask("labels/unlabelled", "sample", net.run("labels"), *own, "--steps", "6")
    net.ask(
        "template", "sample", net.run("mdlm"), "--template", str(net.data / "template.jsonl"), "--steps", "5", want=2
    )
    lines = "\n".join((net.data / "template.jsonl").read_text().splitlines()[:3]) + "\n"
    net.ask(
        "template-json", "sample", net.run("mdlm"), "--template", "-", "-n", "2", "--steps", "5", "--json", stdin=lines
    )
    net.ask("json", "sample", net.run("mdlm"), "-n", "2", "--steps", "5", "--length", "12", "--json")
    net.ask("streamed", "sample", net.run("mdlm"), "--steps", "5", "--length", "12")
    net.ask("plain", "sample", net.run("mdlm"), "-n", "2", "--steps", "5", "--length", "12")
    page = net.out / "replay.html"
    net.ask("watched", "sample", net.run("mdlm"), "--steps", "5", "--length", "12", "--watch", "--html", str(page))
    net.call("replay", lambda: trace(page))
    net.ask(
        "replayed-remasking",
        "sample",
        net.run("mdlm"),
        *own,
        "--sampler",
        "remask-cap",
        "--steps",
        "6",
        "--html",
        str(page),
    )
    net.call("replay-remasking", lambda: trace(page))
    net.ask("fill", "fill", net.run("mdlm"), "--jsonl", "--steps", "5", "-n", "2",
            stdin="the {{3}} cat\nthe ___ dog\n:help\n:seed 4\n:steps 3\n\n:show\n:quit\n")  # fmt: skip
    net.ask(
        "fill-text",
        "fill",
        net.run("mdlm"),
        "--temperature",
        "0.5",
        "--sampler",
        "margin",
        stdin="a {{3-4}} b\n{{2\n",
        want=2,
    )
    english = ["sample", "tiny-en", "--jsonl", "--seed", "1"]
    net.ask("tiny-en/plain", *english, "-n", "2", "--length", "16", "--steps", "8")
    net.ask("tiny-en/prompt", *english, "--prompt", "Once upon a time", "--length", "20", "--top-p", "0.9")
    net.ask(
        "tiny-en/infill", *english, "--infill", "The {{2}} sat on the {{1-3}}.", "--sampler", "confidence", "-k", "1"
    )
    net.ask("tiny-en/gibbs", *english, "--length", "8", "--sampler", "gibbs", "--steps", "10", "--top-k", "10")


def trace(page: Path) -> Any:
    """The data of a replay."""
    found = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', page.read_text(encoding="utf-8"), re.S)
    return json.loads(found[1]) if found else "no data"


def group_score(net: Net) -> None:
    """Every way to score a text."""
    texts = ["the red cat sees the old dog.", "dog the."]
    methods: dict[str, list[str]] = {
        "usual": [], "strata": ["--method", "strata", "--draws", "2", "--calls", "4"],
        "bound": ["--method", "bound", "--draws", "3"], "pll": ["--method", "pll"],
        "orders": ["--method", "orders", "--orders", "4", "--draws", "2"],
        "orders-steps": ["--method", "orders", "--orders", "3", "--plan", "plan", "--steps", "5"],
        "plan": ["--method", "plan"], "plan-k": ["--plan", "left-to-right", "-k", "3"],
        "confidence": ["--plan", "confidence", "-k", "2"], "entropy": ["--plan", "entropy", "--threshold", "2.5"],
        "margin": ["--plan", "margin", "--steps", "4"], "seed": ["--seed", "9"],
    }  # fmt: skip
    few = ["--json", "--device", "cpu"]
    for name, own in methods.items():
        net.ask(f"mdlm/{name}", "score", net.run("mdlm"), *texts, *own, *few)
    net.ask("mdlm/exact", "score", net.run("mdlm"), "the cat.", "--method", "exact", *few)
    net.ask("mdlm/order", "score", net.run("mdlm"), "cats", "--plan", "order", "--order", "2,0,3,1", *few)
    net.ask("mdlm/span", "score", net.run("mdlm"), texts[0], "--span", "4:7", "--span", "12:16", *few)
    for method in ("strata", "bound", "pll", "exact", "orders", "plan"):
        net.ask(
            f"mdlm/marked-{method}",
            "score",
            net.run("mdlm"),
            "the [[red]] cat [[sees]]",
            "--marked",
            "--method",
            method,
            *few,
        )
    net.ask("mdlm/file", "score", net.run("mdlm"), "--file", str(net.data / "spans.jsonl"), *few)
    net.ask(
        "mdlm/lines",
        "score",
        net.run("mdlm"),
        "--file",
        str(net.data / "other.txt"),
        "--method",
        "bound",
        "--draws",
        "1",
        *few,
    )
    net.ask("mdlm/long", "score", net.run("mdlm"), " ".join(texts * 3), "--batch-size", "3", *few)
    net.ask("mdlm/as-text", "score", net.run("mdlm"), texts[0])
    for run in language_models(net):
        if run == "ssd-lm":
            net.ask(run, "score", net.run(run), texts[0], *few, want=2)
            continue
        dna = "caduceus" in run or run in ("mamba", "hyena")
        given = ["ACGTTGCAACAGGT", "TTTTTTTT"] if dna else texts
        net.ask(f"usual/{run}", "score", net.run(run), *given, *few)
    for run in ("mdlm-time", "d3pm", "sedd", "sedd-time", "plaid", "no-carry-over", "mdlm-time-discrete", "mdlm-ends"):
        net.ask(f"bound/{run}", "score", net.run(run), *texts, "--method", "bound", "--draws", "2", *few)
    for run in ("mdlm-time", "mdlm-ends", "mdlm-bpe", "bert-mdlm", "mosaicbert"):
        net.ask(f"pll/{run}", "score", net.run(run), *texts, "--method", "pll", *few)
        net.ask(f"orders/{run}", "score", net.run(run), "the cat.", "--method", "orders", "--orders", "3", *few)
    net.ask("exact/mdlm-bpe", "score", net.run("mdlm-bpe"), "the cat", "--method", "exact", *few)
    net.ask("labels/loud", "score", net.run("labels"), "THE CAT.", "--label", "loud", *few)
    net.ask("labels/soft", "score", net.run("labels"), "THE CAT.", "--label", "soft", "--method", "pll", *few)
    net.ask("tiny-en", "score", "tiny-en", "The cat sat on the mat.", *few)
    net.ask("tiny-en-exact", "score", "tiny-en", "The [[cat sat]] on the mat.", "--marked", "--method", "exact", *few)


def written(sample: Any) -> dict[str, Any]:
    """What is documented of a sample."""
    tokens = [(token.piece, token.step, token.prob) for token in sample.tokens]
    calls = sample.network_calls
    return {
        "text": sample.text,
        "ids": list(sample.ids),
        "seed": sample.seed,
        "calls": calls,
        "stopped": sample.stopped,
        "tokens": tokens,
    }


def scored(found: Any) -> dict[str, Any]:
    """What is documented of a likelihood."""
    each = [{"pieces": list(t.pieces), "nats": list(t.token_nats)} for t in found.texts]
    return {**found.as_dict(), "texts": each}


def group_python(net: Net) -> None:
    """The documented API."""
    import unmask

    config = unmask.recipe("tiny").override(["data.source=book.txt", "train.steps=30"])
    net.put("recipe", {"steps": config.train.steps, "yaml": config.to_yaml()})
    for name in ("tiny", "demo", "lm1b", "owt", "text8", "mosaicbert", "mosaicbert-causal", "dna-tiny", "dna-caduceus",
                 "dna-mdlm", "dna-mamba", "dna-hyena"):  # fmt: skip
        net.call(f"recipes/{name}", lambda name=name: unmask.recipe(name).to_yaml().splitlines())
    net.call("public", lambda: sorted(unmask.__all__))
    for name in ("mdlm", "labels", "ar", "caduceus", "bert-mdlm", "tiny-en"):
        lm = net.lm(name)
        net.call(f"{name}/facts", lambda lm=lm: {
            "length": lm.length, "labels": lm.labels, "config": lm.config.to_yaml().splitlines(),
            "weights": sum(p.numel() for p in lm.model.parameters())})  # fmt: skip
    lm = net.lm("mdlm")
    net.call("sample", lambda: lm.sample(2, length=16, steps=8, seed=0))
    net.call("infill", lambda: lm.infill("the {{6}} cat {{3}}.", n=2, seed=0, temperature=0.7))
    net.call("write_samples", lambda: [written(s) for s in lm.write_samples(
        3, length=20, prompt="the ", suffix=".", top_p=0.9, seed=7, batch_size=2)])  # fmt: skip
    net.call("write", lambda: [written(s) for s in lm.write(
        [lm.gap_canvas("the {{2}} cat."), lm.prompt_canvas("king", length=8)], seed=0)])  # fmt: skip
    net.call("stream", lambda: list(lm.stream("the ", length=20, seed=1, sampler="left-to-right")))
    net.call("stream-windows", lambda: list(lm.stream("the ", length=60, seed=1, stride=16, steps=6)))
    net.call("stream-ar", lambda: list(net.lm("ar").stream("the ", length=20, seed=1)))
    net.call("allowed", lambda: lm.sample(1, length=6, allowed={0: ["a"], 2: ["b", "c"]}, min_length=4, seed=2))

    def odd(log_p: Any, positions: Any, canvas: Any) -> Any:
        log_p = log_p.clone()
        log_p[:, ::2] = -math.inf
        return log_p

    net.call("constrain", lambda: [written(s) for s in lm.write_samples(2, length=8, constrain=odd, seed=3)])
    states: list[Any] = []

    def watch(state: Any) -> None:
        states.append({"row": state.row, "step": state.step, "t": state.t, "positions": state.positions.tolist(),
                       "tokens": state.tokens, "probs": state.probs, "calls": state.calls, "done": state.done,
                       "fixed": state.fixed})  # fmt: skip

    net.call("watch", lambda: [lm.sample(2, length=10, steps=5, seed=4, watch=watch, tops=2), states])
    net.call("score", lambda: scored(lm.score(["the red cat.", "cat red the."], draws=8)))
    net.call("score-one", lambda: scored(lm.score("the red cat.", draws=2)))
    net.call("score-labels", lambda: scored(net.lm("labels").score("the red cat.", label="soft")))
    net.call("score-ar", lambda: scored(net.lm("ar").score(["the red cat."])))
    net.call(
        "load-best", lambda: unmask.load(net.run("mdlm"), which="best", weights="raw").sample(1, length=10, steps=4)
    )
    net.call("load-step", lambda: unmask.load(str(net.runs / "mdlm/checkpoints/step-00000004")).sample(1, length=10))
    net.call(
        "bert-folder", lambda: unmask.load(str(net.data / "bert")).infill("the {{2}} sees the {{1}}.", n=2, seed=1)
    )
    for name in ("mdlm", "ar", "caduceus", "mamba", "hyena", "bert-mdlm", "mosaicbert", "labels", "d3pm", "mdlm-bpe"):
        net.call(f"saved/{name}", lambda name=name: saved(net, name))
    net.call("transformers", lambda: masked_lm(net.out / "saved-mdlm"))
    net.call("transformers-bert", lambda: masked_lm(net.out / "saved-bert-mdlm"))
    wrong: dict[str, Callable[[], Any]] = {
        "load": lambda: unmask.load(str(net.out / "nothing")),
        "recipe": lambda: unmask.recipe("tinny"),
        "key": lambda: unmask.recipe("tiny").override(["train.stepz=3"]),
        "value": lambda: config.override(["train.steps=-1"]),
        "steps": lambda: lm.sample(1, steps=0),
        "sampler": lambda: lm.sample(1, sampler="nothing"),
        "gap": lambda: lm.infill("no gap {{0}}"),
        "long": lambda: lm.sample(1, length=4000),
    }
    for name, function in wrong.items():
        net.put(f"wrong/{name}", refusal(function))


def refusal(function: Callable[[], Any]) -> str:
    """The kind of error, and whether it is the user's."""
    import unmask

    try:
        function()
    except unmask.UserError:
        return "UserError"
    except Exception as error:
        return type(error).__name__
    return "none"


def saved(net: Net, name: str) -> Any:
    """A folder that travels: its files, and that it says the same."""
    import unmask

    folder = net.out / f"saved-{name}"
    net.lm(name).save_pretrained(folder)
    again = unmask.load(str(folder))
    text = "ACGTACGT" if again.config.data.tokenizer == "dna" else "the cat."
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return {"files": sorted(p.name for p in folder.iterdir()), "weights": weights(folder), "config": config,
            "score": scored(again.score(text))}  # fmt: skip


def masked_lm(folder: Path) -> Any:
    """Logits through transformers."""
    import torch
    from transformers import AutoModelForMaskedLM

    with contextlib.suppress(ImportError):  # the first version registers its classes without it
        import unmask.transformers  # noqa: F401
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    ids = torch.arange(5, 17)[None]
    with torch.no_grad():
        logits = model(ids).logits
    return {"class": type(model).__name__, "shape": list(logits.shape), "logits": logits[0, ::4, :12]}


def group_dna(net: Net) -> None:
    """DNA models in use."""
    genome, vcf = str(net.data / "genome.fa"), str(net.data / "some.vcf")
    for run in ("caduceus", "caduceus-ph", "mamba", "hyena", "caduceus-sedd"):
        own = ["variants", net.run(run), "--vcf", vcf, "--genome", genome, "--json"]
        net.ask(f"variants/{run}", *own, "--draws", "2", "--window", "48")
        if run in ("caduceus-ph", "mamba"):
            net.ask(f"variants/{run}/both", *own, "--draws", "2", "--window", "32", "--both-strands")
    own = ["variants", net.run("caduceus"), "--vcf", vcf, "--genome", genome]
    net.ask("variants/pll", *own, "--method", "pll", "--window", "16", "--json")
    net.ask("variants/masked", *own, "--method", "masked", "--json")
    net.ask("variants/table", *own, "--method", "masked", "--out", str(net.out / "variants.tsv"))
    net.call(
        "variants/file",
        lambda: [[number(x) for x in line.split("\t")] for line in (net.out / "variants.tsv").read_text().splitlines()],
    )
    for run in ("caduceus", "caduceus-ph", "mamba", "hyena", "caduceus-sedd"):
        for kind, more in {
            "mean": [],
            "none": ["--pool", "none"],
            "both": ["--both-strands", "--length", "32"],
        }.items():
            path = net.out / f"{run}-{kind}.npy"
            done = net.ask(
                f"embed/{run}/{kind}",
                "embed",
                net.run(run),
                str(net.data / "seqs.fa"),
                "--out",
                str(path),
                "--json",
                *more,
            )
            if done is not None:
                net.call(f"embed/{run}/{kind}/numbers", lambda path=path: numbers(path))
    path = net.out / "peaks.parquet"
    net.ask(
        "embed/bed",
        "embed",
        net.run("caduceus"),
        str(net.data / "peaks.bed"),
        "--genome",
        genome,
        "--out",
        str(path),
        "--json",
    )
    net.call("embed/bed/numbers", lambda: table(path))
    net.ask(
        "embed/text",
        "embed",
        net.run("mdlm"),
        str(net.data / "other.txt"),
        "--out",
        str(net.out / "text.npy"),
        "--json",
    )
    net.call("embed/text/numbers", lambda: numbers(net.out / "text.npy"))
    fasta = net.out / "samples.fa"
    for run in ("caduceus", "caduceus-ph", "mamba", "hyena", "caduceus-plaid", "caduceus-sedd"):
        net.ask(f"sample/{run}", "sample", net.run(run), "-n", "3", "--length", "40", "--fasta", str(fasta),
                *([] if run in ("mamba", "hyena") else ["--steps", "8"]))  # fmt: skip
        net.call(f"sample/{run}/fasta", lambda: fasta.read_text().splitlines())
    for run in ("caduceus", "caduceus-ph"):
        net.ask(
            f"sample/{run}/both",
            "sample",
            net.run(run),
            "--jsonl",
            "--steps",
            "6",
            "--infill",
            "ACGT{{12}}TTGA",
            "--both-strands",
        )
    net.ask("sample/only", "sample", net.run("caduceus"), "--jsonl", "--length", "12", "--with", "only=[A,C,G,T,N]")
    net.ask("compare", "compare", str(fasta), genome, "--k", "4", "--out", str(net.out / "comparison"), "--json")
    net.call("compare/results", lambda: read((net.out / "comparison/results.json").read_text()))
    net.call("compare/files", lambda: sorted(p.name for p in (net.out / "comparison").iterdir()))


def numbers(path: Path) -> Any:
    """An array, and the names beside it."""
    import numpy as np

    found = np.load(path)
    return {
        "shape": list(found.shape),
        "numbers": found.reshape(-1)[::7],
        "names": read(path.with_suffix(".json").read_text()),
    }


def table(path: Path) -> Any:
    """A parquet file."""
    import pyarrow.parquet as pq

    return pq.read_table(path).to_pydict()


def group_data(net: Net) -> None:
    """`unmask data`."""
    text, length = str(net.data / "text.txt"), "data.length=32"
    net.ask("list", "data", "list", "--json")
    net.ask("show", "data", "show", text, "data.tokenizer=chars", length, "--json", "-n", "2")
    net.ask(
        "show-bpe", "data", "show", text, "data.vocab_size=300", length, "data.layout=pad", "--json", "--split", "valid"
    )
    net.ask("show-dna", "data", "show", str(net.data / "genome.fa"), "data.tokenizer=dna", length, "--json")
    bed = f"data.intervals={net.data / 'peaks.bed'}"
    net.ask(
        "show-bed", "data", "show", str(net.data / "genome.fa"), "data.tokenizer=dna", "data.length=16", bed, "--json"
    )
    net.ask(
        "show-set", "data", "show", "ptb", f"data.local={net.data / 'sets'}", "data.tokenizer=bytes", length, "--json"
    )
    net.ask("prepare", "data", "prepare", text, "data.tokenizer=chars", length, "--json", "--split", "valid")
    net.ask(
        "prepare-labels",
        "data",
        "prepare",
        str(net.data / "labels.jsonl"),
        "data.tokenizer=bytes",
        length,
        "data.layout=pad",
        "data.label=kind",
        "--json",
    )
    net.ask("show-text", "data", "show", text, "data.tokenizer=bytes", length)
    net.ask("list-text", "data", "list")


def group_convert(net: Net) -> None:
    """`unmask convert`, there and back."""
    few = ["--rows", "4", "--draws", "1", "--json", "--device", "cpu", "--data", str(net.data / "text.txt")]
    shutil.rmtree(net.out / "converted", ignore_errors=True)
    for name in (
        "mdlm",
        "ar",
        "sedd",
        "d3pm",
        "plaid",
        "ssd-lm",
        "mosaicbert",
        "bert-mdlm",
        "caduceus",
        "mamba",
        "hyena",
        "labels",
    ):
        folder = net.out / "converted" / name
        net.ask(f"{name}", "convert", net.run(name), str(folder), "--json")
        if folder.is_dir():
            net.put(f"{name}/weights", weights(folder))
    for dtype in ("float16", "bfloat16"):
        net.ask(
            dtype,
            "convert",
            net.run("mdlm"),
            str(net.out / "converted" / dtype),
            "--dtype",
            dtype,
            "--weights",
            "raw",
            "--json",
        )
        net.ask(f"{dtype}/eval", "eval", str(net.out / "converted" / dtype), *few)
    net.ask(
        "published", "convert", net.run("mdlm"), str(net.out / "converted/published"), "--to", "published", "--json"
    )
    net.call("published/weights", lambda: weights(net.out / "converted/published"))
    net.ask("mdlm/eval", "eval", str(net.out / "converted/mdlm"), *few)
    net.ask("plaid/sample", "sample", str(net.out / "converted/plaid"), "--length", "12", "--steps", "4", "--jsonl")
    net.ask("ssd-lm/sample", "sample", str(net.out / "converted/ssd-lm"), "--length", "12", "--steps", "4", "--jsonl")


WRONG = """
--nonsense
nothing
train
train tinny
train tiny train.stepz=3
train tiny train.steps=0
train tiny train.steps=abc
train tiny notanoverride
train tiny model.method=unknown
train tiny model.hidden_dim=33
train tiny objective.bound=discrete
train tiny data.source=/no/such/file.txt --out OUT/w1
train tiny model.method=sedd objective.bound=discrete objective.steps=5 data.source=TEXT --out OUT/w2
train tiny model.method=ar model.time_conditioning=true data.source=TEXT --out OUT/w3
train tiny data.source=TEXT data.label=kind --out OUT/w4
train no-such.yaml
train dna-mamba model.method=mdlm data.source=FASTA --out OUT/w6
finetune RUN:mdlm mdlm
finetune RUN:ar mdlm --data TEXT
finetune RUN:mdlm glue/none
finetune RUN:mdlm mdlm --data TEXT --seeds 1,2
finetune RUN:mdlm glue/sst2 --data TEXT
finetune RUN:mdlm mdlm model.hidden_dim=64 --data TEXT
finetune RUN:mdlm glue/sst2 --sweep
eval OUT/nothing
eval RUN:ssd-lm
eval RUN:mdlm --split none
eval RUN:mdlm --bound other
eval RUN:mdlm --draws 0
embed RUN:caduceus-plaid FASTA --out OUT/z.npy
eval RUN:mdlm --scorer hf:gpt2
eval RUN:mdlm --sets ptb
eval RUN:mdlm --suite unknown
eval RUN:mdlm --generative --draws 3
eval RUN:mdlm --schedule none
eval RUN:mdlm-time --estimator strata
eval RUN:ar --bound discrete --steps 3
eval RUN:sst2
sample OUT/nothing
sample RUN:mdlm --sampler none
sample RUN:mdlm --steps 0
sample RUN:mdlm -n 0
sample RUN:mdlm --sampler order
sample RUN:mdlm --keep 0.5
sample RUN:mdlm --sampler simplex
sample RUN:ar --suffix x
sample RUN:ar --infill 'a{{2}}b'
sample RUN:mdlm --prompt a --infill 'b{{1}}'
sample RUN:mdlm --infill 'no gap'
sample RUN:mdlm --json --jsonl
sample RUN:mdlm --length 500
sample RUN:mdlm --label x
sample RUN:labels --label unknown
sample RUN:mdlm --temperature -1
sample RUN:mdlm --top-p 2
sample RUN:mdlm --window a,b
sample RUN:mdlm --with nothing=1
sample RUN:mdlm --with k=1
sample RUN:mdlm --fasta OUT/x.fa
sample RUN:mdlm --both-strands
sample RUN:mdlm-time --sampler gibbs
sample RUN:plaid --stride 8
sample RUN:plaid --infill 'a{{1-2}}b'
sample RUN:ar-no-start
sample RUN:mdlm --template OUT/none.jsonl
sample RUN:sst2
score RUN:mdlm
score RUN:mdlm a --method none
score RUN:mdlm 'the red cat sees' --method exact
score RUN:mdlm abc --span 5:9
score RUN:mdlm abc --marked
score RUN:ssd-lm abc
score RUN:mdlm-time abc --method strata
score RUN:ar abc --method pll
score RUN:mdlm abc --plan gibbs
serve
serve OUT/nothing --port 0
serve tiny-en tiny-en --port 0
variants RUN:mdlm --vcf VCF --genome FASTA
variants RUN:caduceus --vcf OUT/none --genome FASTA
variants RUN:mamba --vcf VCF --genome FASTA --method masked
embed RUN:mdlm TEXT --out OUT/x.csv
embed RUN:mdlm TEXT --out OUT/x.npy --pool max
compare TEXT FASTA --out OUT/cmp
compare FASTA FASTA --k 99 --out OUT/cmp
reproduce none
reproduce steps --scale huge
reproduce dna
convert RUN:mdlm RUN:mdlm
convert OUT/nothing OUT/y
convert RUN:mdlm OUT/y1 --to other
convert RUN:ar OUT/y2 --dtype int8
data show /no/such
data show TEXT train.steps=3
data
lm-eval --model unmask --model_args pretrained=OUT/nothing --tasks HARNESS
"""
RIGHT = """
eval RUN:mdlm --steps 5
fill RUN:ar
data show TEXT data.tokenizer=dna
--help
--version
train --help
demo --help
finetune --help
eval --help
sample --help
score --help
serve --help
variants --help
embed --help
compare --help
reproduce --help
convert --help
data --help
fill --help
train tiny --print-config
train owt train.steps=3 --print-config
finetune RUN:mdlm mdlm --data TEXT --print-config
reproduce lm --scale paper --out OUT/paper
"""


def group_exit(net: Net) -> None:
    """Exit codes of right and wrong commands; a crash is recorded by its name."""
    words = {
        "TEXT": str(net.data / "text.txt"),
        "FASTA": str(net.data / "genome.fa"),
        "VCF": str(net.data / "some.vcf"),
        "HARNESS": str(net.data / "harness/task.yaml"),
    }

    def filled(text: str) -> str:
        for word, value in words.items():
            text = re.sub(rf"(^|=){word}$", rf"\g<1>{value}", text)
        return re.sub(r"^RUN:", f"{net.runs}/", text).replace("OUT/", f"{net.out}/")

    for commands, expected in ((WRONG, "wrong"), (RIGHT, "right")):
        for command in map(shlex.split, commands.strip().splitlines()):
            code, out, err = net.unmask(*map(filled, command))
            crash = isinstance(code, str) or "Traceback" in err
            if (expected == "wrong") == (code == 0) or crash:
                net.failures.append(f"exit/{expected}: {' '.join(command)}: exit {code}: {err.strip()[-160:]}")
            options = sorted(set(re.findall(r"--[a-z][a-z-]+", out))) if "--help" in command else len(out) > 0
            net.put(f"{expected}/{' '.join(command)}", {"exit": code, "out": options, "lines": bool(err)})


# -- HTTP -----------------------------------------------------------------------------------------------------------


class Client:
    """Asks a server that runs in a process of its own."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> dict[str, Any]:
        """Status and body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        sent = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        given = {"Content-Type": "application/json"} if sent is not None else {}
        try:
            connection.request(method, path, sent, {**given, **(headers or {})})
            answer = connection.getresponse()
            text = answer.read().decode("utf-8")
        finally:
            connection.close()
        kind = (answer.getheader("Content-Type") or "").partition(";")[0]
        found: Any = events(text) if kind == "text/event-stream" else read(text) if kind == "application/json" else text
        return {"status": answer.status, "kind": kind, "body": found}


def events(text: str) -> list[Any]:
    """Server-sent events."""
    found = []
    for block in text.replace("\r\n", "\n").split("\n\n"):
        fields = [line.partition(":")[::2] for line in block.splitlines() if line and not line.startswith(":")]
        if fields:
            found.append({name: read(value.strip()) for name, value in fields})
    return found


@contextlib.contextmanager
def server(net: Net, *args: str, env: dict[str, str] | None = None) -> Iterator[Client]:
    """`unmask serve`, until the block ends."""
    child = subprocess.Popen(
        [sys.executable, "-m", "unmask", "serve", *args, "--port", "0", "--device", "cpu"], cwd=net.out,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})},
    )  # fmt: skip
    assert child.stderr is not None
    said = ""
    for line in child.stderr:
        said += line
        if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
            break
    else:
        raise RuntimeError(f"the server did not start: {said.strip()[-300:]}")
    try:
        yield Client(int(found[1]))
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            net.put(f"exit-{len(args)}", child.wait(30))
        except subprocess.TimeoutExpired:
            child.kill()


def merged(answer: dict[str, Any]) -> dict[str, Any]:
    """Events of a diffusion; how many steps come in one depends on the clock, so changes are put together."""
    kept, written = [], {}
    for event in answer["body"]:
        if event.get("event") != "step":
            kept.append(event)
            continue
        data = event["data"]
        for position, *what in data["changes"]:
            written[f"{data['index']}:{position}"] = what
    return {**answer, "body": kept, "written": written}


def group_http(net: Net) -> None:
    """Every path of the server, with what is right and wrong."""
    models = [f"{name}={net.run(name)}" for name in ("mdlm", "ar", "labels", "plaid", "ssd-lm", "mdlm-ends")]
    with server(net, "tiny-en", *models, "--max-length", "200", "--max-n", "4") as client:
        served(net, client)
    with server(net, f"mdlm={net.run('mdlm')}", env={"UNMASK_API_KEY": "secret"}) as client:
        for name, key in {"none": None, "wrong": "Bearer other", "right": "Bearer secret"}.items():
            headers = {"Authorization": key} if key else {}
            net.put(f"key/{name}", client.ask("POST", "/v1/tokenize", {"text": "abc"}, headers))
        net.put("key/health", client.ask("GET", "/health")["status"])


def served(net: Net, client: Client) -> None:
    """All questions to one server."""
    for path in ("/health", "/v1/models", "/v1/models/mdlm", "/v1/models/nothing", "/nothing", "/v1/infill"):
        net.put(f"get{path}", client.ask("GET", path))
    page = client.ask("GET", "/")
    net.put("page", {"status": page["status"], "kind": page["kind"]})
    answer = client.ask("GET", "/openapi.json")["body"]
    shape = {
        "paths": {path: sorted(verbs) for path, verbs in answer["paths"].items()},
        "operations": {
            p: {v: sorted(o["responses"]) for v, o in verbs.items()} for p, verbs in answer["paths"].items()
        },
        "schemas": answer["components"]["schemas"],
    }
    net.put("openapi", shape)
    infill = "/v1/infill"
    asked: dict[str, tuple[str, dict[str, Any]]] = {
        "infill/gaps": (
            infill,
            {"model": "mdlm", "text": "the {{3}} cat {{2}}.", "n": 2, "seed": 1, "steps": 6, "tokens": True},
        ),
        "infill/ranged": (infill, {"model": "mdlm", "text": "the {{2-4}} cat", "seed": 1, "steps": 6}),
        "infill/prompt": (
            infill,
            {
                "model": "mdlm",
                "prompt": "the ",
                "suffix": ".",
                "length": 20,
                "seed": 2,
                "sampler": "confidence",
                "k": 3,
            },
        ),
        "infill/filters": (
            infill,
            {
                "model": "mdlm",
                "prompt": "the ",
                "length": 16,
                "seed": 2,
                "top_p": 0.8,
                "top_k": 5,
                "min_p": 0.01,
                "temperature": 0.7,
                "ban": ["e", 3],
                "min_length": 5,
            },
        ),
        "infill/remask": (
            infill,
            {
                "model": "mdlm",
                "prompt": "the ",
                "length": 16,
                "seed": 2,
                "sampler": "remask-cap",
                "eta": 0.2,
                "steps": 8,
                "tokens": True,
            },
        ),
        "infill/threshold": (
            infill,
            {"model": "mdlm", "prompt": "the ", "length": 16, "seed": 2, "sampler": "entropy", "threshold": 2.0},
        ),
        "infill/stop": (
            infill,
            {"model": "mdlm", "prompt": "the ", "length": 30, "seed": 2, "stop": ["e", "a"], "stop_at_eos": True},
        ),
        "infill/stride": (
            infill,
            {"model": "mdlm", "prompt": "the ", "length": 60, "seed": 2, "stride": 16, "steps": 5},
        ),
        "infill/ends": (
            infill,
            {"model": "mdlm-ends", "prompt": "the ", "length": 40, "seed": 2, "stride": 16, "steps": 5},
        ),
        "infill/labels": (
            infill,
            {
                "model": "labels",
                "prompt": "the ",
                "length": 16,
                "seed": 2,
                "label": "loud",
                "guidance": 2.0,
                "steps": 5,
            },
        ),
        "infill/plaid": (infill, {"model": "plaid", "prompt": "the ", "length": 12, "seed": 2, "steps": 5, "n": 2}),
        "infill/ssd": (infill, {"model": "ssd-lm", "prompt": "the ", "length": 12, "seed": 2, "steps": 5, "n": 2}),
        "infill/ar": (infill, {"model": "ar", "prompt": "the ", "length": 20, "seed": 2}),
        "infill/tiny-en": (infill, {"text": "The {{2}} sat on the {{3}}.", "n": 2, "seed": 1}),
        "completions/plain": (
            "/v1/completions",
            {"model": "mdlm", "prompt": "the ", "max_tokens": 12, "seed": 1, "n": 2},
        ),
        "completions/list": (
            "/v1/completions",
            {"model": "mdlm", "prompt": ["the ", "old "], "max_tokens": 8, "seed": 1, "echo": True},
        ),
        "completions/suffix": (
            "/v1/completions",
            {"model": "mdlm", "prompt": "the ", "suffix": " dog.", "max_tokens": 8, "seed": 1},
        ),
        "completions/logprobs": (
            "/v1/completions",
            {"model": "mdlm", "prompt": "the ", "max_tokens": 6, "seed": 1, "logprobs": 3},
        ),
        "completions/ar": (
            "/v1/completions",
            {"model": "ar", "prompt": "the ", "max_tokens": 12, "seed": 1, "ignore_eos": True},
        ),
        "completions/tiny-en": (
            "/v1/completions",
            {"model": "tiny-en", "prompt": "One day", "max_tokens": 10, "seed": 1},
        ),
        "score/text": ("/v1/score", {"model": "mdlm", "text": "the red cat."}),
        "score/texts": (
            "/v1/score",
            {"model": "mdlm", "texts": ["the red cat.", "dog"], "method": "bound", "draws": 3, "seed": 4},
        ),
        "score/spans": ("/v1/score", {"model": "mdlm", "text": "the red cat.", "spans": [[4, 7]], "method": "exact"}),
        "score/orders": ("/v1/score", {"model": "mdlm", "text": "the cat", "method": "orders", "orders": 3}),
        "score/pll": ("/v1/score", {"model": "mdlm", "text": "the cat", "method": "pll"}),
        "score/strata": ("/v1/score", {"model": "mdlm", "text": "the cat", "method": "strata", "draws": 2, "calls": 4}),
        "score/labels": ("/v1/score", {"model": "labels", "text": "the cat", "label": "soft"}),
        "score/ar": ("/v1/score", {"model": "ar", "text": "the cat"}),
        "score/ssd": ("/v1/score", {"model": "ssd-lm", "text": "the cat"}),
        "tokenize/plain": ("/v1/tokenize", {"model": "mdlm", "text": "the cat"}),
        "tokenize/gaps": ("/v1/tokenize", {"model": "tiny-en", "text": "The {{2}} sat on {{1-3}}."}),
        "wrong/model": (infill, {"model": "nothing", "text": "a{{1}}"}),
        "wrong/field": (infill, {"text": "a{{1}}", "stepz": 3}),
        "wrong/steps": (infill, {"text": "a{{1}}", "steps": 0}),
        "wrong/many-steps": (infill, {"text": "a{{1}}", "steps": 5000}),
        "wrong/sampler": (infill, {"text": "a{{1}}", "sampler": "none"}),
        "wrong/unfit-sampler": (infill, {"model": "mdlm", "text": "a{{1}}", "sampler": "simplex"}),
        "wrong/long": (infill, {"model": "mdlm", "length": 500}),
        "wrong/too-long": (infill, {"model": "mdlm", "length": 100}),
        "wrong/n": (infill, {"model": "mdlm", "length": 10, "n": 9}),
        "wrong/both": (infill, {"model": "mdlm", "text": "a{{1}}", "prompt": "b"}),
        "wrong/no-gap": (infill, {"model": "mdlm", "text": "a"}),
        "wrong/type": (infill, {"model": "mdlm", "text": 5}),
        "wrong/label": (infill, {"model": "mdlm", "length": 8, "label": "x"}),
        "wrong/ar-suffix": (infill, {"model": "ar", "prompt": "a", "suffix": "b", "length": 8}),
        "wrong/penalty": ("/v1/completions", {"prompt": "a", "presence_penalty": 1.0}),
        "wrong/best-of": ("/v1/completions", {"prompt": "a", "best_of": 3}),
        "wrong/score-both": ("/v1/score", {"text": "a", "texts": ["b"]}),
        "wrong/score-none": ("/v1/score", {}),
        "wrong/score-method": ("/v1/score", {"text": "a", "method": "none"}),
        "wrong/score-exact": ("/v1/score", {"model": "mdlm", "text": "the red cat sees the dog", "method": "exact"}),
        "wrong/score-span": ("/v1/score", {"model": "mdlm", "text": "abc", "spans": [[2, 9]]}),
        "wrong/tokenize": ("/v1/tokenize", {}),
    }
    for name, (path, body) in asked.items():
        net.call(name, lambda path=path, body=body: client.ask("POST", path, body))
    for name, body in {
        "plain": {"model": "mdlm", "prompt": "the ", "max_tokens": 12, "seed": 1, "sampler": "left-to-right"},
        "usage": {
            "model": "ar",
            "prompt": "the ",
            "max_tokens": 12,
            "seed": 1,
            "stream_options": {"include_usage": True},
        },
    }.items():
        net.call(
            f"stream/{name}",
            lambda body=body: streamed(client.ask("POST", "/v1/completions", {**body, "stream": True})),
        )
    for name, body in {
        "gaps": {"model": "mdlm", "text": "the {{3}} cat {{2}}.", "n": 2, "seed": 1, "steps": 6, "tops": 2},
        "prompt": {"model": "mdlm", "prompt": "the ", "length": 20, "seed": 3, "sampler": "margin", "k": 4},
        "remask": {"model": "mdlm", "length": 16, "seed": 3, "sampler": "remask-rescale", "eta": 0.2, "steps": 8},
        "plaid": {"model": "plaid", "length": 10, "seed": 3, "steps": 5},
        "ssd": {"model": "ssd-lm", "length": 10, "seed": 3, "steps": 5},
        "tiny-en": {"prompt": "Once upon a time", "length": 16, "steps": 8, "seed": 5, "tops": 1},
        "wrong": {"model": "mdlm", "text": "nothing"},
    }.items():
        net.call(f"diffusion/{name}", lambda body=body: diffused(client.ask("POST", "/v1/diffusion", body)))
    raw = {"no-json": b"{", "list": b"[]", "not-utf8": b"\xff\xfe", "nan": b'{"text": NaN}', "empty": b""}
    for name, body in raw.items():
        net.call(f"raw/{name}", lambda body=body: client.ask("POST", infill, body))
    net.put("raw/kind", client.ask("POST", infill, b"{}", {"Content-Type": "text/plain"}))
    net.put("raw/host", client.ask("GET", "/health", None, {"Host": "evil.example"}))
    net.put("raw/large", client.ask("POST", infill, b" " * 1_100_000)["status"])
    net.put("raw/method", client.ask("DELETE", infill))
    figures = client.ask("GET", "/metrics")["body"]
    net.put("metrics", sorted({re.split(r"[ {]", line)[0] for line in figures.splitlines() if line and line[0] != "#"}))


def diffused(answer: dict[str, Any]) -> dict[str, Any]:
    """Events, or the refusal."""
    return merged(answer) if isinstance(answer["body"], list) else answer


def streamed(answer: dict[str, Any]) -> dict[str, Any]:
    """The text of a stream in one piece, with the fields of its chunks: its cuts depend on the clock."""
    chunks = [event["data"] for event in answer["body"] if isinstance(event.get("data"), dict)]
    text = "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
    ends = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    usage = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    return {
        "status": answer["status"],
        "text": text,
        "ends": ends,
        "usage": usage,
        "fields": sorted(chunks[0]) if chunks else [],
    }


def group_reproduce(net: Net) -> None:
    """Tables of the paper at the smallest scale."""
    text, place = str(net.data / "text.txt"), str(net.work / "reproduce")
    for name in ("steps", "schedules", "variance-curve", "lm", "semi-ar", "ablation", "time-conditioning"):
        net.ask(name, "reproduce", name, "--data", text, "--out", place, "--quiet", "--json")
    for name, local in {"bert": "glue"}.items():
        own = ["--local", str(net.data / local)]
        net.ask(name, "reproduce", name, "--data", text, "--out", place, "--quiet", "--json", *own)
    net.ask("dna", "reproduce", "dna", "--data", str(net.data / "genome.fa"), "--out", place, "--quiet", "--json")
    for path in sorted(Path(place).rglob("results.json")):
        net.put(f"{path.parent.relative_to(place)}/results", read(path.read_text(encoding="utf-8")))
        net.put(f"{path.parent.relative_to(place)}/files", sorted(p.name for p in path.parent.iterdir()))
    net.ask("paper", "reproduce", "ablation", "--scale", "paper", "--out", place, "--json")


def group_harness(net: Net) -> None:
    """The lm-evaluation-harness on a task of our own."""
    import logging

    for run in ("mdlm", "ar"):
        out = net.out / f"harness-{run}"
        shutil.rmtree(out, ignore_errors=True)
        args = ["lm-eval", "--model", "unmask", "--model_args", f"pretrained={net.run(run)},draws=4", "--tasks",
                str(net.data / "harness/task.yaml"), "--output_path", str(out), "--log_samples"]  # fmt: skip
        code, _, err = net.unmask(*args)
        logging.disable(logging.NOTSET)
        found = sorted(out.rglob("results*.json"))
        if code or not found:
            net.failures.append(f"harness/{run}: exit {code}: {err.strip()[-300:]}")
            net.put(run, {"exit": code, "said": (err.strip() or " ").splitlines()[-1]})
            continue
        results = json.loads(found[0].read_text())
        net.put(run, {"results": results["results"], "unmask": results["config"].get("unmask")})
        samples = [
            json.loads(line) for path in sorted(out.rglob("samples*.jsonl")) for line in path.read_text().splitlines()
        ]
        net.put(
            f"{run}-samples",
            [[one["doc_id"], one["filtered_resps"]] for one in sorted(samples, key=lambda s: s["doc_id"])],
        )


GROUPS: dict[str, Callable[[Net], None]] = {
    "train": group_train, "finetune": group_finetune, "resume": group_resume, "eval": group_eval,
    "generative": group_generative, "sample": group_sample, "score": group_score, "python": group_python,
    "dna": group_dna, "data": group_data, "convert": group_convert, "exit": group_exit, "http": group_http,
    "reproduce": group_reproduce, "harness": group_harness,
}  # fmt: skip


# -- the two commands ------------------------------------------------------------------------------------------------


def record(args: argparse.Namespace) -> int:
    """Ask everything, and write the answers."""
    work = Path(args.work or tempfile.mkdtemp(prefix="safety-net-"))
    net = Net(work, Path(args.runs) if args.runs else None, args.only)
    for folder in (net.out, net.work / "cache"):
        folder.mkdir(parents=True, exist_ok=True)
    os.environ["UNMASK_CACHE"] = str(net.work / "cache")
    os.chdir(net.out)
    import torch

    import unmask

    torch.set_num_threads(1)
    where = str(Path(unmask.__file__).parent)
    sys.stderr.write(f"recording {where}, work in {net.work}\n")
    if not args.runs and not (net.data / "bert/config.json").is_file():
        materials(net.data)
    done = {}
    for name, function in GROUPS.items():
        if (net.only and not net.only.fullmatch(name)) or (args.runs and name in TRAINING):
            continue
        if name in ("train", "finetune", "resume"):
            names = {"train": [*TEXTS, "labels", *GENOMES], "finetune": [*tuned(net.data, net.runs)], "resume": []}[
                name
            ]
            for old in [*(net.runs / run for run in names), *(net.runs.glob("resume-*") if name == "resume" else [])]:
                shutil.rmtree(old, ignore_errors=True)
        net.group, begun, before = name, time.monotonic(), len(net.entries)
        try:
            function(net)
        except Exception as error:  # the other groups are still recorded
            traceback.print_exc()
            net.failures.append(f"{name}: stopped by {type(error).__name__}: {error}")
            net.put("stopped", f"{type(error).__name__}: {error}")
        done[name] = len(net.entries) - before
        sys.stderr.write(f"{name}: {done[name]} entries, {time.monotonic() - begun:.0f} s\n")
    for line in net.failures:
        sys.stderr.write(f"failed: {line}\n")
    document = {"groups": list(done), "code": where, "entries": net.entries, "failures": net.plain(net.failures)}
    Path(args.out_file).write_text(json.dumps(document), encoding="utf-8")
    text = json.dumps(net.entries, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    sys.stderr.write(f"{len(net.entries)} entries, {len(net.failures)} failures, digest {digest}\n")
    if not args.work:
        shutil.rmtree(work, ignore_errors=True)
    return 0


def differing(one: Any, other: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every leaf in which two trees differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *(key for key in other if key not in one)]:
            if key not in one or key not in other:
                yield f"{place}.{key}", one.get(key, "(missing)"), other.get(key, "(missing)")
            else:
                yield from differing(one[key], other[key], f"{place}.{key}")
    elif isinstance(one, list) and isinstance(other, list):
        if len(one) != len(other):
            yield f"{place}.length", len(one), len(other)
        for i, (a, b) in enumerate(zip(one, other, strict=False)):
            yield from differing(a, b, f"{place}[{i}]")
    elif not same(one, other):
        yield place, one, other


def same(one: Any, other: Any) -> bool:
    """Whether two leaves agree: floats nearly, all else exactly."""
    numeric = isinstance(one, int | float) and isinstance(other, int | float)
    if (
        numeric
        and (isinstance(one, float) or isinstance(other, float))
        and not isinstance(one, bool) | isinstance(other, bool)
    ):
        return math.isclose(one, other, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    return type(one) is type(other) and one == other


def count(tree: Any) -> int:
    """The leaves of a tree."""
    if isinstance(tree, dict):
        return sum(map(count, tree.values()))
    return sum(map(count, tree)) if isinstance(tree, list) else 1


def compare(args: argparse.Namespace) -> int:
    """A line for each group of entries, and the first values that differ."""
    documents = [json.loads(Path(path).read_text(encoding="utf-8")) for path in (args.one, args.other)]
    one, other = (document["entries"] for document in documents)
    both = [group for group in documents[0]["groups"] if group in documents[1]["groups"]]
    wrong = False
    for group in [*documents[0]["groups"], *(g for g in documents[1]["groups"] if g not in documents[0]["groups"])]:
        names = [name for name in {**one, **other} if name.partition("/")[0] == group]
        if group not in both:
            sys.stdout.write(f"{group}: {len(names)} entries, only in one recording, not compared\n")
            continue
        values, found, bad = 0, [], set()
        for name in names:
            values += count(one.get(name))
            for place, a, b in differing(one.get(name, "(missing)"), other.get(name, "(missing)")):
                bad.add(name)
                if len(found) < args.show:
                    found.append(f"  {name}{place}: {short(a)} | {short(b)}\n")
        state = "OK" if not bad else f"{len(bad)} entries differ"
        sys.stdout.write(f"{group}: {len(names)} entries, {values:,} values, {state}\n" + "".join(found))
        wrong |= bool(bad)
    return int(wrong)


def short(value: Any) -> str:
    """A value in a few words."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 160 else text[:160] + "..."


def main() -> int:
    """Parse, and do it."""
    parser = argparse.ArgumentParser(description="Record what unmask does, and compare two recordings.")
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="write the answers of the code on PYTHONPATH to a file")
    recording.add_argument("out_file", type=lambda text: str(Path(text).resolve()))
    recording.add_argument(
        "--work", "--root", help="folder of data, runs and cache, which is kept (default: a temporary one)"
    )
    recording.add_argument(
        "--runs", help="the --work folder of an earlier recording: its runs are used, nothing is trained"
    )
    recording.add_argument("--only", help="groups, as a regular expression, for example 'sample|score'")
    comparing = commands.add_parser("compare", help="say where two recordings differ")
    comparing.add_argument("one")
    comparing.add_argument("other")
    comparing.add_argument("--show", type=int, default=6, help="differing values to show of a group")
    args = parser.parse_args()
    return record(args) if args.command == "record" else compare(args)


if __name__ == "__main__":
    os.environ.update(
        OMP_NUM_THREADS="1",
        MKL_NUM_THREADS="1",
        HF_HUB_OFFLINE="1",
        HF_DATASETS_OFFLINE="1",
        TRANSFORMERS_OFFLINE="1",
        TOKENIZERS_PARALLELISM="false",
        NO_COLOR="1",
        COLUMNS="200",
    )
    sys.exit(main())
