"""A trace as a page that people can look at: one self-contained HTML file that loads nothing."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from importlib.resources import files
from pathlib import Path

from ...files import write_text
from ...sampling.trace import Trace

TITLE = "Masks become words"
SCRIPTS = ("player.js", "board.js", "transport.js", "replay.js")


def write_html(trace: Trace, path: str | Path, title: str | None = None) -> None:
    """Write the replay of a trace as one HTML file; any browser opens it, even offline."""
    write_text(path, render(trace, title))


def render(trace: Trace, title: str | None = None) -> str:
    """The replay as HTML; `title` defaults to the name of the model."""
    data = trace.to_json()
    parts = {
        "title": html.escape(title or str(data["protocol"].get("model") or TITLE)),
        "data": data_block(data),
        "texts": "".join(f"<pre>{html.escape(sequence['text'])}</pre>" for sequence in data["sequences"]),
    }
    # In one pass: a text that contains {{script}} stays text.
    page = re.sub(r"\{\{(title|data|texts)\}\}", lambda name: parts[name[1]], shell())
    return page.encode("utf-8", "replace").decode()  # a lone surrogate in a text has no UTF-8


def shell() -> str:
    """The replay with its style, script and policy; only {{title}}, {{data}} and {{texts}} are left to fill in.

    The live page of `unmask serve` fills them in in the browser.
    """
    style, script = asset("replay.css"), "".join(map(asset, SCRIPTS))
    parts = {"policy": policy(style, script), "style": style, "script": script, "transport": asset("transport.html")}
    return re.sub(r"\{\{(policy|style|script|transport)\}\}", lambda name: parts[name[1]], asset("replay.html"))


def data_block(data: object) -> str:
    """JSON for a script element: no text in it can end the element or begin a comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)  # ASCII only
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def policy(style: str, script: str) -> str:
    """The content security policy: this style and this script, and nothing else from anywhere."""
    return (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def asset(name: str) -> str:
    """One of the files that the page is made of."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
