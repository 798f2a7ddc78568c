"""Two or more trainings on one folder: the first goes on as if alone, the others are refused in one sentence."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from ledger import Ledger, hold
from trainings import arguments, corpus, fork, preload, same_end, undisturbed, wait

OTHERS = 3


def run(ledger: Ledger) -> None:
    """Some start together, some while another is under way."""
    preload()
    text = corpus(ledger.work)
    reference, seconds = undisturbed(ledger.work, text)
    for number, rng in ledger.cases(20, 3):
        folder = ledger.work / f"case-{number}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        pause = rng.uniform(0, seconds / 2) if number % 2 else 0.0
        how = "later" if number % 2 else "at the same moment"
        with ledger.case(f"trainings on the folder of another, started {how}", number, tried=OTHERS):
            _together(folder, text, reference, pause)


def _together(folder: Path, text: Path, reference: Path, pause: float) -> None:
    out = folder / "run"
    command = arguments(text, out)
    files = [folder / f"said-{i}" for i in range(OTHERS + 1)]
    children = []
    for i, said in enumerate(files):
        children.append(fork(command, said))
        if i == 0:
            time.sleep(pause)
    results = [wait(child, said) for child, said in zip(children, files, strict=True)]
    for result in results:
        if result.code:
            hold(result.code == 2 and result.sentence.startswith("unmask: another process is training"), result.said)
    hold(any(result.code == 0 for result in results), "none of them trained")
    same_end(out, reference)
    shutil.rmtree(folder)
