"""Any causal language model that `transformers` can load, as a judge. No foreign code is run, no pickle is read."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...data.online import hub
from ...errors import UserError, optional
from ...files import read_json
from ...networks.architectures import check_fits, check_sizes, quiet
from .scorers import CausalScorer, first_token

LONGEST = 2048  # tokens of context: more would make windows of no use larger than memory


class HfScorer(CausalScorer):
    """A causal model from a folder or from the Hugging Face Hub, in float32."""

    def __init__(self, where: str, device: str | torch.device = "cpu", context: int | None = None) -> None:
        self.name = where
        self.model, self.tokenizer = _load(where)
        self.model = self.model.to(device).eval()
        config = self.model.config
        known = [getattr(config, key, None) for key in ("max_position_embeddings", "n_positions", "max_seq_len")]
        self.context = min(context or LONGEST, next((value for value in known if value), LONGEST))
        if self.context < 2:
            raise UserError(f"scorer {where} has a context of {self.context} tokens; it must be at least 2")
        self.bos = first_token(self.tokenizer.bos_token_id, self.tokenizer.get_vocab())
        self.vocab_size = int(config.vocab_size)
        self.inside = self._inside_extras()
        self._check_causal()

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        device: torch.device = next(self.model.parameters()).device
        return device

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without special tokens around it."""
        pieces = [text] if self.inside is None else self.inside.split(text)
        with quiet():  # it warns that a text is longer than the model; that is what windows are for
            return [token for piece in pieces for token in self.tokenizer(piece, add_special_tokens=False)["input_ids"]]

    def _inside_extras(self) -> re.Pattern[str] | None:
        """The places after the first letter of special tokens that the network has no row for, as our [MASK].

        A text that is cut there has none of them, but their letters.
        """
        added = self.tokenizer.added_tokens_decoder
        beyond = [added.get(token) for token in range(self.vocab_size, len(self.tokenizer))]
        if not all(extra is not None and extra.special and len(extra.content) > 1 for extra in beyond):
            raise UserError(
                f"scorer {self.name} has {self.vocab_size} tokens and its tokenizer {len(self.tokenizer)}; "
                "they do not belong together"
            )
        places = [rf"(?<={re.escape(word[0])})(?={re.escape(word[1:])})" for word in (t.content for t in beyond)]
        return re.compile("|".join(places)) if places else None

    def hidden(self, tokens: Tensor, present: Tensor) -> tuple[Tensor, Callable[[int, Tensor], Tensor]]:
        """The logits of the model: some models scale or cap them after the head, so the head alone would be wrong."""
        out = self.model(input_ids=tokens, attention_mask=present.long(), output_hidden_states=True, use_cache=False)
        return out.hidden_states[-1], lambda row, positions: out.logits[row, positions]

    def about(self) -> dict[str, Any]:
        """A description of the network."""
        kind = type(self.model).__name__
        return {"scorer": f"hf:{self.name}", "network": kind, "vocabulary": self.vocab_size, "dtype": "float32"}

    @torch.no_grad()
    def _check_causal(self) -> None:
        """Raise if the model sees later tokens, as an encoder does that is loaded as a decoder."""
        row = torch.arange(4, device=self.device)[None] % self.vocab_size
        other = row.clone()
        other[0, -1] = (row[0, -1] + 1) % self.vocab_size
        both = [self.hidden(tokens, torch.ones_like(tokens).bool())[1](0, torch.arange(3)) for tokens in (row, other)]
        if (both[0] - both[1]).abs().max() > 1e-4 * both[0].abs().max():
            raise UserError(f"scorer {self.name} sees later tokens; give a causal language model, such as GPT-2")


def _check_sizes(transformers: Any, path: Path) -> None:
    """Raise if a folder describes a network that is far larger than its files."""
    check_sizes(read_json(path / "config.json", "cannot read the model"))
    spec = transformers.AutoConfig.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
    held = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    check_fits(lambda: transformers.AutoModelForCausalLM.from_config(spec, trust_remote_code=False), held, path)


def _load(where: str) -> tuple[Any, Any]:
    transformers = optional("transformers", "a causal scorer", "judge")
    path = Path(where).expanduser()
    if path.is_file():
        raise UserError(f"scorer {where} is a file; give the folder with config.json, model.safetensors and tokenizer")
    if path.is_dir() and not (path / "config.json").is_file():
        raise UserError(f"scorer {where} has no config.json, so it is not a transformers model")
    if not path.is_dir() and (where.startswith((".", "/", "~")) or where.count("/") > 1):
        raise UserError(f"scorer {where} does not exist")
    local = path.is_dir()
    name, safe = str(path) if local else where, {"trust_remote_code": False, "local_files_only": local}
    with nullcontext(True) if local else hub() as online, quiet():
        try:
            if local:
                _check_sizes(transformers, path)
            tokenizer = transformers.AutoTokenizer.from_pretrained(name, **safe)
            model, info = transformers.AutoModelForCausalLM.from_pretrained(
                name, **safe, use_safetensors=True, dtype=torch.float32, output_loading_info=True
            )
        except UserError as error:
            raise UserError(f"scorer {where} cannot be loaded: {error}") from None
        except Exception as error:  # whatever the library raises; its own words say it best
            reason = " ".join(str(error).split())[:200]
            if not online:
                raise UserError(
                    f"scorer {where} is not a folder, and the Hugging Face Hub cannot be reached; give a local folder"
                ) from None
            raise UserError(f"scorer {where} cannot be loaded as a causal language model: {reason}") from None
    lacking = [*info["missing_keys"], *info["mismatched_keys"]]
    if lacking:
        raise UserError(
            f"scorer {where} lacks weights ({lacking[0]}, ...), which would stay random; it is not a causal LM"
        )
    return model, tokenizer
