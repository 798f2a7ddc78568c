"""The folder in which a model travels: config.json, model.safetensors, tokenizer files and a card.

It is the layout of the published MDLM weights (SYSTEMS 7): the tensor names are ours anyway, and config.json has the
published keys. What they do not say (schedule, bound, how rows are laid out, labels) stands under "unmask". A
config.json without that part is a published one: the rest is what the paper says of OpenWebText.

Nothing of such a folder is ever executed: JSON and safetensors are data, and `auto_map` is not looked at.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Backend
from torch import Tensor, nn

from . import build, pickles
from .checkpoint import assign, check_names, read_json, temporary_name
from .config import Config, parse
from .data.tokenizers import Tokenizer, read_tokenizer
from .models.base import LanguageModel
from .recipes import owt
from .types import UserError, Vocab

T = TypeVar("T")
FORMAT = 1
CONFIG, WEIGHTS, INDEX, PICKLE, CARD = (
    "config.json", "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "README.md",
)  # fmt: skip
INV_FREQ = "backbone.rotary_emb.inv_freq"  # a buffer of the published network, which we compute
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
SHAPE = ("hidden_dim", "n_blocks", "n_heads", "cond_dim", "mlp_ratio", "dropout", "time_conditioning")
ROLES = ("mask", "pad", "bos", "eos")
GPT2 = Vocab(50258, mask=50257, bos=50256, eos=50256)  # <|endoftext|> is both ends, and [MASK] comes after all others


@dataclass(frozen=True)
class Described:
    """What a config.json says of a model."""

    config: Config
    vocab: Vocab | None  # None: only the tokenizer can tell
    labels: tuple[str, ...] = ()
    vocab_size: int = 0
    tokenizer: Mapping[str, str] | None = None  # name and kind of ours


# -- config.json -----------------------------------------------------------------------------------------------------


def to_json(
    config: Config,
    vocab: Vocab,
    labels: Sequence[str] = (),
    dtype: str = "float32",
    tokenizer: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The config.json of a model; `tokenizer` are the name and kind of its tokenizer."""
    if dtype not in DTYPES:
        raise UserError(f"dtype {dtype!r} must be one of {', '.join(DTYPES)}")
    published = config.model.method == "mdlm"
    settings = config.model.model_dump(mode="json")
    data = config.data.model_copy(update={"cache": None, "local": None})  # paths of this machine
    travelling = config.model_copy(update={"data": data})
    own = {
        "format": FORMAT,
        "config": travelling.model_dump(mode="json"),
        "labels": list(labels),
        "vocab": asdict(vocab),
        "tokenizer": dict(tokenizer) if tokenizer else None,
    }
    return {
        "architectures": ["MDLM" if published else "Unmask"],
        "model_type": "mdlm" if published else "unmask",
        **{key: settings[key] for key in SHAPE},
        "model_length": config.data.length,
        "vocab_size": vocab.size,
        **{f"{role}_token_id": getattr(vocab, role) for role in ROLES},
        "dtype": dtype,
        "unmask": own,
    }


def from_json(tree: Mapping[str, Any], where: str | Path = CONFIG) -> Described:
    """What a config.json says: one of ours, or a published one; `where` names it in errors."""
    if "unmask" in tree:
        return _ours(tree, where)
    if tree.get("model_type") == "mdlm":
        return _published(tree, where)
    if isinstance(tree.get("model"), Mapping) and "graph" in tree:
        return _sedd(tree, where)
    kind = tree.get("model_type")
    raise UserError(
        f"{where} does not describe a masked diffusion model: its model_type is {kind!r}, and unmask reads 'mdlm', "
        "'unmask' and SEDD's config"
    )


