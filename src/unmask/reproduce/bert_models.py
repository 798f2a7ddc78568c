"""The models of section 5.1 at every scale: MosaicBERT by MLM, its causal twin, and the first fine-tuned by MDLM."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import Config, DataConfig, EvalConfig, ModelConfig, ObjectiveConfig, TrainConfig
from ..recipes import mdlm_finetuning, recipe
from ..types import UserError
from .bench import Bench
from .scales import Scale
from .scored import Classified
from .specs import Changes, Family, Finetuning, ModelSpec, Setup, changed
from .task_classifiers import classifiers
from .text_models import PAPER_TEXTS

PLAIN, CAUSAL, TUNED = "bert", "bert-ar", "bert-mdlm"
BEFORE, AFTER = "before", "after"  # an encoder from elsewhere, and fine-tuned
NEVER = 10**9  # steps between evaluations: the table has the numbers after the last step only
BERTS = {"AR": CAUSAL, "BERT": PLAIN, "BERT + MDLM-FT": TUNED}  # in the order of the paper
FIVE = ("glue/sst2", "glue/cola", "glue/stsb", "glue/mrpc", "glue/rte")  # complete in the project's own data


@dataclass(frozen=True)
class GlueSizes:
    """How the classifiers are trained; the rest is the paper's recipe."""

    lr: float = 2e-5
    epochs: float = 3
    rows: int | None = None  # training examples of a task; None = all
    seeds: int = 5  # classifiers per task


@dataclass(frozen=True)
class BertSizes:
    """Sizes of networks and trainings; the rest is the paper's recipe."""

    network: ModelConfig
    length: int
    vocab_size: int
    steps: int  # of both pre-trainings
    warmup: int  # of these
    tuning: float  # the fine-tuning, as a share of these
    lr: float  # of AdamW, which has what is not a matrix of the blocks; these have Muon
    tuning_lr: float
    tasks: GlueSizes
    muon_lr: float = 0.02
    tuning_muon_lr: float = 0.002
    rows: int | None = 256  # of the split that perplexities are of; None = all
    cutoff: float = 0.01
    log_every: int = 10

    @property
    def tuning_steps(self) -> int:
        """Steps of the fine-tuning."""
        return max(1, round(self.tuning * self.steps))


@dataclass(frozen=True)
class EncoderSizes:
    """The fine-tuning and the tasks of an encoder at a scale; the warm-up takes half of the steps, as in the paper."""

    length: int
    steps: int
    lr: float
    tasks: GlueSizes
    names: tuple[str, ...] = FIVE


BERT_SIZES = {
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
        ModelConfig(backbone="mosaicbert", hidden_dim=128, n_blocks=4, n_heads=4, dropout=0.0),
        length=128,
        vocab_size=8192,
        steps=1000,
        warmup=80,
        tuning=0.05,
        lr=2e-3,
        tuning_lr=2e-4,
        tasks=GlueSizes(3e-4, 1, 10_000, 1),
    ),
}
ENCODER_SIZES = {
    "smoke": EncoderSizes(32, 6, 5e-4, GlueSizes(1e-4, 1, 32, 2), ("glue/rte",)),
    "small": EncoderSizes(64, 400, 5e-5, GlueSizes(5e-5, 1, 10_000, 1)),  # the paper: three epochs at 2e-5
    "paper": EncoderSizes(128, 5000, 5e-5, GlueSizes()),
}
_SHORT_RUN: Changes = {  # what all fine-tunings share
    "train": {"batch_size": 16, "keep_last": 1},
    "eval": {"every": 0, "rows": 128, "draws": 1},
}


def bert_sizes(scale: Scale) -> BertSizes:
    """The sizes of a scale at which models are trained."""
    if scale.name not in BERT_SIZES:
        raise UserError(f"this table has the scales {', '.join(BERT_SIZES)} and paper, not {scale.name}")
    return BERT_SIZES[scale.name]


def encoder_sizes(scale: Scale) -> EncoderSizes:
    """The sizes of a scale."""
    if scale.name not in ENCODER_SIZES:
        raise UserError(f"this table has the scales {', '.join(ENCODER_SIZES)}, not {scale.name}")
    return ENCODER_SIZES[scale.name]


