"""Shared by the tests of the live page: chromium, driven by playwright, against a real server on a free port."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def serving(lms: dict[str, Any], app: Any) -> Iterator[str]:
    """A real server on a free port of this machine."""
    from unmask.serve.engine import Engine
    from unmask.serve.limits import Limits
    from unmask.serve.server import Server, bind

    engine = Engine(lms, Limits())
    sock = bind("127.0.0.1", 0)
    server = Server(app(engine), engine)
    thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{sock.getsockname()[1]}/"
    server.should_exit = True
    thread.join(30)
    sock.close()


class Tabs:
    """Tabs of one window that are used again: the page keeps nothing, and opening a tab costs more than the page."""

    def __init__(self, browser: Any, address: str) -> None:
        self.browser, self.address = browser, address
        self.window = browser.new_context(viewport={"width": 1180, "height": 860})
        self.idle: list[Any] = []
        self.wrong: list[str] = []  # what pages complain about, or fetch from elsewhere

    def make(self, context: Any) -> Any:
        page, wrong = context.new_page(), self.wrong
        allowed = (self.address, "blob:", "about:")
        page.set_default_timeout(20_000)
        page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda asked: wrong.append(asked.url) if not asked.url.startswith(allowed) else None)
        return page


def until(page: Any, true: str) -> None:
    """Wait for a condition; playwright's own way of it needs `eval`, which the page's policy forbids."""
    end = time.monotonic() + 20
    while not page.evaluate(true):
        assert time.monotonic() < end, true
        page.wait_for_timeout(25)


def choose(page: Any, name: str, value: str) -> None:
    page.check(f"[name={name}][value={value}]")


def axe_findings(page: Any) -> list[str]:
    """What axe-core finds wrong, once nothing moves any more."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core is not installed")
    page.wait_for_timeout(500)
    found = axe.Axe().run(page).response["violations"]
    return [f"{one['id']}: {node['html'][:120]}" for one in found for node in one["nodes"]]
