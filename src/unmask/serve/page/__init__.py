"""The files of the live page, for `GET /` and `GET /page/NAME`. Plain files; nothing is loaded from the internet."""

from __future__ import annotations

from importlib.resources import files
from typing import NamedTuple

from ..replay import SCRIPTS, asset, shell

FILES = (
    "index.html",
    "page.css",
    "page.js",
    "stream.js",
    "settings.js",
    "editor.js",
    "stage.js",
    "score.js",
    "chat.js",
    "chat.css",
    "export.js",
    "film.js",
    "gif.js",
    "rewriting.js",
    "icon.svg",
)
MEDIA = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}


class Asset(NamedTuple):
    """A file and its media type."""

    body: bytes
    media: str


def assets() -> dict[str, Asset]:
    """All files by name. The player of the replay is shared: its parts come from `unmask.serve.replay`."""
    texts = {name: files(__package__).joinpath(name).read_text(encoding="utf-8") for name in FILES}
    texts["index.html"] = texts["index.html"].replace("{{transport}}", asset("transport.html"))
    texts |= {name: asset(name) for name in ("replay.css", *SCRIPTS[:-1])}
    texts["replay.txt"] = shell()  # the page fills it with a trace, for people to keep
    return {name: Asset(text.encode(), MEDIA[name.rpartition(".")[2]]) for name, text in texts.items()}
