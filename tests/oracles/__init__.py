"""Slow, obvious truths that the package is compared with; no line of the package."""
