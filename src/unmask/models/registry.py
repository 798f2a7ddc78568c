"""From a config to objects: the one place where a name chooses a class."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from ..config import METHODS, Config, ModelConfig, ObjectiveConfig, ScheduleConfig, TrainConfig, steps_of
from ..data.tasks import Task
from ..networks.interface import Network
from ..process.parameterization import Mean, Parameterization, Score
from ..process.schedule import (
    Bell,
    ClippedTime,
    ContinuousTime,
    Cosine,
    DiscreteTime,
    Geometric,
    Law,
    Linear,
    LogUniform,
    Polynomial,
    Schedule,
)
from ..types import UserError, Vocab
from .autoregressive import AutoRegressive
from .block_diffusion import BlockDiffusion
from .classifier import Classifier
from .language_model import LanguageModel
from .masked import MaskedDiffusion, Objective
from .plaid import Plaid
from .ssd_lm import SimplexDiffusion

BERT_RATE = 0.15  # the share of tokens that are predicted in Devlin et al. (2018)


def schedule(spec: ScheduleConfig) -> Schedule:
    """The schedule that a config names."""
    if spec.sigma_min >= spec.sigma_max:
        raise UserError(f"schedule.sigma_min={spec.sigma_min} must be below schedule.sigma_max={spec.sigma_max}")
    makers = {
        "log-linear": lambda: Polynomial(1.0, spec.eps),
        "polynomial": lambda: Polynomial(spec.power, spec.eps),
        "cosine": lambda: Cosine(1, spec.eps),
        "cosine-squared": lambda: Cosine(2, spec.eps),
        "linear": lambda: Linear(spec.sigma_max),
        "geometric": lambda: Geometric(spec.sigma_min, spec.sigma_max),
        "log-uniform": lambda: LogUniform(spec.low, spec.eps),
        "bell": lambda: Bell(spec.steep, spec.eps),
    }
    return makers[spec.name]()


def law(spec: ObjectiveConfig, times: ScheduleConfig | None = None) -> Law:
    """The law of the bound that a config names; `times` has the settings of a proposal."""
    if spec.bound == "continuous":
        if spec.proposal is None:
            return ContinuousTime(spec.cutoff)
        named = (times or ScheduleConfig()).model_copy(update={"name": spec.proposal})
        return ContinuousTime(spec.cutoff, schedule(named))
    assert spec.steps is not None
    return DiscreteTime(spec.steps)


def objective(spec: ObjectiveConfig, train: TrainConfig) -> Objective:
    """What the training of a masked diffusion model minimises, and in which steps."""
    clipped = None if spec.clip is None else ClippedTime(*spec.clip)
    rate = (spec.mask_rate or BERT_RATE) if spec.loss == "mlm" else None
    return Objective(
        spec.loss == "cross-entropy",
        clipped,
        stratified=spec.times != "independent",
        mask_rate=rate,
        counts=spec.times == "counts",
        pairs=spec.pairs,
        law_until=None if spec.clip_until is None else steps_of(spec.clip_until, train.steps),
        anneal=steps_of(train.anneal, train.steps),
    )


def network_class(spec: ModelConfig) -> type[Network]:
    """The class of the network that a config names."""
    module, _, name = spec.implementation.partition(":")
    kind: type[Network] = getattr(import_module(module), name)
    return kind


def network(spec: ModelConfig, vocab: Vocab, n_labels: int = 0, causal: bool = False) -> Network:
    """The network that a config names; it looks both ways, or to the left only if `causal`."""
    kind = network_class(spec)
    if causal and "left" not in kind.directions:
        raise UserError(f"the {spec.network} network looks both ways; set model.method=mdlm")
    if not causal and "both" not in kind.directions:
        raise UserError(f"the {spec.network} network looks to the left only; set model.method=ar")
    if n_labels and not kind.takes_labels:
        raise UserError(f"the {spec.network} network does not take labels; leave data.label out")
    return kind.from_config(spec, vocab, n_labels, causal)


def masked(parameterization: Parameterization) -> Method:
    """Masked diffusion with this meaning of the logits."""

    def make(config: Config, vocab: Vocab, n_labels: int) -> LanguageModel:
        spec = config.objective
        if not parameterization.carry_over and (spec.clip is not None or spec.loss != "bound"):
            raise UserError(
                f"method {config.model.method} learns to copy tokens from the whole bound only; "
                "leave out objective.clip and objective.loss"
            )
        if config.train.strategy == "fsdp" and not network_class(config.model).shardable:
            raise UserError(f"fsdp does not shard networks of {config.model.network}; set train.strategy=ddp")
        _check_anneal(config)
        if parameterization.is_measure and spec.loss == "mlm":
            raise UserError(
                "masked language modeling needs probabilities, but SEDD learns ratios; set model.method=mdlm"
            )
        return MaskedDiffusion(
            network(config.model, vocab, n_labels),
            schedule(config.schedule),
            law(config.objective, config.schedule),
            parameterization,
            objective(config.objective, config.train),
        )

    return make


def _check_anneal(config: Config) -> None:
    """Raise if the columns of a network cannot be hidden from each other one by one."""
    if config.train.anneal and "attention" not in network_class(config.model).takes:
        raise UserError(
            f"train.anneal hides columns from each other, and the {config.model.network} network sees all; leave it out"
        )


def _without_bound(config: Config) -> None:
    """Raise for settings of a diffusion bound if the model has none: they would have no effect."""
    default = ObjectiveConfig()
    if config.train.anneal:
        raise UserError(f"method {config.model.method} does not use train.anneal; leave it out")
    for name in ("bound", "proposal", "loss", "clip", "times", "pairs"):
        value = getattr(config.objective, name)
        if config.model.method == "ar" and value == "cross-entropy":
            continue  # which is its likelihood
        if value != getattr(default, name):
            raise UserError(
                f"method {config.model.method} does not use objective.{name}; leave it out, or set it to "
                f"{getattr(default, name)}"
            )


def autoregressive(config: Config, vocab: Vocab, n_labels: int) -> LanguageModel:
    """A causal transformer."""
    if config.objective.loss == "mlm":
        raise UserError(
            "masked language modeling needs a network that looks both ways, but method ar looks to the left only; "
            "set model.method=mdlm, or leave out objective.loss"
        )
    _without_bound(config)
    if getattr(config.model, "time_conditioning", False):
        raise UserError("an autoregressive model does not take a time; set model.time_conditioning=false")
    if n_labels:
        raise UserError("an autoregressive model does not take labels; leave data.label out")
    return AutoRegressive(network(config.model, vocab, causal=True), start=config.objective.start_token)


def block_diffusion(config: Config, vocab: Vocab, n_labels: int) -> LanguageModel:
    """Blocks from left to right, on a network that takes any attention."""
    spec, length = config.block, config.data.length
    if not reads_blocks(config.model):
        raise UserError(
            f"block diffusion reads rows twice at once, which the {config.model.network} network does not; "
            "set model.network=dit, modern or llama"
        )
    _check_anneal(config)
    if config.objective.loss == "mlm":
        raise UserError("masked language modeling has no blocks; set model.method=mdlm, or leave out objective.loss")
    for size in (spec.size, *(spec.mixture or ())):
        if size != "full" and length % size:
            raise UserError(
                f"blocks of {size} tokens do not divide rows of data.length={length}; choose sizes that do, or 'full'"
            )
    sizes: dict[int | None, float] = {}
    for size, share in spec.shares.items():
        sizes[_size(size, length)] = sizes.get(_size(size, length), 0.0) + share
    return BlockDiffusion(
        network(config.model, vocab, n_labels),
        schedule(config.schedule),
        law(config.objective, config.schedule),
        objective(config.objective, config.train),
        block=_size(spec.size, length),
        mixture=sizes,
        clean=spec.clean,
    )


def reads_blocks(spec: ModelConfig) -> bool:
    """Whether a network can read a noisy and a clean stream at once, and go on from a cache."""
    kind = network_class(spec)
    return {"attention", "positions", "cache", "queries"} <= kind.takes and "both" in kind.directions


def _size(size: int | str, length: int) -> int | None:
    """A block size as a model has it; None is the whole row."""
    return size if isinstance(size, int) and size < length else None


def simplex(config: Config, vocab: Vocab, n_labels: int) -> LanguageModel:
    """SSD-LM, on a network that reads embeddings and their positions."""
    spec = config.simplex
    _without_bound(config)
    if not {"embeddings", "positions"} <= network_class(config.model).takes:
        raise UserError(
            f"SSD-LM reads logits, which the {config.model.network} network does not take; set model.network=dit"
        )
    if config.train.strategy == "fsdp":
        raise UserError("SSD-LM has weights outside its network, which fsdp does not shard; set train.strategy=ddp")
    if spec.block > config.data.length:
        raise UserError(
            f"simplex.block={spec.block} is longer than a row; set it to at most data.length={config.data.length}"
        )
    net = network(config.model, vocab, n_labels)
    return SimplexDiffusion(net, spec.block, spec.steps, spec.scale, spec.context)


def plaid(config: Config, vocab: Vocab, n_labels: int) -> LanguageModel:
    """Gaussian diffusion over embeddings, on a network that looks both ways and reads embeddings."""
    spec = config.plaid
    _without_bound(config)
    if "embeddings" not in network_class(config.model).takes:
        raise UserError(
            f"Plaid needs a network that looks both ways and reads embeddings, which {config.model.network} does not; "
            "set model.network=dit or model.network=caduceus"
        )
    if config.train.strategy == "fsdp":
        raise UserError("Plaid has weights outside its network, which fsdp does not shard; set train.strategy=ddp")
    return Plaid(
        network(config.model, vocab, n_labels),
        embed_dim=spec.embed_dim,
        gamma_0=spec.gamma_0,
        gamma_1=spec.gamma_1,
        self_condition=spec.self_condition,
        reconstruct=spec.reconstruct,
        bias_warmup=min(spec.bias_warmup, config.train.steps // 2),  # a short run must get past it, too
        lr_factor=spec.lr_factor,
    )


Method = Callable[[Config, Vocab, int], LanguageModel]
mdlm = masked(Mean())
no_carry_over = masked(Mean(carry_over=False))
d3pm = masked(Mean(zero_mask=False, carry_over=False))
sedd = masked(Score())


def maker(method: str) -> Method:
    """The function that makes the models of a method (`config.METHODS`)."""
    module, _, name = METHODS[method].partition(":")
    make: Method = getattr(import_module(module), name)
    return make


def model(config: Config, vocab: Vocab, n_labels: int = 0) -> LanguageModel:
    """The language model that a config names, with fresh weights from torch's global generator.

    The number of labels comes from the data, or from labels.json of the checkpoint; it is not a setting.
    """
    if not config.objective.start_token and config.model.method != "ar":
        raise UserError(f"objective.start_token belongs to model.method=ar, not {config.model.method}; leave it out")
    return maker(config.model.method)(config, vocab, n_labels)


def classifier(config: Config, task: Task, vocab: Vocab, n_labels: int) -> Classifier:
    """The classifier of a config, with fresh weights."""
    lm = model(config, vocab, n_labels)
    backbone = lm.backbone
    longest = backbone.longest
    if longest is not None and config.task.length > longest:
        raise UserError(
            f"task.length={config.task.length} is longer than the {longest} tokens that the model supports; "
            f"set task.length to at most {longest}"
        )
    return Classifier(
        backbone,
        task.n_outputs,
        dropout=config.task.dropout,
        pooling=config.task.pooling,
        reader=lm if isinstance(lm, Plaid) else None,
    )
