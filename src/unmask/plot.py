"""Plots as SVG, with nothing but the standard library: lines with error bars, clouds of points, effects side by side.

Not matplotlib: equal input gives equal bytes (reports are kept in git and compared), and a report needs no extra.
A plot brings its own white card, so it reads the same on a white page and on GitHub's dark one. Every curve has a
colour (Okabe and Ito's, for all kinds of eyes) and a mark: twelve marks, filled ones first, so that no two curves share
one; colours and dashes repeat in other steps, so that 84 curves differ.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, SQUARE = 720, 420, 640  # SQUARE is the width of a picture whose two axes are the same
LEFT, RIGHT, BOTTOM = 74, 24, 56  # margins of the plane; the one at the top grows with the legend
ROW = 20  # height of a line of the legend
LETTER = 6.9  # width of a letter of 12 pixels, generous
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#7A5C00", "#56B4E9", "#444444")
OUTLINES = (
    '<circle cx="{x}" cy="{y}" r="3.6"{fill}/>',
    '<rect x="{x}" y="{y}" width="7" height="7" transform="translate(-3.5 -3.5)"{fill}/>',
    '<path d="M{x} {y}m0 -4.8l4.8 4.8l-4.8 4.8l-4.8 -4.8z"{fill}/>',
    '<path d="M{x} {y}m0 -4.8l4.6 8.2h-9.2z"{fill}/>',
    '<path d="M{x} {y}m0 4.8l4.6 -8.2h-9.2z"{fill}/>',
    '<path d="M{x} {y}m-1.5 -4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z"{fill}/>',
)
SHAPES = tuple(
    outline.replace("{fill}", fill) for fill in ("", ' fill="#ffffff" stroke-width="1.4"') for outline in OUTLINES
)
DASHES = ("", ' stroke-dasharray="7 4"', ' stroke-dasharray="2 4"')
MOST_MARKED, MARKS = 60, 12  # points: of a longer curve only so many have a mark
LARGEST = 1e100  # what is beyond has diverged, and the arithmetic of an axis would overflow
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


Runs = list[list[tuple[float, float, float]]]  # pieces of a curve: points (x, y, error)


@dataclass(frozen=True)
class Curve:
    """Points, in the order in which a line joins them; `error` is a half-length in y."""

    name: str
    x: list[float]
    y: list[float]
    error: list[float] | None = None

    def __post_init__(self) -> None:
        sizes = {len(self.x), len(self.y), len(self.x if self.error is None else self.error)}
        assert len(sizes) == 1, f"the lists of curve {self.name!r} differ in length"


@dataclass(frozen=True)
class Plot:
    """Curves on one pair of axes; `name` is the stem of its file."""

    name: str
    title: str
    x_label: str
    y_label: str
    curves: list[Curve]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Axis:
    """Where a value lies between the two ends of an axis, and its ticks."""

    ticks: list[float]
    log: bool
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The coordinate of a value."""
        f: Callable[[float], float] = math.log if self.log else float
        low, high = f(self.ticks[0]), f(self.ticks[-1])
        return self.start + (f(value) - low) / (high - low) * (self.end - self.start)


def left_out(plot: Plot) -> list[str]:
    """What cannot be drawn, in words: curves without points, points that are not finite or have no logarithm."""
    said = []
    for curve in plot.curves:
        missing = len(curve.x) - sum(map(len, _runs(plot, curve)))
        why = "not finite, or not positive on a log axis" if plot.log_x or plot.log_y else "not finite"
        if not curve.x:
            said.append(f"{curve.name}: no points")
        elif missing:
            said.append(f"{curve.name}: {missing} of {len(curve.x)} points ({why})")
    return said


