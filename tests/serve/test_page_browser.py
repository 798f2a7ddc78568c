"""The live page in a real browser: Debian's chromium, driven by playwright, against a real server on a free port.

Truths: what the library writes offline with the same seed, what `Trace.load` accepts, and what a person would see.
Screenshots go to $UNMASK_ARTEFACTS, or to pytest's folder.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import unmask
from support.browser import CHROMIUM, FLAGS, axe_findings, choose, serving, until
from support.dna_models import dna_lm
from support.helpers import random_lm, tiny_config
from unmask.data.tokenization import bytes_tokenizer
from unmask.lm import LM
from unmask.models import registry
from unmask.sampling.trace import Trace

pytest.importorskip("playwright.sync_api", reason="playwright is not installed: the page is not opened")
pytest.importorskip("starlette", reason="starlette is not installed: there is no server")
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no chromium is installed: the page is not opened")
HTML = '<img src=x onerror="window.hacked=1"><b>bold</b> <script>window.hacked=1</script> {{data}} </script>'


@pytest.fixture(scope="module")
def lms() -> dict[str, Any]:
    tiny = unmask.load("tiny-en")
    ar = random_lm(tiny.tokenizer, "model.method=ar", "data.length=24")
    config, generator = tiny_config("data.length=16", "data.layout=pad", "data.label=kind"), torch.Generator()
    labelled = LM(registry.model(config, tiny.tokenizer.vocab, 2).eval(), tiny.tokenizer, config, labels=["a", "b"])
    for weight in labelled.model.parameters():
        torch.nn.init.normal_(weight, std=0.2, generator=generator)
    return {
        "tiny-en": tiny,
        "left": ar,
        "bases": dna_lm(length=120),
        "labelled": labelled,
        "bytes": random_lm(bytes_tokenizer(), "data.length=48"),
        "blocks": random_lm(tiny.tokenizer, "data.length=32", "model.method=block", "block.size=8"),
    }


def finish(page: Any) -> None:
    """Wait until all is written and shown."""
    until(page, "!document.body.classList.contains('busy')")
    page.click("#last")
    until(page, "document.getElementById('status').textContent.includes('all written')")


def shown(page: Any, which: int = 0) -> str:
    """The text as it stands on a canvas, read by eye: what is hidden does not count."""
    return (
        page.locator("#stage .canvas")
        .nth(which)
        .evaluate(
            "box => [...box.querySelectorAll('.k')].map(k => k.classList.contains('m') ? '░' : k.textContent).join('')"
        )
    )


def masks(page: Any) -> int:
    return page.locator("#stage .k.m").count()


def test_generate_pause_step_and_scrub(open_page, lms, artefacts):
    page = open_page("#block=24")
    page.fill("#a-length", "24")
    page.fill("#a-steps", "12")
    page.fill("#a-seed", "5")
    page.fill("#prompt", "The old man")
    page.evaluate("document.getElementById('speed').value = '0.25'")
    page.press("#prompt", "Enter")
    page.wait_for_selector("#stage .k.m")
    page.click("#play")  # pauses: it began to play by itself
    assert page.get_attribute("#play", "aria-label") == "Play"
    left = masks(page)
    assert left > 0
    until(page, "!document.body.classList.contains('busy')")
    page.wait_for_timeout(200)
    assert masks(page) == left  # paused, whatever has come meanwhile
    page.click("#next")
    assert masks(page) < left
    page.click("#back")
    assert masks(page) == left
    page.screenshot(path=artefacts / "paused.png")
    finish(page)
    (sample,) = lms["tiny-en"].write_samples(1, prompt="The old man", length=24, steps=12, seed=5, block=24)
    assert shown(page) == sample.text  # the very text that the library writes
    assert page.locator("#stage .k.g").count() == len(lms["tiny-en"].encode("The old man"))
    page.locator("#slider").evaluate("s => { s.value = 0; s.dispatchEvent(new Event('input')); }")
    assert masks(page) == 24 - len(lms["tiny-en"].encode("The old man"))
    middle = int(page.get_attribute("#slider", "max")) // 2
    page.locator("#slider").evaluate(f"s => {{ s.value = {middle}; s.dispatchEvent(new Event('input')); }}")
    assert 0 < masks(page) < 21
    page.click("#play")  # and it plays on from there
    page.select_option("#speed", "8")
    until(page, "document.getElementById('status').textContent.includes('all written')")


def test_blocks_light_up_one_after_another(open_page, lms, artefacts):
    page = open_page("#model=blocks&length=32&steps=4&seed=2")
    assert "blocks of 8" in page.inner_text("#about") and page.locator("#a-block").count() == 1
    page.click("#run")
    finish(page)
    assert page.locator("#stage .w").count() == 0  # all written
    lit = "all => [...new Set(all.map((k) => Math.floor([...k.parentNode.children].indexOf(k) / 8)))]"
    seen = []
    for k in range(1, int(page.get_attribute("#slider", "max"))):
        page.locator("#slider").evaluate(f"s => {{ s.value = {k}; s.dispatchEvent(new Event('input')); }}")
        assert page.locator("#stage .w").count() == 8
        seen += page.locator("#stage .w").evaluate_all(lit)
        assert f"block {8 * seen[-1] + 1}–{8 * seen[-1] + 8}" in page.inner_text("#status")
    assert seen == sorted(seen) and set(seen) == {0, 1, 2, 3}
    page.locator("#slider").evaluate("s => { s.value = 2; s.dispatchEvent(new Event('input')); }")
    page.wait_for_timeout(500)  # colours fade
    colours = "all => [...new Set(all.map((k) => getComputedStyle(k).backgroundColor))]"
    grey, lively = (page.locator(f"#stage .m{which}").evaluate_all(colours) for which in (":not(.w)", ".w:not(.f)"))
    assert len(grey) == len(lively) == 1 and grey != lively
    page.screenshot(path=artefacts / "blocks.png")
    with page.expect_download() as saved:
        page.click("#saveJson")
    trace = Trace.load(saved.value.path())
    assert [event.block for event in trace.recordings[0].events][-2:] == [(24, 32), None]


def test_a_token_tells_its_probability_alternatives_and_step(open_page, artefacts):
    page = open_page("#length=16&steps=8&seed=2")
    page.click("#run")
    finish(page)
    page.locator("#stage .k.o0").first.hover()
    card = page.locator("#card")
    card.wait_for(state="visible")
    said = card.inner_text()
    assert "%" in said and "step" in said and "position" in said
    bars = [float(b.evaluate("b => b.style.getPropertyValue('--p')")) for b in card.locator(".bar").all()]
    assert 5 <= len(bars) <= 6 and bars == sorted(bars, reverse=True) and sum(bars) <= 1.001
    page.screenshot(path=artefacts / "card.png")
    page.mouse.move(2, 2)
    card.wait_for(state="hidden")


def test_order_and_confidence_are_seen_without_colour(open_page):
    page = open_page("#length=32&steps=16&seed=1")
    page.click("#run")
    finish(page)
    look = """all => [...new Set(all.map(getComputedStyle).map(
        (own) => own.textDecorationStyle + own.textDecorationThickness))]"""
    assert len(page.locator("#stage .k:not(.g)").evaluate_all(look)) >= 4  # lines of different width
    choose(page, "view", "confidence")
    kinds = page.locator("#stage .k:not(.g)").evaluate_all(
        "all => [...new Set(all.map(k => getComputedStyle(k).textDecorationStyle))]"
    )
    assert len(kinds) >= 2


def test_infill_by_selecting_words(open_page, lms, artefacts):
    page = open_page()
    choose(page, "mode", "fill")
    page.fill("#gaps", "The little dog ran to the big house.")
    page.locator("#gaps").evaluate("a => a.setSelectionRange(4, 14)")
    page.click("#makeGap")
    until(page, "document.getElementById('gaps').value === 'The {{2}} ran to the big house.'")
    assert page.locator("#backdrop .gap").count() == 1
    page.locator("#gaps").evaluate("a => { const at = a.value.indexOf('big') + 1; a.setSelectionRange(at, at); }")
    page.press("#gaps", "Control+m")  # the word at the cursor
    until(page, "document.getElementById('gaps').value === 'The {{2}} ran to the {{1}} house.'")
    page.press("#gaps", "Alt+ArrowUp")
    assert page.input_value("#gaps") == "The {{2}} ran to the {{2}} house."
    page.screenshot(path=artefacts / "editor.png")
    page.press("#gaps", "Enter")
    finish(page)
    page.screenshot(path=artefacts / "filled.png")
    (text,) = lms["tiny-en"].infill("The {{2}} ran to the {{2}} house.", seed=0)
    assert shown(page) == text and text.startswith("The ") and text.endswith(" house.")
    # And a part of what was written, again: the other words stay.
    page.locator("#stage .k:not(.g)").first.hover()
    page.keyboard.press("r")
    until(page, "document.getElementById('a-seed').value === '1'")
    finish(page)
    assert masks(page) == 0 and shown(page).startswith("The") and shown(page).endswith(" house.")
    assert page.input_value("#gaps").count("{{1}}") == 1


def test_a_gap_carries_a_pattern_and_a_dead_end_is_seen(open_page, lms, artefacts):
    page = open_page()
    choose(page, "mode", "fill")
    text = "Tom has {{1:two|three|four}} dogs and {{2}} cats. He is {{1:[0-9]{3,}}} years old."
    page.fill("#gaps", text)
    assert page.locator("#backdrop .gap").count() == 3 and page.locator("#backdrop .impossible").count() == 0
    page.press("#gaps", "Enter")
    page.wait_for_selector("#error:not([hidden])")
    assert "from position" in page.locator("#error").inner_text() and "[0-9]{3,}" in page.locator("#error").inner_text()
    assert page.locator("#backdrop .impossible").all_inner_texts() == ["{{1:[0-9]{3,}}}"]
    page.screenshot(path=artefacts / "impossible.png")
    open_page.wrong[:] = [said for said in open_page.wrong if "400" not in said]
    page.locator("#gaps").evaluate("a => { const at = a.value.indexOf('{3,}'); a.setSelectionRange(at, at); }")
    page.press("#gaps", "Alt+ArrowUp")  # longer, with its pattern
    page.press("#gaps", "Alt+ArrowUp")
    assert page.input_value("#gaps").endswith("{{3:[0-9]{3,}}} years old.")
    assert page.locator("#backdrop .impossible").count() == 0
    page.press("#gaps", "Enter")
    finish(page)
    page.screenshot(path=artefacts / "pattern.png")
    lm = lms["tiny-en"]
    (sample,) = lm.write([lm.gap_canvas(page.input_value("#gaps"))], seed=0)
    assert shown(page) == lm.tokenizer.decode(sample.ids)  # its tokens: the text keeps a typed space that they may lack
    assert re.fullmatch(r"Tom has (two|three|four) dogs and .* cats. He is [0-9]{3,} years old\.", sample.text)


def test_a_gap_has_the_tokens_that_stood_there(open_page, lms):
    page = open_page()
    choose(page, "mode", "fill")
    text = "The extraordinarily unbelievable hippopotamus {{2}} sang."
    page.fill("#gaps", text)
    start, end = text.index("extra"), text.index(" {{2}}")
    page.locator("#gaps").evaluate(f"a => a.setSelectionRange({start}, {end})")
    page.press("#gaps", "Control+m")
    encode = lms["tiny-en"].encode
    size = len(encode(text[:end])) - len(encode("The"))
    assert size > 4
    until(page, f"document.getElementById('gaps').value === 'The {{{{{size}}}}} {{{{2}}}} sang.'")
    page.keyboard.type("!")  # the cursor stands behind the gap
    assert page.input_value("#gaps") == f"The {{{{{size}}}}}! {{{{2}}}} sang."


def test_more_settings(open_page, lms, address, artefacts):
    page = open_page()
    names = ("top_k", "min_p", "k", "threshold", "eta", "stride", "label", "guidance")

    def seen() -> list[str]:
        return [name for name in names if page.locator(f"#a-{name}").is_visible()]

    assert seen() == []
    page.click("#sides .more summary >> nth=0")
    assert seen() == ["top_k", "min_p", "stride"]
    page.select_option("#a-sampler", "remask-cap")
    assert seen() == ["top_k", "min_p", "eta", "stride"]
    page.select_option("#a-sampler", "confidence")
    assert seen() == ["top_k", "min_p", "k", "threshold", "stride"]
    page.fill("#a-k", "3")
    page.press("#a-k", "Tab")
    assert page.is_disabled("#a-steps") and page.is_disabled("#a-threshold")  # one of the three
    page.fill("#a-top_k", "7")
    page.fill("#a-min_p", "0.01")
    page.fill("#a-block", "21")
    page.fill("#a-length", "21")
    page.fill("#a-seed", "5")
    page.click("#run")
    finish(page)
    how = {"sampler": "confidence", "k": 3, "top_k": 7, "min_p": 0.01, "temperature": 0.9, "top_p": 0.9, "block": 21}
    (sample,) = lms["tiny-en"].write_samples(1, length=21, seed=5, **how)
    assert shown(page) == sample.text and "7 calls" in page.locator("#status").inner_text()
    assert "top-k 7" in page.locator(".run .summary").inner_text()
    other = open_page(page.url[len(address) :])  # the link holds them, and shows them
    assert other.input_value("#a-k") == "3" and other.locator("#a-min_p").is_visible()
    other.click("#run")
    finish(other)
    assert shown(other) == sample.text
    page.screenshot(path=artefacts / "more.png")
    page.fill("#a-top_k", "0.5")  # what is wrong is shown, also where it was folded away
    page.click("#sides .more summary >> nth=0")
    page.click("#run")
    assert page.locator("#a-top_k").is_visible() and page.evaluate("document.activeElement.id") == "a-top_k"


@pytest.mark.slow
def test_labels_and_windows(open_page, lms):
    page = open_page("#model=labelled&label=b&guidance=2&steps=8&seed=3")
    assert page.locator("#a-label").is_visible() and page.input_value("#a-label") == "b"
    page.click("#run")
    finish(page)
    (sample,) = lms["labelled"].write_samples(1, length=16, steps=8, seed=3, label="b", guidance=2)
    assert shown(page) == sample.text
    page.select_option("#a-label", "")
    assert page.is_disabled("#a-guidance")
    page = open_page("#model=tiny-en&stride=64&length=160&steps=8&seed=1")
    assert page.get_attribute("#a-length", "max") == "4096"
    page.click("#run")
    finish(page)
    assert page.locator("#stage .k").count() == 160
    (sample,) = lms["tiny-en"].write_samples(1, length=160, steps=8, seed=1, stride=64)
    assert shown(page).replace("[EOS]", "\n").startswith(sample.text)  # which ends where the story does


def test_rewrite_what_the_mouse_selects(open_page):
    page = open_page("#length=16&steps=8&seed=1")
    page.click("#run")
    finish(page)
    tokens, before = page.locator("#stage .k"), page.locator("#stage .k").all_text_contents()
    first, last = tokens.nth(3).bounding_box(), tokens.nth(5).bounding_box()
    page.mouse.move(first["x"] + 1, first["y"] + first["height"] / 2)
    page.mouse.down()
    page.mouse.move(last["x"] + last["width"] - 1, last["y"] + last["height"] / 2, steps=6)
    page.mouse.up()
    assert page.locator("#rewrite").inner_text() == "Rewrite 3 tokens"
    page.click("#rewrite")
    until(page, "document.getElementById('gaps').value.includes('{{3}}')")
    finish(page)
    text = shown(page)
    assert text.startswith("".join(before[:3])) and text.endswith("".join(before[6:]))


def test_score_is_the_bound_of_the_library(open_page, lms, artefacts):
    page = open_page()
    choose(page, "mode", "score")
    text = "The cat sat on the refrigerator."
    page.fill("#scored", text)
    page.press("#scored", "Enter")
    page.wait_for_selector("#scores .k")
    found = lms["tiny-en"].score([text], method="strata").texts[0]
    assert page.locator("#scores .canvas").inner_text() == text
    figures = page.locator("#scores .figures").inner_text()
    assert f"{found.perplexity:.2f}" in figures and f"{found.nats:.1f}" in figures
    page.locator("#scores .canvas .k").nth(2).hover()
    page.locator("#card").wait_for(state="visible")
    assert f"{found.token_nats[2] / math.log(2):.2f}" in page.locator("#card").inner_text()
    worst = max(range(len(found.token_nats)), key=lambda i: found.token_nats[i])
    best = min(range(len(found.token_nats)), key=lambda i: found.token_nats[i])
    heat = page.locator("#scores .canvas .k").evaluate_all("all => all.map(k => Number(/h(\\d)/.exec(k.className)[1]))")
    assert heat[worst] == max(heat) and heat[best] == min(heat) and len(set(heat)) > 1
    page.screenshot(path=artefacts / "score.png")
    page.keyboard.press("Shift+Tab")  # and by keyboard: the skip link goes there, arrows walk, Escape leaves
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.p") == 3
    assert f"{found.token_nats[3] / math.log(2):.2f}" in page.locator("#card").inner_text()
    page.keyboard.press("Escape")
    assert not page.locator("#card").is_visible()


def test_two_settings_side_by_side_and_the_link(open_page, browser, lms, artefacts):
    page = open_page("#length=20&steps=4&seed=3&n=2")
    page.click("#compareBox")
    page.fill("#b-steps", "10")
    page.select_option("#b-sampler", "confidence")
    page.click("#run")
    finish(page)
    assert page.locator(".run").count() == 2 and page.locator("#stage .canvas").count() == 4
    a = lms["tiny-en"].write_samples(2, length=20, steps=4, seed=3)
    b = lms["tiny-en"].write_samples(2, length=20, steps=10, seed=3, sampler="confidence", exact=True)
    assert [shown(page, i) for i in range(4)] == [sample.text for sample in [*a, *b]]
    page.screenshot(path=artefacts / "compare.png")
    link = page.evaluate("location.hash")
    again = open_page(link)  # the same link, another browser: the same settings and the same texts
    assert again.input_value("#b-steps") == "10" and again.is_checked("#compare")
    again.click("#run")
    finish(again)
    assert [shown(again, i) for i in range(4)] == [shown(page, i) for i in range(4)]


def test_export(open_page, lms, tmp_path, browser, artefacts):
    page = open_page("#length=20&steps=10&seed=4")
    page.click("#run")
    finish(page)
    with page.expect_download() as taken:
        page.click("#saveJson")
    taken.value.save_as(tmp_path / "trace.json")
    trace = Trace.load(tmp_path / "trace.json")
    (sample,) = lms["tiny-en"].write_samples(1, length=20, steps=10, seed=4)
    assert trace.recordings[0].replay(trace.mask) == sample.ids and trace.recordings[0].text == sample.text
    assert trace.protocol["model"] == "tiny-en" and trace.protocol["seed"] == 4 and trace.recordings[0].done
    assert any(change.tops for event in trace.recordings[0].events for change in event.changes)
    with page.expect_download() as taken:
        page.click("#saveHtml")
    taken.value.save_as(tmp_path / "replay.html")
    context = browser.new_context(offline=True)
    replay, wrong = context.new_page(), []
    replay.on("console", lambda said: wrong.append(said.text))
    replay.on("pageerror", lambda error: wrong.append(str(error)))
    replay.goto((tmp_path / "replay.html").as_uri() + "#event=1000")
    replay.wait_for_selector("#canvas .k")
    assert replay.locator("#text").text_content() == sample.text and not wrong
    assert replay.locator("#canvas .k.m").count() == 0
    replay.screenshot(path=artefacts / "replay.png")
    context.close()


def test_html_stays_text(open_page, tmp_path, browser):
    page = open_page()
    page.fill("#a-length", "100")
    page.fill("#a-steps", "4")
    page.fill("#prompt", HTML)
    page.click("#run")
    finish(page)
    assert shown(page).startswith(HTML)
    assert page.locator("#stage img, #stage b:not(.side-name), #stage script").count() == 0
    with page.expect_download() as taken:
        page.click("#saveHtml")
    taken.value.save_as(tmp_path / "replay.html")
    choose(page, "mode", "score")
    page.fill("#scored", HTML)
    page.press("#scored", "Enter")
    page.wait_for_selector("#scores .k")
    assert page.locator("#scores img, #scores b, #scores script").count() == 0
    choose(page, "mode", "fill")
    page.fill("#gaps", HTML + " {{0}}")
    page.press("#gaps", "Enter")
    page.wait_for_selector("#error:not([hidden])")
    assert page.evaluate("window.hacked") is None
    context = browser.new_context(offline=True)
    replay = context.new_page()
    replay.goto((tmp_path / "replay.html").as_uri())
    replay.wait_for_selector("#canvas .k")
    assert replay.evaluate("window.hacked") is None and HTML in replay.locator("#text").text_content()
    context.close()
    hostile = open_page(
        "#text=%3Cimg%20src%3Dx%20onerror%3Dhacked%3D1%3E&mode=%22%3E%3Cb%3E&sampler=%3Cb%3E&view=%22%5D"
    )
    assert hostile.input_value("#prompt") == "<img src=x onerror=hacked=1>"
    assert hostile.evaluate("window.hacked") is None
    choose(page, "mode", "write")
    open_page.wrong[:] = [said for said in open_page.wrong if "400" not in said]  # the gap of no tokens was refused


def test_it_opens_with_gaps_that_the_model_fills_well(open_page, lms):
    page = open_page("", unfold=False, viewport={"width": 1366, "height": 768})
    lm = lms["tiny-en"]
    assert page.is_checked("[name=mode][value=fill]") and page.input_value("#gaps") == lm.recommended.infill
    assert not page.locator("#a-steps").is_visible()  # the settings are folded, and said in a line
    assert "recommended by the model" in page.locator("#settingsLine").inner_text()
    assert {link.get_attribute("href") for link in page.locator(".what a").all()} == {
        "/docs",
        "https://arxiv.org/abs/2406.07524",
    }
    page.click("#run")
    finish(page)
    assert shown(page) == lm.infill(lm.recommended.infill, seed=0)[0]
    page.evaluate("scrollTo(0, 0)")
    lines = page.evaluate("""(() => {
        const box = document.querySelector('#stage .canvas'), style = getComputedStyle(box);
        const top = box.getBoundingClientRect().top + parseFloat(style.paddingTop);
        return (document.getElementById('player').getBoundingClientRect().top - top) / parseFloat(style.lineHeight);
    })()""")
    assert lines >= 9


def test_the_recommended_settings_and_the_exact_law_are_one_click_apart(open_page, lms):
    page, lm = open_page("#mode=write&length=24&steps=6&seed=2"), lms["tiny-en"]
    assert page.is_checked("[name=law][value=recommended]")
    assert page.input_value("#a-temperature") == str(lm.recommended.settings["temperature"])
    assert "temperature 0.9" in page.locator(".side .advice").first.inner_text()
    page.click("#run")
    finish(page)
    recommended = shown(page)
    assert recommended == lm.write_samples(1, length=24, steps=6, seed=2)[0].text
    choose(page, "law", "exact")
    assert page.input_value("#a-temperature") == "1"
    page.click("#run")
    finish(page)
    assert shown(page) == lm.write_samples(1, length=24, steps=6, seed=2, exact=True)[0].text != recommended
    page.fill("#a-temperature", "0.3")
    assert page.is_checked("[name=law][value=custom]") and page.locator("#customBox").is_visible()
    choose(page, "law", "recommended")
    assert page.input_value("#a-temperature") == "0.9" and not page.locator("#customBox").is_visible()
    page.select_option("#a-model", "bases")  # which recommends nothing
    assert not page.locator("#lawBox").is_visible() and page.input_value("#a-temperature") == "1"
    page.select_option("#a-model", "tiny-en")
    assert page.is_checked("[name=law][value=recommended]")


@pytest.mark.parametrize("model", ["tiny-en", "bases", "left"])
def test_compare_begins_with_two_different_settings(open_page, model):
    page = open_page(f"#mode=write&model={model}", unfold=False)
    page.click("#compareBox")
    values = "all => all.filter((one) => !one.id.endsWith('-n')).map((one) => one.value)"
    a, b = (page.locator(f"[id^={side}-]").evaluate_all(values) for side in "ab")
    assert len(a) == len(b) > 5 and a != b and page.locator("#b-steps").is_visible()  # and both are seen
    line = page.locator("#settingsLine").text_content()
    assert "A: " in line and "B: " in line


def test_at_the_length_limit_the_page_says_how_to_write_more(open_page, lms):
    page = open_page("#mode=write&length=64&steps=4&seed=1")
    hint = page.locator(".side .longer").first
    assert not hint.is_visible()
    page.fill("#a-length", "256")
    page.press("#a-length", "Tab")
    assert hint.is_visible() and "stride" in hint.inner_text() and "128" in hint.inner_text()
    hint.locator("button").click()
    assert page.input_value("#a-stride") == "128" and page.input_value("#a-length") == "512" and not hint.is_visible()
    page.click("#run")
    page.locator("#stage .k").nth(256).wait_for(state="attached")  # a story may end before its row does
    choose(page, "mode", "fill")
    page.fill("#a-stride", "")
    assert not hint.is_visible()  # the text and its gaps say how long it is


def test_a_film(open_page, tmp_path, artefacts):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: the film is not read")
    page = open_page("#length=24&steps=12&seed=4")
    page.click("#run")
    finish(page)
    page.click("#first")
    with page.expect_download() as taken:
        page.click("#saveGif")
    taken.value.save_as(tmp_path / "film.gif")
    shutil.copy(tmp_path / "film.gif", artefacts / "film.gif")
    assert (tmp_path / "film.gif").stat().st_size > 5000
    with image.open(tmp_path / "film.gif") as film:
        box = page.locator("#stage").bounding_box()
        assert film.format == "GIF" and abs(film.width - box["width"] - 32) <= 1 and film.n_frames >= 6
        frames = []
        for i in range(film.n_frames):
            film.seek(i)
            frames.append(film.convert("RGB").tobytes())
    assert len(set(frames)) == len(frames)  # something happens in every one
    assert masks(page) == 24 and not page.locator("#saveGif").is_disabled()  # and the page is where it was
    until(page, "!document.body.classList.contains('recording')")


def test_streams_that_end_are_not_aborted(open_page):
    page, ends = open_page("#length=24&steps=12&block=24"), []
    page.on("requestfailed", lambda asked: ends.append(f"failed: {asked.url}"))
    page.on("requestfinished", lambda asked: ends.append("finished") if "diffusion" in asked.url else None)
    for seed in range(6):  # with Cache-Control: no-store, chromium cancelled most of them
        page.fill("#a-seed", str(seed))
        page.click("#run")
        until(page, "!document.body.classList.contains('busy')")
    page.wait_for_timeout(100)
    assert ends == ["finished"] * 6


OTHER = "Привет, 世界! 🙂"


def test_characters_of_any_script(open_page, lms, tmp_path, browser):
    """Bytes are shown until all bytes of a character are there, then the character, on the page and in the replay."""
    page = open_page(f"#model=bytes&mode=fill&steps=64&seed=3&text={OTHER}%20{{{{4}}}}")
    page.click("#run")
    finish(page)
    text = lms["bytes"].infill(OTHER + " {{4}}", steps=64, seed=3)[0]
    assert shown(page).replace("\u200a", "").startswith(OTHER) and text.startswith(OTHER)
    with page.expect_download() as taken:
        page.click("#saveHtml")
    taken.value.save_as(tmp_path / "replay.html")
    choose(page, "mode", "score")
    page.fill("#scored", OTHER)
    page.press("#scored", "Enter")
    page.wait_for_selector("#scores .k")
    assert page.locator("#scores .canvas").inner_text().replace("\u200a", "") == OTHER
    assert page.locator("#scores .canvas .k").count() == len(OTHER.encode())
    context = browser.new_context(offline=True)
    replay = context.new_page()
    replay.goto((tmp_path / "replay.html").as_uri() + "#event=1000")
    replay.wait_for_selector("#canvas .k")
    assert replay.locator("#canvas").inner_text().replace("\u200a", "").startswith(OTHER)
    context.close()


def test_a_character_appears_with_its_last_byte(browser, tmp_path):
    """A replay that writes п (two bytes), 世 (three) and a byte that is none, in an order with all kinds of halves."""
    from unmask.sampling.trace import Change, TraceEvent
    from unmask.serve.replay import write_html

    tokenizer, text = bytes_tokenizer(), "aп世".encode() + b"\xff"
    mask = tokenizer.vocab.mask
    trace = Trace(tokenizer, [torch.tensor([97] + [mask] * 6)], {})
    order, recording = [2, 4, 6, 1, 3, 5], trace.recordings[0]
    trace._meet(set(text))
    for i, p in enumerate(order):
        recording.events.append(TraceEvent(i, None, i + 1, (Change(p, text[p], 0.5),)))
    recording.text, recording.done = "aп世", True
    write_html(trace, tmp_path / "bytes.html")
    context = browser.new_context(reduced_motion="reduce")
    page = context.new_page()
    seen = []
    for k in range(7):
        page.goto("about:blank")
        page.goto((tmp_path / "bytes.html").as_uri() + f"#event={k}")
        page.wait_for_selector("#canvas .k")
        seen.append(
            page.locator("#canvas .k").evaluate_all("""all => all.map((k) => k.classList.contains('m') ? '░'
                : k.classList.contains('half') ? '▒' : k.textContent.replace('\u200a', '_'))""")
        )
    assert seen[0] == ["a", *"░░░░░░"] and seen[1] == ["a", *"░▒░░░░"]
    assert seen[3][6] == "⟨ff⟩"  # which no neighbour can complete
    assert seen[4][:5] == ["a", "п", "_", "░", "▒"] and seen[5][3:6] == ["▒", "▒", "░"]
    assert seen[6] == ["a", "п", "_", "世", "_", "_", "⟨ff⟩"]
    page.locator("#canvas .k").nth(4).click()
    assert "part of 世" in page.locator("#card").inner_text()
    context.close()


def test_phone_width_and_dark_mode(open_page, artefacts):
    page = open_page(
        "#length=48&steps=16&seed=6&stop_at_eos=false",
        viewport={"width": 360, "height": 740},
        color_scheme="dark",
        has_touch=True,
        is_mobile=True,
    )
    page.tap("#run")
    finish(page)
    page.locator("#stage .k").nth(12).tap()
    page.locator("#card").wait_for(state="visible")
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    box = page.locator("#card").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 360
    page.screenshot(path=artefacts / "phone-dark.png")
    small = page.locator("button:visible, select:visible").evaluate_all(
        "all => all.map(b => b.getBoundingClientRect().height).filter(h => h && h < 28)"
    )
    assert not small  # a finger finds them
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert sum(map(int, dark.removeprefix("rgb(").removesuffix(")").split(","))) < 150
    for mode in ("fill", "score"):
        choose(page, "mode", mode)
        assert page.evaluate("document.documentElement.scrollWidth") == 360


CONTRAST = """element => {
    const paint = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    const rgb = (text) => {
        paint.clearRect(0, 0, 1, 1);
        paint.fillStyle = text;
        paint.fillRect(0, 0, 1, 1);
        return [...paint.getImageData(0, 0, 1, 1).data];
    };
    const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const light = (text) => {
        const [r, g, b] = rgb(text).map((v) => linear(v / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    let back = element;
    while (back && rgb(getComputedStyle(back).backgroundColor)[3] < 200) back = back.parentElement;
    const colours = [getComputedStyle(element).color, getComputedStyle(back ?? document.body).backgroundColor];
    const [a, b] = colours.map(light).sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
}"""


def contrast(page: Any, selector: str) -> float:
    """The WCAG contrast of text on what is behind it."""
    return page.locator(selector).first.evaluate(CONTRAST)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read(open_page, scheme):
    page = open_page("#length=16&steps=4", color_scheme=scheme)
    page.click("#run")
    finish(page)
    choose(page, "view", "plain")
    for selector in (
        "h1",
        ".about",
        "#run",
        ".chip",
        ".hint",
        "#status b",
        ".run .summary",
        "#stage .k",
        ".field span",
    ):
        assert contrast(page, selector) >= 4.5, selector


TOKENS = """() => {
    const paint = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    const light = (...layers) => {  // painted over one another, from the back to the front
        paint.clearRect(0, 0, 1, 1);
        for (const colour of layers) { paint.fillStyle = colour; paint.fillRect(0, 0, 1, 1); }
        const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        const [r, g, b] = [...paint.getImageData(0, 0, 1, 1).data].map((v) => linear(v / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const box = document.querySelector('#stage .canvas'), found = [], seen = document.body.dataset.view;
    const [span, inner, code] = ['span', 'span', 'i'].map((tag) => document.createElement(tag));
    inner.textContent = 'word'; code.className = 'u'; code.textContent = '[EOS]';
    inner.append(code); span.append(inner); box.append(span);
    document.body.classList.add('recording');
    const names = ['k g', 'k g f', 'k', 'k f'];
    for (const i of [0, 1, 2, 3, 4, 5]) names.push(`k o${i} c${i}`, `k o${i} c${i} f`, `k o${i} c${i} f a`, `k h${i}`);
    for (const base of 'ACGTN') names.push(`k o0 c0 b${base}`, `k o0 c0 b${base} f`);
    for (const view of ['order', 'confidence', 'bases', 'plain']) {
        document.body.dataset.view = view;
        for (const name of names) {
            span.className = name;
            const layers = [document.body, box, span].map((one) => getComputedStyle(one).backgroundColor);
            const back = light(...layers);
            for (const [what, element] of [['text', inner], ['code', code]]) {
                const front = light(...layers, getComputedStyle(element).color);
                const [a, b] = [back, front].sort((x, y) => y - x);
                found.push([`${view} .${name} ${what}`, (a + 0.05) / (b + 0.05)]);
            }
        }
    }
    span.remove();
    document.body.dataset.view = seen;
    document.body.classList.remove('recording');
    return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_token_can_be_read(open_page, scheme):
    """WCAG's contrast of every kind of token, in every view, new ones and special ones too."""
    page = open_page("#length=16&steps=4", color_scheme=scheme)
    page.click("#run")
    finish(page)
    found = page.evaluate(TOKENS)
    assert len(found) > 250
    assert not [(name, ratio) for name, ratio in found if ratio < 4.5]


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_axe_finds_nothing(open_page, address, tmp_path, scheme):
    page = open_page("", unfold=False, color_scheme=scheme, viewport={"width": 1366, "height": 768})
    assert not axe_findings(page)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    page.click("#compareBox")
    page.click("#run")
    finish(page)
    page.click("#first")
    page.click("#next")
    page.locator("#stage .k").nth(3).hover()
    assert not axe_findings(page)
    choose(page, "view", "confidence")
    assert not axe_findings(page)
    with page.expect_download() as taken:
        page.click("#saveHtml")
    taken.value.save_as(tmp_path / "replay.html")
    page.click(".chip >> text=Score")
    page.wait_for_selector("#scores .k")
    assert not axe_findings(page)
    page.goto(address + "docs")
    assert not axe_findings(page)
    page.goto((tmp_path / "replay.html").as_uri() + "#event=3")
    page.wait_for_selector("#canvas .k")
    assert not axe_findings(page)
    open_page.wrong[:] = [said for said in open_page.wrong if "replay.html" not in said]


def test_keyboard_only_and_what_a_screen_reader_hears(open_page):
    page = open_page("#length=20&steps=10&seed=8")
    nameless = page.evaluate("""() => [...document.querySelectorAll('button, input, select, textarea')].filter((e) =>
        !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length)).map((e) => e.id)""")
    assert not nameless
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "prompt"
    page.keyboard.type("A tree")
    page.keyboard.press("Enter")
    until(page, "!document.body.classList.contains('busy')")
    page.wait_for_selector("#stage .k")
    page.keyboard.press("Escape")
    page.locator("#play").focus()
    page.keyboard.press("Home")
    assert masks(page) > 0
    heard = page.locator("#live")
    page.keyboard.press("ArrowRight")
    assert "step" in heard.text_content() and page.get_attribute("#live", "aria-live") == "polite"
    page.keyboard.press("End")
    assert masks(page) == 0 and "all written" in heard.text_content()
    seen = set()
    page.locator("#views input:checked").focus()
    for _ in range(3):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.className.split(' ')[0]"))
        if "k" in seen:
            break
    assert "k" in seen  # a token has the focus
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.p") == 2
    assert "probability" in heard.text_content() or "given" in heard.text_content()
    assert page.locator("#card").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#card").is_visible()


@pytest.mark.slow
def test_rewriting_keeps_what_is_not_latin(open_page):
    page = open_page("#mode=write&length=30&steps=6&seed=4&text=I+love+🍎+café+שלום.")
    page.click("#run")
    finish(page)
    page.locator("#stage .k").last.hover()
    page.keyboard.press("R")
    until(page, "document.getElementById('a-seed').value === '5'")
    finish(page)
    assert page.input_value("#gaps").startswith("I love 🍎 café שלום.") and "⟨" not in page.input_value("#gaps")
    page = open_page("#mode=write&length=20&steps=4&text=Say+{{3}}+now")  # braces that are text
    page.click("#run")
    finish(page)
    page.locator("#stage .k").last.hover()
    page.keyboard.press("r")
    page.wait_for_selector("#error:not([hidden])")
    assert page.input_value("#gaps") == ""


def test_lines_break_alike_beside_a_scrollbar(play, address):
    """Playwright hides scrollbars; people have them."""
    opened = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS, ignore_default_args=["--hide-scrollbars"])
    page = opened.new_page(viewport={"width": 1000, "height": 800})
    page.goto(address)
    page.wait_for_selector("body.ready")
    choose(page, "mode", "fill")
    page.fill("#gaps", " ".join(f"The little dog number {i} ran to the big house." for i in range(40)))
    wide, inside, behind = page.evaluate(
        "(() => { const a = document.getElementById('gaps'), b = document.getElementById('backdrop');"
        "return [a.offsetWidth, a.clientWidth, b.clientWidth - 2]; })()"
    )
    assert wide - inside > 8 and inside == behind  # there is a scrollbar, and both have the same room
    opened.close()


def test_only_what_is_used_must_be_right(open_page, lms):
    page = open_page("#mode=fill&text=The+{{2}}+sat.&length=9999&temperature=0.72")
    page.click("#run")
    finish(page)  # a length that is not used, and a temperature between two steps of the arrow keys
    assert shown(page) == lms["tiny-en"].infill("The {{2}} sat.", seed=0, temperature=0.72)[0]
    page = open_page("#mode=score&text=hello&temperature=-1")
    page.click("#run")
    page.wait_for_selector("#scores .k")
    choose(page, "mode", "write")
    page.click("#run")
    assert page.evaluate("document.activeElement.id") == "a-temperature" and not page.locator("#stage .k").count()


@pytest.mark.slow
def test_links_from_anywhere(open_page, address):
    page = open_page()
    for odd in ("#mode=constructor", "#mode=toString&text=x", "#view=bases&model=tiny-en", "#nothing", "#seed=x&n=-1"):
        page.goto("about:blank")
        page.goto(address + odd)
        page.wait_for_selector("body.ready")
        assert page.locator("body.ready").count() and page.locator("[name=view]:checked").is_visible(), odd
    page = open_page("#text=Hello&suffix=The+end.&top_k=5&seed=3&compare=1&b.steps=4")
    page.goto(address + "#seed=7&steps=4")  # in the same page: nothing of the last one is left
    until(page, "document.getElementById('a-seed').value === '7'")
    assert [page.input_value(f"#{name}") for name in ("prompt", "suffix", "a-top_k", "a-steps")] == ["", "", "", "4"]
    assert not page.is_checked("#compare")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # the skip link goes to the stage, and changes no setting
    assert page.evaluate("document.activeElement.id") == "stage" and page.input_value("#a-seed") == "7"
    page.fill("#a-seed", "")
    page.click("#run")
    finish(page)
    seed, text = page.input_value("#a-seed"), shown(page)  # one was drawn, and the link holds it
    assert seed.isdecimal() and f"seed={seed}" in page.url
    again = open_page(page.url[len(address) :])
    again.click("#run")
    finish(again)
    assert shown(again) == text


def test_one_of_two_sides_fails(open_page, tmp_path):
    words = "+".join(["word"] * 30)
    page = open_page(f"#model=left&compare=1&b.model=tiny-en&length=24&b.length=60&b.steps=8&text={words}")
    page.click("#run")
    page.wait_for_selector("#error:not([hidden])")
    finish(page)
    with page.expect_download() as saved:
        page.click("#saveJson")
    saved.value.save_as(tmp_path / "trace.json")
    assert len(Trace.load(tmp_path / "trace.json").recordings) == 1
    assert not page.locator(".canvas.waiting").count()
    open_page.wrong[:] = [said for said in open_page.wrong if "400" not in said]


def test_left_to_right_and_bases(open_page, lms, artefacts):
    page = open_page("#model=left&seed=1")
    page.click("#run")
    finish(page)
    page.click("#first")
    for _ in range(3):
        page.click("#next")
    row = page.locator("#stage .k").evaluate_all("all => all.map(k => k.classList.contains('m'))")
    assert row == [False] * 3 + [True] * 21  # left to right
    page = open_page("#model=bases&steps=20&seed=1")
    assert page.is_checked("[name=view][value=bases]")
    page.click("#run")
    finish(page)
    text = shown(page)
    assert len(text) == 120 and set(text) <= set("ACGT")
    assert text == lms["bases"].write_samples(1, steps=20, seed=1)[0].text
    colours = page.locator("#stage .k").evaluate_all(
        "all => [...new Set(all.map(k => k.textContent + getComputedStyle(k).color))]"
    )
    assert len(colours) == len(set(text))  # a colour for each base
    page.screenshot(path=artefacts / "bases.png")


def test_stop_frees_the_server_and_errors_are_sentences(open_page, address):
    import urllib.request

    page = open_page("#length=128&steps=1000&n=16")
    page.click("#run")
    page.wait_for_selector("#stage .k.m")
    page.click("#halt")
    until(page, "!document.body.classList.contains('busy')")
    assert "stopped" in page.locator(".run .note").inner_text()
    for _ in range(100):
        with urllib.request.urlopen(address + "metrics") as answer:
            lines = answer.read().decode().splitlines()
        running = [
            float(line.split()[-1]) for line in lines if line.startswith(("unmask_rows ", "unmask_rows_active "))
        ]
        assert len(running) == 2
        if not any(running):
            break
        time.sleep(0.1)
    assert not any(running)
    page.fill("#prompt", "word " * 200)
    page.click("#run")
    page.wait_for_selector("#error:not([hidden])")
    assert "tokens" in page.locator("#error").inner_text()
    open_page.wrong[:] = [said for said in open_page.wrong if "400" not in said]


@pytest.mark.parametrize("sampler", ["remask-cap", pytest.param("corrector", marks=pytest.mark.slow)])
def test_what_is_masked_again_is_a_mask_again(open_page, lms, sampler):
    page = open_page(f"#length=20&steps=12&seed=2&sampler={sampler}")
    page.click("#run")
    finish(page)
    (sample,) = lms["tiny-en"].write_samples(1, length=20, steps=12, seed=2, sampler=sampler)
    assert shown(page) == sample.text
    page.click("#first")
    assert masks(page) == 20
    for _ in range(30):  # to and fro, and the end is the same
        page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("End")
    assert shown(page) == sample.text


def test_with_a_key(browser, lms):
    from unmask.serve.app import make_app

    with serving(lms, lambda engine: make_app(engine, api_key="open sesame")) as address:
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(8_000)
        page.goto(address)
        page.wait_for_selector("#keyBox:not([hidden])")
        page.fill("#key", "wrong")
        page.press("#key", "Enter")
        page.wait_for_selector("#error:not([hidden])")
        page.fill("#key", "open sesame")
        page.press("#key", "Enter")
        page.wait_for_selector("body.ready")
        page.click("#run")
        finish(page)
        assert masks(page) == 0 and "sesame" not in page.url
        context.close()


def test_the_files_are_what_the_package_declares():
    import tomllib

    from unmask.serve.page import FILES, assets

    root = Path(__file__).parents[2]
    declared = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = declared["tool"]["setuptools"]["package-data"]["unmask.serve.page"]
    folder = root / "src/unmask/serve/page"
    assert {p.name for pattern in patterns for p in folder.glob(pattern)} == set(FILES)
    served = assets()
    assert json.dumps(sorted(served)) and b"innerHTML" not in b"".join(asset.body for asset in served.values())
    index = served["index.html"].body.decode()
    assert "<style" not in index and "style=" not in index and "onclick" not in index and "<script>" not in index
