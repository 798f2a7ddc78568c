"""Networks: from tokens to hidden states to logits, without a loss or a schedule."""