def _ours(tree: Mapping[str, Any], where: str | Path) -> Described:
    own = tree["unmask"]
    if not isinstance(own, Mapping) or own.get("format") != FORMAT:
        made = own.get("format") if isinstance(own, Mapping) else own
        raise UserError(f"{where} has an 'unmask' part of format {made!r}, and this version reads {FORMAT}; update it")
    config = _inside(where, lambda: parse(_mapping(own, "config", where)))
    vocab = _vocab(_mapping(own, "vocab", where), where)
    labels, tokenizer = own.get("labels", []), own.get("tokenizer")
    if not isinstance(labels, list) or not all(isinstance(name, str) for name in labels):
        raise UserError(f"{where} is damaged: its labels are not a list of names")
    if (config.data.label is None) == bool(labels):
        raise UserError(
            f"{where} contradicts itself: data.label is {config.data.label!r} and it lists {len(labels)} labels"
        )
    if tokenizer is not None and not (isinstance(tokenizer, Mapping) and {"name", "kind"} <= tokenizer.keys()):
        raise UserError(f"{where} is damaged: its tokenizer has no name and kind")
    _agree(tree, to_json(config, vocab, labels), where)
    return Described(config, vocab, tuple(labels), vocab.size, tokenizer)


def _agree(tree: Mapping[str, Any], said: Mapping[str, Any], where: str | Path) -> None:
    """The published keys say what the 'unmask' part says; what a library left out is no contradiction."""
    keys = (*SHAPE, "model_length", "vocab_size", "model_type", *(f"{role}_token_id" for role in ROLES))
    for key in keys:
        if tree.get(key) is not None and tree[key] != said[key]:
            raise UserError(
                f"{where} contradicts itself: {key} is {tree[key]!r} there and {said[key]!r} in its 'unmask' part"
            )


def _published(tree: Mapping[str, Any], where: str | Path) -> Described:
    """The paper's run on OpenWebText, with the network that config.json describes."""
    wanted = {"hidden_dim": int, "n_blocks": int, "n_heads": int, "cond_dim": int, "model_length": int,
              "vocab_size": int, "time_conditioning": bool}  # fmt: skip
    for key, kind in wanted.items():
        value(tree, key, kind, where)
    optional = {"mlp_ratio": int, "dropout": float}
    model = {key: tree[key] for key in SHAPE if key in wanted}
    model |= {key: value(tree, key, kind, where) for key, kind in optional.items() if key in tree}
    config = _inside(where, lambda: paper_config("mdlm", model, tree["model_length"]))
    return Described(config, _published_vocab(tree, where), (), tree["vocab_size"])


def _published_vocab(tree: Mapping[str, Any], where: str | Path) -> Vocab | None:
    size = tree["vocab_size"]
    if tree.get("mask_token_id") is None:
        return GPT2 if size == GPT2.size else None
    return _vocab({"size": size} | {role: tree.get(f"{role}_token_id") for role in ROLES}, where)


def _vocab(ids: Mapping[str, Any], where: str | Path) -> Vocab:
    for role in ("size", *ROLES):
        token = ids.get(role)
        absent = token is None and role in ("pad", "bos", "eos")
        if not absent and (isinstance(token, bool) or not isinstance(token, int)):
            raise UserError(f"{where} has the {role} token {token!r}, which is not a number")
    return _inside(where, lambda: Vocab(ids["size"], ids["mask"], ids.get("pad"), ids.get("bos"), ids.get("eos")))


def _sedd(tree: Mapping[str, Any], where: str | Path) -> Described:
    """The config of louaaron/sedd-small and -medium: sections model, noise, graph, and the number of tokens."""
    net, noise, graph = (_mapping(tree, key, where) for key in ("model", "noise", "graph"))
    if graph.get("type") != "absorb":
        raise UserError(f"{where} describes a SEDD of graph {graph.get('type')!r}; unmask reads the absorbing one only")
    if net.get("scale_by_sigma") is False:
        raise UserError(f"{where} describes a SEDD without scale_by_sigma, whose outputs mean something else")
    network = {
        ours: value(net, theirs, int, where)
        for ours, theirs in {
            "hidden_dim": "hidden_size",
            "n_blocks": "n_blocks",
            "n_heads": "n_heads",
            "cond_dim": "cond_dim",
        }.items()
    }
    network |= {"time_conditioning": True, "dropout": value(net, "dropout", float, where, 0.1)}
    length = value(net, "length", int, where)
    config = _inside(where, lambda: paper_config("sedd", network, length, noise_schedule(noise, where)))
    size = value(tree, "tokens", int, where) + 1
    return Described(config, GPT2 if size == GPT2.size else None, (), size)


