"""The version, apart from the package so that the build can read it without importing torch."""

__version__ = "0.3.0"
