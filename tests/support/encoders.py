"""Tiny configs of the encoders of transformers."""

from __future__ import annotations

from unmask.types import Vocab

PAD, MASK, SIZE, ROWS = 1, 4, 38, 40  # the embedding is longer than the vocabulary
VOCAB = Vocab(SIZE, MASK, PAD, 0, 2)
TINY = {
    "vocab_size": ROWS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 34, "pad_token_id": PAD, "bos_token_id": 0, "eos_token_id": 2, "cls_token_id": 0,
    "sep_token_id": 2, "mask_token_id": MASK,
}  # fmt: skip
OWN = {
    "bert": {}, "roberta": {"type_vocab_size": 1}, "distilbert": {}, "albert": {"embedding_size": 8},
    "electra": {"embedding_size": 8}, "xlm-roberta": {}, "mpnet": {},
    "modernbert": {"local_attention": 4, "global_attn_every_n_layers": 2},
    "esm": {"token_dropout": True, "position_embedding_type": "rotary"},
    "deberta-v2": {"relative_attention": True, "position_buckets": 4, "pos_att_type": ["p2c", "c2p"],
                   "position_biased_input": False, "type_vocab_size": 0, "conv_kernel_size": 3},
}  # fmt: skip
KINDS = sorted(OWN)


def tree(kind: str, **more) -> dict:
    return TINY | {"model_type": kind} | OWN[kind] | more
