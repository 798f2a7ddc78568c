"""Fine-tuning of a saved model (paper section 5.1): it is trained further as a language model, or becomes a classifier.

unmask finetune MODEL mdlm --data TEXT      a BERT learns to write; the bound before and after (also sedd, d3pm, plaid)
unmask finetune MODEL block --data TEXT     an MDLM or AR model learns to write block after block
                                            a causal Llama or Qwen becomes a diffusion model by either (`both_ways`)
unmask finetune MODEL sft --data CHAT       any language model learns to answer; prompts are given
unmask finetune MODEL glue/sst2             a task with labels, one run per seed
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..config import Config, differences
from ..data import tasks
from ..data.pack import prepare
from ..distributed import world as join_world
from ..errors import UserError, nearest
from ..evaluation.likelihood import evaluate
from ..evaluation.uncertainty import deviation, mean
from ..files import read_json, write_text
from ..hub import checkpoint
from ..hub.both_ways import turned, turned_config, turns
from ..hub.layout import NoHead
from ..hub.resolve import load
from ..lm import LM
from ..models import registry
from ..models.block_diffusion import BlockDiffusion
from ..progress import progress_bar
from ..recipes import (
    block_finetuning,
    chat_finetuning,
    dna_finetuning,
    genomics_finetuning,
    glue_finetuning,
    llama_finetuning,
    mdlm_finetuning,
    mixed_blocks,
    named_keys,
)
from ..types import Likelihood
from .finetune import TaskResult, finetune
from .loop import folder_of, open_folder, say_run
from .text import TrainResult, check, template_of, train

KINDS = {  # method and loss of a model that is trained further as a language model
    "mdlm": ("mdlm", "bound"), "mlm": ("mdlm", "mlm"), "sedd": ("sedd", "bound"), "d3pm": ("d3pm", "bound"),
    "plaid": ("plaid", "bound"), "ar": ("ar", "bound"), "block": ("block", "bound"),
    "sft": (None, "bound"),  # the method that it has
}  # fmt: skip
LIKE = (
    "mdlm",
    "sedd",
    "d3pm",
    "no-carry-over",
    "block",
)  # methods whose weights mean the same: a token for each [MASK]
INSTEAD = {"train.steps": "task.epochs", "data.length": "task.length", "data.local": "task.local"}  # for tasks
LORA_RATE = 2e-4  # of adapters, which begin at zero: higher than that of trained weights
BEFORE = "before.json"  # in the folder of the run


@dataclass(frozen=True)
class Adapted:
    """A language model that was trained further: its bound before, and how the training ended."""

    before: dict[str, Any] | None  # the figures of a likelihood; None where the run was started without it
    result: TrainResult


def is_language(kind: str) -> bool:
    """Whether a kind of fine-tuning gives a language model; else it is the name of a task."""
    if kind in KINDS:
        return True
    try:
        tasks.task(kind)
    except UserError as error:
        close = nearest(kind, KINDS) if "/" not in kind else ""
        raise UserError(f"{error}; or train it further as {', '.join(KINDS)}{close}") from None
    return False


def language_config(
    lm: LM,
    name: str,
    kind: str = "mdlm",
    data: str | None = None,
    local: str | None = None,
    overrides: Sequence[str] = (),
) -> Config:
    """The settings of a language model that is trained further: the paper's fine-tuning, on the data asked for."""
    method, loss = KINDS[kind]
    _check_start(lm, name, kind)
    if kind == "sft":
        config = chat_finetuning(lm.config)
    elif lm.config.model.network == "llama" and kind in ("mdlm", "block"):
        config = llama_finetuning(lm.config, kind)
        config = turned_config(config, lm.tokenizer.vocab) if turns(lm, kind) else config
    elif kind == "block":
        config = block_finetuning(lm.config, loss)
    elif lm.config.data.tokenizer == "dna":
        assert method is not None
        config = dna_finetuning(lm.config, method, loss)
    else:
        assert method is not None
        config = mdlm_finetuning(lm.config, loss, method)
    config = _with(config, "train", start=name)
    if data is not None:
        intervals = config.data.intervals if data == config.data.source else None
        config = _with(config, "data", source=data, subset=None, detokenizer="auto", local=local, intervals=intervals)
    elif local is not None:
        config = _with(config, "data", local=local)
    if data is None and not any(text.startswith("data.source=") for text in overrides):
        what = "conversations" if kind == "sft" else "text"
        raise UserError(f"name the {what} on which {name} is to be trained: --data NAME_OR_PATH")
    of_network = ("model.prediction" if turns(lm, kind) else "model.dropout",)
    config, named = _overridden(config, overrides, of_network), named_keys(overrides)
    if config.train.lora.rank is not None:  # Muon has a rate of its own and would not see train.lr
        rates = {"optimizer": "adamw", "lr": LORA_RATE}
        config = _with(config, "train", **{key: v for key, v in rates.items() if f"train.{key}" not in named})
    if kind == "block" and lm.config.model.method != "block" and "block.mixture" not in named:
        sizes = mixed_blocks(config.data.length, config.block.size if "block.size" in named else None)
        config = _with(config, "block", size=sizes.size, mixture=sizes.mixture)
    return config


