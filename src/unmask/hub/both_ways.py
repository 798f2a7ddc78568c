"""A causal model looks both ways: how an autoregressive model becomes a diffusion model (DiffuLLaMA, Dream).

All of its weights stay. The embedding gets a row for [MASK], the mean of all others, where it has none; the head never
writes [MASK]. The causal mask is off from the first step, or the columns to the right come into sight one after another
(`train.anneal`). A token is still predicted by the column before it (`model.prediction=shifted`), so that the head is
of use from the beginning; in blocks of one token that is the autoregressive law itself.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..config import Config, LlamaConfig
from ..errors import UserError
from ..lm import LM
from ..models import registry
from ..types import Vocab

KINDS = ("mdlm", "block")  # of fine-tuning that turn a causal model
TURNED = {"method", "prediction", "embedding_rows"}  # settings of the model that change then


def turns(lm: LM, kind: str) -> bool:
    """Whether a fine-tuning makes a causal model look both ways."""
    return kind in KINDS and isinstance(lm.config.model, LlamaConfig) and lm.model.backbone.causal


def turned_config(config: Config, vocab: Vocab) -> Config:
    """The config with a network that has a row for every token, and predicts each in the column before it."""
    assert isinstance(config.model, LlamaConfig)
    rows = max(config.model.embedding_rows or 0, vocab.size)
    return config.changed(model={"prediction": "shifted", "embedding_rows": rows})


def turned(lm: LM, config: Config) -> LM:
    """The model of a config with the weights of a causal one; a model that looks both ways stays as it is."""
    if not turns(lm, config.model.method):
        return lm
    now, before = (each.model.model_dump(exclude=TURNED) for each in (lm.config, config))
    if other := [key for key in before if before[key] != now.get(key)]:
        raise UserError(
            f"the model {config.train.start} has another network than the one that was trained further: {other[0]} "
            f"is {now.get(other[0])} and was {before[other[0]]}; give that one"
        )
    with torch.device("meta"):
        model = registry.model(config, lm.tokenizer.vocab)
    weights = dict(lm.model.state_dict())
    for name in ("backbone.embed_tokens.weight", "backbone.lm_head.weight"):
        if name in weights:
            weights[name] = _with_mask(weights[name], model.state_dict()[name].shape[0], lm.tokenizer.vocab)
    model.load_state_dict(weights, assign=True)
    return replace(lm, model=model.eval(), config=config)


def _with_mask(table: Tensor, rows: int, vocab: Vocab) -> Tensor:
    """The rows of tokens, with the mean of all others as that of [MASK]."""
    wider = torch.cat([table, table.new_zeros(rows - len(table), table.shape[1])])
    others = [token for token in range(min(len(table), vocab.size)) if token != vocab.mask]
    wider[vocab.mask] = table[others].float().mean(0).to(table.dtype)
    return wider
