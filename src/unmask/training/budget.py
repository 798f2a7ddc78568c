"""Time as a setting: what a run costs on this machine, measured on a copy, and the steps that fit into train.minutes.

The copy is thrown away, so that measuring changes nothing: a run with train.minutes is, bit for bit, the run with the
train.steps that were chosen. They are kept in the config of the run, which is continued with them.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import torch

from ..config import Config
from ..distributed import World
from ..files import temporary_folder
from ..hub import checkpoint
from ..progress import clock
from .loop import TrainingJob
from .step import Trainer

UNTIMED = 2  # first steps: memory is taken, kernels are chosen
FEWEST, MOST = 3, 50  # timed steps
SHARE = 0.02  # of the time, for measuring, if that is enough for the fewest


@dataclass(frozen=True)
class Cost:
    """Seconds of each thing that a run does, and the memory of the process at its peak."""

    step: float
    evaluation: float = 0.0
    samples: float = 0.0
    checkpoint: float = 0.0
    memory: int = 0  # bytes

    def seconds(self, config: Config) -> float:
        """All of a run; every evaluation may be the best so far, which is saved."""
        spec = config.resolved()
        steps = spec.train.steps
        evaluations = _times(steps, spec.eval.every) or 1
        written = _times(steps, spec.sample.every)
        saved = _times(steps, spec.train.checkpoint_every) + evaluations
        return steps * self.step + evaluations * self.evaluation + written * self.samples + saved * self.checkpoint


def _times(steps: int, every: float) -> int:
    """How often something is done that is due every so many steps and at the end."""
    return -(-steps // int(every)) if every else 0


def fitting(config: Config, cost: Cost, seconds: float) -> Config:
    """The config with as many steps as fit into a time, at least one, and shares of them in steps."""
    least, most = 1, max(1, int(seconds / cost.step))
    while least < most:
        middle = (least + most + 1) // 2
        if cost.seconds(config.changed(train={"steps": middle})) <= seconds:
            least = middle
        else:
            most = middle - 1
    return config.changed(train={"steps": least}).resolved()


def measure(job: TrainingJob, out: Path, world: World, seconds: float) -> Cost:
    """What a run costs: its model is trained for some steps, and is of no use then (all processes call and agree)."""
    trainer = Trainer(job.config.resolved(), job.model, world, job.cut)
    begin, spent = time.monotonic(), [0.0]
    while len(spent) <= UNTIMED + MOST:
        trainer.step(job.data, len(spent) - 1)
        spent.append(mean_over(time.monotonic() - begin, world))
        timed = len(spent) - 1 - UNTIMED
        if (timed >= FEWEST and spent[-1] > SHARE * seconds) or (timed < FEWEST and spent[-1] > seconds / 10):
            break  # the latter: steps so long that even a few would take too much of the time
    first = min(UNTIMED, len(spent) - 2)
    streams = sum(
        job.streams(number) for number in range(first, len(spent) - 1)
    )  # some steps may read more than others
    step = (spent[-1] - spent[first]) / streams * job.streams()
    samples = mean_over(_timed(lambda: job.samples(trainer, 0)), world) if job.config.sample.every else 0.0
    evaluation = mean_over(job.evaluation_seconds(trainer), world)
    saving = mean_over(_timed(lambda: _save(trainer, out / "measuring", world)), world)
    return Cost(max(step, 1e-6), evaluation, samples, saving, peak_memory(world.device))


def mean_over(value: float, world: World) -> float:
    """The mean over all processes: the same number everywhere."""
    return float(world.sum(torch.tensor([value], dtype=torch.float64)).item()) / world.size


def _timed(work: Callable[[], object]) -> float:
    begin = time.monotonic()
    work()
    return time.monotonic() - begin


def _save(trainer: Trainer, folder: Path, world: World) -> None:
    """Write a checkpoint and delete it (all processes call)."""
    if world.main:
        with checkpoint.writing(folder) as temporary:
            world.barrier()
            trainer.save(temporary)
        shutil.rmtree(folder)
    else:
        world.barrier()  # until the folder is there
        trainer.save(temporary_folder(folder))
    world.barrier()


def peak_memory(device: torch.device) -> int:
    """The most memory that this process has had, in bytes; 0 where nobody knows."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def describe(config: Config, cost: Cost) -> str:
    """A sentence for people: what is done, and until when."""
    spec = config.train
    seconds = cost.seconds(config)
    memory = f", {cost.memory / 2**30:.1f} GB of memory" if cost.memory else ""
    rate = f"then {spec.decay}" + (f" to {spec.final_lr * spec.lr:g}" if spec.decay != "constant" else "")
    if spec.decay == "wsd":
        rate = f"then constant, over the last {spec.decay_share:.0%} of the steps linear to {spec.final_lr * spec.lr:g}"
    return (
        f"{spec.steps:,} steps of {spec.batch_size} rows, {cost.step:.3g} s each (learning rate {spec.lr:g}: "
        f"{spec.warmup:.0f} steps of warm-up, {rate}); {clock(seconds)} with evaluations and checkpoints, "
        f"until about {ending(seconds)}{memory}"
    )


def ending(seconds: float) -> str:
    """The time of day in so many seconds, with the date if that is not today."""
    now = datetime.now().astimezone()
    then = now + timedelta(seconds=seconds)
    return f"{then:%H:%M}" if then.date() == now.date() else f"{then:%Y-%m-%d %H:%M}"
