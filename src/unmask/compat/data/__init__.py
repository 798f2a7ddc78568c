"""Old names of modules of `unmask.data`."""
