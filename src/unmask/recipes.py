"""Recipes: functions that return a validated config. Numbers from the paper are here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from .config import (
    BlockConfig,
    CaduceusConfig,
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
    parse,
)
from .data.records import record
from .earlier_recipes import EARLIER
from .errors import UserError, choose


def tiny() -> Config:
    """A model of some 165,000 weights that trains in seconds: it shows that the path works, and learns little."""
    return Config(
        data=DataConfig(length=64, vocab_size=1024),
        model=ModelConfig(network="modern", hidden_dim=64, n_blocks=2, n_heads=2),
        objective=ObjectiveConfig(loss="cross-entropy"),
        train=_fast(steps=200, checkpoint_every=100),
        eval=EvalConfig(every=100, rows=64, draws=2),
    )


def demo() -> Config:
    """The job of `make demo`: Python's own documentation, a few minutes on two cores."""
    return Config(
        data=DataConfig(length=64, vocab_size=1024),
        model=ModelConfig(network="modern", hidden_dim=128, n_blocks=4, n_heads=4),
        objective=ObjectiveConfig(loss="cross-entropy"),
        train=_fast(steps=2000, checkpoint_every=500),
        eval=EvalConfig(every=500, rows=256, draws=4),
    )


def small() -> Config:
    """A model for a text of your own, about a megabyte: half an hour on two CPU cores."""
    return Config(
        data=DataConfig(length=128, vocab_size=2048),
        model=ModelConfig(network="modern", hidden_dim=192, n_blocks=6, n_heads=6),
        objective=ObjectiveConfig(loss="cross-entropy"),
        train=_fast(minutes=30, checkpoint_every=0.05),
        eval=EvalConfig(every=0.1, rows=128, draws=2),
    )


def overnight() -> Config:
    """A larger model for a text of your own, a few megabytes or more: eight hours, on a GPU or a CPU."""
    return Config(
        data=DataConfig(length=256, vocab_size=8192),
        model=ModelConfig(network="modern", hidden_dim=384, n_blocks=8, n_heads=6, dropout=0.1),
        objective=ObjectiveConfig(loss="cross-entropy"),
        train=_fast(minutes=480, batch_size=32, checkpoint_every=0.05),
        eval=EvalConfig(every=0.05, rows=256, draws=2),
    )


