"""Methods: which formula a language model uses for its likelihood, its loss and its samples."""

__path__.append(f"{__path__[0]}/../compat/models")  # old names, for one release