def _check_start(lm: LM, name: str, kind: str) -> None:
    """Raise if a model cannot be trained further in this way."""
    method, causal = lm.config.model.method, lm.model.backbone.causal
    if kind == "ar" and not causal:
        raise UserError(
            f"{name} looks both ways, and ar needs a model that looks to the left only; give one of method ar"
        )
    if kind in ("ar", "sft") or method == kind or turns(lm, kind):
        return
    if kind == "block":
        _check_blocks(lm, name)
        return
    if causal or method not in LIKE:
        why = "looks to the left only" if causal else f"is trained as {method}"
        others = ", or a causal Llama or Qwen" if kind == "mdlm" else ""
        raise UserError(
            f"{name} {why}, and {kind} needs a masked LM that looks both ways; give a BERT or a model of method mdlm"
            f"{others}"
        )


def _check_blocks(lm: LM, name: str) -> None:
    """Raise if a model cannot learn to write in blocks."""
    spec = lm.config.model
    if spec.method not in (*LIKE, "ar"):
        raise UserError(f"{name} is trained as {spec.method}, and block needs a model of method mdlm, ar or block")
    if not registry.reads_blocks(spec):
        raise UserError(f"{name} is a {spec.network}, which does not read two streams; block needs a dit or a modern")
    if lm.model.backbone.time_conditioning:
        raise UserError(f"{name} is told the time of a row, and in block diffusion every block has a time of its own")
    if not isinstance(lm.model.backbone, registry.network_class(spec)):
        raise UserError(
            f"{name} is an autoregressive {spec.network}, which lacks the adaLN weights of the network that looks both "
            "ways; of AR models only those on the modern network can learn to write in blocks"
        )


def task_config(lm: LM, name: str, task: str, local: str | None = None, overrides: Sequence[str] = ()) -> Config:
    """The settings of a classifier: the paper's, for texts or for sequences of bases."""
    record = tasks.task(task)
    base = genomics_finetuning(lm.config) if record.sequences else glue_finetuning(lm.config)
    config = _with(base, "train", start=name)
    length = record.length or base.task.length
    config = _overridden(_with(config, "task", name=task, local=local, length=length), overrides)
    if config.task.warmup is not None and config.train.warmup != base.train.warmup:
        raise UserError(f"{task} has its warm-up as a share of the steps; set task.warmup instead of train.warmup")
    return config


def _overridden(config: Config, overrides: Sequence[str], open_keys: Sequence[str] = ("model.dropout",)) -> Config:
    """The config with what the user changes: neither what is an argument, nor what comes with the weights.

    Of the network, `open_keys` are free.
    """
    changed = config.override(overrides)
    for key, old, new in differences(config, changed):
        if key in ("train.start", "task.name"):
            raise UserError(f"{key} is set by the arguments: {old}; leave out {key}={new}")
        if key not in open_keys and (key.startswith("model.") or key in ("data.tokenizer", "data.vocab_size")):
            raise UserError(f"{key}={old} belongs to the weights of {config.train.start}; leave out {key}={new}")
        if config.task.name is not None and key in INSTEAD:
            raise UserError(f"{key} has no effect on a task; set {INSTEAD[key]} instead of {key}={new}")
    return changed


def _with(config: Config, section: str, **changes: Any) -> Config:
    part = getattr(config, section).model_copy(update=changes)
    return config.model_copy(update={section: part})


