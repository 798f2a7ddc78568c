"""The denoiser as a model of transformers: published tensor names, MaskedLMOutput, SUBS logits (paper 3.2.3)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel, initialization
from transformers.modeling_outputs import MaskedLMOutput

from ...models import registry
from ...networks.dit import DiT
from ...networks.layers import LayerNorm
from ...networks.modern import Modern
from ...types import UserError
from ..checkpoint import check_names
from ..layout import COVERED, INV_FREQ, check_rotary, inv_freq, is_readable
from .collator import IGNORED, is_packed, mdlm_loss
from .configuration import MDLMConfig, UnmaskConfig

if TYPE_CHECKING:
    from ...lm import LM


class Frequencies(nn.Module):
    """The rotary frequencies, a buffer in the published files; our network computes them instead."""

    inv_freq: Tensor

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.register_buffer("inv_freq", values)

    def _apply(self, fn: Any, recurse: bool = True) -> Frequencies:
        """Follow the device but stay float32: 16 bits would change the frequencies."""
        before = self.inv_freq
        super()._apply(fn, recurse)
        if self.inv_freq.dtype != torch.float32:
            self.inv_freq = before.to(self.inv_freq.device)
        return self


class MDLM(PreTrainedModel):
    """A masked diffusion model whose logits predict the clean token at every position.

    [MASK] itself is never predicted: its logit is -inf. Positions that are not masked have logits too, but MDLM copies
    those tokens (carry-over): use only the logits of masked positions.
    """

    config_class = MDLMConfig
    base_model_prefix = "backbone"
    main_input_name = "input_ids"
    accepts_loss_kwargs = True  # Trainer tells how many tokens a whole step has
    _keep_in_fp32_modules_strict = ["norm1", "norm2", "norm_final", "rotary_emb"]  # noqa: RUF012
    _keys_to_ignore_on_load_missing = [r"rotary_emb\.inv_freq"]  # noqa: RUF012
    _no_split_modules = ["Block"]  # noqa: RUF012

    def __init__(self, config: MDLMConfig) -> None:
        super().__init__(config)
        described = config.described()
        assert described.vocab is not None, "MDLMConfig always has a mask token"
        settings = described.config.model
        if not is_readable(described.config):
            raise UserError(
                f"the class for transformers covers {COVERED}, and this model is {settings.method} on "
                f"{settings.network}; use it through unmask"
            )
        net = registry.network(settings, described.vocab, len(described.labels))
        assert isinstance(net, DiT | Modern)
        self.backbone: DiT | Modern = net
        if isinstance(net, DiT):
            net.rotary_emb = Frequencies(inv_freq(described.config))
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Nothing to do: the network is created with the paper's initialisation, and loading is strict."""
        if isinstance(module, Frequencies):
            initialization.copy_(module.inv_freq, inv_freq(self.config.described().config))

    def _apply(self, fn: Any, recurse: bool = True) -> MDLM:
        """Norms stay float32 when the rest is cast, since they are computed in it."""
        super()._apply(fn, recurse)
        for module in self.modules():
            if isinstance(module, LayerNorm) and module.weight.dtype != torch.float32:
                module.weight.data = module.weight.data.float()
        return self

    # -- the network -------------------------------------------------------------------------------------------------

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        timesteps: Tensor | None = None,
        classes: Tensor | None = None,
        labels: Tensor | None = None,
        weights: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> MaskedLMOutput | tuple[Any, ...]:
        """Logits (B, L, V) and, with labels, a loss; a tuple of them if return_dict is False (token types are ignored).

        `attention_mask` (B, L): 0 = absent, not attended to. `timesteps` (B,): sigma = -log alpha, 0 by default, of no
        effect unless config.time_conditioning. `classes` (B,): the label of a model for labelled data, -1 = none.
        Labels of `MDLMCollator` give the bound of MDLM; with plain `labels` and `weights` too; plain labels alone the
        mean cross-entropy of all that are not -100. `output_hidden_states` adds the embeddings and the output of every
        block, before the last norm, as the published class does.
        """
        if output_attentions:
            raise UserError("the attention of an MDLM model is fused and never exists as weights; no output_attentions")
        if (input_ids is None) == (inputs_embeds is None):
            raise UserError("give an MDLM model either input_ids or inputs_embeds")
        x = inputs_embeds if input_ids is None else self.backbone.vocab_embed(input_ids)
        assert x is not None
        states: list[Tensor] = [x.float()]
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        with self._half(x), self._kept(states if wanted else None):
            cond = self.backbone.condition(self._sigma(timesteps, x), classes)
            valid = self._valid(attention_mask)
            hidden, _ = self.backbone(embeddings=x.float(), condition=cond, valid=valid, positions=position_ids)
            logits = self.backbone.head(hidden)  # (B, L, V)
        logits[..., self.config.mask_token_id] = float("-inf")  # SUBS: zero mass on [MASK]; nobody else uses the tensor
        loss = None if labels is None else self._loss(logits, labels, weights, attention_mask, num_items_in_batch)
        out = MaskedLMOutput(loss=loss, logits=logits, hidden_states=tuple(states) if wanted else None)  # type: ignore[arg-type]
        return out.to_tuple() if return_dict is False else out

    @contextlib.contextmanager
    def _kept(self, states: list[Tensor] | None) -> Iterator[None]:
        """Append the output of every block to `states`, while the network runs."""

        def keep(_module: nn.Module, _args: Any, out: Any) -> None:
            assert states is not None
            states.append(out[0] if isinstance(out, tuple) else out)

        hooks = [] if states is None else [block.register_forward_hook(keep) for block in self.backbone.blocks]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _valid(self, attention_mask: Tensor | None) -> Tensor | None:
        if attention_mask is None:
            return None
        if attention_mask.ndim != 2:
            raise UserError(f"attention_mask must be (batch, length), but it has {attention_mask.ndim} dimensions")
        valid = attention_mask.bool()
        return None if valid.all() else valid

    def _half(self, x: Tensor) -> contextlib.AbstractContextManager[Any]:
        """16-bit weights run under autocast: norms, the residual stream and the time stay float32."""
        weight = next(p for p in self.backbone.blocks.parameters() if p.ndim == 2)
        if weight.dtype == torch.float32 or torch.is_autocast_enabled(x.device.type):
            return contextlib.nullcontext()
        return torch.autocast(x.device.type, dtype=weight.dtype)

    def _sigma(self, timesteps: Tensor | None, x: Tensor) -> Tensor:
        if timesteps is None:
            return torch.zeros(len(x), device=x.device)
        return timesteps.to(x.device).float().reshape(-1).expand(len(x))

    def _loss(
        self,
        logits: Tensor,
        labels: Tensor,
        weights: Tensor | None,
        attention_mask: Tensor | None,
        num_items_in_batch: Tensor | int | None,
    ) -> Tensor:
        if weights is not None:
            if num_items_in_batch is not None:
                raise UserError(
                    "Trainer counts only masked tokens if labels and weights are separate, but MDLM divides by all; "
                    "use MDLMCollator(packed=True)"
                )
            tokens = labels.numel() if attention_mask is None else attention_mask.sum()
            return mdlm_loss(logits, labels, weights=weights, tokens=tokens)
        if is_packed(labels):
            return mdlm_loss(logits, labels, num_items_in_batch)
        chosen = labels != IGNORED
        nll = F.cross_entropy(logits[chosen].float(), labels[chosen], reduction="sum")
        return nll / (chosen.sum() if num_items_in_batch is None else num_items_in_batch)

    # -- embeddings --------------------------------------------------------------------------------------------------

    def get_input_embeddings(self) -> nn.Module:
        """The embedding; its parameter is called `embedding`, as published."""
        return self.backbone.vocab_embed

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Set another module from ids to vectors."""
        self.backbone.vocab_embed = value  # type: ignore[assignment]

    def get_output_embeddings(self) -> nn.Linear | None:
        """The projection to the vocabulary; None where it is the embedding."""
        return self.backbone.output_layer.linear if isinstance(self.backbone, DiT) else None

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Set another projection."""
        if not isinstance(self.backbone, DiT):
            raise UserError("this model predicts with its embedding; set that")
        self.backbone.output_layer.linear = new_embeddings  # type: ignore[assignment]

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args: Any, **kwargs: Any) -> Any:
        """Accept only the current size, since [MASK] has a fixed place in the vocabulary."""
        if new_num_tokens not in (None, self.config.vocab_size):
            raise UserError(
                f"the vocabulary of an MDLM model is fixed at {self.config.vocab_size} tokens, [MASK] included; train "
                "a model with the new tokenizer, or add no tokens to it"
            )
        return self.get_input_embeddings()

    # -- folders -----------------------------------------------------------------------------------------------------

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """As in transformers, but strict: weights that are missing, unknown or of another shape are an error."""
        wants_info = kwargs.pop("output_loading_info", False)
        kwargs["ignore_mismatched_sizes"] = True  # we name them ourselves
        kwargs["output_loading_info"] = True
        loaded: Any = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        model, info = loaded
        _complete(info, pretrained_model_name_or_path)
        model._check_rotary(pretrained_model_name_or_path)
        return (model, info) if wants_info else model

    def _check_rotary(self, where: Any) -> None:
        if not isinstance(self.backbone, DiT):
            return
        rotary = self.backbone.rotary_emb
        assert isinstance(rotary, Frequencies)
        config = self.config.described().config
        check_rotary(rotary.inv_freq, config, where)
        ours, theirs = inv_freq(config), rotary.inv_freq.float().cpu()
        if not torch.allclose(theirs, ours, rtol=1e-6, atol=0):
            rotary.inv_freq = ours.to(rotary.inv_freq.device)

    def unmask_lm(self, tokenizer: Any) -> LM:
        """An `unmask.LM` on the same weights: sample, infill, score. The tokenizer may be transformers' or ours."""
        from .bridge import lm_of

        return lm_of(self, tokenizer)

    @classmethod
    def from_lm(cls, lm: LM) -> MDLM:
        """A model of transformers with a copy of the weights of an `unmask.LM`."""
        from .bridge import model_of

        return model_of(cls, lm)


class UnmaskForMaskedLM(MDLM):
    """The same for models on our other networks, whose folders are ours alone."""

    config_class = UnmaskConfig


def _complete(info: dict[str, Any], where: Any) -> None:
    missing = (name for name in info["missing_keys"] if name != INV_FREQ)
    wanted: dict[str, Any] = dict.fromkeys(missing)
    actual: dict[str, Any] = dict.fromkeys(info["unexpected_keys"])
    for name, theirs, ours in info["mismatched_keys"]:
        actual[name], wanted[name] = theirs, ours
    check_names(wanted, actual, where)