def noise_schedule(noise: Mapping[str, Any], where: str | Path) -> dict[str, Any]:
    """The schedule section that means a noise of the public repositories."""
    name = noise.get("type")
    with_eps = {"loglinear": "log-linear", "cosine": "cosine", "cosinesqr": "cosine-squared"}
    if name in with_eps:
        return {"name": with_eps[name], "eps": value(noise, "eps", float, where, 1e-3)}
    if name == "geometric":
        low, high = (value(noise, key, float, where) for key in ("sigma_min", "sigma_max"))
        return {"name": "geometric", "sigma_min": low, "sigma_max": high}
    raise UserError(f"{where} has noise type {name!r}; unmask reads {', '.join(with_eps)} and geometric")


def paper_config(
    method: str, network: Mapping[str, Any], length: int, schedule: Mapping[str, Any] | None = None
) -> Config:
    """The paper's run on OpenWebText with another network, method, length or schedule."""
    tree = owt().model_dump(mode="json")
    tree["model"] |= {"method": method, **network}
    tree["data"]["length"] = length
    tree["schedule"] |= dict(schedule or {})
    return parse(tree)


def _inside(where: str | Path, make: Callable[[], T]) -> T:
    """What `make` gives; its complaints name the file."""
    try:
        return make()
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _mapping(tree: Mapping[str, Any], key: str, where: str | Path) -> Mapping[str, Any]:
    if not isinstance(tree.get(key), Mapping):
        raise UserError(f"{where} is damaged: it has no part {key!r}")
    return tree[key]


def value(tree: Mapping[str, Any], key: str, kind: type, where: str | Path, usual: Any = None) -> Any:
    """A number or switch of the right kind."""
    found = tree.get(key, usual)
    shown = str(found)[:80] if isinstance(found, str) else found
    if found is None:
        raise UserError(f"{where} does not say {key}, without which the network cannot be built")
    fits = isinstance(found, bool) if kind is bool else isinstance(found, int if kind is int else int | float)
    if not fits or (kind is not bool and isinstance(found, bool)):
        raise UserError(f"{where} has {key} {shown!r}, which is not {'true or false' if kind is bool else 'a number'}")
    return found


# -- tensors ---------------------------------------------------------------------------------------------------------


def inv_freq(config: Config) -> Tensor:
    """The rotary frequencies as the published network computes them, bit for bit."""
    dim = config.model.hidden_dim // config.model.n_heads
    return 1.0 / (10_000.0 ** (torch.arange(0, dim, 2).float() / dim))


def read_tensors(folder: str | Path) -> dict[str, Tensor]:
    """All tensors of a folder: model.safetensors, shards with an index, other safetensors, or pytorch_model.bin."""
    folder = Path(folder)
    if (folder / WEIGHTS).is_file():
        return _read(folder / WEIGHTS)
    if (folder / INDEX).is_file():
        return _read_shards(folder)
    if files := sorted(folder.glob("*.safetensors")):
        return _joined(files)
    if (folder / PICKLE).is_file():
        return pickles.tensors(pickles.load(folder / PICKLE), folder / PICKLE)
    raise UserError(f"{folder} has no weights: it holds neither {WEIGHTS} nor {PICKLE}")


def read_weights(folder: str | Path) -> dict[str, Tensor]:
    """The tensors of a folder under our names: SEDD's published files have them without "backbone."."""
    return our_names(read_tensors(folder))


