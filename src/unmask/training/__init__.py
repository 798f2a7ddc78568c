"""Training: the step, the loop around it, and what is trained: a language model, a classifier, a model that goes on."""
