"""Small charts as SVG, with nothing but the standard library: lines, and clouds of points with a diagonal.

A chart brings its own white card. Equal input gives equal bytes. Axes are given, not guessed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 88, 34, 66, 56
COLOURS = ("#0072B2", "#D55E00", "#009E73")  # of Okabe and Ito: for all kinds of eyes
DASHES = ("", ' stroke-dasharray="7 4"', ' stroke-dasharray="2 4"')


@dataclass(frozen=True)
class ChartAxis:
    """From the first tick to the last; with `log` all ticks are positive."""

    name: str
    ticks: Sequence[float]
    labels: Sequence[str]
    log: bool = False

    def place(self, value: float) -> float:
        """0 at the first tick, 1 at the last; what lies outside is put on the edge."""
        low, high = self.ticks[0], self.ticks[-1]
        value = min(max(value, low), high)
        return math.log(value / low) / math.log(high / low) if self.log else (value - low) / (high - low)


def even(name: str, low: float, high: float, parts: int, percent: bool = False) -> ChartAxis:
    """Ticks at equal distances."""
    ticks = [low + (high - low) * i / parts for i in range(parts + 1)]
    return ChartAxis(name, ticks, [f"{100 * tick:.4g} %" if percent else f"{tick:.4g}" for tick in ticks])


def decades(name: str, low: float, high: float) -> ChartAxis:
    """Powers of ten around two positive numbers."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    ticks = [10.0**i for i in range(first, max(last, first + 1) + 1)]
    return ChartAxis(name, ticks, [f"{tick:g}" for tick in ticks], log=True)


def round_up(value: float) -> float:
    """The next of 1, 2, 2.5, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice >= value * (1 - 1e-9))


@dataclass(frozen=True)
class Series:
    """Points; joined by a line, or not."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    line: bool = True


def chart(title: str, across: ChartAxis, up: ChartAxis, series: Sequence[Series], diagonal: bool = False) -> str:
    """The whole picture."""
    height = HEIGHT + (160 if diagonal else 0)  # a square plane for what should be equal
    right, bottom = (LEFT + height - TOP - BOTTOM if diagonal else WIDTH - RIGHT), height - BOTTOM
    width = right + RIGHT

    def at_x(value: float) -> str:
        return _n(LEFT + across.place(value) * (right - LEFT))

    def at_y(value: float) -> str:
        return _n(bottom - up.place(value) * (bottom - TOP))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        ' role="img" font-family="system-ui, \'Segoe UI\', Helvetica, Arial, sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        "<style>text{fill:#24292f} .tick{fill:#57606a}</style>",
        f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6" fill="#ffffff" stroke="#d0d7de"/>',
        f'<text x="{LEFT}" y="27" font-size="15" font-weight="600">{escape(title)}</text>',
    ]
    for tick, label in zip(across.ticks, across.labels, strict=True):
        x = at_x(tick)
        parts.append(f'<path d="M{x} {TOP}V{bottom}" stroke="#e4e8ec"/>')
        parts.append(f'<text x="{x}" y="{bottom + 18}" class="tick" text-anchor="middle">{escape(label)}</text>')
    for tick, label in zip(up.ticks, up.labels, strict=True):
        y = at_y(tick)
        parts.append(f'<path d="M{LEFT} {y}H{right}" stroke="#e4e8ec"/>')
        parts.append(
            f'<text x="{LEFT - 8}" y="{_n(float(y) + 4)}" class="tick" text-anchor="end">{escape(label)}</text>'
        )
    middle = _n((TOP + bottom) / 2)
    parts += [
        f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="#57606a"/>',
        f'<text x="{_n((LEFT + right) / 2)}" y="{bottom + 40}" text-anchor="middle">{escape(across.name)}</text>',
        f'<text x="20" y="{middle}" text-anchor="middle" transform="rotate(-90 20 {middle})">{escape(up.name)}</text>',
    ]
    if diagonal:
        parts.append(f'<path d="M{LEFT} {bottom}L{right} {TOP}" stroke="#57606a" stroke-dasharray="5 4"/>')
    legend = float(LEFT)
    for i, own in enumerate(series):
        colour, dash = COLOURS[i % len(COLOURS)], DASHES[i % len(DASHES)]
        places = [(at_x(x), at_y(y)) for x, y in zip(own.x, own.y, strict=True)]
        if own.line:
            path = " ".join(f"{x},{y}" for x, y in places)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"{dash}/>')
            mark = f'<path d="M{_n(legend)} 47h26" stroke="{colour}" stroke-width="1.8"{dash}/>'
        else:
            dots = "".join(f"M{x} {y}h0" for x, y in places)  # one path of round ends: small also with 65,536 points
            style = f'fill="none" stroke="{colour}" stroke-width="3.2" stroke-linecap="round" stroke-opacity="0.45"'
            parts.append(f'<path d="{dots}" {style}/>')
            mark = f'<circle cx="{_n(legend + 13)}" cy="47" r="3.2" fill="{colour}"/>'
        parts.append(f'{mark}<text x="{_n(legend + 33)}" y="51">{escape(own.name)}</text>')
        legend += 47 + 6.9 * len(own.name)
    return "\n".join([*parts, "</svg>\n"])


def _n(value: float) -> str:
    """A coordinate: two decimals, without zeros at the end and without a negative zero."""
    return f"{round(value, 2) + 0.0:g}"
