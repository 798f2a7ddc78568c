"""Methods: how a language model computes its likelihood, its loss and its samples."""

__path__.append(f"{__path__[0]}/../compat/models")  # old names, for one release
