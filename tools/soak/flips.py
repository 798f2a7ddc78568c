"""Flipped bits and cut files: in a checkpoint, a model folder and packed data. Each is named, none is loaded."""

from __future__ import annotations

import logging
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ledger import Ledger, hold
from trainings import STEPS, arguments, corpus, preload, ran


def run(ledger: Ledger) -> None:
    """200 random ones over every file of each."""
    preload()
    text, said = corpus(ledger.work), ledger.work / "said"
    out, portable = ledger.work / "run", ledger.work / "model"
    genome = ledger.work / "toy.fa"
    bases = "".join(random.Random(0).choices("ACGTacgtN", k=20_000))
    genome.write_text(">chr1\n" + "\n".join(bases[i : i + 60] for i in range(0, len(bases), 60)) + "\n")
    os.utime(genome, (1e9, 1e9))
    labelled = ledger.work / "labelled.jsonl"
    labelled.write_text("".join(f'{{"text": "number {i} of all", "label": "{i % 3}"}}\n' for i in range(400)))
    os.utime(labelled, (1e9, 1e9))
    padded = ["data.layout=pad", "data.label=label", "data.tokenizer=chars"]
    for command in (arguments(text, out), ["convert", str(out), str(portable)]):
        ended = ran(command, said)
        hold(ended.code == 0, f"it cannot be made: {ended.said}")
    step = out / "checkpoints" / f"step-{STEPS:08d}"
    subjects: dict[str, tuple[Path, Callable[[Path], Any]]] = {
        "a checkpoint": (step, _checkpoint),
        "a model folder": (portable, _model),
        "packed text": (_packed(ledger.work / "cache-text", text, []), _rows(text, [])),
        "packed labelled documents": (_packed(ledger.work / "cache-pad", labelled, padded), _rows(labelled, padded)),
        "a packed genome": (
            _packed(ledger.work / "cache-dna", genome, ["data.tokenizer=dna"]),
            _rows(genome, ["data.tokenizer=dna"]),
        ),
    }
    for what, (folder, read) in subjects.items():
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
        sound = read(folder)
        for number, rng in ledger.cases(200, 25):
            path = files[number % len(files)]
            about = f"{path.name}, number {number}"
            kind = "bits flipped" if rng.random() < 0.7 else "files cut short"
            with ledger.case(f"{kind} in {what}", number, about):
                _damaged(path, kind, rng, lambda: read(folder), sound, folder)  # noqa: B023
        ledger.notes.append(f"{what}: {len(files)} files")


def _damaged(path: Path, kind: str, rng: random.Random, read: Callable[[], Any], sound: Any, folder: Path) -> None:
    """Damage a file, read it, and put it back."""
    from unmask.types import UserError

    spare = folder.with_name(f"{folder.name}-spare")
    shutil.rmtree(spare, ignore_errors=True)
    shutil.copytree(folder, spare, symlinks=True)
    data = bytearray(path.read_bytes())
    if kind == "bits flipped":
        bit = rng.randrange(8 * len(data))
        data[bit // 8] ^= 1 << bit % 8
    else:
        data = data[: rng.randrange(len(data))]
    path.write_bytes(data)
    try:
        seen = read()
    except UserError as error:
        hold(str(path) in str(error) or path.name in str(error), f"the sentence does not name {path.name}: {error}")
    else:
        hold(_same(seen, sound), f"{path.name} was read although it was damaged")
    finally:
        shutil.rmtree(folder)
        spare.rename(folder)


def _same(first: Any, second: Any) -> bool:
    """Whether nothing that is read has changed: a space of the JSON, say, or packed data that were made again."""
    return bool(first == second)


def _checkpoint(folder: Path) -> Any:
    """Everything that a training or a sample reads of a checkpoint."""
    from unmask.hub import checkpoint, resolve

    checkpoint.verify(folder)
    lm = resolve.load(folder)
    return {name: value.numpy().tobytes() for name, value in lm.model.state_dict().items()}, lm.config.to_yaml()


def _model(folder: Path) -> Any:
    from unmask.hub import resolve

    lm = resolve.load(folder)
    weights = {name: value.numpy().tobytes() for name, value in lm.model.state_dict().items()}
    return weights, lm.config.to_yaml(), lm.tokenizer.digest, lm.encode("one two"), lm.labels


def _spec(source: Path, settings: list[str], cache: Path) -> Any:
    from unmask.config import Config

    base = ["data.tokenizer=bytes", "data.length=16", *settings]
    return Config().override([*base, f"data.source={source}", f"data.cache={cache}"]).data


def _rows(source: Path, settings: list[str]) -> Callable[[Path], Any]:
    """What a training sees of packed data, which are made again where they are damaged."""

    def read(cache: Path) -> Any:
        from unmask.data.pack import prepare

        logging.disable(logging.WARNING)
        prepared = prepare(_spec(source, settings, cache))
        rows = prepared.split("train")
        seen = [
            part.tobytes() for part in (*rows.rows(range(len(rows))), rows.labels(range(len(rows)))) if part is not None
        ]
        return prepared.fingerprint, prepared.tokenizer.digest, prepared.labels, rows.facts, seen

    return read


def _packed(cache: Path, source: Path, settings: list[str]) -> Path:
    _rows(source, settings)(cache)
    return cache
