"""LoRA (Hu et al. 2021) through `peft`: two small matrices beside each linear layer of the blocks, all else frozen.

A folder of adapters is that of peft, adapter_config.json and adapter_model.safetensors, with the tokenizer and the
config.yaml of the run. Where transformers has the network, the names in it are those of transformers, so that peft
alone can load it. The metadata of the weights have a fingerprint of the base model, which is checked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from ..config import AdapterConfig, Config, EncoderConfig, LlamaConfig, load_yaml
from ..data.online import reason
from ..errors import UserError, nearest, optional
from ..files import read_json, replacing_folder, writing
from ..lm import LM
from ..models import registry
from ..models.language_model import LanguageModel
from ..networks.foreign.families import LLADA, TRANSFORMERS, Names, renamed
from ..networks.interface import Network
from ..networks.layers import wide
from . import checkpoint
from .both_ways import turned
from .layout import refuse_existing

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
NAME = "default"  # of the adapter, in peft
PREFIX = "base_model.model."  # before the names of tensors in peft's files
SAMPLE = 64  # numbers of each tensor that a fingerprint reads


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds adapters, and not a whole model."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


def based_on(base: LM, config: Config, labels: int = 0) -> LanguageModel:
    """The model of a config with the weights of another; those of a Llama, which may be large, are shared."""
    vocab, where = base.tokenizer.vocab, f"the model {config.train.start}"
    theirs = base.model.state_dict()
    with torch.device("meta"):
        outline = registry.model(config, vocab, labels)
    same = outline.state_dict().keys() == theirs.keys()
    if same and isinstance(config.model, LlamaConfig):
        check_shapes(outline.state_dict(), theirs, where)
        outline.load_state_dict(theirs, assign=True)
        return outline
    model = registry.model(config, vocab, labels).to(base.model.device)
    target, source = (model, base.model) if same else (model.backbone, base.model.backbone)
    wanted, theirs = target.state_dict(), source.state_dict()
    check_shapes(wanted, theirs, where)
    for name, tensor in wanted.items():
        checkpoint.assign(tensor, theirs[name])
    return model


def check_shapes(wanted: Mapping[str, Tensor], theirs: Mapping[str, Tensor], where: str | Path) -> None:
    """Raise unless the tensors of both have the same names and shapes."""
    ours, others = ({name: tensor.shape for name, tensor in state.items()} for state in (wanted, theirs))
    checkpoint.check_names(ours, others, where)


def attach(model: LanguageModel, spec: AdapterConfig) -> None:
    """Add fresh adapters, which change nothing yet; they are all that is trained."""
    peft = optional("peft", "LoRA", "lora")
    assert spec.rank is not None
    settings = peft.LoraConfig(
        r=spec.rank, lora_alpha=alpha(spec), lora_dropout=spec.dropout, target_modules=targets(model.backbone, spec)
    )
    _inject(peft, model, settings)


def _inject(peft: Any, model: LanguageModel, settings: Any) -> None:
    model.requires_grad_(False)
    peft.inject_adapter_in_model(settings, model.backbone, adapter_name=NAME)
    for weight in adapters(model).values():
        weight.data = wide(weight.data)  # small steps are lost in 16 bits


def alpha(spec: AdapterConfig) -> float:
    """By default twice the rank."""
    assert spec.rank is not None
    return 2.0 * spec.rank if spec.alpha is None else spec.alpha


def targets(backbone: Network, spec: AdapterConfig) -> list[str]:
    """The linear layers that get adapters, by name: all of the blocks, or those that end with the wanted names."""
    names = [name.removesuffix(".weight") for name in backbone.matrices()]
    layers = [module for _, module in backbone.named_modules(remove_duplicate=False) if isinstance(module, nn.Linear)]
    if len(set(layers)) < len(layers):
        raise UserError(f"the {backbone.name} network uses layers twice, and LoRA does not; leave out train.lora")
    if spec.targets is None:
        return names
    for wanted in spec.targets:
        if not any(_ends(name, wanted) for name in names):
            known = sorted({name.rpartition(".")[2] for name in names})
            raise UserError(
                f"train.lora.targets: no linear layer of the blocks is named {wanted!r}{nearest(wanted, known)}; "
                f"there are {', '.join(known)}"
            )
    return [name for name in names if any(_ends(name, wanted) for wanted in spec.targets)]


def _ends(name: str, wanted: str) -> bool:
    return f".{name}".endswith(f".{wanted}")


def adapters(model: LanguageModel) -> dict[str, nn.Parameter]:
    """The weights of the adapters by name."""
    return {name: weight for name, weight in model.named_parameters() if ".lora_" in name}


def merge(model: LanguageModel) -> None:
    """Add the adapters to the weights that they stand beside, and take them away."""
    layers = optional("peft.tuners.tuners_utils", "LoRA", "lora")
    for name, module in list(model.backbone.named_modules()):
        if isinstance(module, layers.BaseTunerLayer):
            merging: Any = module
            merging.merge()
            model.backbone.set_submodule(name, merging.get_base_layer())
    model.requires_grad_(True)


def fingerprint(model: LanguageModel) -> str:
    """A name for the weights of a network without adapters: from some numbers of every tensor, whatever their type."""
    sha256 = hashlib.sha256()
    for name, tensor in sorted(model.backbone.state_dict().items()):
        flat = tensor.detach().reshape(-1)
        some = flat[:: max(1, flat.numel() // SAMPLE)][:SAMPLE].float().cpu().contiguous()
        sha256.update(f"{name}{tuple(tensor.shape)}".encode())
        sha256.update(some.view(torch.uint8).numpy().tobytes())
    return sha256.hexdigest()


def check_base(digest: str, wanted: str | None, where: str | Path, base: str) -> None:
    """Raise if adapters were trained on other weights."""
    if wanted is not None and digest != wanted:
        raise UserError(
            f"{where} holds adapters of another base model than {base} is now: its weights differ; give the model that "
            "they were trained on"
        )


# -- the folder ------------------------------------------------------------------------------------------------------


def outer_name(name: str, config: Config, names: Names = TRANSFORMERS) -> str:
    """The name that a layer of our network has for peft: that of transformers, or of a family with other `names`."""
    if isinstance(config.model, EncoderConfig):
        return name.removeprefix("model.")
    if isinstance(config.model, LlamaConfig):
        theirs = {ours: theirs for theirs, ours in names.items()}
        return renamed(f"{name}.weight", theirs).removesuffix(".weight")
    return f"backbone.{name}"


def write_adapter(
    folder: str | Path,
    model: LanguageModel,
    lm: LM,
    config: Config,
    base: str,
    digest: str,
    dtype: torch.dtype,
    names: Names = TRANSFORMERS,
) -> None:
    """Write the adapters of a model; `lm` has all but its weights, `base` and `digest` name the base model."""
    peft = optional("peft", "LoRA", "lora")
    folder, spec = Path(folder), config.train.lora
    refuse_existing(folder)
    tensors, layers = {}, []
    for name, weight in adapters(model).items():
        layer, _, rest = name.removeprefix("backbone.").rpartition(".lora_")
        outer = outer_name(layer, config, names)
        layers.append(outer)
        tensors[f"{PREFIX}{outer}.lora_{rest.replace(f'.{NAME}.', '.')}"] = (
            weight.detach().to("cpu", dtype).contiguous()
        )
    short = sorted({layer.rpartition(".")[2] for layer in layers})
    settings = peft.LoraConfig(
        r=spec.rank,
        lora_alpha=alpha(spec),
        lora_dropout=spec.dropout,
        target_modules=short
        if isinstance(config.model, LlamaConfig) and names is TRANSFORMERS
        else sorted(set(layers)),
        base_model_name_or_path=str(Path(base).resolve()) if Path(base).exists() else base,
        inference_mode=True,
        task_type="CAUSAL_LM" if config.model.method == "ar" else None,
    )
    with writing(folder, "nothing is left of it"), replacing_folder(folder) as new:
        settings.save_pretrained(str(new))
        save_file(tensors, new / WEIGHTS, metadata={"format": "pt", "base": digest})
        (new / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
        lm.tokenizer.save(new)
        if lm.chat_template is not None:
            lm.chat_template.save(new)
        if lm.recommended:
            lm.recommended.write(new)


def read_settings(folder: Path) -> Any:
    """What adapter_config.json says, if it is LoRA as we know it."""
    peft = optional("peft", "a folder of adapters", "lora")
    kind = read_json(folder / CONFIG, "cannot read the adapters").get("peft_type")
    if kind != "LORA":
        raise UserError(f"{folder} holds adapters of the kind {str(kind)[:80]!r}; unmask reads LoRA")
    try:
        settings = peft.LoraConfig.from_pretrained(str(folder))
    except Exception as error:  # all that the library raises for a file of another kind
        raise UserError(f"{folder / CONFIG} is damaged or of another version of peft: {reason(error)}") from None
    if settings.rank_pattern or settings.alpha_pattern:
        raise UserError(f"{folder / CONFIG} has layers with ranks of their own, which unmask does not read")
    if not settings.base_model_name_or_path:
        raise UserError(f"{folder / CONFIG} does not name its base model; write base_model_name_or_path into it")
    return settings


def read_adapter(folder: Path, settings: Any, base: LM) -> tuple[LanguageModel, Config]:
    """The base model with the adapters of a folder beside its layers."""
    peft = optional("peft", "a folder of adapters", "lora")
    config = load_yaml(folder / "config.yaml") if (folder / "config.yaml").is_file() else base.config
    name, path = settings.base_model_name_or_path, folder / WEIGHTS
    config = config.changed(train={"start": name})  # which may have moved since the training
    base = turned(base, config)
    stored, said = _stored(path)
    check_base(fingerprint(base.model), said, path, name)
    model = based_on(base, config, len(base.labels))
    linear = [layer for layer, module in model.backbone.named_modules() if isinstance(module, nn.Linear)]
    known = {outer_name(layer, config): layer for layer in linear}
    ours = {key: _inner(key, known) for key in stored}
    if wrong := [key for key, inner in ours.items() if inner is None]:
        raise UserError(
            f"{path} holds adapters of another base model than {name}, which has no layer for {wrong[0]}"
            if ".lora_" in wrong[0]
            else f"{path} holds more than LoRA's matrices ({wrong[0]}), which unmask does not read"
        )
    settings.target_modules = sorted({str(inner).partition(".lora_")[0] for inner in ours.values()})
    settings.inference_mode = False
    _inject(peft, model, settings)
    wanted = adapters(model)
    values = {f"backbone.{inner}": stored[key] for key, inner in ours.items()}
    try:
        check_shapes(wanted, values, path)
    except UserError as error:
        raise UserError(f"{path} holds adapters of another base model than {name}: {error}") from None
    for wanted_name, target in wanted.items():
        checkpoint.assign(target, values[wanted_name])
    return model, config


def _inner(key: str, known: Mapping[str, str]) -> str | None:
    """The name that a tensor of peft's file has in our network; None if there is no such layer."""
    outer, mark, rest = key.removeprefix(PREFIX).rpartition(".lora_")
    other = renamed(f"{outer}.weight", {**TRANSFORMERS, **LLADA}).removesuffix(".weight")  # LLaDA's names, too
    layer = known.get(outer) or (other if other in known.values() else None)
    if not mark or layer is None or rest not in ("A.weight", "B.weight"):
        return None
    return f"{layer}.lora_{rest[0]}.{NAME}.weight"


def _stored(path: Path) -> tuple[dict[str, Tensor], str | None]:
    """The tensors of a file, and the fingerprint of its base model if it has one."""
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, (file.metadata() or {}).get("base")  # noqa: SIM118
    except FileNotFoundError:
        raise UserError(f"{path} is missing; copy or download the folder again") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} is damaged: {error}; copy or download it again") from None
