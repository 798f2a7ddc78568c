"""Any masked language model of transformers as a network: tokens to its last hidden states, rows to its logits.

The whole model of transformers is held as `model`, so tensors have its names after "model.". Nothing is downloaded and
no code from a repository is run: `from_architecture` builds it from its config.json.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from ..types import UserError, Vocab
from .architectures import buffers_of, first_line, fresh, positions_of, quiet, settings
from .interface import Network, NetworkInput, Parts

UNUSED = ("pooler", "contact_head")  # parts of some networks that do not affect the logits
# Padding changes their predictions for real tokens.
CANNOT_PAD = ("convbert", "fnet", "funnel", "mobilebert", "nystromformer", "reformer", "yoso")
PROBED = 8  # tokens on which the whole network is compared with its two halves


class Encoder(Network):
    """A masked language model of transformers, cut between its base and its head."""

    shardable = False  # sharding would break its tied weights
    # of ModernBERT; DeBERTa's in_proj stays whole: its rows are queries, keys and values of one head after the other
    fused: Mapping[str, Parts] = {"Wqkv": 3, "Wi": 2}

    def __init__(self, model: Any, vocab: Vocab) -> None:
        super().__init__()
        spec = model.config
        if model.base_model is model:
            raise UserError(f"{_kind(model)} has no base model separate from its head, so unmask cannot run it")
        if spec.vocab_size < vocab.size:
            raise UserError(
                f"this {_kind(model)} has {spec.vocab_size:,} tokens and its tokenizer {vocab.size:,}; give the "
                "tokenizer that it was trained with"
            )
        self.vocab, self.model = vocab, model
        self.hidden_dim = int(spec.hidden_size) * (
            2 if spec.model_type == "reformer" else 1
        )  # two streams, side by side
        self._arguments = frozenset(inspect.signature(model.base_model.forward).parameters)
        optional = {
            "embeddings": not getattr(spec, "token_dropout", False),
            "types": "token_type_ids" in self._arguments and (getattr(spec, "type_vocab_size", 0) or 0) > 1,
            "positions": "position_ids" in self._arguments,
        }
        self.takes = frozenset({"tokens", "valid", *(field for field, taken in optional.items() if taken)})
        self.first, self.longest = positions_of(model)
        for name in UNUSED:  # DDP waits for the gradient of all that can have one
            if isinstance(part := getattr(model.base_model, name, None), nn.Module):
                part.requires_grad_(False)
        self.ties = ties_of(self)
        self.computed = {name for name, _ in self.named_buffers()} & self.state_dict().keys()
        self.register_state_dict_post_hook(_once)
        self.register_load_state_dict_pre_hook(_again)

    @classmethod
    def from_architecture(cls, tree: Mapping[str, Any], vocab: Vocab, dropout: float | None = None) -> Encoder:
        """The network that a config.json describes, with fresh weights; `dropout` replaces its dropout settings."""
        return cls(fresh(settings(tree, dropout)), vocab)

    @override
    @classmethod
    def from_config(cls, settings: Any, vocab: Vocab, n_labels: int = 0, causal: bool = False) -> Encoder:
        return cls.from_architecture(settings.architecture, vocab, settings.dropout)

    @property
    def base(self) -> Any:
        """The part up to the last hidden states."""
        return self.model.base_model

    @property
    def blocks(self) -> list[nn.Module]:
        """The layers: the longest list of modules."""
        lists = [module for module in self.base.modules() if isinstance(module, nn.ModuleList)]
        return list(max(lists, key=len, default=()))

    @override
    def matrices(self) -> dict[str, Parts]:
        """Those of all lists of modules: some networks have one for attention and another for what follows it."""
        lists = {name for name, module in self.named_modules() if isinstance(module, nn.ModuleList)}
        return {
            f"{name}.weight": self.fused.get(name.rpartition(".")[2], 1)
            for name, module in self.named_modules()
            if isinstance(module, nn.Linear) and any(name.startswith(f"{each}.") for each in lists)
        }

    def forward(self, inputs: NetworkInput) -> tuple[Tensor, None]:
        """(B, L) tokens, or (B, L, dim) embeddings, to (B, L, hidden)."""
        x = inputs.content
        self._check_length(x.shape[1])
        if not self._pads and inputs.valid is not None and not bool(inputs.valid.all()):
            return self._by_length(inputs, inputs.valid), None
        named = {
            "attention_mask": self._mask(inputs.valid, x.shape[:2], x.device),
            "position_ids": self._positions(x, inputs.positions),
            "token_type_ids": inputs.types,
        }
        more = {name: value for name, value in named.items() if value is not None}
        if getattr(self.model.config, "token_dropout", False):
            return self.base(inputs_embeds=self._embed(x, **more), **more)[0], None
        return self.base(**{"input_ids" if inputs.embeddings is None else "inputs_embeds": x}, **more)[0], None

    @property
    def _pads(self) -> bool:
        """Whether the network can ignore padding."""
        return self.model.config.model_type not in CANNOT_PAD and "attention_mask" in self._arguments

    @property
    def _reads_pads(self) -> bool:
        """Whether the network takes a pad token in a text for padding, unless it is told what is padding."""
        return self.model.config.model_type in ("flaubert", "xlm")

    def _by_length(self, inputs: NetworkInput, valid: Tensor) -> Tensor:
        """Rows of a network that cannot ignore padding: those of one length at a time, without their padding."""
        lengths = valid.sum(1)
        if not torch.equal(valid, torch.arange(valid.shape[1], device=valid.device) < lengths[:, None]):
            raise UserError(f"{_kind(self.model)} cannot ignore padding, and here it is not at the end of rows")
        out = inputs.content.new_zeros((*valid.shape, self.hidden_dim), dtype=next(self.parameters()).dtype)
        for length in lengths[lengths > 0].unique().tolist():
            rows = lengths == length
            parts = {name: getattr(inputs, name) for name in ("tokens", "embeddings", "types", "positions")}
            if parts["positions"] is not None:
                parts["positions"] = parts["positions"].expand(valid.shape)
            cut = {name: None if part is None else part[rows, :length] for name, part in parts.items()}
            hidden = self(NetworkInput(**cut))[0]
            out = out.index_put((rows.nonzero().squeeze(1)[:, None], torch.arange(length, device=rows.device)), hidden)
        return out

    def _check_length(self, length: int) -> None:
        if self.longest is not None and length > self.longest:
            raise UserError(
                f"{length} tokens are more than the {self.longest} positions of this {_kind(self.model)}; set "
                f"data.length to at most {self.longest}"
            )

    def _mask(self, valid: Tensor | None, shape: Sequence[int], device: torch.device) -> Tensor | None:
        """Which tokens are not padding; None where the network takes all of them without being asked."""
        if valid is None or not self._pads:
            return torch.ones(shape, dtype=torch.int64, device=device) if self._pads and self._reads_pads else None
        # A row of padding alone would be a softmax over nothing: let it see all of itself; its output is not used.
        return (valid | ~valid.any(1, keepdim=True)).long()

    def _positions(self, x: Tensor, positions: Tensor | None) -> Tensor | None:
        """Positions are column indices. RoBERTa and the like would instead count non-pad tokens from pad + 1 on."""
        if positions is None and not self.first:
            return None
        if "position_ids" not in self._arguments:
            return None
        places = torch.arange(x.shape[1], device=x.device) if positions is None else positions
        if positions is not None:
            self._check_length(int(positions.max()) + 1)
        return (places + self.first).expand(x.shape[:2])

    def _embed(self, tokens: Tensor, **more: Tensor) -> Tensor:
        """The embeddings of ESM, which scales them by the share of masks and counts those in the padding, too.

        For a row of masks alone it computes 0 / 0: there the right answer is an embedding of zeros.
        """
        mask, valid = self.model.config.mask_token_id, more.get("attention_mask")
        absent = torch.zeros_like(tokens, dtype=torch.bool) if valid is None else valid == 0
        blank = (absent | (tokens == mask)).all(1, keepdim=True)
        seen = self.base.embeddings(input_ids=tokens.masked_fill(absent | blank, 0 if mask else 1), **more)
        empty = self.base.embeddings(inputs_embeds=torch.zeros_like(seen), **more)
        return torch.where(blank[..., None], empty, seen)

    @override
    def head(self, rows: Tensor) -> Tensor:
        """(N, hidden) to (N, V) logits, by the forward of the model with these rows as the output of its base."""
        hidden = rows.flatten(0, -2)[None]
        output = FixedEmbeddings(hidden)
        base, model = copy.copy(self.base), copy.copy(self.model)  # shallow: they share all weights
        base.__dict__["forward"] = lambda *args, **more: output
        model.__dict__["_modules"] = {**self.model._modules, self.model.base_model_prefix: base}
        ids = torch.zeros(hidden.shape[:2], dtype=torch.int64, device=rows.device)
        logits: Tensor = model(input_ids=ids).logits
        size = self.vocab.size  # without the padding of the vocabulary
        return logits[0, :, :size].view(*rows.shape[:-1], size)

    @torch.no_grad()
    def probe(self, where: Any = "this model") -> None:
        """Raise if base and head in sequence do not give the logits of the whole model, or if padding has an effect."""
        tokens = [token for token in range(self.vocab.size) if token != self.model.config.pad_token_id]
        count = min(PROBED, self.longest or PROBED) // 2
        row = torch.tensor([tokens[: 2 * count]], device=next(self.parameters()).device)
        valid = torch.arange(row.shape[1], device=row.device)[None] < count
        training = self.training
        self.eval()
        try:
            with quiet():
                whole = self.model(input_ids=row).logits[..., : self.vocab.size]
                split = self.head(self(row)[0])
                alone, beside = self(row[:, :count])[0], self(row, valid=valid)[0]
        except Exception as error:  # networks for other purposes may raise anything
            raise UserError(f"{where} cannot be run as a masked language model: {first_line(error)}") from None
        finally:
            self.train(training)
        if whole.shape != split.shape or not close(whole, split):
            why = "whose logits are not a function of its last hidden states"
        elif not close(alone, beside[:, :count]):
            why = "in which padding changes the predictions for other tokens"
        else:
            return
        raise UserError(f"{where} is a {_kind(self.model)}, {why}; unmask cannot run it")

    def _apply(self, fn: Any, recurse: bool = True) -> Encoder:
        """As in nn.Module; then restore ties that `to_empty` breaks, and compute the buffers that it leaves unset."""
        hollow = any(buffer.is_meta for buffer in self.buffers())
        super()._apply(fn, recurse)
        for name, source in self.ties.items():
            owner, _, leaf = name.rpartition(".")
            self.get_submodule(owner)._parameters[leaf] = self.get_parameter(source)
        if hollow and not any(buffer.is_meta for buffer in self.buffers()):
            self._restore_buffers()
        return self

    def _restore_buffers(self) -> None:
        buffers = dict(self.model.named_buffers())
        with torch.no_grad():
            for name, value in buffers_of(self.model.config).items():
                buffers[name].copy_(value)


class FixedEmbeddings:
    """The output of a base model with these last hidden states; every other attribute is None."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: Any) -> Any:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def close(a: Tensor, b: Tensor) -> bool:
    """Whether two outputs of a network differ only by rounding."""
    return bool((a - b).abs().max() <= 1e-3 * a.abs().max().clamp(min=1e-3))


def _kind(model: Any) -> str:
    return type(model).__name__


# -- a state with every weight once, and nothing that is computed ----------------------------------------------------


def ties_of(module: nn.Module) -> dict[str, str]:
    """Every additional name of a parameter, with its first name."""
    first: dict[int, str] = {}
    named = list(module.named_parameters(remove_duplicate=False))
    for name, parameter in named:
        first.setdefault(id(parameter), name)
    return {name: first[id(parameter)] for name, parameter in named if first[id(parameter)] != name}


def _once(module: nn.Module, state: dict[str, Tensor], prefix: str, local: Any) -> None:
    assert isinstance(module, Encoder)
    for name in (*module.ties, *module.computed):
        state.pop(prefix + name, None)


def _again(module: nn.Module, state: dict[str, Tensor], prefix: str, *more: Any) -> None:
    assert isinstance(module, Encoder)
    for name, source in module.ties.items():
        if prefix + source in state:
            state.setdefault(prefix + name, state[prefix + source])
    for name in module.computed:
        state.setdefault(prefix + name, module.get_buffer(name))
