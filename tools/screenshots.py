"""The pictures of the live page in the README and in docs/page.md. Needs chromium and playwright.

python tools/screenshots.py http://127.0.0.1:8000/ docs/images         (a server with tiny-en)
python tools/screenshots.py http://127.0.0.1:8000/ docs/images chat    (one with a model that chats, as smollm2)
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from playwright.sync_api import sync_playwright

LIGHT: dict[str, Any] = {}  # the page as it opens
DARK = {
    "mode": "write", "text": "Once upon a time, there was", "length": 64, "steps": 16, "seed": 3, "compare": 1,
    "block": 16, "b.block": 1,
}  # fmt: skip
CHAT = {"mode": "chat", "length": 96, "temperature": 0}


def stopped_at(browser: Any, address: str, link: dict[str, Any], step: int, height: int, scheme: str) -> Any:
    """The page after a run, at one of its steps."""
    context = browser.new_context(viewport={"width": 1040, "height": height}, color_scheme=scheme)
    page = context.new_page()
    page.goto(f"{address}#{urlencode(link)}" if link else address)
    page.wait_for_selector("body.ready")
    page.click("#run")
    while page.evaluate("document.body.classList.contains('busy')"):
        page.wait_for_timeout(50)
    page.click("#last")
    page.click("#first")
    for _ in range(step):
        page.click("#next")
    page.mouse.move(5, 5)
    page.evaluate("scrollTo(0, 0); document.activeElement.blur()")
    page.wait_for_timeout(800)  # until nothing moves
    return page


def talk(browser: Any, address: str, messages: list[str]) -> Any:
    """The page after a conversation."""
    page = browser.new_context(viewport={"width": 1040, "height": 780}, color_scheme="light").new_page()
    page.goto(f"{address}#{urlencode(CHAT)}")
    page.wait_for_selector("body.ready")
    for text in messages:
        page.fill("#message", text)
        page.press("#message", "Enter")
        page.wait_for_selector("body.busy")
        page.wait_for_selector("body:not(.busy)", timeout=300_000)
    page.wait_for_timeout(800)
    return page


def main(address: str, folder: str, which: str = "write") -> None:
    """Take the two of writing, or that of a chat."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--headless=new", "--no-sandbox"])
        if which == "chat":
            page = talk(browser, address, ["What is the capital of France?", "Name one thing to see there."])
            page.screenshot(path=Path(folder) / "page-chat.png")
        else:
            page = stopped_at(browser, address, LIGHT, 3, 780, "light")
            page.locator("#stage .k:not(.g, .m)").first.hover()
            page.screenshot(path=Path(folder) / "page-light.png")
            page = stopped_at(browser, address, DARK, 29, 860, "dark")
            page.screenshot(path=Path(folder) / "page-dark.png")
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
