"""The config.json of the published MDLM weights and of our portable folders, as transformers wants it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from transformers import PreTrainedConfig

if TYPE_CHECKING:
    from ..layout import Described


class MDLMConfig(PreTrainedConfig):
    """The network (published names), its special tokens, and under `unmask` everything else about our models.

    Without `mask_token_id` [MASK] is the last token, as published. `unmask` may be None: then schedule and bound are
    those of the paper on OpenWebText.
    """

    model_type = "mdlm"
    published: ClassVar[bool] = True  # whether the network is the one of the published weights
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "hidden_dim",
        "num_hidden_layers": "n_blocks",
        "num_attention_heads": "n_heads",
        "max_position_embeddings": "model_length",
    }

    vocab_size: int = 50258
    hidden_dim: int = 768
    n_blocks: int = 12
    n_heads: int = 12
    cond_dim: int = 128
    mlp_ratio: int = 4
    dropout: float = 0.1
    model_length: int = 1024
    time_conditioning: bool = False
    mask_token_id: int | None = None
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    tie_word_embeddings: bool = False
    unmask: dict[str, Any] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        kwargs.pop("auto_map", None)  # points to code of the repository, and after a push to files that are not there
        self.return_dict = True  # the published file says False, and pipelines need the fields by name
        if self.mask_token_id is None:
            self.mask_token_id = self.vocab_size - 1
        super().__post_init__(**kwargs)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; changes of the published keys are applied to the `unmask` part too."""
        out: dict[str, Any] = super().to_dict()
        out.pop("auto_map", None)
        ours = out.get("unmask")
        if ours is None:
            out.pop("unmask", None)
        elif isinstance(ours, dict) and isinstance(ours.get("config"), dict):
            from ..layout import ROLES, SHAPE  # here: transformers alone must not pay for it

            sections = ours["config"]
            model, data = sections.get("model") or {}, sections.get("data") or {}
            sections["model"] = {**model, **{key: out[key] for key in SHAPE if self.published or key in model}}
            sections["data"] = {**data, "length": out["model_length"]}
            ours["vocab"] = {"size": out["vocab_size"], **{role: out[f"{role}_token_id"] for role in ROLES}}
        return out

    def described(self) -> Described:
        """The whole config of unmask, the vocabulary and the labels; raises a UserError if it is not valid."""
        from ..layout import from_json

        return from_json(self.to_dict(), self.name_or_path or "this MDLMConfig")


class UnmaskConfig(MDLMConfig):
    """The config.json of our folders with another network than the published one: `unmask` says which."""

    model_type = "unmask"
    published: ClassVar[bool] = False
