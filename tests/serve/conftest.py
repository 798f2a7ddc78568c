"""The live page of a server with the models of a test module (its fixture `lms`), in a browser."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.browser import CHROMIUM, FLAGS, Tabs, serving


@pytest.fixture(scope="module")
def address(lms) -> Iterator[str]:
    from unmask.serve.app import make_app

    with serving(lms, make_app) as there:
        yield there


@pytest.fixture(scope="module")
def play() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as one:
        yield one


@pytest.fixture(scope="module")
def browser(play) -> Iterator[Any]:
    opened = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def artefacts(tmp_path_factory) -> Path:
    folder = Path(os.environ.get("UNMASK_ARTEFACTS") or tmp_path_factory.mktemp("page"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def tabs(browser, address) -> Iterator[Tabs]:
    opened = Tabs(browser, address)
    yield opened
    opened.window.close()


@pytest.fixture
def open_page(browser, tabs, address):
    """Opens the page; whatever it complains about, or fetches from elsewhere, fails the test."""
    used, contexts = [], []
    tabs.wrong.clear()

    def open_(hash: str = "#mode=write", unfold: bool = True, **how: Any) -> Any:
        if how:
            contexts.append(browser.new_context(**how))
            page = tabs.make(contexts[-1])
        else:
            page = tabs.idle.pop() if tabs.idle else tabs.make(tabs.window)
            used.append(page)
        page.goto(address + hash)
        page.wait_for_selector("body.ready")
        if unfold:
            page.evaluate("document.getElementById('settings').open = true")
        return page

    open_.wrong = tabs.wrong
    yield open_
    for context in contexts:
        context.close()
    for page in used:
        page.goto("about:blank")
    tabs.idle += used
    assert not tabs.wrong
