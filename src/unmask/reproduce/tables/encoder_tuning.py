"""An encoder that somebody has, made a generator: its bound, its samples and GLUE before and after MDLM fine-tuning.

The paper does this with a MosaicBERT of its own (section 5.1). Here it is any masked LM or encoder of transformers; one
without a head for masks gets a fresh head, tied to its embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...config import Config
from ...lm import LM
from ...models import registry
from ...training.adapt import language_config, load_start
from ...training.finetune import TaskResult
from ...training.text import TrainResult, train
from ...types import UserError
from .. import paper
from ..bench import Bench, ScoredModel
from ..berts import BertBench, GlueSizes
from ..report import Report, Row, Table
from .glue_tables import FIVE, available, gap, glue_table, learned, sided, task_protocol
from .perplexity import LOWER, compared

BEFORE, AFTER = "before", "after"
SAMPLES, SAMPLE_LENGTH, SAMPLE_STEPS = 4, 40, 128
ROWS = 256


@dataclass(frozen=True)
class Tuning:
    """The fine-tuning and the tasks of a scale; the warm-up takes half of the steps, as in the paper."""

    length: int
    steps: int
    lr: float
    tasks: GlueSizes
    names: tuple[str, ...] = FIVE


TUNINGS = {
    "smoke": Tuning(32, 6, 5e-4, GlueSizes(1e-4, 1, 32, 2), ("glue/rte",)),
    "small": Tuning(64, 500, 3e-4, GlueSizes(1e-4, 3, 200, 2)),
    "paper": Tuning(128, 5000, 5e-5, GlueSizes()),
}


class EncoderBench(BertBench):
    """A bench with one model: an encoder from elsewhere, before and after."""

    base = AFTER
    start = ""  # the encoder

    @property
    def tuning(self) -> Tuning:
        """What is done at this scale."""
        if self.scale.name not in TUNINGS:
            raise UserError(f"this table has the scales {', '.join(TUNINGS)}, not {self.scale.name}")
        return TUNINGS[self.scale.name]

    @property
    def task_sizes(self) -> GlueSizes:
        """How the classifiers of this scale are trained."""
        return self.tuning.tasks

    @property
    def folder(self) -> Path:
        """All that belongs to this scale, text and encoder."""
        return super().folder / f"encoder-{Path(self.start.rstrip('/')).name}"

    def lm(self, name: str) -> LM:
        """The encoder as it is, or fine-tuned."""
        if name == BEFORE and name not in self._loaded:
            self._loaded[name] = load_start(self.start, "ema", "last", None)
        return super().lm(name) if name == AFTER else self._loaded[name]

    def config(self, name: str) -> Config:
        """The settings of the fine-tuning."""
        own = self.tuning
        changes = [
            f"data.length={own.length}",
            f"train.steps={own.steps}",
            "train.batch_size=16",
            f"train.lr={own.lr}",
            f"train.warmup={own.steps // 2}",
            "train.checkpoint_every=100",
            "train.keep_last=1",
            "train.log_every=5",
            "eval.every=0",
            "eval.rows=128",
            "eval.draws=1",
            "objective.cutoff=0.01",
            f"seed={self.seed}",
        ]
        return language_config(self.lm(BEFORE), self.start, "mdlm", self.source, None, changes)

    @property
    def scored_rows(self) -> int:
        """Rows of the split that perplexities are of."""
        return ROWS

    def trainable(self) -> list[str]:
        """The fine-tuned encoder."""
        return [AFTER]

    def finished(self, name: str) -> bool:
        """Whether a model is there."""
        return name == BEFORE or Bench.finished(self, name)

    def commands(self, names: list[str]) -> list[str]:  # type: ignore[override]
        """How to fine-tune it on a cluster."""
        many, out = "torchrun --nproc-per-node 8 -m unmask", self.path(AFTER)
        return [f"{many} finetune {self.start} mdlm --data {self.source} train.precision=bf16 --out {out}"]

    def run(self, name: str, path: Path) -> TrainResult:
        """Fine-tune, or continue."""
        return train(self.config(name), path, quiet=self.quiet, start=self.lm(BEFORE))

    def words(self) -> list[str]:
        """Which encoder."""
        return ["--model", self.start]

    def classifiers(self, name: str, task: str) -> list[TaskResult]:
        """A task, learned once a seed."""
        path = self.start if name == BEFORE else str(self.path(name))
        return self.learn(self.lm(name), path, self.folder / "tasks" / name, task)

    def bound(self, name: str) -> ScoredModel:
        """The bound under the law of the fine-tuning, before and after."""
        config = self.config(AFTER)
        law, schedule = registry.law(config.objective, config.schedule), registry.schedule(config.schedule)
        return self.score(name, lambda model: model.under(schedule, law), limit=self.scored_rows)


def encoder(bench: Bench) -> Report:
    """The encoder before and after: bound, samples, GLUE."""
    assert isinstance(bench, EncoderBench)
    known = available(bench.tuning.names, bench.local)
    bench.need([AFTER])
    both, length = (BEFORE, AFTER), min(SAMPLE_LENGTH, bench.tuning.length)
    scored = {name: bench.bound(name) for name in both}
    values = {name: learned(bench, name, known) for name in both}
    texts = [
        Row(f"{name}, seed {seed}", {}, {"text": text})
        for name in both
        for seed, text in enumerate(_samples(bench.lm(name), length))
    ]
    change = gap(values[AFTER], values[BEFORE])
    bounds = [Row(name, {}, {paper.PPL: own.perplexity}) for name, own in scored.items()]
    return bench.report(
        "encoder",
        paper.BERT_PPL.label,
        [
            Table("Perplexity by the bound of MDLM", paper.BERT_PPL.label, [paper.PPL], bounds),
            glue_table(values, {}, "GLUE, dev sets, before and after"),
            Table("Samples", "here", ["text"], texts),
        ],
        checks=[
            compared("MDLM fine-tuning lowers the bound", scored[AFTER], scored[BEFORE]),
            sided("MDLM fine-tuning does not lower the mean of GLUE", change, at_least=True),
        ],
        protocol={
            "encoder": bench.start,
            "test_rows": min(len(bench.rows()), ROWS),
            "±": "perplexity: standard error over draws; GLUE: standard deviation over seeds",
            "samples": f"{SAMPLES} of {length} tokens, T = {SAMPLE_STEPS}, seeds from 0 on, not chosen",
            **task_protocol(bench),
        },
        notes=[f"{LOWER}."],
    )


def _samples(lm: LM, length: int) -> list[str]:
    """In one line each."""
    return [" ".join(text.split()) for text in lm.sample(SAMPLES, length=length, steps=SAMPLE_STEPS, seed=0)]
