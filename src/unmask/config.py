"""The schema of a run, checked by pydantic, and the only place where a string becomes a setting.

A config is plain data: YAML in, YAML out, `a.b=c` overrides. Nothing in it is ever executed. Unknown keys are
errors that name the nearest known one.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PlainSerializer,
    PositiveFloat,
    PositiveInt,
    SerializeAsAny,
    ValidationError,
    WrapValidator,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from .errors import UserError
from .errors import nearest as nearest  # imported from here elsewhere

log = logging.getLogger(__name__)
NETWORK_KEY = "model.network"
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]


def _steps_or_share(value: float) -> float:
    """A whole number of steps, or a number below 1: a share of train.steps."""
    if value < 0 or (value >= 1 and value != int(value)):
        raise ValueError(f"{value:g} must be a number of steps, or a share of train.steps below 1")
    return value if 0 < value < 1 else int(value)


Steps = Annotated[float, AfterValidator(_steps_or_share), PlainSerializer(lambda value: value)]  # 0 = none


class Section(BaseModel):
    """A part of the config: frozen, and closed to unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


class DataConfig(Section):
    """The text, its tokens, and how they become rows."""

    source: str = Field("python-docs", min_length=1)  # a name, a file, a folder, or a data set on the Hub
    subset: str | None = None  # configuration of a Hub data set
    local: str | None = Field(None, min_length=1)  # a named data set on disk; else $UNMASK_DATA, else the Hub
    files: str | None = Field(None, min_length=1)  # which files of a folder, as '*.py' or '*.py,*.md'
    field: str = "text"  # column of .jsonl, .json, .csv, .tsv, .parquet and Hub data sets
    detokenizer: str = Field("auto", min_length=1)  # rules that undo word splitting; auto: those of the named data set
    label: str | None = Field(None, min_length=1)  # column with the label of each document; pad only
    document: Literal["auto", "line", "paragraph", "file"] = "auto"  # what one document of a text file is
    tokenizer: str = Field("bpe", min_length=1)  # bytes, chars, bpe, dna, a tokenizer.json, or a Hub name
    vocab_size: PositiveInt = 4096  # of a bpe that is trained here
    length: int = Field(128, ge=2)
    layout: Literal["wrap", "pad", "chat"] = "wrap"  # concatenate and cut, or one document or conversation per row
    eos_between: bool = True  # wrap: an end-of-text token after every document
    block_ends: bool = False  # first and last token of every row are BOS and EOS (the paper's OWT and LM1B)
    learn_end: bool | None = None  # pad: documents end with an end-of-text token, and padding after it is learned too
    attend_pads: bool = False  # pad without learn_end: let attention see padding, and mask it like text (the paper)
    chat_template: str | None = Field(None, min_length=1)  # chatml, llama3, plain, a .jinja file; default: the model's
    chat_pad: Literal["eos", "cut"] = "eos"  # chat: rows end with EOS that is learned (as in LLaDA), or with the answer
    chat_rows: Literal["answer", "conversation"] = "answer"  # a row for each answer, with what was said before it
    valid_fraction: float = Field(0.05, ge=0, lt=1)  # where the source has no such split
    test_fraction: float = Field(0.05, ge=0, lt=1)
    split_seed: Seed = 0
    intervals: str | None = Field(None, min_length=1)  # dna: a BED file of regions; its fourth column names the split
    soft_mask: Literal["keep", "mask"] = "keep"  # dna: lower-case bases are bases, or are read as N
    reverse_complement: bool = False  # dna: each training row is read from the other strand with probability 1/2
    cache: str | None = None  # default: $UNMASK_CACHE, else ~/.cache/unmask

    @property
    def has_ends(self) -> bool:
        """Whether a model learns where documents end: by default, where a row is one document."""
        return self.layout == "pad" and self.learn_end is not False

    @model_validator(mode="after")
    def _fits(self) -> DataConfig:
        if self.valid_fraction + self.test_fraction >= 1:
            raise ValueError("valid_fraction + test_fraction leave nothing to train on; make them smaller")
        if self.block_ends and self.length < 3:
            raise ValueError("block_ends uses two tokens of every row; set data.length to at least 3")
        if self.learn_end and self.layout != "pad":
            raise ValueError("learn_end needs rows that are one document each; set data.layout=pad, or leave it out")
        if self.label is not None and self.layout != "pad":
            raise ValueError("label needs rows that are one document each; set data.layout=pad")
        if self.label is not None and self.label == self.field:
            raise ValueError(f"label={self.label} is the column of the text; set data.label to another column")
        if self.tokenizer != "dna":
            defaults = {"intervals": None, "soft_mask": "keep", "reverse_complement": False}
            for name, value in defaults.items():
                if getattr(self, name) != value:
                    raise ValueError(f"{name} is for DNA only; set data.tokenizer=dna, or leave it out")
        return self