def _fast(**settings: Any) -> TrainConfig:
    """What learns most from few tokens: `unmask reproduce learning` has the comparison."""
    return TrainConfig(
        **{
            "batch_size": 16,
            "optimizer": "muon",
            "lr": 2e-3,
            "betas": (0.9, 0.98),
            "warmup": 0.02,
            "decay": "linear",
            "ema": 0.0,
            "embeddings": "counts",
            **settings,
        }
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
    """MDLM on One Billion Words: bert-base-uncased, one sentence per row, padded to 128, pads noised and attended."""
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


# -- BERT (section 5.1, appendix D.6) --------------------------------------------------------------------------------


def mosaicbert() -> Config:
    """MLM pre-training of MosaicBERT on C4: [CLS] and [SEP] around 128 tokens of bert-base-uncased, 70k steps of 4096.

    The paper's decoupled decay of 1e-5 is a factor 1 - (lr / highest lr) 1e-5 per step, so AdamW's is 1e-5 / 5e-4. How
    much is masked the paper does not say; 30 % is what the authors of MosaicBERT train with.
    """
    return Config(
        data=DataConfig(**{**record("c4").conventions, "attend_pads": False}),
        model=ModelConfig(backbone="mosaicbert"),
        objective=ObjectiveConfig(loss="mlm", mask_rate=0.3),
        train=TrainConfig(
            steps=70_000,
            batch_size=4096,
            micro_batch_size=128,
            lr=5e-4,
            warmup=0.06,
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


def mdlm_finetuning(start: Config, loss: str = "bound", method: str = "mdlm") -> Config:
    """A model is trained further as a masked diffusion model: the paper's fine-tuning of BERT, on the model's data.

    With loss="mlm" it stays a BERT.
    """
    settings = TrainConfig(
        steps=5000, batch_size=512, lr=5e-5, warmup=0.5, betas=(0.95, 0.999), ema=0.0, checkpoint_every=500
    )
    if start.model.network == "transformers" and start.train.start is None:  # rows as in the paper, not all positions
        rows = start.data.model_copy(update={"length": min(128, start.data.length)})
        start = start.model_copy(update={"data": rows})
    return _going_on(start, method, loss, settings, EvalConfig(every=500, rows=512))


def chat_finetuning(start: Config) -> Config:
    """A language model learns to answer, with the method that it has; rate and decay were not tuned here.

    Models that look to the left learn all answers of a conversation at once.
    """
    settings = TrainConfig(
        steps=3000, batch_size=64, lr=2.5e-5, warmup=50, weight_decay=0.1, ema=0.0, checkpoint_every=500
    )
    config = _going_on(start, start.model.method, "bound", settings, EvalConfig(every=500, rows=512))
    rows = "conversation" if start.model.method == "ar" else "answer"
    chat = {"layout": "chat", "learn_end": None, "label": None, "chat_template": None, "chat_pad": "eos"}
    return config.changed(data=chat | {"chat_rows": rows})


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


# -- block diffusion (Arriola et al. 2025; BlockGen, Deschenaux and Gulcehre 2026) ------------------------------------

BLOCK_STEPS = 150_000  # of BD3-LM, after 850,000 of MDLM
CLIPPED_RATES = {4: (0.45, 0.95), 16: (0.3, 0.8)}  # that BD3-LM is trained on; those of other sizes are not published
MIXTURE: dict[int | str, float] = {1: 0.1, 4: 0.2, 16: 0.4, "full": 0.3}


def small_block() -> Config:
    """As `small`, but one model for all block sizes: left to right, in blocks, and in any order."""
    base = small()
    return base.override(["model.method=block"]).model_copy(update={"block": mixed_blocks(base.data.length)})


def bd3lm(data: str, size: int) -> Config:
    """BD3-LM on OpenWebText or One Billion Words: the block steps, with wrapped rows that have no ends.

    MDLM is trained for 850,000 steps before, on the same rows: that model is train.start.
    """
    rates = CLIPPED_RATES.get(size)
    return {"owt": owt, "lm1b": lm1b}[data]().override(
        [
            *("data.layout=wrap", "data.block_ends=false", "data.attend_pads=false", "data.learn_end=null"),
            *("model.method=block", f"block.size={size}", "block.clean=blocks"),
            f"objective.clip={'null' if rates is None else list(rates)}",
            f"train.steps={BLOCK_STEPS}",
        ]
    )


def blockgen_owt() -> Config:
    """BlockGen on OpenWebText: 5 % of the steps left to right, the rest in blocks of 16; plain cross-entropy."""
    changes = ["model.method=block", "block.mixture={1: 0.05, 16: 0.95}", "objective.loss=cross-entropy"]
    return owt().override(changes)


def block_finetuning(start: Config, loss: str = "bound") -> Config:
    """A model is trained further in blocks: the second part of BD3-LM's training (Arriola et al. 2025)."""
    settings = TrainConfig(steps=BLOCK_STEPS, batch_size=512, lr=3e-4, warmup=0.02, ema=0.9999, checkpoint_every=1000)
    return _going_on(start, "block", loss, settings, EvalConfig(every=5000, rows=512))


def llama_finetuning(start: Config, method: str) -> Config:
    """A Llama or Qwen is trained further as a diffusion model, or becomes one; the rate is that of dllm's Tiny-A2D."""
    settings = TrainConfig(steps=20_000, batch_size=128, lr=1e-4, warmup=0.02, ema=0.0, checkpoint_every=500)
    if start.train.start is None:  # short rows, not all positions
        rows = start.data.model_copy(update={"length": min(128, start.data.length)})
        start = start.model_copy(update={"data": rows})
    return _going_on(start, method, "bound", settings, EvalConfig(every=500, rows=512))


def mixed_blocks(length: int, size: int | str | None = None) -> BlockConfig:
    """One model for all block sizes that divide the rows; `size` is the one that takes the place of 16."""
    if size is None:
        size = next(power for power in (16, 8, 4, 2, 1) if power < length and length % power == 0)
    mixture: dict[int | str, float] = {}
    for other, share in MIXTURE.items():
        one = size if other == 16 else other
        if isinstance(one, str) or length % one == 0:
            mixture[one] = round(mixture.get(one, 0.0) + share, 6)
    return BlockConfig(size=size, mixture=mixture)


# -- DNA (section 5.2, appendix D.7) ---------------------------------------------------------------------------------


def _genome(model: ModelConfig, objective: ObjectiveConfig, lr: float, both_strands: bool) -> Config:
    """Pre-training on the human genome: 10k steps of 2^20 bases in rows of 1024 (Caduceus' settings).

    A network that is not equivariant by its weights sees each row on either strand. Norms and convolutions are decayed,
    biases, embeddings, A and D are not. The rate ends at 1e-4.
    """
    return Config(
        data=DataConfig(source="hg38", tokenizer="dna", length=1024, reverse_complement=not both_strands),
        model=model,
        objective=objective,
        train=TrainConfig(
            steps=10_000,
            batch_size=1024,
            micro_batch_size=128,
            lr=lr,
            warmup=0.1,
            decay="cosine",
            final_lr=1e-4 / lr,
            betas=(0.9, 0.95),
            weight_decay=0.1,
            ema=0.0,
            precision="bf16",
            log_every=50,
            checkpoint_every=500,
        ),
        eval=EvalConfig(every=1000, rows=2048),
    )


def dna_caduceus() -> Config:
    """MLM pre-training of Caduceus, which is equivariant to the reverse complement: 15 %, 80/10/10."""
    return _genome(_caduceus(), ObjectiveConfig(loss="mlm", mask_rate=0.15), 8e-3, both_strands=True)


def dna_mdlm() -> Config:
    """MDLM on Caduceus from the start, without the pre-training as an MLM."""
    return _genome(_caduceus(), ObjectiveConfig(), 8e-3, both_strands=True)


def dna_mamba() -> Config:
    """Mamba from left to right, which sees rows of either strand."""
    model = ModelConfig(method="ar", backbone="mamba", hidden_dim=128, n_blocks=4, dropout=0.0)
    return _genome(model, ObjectiveConfig(), 8e-3, both_strands=False)


def dna_hyena() -> Config:
    """HyenaDNA from left to right."""
    model = ModelConfig(method="ar", backbone="hyena", hidden_dim=128, n_blocks=2, dropout=0.1)
    return _genome(model, ObjectiveConfig(), 6e-4, both_strands=False)


def _caduceus() -> ModelConfig:
    return ModelConfig(backbone="caduceus", hidden_dim=118, n_blocks=4, dropout=0.0)


def dna_tiny() -> Config:
    """MDLM on a Caduceus of some 50,000 weights for a FASTA file of your own: minutes on a laptop."""
    return Config(
        data=DataConfig(tokenizer="dna", length=128),
        model=ModelConfig(backbone="caduceus", hidden_dim=48, n_blocks=2, dropout=0.0),
        objective=ObjectiveConfig(cutoff=0.1),
        train=TrainConfig(
            steps=300,
            batch_size=32,
            lr=4e-3,
            warmup=0.1,
            decay="cosine",
            final_lr=0.05,
            betas=(0.9, 0.95),
            ema=0.98,
            checkpoint_every=100,
        ),
        eval=EvalConfig(every=100, rows=128, draws=4),
    )


def dna_finetuning(start: Config, method: str, loss: str = "bound") -> Config:
    """A DNA model is trained further, as a diffusion model or left to right (appendix D.7): 50k steps at a lower rate.

    The rates are those of the paper: 1e-3 for networks of Mamba, 5e-5 for HyenaDNA.
    """
    lr = 5e-5 if start.model.network == "hyena" else 1e-3
    settings = dna_mdlm().train.model_copy(
        update={"steps": 50_000, "lr": lr, "warmup": 0.1, "final_lr": min(1.0, 1e-4 / lr)}
    )
    return _going_on(start, method, loss, settings, EvalConfig(every=2500, rows=2048))


def _going_on(start: Config, method: str, loss: str, train: TrainConfig, judged: EvalConfig) -> Config:
    """The config of a model that is trained further with another method or loss, with its network and data settings.

    What Muon and plain cross-entropy trained goes on with them, at its rates, which fall to zero: those of the paper's
    fine-tuning would hardly move it.
    """
    tree, trained = start.model_dump(mode="json"), start.train
    tree["model"]["method"] = method
    objective = ObjectiveConfig(
        loss=loss, mask_rate=0.15 if loss == "mlm" else None, start_token=start.objective.start_token or method != "ar"
    )
    if (loss, start.objective.loss) == ("bound", "cross-entropy") and method in ("mdlm", "block"):
        plain = {"loss": start.objective.loss, "cutoff": start.objective.cutoff}
        objective = objective.model_copy(update=plain)
    tree["objective"] = objective.model_dump(mode="json")
    if trained.optimizer == "muon":
        rates = {
            "lr": trained.lr,
            "muon_lr": trained.muon_lr,
            "betas": trained.betas,
            "warmup": 0.05,
            "decay": "linear",
        }
        train = train.model_copy(update={"optimizer": "muon", "ema": 0.0, **rates})
    tree["train"] = train.model_dump(mode="json")
    tree["eval"] = judged.model_dump(mode="json")
    tree["sample"] = SampleConfig().model_dump(mode="json")
    tree["task"] = TaskConfig().model_dump(mode="json")
    return parse(tree)


# -- Genomic Benchmarks and GUE (section 5.2, appendix D.7) ----------------------------------------------------------

GENOMICS_SEEDS = (1, 2, 3, 4, 5)  # each is a split into training and validation, and a run
GENOMICS_GRID = {"train.lr": (1e-3, 2e-3), "train.batch_size": (128, 256)}  # the paper names no grid: that of Caduceus


def genomics_finetuning(start: Config) -> Config:
    """A classifier of sequences on top of a model of DNA: the protocol of Caduceus, at most 16K steps as in the paper.

    A network that is equivariant by its weights needs no help with the other strand; Caduceus PH learns from both
    strands and is asked about both; others learn from both.
    """
    net = start.model
    strands = {"ps": "one", "ph": "conjoin"}[net.strands] if isinstance(net, CaduceusConfig) else "augment"
    tree = start.model_dump(mode="json")
    tree["train"] = TrainConfig(
        batch_size=128, lr=1e-3, warmup=0, decay="cosine", final_lr=0.1, weight_decay=0.1, clip=1.0, ema=0.0
    ).model_dump(mode="json")
    tree["eval"] = EvalConfig(every=0, batch_size=128).model_dump(mode="json")
    tree["sample"] = SampleConfig().model_dump(mode="json")
    tree["task"] = TaskConfig(
        epochs=10, max_steps=16_000, warmup=0.01, dropout=0.0, pooling="mean", strands=strands
    ).model_dump(mode="json")
    return parse(tree)


RECIPES: dict[str, Callable[[], Config]] = {
    f.__name__: f for f in (tiny, small, overnight, demo, lm1b, owt, text8, mosaicbert)
}
RECIPES["mosaicbert-causal"] = mosaicbert_causal
RECIPES |= {"small-block": small_block, "blockgen-owt": blockgen_owt}
RECIPES |= {f"bd3lm-{data}-{size}": partial(bd3lm, data, size) for data in ("owt", "lm1b") for size in (4, 8, 16)}
RECIPES |= {f.__name__.replace("_", "-"): f for f in (dna_tiny, dna_caduceus, dna_mdlm, dna_mamba, dna_hyena)}


def recipe(name: str) -> Config:
    """A config by the name of its recipe, or from a YAML file."""
    if name not in RECIPES and (name.endswith((".yaml", ".yml")) or Path(name).is_file()):
        return load_yaml(name)
    return RECIPES[choose(name, RECIPES, "recipe", ", or give a YAML file")]()


SHARE = 0.1  # of the steps: warm-up, and the steps between evaluations and checkpoints, where the recipe's do not fit


def named_keys(overrides: Sequence[str]) -> set[str]:
    """The settings that a user sets; steps and a time are not set together."""
    pairs = dict(text.partition("=")[::2] for text in overrides)
    if "train.steps" in pairs and pairs.get("train.minutes", "null") != "null":
        raise UserError("train.minutes (--minutes) chooses train.steps; give one of them, not both")
    return set(pairs)


def _earlier(name: str, overrides: Sequence[str], out: str | Path | None) -> Config | None:
    """The recipe of version 0.3, where it is needed: commands and runs of that time, methods that read no tokens."""
    if name not in EARLIER:
        return None
    before, pairs = EARLIER[name](), dict(text.partition("=")[::2] for text in overrides)
    fields = type(recipe(name).model).model_fields
    foreign = [key for key in pairs if key.startswith("model.") and key.partition(".")[2] not in fields]
    if not {"model.network", "model.backbone"} & pairs.keys():
        known = type(before.model).model_fields
        if foreign and all(key.partition(".")[2] in known for key in foreign):
            return before
        if pairs.get("model.method") in ("plaid", "ssd-lm"):
            return before
    begun = None if out is None else Path(out) / "config.yaml"
    if begun is not None and begun.is_file() and load_yaml(begun).model == before.override(overrides).model:
        return before
    return None


def with_overrides(name: str, overrides: Sequence[str] = (), out: str | Path | None = None) -> Config:
    """A recipe (or a YAML file) with a user's settings; what a recipe says of steps follows the steps that it gets.

    Steps and minutes of the user replace those of the recipe. For a time a constant learning rate becomes a cosine:
    nobody goes on from there. Settings of the user and of a file stay as they are. `out` is the folder of the run,
    which may have been begun with an earlier version of the recipe.
    """
    named = named_keys(overrides)
    base = _earlier(name, overrides, out) or recipe(name)
    config = base.override(overrides)
    if name in EARLIER and config.model.method not in ("mdlm", "block") and "objective.loss" not in named:
        config = config.changed(objective={"loss": "bound"})  # plain cross-entropy is for masked diffusion
    if "train.steps" in named and config.train.minutes is not None:
        config = config.changed(train={"minutes": None})
    if name not in RECIPES or not {"train.steps", "train.minutes"} & named:
        return config
    fixed = config.train.minutes is None
    if "train.warmup" not in named and config.train.warmup > (SHARE * config.train.steps if fixed else 1):
        config = config.changed(train={"warmup": SHARE})
    if fixed:
        return config
    if "train.decay" not in named and config.train.decay == "constant":
        config = config.changed(train={"decay": "cosine"})
    for section, key in (("train", "checkpoint_every"), ("eval", "every")):
        if f"{section}.{key}" not in named and getattr(getattr(config, section), key) > 1:
            config = config.changed(**{section: {key: SHARE}})
    return config
