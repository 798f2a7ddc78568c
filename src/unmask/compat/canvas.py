"""An old name: see `unmask/compat/__init__.py`."""

from unmask.compat import moved

__getattr__ = moved(__name__)
