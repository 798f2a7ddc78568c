"""A full disk while tokenizing, logging and saving: one sentence, nothing lost, and with space again it goes on."""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ledger import Ledger, hold
from trainings import Ended, arguments, corpus, intact_steps, preload, ran, same_end, undisturbed

MEGABYTES = 8


def run(ledger: Ledger) -> None:
    """A file system of 8 MB with a random number of bytes left, on which the cache, the run or a model is written."""
    preload()
    text, said = corpus(ledger.work), ledger.work / "said"
    reference, _ = undisturbed(ledger.work, text)
    with _small(ledger) as place:
        for number, rng in ledger.cases(60, 9):
            kind = ("tokenizing", "logging and saving", "saving a model for others")[number % 3]
            with ledger.case(f"no space left while {kind}", number, place.name):
                KINDS[kind](place, rng, text, reference, said)


@contextmanager
def _small(ledger: Ledger) -> Iterator[Path]:
    """A file system that is soon full; where none can be mounted, files that may not grow."""
    place = ledger.work / "small"
    place.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={MEGABYTES}m", "tmpfs", str(place)]
    mounted = os.geteuid() == 0 and subprocess.run(["mount", *options], capture_output=True).returncode == 0
    if not mounted:
        ledger.notes.append("disk: nothing can be mounted here; files were kept from growing (RLIMIT_FSIZE) instead")
    try:
        yield place
    finally:
        if mounted:
            subprocess.run(["umount", str(place)], check=True)


def _full(place: Path, left: int, command: list[str], said: Path) -> Ended:
    """Run a command on a file system with `left` bytes, and give the space back."""
    filler = place / "filler"
    if not os.path.ismount(place):
        return ran(command, said, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (left, resource.RLIM_INFINITY)))
    free = shutil.disk_usage(place).free
    with filler.open("wb") as file:
        file.write(b"\0" * max(0, free - left))
    try:
        return ran(command, said)
    finally:
        filler.unlink()


def _refused(ended: Ended) -> bool:
    """Whether a command ended in one sentence; False where there was enough space for it."""
    if ended.code == 0:
        return False
    hold(ended.code == 2 and "Traceback" not in ended.said, f"code {ended.code}: {ended.said}")
    hold(ended.sentence.startswith("unmask: "), f"no sentence of ours: {ended.said}")
    words = ("space left", "file too large", "no space")
    hold(any(word in ended.sentence.lower() for word in words), f"it does not say why: {ended.sentence}")
    return True


def _tokenizing(place: Path, rng: random.Random, text: Path, reference: Path, said: Path) -> None:
    cache, out = place / "cache", place.parent / "elsewhere" / "run"
    for path in (cache, out.parent):
        shutil.rmtree(path, ignore_errors=True)
    command = arguments(text, out, cache=cache)
    need = sum(path.stat().st_size for path in (reference.parent / "cache").rglob("*") if path.is_file())
    _refused(_full(place, rng.randrange(need + 8192), command, said))
    hold(not list(cache.rglob(".*.part")), "parts of packed data were left")
    hold(ran(command, said).code == 0, f"with space it does not go on: {said.read_text()}")
    same_end(out, reference)


def _saving(place: Path, rng: random.Random, text: Path, reference: Path, said: Path) -> None:
    out = place / "run"
    shutil.rmtree(out, ignore_errors=True)
    command = arguments(text, out, cache=reference.parent / "cache")
    need = sum(path.stat().st_size for path in reference.rglob("*") if path.is_file())
    _refused(_full(place, rng.randrange(int(1.5 * need)), command, said))
    intact_steps(out)  # whatever has the name of a checkpoint is one
    hold(ran(command, said).code == 0, f"with space it does not go on: {said.read_text()}")
    same_end(out, reference)


def _model(place: Path, rng: random.Random, text: Path, reference: Path, said: Path) -> None:
    out = place / "model"
    shutil.rmtree(out, ignore_errors=True)
    command = ["convert", str(reference), str(out)]
    hold(ran(command, said).code == 0, f"a run cannot be converted: {said.read_text()}")
    need = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    shutil.rmtree(out)
    if _refused(_full(place, rng.randrange(need), command, said)):
        hold(not out.exists() and not list(place.glob(".*")), f"something was left: {list(place.iterdir())}")
    shutil.rmtree(out, ignore_errors=True)
    hold(ran(command, said).code == 0, f"with space it does not go on: {said.read_text()}")


KINDS: dict[str, Callable[[Path, random.Random, Path, Path, Path], None]] = {
    "tokenizing": _tokenizing,
    "logging and saving": _saving,
    "saving a model for others": _model,
}
