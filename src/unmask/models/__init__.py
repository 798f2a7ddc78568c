"""Methods: which formula a language model uses for its likelihood, its loss and its samples."""