# Each method, and the function that makes its model from a config, a vocabulary and the number of labels.
METHODS: dict[str, str] = {
    "mdlm": "unmask.models.registry:mdlm",
    "no-carry-over": "unmask.models.registry:no_carry_over",
    "d3pm": "unmask.models.registry:d3pm",
    "sedd": "unmask.models.registry:sedd",
    "ar": "unmask.models.registry:autoregressive",
    "block": "unmask.models.registry:block_diffusion",
    "ssd-lm": "unmask.models.registry:simplex",
    "plaid": "unmask.models.registry:plaid",
}


def _method(name: str) -> str:
    if name not in METHODS:
        *first, last = map(repr, METHODS)
        text = f"Input should be {', '.join(first)} or {last}{nearest(name, METHODS)}"
        raise PydanticCustomError("method", "{text}", {"text": text})
    return name


class ModelConfig(Section):
    """The method and the network. The settings of each network are a subclass, which ModelConfig(network=...) returns.

    To add a network, write a subclass (here, or beside the network) with `implementation`, and add it to NETWORKS.
    """

    implementation: ClassVar[str] = ""  # module:class of the network, imported when it is built
    method: Annotated[str, AfterValidator(_method)] = "mdlm"
    network: str = "dit"
    hidden_dim: int = Field(768, ge=1, le=1 << 25)
    n_blocks: int = Field(12, ge=1, le=10_000)  # a file that says more would keep a machine busy for days

    if TYPE_CHECKING:

        def __init__(self, **settings: Any) -> None: ...

    def __new__(cls, **settings: Any) -> Self:
        """An instance of the subclass for the network."""
        kind: Any = settings_of(settings) if cls is ModelConfig else cls
        return super().__new__(kind)

    @property
    def backbone(self) -> str:
        """The old name of `network`."""
        return self.network

    @model_validator(mode="before")
    @classmethod
    def _fields_of(cls, tree: Any) -> Any:
        """Settings of another network are an error, except in old configs, which had the settings of all networks."""
        if not isinstance(tree, Mapping):
            return tree
        kept = {key: value for key, value in tree.items() if key != "backbone"} | {"network": cls.name()}
        foreign = [key for key in kept if key not in cls.model_fields and owners(key)]
        if foreign and "backbone" not in tree:
            having = " and ".join(owners(foreign[0]))
            raise ValueError(f"{foreign[0]} is a setting of {having}, not of model.network={cls.name()}; leave it out")
        if "time_conditioning" in foreign and kept["time_conditioning"]:
            raise ValueError(f"the {cls.name()} network does not take a time; set model.time_conditioning=false")
        if "backbone" in tree:
            note("model.backbone is now model.network, which has only the settings of that network")
        return {key: value for key, value in kept.items() if key not in foreign}

    @classmethod
    def name(cls) -> str:
        """The name of the network."""
        return str(cls.model_fields["network"].default)


