"""The models of section 5.1 at every scale: MosaicBERT by MLM, its causal twin, and the first fine-tuned by MDLM."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..config import Config, DataConfig, EvalConfig, ModelConfig, ObjectiveConfig, TrainConfig
from ..lm import LM
from ..recipes import mdlm_finetuning, recipe
from ..training.adapt import classify, language_config, task_config
from ..training.finetune import TaskResult
from ..training.text import TrainResult, train
from ..types import UserError
from .bench import Bench

PLAIN, CAUSAL, TUNED = "bert", "bert-ar", "bert-mdlm"
NEVER = 10**9  # steps between evaluations: the table has the numbers after the last step only
BERTS = {"AR": CAUSAL, "BERT": PLAIN, "BERT + MDLM-FT": TUNED}  # in the order of the paper


@dataclass(frozen=True)
class GlueSizes:
    """How the classifiers are trained; the rest is the paper's recipe."""

    lr: float = 2e-5
    epochs: float = 3
    rows: int | None = None  # training examples of a task; None = all
    seeds: int = 5  # classifiers a task


@dataclass(frozen=True)
class BertSizes:
    """Sizes of networks and trainings; the rest is the paper's recipe."""

    network: ModelConfig
    length: int
    vocab_size: int
    steps: int  # of both pre-trainings
    warmup: int  # of these
    tuning: float  # the fine-tuning, as a share of these
    lr: float
    tuning_lr: float
    tasks: GlueSizes
    rows: int = 256  # of the split that perplexities are of
    cutoff: float = 0.01
    log_every: int = 10

    @property
    def tuning_steps(self) -> int:
        """Steps of the fine-tuning."""
        return max(1, round(self.tuning * self.steps))


SIZES = {
    "smoke": BertSizes(
        ModelConfig(backbone="mosaicbert", hidden_dim=32, n_blocks=2, n_heads=2, dropout=0.0),
        length=32,
        vocab_size=512,
        steps=60,
        warmup=4,
        tuning=0.1,
        lr=1e-3,
        tuning_lr=5e-4,
        tasks=GlueSizes(1e-3, 1, 64, 2),
        log_every=1,
    ),
    "small": BertSizes(
        ModelConfig(backbone="mosaicbert", hidden_dim=256, n_blocks=4, n_heads=4, dropout=0.0),
        length=128,
        vocab_size=8192,
        steps=2200,
        warmup=180,
        tuning=0.05,
        lr=1e-3,
        tuning_lr=1e-4,
        tasks=GlueSizes(3e-4, 3, 600, 3),
    ),
}


def bert_config(scale: str, source: str, name: str, seed: int = 0) -> Config:
    """The settings of a pre-training: as in the paper but for the sizes, the batch of 16 rows, and 128 tokens a row."""
    sizes = SIZES[scale]
    objective = ObjectiveConfig(cutoff=sizes.cutoff)
    if name == PLAIN:
        objective = ObjectiveConfig(loss="mlm", mask_rate=0.3, cutoff=sizes.cutoff)
    return Config(
        seed=seed,
        data=DataConfig(source=source, length=sizes.length, vocab_size=sizes.vocab_size, block_ends=True),
        model=sizes.network.model_copy(update={"method": "ar" if name == CAUSAL else "mdlm"}),
        objective=objective,
        train=TrainConfig(
            steps=sizes.steps,
            batch_size=16,
            lr=sizes.lr,
            betas=(0.9, 0.98),
            adam_eps=1e-6,
            weight_decay=0.02,
            warmup=sizes.warmup,
            decay="linear",
            final_lr=0.02,
            ema=0.0,
            checkpoint_every=250,
            keep_last=1,
            log_every=sizes.log_every,
        ),
        eval=EvalConfig(every=0, rows=128, draws=1),
    )


class BertBench(Bench):
    """A bench whose models are those of section 5.1."""

    base = PLAIN

    @property
    def sizes(self) -> BertSizes:
        """The sizes of this scale."""
        if self.scale.name not in SIZES:
            raise UserError(f"this table has the scales {', '.join(SIZES)} and paper, not {self.scale.name}")
        return SIZES[self.scale.name]

    def config(self, name: str) -> Config:
        """The settings of a model."""
        if not self.scale.trains:
            whole = recipe("mosaicbert-causal" if name == CAUSAL else "mosaicbert")
            return mdlm_finetuning(whole) if name == TUNED else whole
        sizes = self.sizes
        if name != TUNED:
            return bert_config(self.scale.name, self.source, name, self.seed)
        start = self.path(PLAIN)
        # A warm-up over half of the steps and these betas are the paper's.
        changes = [
            f"train.steps={sizes.tuning_steps}",
            "train.batch_size=16",
            f"train.lr={sizes.tuning_lr}",
            f"train.warmup={sizes.tuning_steps // 2}",
            "train.checkpoint_every=250",
            "train.keep_last=1",
            f"train.log_every={sizes.log_every}",
            "eval.every=0",
            "eval.rows=128",
            "eval.draws=1",
            f"objective.cutoff={sizes.cutoff}",
            f"seed={self.seed}",
        ]
        return language_config(self.lm(PLAIN), str(start), "mdlm", self.source, None, changes)

    def trainable(self) -> list[str]:
        """The pre-trained ones; the fine-tuned one follows from these."""
        return [PLAIN, CAUSAL]

    def commands(self, names: list[str]) -> list[str]:  # type: ignore[override]
        """How to train these models on a cluster."""
        many, here = "torchrun --nproc-per-node 8 -m unmask", self.path
        lines = {
            PLAIN: f"{many} train mosaicbert --out {here(PLAIN)}",
            CAUSAL: f"{many} train mosaicbert-causal --out {here(CAUSAL)}",
            TUNED: f"{many} finetune {here(PLAIN)} mdlm --data c4 train.precision=bf16 --out {here(TUNED)}",
        }
        return [lines[name] for name in names]

    def finished(self, name: str) -> bool:
        """Whether a model is trained."""
        if name == TUNED and self.scale.trains and not super().finished(PLAIN):
            return False
        return super().finished(name)

    def run(self, name: str, path: Path) -> TrainResult:
        """Train a model, or continue; the fine-tuned one begins with BERT."""
        return train(self.config(name), path, quiet=self.quiet, start=self.lm(PLAIN) if name == TUNED else None)

    def classifiers(self, name: str, task: str) -> list[TaskResult]:
        """A task, learned once a seed from a model."""
        return self.learn(self.lm(name), str(self.path(name)), self.folder / "tasks" / name, task)

    @property
    def scored_rows(self) -> int | None:
        """Rows of the split that perplexities are of; None = all."""
        return self.sizes.rows if self.scale.trains else None

    @property
    def task_sizes(self) -> GlueSizes:
        """How the classifiers of this scale are trained."""
        return self.sizes.tasks if self.scale.trains else GlueSizes()

    def learn(self, lm: LM, start: str, out: Path, task: str) -> list[TaskResult]:
        """A task, learned once a seed from any model."""
        own = self.task_sizes
        changes = [f"train.lr={own.lr}", f"task.epochs={own.epochs}", "train.keep_last=1", f"eval.every={NEVER}"]
        changes += [] if own.rows is None else [f"task.rows={own.rows}"]
        config = task_config(lm, start, task, self.local, changes)
        seeds = [self.seed + i for i in range(own.seeds)]
        done = classify(lm, config, out / task.replace("/", "-"), seeds, quiet=self.quiet)
        if not all(result.finished for result in done):
            raise UserError(f"the training of {task} was stopped; run the same command again to go on")
        return done