def continue_training(lm: LM, config: Config, out: str | Path, *, quiet: bool = False) -> Adapted:
    """Train a language model further, or resume that; its bound is measured before the first step, as it is after."""
    out, lm = folder_of(out), turned(lm, config)
    _, folder = open_folder(config, out)  # impossible settings are refused before anything is measured
    check(config, lm, folder)
    before = _before(lm, config, out, quiet, folder is not None)
    return Adapted(before, train(config, out, quiet=quiet, start=lm))


def _before(lm: LM, config: Config, out: Path, quiet: bool, begun: bool) -> dict[str, Any] | None:
    path = out / BEFORE
    if begun:  # without a checkpoint the file may belong to another model or other text
        return read_json(path, "cannot read the bound before the fine-tuning") if path.is_file() else None
    with join_world(config.train.device) as world:
        figures = bound(lm, config, world, quiet or not world.main).as_dict()
        if world.main:
            write_text(path, json.dumps(figures, indent=1) + "\n")
        world.barrier()
    return figures


def bound(lm: LM, config: Config, world: Any, quiet: bool) -> Likelihood:
    """The bound of a model as the evaluations of a run measure it: same rows, draws, seed and law."""
    spec = config.eval
    model = lm.model
    if lm.config.model.method in LIKE:
        model = model.under(registry.schedule(config.schedule), registry.law(config.objective, config.schedule))
    if isinstance(model, BlockDiffusion):
        size = config.block.size if config.model.method == "block" else "full"
        model = model.in_blocks(None if size == "full" else size)
    model = model.to(world.device)
    with world.first(), progress_bar("tokenizing", quiet) as progress:
        template = template_of(config, lm)
        prepared = prepare(config.data, lm.tokenizer, ("train", spec.split), progress, template=template)
        rows = prepared.split(spec.split)
    with progress_bar("bound before", quiet) as progress, torch.no_grad():
        return evaluate(
            model,
            rows,
            draws=spec.draws,
            batch_size=spec.batch_size,
            seed=spec.seed,
            limit=spec.rows,
            world=world,
            attend_pads=config.data.attend_pads,
            progress=progress,
            protocol={"model": config.train.start, "method": lm.config.model.method},
        )


# -- tasks -----------------------------------------------------------------------------------------------------------


def classify(lm: LM, config: Config, out: str | Path, seeds: Sequence[int], *, quiet: bool = False) -> list[TaskResult]:
    """Train a classifier once per seed; with several seeds each has its folder."""
    out = Path(out)
    results = []
    for number, seed in enumerate(seeds, 1):
        if len(seeds) > 1:
            say_run(f"seed {seed}", number, len(seeds), quiet)
        seeded = config.model_copy(update={"seed": seed})
        results.append(finetune(lm, seeded, out if len(seeds) == 1 else out / f"seed-{seed}", quiet=quiet))
        if not results[-1].finished:
            break
    return results


def summary(results: Sequence[TaskResult], metric: str, which: str = "last") -> dict[str, dict[str, Any]]:
    """By dev split: the metric of every seed, their mean, and their standard deviation (None of one)."""
    by_split: dict[str, dict[str, Any]] = {}
    for split in getattr(results[0], which):
        values = [getattr(result, which)[split][metric] for result in results]
        by_split[split] = {
            "values": values,
            "mean": mean(values).value,
            "sd": deviation(values),
            "stderr_data": getattr(results[0], which)[split].get(f"{metric}_stderr"),
        }
    return by_split


def begun(out: str | Path) -> LM | None:
    """The model of a run that was started in `out`, if there is one."""
    return load(out) if checkpoint.steps(Path(out)) else None


def load_start(
    model: str,
    weights: str = "ema",
    which: str = "last",
    tokenizer: str | None = None,
    device: str = "cpu",
    adapters: bool = False,
) -> LM:
    """The model that is to be fine-tuned; an encoder without a head for masks gets a fresh one.

    With `adapters` its name alone must say which weights they belong to.
    """
    if adapters:
        if (weights, which, tokenizer) != ("ema", "last", None):
            raise UserError(
                "LoRA needs a base model that its name alone describes, without --weights, --which and --tokenizer; "
                f"make one with: unmask convert {model} DIR"
            )
        return load(model, device=device)
    how: dict[str, Any] = {"which": which, "weights": weights, "device": device, "tokenizer": tokenizer}
    try:
        return load(model, **how)
    except NoHead:
        return load(model, new_head=True, **how)
