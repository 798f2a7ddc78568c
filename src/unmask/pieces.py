"""Tokens side by side as a reader sees them: bytes that together are a character, and coloured text for notebooks."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

BYTES = re.compile("⟨((?:[89a-f][0-9a-f] )*[89a-f][0-9a-f])⟩")  # a part of a UTF-8 character in the text of a token
STYLE = """<style>
.unmask-text {white-space: pre-wrap; line-height: 1.7; overflow-wrap: anywhere}
.unmask-text b {font-weight: 600}
.unmask-text span {border-radius: 2px; animation: unmask .4s both}
@keyframes unmask {from {color: transparent; background: #8886}}
@media (prefers-reduced-motion: reduce) {.unmask-text span {animation: none}}
</style>"""
SECONDS = 4.0  # that the unmasking takes


def characters(pieces: Sequence[str | None]) -> list[str]:
    """What to show for each of these tokens in a row; None is a mask, and shown as nothing.

    A character whose bytes are all there is shown in place of its first byte, and its other bytes are not shown. Bytes
    of a character that is not complete stay as they are, ⟨e2 82⟩.
    """
    units: list[tuple[int, str | int]] = []  # (token, text or byte)
    for token, piece in enumerate(pieces):
        if piece is None:
            units.append((token, ""))
            continue
        for i, part in enumerate(BYTES.split(piece)):
            units += [(token, byte) for byte in bytes.fromhex(part)] if i % 2 else [(token, part)] * bool(part)
    shown: list[list[str | int]] = [[] for _ in pieces]
    at = 0
    while at < len(units):
        token, unit = units[at]
        size = 1
        if isinstance(unit, int):
            size = 2 if unit < 0xE0 else 3 if unit < 0xF0 else 4
            run = [value for _, value in units[at : at + size] if isinstance(value, int)]
            try:
                unit = bytes(run).decode()
            except UnicodeDecodeError:
                size = 1
        shown[token].append(unit)
        at += size
    return ["".join(_written(parts)) for parts in shown]


def _written(parts: Sequence[str | int]) -> list[str]:
    """Text and bytes that are left over, neighbours together."""
    out: list[str] = []
    for i, part in enumerate(parts):
        if isinstance(part, str):
            out.append(part)
        elif i and isinstance(parts[i - 1], int):
            out[-1] = f"{out[-1][:-1]} {part:02x}⟩"
        else:
            out.append(f"⟨{part:02x}⟩")
    return out


def unmasking(pieces: Sequence[str], steps: Sequence[int | None], probs: Sequence[float | None]) -> str:
    """Text as HTML in which each token appears in its turn, coloured by how sure the network was; None: given."""
    last = max((step for step in steps if step is not None), default=0) or 1
    parts = [STYLE, '<div class="unmask-text">']
    for piece, step, prob in zip(characters(pieces), steps, probs, strict=True):
        text = html.escape(piece)
        if step is None or prob is None:
            parts.append(f"<b>{text}</b>")
        elif text:
            style = f"background: hsl({round(120 * prob)} 70% 50% / .18); animation-delay: {step / last * SECONDS:.2f}s"
            parts.append(f'<span style="{style}" title="step {step + 1}, probability {prob:.3g}">{text}</span>')
    return "".join([*parts, "</div>"])


def surprise(pieces: Sequence[str], nats: Sequence[float]) -> str:
    """Text as HTML, coloured by the bound of each token: green is expected, red is a surprise."""
    parts = [STYLE, '<div class="unmask-text">']
    for piece, value in zip(characters(pieces), nats, strict=True):
        style = f"background: hsl({round(120 * 2.0 ** (-max(value, 0.0) / 2))} 70% 50% / .18); animation: none"
        parts.append(f'<span style="{style}" title="{value:.2f} nats">{html.escape(piece)}</span>')
    return "".join([*parts, "</div>"])