def ticks(low: float, high: float, log: bool = False) -> list[float]:
    """Round numbers, at least two, of which the first is at most `low` and the last at least `high`."""
    assert -LARGEST <= low <= high <= LARGEST and (low > 0 or not log)
    if log and high / low > 2.5:  # below that the round numbers of a linear axis serve better, and are positive
        return _log_ticks(low, high)
    size = max(abs(low), abs(high))
    if high - low <= max(1e-9 * size, 1e-90):  # one value: put it in the middle
        pad = size / 10 if log or size > 1e-80 else 1.0
        low, high = low - pad, high + pad
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice >= rough * (1 - 1e-9))
    digits = 2 - math.floor(math.log10(step))  # 0.30000000000000004 is 0.3
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    first -= round(first * step, digits) > low  # the 1e-9 spares a tick beyond 0.3 / 0.1 = 2.9999999999999996
    last += round(last * step, digits) < high
    return [round(k * step, digits) for k in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """The coarsest of 1, 1-2-5 and 1-2-3-...-9 that has at least four ticks; many decades are thinned."""
    first, last = math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1
    for mantissas in ((1,), (1, 2, 5), (1, 2, 3, 4, 5, 6, 7, 8, 9)):
        stride = 1 + (last - first) // 10 if mantissas == (1,) else 1
        every = [float(f"{m}e{power}") for power in range(first, last + stride, stride) for m in mantissas]
        start = max(i for i, tick in enumerate(every) if tick <= low)
        end = min(i for i, tick in enumerate(every) if tick >= high)
        if end - start >= 3:
            break
    return every[start : end + 1]


def label(value: float, axis: list[float]) -> str:
    """A tick in few letters: 0.25, 40, 10k, 2.5M, 1e-06."""
    largest = max(abs(axis[0]), abs(axis[-1]))
    if value == 0:
        return "0"
    if largest >= 1e15 or largest < 1e-3 or abs(value) < 1e-5:
        return f"{value:.3g}"
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size and largest >= 1e4:
            return f"{round(value / size, 6):g}{unit}"
    return f"{round(value, 9):.10g}"


def _runs(plot: Plot, curve: Curve) -> Runs:
    """The points (x, y, error) that can be drawn, in pieces between those that cannot."""
    errors = curve.error or [0.0] * len(curve.x)
    runs: Runs = [[]]
    for x, y, error in zip(curve.x, curve.y, errors, strict=True):
        if _drawable(x, plot.log_x) and _drawable(y, plot.log_y):
            runs[-1].append((x, y, error if 0 < error < LARGEST / 2 else 0.0))
        else:
            runs.append([])
    return [run for run in runs if run]


def _drawable(value: float, log: bool) -> bool:
    return (1 / LARGEST if log else -LARGEST / 2) < value < LARGEST / 2  # false for NaN


def svg(plot: Plot, scatter: bool = False) -> str:
    """The whole picture; `scatter`: points that no line joins, on a square with two equal axes and their diagonal."""
    curves = [(i, curve, runs) for i, curve in enumerate(plot.curves) if (runs := _runs(plot, curve))]
    width = SQUARE if scatter else WIDTH
    legend, rows = _legend([(i, curve.name) for i, curve, _ in curves], width, scatter)
    said = left_out(plot)
    top = 44 + ROW * rows
    bottom = HEIGHT - BOTTOM + ROW * max(0, rows - 2)  # a long legend makes the picture higher, not the plane lower
    if scatter:
        bottom = top + width - RIGHT - LEFT
    height = bottom + BOTTOM + 15 * len(said) + 4 * bool(said)
    notes = [
        _text(LEFT, bottom + BOTTOM + 4 + 15 * i, _short(f"left out: {line}", 105), 'class="note"')
        for i, line in enumerate(said)
    ]
    head = _card(plot.title, width, height, LEFT)
    if not curves:
        middle = _text(width / 2, (top + bottom) / 2, "nothing to draw", 'class="note" text-anchor="middle"')
        return "\n".join([*head, middle, *notes, "</svg>\n"])
    points = [point for _, _, runs in curves for run in runs for point in run]
    reach = [v for _, y, error in points for v in (y - error, y, y + error) if v > 0 or not plot.log_y]
    xs = [x for x, _, _ in points]
    if scatter:
        xs = reach = [*xs, *reach]
    across = Axis(ticks(min(xs), max(xs), plot.log_x), plot.log_x, LEFT, width - RIGHT)
    up = Axis(ticks(min(reach), max(reach), plot.log_y), plot.log_y, bottom, top)
    if scatter:
        cross = f"M{LEFT} {_n(up.start)}L{_n(across.end)} {_n(up.end)}"
        drawn = [f'<path class="diagonal" d="{cross}" stroke="#57606a" stroke-dasharray="5 4"/>']
        drawn += [_cloud(i, curve, runs, across, up) for i, curve, runs in curves]
    else:
        drawn = [_curve(i, curve, runs, across, up) for i, curve, runs in curves]
    return "\n".join([*head, *legend, *_frame(plot, across, up), *drawn, *notes, "</svg>\n"])


def _frame(plot: Plot, across: Axis, up: Axis) -> list[str]:
    lines = []
    for value in up.ticks:
        y = _n(up(value))
        lines.append(f'<path d="M{LEFT} {y}H{_n(across.end)}" stroke="#e4e8ec"/>')
        lines.append(_text(LEFT - 8, up(value) + 4, label(value, up.ticks), 'class="tick" text-anchor="end"'))
    for value in across.ticks:
        x = _n(across(value))
        lines.append(f'<path d="M{x} {_n(up.end)}V{_n(up.start)}" stroke="#e4e8ec"/>')
        lines.append(
            _text(across(value), up.start + 18, label(value, across.ticks), 'class="tick" text-anchor="middle"')
        )
    lines.append(f'<path d="M{LEFT} {_n(up.end)}V{_n(up.start)}H{_n(across.end)}" fill="none" stroke="#57606a"/>')
    lines.append(
        _text((across.start + across.end) / 2, up.start + 40, _short(plot.x_label, 85), 'text-anchor="middle"')
    )
    middle = (up.start + up.end) / 2
    turn = f'text-anchor="middle" transform="rotate(-90 20 {_n(middle)})"'
    return [*lines, _text(20, middle, _short(plot.y_label, 44), turn)]


def _cloud(i: int, curve: Curve, runs: Runs, across: Axis, up: Axis) -> str:
    """One group with one path of round ends: a small file also with 65,536 points."""
    dots = "".join(f"M{_n(across(x))} {_n(up(y))}h0" for run in runs for x, y, _ in run)
    style = f'fill="none" stroke="{COLOURS[i % len(COLOURS)]}" stroke-width="3.2" stroke-linecap="round"'
    title = f"<title>{_safe(curve.name)}</title>"
    return f'<g class="curve">{title}<path d="{dots}" {style} stroke-opacity="0.45"/></g>'


def _curve(i: int, curve: Curve, runs: Runs, across: Axis, up: Axis) -> str:
    """One group: error bars, line, points; its title is what a browser shows under the pointer."""
    colour = COLOURS[i % len(COLOURS)]
    parts = [f'<g class="curve" stroke="{colour}" fill="{colour}"><title>{_safe(curve.name)}</title>']
    for run in runs:
        for x, y, error in run:
            if error:
                low = y - error if y > error or not up.log else up.ticks[0]
                ends = f"{_n(up(low))}V{_n(up(y + error))}"
                caps = f"M{_n(across(x) - 3)} {_n(up(low))}h6M{_n(across(x) - 3)} {_n(up(y + error))}h6"
                parts.append(f'<path class="error" d="M{_n(across(x))} {ends}{caps}" fill="none" stroke-width="1.2"/>')
        path = " ".join(f"{_n(across(x))},{_n(up(y))}" for x, y, _ in run)
        dash = DASHES[i // len(COLOURS) % len(DASHES)]
        parts.append(f'<polyline points="{path}" fill="none" stroke-width="1.8" stroke-linejoin="round"{dash}/>')
        stride = 1 if len(curve.x) <= MOST_MARKED else -(-len(curve.x) // MARKS)
        parts += [SHAPES[i % len(SHAPES)].format(x=_n(across(x)), y=_n(up(y))) for x, y, _ in run[::stride]]
    return "\n".join([*parts, "</g>"])


def _legend(names: list[tuple[int, str]], right: int, scatter: bool) -> tuple[list[str], int]:
    """Names above the plane, from left to right, and the number of lines they take."""
    parts, x, row = [], float(LEFT), 0
    for i, name in names:
        shown = _short(name, 80)
        width = 34 + LETTER * len(shown) + 14
        if x > LEFT and x + width > right - RIGHT + 14:
            x, row = float(LEFT), row + 1
        y = 47 + ROW * row
        colour, dash = COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)]
        mark = SHAPES[i % len(SHAPES)].format(x=_n(x + 13), y=y)
        line = "" if scatter else f'<path d="M{_n(x)} {y}h26" fill="none" stroke-width="1.8"{dash}/>'
        mark = f'<circle cx="{_n(x + 13)}" cy="{y}" r="3.2"/>' if scatter else mark
        parts.append(f'<g stroke="{colour}" fill="{colour}">{line}{mark}</g>{_text(x + 33, y + 4, shown)}')
        x += width
    return parts, row + 1 if names else 0


# -- effects ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EffectBar:
    """A line of a forest plot: a value with its interval, beside that of a reference; None where there is none."""

    name: str
    value: float
    low: float | None
    high: float | None
    reference: float | None = None
    kind: str = ""  # a key of `kinds`


@dataclass(frozen=True)
class Forest:
    """Effects below each other on one axis, in groups with headings; beyond `unit` the axis is logarithmic."""

    name: str
    title: str
    x_label: str
    groups: dict[str, list[EffectBar]]
    kinds: dict[str, str]  # colours of values, by what the legend calls them
    reference: str  # what the legend calls the reference
    unit: float = 1.0


NAMES, LINE, FOREST = 392, 19, 960  # width of the names, height of a line, width of the picture


def forest_svg(forest: Forest) -> str:
    """The whole picture: filled marks with intervals, hollow diamonds for the reference, a line at 0."""
    bars = [bar for group in forest.groups.values() for bar in group]
    reach = [
        abs(value)
        for bar in bars
        for value in (bar.value, bar.low, bar.high, bar.reference)
        if value is not None and math.isfinite(value)
    ]
    steps = [forest.unit * power * one for power in (1, 10, 100, 1000, 10_000) for one in (1, 3)]
    largest = next((step for step in steps if step >= max(reach, default=0.0)), steps[-1])
    marks = [step for step in steps if step <= largest]
    top = 82
    bottom = top + LINE * (len(bars) + len(forest.groups)) + 8
    height = bottom + 50

    def across(value: float) -> float:
        share = math.asinh(max(-largest, min(largest, value)) / forest.unit) / math.asinh(largest / forest.unit)
        return (NAMES + FOREST - RIGHT) / 2 + share * (FOREST - RIGHT - NAMES) / 2

    lines = _card(forest.title, FOREST, height, 20)
    x = 20.0
    for kind, colour in forest.kinds.items():
        lines.append(f'<circle cx="{_n(x + 5)}" cy="46" r="4" fill="{colour}"/>{_text(x + 15, 50, kind)}')
        x += 15 + LETTER * len(kind) + 22
    lines.append(f"{_diamond(x + 5, 46)}{_text(x + 15, 50, forest.reference)}")
    for value in (*(-mark for mark in reversed(marks)), 0.0, *marks):
        stroke = "#57606a" if value == 0 else "#e4e8ec"
        lines.append(f'<path d="M{_n(across(value))} {top}V{bottom}" stroke="{stroke}"/>')
        for y in (top - 6, bottom + 17):
            lines.append(_text(across(value), y, f"{value:g}", 'class="tick" text-anchor="middle"'))
    middle = (NAMES + FOREST - RIGHT) / 2
    lines.append(_text(middle, bottom + 38, _short(forest.x_label, 85), 'text-anchor="middle"'))
    y = top + 6
    for heading, group in forest.groups.items():
        y += LINE
        lines.append(_text(20, y, _short(heading, 120), 'font-weight="600"'))
        for bar in group:
            y += LINE
            lines.append(_effect(bar, forest.kinds.get(bar.kind, COLOURS[0]), across, y))
    return "\n".join([*lines, "</svg>\n"])


def _effect(bar: EffectBar, colour: str, across: Callable[[float], float], y: float) -> str:
    parts = [f'<g class="effect"><title>{_safe(bar.name)}</title>', _text(32, y, _short(bar.name, 56))]
    middle = y - 4
    if bar.low is not None and bar.high is not None:
        ends = f"M{_n(across(bar.low))} {_n(middle)}H{_n(across(bar.high))}"
        parts.append(f'<path d="{ends}" stroke="{colour}" stroke-width="2"/>')
    if math.isfinite(bar.value):
        parts.append(f'<circle cx="{_n(across(bar.value))}" cy="{_n(middle)}" r="4" fill="{colour}"/>')
    if bar.reference is not None:
        parts.append(_diamond(across(bar.reference), middle))
    return "".join([*parts, "</g>"])


def _diamond(x: float, y: float) -> str:
    return f'<path d="M{_n(x)} {_n(y)}m0 -5l5 5l-5 5l-5 -5z" fill="none" stroke="#24292f" stroke-width="1.4"/>'


def _card(title: str, width: int, height: float, left: int) -> list[str]:
    """The beginning of a picture: a white card with its title."""
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        ' role="img" font-family="system-ui, \'Segoe UI\', Helvetica, Arial, sans-serif" font-size="12">',
        f"<title>{_safe(title)}</title>",
        "<style>text{fill:#24292f} .note{fill:#6a737d;font-size:11px} .tick{fill:#57606a}</style>",
        f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6" fill="#ffffff" stroke="#d0d7de"/>',
        _text(left, 27, _short(title, 76), 'font-size="15" font-weight="600"'),
    ]


def _text(x: float, y: float, words: str, attributes: str = "") -> str:
    return f'<text x="{_n(x)}" y="{_n(y)}"{attributes and " " + attributes}>{_safe(words)}</text>'


def _safe(words: str) -> str:
    """Text for XML: escaped, and without the control letters that XML has no way to hold."""
    return escape(NOT_XML.sub("\ufffd", words))


def _short(words: str, most: int) -> str:
    return words if len(words) <= most else words[: most - 1] + "…"


def _n(value: float) -> str:
    """A coordinate: two decimals, without zeros at the end and without a negative zero."""
    return f"{round(value, 2) + 0.0:g}"
