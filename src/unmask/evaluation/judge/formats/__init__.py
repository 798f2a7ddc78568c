"""Judges in special file formats, each imported only when its prefix is used (`scorers.JUDGES`)."""
