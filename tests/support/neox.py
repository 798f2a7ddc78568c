"""GPT-NeoX of transformers with the blocks of the paper's DiT, except adaLN: an independent network to compare with."""

from __future__ import annotations

from typing import Any


def neox(vocab: int, dim: int, blocks: int, heads: int) -> Any:
    """A network with random weights, in evaluation mode."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    config = GPTNeoXConfig(
        vocab_size=vocab,
        hidden_size=dim,
        num_hidden_layers=blocks,
        num_attention_heads=heads,
        intermediate_size=4 * dim,
        hidden_act="gelu_pytorch_tanh",
        use_parallel_residual=False,
        attention_bias=False,
        layer_norm_eps=1e-5,
        tie_word_embeddings=False,
        attn_implementation="eager",
        bos_token_id=None,
        eos_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
    )
    return GPTNeoXForCausalLM(config).eval()
