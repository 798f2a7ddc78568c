"""Text to rows of tokens: corpora, tokenizers, packing, order."""