def glue_sizes(scale: Scale) -> GlueSizes:
    """How the classifiers of the three BERTs are trained."""
    return bert_sizes(scale).tasks if scale.trains else GlueSizes()


def scored_rows(scale: Scale) -> int | None:
    """Rows of the split for the perplexities of the three BERTs; None = all."""
    return bert_sizes(scale).rows if scale.trains else None


# -- models ----------------------------------------------------------------------------------------------------------


def bert_models(setup: Setup) -> dict[str, ModelSpec]:
    """The three models of section 5.1."""
    if not setup.scale.trains:
        plain = recipe("mosaicbert")
        return {
            PLAIN: ModelSpec(plain, command=("mosaicbert",)),
            CAUSAL: ModelSpec(recipe("mosaicbert-causal"), command=("mosaicbert-causal",)),
            TUNED: ModelSpec(
                mdlm_finetuning(plain), start=PLAIN, command=("mdlm", "--data", "c4", "train.precision=bf16")
            ),
        }
    sizes = bert_sizes(setup.scale)
    causal = _pretraining(setup, sizes)
    masked = changed(causal, {"model": {"method": "mdlm"}, "objective": {"loss": "mlm", "mask_rate": 0.3}})
    tuning = {
        "steps": sizes.tuning_steps,
        "lr": sizes.tuning_lr,
        "muon_lr": sizes.tuning_muon_lr,
        "warmup": sizes.tuning_steps // 2,  # as in the paper
        "checkpoint_every": 250,
        "log_every": sizes.log_every,
    }
    return {
        PLAIN: ModelSpec(masked),
        CAUSAL: ModelSpec(causal),
        TUNED: ModelSpec(_finetuning(setup, tuning, sizes.cutoff), start=PLAIN),
    }


def encoder_models(setup: Setup) -> dict[str, ModelSpec]:
    """A foreign encoder, before and after MDLM fine-tuning."""
    sizes = encoder_sizes(setup.scale)
    tuning = {
        "steps": sizes.steps,
        "lr": sizes.lr,
        "warmup": sizes.steps // 2,
        "checkpoint_every": 100,
        "log_every": 5,
    }
    command = ("mdlm", "--data", setup.source, "train.precision=bf16")
    return {
        BEFORE: ModelSpec(None, path=setup.encoder or ""),
        AFTER: ModelSpec(
            _finetuning(setup, tuning, 0.01, data={"length": sizes.length}), start=BEFORE, command=command
        ),
    }


BERT = Family(bert_models, base=PLAIN, texts=PAPER_TEXTS)
ENCODER = Family(encoder_models, base=AFTER, texts=PAPER_TEXTS)


def _pretraining(setup: Setup, sizes: BertSizes) -> Config:
    """As in the paper but for the sizes, the batch of 16 rows of 128 tokens, Muon and embeddings from counts; AR."""
    return Config(
        seed=setup.seed,
        data=DataConfig(source=setup.source, length=sizes.length, vocab_size=sizes.vocab_size, block_ends=True),
        model=sizes.network.model_copy(update={"method": "ar"}),
        objective=ObjectiveConfig(cutoff=sizes.cutoff),
        train=TrainConfig(
            steps=sizes.steps,
            batch_size=16,
            embeddings="counts",
            optimizer="muon",
            muon_lr=sizes.muon_lr,
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


def _finetuning(setup: Setup, train: Changes, cutoff: float, **changes: Changes) -> Finetuning:
    train = {**_SHORT_RUN["train"], **train}
    return Finetuning(
        "mdlm", {**_SHORT_RUN, **changes, "train": train, "objective": {"cutoff": cutoff}, "seed": setup.seed}
    )


# -- tasks -----------------------------------------------------------------------------------------------------------


def glue_classifiers(bench: Bench, name: str, task: str, sizes: GlueSizes, training: int = 0) -> list[Classified]:
    """A task, learned once per seed from a model of the bench; every training of the model has other seeds."""
    changes: Changes = {
        "train": {"lr": sizes.lr},
        "eval": {"every": NEVER},
        "task": {"epochs": sizes.epochs} | ({} if sizes.rows is None else {"rows": sizes.rows}),
    }
    first = bench.seed + training * sizes.seeds
    return classifiers(bench, name, task, changes, range(first, first + sizes.seeds), bench.local)
