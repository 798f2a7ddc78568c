"""Training: the step, the loop around it, and what is trained: language models (new or fine-tuned) and classifiers."""