def our_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors; if none of them is inside a backbone, all are put there."""
    inside = any(name.startswith("backbone.") for name in tensors)
    return {name if inside else f"backbone.{name}": tensor for name, tensor in tensors.items()}


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except FileNotFoundError:
        raise UserError(f"weights file {path} is missing; copy or download the folder again") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"weights file {path} is damaged: {error}; copy or download it again") from None


def _joined(files: Sequence[Path]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for file in files:
        tensors = _read(file)
        if twice := sorted(found.keys() & tensors.keys()):
            raise UserError(f"weights file {file} holds {twice[0]}, which another file of its folder holds too")
        found |= tensors
    return found


def _read_shards(folder: Path) -> dict[str, Tensor]:
    places = read_json(folder / INDEX, "cannot read the weights").get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise UserError(f"{folder / INDEX} is damaged: it has no weight_map")
    names = sorted(set(places.values()))
    for name in names:  # a name and not a path: an index must not lead out of its folder
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise UserError(f"{folder / INDEX} is damaged: {name!r} is not a safetensors file of its folder")
    found = _joined([folder / name for name in names])
    check_names(dict.fromkeys(places, ()), dict.fromkeys(found, ()), folder / INDEX)
    return found


def blueprint(described: Described, vocab: Vocab, count: int, where: str | Path) -> LanguageModel:
    """The model that a config describes, without memory for its weights; `count` tensors are there for it."""
    config = described.config
    if config.model.n_blocks > count:
        raise UserError(f"{where} does not fit this model of {config.model.n_blocks} blocks: it has {count} tensors")
    try:
        with torch.device("meta"):
            return build.model(config, vocab, len(described.labels))
    except (RuntimeError, OverflowError, TypeError):  # sizes that no machine has
        raise UserError(f"{where} is described as a network too large to exist") from None


def check(model: nn.Module, tensors: Mapping[str, Tensor], config: Config, where: str | Path) -> None:
    """Raise if a tensor is missing, unknown, mis-shaped or of a wrong type; shapes of the model suffice."""
    found = {name: tensor for name, tensor in tensors.items() if name != INV_FREQ}
    wanted = {name: tensor.shape for name, tensor in model.state_dict().items() if name != INV_FREQ}
    check_names(wanted, {name: tensor.shape for name, tensor in found.items()}, Path(where))
    for name, tensor in found.items():
        if tensor.dtype not in DTYPES.values():
            raise UserError(f"{where} does not fit this model: {name} holds {tensor.dtype}, not 16- or 32-bit floats")
    if (theirs := tensors.get(INV_FREQ)) is not None:
        ours = inv_freq(config)
        if theirs.shape != ours.shape or not torch.allclose(theirs.float(), ours.to(theirs.dtype).float(), rtol=1e-5):
            raise UserError(f"{where} does not fit this model: {INV_FREQ} is of another rotary base than 10000")


def fill(model: nn.Module, tensors: Mapping[str, Tensor], config: Config, where: str | Path) -> None:
    """Give a model its weights, strictly: every tensor is accounted for; 16-bit ones become float32."""
    check(model, tensors, config, where)
    for name, target in model.state_dict().items():
        if name != INV_FREQ:
            assign(target, tensors[name])


# -- the folder ------------------------------------------------------------------------------------------------------


def is_folder(path: str | Path) -> bool:
    """Whether a path is a folder in which a model travels (and not a run or a checkpoint of ours)."""
    return (Path(path) / CONFIG).is_file()


def read_folder(folder: str | Path) -> Described:
    """What the config.json of a folder says."""
    path = Path(folder) / CONFIG
    return from_json(read_json(path, "cannot read the model"), path)


def load_tokenizer(folder: str | Path, described: Described) -> Tokenizer | None:
    """The tokenizer of a folder, or None; other libraries may have rewritten its files, so config.json decides."""
    folder = Path(folder)
    if not (folder / "tokenizer.json").is_file():
        return None
    settings = folder / "tokenizer_config.json"
    if described.vocab is None or (settings.is_file() and "unmask" in read_json(settings, "cannot read the tokenizer")):
        tokenizer = read_tokenizer(folder)
    else:
        named = described.tokenizer or {"name": folder.name, "kind": "json"}
        try:
            backend = Backend.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # all that the library raises
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"{folder / 'tokenizer.json'} is damaged or not a tokenizer.json: {reason}") from None
        size = max(backend.get_vocab().values(), default=-1) + 1
        if size != described.vocab_size:
            raise UserError(_misfit(f"{folder / 'tokenizer.json'} has {size:,} tokens", described))
        tokenizer = Tokenizer(backend, described.vocab, str(named["name"]), str(named["kind"]))
    check_tokenizer(tokenizer, described, str(folder))
    return tokenizer


def check_tokenizer(tokenizer: Tokenizer, described: Described, where: str) -> None:
    """Raise if a tokenizer is not the one that a model was trained with, as far as its size and special ids tell."""
    vocab = tokenizer.vocab
    if vocab.size != described.vocab_size:
        raise UserError(
            _misfit(f"{where}: the tokenizer {tokenizer.name!r} has {vocab.size:,} tokens with [MASK]", described)
        )
    if described.vocab is not None and vocab.mask != described.vocab.mask:
        raise UserError(
            f"{where}: [MASK] is token {vocab.mask} of the tokenizer {tokenizer.name!r} and token "
            f"{described.vocab.mask} of the model; give the tokenizer that the model was trained with"
        )


def _misfit(what: str, described: Described) -> str:
    return f"{what}, and the model {described.vocab_size:,}; give the tokenizer that it was trained with"


def write_folder(
    folder: str | Path,
    model: nn.Module,
    tokenizer: Tokenizer,
    config: Config,
    labels: Sequence[str] = (),
    dtype: str = "float32",
    card: str | None = None,
) -> Path:
    """Write a model as a folder that travels; it is there completely or not at all, and nothing is overwritten."""
    folder = Path(folder)
    named = {"name": tokenizer.name, "kind": tokenizer.kind}
    described = to_json(config, tokenizer.vocab, labels, dtype, named)
    weights = tensors_of(model, config, dtype)
    with creating(folder) as new:
        (new / CONFIG).write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
        save_file(weights, new / WEIGHTS, metadata={"format": "pt"})
        tokenizer.save(new)
        if card is not None:
            (new / CARD).write_text(card, encoding="utf-8")
    return folder


def tensors_of(model: nn.Module, config: Config, dtype: str = "float32") -> dict[str, Tensor]:
    """The tensors of a model as they are written: MDLM's with the buffer that the published network has."""
    weights = {name: _cast(name, tensor, dtype) for name, tensor in model.state_dict().items()}
    return weights | ({INV_FREQ: inv_freq(config)} if config.model.method == "mdlm" else {})


def _cast(name: str, tensor: Tensor, dtype: str) -> Tensor:
    value = tensor.detach().to(device="cpu", dtype=DTYPES[dtype]).contiguous()
    if bool(torch.isfinite(tensor).all()) and not bool(torch.isfinite(value).all()):
        raise UserError(f"{name} holds numbers beyond the range of {dtype}; write the folder as float32 or bfloat16")
    return value


def refuse_existing(folder: Path) -> None:
    """Raise if something would be overwritten; an empty folder is nothing."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"{folder} is there already; give the name of a new folder, or delete it first")


@contextmanager
def creating(folder: Path) -> Iterator[Path]:
    """A temporary folder that becomes `folder`, synced, when the block ends well, and vanishes if not."""
    refuse_existing(folder)
    temporary = temporary_name(folder.absolute())
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        for path in (*temporary.iterdir(), temporary):
            _sync(path)
        os.rename(temporary, folder)  # over an empty folder, if there is one
        _sync(folder.absolute().parent)
    except (OSError, SafetensorError) as error:
        raise UserError(f"could not write {folder} ({error}); nothing is left of it") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
