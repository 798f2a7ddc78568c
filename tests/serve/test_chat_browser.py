"""The chat tab of the live page in a real browser. Truth: what the library answers offline with the same seeds."""

from __future__ import annotations

from typing import Any

import pytest

import unmask
from support.browser import CHROMIUM, axe_findings, choose, until
from support.serving import HeldNetwork, ar_lm, chat_lm
from unmask.data.chat import ChatTemplate

pytest.importorskip("playwright.sync_api", reason="playwright is not installed: the page is not opened")
pytest.importorskip("starlette", reason="starlette is not installed: there is no server")
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no chromium is installed: the page is not opened")
HTML = '<img src=x onerror="window.hacked=1"><b>bold</b>'
QUICK = "#mode=chat&model=story&length=24&steps=6&seed=3&block=24"

WATCH = """() => {  // the most that was ever there: an answer may be written before anyone looks
    window.seen = { lit: 0, tokens: 0 };
    const look = (name, selector) => { seen[name] = Math.max(seen[name], document.querySelectorAll(selector).length); };
    new MutationObserver(() => { look('lit', '.turn .k.m.w'); look('tokens', '.turn .k'); })
        .observe(document.getElementById('turns'), { subtree: true, childList: true, attributes: true });
}"""


@pytest.fixture(scope="module")
def held() -> HeldNetwork:
    one = HeldNetwork()
    one.lm.chat_template = ChatTemplate.named("plain", one.lm.tokenizer)
    one.release()
    return one


@pytest.fixture(scope="module")
def lms(held) -> dict[str, Any]:
    tiny = unmask.load("tiny-en")
    tiny.chat_template = ChatTemplate.named("plain", tiny.tokenizer)
    return {"story": tiny, "mute": ar_lm(), "left": chat_lm("ar"), "held": held.lm}


def ask(page: Any, text: str, wait: bool = True) -> None:
    page.fill("#message", text)
    page.press("#message", "Enter")
    if wait:
        until(page, "!document.body.classList.contains('busy')")


def turns(page: Any) -> list[tuple[str, str]]:
    """Who said what, as it stands on the page."""
    found = page.locator(".turn:not(.dropped)").evaluate_all(
        "all => all.map((one) => [one.classList[1], one.querySelector('.said').textContent])"
    )
    return [(role, text) for role, text in found]


def test_a_conversation(open_page, lms, artefacts):
    page, lm = open_page(QUICK, unfold=False), lms["story"]
    how = {"max_tokens": 24, "steps": 6, "block": 24}
    page.evaluate(WATCH)
    ask(page, "Who is Lily?", wait=False)
    page.wait_for_selector(".turn.assistant")
    page.screenshot(path=artefacts / "chat.png")
    until(page, "!document.body.classList.contains('busy')")
    assert page.evaluate("seen.lit") > 0  # the block that is written is lit
    assert page.evaluate("seen.tokens") == 24  # of the answer only
    messages = [{"role": "user", "content": "Who is Lily?"}]
    first = lm.chat(messages, seed=3, **how)[0]
    ask(page, "And then?")
    messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "And then?"}]
    second = lm.chat(messages, seed=4, **how)[0]
    assert turns(page) == [("user", "Who is Lily?"), ("assistant", first), ("user", "And then?"), ("assistant", second)]
    assert page.locator(".turn .k").count() == 0 and "network call" in page.inner_text(".turn.assistant .note >> nth=0")
    assert page.evaluate("document.activeElement.id") == "message"  # one can go on typing
    page.evaluate("seen.tokens = 0")
    page.click(".again >> nth=0")
    until(page, "!document.querySelector('.again').disabled")
    assert page.evaluate("seen.tokens") == 24 and turns(page)[1] == ("assistant", first)
    page.click("#renew")
    assert turns(page) == [] and page.evaluate("document.activeElement.id") == "message"
    ask(page, "Who is Lily?")
    assert turns(page)[1] == ("assistant", lm.chat(messages[:1], seed=5, **how)[0])


def test_a_system_message_goes_first(open_page, lms):
    page = open_page(QUICK)
    page.click(".ask summary")
    page.fill("#system", "You are a dog.")
    ask(page, "Hi")
    messages = [{"role": "system", "content": "You are a dog."}, {"role": "user", "content": "Hi"}]
    assert turns(page)[1][1] == lms["story"].chat(messages, max_tokens=24, steps=6, block=24, seed=3)[0]


def test_only_models_with_a_template_chat(open_page):
    page = open_page("#mode=chat&model=mute")
    assert page.is_hidden("#chatBox") and page.evaluate("document.body.dataset.mode") == "write"
    page.select_option("#a-model", "left")
    assert page.is_visible("#chatBox")
    choose(page, "mode", "chat")
    assert page.is_visible("#message") and page.is_hidden("#run") and page.is_hidden("#stage")
    assert page.inner_text(".field-length span") == "Answer tokens" and page.is_hidden(".field-n")
    page.select_option("#a-model", "mute")
    assert page.evaluate("document.body.dataset.mode") == "write" and page.is_hidden("#message")
    assert page.inner_text(".field-length span") == "Length"


