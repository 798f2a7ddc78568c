"""Models by name: from a folder to an `LM`."""

from __future__ import annotations

from pathlib import Path

import torch

from . import build, checkpoint
from .config import load_yaml
from .data.labels import load_labels
from .data.tokenizers import Tokenizer
from .dist import pick_device
from .lm import LM
from .types import UserError


def load(path: str | Path, *, which: str = "last", weights: str = "ema", device: str = "cpu") -> LM:
    """An `LM` from the folder of a run or of one checkpoint.

    `which` is "last" or "best" (for a run), `weights` "ema" (the average, where the run kept one) or "raw".
    """
    if which not in ("last", "best") or weights not in ("ema", "raw"):
        raise UserError("which must be 'last' or 'best', and weights 'ema' or 'raw'")
    if not Path(path).exists():
        raise UserError(f"there is no model at {path}; train one with: unmask train demo --out {path}")
    folder = checkpoint.resolve(path, which)
    checkpoint.verify(folder)
    config = load_yaml(folder / "config.yaml")
    tokenizer = Tokenizer.load(folder)
    labels = load_labels(folder, config.data.label)
    with torch.device("meta"):
        model = build.model(config, tokenizer.vocab, len(labels))
    model = model.to_empty(device=pick_device(device))
    group = "ema" if weights == "ema" and config.train.ema else "model"
    checkpoint.read_into(folder, group, dict(model.state_dict()))
    return LM(model.eval(), tokenizer, config, labels=labels)
