"""Reading the config.json of other projects, with an error message for each value that is wrong."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ...errors import UserError

Allowed = Mapping[str, tuple[Any, ...]]
# Fields of any config.json of transformers that do not change what a network computes: where it comes from, what is
# returned, labels of other tasks, special tokens, initialisation, dropout, memory, and the writing of text.
HARMLESS = frozenset(
    """
    _attn_implementation_autoset _commit_hash _name_or_path add_cross_attention architectures attn_implementation
    auto_map bad_words_ids begin_suppress_tokens bos_token_id chunk_size_feed_forward classifier_dropout
    classifier_dropout_prob cls_token_id cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample
    dtype early_stopping encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty finetuning_task
    forced_bos_token_id forced_eos_token_id gradient_checkpointing id2label initializer_range is_decoder
    is_encoder_decoder keys_to_ignore_at_inference label2id length_penalty mask_token_id max_length min_length
    model_max_length model_type name_or_path no_repeat_ngram_size num_beam_groups num_beams num_labels
    num_return_sequences output_attentions output_hidden_states output_past output_scores pad_token_id prefix
    problem_type remove_invalid_values repetition_penalty return_dict return_dict_in_generate sep_token_id
    suppress_tokens task_specific_params temperature tf_legacy_loss tie_encoder_decoder tokenizer_class top_k top_p
    torch_dtype torchscript transformers_version trust_remote_code typical_p unk_token_id use_bfloat16 use_cache
    use_return_dict
    """.split()  # noqa: SIM905
)


def mapping(tree: Mapping[str, Any], key: str, where: str | Path) -> Mapping[str, Any]:
    """A nested section of a config.json."""
    if not isinstance(tree.get(key), Mapping):
        raise UserError(f"{where} is damaged: it has no section {key!r}")
    return tree[key]


def value(tree: Mapping[str, Any], key: str, kind: type, where: str | Path, default: Any = None) -> Any:
    """A number or a boolean of the right kind."""
    setting = tree.get(key, default)
    shown = str(setting)[:80] if isinstance(setting, str) else setting
    if setting is None:
        raise UserError(f"{where} does not have {key}, without which the network cannot be built")
    fits = isinstance(setting, bool) if kind is bool else isinstance(setting, int if kind is int else int | float)
    if not fits or (kind is not bool and isinstance(setting, bool)):
        raise UserError(f"{where} has {key} {shown!r}, which is not {'true or false' if kind is bool else 'a number'}")
    return setting


def only(tree: Mapping[str, Any], allowed: Allowed, where: str | Path, name: str = "") -> None:
    """Raise if a setting has a value that our networks do not support; a missing one has its default."""
    for key, values in allowed.items():
        if key in tree and not any(type(tree[key]) is type(known) and tree[key] == known for known in values):
            shown, wanted = json.dumps(tree[key])[:80], " or ".join(map(json.dumps, values))
            raise UserError(f"{where} has {name}{key} {shown}, but unmask reads such networks only with {wanted}")


def understood(tree: Mapping[str, Any], known: Collection[str], where: str | Path, name: str = "") -> None:
    """Raise if a section has a field that is neither read nor known to be harmless; null is a field that is not set."""
    for key, setting in tree.items():
        if key not in known and setting is not None:
            shown = json.dumps(setting, default=str)[:80]
            raise UserError(
                f"{where} has {name}{str(key)[:80]} {shown}, which unmask does not know and which may change what the "
                "network computes; if it does not, delete it from the file"
            )
