"""Old names of modules of `unmask.models`."""