def test_an_answer_can_be_stopped(open_page, held):
    """By the button and with Escape; what was stopped is not part of the conversation, and can be sent again."""
    page = open_page("#mode=chat&model=held&length=8&steps=4&seed=1")
    for stop in ("button", "key"):
        held.hold()
        ask(page, "Hello", wait=False)
        until(page, "document.body.classList.contains('busy') && !document.getElementById('hush').hidden")
        page.press("#message", "Enter")  # one at a time
        if stop == "button":
            page.click("#hush")
        else:
            page.press("#message", "Escape")
        until(page, "!document.body.classList.contains('busy')")
        held.release()
        assert turns(page) == [] and page.input_value("#message") == "Hello"
        assert page.evaluate("document.activeElement.id") == "message" and page.is_hidden("#hush")
    page.press("#message", "Enter")
    until(page, "document.querySelectorAll('.turn:not(.dropped)').length === 2")
    until(page, "!document.body.classList.contains('busy')")
    expected = held.lm.chat([{"role": "user", "content": "Hello"}], max_tokens=8, steps=4, seed=1)[0]
    assert turns(page)[1][1] == expected


def test_a_new_conversation_forgets_the_answer_under_way(open_page, held):
    page = open_page("#mode=chat&model=held&length=8&steps=4&seed=1")
    held.hold()
    ask(page, "Hello", wait=False)
    until(page, "!document.getElementById('hush').hidden")
    page.click("#renew")
    until(page, "!document.body.classList.contains('busy')")
    held.release()
    assert page.locator(".turn").count() == 0 and page.input_value("#message") == ""
    ask(page, "Hi")
    expected = held.lm.chat([{"role": "user", "content": "Hi"}], max_tokens=8, steps=4, seed=1)[0]
    assert turns(page) == [("user", "Hi"), ("assistant", expected)]


def test_what_is_wrong_is_said(open_page):
    page = open_page("#mode=chat&model=left&length=20")
    ask(page, "x" * 200)
    assert "the conversation has" in page.inner_text("#error") and turns(page) == []
    assert page.input_value("#message") == "x" * 200
    ask(page, "Hello")
    assert page.is_hidden("#error") and len(turns(page)) == 2
    open_page.wrong[:] = [one for one in open_page.wrong if "400" not in one]  # the browser's own line of a refusal


def test_text_is_never_html(open_page):
    page = open_page(QUICK)
    ask(page, HTML)
    assert turns(page)[0] == ("user", HTML) and not page.evaluate("window.hacked")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_accessible_and_fits_a_phone(open_page, scheme, artefacts):
    page = open_page(QUICK, unfold=False, color_scheme=scheme, viewport={"width": 360, "height": 640})
    assert not axe_findings(page)
    ask(page, "Tell me a story.")
    ask(page, "And then, what did the little dog do when all of them came home?")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    box = page.locator("#message").bounding_box()
    assert box["y"] + box["height"] <= 640  # the field stays in sight
    assert not axe_findings(page)
    page.screenshot(path=artefacts / f"chat-phone-{scheme}.png")


def test_it_can_be_used_without_a_mouse(open_page):
    page = open_page(QUICK, unfold=False)
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("/")
    page.keyboard.type("Hello")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("there")
    page.keyboard.press("Enter")
    until(page, "document.querySelectorAll('.again').length === 1")
    assert turns(page)[0] == ("user", "Hello\nthere")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.classList.contains('again')")
    assert page.text_content("#live") == turns(page)[1][1]  # what those hear who cannot see it


def test_a_text_that_ends_early_is_all_written(open_page, lms):
    """Masks after its end vanish, forwards and backwards."""
    how = {"prompt": "They went home. The end.", "length": 200, "steps": 40, "block": 200}

    def calls(seed: int, stop: bool) -> int:
        (sample,) = lms["story"].write_samples(1, seed=seed, stop_at_eos=stop, **how)
        return sample.network_calls

    seed = next(
        seed for seed in range(20) if calls(seed, True) < calls(seed, False)
    )  # its end comes before the last step
    page = open_page(f"#mode=write&model=story&length=200&steps=40&seed={seed}&block=200")
    page.select_option("#a-stop_at_eos", "true")
    page.fill("#prompt", how["prompt"])
    page.click("#run")
    until(page, "!document.body.classList.contains('busy')")
    page.click("#last")
    until(page, "document.getElementById('status').textContent.includes('all written')")
    assert page.locator("#stage .k.m").count() == 0 and page.locator("#stage .k.x").count() > 0
    page.click("#back")
    assert "left" in page.inner_text("#status") and page.locator("#stage .k.m").count() > 0
    page.click("#next")
    assert "all written" in page.inner_text("#status") and page.locator("#stage .k.m").count() == 0
