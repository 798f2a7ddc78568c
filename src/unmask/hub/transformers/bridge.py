"""Between an `unmask.LM` and a model and tokenizer of transformers, without files."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer as Backend
from torch import nn

from ...data.tokenization import Tokenizer, size_of
from ...lm import LM
from ...models import registry
from ...models.masked import as_masked
from ...types import UserError
from ..layout import COVERED, Described, check_tokenizer, describe, fill, is_published, is_readable
from ..resolve import advised

if TYPE_CHECKING:
    from .modeling import MDLM


def lm_of(model: MDLM, tokenizer: Any) -> LM:
    """An LM that shares the weights of a model; 16-bit weights are copied as float32, as in `unmask.load`."""
    described = model.config.described()
    config = described.config
    backbone = model.backbone
    if any(parameter.dtype != torch.float32 for parameter in backbone.parameters()):
        backbone = deepcopy(backbone).float()
    with torch.device("meta"):  # its own network is not used
        diffusion = as_masked(registry.model(config, backbone.vocab, len(described.labels)))
    assert diffusion is not None, "a readable model fills masks"
    shared = diffusion.under(backbone=backbone).train(model.training)
    lm = LM(shared, tokenizer_of(tokenizer, described), config, labels=list(described.labels))
    source = getattr(model.config, "_name_or_path", "")
    return advised(lm, Path(source)) if source and Path(source).is_dir() else lm


def tokenizer_of(tokenizer: Any, described: Described) -> Tokenizer:
    """Our tokenizer for a model, from one of transformers."""
    vocab = described.vocab
    assert vocab is not None, "MDLMConfig always has a mask token"
    if not isinstance(tokenizer, Tokenizer):
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise UserError("the tokenizer must be a fast one of transformers (with a tokenizer.json) or one of unmask")
        settings = getattr(tokenizer, "init_kwargs", {}).get("unmask") or {}
        copy = Backend.from_str(backend.to_str())
        size = size_of(copy)
        name = str(settings.get("name") or getattr(tokenizer, "name_or_path", "") or "transformers")
        mask = copy.id_to_token(vocab.mask)
        if size != vocab.size or mask is None or mask != tokenizer.mask_token:
            raise UserError(
                f"this tokenizer has {size} tokens and mask token {tokenizer.mask_token!r}, the model {vocab.size} "
                f"tokens with [MASK] at {vocab.mask}; give the tokenizer that the model was trained with"
            )
        ends = {role: getattr(tokenizer, f"{role}_token_id") for role in ("bos", "eos") if getattr(vocab, role) is None}
        tokenizer = Tokenizer(copy, replace(vocab, **ends), name, str(settings.get("kind", "json")))
    check_tokenizer(tokenizer, described, "this model")
    return tokenizer


def model_of(kind: type[MDLM], lm: LM) -> MDLM:
    """A model with a copy of the weights of an LM."""
    from .modeling import MDLM, UnmaskForMaskedLM

    if not is_readable(lm.config):
        settings = lm.config.model
        what = settings.method if settings.method != "mdlm" else f"on the network {settings.network}"
        raise UserError(f"the class for transformers covers {COVERED}, and this model is {what}; use it through unmask")
    if kind is MDLM and not is_published(lm.config):
        kind = UnmaskForMaskedLM
    tree = describe(lm.config, lm.tokenizer, lm.labels)
    model = kind(kind.config_class(**{key: value for key, value in tree.items() if key != "model_type"}))
    fill(model, lm.model.state_dict(), lm.config, "this model")
    nn.Module.to(model, lm.model.device)
    model.train(lm.model.training)
    return model
