"""Kernels: a reference and a fast path with one signature, chosen once."""
