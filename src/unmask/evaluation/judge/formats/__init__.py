"""Judges in formats of their own, each imported only when its prefix asks for it (`scorers.JUDGES`)."""
