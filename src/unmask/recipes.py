"""Recipes: functions that return a validated config. Numbers from the paper stand here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .config import (
    Config,
    DataConfig,
    EvalConfig,
    ModelConfig,
    ObjectiveConfig,
    SampleConfig,
    ScheduleConfig,
    TaskConfig,
    TrainConfig,
    load_yaml,
    nearest,
    parse,
)
from .data.records import record
from .errors import UserError


def tiny() -> Config:
    """A model of some 270,000 weights that trains in seconds: for tests and first steps with your own data."""
    return Config(
        data=DataConfig(length=64, vocab_size=1024),
        model=ModelConfig(hidden_dim=64, n_blocks=2, n_heads=2, cond_dim=32, dropout=0.0),
        objective=ObjectiveConfig(cutoff=0.1),
        train=TrainConfig(steps=200, batch_size=16, lr=1e-3, warmup=20, ema=0.99, checkpoint_every=100),
        eval=EvalConfig(every=100, rows=64, draws=2),
    )


def demo() -> Config:
    """The job of `make demo`: Python's own documentation, a few minutes on two cores.

    A high cut-off (a valid bound, a little looser) takes the rare, heavily weighted rows with few masks out of a
    training that has no time to average over them.
    """
    return Config(
        data=DataConfig(length=64, vocab_size=1024),
        model=ModelConfig(hidden_dim=128, n_blocks=4, n_heads=4, cond_dim=64, dropout=0.0),
        objective=ObjectiveConfig(cutoff=0.1),
        train=TrainConfig(
            steps=2000, batch_size=16, lr=7e-4, warmup=100, decay="cosine", ema=0.995, checkpoint_every=500
        ),
        eval=EvalConfig(every=500, rows=256, draws=4),
    )


def _paper(data: DataConfig, split: str = "valid") -> Config:
    """Appendix D.4: DiT 12 x 768, AdamW 3e-4, 2500 steps of warm-up then constant, batch 512, 1M steps, EMA 0.9999."""
    return Config(
        data=data,
        model=ModelConfig(),
        schedule=ScheduleConfig(name="log-linear", eps=1e-3),
        objective=ObjectiveConfig(bound="continuous", cutoff=1e-3),
        train=TrainConfig(
            steps=1_000_000,
            batch_size=512,
            lr=3e-4,
            warmup=2500,
            decay="constant",
            betas=(0.9, 0.999),
            adam_eps=1e-8,
            weight_decay=0.0,
            clip=1.0,
            ema=0.9999,
            precision="bf16",
            log_every=100,
            checkpoint_every=10_000,
        ),
        eval=EvalConfig(every=10_000, rows=2048, split=split),
        sample=SampleConfig(every=50_000, steps=1000),
    )


def lm1b() -> Config:
    """MDLM on One Billion Words: bert-base-uncased, a sentence a row, padded to 128, padding noised and attended."""
    return _paper(
        DataConfig(**record("lm1b").conventions),
        split="test",  # the set has no third split; the paper validates on this one
    )


def owt() -> Config:
    """MDLM on OpenWebText: GPT-2 tokens, wrapped to 1024 with EOS between documents and at block ends."""
    return _paper(DataConfig(**record("openwebtext").conventions))


def text8() -> Config:
    """MDLM on text8: 27 characters, wrapped to 256 without ends (appendix: D3PM's protocol)."""
    return _paper(DataConfig(**record("text8").conventions))


# -- BERT (section 5.1, appendix D.6) ---------------------------------------------------------------------------------


def mosaicbert() -> Config:
    """MLM pre-training of MosaicBERT on C4: [CLS] and [SEP] around 128 tokens of bert-base-uncased, 70k steps of 4096.

    The paper's decoupled decay of 1e-5 is a factor 1 - (lr / highest lr) 1e-5 a step, so AdamW's is 1e-5 / 5e-4. How
    much is masked the paper does not say; 30 % is what the authors of MosaicBERT train with.
    """
    steps = 70_000
    return Config(
        data=DataConfig(**{**record("c4").conventions, "attend_pads": False}),
        model=ModelConfig(backbone="mosaicbert"),
        objective=ObjectiveConfig(loss="mlm", mask_rate=0.3),
        train=TrainConfig(
            steps=steps,
            batch_size=4096,
            micro_batch_size=128,
            lr=5e-4,
            warmup=round(0.06 * steps),
            decay="linear",
            final_lr=0.02,
            betas=(0.9, 0.98),
            adam_eps=1e-6,
            weight_decay=0.02,
            ema=0.0,
            precision="bf16",
            log_every=100,
            checkpoint_every=1000,
        ),
        eval=EvalConfig(every=5000, rows=2048),
    )


def mosaicbert_causal() -> Config:
    """The causal twin of `mosaicbert`: the same network, data and recipe, trained to predict the next token."""
    return mosaicbert().override(["model.method=ar", "objective.loss=bound", "objective.mask_rate=null"])


def mdlm_finetuning(start: Config, loss: str = "bound") -> Config:
    """A model goes on as a masked diffusion model: the paper's fine-tuning of BERT, on the model's own data settings.

    With loss="mlm" it goes on as a BERT.
    """
    rate = 0.15 if loss == "mlm" else None
    tree = start.model_dump(mode="json")
    tree["objective"] = ObjectiveConfig(loss=loss, mask_rate=rate).model_dump(mode="json")
    tree["train"] = TrainConfig(
        steps=5000,
        batch_size=512,
        lr=5e-5,
        warmup=2500,
        betas=(0.95, 0.999),
        ema=0.0,
        checkpoint_every=500,
    ).model_dump(mode="json")
    tree["eval"] = EvalConfig(every=500, rows=512).model_dump(mode="json")
    tree["sample"] = SampleConfig().model_dump(mode="json")
    tree["task"] = TaskConfig().model_dump(mode="json")
    return parse(tree)


def glue_finetuning(start: Config) -> Config:
    """A classifier on top of a model: the settings of transformers' run_glue with batches of 16, as in the paper."""
    tree = start.model_dump(mode="json")
    tree["train"] = TrainConfig(
        batch_size=16, lr=2e-5, warmup=0, decay="linear", weight_decay=0.0, clip=1.0, ema=0.0
    ).model_dump(mode="json")
    tree["eval"] = EvalConfig(every=0).model_dump(mode="json")
    tree["sample"] = SampleConfig().model_dump(mode="json")
    tree["task"] = TaskConfig(length=128, epochs=3).model_dump(mode="json")
    return parse(tree)


RECIPES: dict[str, Callable[[], Config]] = {f.__name__: f for f in (demo, tiny, lm1b, owt, text8, mosaicbert)}
RECIPES["mosaicbert-causal"] = mosaicbert_causal


def recipe(name: str) -> Config:
    """A config by the name of its recipe, or from a YAML file."""
    if name in RECIPES:
        return RECIPES[name]()
    if name.endswith((".yaml", ".yml")) or Path(name).is_file():
        return load_yaml(name)
    raise UserError(
        f"unknown recipe {name!r}{nearest(name, RECIPES)}; choose one of {', '.join(RECIPES)}, or give a YAML file"
    )