class RotaryConfig(ModelConfig):
    """What transformers with rotary positions have in common."""

    n_heads: PositiveInt = 12

    @model_validator(mode="after")
    def _heads(self) -> Self:
        if self.hidden_dim % self.n_heads or (self.hidden_dim // self.n_heads) % 2:
            raise ValueError(
                f"hidden_dim={self.hidden_dim} must be an even multiple of n_heads={self.n_heads} "
                "(rotary positions turn pairs of channels)"
            )
        return self


class DiTConfig(RotaryConfig):
    """The paper's diffusion transformer; with method ar the same blocks, causal."""

    implementation: ClassVar[str] = "unmask.networks.dit:DiT"
    network: Literal["dit"] = "dit"
    cond_dim: PositiveInt = 128
    mlp_ratio: PositiveInt = 4
    dropout: float = Field(0.1, ge=0, lt=1)
    time_conditioning: bool = False


class ModernConfig(RotaryConfig):
    """A transformer with what was found useful since: RMS norms, QK-norm, ReLU², a tied head; causal with method ar."""

    implementation: ClassVar[str] = "unmask.networks.modern:Modern"
    network: Literal["modern"] = "modern"
    mlp_ratio: PositiveInt = 4
    dropout: float = Field(0.0, ge=0, lt=1)
    time_conditioning: bool = False
    skips: Literal["none", "x0", "both"] = "x0"  # what blocks see of the input: nothing, the embedding, also its values


class LlamaConfig(ModelConfig):
    """The transformer of Llama, Qwen2 and Qwen3, and of diffusion models made from them; causal with method ar."""

    implementation: ClassVar[str] = "unmask.networks.llama:Llama"
    network: Literal["llama"] = "llama"
    n_heads: PositiveInt = 12
    n_kv_heads: PositiveInt | None = None  # heads of keys and values; default: as many as of queries
    head_dim: PositiveInt | None = None  # default: hidden_dim / n_heads
    mlp_dim: PositiveInt = 2048  # inner channels of the MLP
    rotary_base: PositiveFloat = 10_000.0  # the slowest rotation: theta
    rotary_scaling: tuple[PositiveFloat, PositiveFloat, PositiveFloat, PositiveFloat] | None = None  # of Llama 3.1
    norm_eps: PositiveFloat = 1e-5
    qk_norm: bool = False  # norm queries and keys in each head (Qwen3)
    qkv_bias: bool = False  # biases of queries, keys and values (Qwen2)
    tied: bool = True  # the head is the embedding
    embedding_rows: PositiveInt | None = None  # of a published embedding; default: one for each token
    prediction: Literal["same", "shifted"] = "same"  # the column that predicts a token: its own, or the one before

    @model_validator(mode="after")
    def _heads(self) -> LlamaConfig:
        if self.head_dim is None and self.hidden_dim % self.n_heads:
            raise ValueError(
                f"hidden_dim={self.hidden_dim} must be a multiple of n_heads={self.n_heads}; or set head_dim"
            )
        if (self.head_dim or self.hidden_dim // self.n_heads) % 2:
            raise ValueError("a head must have an even number of channels: rotary positions turn pairs; set head_dim")
        if self.n_heads % (self.n_kv_heads or self.n_heads):
            raise ValueError(f"n_heads={self.n_heads} must be a multiple of n_kv_heads={self.n_kv_heads}")
        if self.rotary_scaling is not None and self.rotary_scaling[1] >= self.rotary_scaling[2]:
            raise ValueError("rotary_scaling is (factor, low, high, positions), and low must be below high")
        return self


class MosaicBertConfig(ModelConfig):
    """BERT with ALiBi and GEGLU."""

    implementation: ClassVar[str] = "unmask.networks.mosaicbert:MosaicBert"
    network: Literal["mosaicbert"] = "mosaicbert"
    n_heads: PositiveInt = 12
    mlp_ratio: PositiveInt = 4
    dropout: float = Field(0.1, ge=0, lt=1)

    @model_validator(mode="after")
    def _heads(self) -> MosaicBertConfig:
        if self.hidden_dim % self.n_heads:
            raise ValueError(f"hidden_dim={self.hidden_dim} must be a multiple of n_heads={self.n_heads}")
        return self


class EncoderConfig(ModelConfig):
    """A masked language model of transformers."""

    implementation: ClassVar[str] = "unmask.networks.encoder:Encoder"
    network: Literal["transformers"] = "transformers"
    n_heads: PositiveInt = 12
    dropout: float = Field(0.1, ge=0, lt=1)
    architecture: dict[str, Any] | None = Field(None, validate_default=True)  # what its config.json says

    @model_validator(mode="after")
    def _described(self) -> EncoderConfig:
        if self.architecture is None:
            raise ValueError(
                "model.network=transformers needs the architecture of a model; it comes with one: "
                "unmask finetune MODEL mdlm"
            )
        return self


class MambaConfig(ModelConfig):
    """A state-space model that looks to the left."""

    implementation: ClassVar[str] = "unmask.networks.mamba:Mamba"
    network: Literal["mamba"] = "mamba"
    dropout: float = Field(0.0, ge=0, lt=1)  # only 0: it has no dropout
    state_dim: PositiveInt = 16  # size of the state of a channel
    conv_width: PositiveInt = 4  # columns that the short convolution sees
    expand: PositiveInt = 2  # inner channels for each hidden one

    @model_validator(mode="after")
    def _without_dropout(self) -> Self:
        if self.dropout:
            raise ValueError(f"the {self.network} network has no dropout; set model.dropout=0")
        return self


class CaduceusConfig(MambaConfig):
    """Mamba in both directions, on both strands of DNA."""

    implementation: ClassVar[str] = "unmask.networks.caduceus:Caduceus"
    network: Literal["caduceus"] = "caduceus"  # type: ignore[assignment]
    strands: Literal["ps", "ph"] = "ps"  # equivariant to the reverse complement by its weights, or plain
    swap_strands: bool = False  # ps: as the published weights (fused norms) were trained


class HyenaConfig(ModelConfig):
    """Long convolutions that look to the left."""

    implementation: ClassVar[str] = "unmask.networks.hyena:Hyena"
    network: Literal["hyena"] = "hyena"
    mlp_ratio: PositiveInt = 4
    dropout: float = Field(0.1, ge=0, lt=1)
    filter_dim: PositiveInt = 64  # width of the network that makes the long filters
    filter_length: PositiveInt = 1026  # the longest row that the filters are made for
    filter_shift: float = 0.0  # added to the decay of the filters; some published files have 0.05


NETWORKS: dict[str, type[ModelConfig]] = {
    settings.name(): settings
    for settings in (
        DiTConfig,
        ModernConfig,
        LlamaConfig,
        MosaicBertConfig,
        EncoderConfig,
        MambaConfig,
        CaduceusConfig,
        HyenaConfig,
    )
}


def settings_of(tree: Mapping[str, Any]) -> type[ModelConfig]:
    """The settings class of the network named in a `model` section; backbone is the old key."""
    name = tree.get("backbone", tree.get("network", "dit"))
    if name not in NETWORKS:
        close = nearest(str(name), NETWORKS)
        raise ValueError(f"network={name!r} must be one of {', '.join(NETWORKS)}{close}")
    return NETWORKS[name]


def owners(key: str) -> list[str]:
    """The networks that have a setting."""
    return [name for name, settings in NETWORKS.items() if key in settings.model_fields]


@functools.cache
def note(text: str) -> None:
    """Log a message once."""
    log.info(text)


ScheduleName = Literal[
    "log-linear", "cosine", "cosine-squared", "linear", "geometric", "polynomial", "log-uniform", "bell"
]


class ScheduleConfig(Section):
    """alpha(t), the signal kept at time t."""

    name: ScheduleName = "log-linear"
    eps: float = Field(1e-3, ge=0, lt=1)  # alpha(1) of all but geometric and linear
    sigma_min: PositiveFloat = 1e-3  # geometric
    sigma_max: PositiveFloat = 20.0  # geometric and linear
    power: PositiveFloat = 2.0  # polynomial
    low: float = Field(1e-3, gt=0, lt=1)  # mask rate at t = 0 of log-uniform
    steep: float = Field(4.0, gt=0, le=10)  # bell: how much more likely middle mask rates are than the ends


class ObjectiveConfig(Section):
    """Which bound is minimised and reported."""

    bound: Literal["continuous", "discrete"] = "continuous"
    steps: PositiveInt | None = None  # T of the discrete bound
    cutoff: float = Field(1e-3, gt=0, lt=1)  # continuous: below this mask rate the rest is revealed in one step
    proposal: ScheduleName | None = None  # continuous: draw times evenly in the time of this schedule
    loss: Literal["bound", "cross-entropy", "mlm"] = "bound"  # or the masked tokens' plain mean, or BERT's objective
    mask_rate: float | None = Field(None, gt=0, lt=1)  # mlm: share of tokens to be guessed; 0.15 (BERT) if not given
    clip: tuple[float, float] | None = None  # train on mask rates between these two only
    clip_until: Annotated[Steps, Field(gt=0)] | None = None  # clip: for so many steps only, then the whole range
    times: Literal["strata", "independent", "counts"] = "strata"  # one row a stratum of time, independent times, or
    # one row a stratum of the number of masks
    pairs: bool = False  # counts: every row twice; what is hidden in one view is seen in the other
    start_token: bool = True  # ar: rows begin with a start symbol, so that their first token is scored too

    @model_validator(mode="after")
    def _steps(self) -> ObjectiveConfig:
        if self.clip is not None and not 0 < self.clip[0] < self.clip[1] <= 1:
            raise ValueError(f"clip={list(self.clip)} must be two mask rates, for example [0.3, 0.8]")
        if self.proposal is not None and self.bound != "continuous":
            raise ValueError("proposal belongs to objective.bound=continuous: T steps are drawn evenly")
        if self.mask_rate is not None and self.loss != "mlm":
            raise ValueError("mask_rate belongs to objective.loss=mlm; diffusion draws a rate for every row")
        if self.loss == "mlm" and self.clip is not None:
            raise ValueError("clip is a range of mask rates, but objective.loss=mlm has a single rate; set mask_rate")
        if self.clip_until is not None and self.clip is None:
            raise ValueError("clip_until is the end of objective.clip; set clip too, for example [0.01, 0.5]")
        if self.loss == "mlm" and self.times == "counts":
            raise ValueError(
                "times=counts draws how much is hidden, but objective.loss=mlm has a single rate; leave out times"
            )
        if self.pairs and self.times != "counts":
            raise ValueError("pairs are drawn by the number of masks; set objective.times=counts, or leave pairs out")
        if self.pairs and self.clip is not None:
            raise ValueError("pairs also hide the rest of a row, at a mask rate outside clip; leave out one of them")
        if (self.bound == "discrete") != (self.steps is not None):
            raise ValueError("objective.steps is required by objective.bound=discrete, and belongs to it only")
        return self


def _block_size(value: Any, read: Callable[[Any], Any]) -> Any:
    try:
        return read(value)
    except ValidationError:  # one for each kind of value
        raise ValueError(f"{value!r} is no block size; give a whole number of at least 1, or full") from None


BlockSize = Annotated[PositiveInt | Literal["full"], WrapValidator(_block_size)]  # full: the whole row, as MDLM


class BlockConfig(Section):
    """Block diffusion (model.method=block)."""

    size: BlockSize = 16  # tokens of a block, by which the model is scored and writes if nothing else is asked for
    mixture: dict[BlockSize, PositiveFloat] | None = None  # train on these sizes, with their shares; default: on `size`
    clean: Literal["tokens", "blocks"] = "tokens"  # what is known is read causally by tokens, or (published) by blocks

    @model_validator(mode="after")
    def _some(self) -> BlockConfig:
        if self.mixture is not None and not self.mixture:
            raise ValueError("mixture names no block size; give sizes with their shares, as {1: 0.2, 16: 0.8}")
        return self

    @property
    def shares(self) -> dict[BlockSize, float]:
        """The sizes that the model is trained on, with their shares of the steps, which sum to 1."""
        mixture = self.mixture or {self.size: 1.0}
        total = sum(mixture.values())
        return {size: share / total for size, share in mixture.items()}


class SimplexConfig(Section):
    """SSD-LM: the noise on the logits of a block."""

    block: PositiveInt = 25  # tokens that are written at a time
    steps: PositiveInt = 5000  # T of the training
    scale: PositiveFloat = 5.0  # K: logits of a token are K, of all others -K
    context: PositiveInt | None = None  # the most tokens that a block sees before it; default: all


class PlaidConfig(Section):
    """Gaussian diffusion over embeddings (model.method=plaid)."""

    embed_dim: PositiveInt = 16  # size of the embedding of a token
    gamma_0: float = -3.0  # log noise-to-signal ratio at t = 0 before training ...
    gamma_1: float = 6.0  # ... and at t = 1
    self_condition: float = Field(0.25, ge=0, le=1)  # share of the rows that see a first guess, in training
    reconstruct: float = Field(0.125, gt=0, lt=1)  # share of the rows that are evaluated at t = 0
    bias_warmup: NonNegativeInt = 5000  # steps until the exact posterior of the noise counts fully
    lr_factor: PositiveFloat = 7.0  # learning rate of embeddings and noise schedule, in units of train.lr

    @model_validator(mode="after")
    def _order(self) -> PlaidConfig:
        if self.gamma_0 >= self.gamma_1:
            raise ValueError(f"gamma_0={self.gamma_0} must be below gamma_1={self.gamma_1}: noise grows with time")
        return self


class AdapterConfig(Section):
    """LoRA: small matrices that are trained beside the frozen weights of train.start."""

    rank: PositiveInt | None = None  # their inner size; None: no adapters, all weights are trained
    alpha: PositiveFloat | None = None  # what they add is scaled by alpha / rank; default: twice the rank
    dropout: float = Field(0.0, ge=0, lt=1)  # of their input
    targets: list[str] | None = (
        None  # linear layers by their last names, as [q_proj, v_proj]; default: all of the blocks
    )


class TrainConfig(Section):
    """Optimisation, checkpoints and the machine."""

    steps: PositiveInt = 1000
    minutes: PositiveFloat | None = None  # choose the steps of a new run, measured, so that it takes this long
    rows: PositiveInt | None = None  # learn from so many rows of the text only, its first; None = all
    batch_size: PositiveInt = 64  # global: over all processes and accumulation steps
    micro_batch_size: PositiveInt | None = None  # rows that go through the network of a process at once
    optimizer: Literal["adamw", "muon"] = "adamw"  # muon: for the matrices of the blocks; adamw for all other weights
    lr: PositiveFloat = 3e-4  # of AdamW
    muon_lr: PositiveFloat = 0.03
    muon_momentum: float = Field(0.95, ge=0, lt=1)
    warmup: Steps = 0.1
    decay: Literal["constant", "cosine", "linear", "wsd"] = "constant"  # wsd: constant, linear at the end
    decay_share: float = Field(0.2, gt=0, le=1)  # wsd: the share of the steps in which the rate decays
    final_lr: float = Field(0.0, ge=0, le=1)  # where the decay ends, as a fraction of lr
    betas: tuple[float, float] = (0.9, 0.999)
    adam_eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.0
    clip: PositiveFloat | None = 1.0
    ema: float = Field(0.9999, ge=0, lt=1)  # 0 switches it off
    label_drop: float = Field(0.1, ge=0, lt=1)  # chance that a row's label (data.label) is hidden from the network
    precision: Literal["float32", "bf16"] = "float32"
    compile: bool = False
    device: str = "auto"
    strategy: Literal["ddp", "fsdp"] = "ddp"
    log_every: PositiveInt = 10
    checkpoint_every: Annotated[Steps, Field(gt=0)] = 500
    keep_last: PositiveInt = 2
    patience: PositiveInt | None = None  # stop after this many evaluations in a row without improvement
    anneal: Steps = 0  # of a causal model: the first steps, in which columns to the right come into sight; 0 = at once
    last_blocks: PositiveInt | None = None  # train only so many blocks of the network, and what follows them
    start: str | None = Field(None, min_length=1)  # a model with the initial weights: a run, a folder or a Hub id
    lora: AdapterConfig = AdapterConfig()
    recompute: bool = False  # keep only the inputs of blocks for the backward pass: a third more time, far less memory
    embeddings: Literal["random", "counts"] = "random"  # of a new model: or from the pairs of tokens in its text
    sinks: list[Literal["tensorboard", "trackio", "wandb"]] = []

    @model_validator(mode="after")
    def _betas(self) -> TrainConfig:
        if not all(0 <= b < 1 for b in self.betas):
            raise ValueError("betas must lie in [0, 1)")
        return self


class TaskConfig(Section):
    """A task with labels, on which a classifier is trained instead of a language model."""

    name: str | None = Field(None, min_length=1)  # such as glue/sst2; None: a language model is trained
    local: str | None = Field(None, min_length=1)  # the folder of its files; else $UNMASK_DATA, else the Hub
    length: int = Field(128, ge=4)  # tokens that an example is cut to
    epochs: PositiveFloat = 3.0  # sets train.steps
    rows: PositiveInt | None = None  # at most this many training examples, evenly spaced; None = all
    eval_rows: PositiveInt | None = None  # the same for each split that is evaluated
    dropout: float = Field(0.1, ge=0, lt=1)  # before the classifier
    pooling: Literal["first", "mean"] = "first"  # BERT's state of one token with its tanh, or the mean over all tokens
    strands: Literal["one", "augment", "conjoin"] = "one"  # dna: learn from both strands; conjoin: answer from both too
    split: Literal["official", "random"] = "official"  # dna: as distributed, or drawn from the data at hand
    genome: str | None = Field(None, min_length=1)  # dna: FASTA (or its folder) of tasks that come as intervals
    max_steps: PositiveInt | None = None  # at most this many, whatever task.epochs says
    warmup: float | None = Field(None, ge=0, lt=1)  # share of the steps; None: train.warmup steps


class EvalConfig(Section):
    """Evaluation, during training and after it."""

    every: Steps = 500  # training steps between evaluations; 0 = only at the end
    split: str = "valid"
    batch_size: PositiveInt = 32
    draws: PositiveInt = 4
    rows: PositiveInt | None = None  # at most this many rows of the split, evenly spaced; None = all
    seed: Seed = 0


class SampleConfig(Section):
    """Samples that are written during training."""

    every: Steps = 0  # training steps between samples; 0 = none
    n: PositiveInt = 2
    length: PositiveInt | None = None  # default: data.length
    steps: PositiveInt | None = None  # default: that of the sampler
    recommended: Literal["auto", "none"] | dict[str, Any] = "auto"  # what the model recommends to those who sample it


class Config(Section):
    """A complete run."""

    seed: Seed = 0
    data: DataConfig = DataConfig()
    model: SerializeAsAny[ModelConfig] = DiTConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    block: BlockConfig = BlockConfig()
    simplex: SimplexConfig = SimplexConfig()
    plaid: PlaidConfig = PlaidConfig()
    train: TrainConfig = TrainConfig()
    task: TaskConfig = TaskConfig()
    eval: EvalConfig = EvalConfig()
    sample: SampleConfig = SampleConfig()

    @field_validator("model", mode="before")
    @classmethod
    def _network(cls, tree: Any) -> Any:
        return settings_of(tree).model_validate(tree) if isinstance(tree, Mapping) else tree

    @field_validator("data", mode="before")
    @classmethod
    def _saved(cls, tree: Any) -> Any:
        """Configs that were saved (with every key) before documents had ends keep their meaning."""
        if not isinstance(tree, Mapping) or "learn_end" in tree or tree.get("layout") != "pad":
            return tree
        return {**tree, "learn_end": False} if {"attend_pads", "split_seed", "cache"} <= tree.keys() else tree

    @model_validator(mode="after")
    def _masked_words(self) -> Config:
        """BERT's objective never predicts an end of text, so its rows have no learned end unless that is asked for."""
        if self.objective.loss == "mlm" and self.data.layout == "pad" and self.data.learn_end is None:
            object.__setattr__(self, "data", self.data.model_copy(update={"learn_end": False}))  # a frozen record
        return self

    def to_yaml(self) -> str:
        """The config as YAML, complete."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)

    def resolved(self) -> Config:
        """A copy in which every share of train.steps is a number of steps."""
        total, until = self.train.steps, self.objective.clip_until
        return self.changed(
            train={
                "warmup": steps_of(self.train.warmup, total),
                "checkpoint_every": steps_of(self.train.checkpoint_every, total),
                "anneal": steps_of(self.train.anneal, total),
            },
            eval={"every": steps_of(self.eval.every, total)},
            objective={"clip_until": None if until is None else steps_of(until, total)},
            sample={"every": steps_of(self.sample.every, total)},
        )

    def changed(self, **sections: Mapping[str, Any]) -> Config:
        """A copy with other values of some settings, by section; they are not checked."""
        parts = {name: getattr(self, name).model_copy(update=values) for name, values in sections.items()}
        return self.model_copy(update=parts)

    def override(self, assignments: Iterable[str]) -> Config:
        """A copy with `a.b=c` assignments applied; values are read as YAML."""
        assignments = list(assignments)
        tree, pairs = self.model_dump(mode="json"), [_pair(assignment) for assignment in assignments]
        for key, text in pairs:
            if key == NETWORK_KEY:  # settings that only the other network has are dropped
                tree["model"]["network"] = text
                fields = _settings_of_text(text).model_fields
                tree["model"] = {name: value for name, value in tree["model"].items() if name in fields}
        for key, text in pairs:
            _assign(tree, key, text)
        if any(assignment.startswith("model.backbone=") for assignment in assignments):
            tree["model"]["backbone"] = tree["model"]["network"]  # the old key allows settings of all networks
        return parse(tree)


def steps_of(value: float, total: int) -> int:
    """A setting of steps as a number: a share of all of them is at least one step."""
    return max(1, round(value * total)) if 0 < value < 1 else int(value)


def parse(tree: Mapping[str, Any]) -> Config:
    """A validated config from plain data, or an error that says in one sentence what is wrong."""
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise UserError("; ".join(_sentence(e) for e in error.errors())) from None


def load_yaml(path: str | Path) -> Config:
    """Read a config from a YAML file."""
    try:
        tree = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"config file {path} does not exist") from None
    except OSError as error:
        raise UserError(f"config file {path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"config file {path} is not YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(tree, dict):
        raise UserError(f"config file {path} must hold a mapping of sections (data, model, train, ...)")
    return parse(tree)


def differences(old: Config, new: Config) -> list[tuple[str, Any, Any]]:
    """(key, old value, new value) for every setting in which two configs differ."""
    a, b = old.model_dump(mode="json"), new.model_dump(mode="json")

    def value(tree: Any, key: str) -> Any:
        for part in key.split("."):
            tree = tree.get(part)
        return tree

    return [(k, value(a, k), value(b, k)) for k in known_keys() if value(a, k) != value(b, k)]


def known_keys(model: type[BaseModel] = Config, prefix: str = "", texts: bool = False) -> list[str]:
    """Every dotted key of the schema, those of all networks included; with `texts` only the free-text settings."""
    keys: list[str] = []
    sections: list[type[BaseModel]] = [model, *NETWORKS.values()] if model is ModelConfig else [model]
    for settings in sections:
        for name, info in settings.model_fields.items():
            annotation = info.annotation
            if isinstance(annotation, type) and issubclass(annotation, BaseModel):
                keys += known_keys(annotation, f"{prefix}{name}.", texts)
            elif not texts or annotation in (str, str | None):
                keys.append(prefix + name)
    return list(dict.fromkeys(keys))


def _pair(assignment: str) -> tuple[str, str]:
    """The key and the value of `key=value`; raises if the key is not known."""
    key, sep, text = assignment.partition("=")  # the value may contain more of them
    if not sep or not key:
        raise UserError(f"{assignment!r} is not an override; write key=value, for example train.steps=100")
    if key == "model.backbone":
        note("model.backbone is now model.network")
        key = NETWORK_KEY
    known = known_keys()
    if key not in known:
        raise UserError(f"unknown config key {key!r}{nearest(key, known)}")
    return key, text


def _settings_of_text(name: str) -> type[ModelConfig]:
    try:
        return settings_of({"network": name})
    except ValueError as error:
        raise UserError(f"model.{error}") from None


def _assign(tree: dict[str, Any], key: str, text: str) -> None:
    *sections, last = key.split(".")
    for section in sections:
        tree = tree[section]
    tree[last] = _text(text) if key in known_keys(texts=True) else _value(text)


def _text(text: str) -> str | None:
    """The value of a text setting: names and paths stay as typed, even if YAML would read a number or a mapping."""
    return None if text in ("null", "None") else text


def _value(text: str) -> Any:
    try:
        value = yaml.safe_load(text) if text else ""
    except (yaml.YAMLError, RecursionError):
        return text
    if isinstance(value, str):  # YAML reads 3e-4 as a string
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _sentence(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"] if part != "[key]")
    if error["type"] == "extra_forbidden":
        return f"unknown config key {where!r}{nearest(where, known_keys())}"
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":
        return f"{where}: {message}" if where else message
    message = message[0].lower() + message[1:]
    if error["type"] == "literal_error":
        message += nearest(str(error["input"]), re.findall("'([^']*)'", error["ctx"]["expected"]))
    return f"{where}={error['input']!r} is not valid: {message}"
