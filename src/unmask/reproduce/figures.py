"""A number as a reader should see it: with its error, and no more digits than the error justifies."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A number with its standard error; `bound` if the truth is at most this; `decimals` to print it as a source does.

    The text has two significant digits of the error, or four of the value if there is no error. An int is exact.
    """

    value: float
    error: float | None = None
    bound: bool = False
    decimals: int | None = None

    def __str__(self) -> str:
        text = self._text()
        return f"≤ {text}" if self.bound else text

    def _text(self) -> str:
        if not math.isfinite(self.value):
            return str(float(self.value))
        if self.error is not None and not math.isfinite(self.error):
            return f"{significant(self.value, 4)} ± {self.error}"
        if self.decimals is not None:
            value = _fixed(self.value, self.decimals)
            return value if self.error is None else f"{value} ± {_fixed(self.error, self.decimals)}"
        if not self.error:  # None, or 0: a figure that cannot vary
            value = str(self.value) if isinstance(self.value, int) else significant(self.value, 4)
            return value if self.error is None else f"{value} ± 0"
        scale = _exponent(max(abs(self.value), self.error), 2)
        if not -4 <= scale <= 8:  # neither 0.0000012 nor 1200000000
            return f"({Figure(self.value / 10.0**scale, self.error / 10.0**scale)})e{scale}"
        places = 1 - _exponent(self.error, 2)
        if places > 8:  # the error is the noise of the arithmetic
            return f"{significant(self.value, 4)} ± {self.error:.1e}"
        return f"{_fixed(self.value, places)} ± {_fixed(self.error, places)}"


def _exponent(value: float, digits: int) -> int:
    """The power of ten of the first digit, after rounding to this many digits (0.0996 is 0.10)."""
    return int(f"{value:.{digits - 1}e}".split("e")[1])


def _fixed(value: float, places: int) -> str:
    """Rounded to this many decimals; to tens, hundreds, ... if negative. Never minus zero."""
    return f"{round(value, places) + 0.0:.{max(places, 0)}f}"


def significant(value: float, digits: int) -> str:
    """Rounded to this many digits; with an exponent if it is very small or very large."""
    if value == 0:
        return "0"
    exponent = _exponent(value, digits)
    if not -4 <= exponent <= 8:
        return f"{value:.{digits - 1}e}"
    return _fixed(value, digits - 1 - exponent)
