"""Networks from tokens to hidden states to logits. They know no loss and no schedule."""
