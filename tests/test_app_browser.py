"""The page as a person uses it, in Debian's Chromium: everything but the smoke test in test_app_server.py."""

import json
import os
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from app_server import CHROMIUM, CHROMIUM_OPTIONS, NO_APP, NO_BROWSER, running_app
from PIL import Image
from test_app_server import ask
from tiny import save_clip_model, tiny_encoder, tiny_sd_pipeline

from debias_sd.heldout import prompt_set

REASON = NO_APP or NO_BROWSER
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(REASON), reason=REASON or "never")]
PROMPT = prompt_set(7, count=1).captions[0].text
NASTY = "<img src=x onerror=alert(1)> ${value} {{value}} &amp; <b>bold</b>."
WAIT = 300_000  # milliseconds; a free core needs a few seconds
# What gradio's own script says when a page is left while a stream is open.
LEAVING = ("BodyStreamBuffer was aborted", "Connection errored out")


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with running_app(tmp_path_factory.mktemp("app") / "log.txt") as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as tool, tool.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_OPTIONS) as found:
        yield found


@pytest.fixture
def page(browser, url):
    """A fresh page; at the end it must have said no error and asked nobody else."""
    context = browser.new_context(viewport={"width": 1440, "height": 1000}, accept_downloads=True)
    opened, told, asked = context.new_page(), [], []
    opened.set_default_timeout(WAIT)
    opened.on("console", lambda message: told.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: told.append(str(error)))
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(url)
    opened.locator("#go").wait_for()
    yield opened
    context.close()
    assert [words for words in told if not any(note in words for note in LEAVING)] == []
    assert [address for address in asked if not address.startswith((url, "data:", "blob:"))] == []


def type_prompt(page, text: str) -> None:
    page.locator("#prompt textarea").fill(text)
    page.wait_for_function("text => document.querySelector('.ruler .text').innerText.startsWith(text)", arg=text[:40])


def wait_status(page, start: str) -> None:
    page.wait_for_function("t => document.querySelector('#status').innerText.startsWith(t)", arg=start)


def wait_prompt(page, start: str) -> None:
    page.wait_for_function("t => document.querySelector('#prompt textarea')?.value.startsWith(t)", arg=start)


def few_steps(page, steps: int = 2) -> None:
    page.get_by_role("button", name="More settings").click()
    page.get_by_label("number input for Steps").fill(str(steps))
    page.get_by_label("number input for Steps").press("Tab")


def compare(page) -> None:
    page.locator("#go").click()
    page.wait_for_function("() => document.querySelector('#go').disabled")
    page.wait_for_function("() => !document.querySelector('#go').disabled")


def test_the_ruler_follows_the_typing_and_shows_what_is_lost(page):
    type_prompt(page, PROMPT)
    page.get_by_text("loses").first.wait_for()
    rulers = page.locator(".ruler")
    assert rulers.count() == 3
    assert rulers.nth(0).locator("del").count() == 1
    assert PROMPT.endswith(rulers.nth(0).locator("del").inner_text())
    assert rulers.nth(2).locator("del").count() == 0
    assert [label.inner_text() for label in rulers.nth(0).locator(".bar b").all()] == ["77", "248"]


@pytest.mark.parametrize("words", [10, 500, 5000])
def test_the_rulers_follow_a_key_within_a_tenth_of_a_second(page, words):
    """From the key to the changed number in the page, typed at the end of a text; 5,000 words are the most it takes."""
    if (load := os.getloadavg()[0] / (os.cpu_count() or 1)) > 3:
        pytest.skip(f"the machine has {load:.1f} processes a core to run: times say nothing of the page")
    type_prompt(page, " ".join(["red"] * words) if words < 5000 else ("red " * 4990)[:-1])
    page.wait_for_timeout(1000)
    page.evaluate(
        """() => {
          window.waits = []; window.pressed = 0;
          const rulers = document.querySelector("#rulers");
          const counts = () => [...rulers.querySelectorAll(".count")].map((count) => count.innerText).join();
          let before = counts();
          document.querySelector("#prompt textarea").addEventListener("keydown", () => {
            window.pressed = performance.now();
          }, true);
          new MutationObserver(() => {
            const now = counts();
            if (now !== before && window.pressed) window.waits.push(performance.now() - window.pressed);
            [before, window.pressed] = [now, 0];
          }).observe(rulers, { childList: true, subtree: true, characterData: true });
        }"""
    )
    page.locator("#prompt textarea").press("Control+End")
    for _ in range(7):
        page.keyboard.press("Space")
        page.wait_for_timeout(200)
        page.evaluate("() => { window.pressed = 0; }")
        page.keyboard.press("a")  # a token more
        page.wait_for_timeout(400)
    waits = page.evaluate("() => window.waits")
    assert len(waits) >= 5
    assert sorted(waits)[len(waits) // 2] < 100, waits  # milliseconds


def test_a_ruler_stands_at_its_cut_and_stays_where_a_reader_scrolled(page):
    type_prompt(page, PROMPT * 3)
    page.get_by_text("loses").first.wait_for()
    seen = """() => {
      const text = document.querySelector(".ruler .text"), cut = text.querySelector("del");
      const from = text.scrollTop, to = from + text.clientHeight;
      return from > 0 && cut.offsetTop >= from && cut.offsetTop < to;
    }"""
    page.wait_for_function(seen)
    text = page.locator(".ruler .text").first
    text.hover()
    page.mouse.wheel(0, 4000)
    page.wait_for_function("() => document.querySelector('.ruler .text').scrollTop > 150")
    page.wait_for_timeout(300)
    place = text.evaluate("text => text.scrollTop")
    type_prompt(page, PROMPT * 3 + " A star.")
    page.wait_for_timeout(500)
    assert text.evaluate("text => text.scrollTop") == pytest.approx(place, abs=2)


def test_markup_in_a_prompt_is_text_everywhere(page):
    type_prompt(page, NASTY)
    few_steps(page)
    compare(page)
    for place in (".ruler .text", ".verdicts .text", ".gallery .words"):
        if place.startswith(".gallery"):
            page.get_by_role("tab", name="Keep").click()
        shown = page.locator(place).first
        assert "<img src=x onerror=alert(1)> ${value} {{value}} &amp; <b>bold</b>." in shown.inner_text()
        assert shown.locator("img, b").count() == 0


def test_a_sentence_is_moved_by_keyboard_swapped_dragged_and_dropped(page):
    type_prompt(page, "One is red. Two is blue. Three is green.")
    page.get_by_role("button", name="Sentences:").click()
    page.get_by_label("Move up: sentence 3").press("Enter")
    wait_prompt(page, "One is red. Three is green.")
    page.wait_for_function("() => document.activeElement.getAttribute('aria-label') === 'Move up: sentence 2'")
    page.get_by_label("Swap with the first: sentence 3").click()
    wait_prompt(page, "Two is blue. Three is green. One is red.")
    page.get_by_text("One is red.", exact=True).wait_for()
    page.drag_and_drop(".sentences li:nth-child(3)", ".sentences li:nth-child(1)")
    wait_prompt(page, "One is red. Two is blue.")
    page.wait_for_function("() => document.querySelector('.sentences .text').innerText.startsWith('One')")
    page.get_by_label("Drop: sentence 1").click()
    wait_prompt(page, "Two is blue. Three is green.")


def test_surprise_and_examples_fill_the_box(page):
    before = page.locator("#prompt textarea").input_value()
    page.locator("#surprise").click()
    page.wait_for_function("before => document.querySelector('#prompt textarea').value !== before", arg=before)
    page.get_by_label("Examples").click()
    page.get_by_role("option").nth(1).click()
    wait_prompt(page, prompt_set(0, count=2).captions[1].text[:60])


def test_progress_cancel_and_again(page):
    type_prompt(page, PROMPT)
    few_steps(page, 100)
    page.locator("#go").click()
    page.get_by_text(re.compile(r"step [1-9]\d* of 100 · \d+ s left")).wait_for()
    page.locator("img.preview").wait_for()
    page.locator("#cancel").click()
    wait_status(page, "Stopped")
    page.get_by_label("number input for Steps").fill("2")
    page.get_by_label("number input for Steps").press("Tab")
    compare(page)
    wait_status(page, "Done")
    assert page.locator(".panels figure img").count() == 3


def test_a_verdict_lights_up_where_the_checker_looked(page):
    type_prompt(page, "A small red star sits in the top left. A large blue ring is in the bottom right.")
    few_steps(page)
    compare(page)
    page.locator(".verdicts li[data-sentence='1']").nth(2).hover()
    lit = page.locator(".look.lit")
    assert lit.count() == 3
    assert all("left:66.67%;top:66.67%" in box.get_attribute("style") for box in lit.all())
    page.locator(".verdicts li[data-sentence='0']").first.focus()
    assert "left:0.00%;top:0.00%" in lit.first.get_attribute("style")


def test_several_seeds_blind_votes_and_names_at_the_end(page):
    type_prompt(page, PROMPT)
    few_steps(page)
    page.get_by_label("number input for Number of seeds").fill("2")
    page.get_by_label("number input for Number of seeds").press("Tab")
    page.locator("#blind input").check()
    compare(page)
    for place, vote in enumerate(("#vote-1", "#vote-none"), start=1):
        wait_status(page, f"Round {place} of 2")
        assert "CLIP" not in page.locator("#panels").inner_text()
        assert page.locator("#panels img").count() == 3
        page.locator(vote).click()
    wait_status(page, "Done")
    assert "DeBias-CLIP" in page.locator("#panels").inner_text()
    assert page.locator("#panels figure").count() == 6
    assert "2 rounds, 1 without a difference" in page.locator("#tally").inner_text()
    assert "1 of 2" in page.locator("#tally").inner_text()


def test_what_is_kept_can_be_downloaded_and_repeats_the_run(page, tmp_path):
    type_prompt(page, PROMPT)
    few_steps(page, 3)
    compare(page)
    page.get_by_role("tab", name="Keep").click()
    files = {}
    for words in ("PNG", "HTML page", "Settings (JSON)"):
        with page.expect_download() as download:
            page.get_by_role("link", name=words).click()
        name = download.value.suggested_filename
        files[name] = tmp_path / name
        download.value.save_as(files[name])
    assert sorted(files) == ["comparison-seed-0.html", "comparison-seed-0.json", "comparison-seed-0.png"]
    settings = json.loads(files["comparison-seed-0.json"].read_text())
    with Image.open(files["comparison-seed-0.png"]) as image:
        assert json.loads(image.text["debias_sd"])["settings"] == settings
    assert page.locator("#command textarea").input_value().startswith("debias-sd compare --encoders base long-clip")
    link = page.locator("#link textarea").input_value()
    page.goto(link)
    wait_prompt(page, PROMPT)
    page.get_by_role("tab", name="Keep").click()
    page.locator("#settings textarea").fill(json.dumps(settings | {"prompt": "A star.", "seed": 9}))
    page.locator("#use").click()
    wait_prompt(page, "A star.")
    assert page.get_by_label("Seed", exact=True).input_value() == "9"


def test_the_downloaded_page_works_alone(page, browser, tmp_path):
    type_prompt(page, PROMPT)
    few_steps(page)
    compare(page)
    page.get_by_role("tab", name="Keep").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="HTML page").click()
    path = Path(tmp_path / "alone.html")
    download.value.save_as(path)
    alone, asked = browser.new_page(), []
    alone.on("request", lambda request: asked.append(request.url))
    alone.goto(path.as_uri())
    alone.locator(".verdicts li").first.hover()
    assert alone.locator(".look.lit").count() == 6
    alone.close()
    assert [address for address in asked if not address.startswith(("data:", "file:"))] == []


def test_the_reading_tab_shows_both_plots_and_the_numbers(page):
    type_prompt(page, PROMPT)
    page.get_by_role("tab", name="Reading").click()
    page.locator("#read").click()
    page.locator("#plots img.day").first.wait_for()
    assert page.locator("#plots img.day").count() == 2
    assert page.locator("#plots tbody tr").count() == len(prompt_set(7, count=1).captions[0].sentences)


def test_reloading_and_a_closed_tab_free_the_line(page, browser, url):
    other = browser.new_page()
    other.goto(url)
    other.locator("#go").wait_for()
    few_steps(other, 100)
    other.get_by_label("number input for Number of seeds").fill("8")
    other.get_by_label("number input for Number of seeds").press("Tab")
    other.locator("#go").click()
    other.get_by_text(re.compile(r"step \d+ of 100")).first.wait_for(timeout=WAIT)
    type_prompt(page, "A star.")
    few_steps(page)
    page.locator("#go").click()
    wait_status(page, "1 before you")
    other.close()  # 2,400 steps were asked for
    wait_status(page, "Done")
    page.reload()
    page.locator("#go").wait_for()
    assert ask(url, "A star.", steps=1, encoders=["base"])["state"] == "done"


def test_faults_are_notices_of_one_sentence(page):
    type_prompt(page, "A star.")
    page.locator("#prompt textarea").fill("  ")
    page.locator("#go").click()
    page.get_by_text("The prompt is empty; write what the picture should show.").wait_for()
    page.get_by_role("tab", name="Keep").click()
    page.locator("#settings textarea").fill("{")
    page.locator("#use").click()
    page.get_by_text("The settings are not JSON; paste what the Keep tab shows.").wait_for()


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_width_and_scheme_has_no_serious_fault_of_accessibility(browser, url, width, scheme):
    context = browser.new_context(viewport={"width": width, "height": 1000}, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(WAIT)
    page.goto(f"{url}/?prompt={PROMPT.replace(' ', '+')}&steps=2")
    page.get_by_text("loses").first.wait_for()
    compare(page)
    assert page.locator(".strip").is_visible() == (width == 390)
    assert page.locator(".strip img").count() == 3
    page.get_by_role("button", name="Sentences:").click()
    assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
    assert page.evaluate("() => document.body.classList.contains('dark')") == (scheme == "dark")
    if find_spec("axe_playwright_python") is None:
        pytest.skip("axe-playwright-python is not installed")
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    context.close()
    serious = [
        f"{fault['id']}: {node['html'][:160]}"
        for fault in found
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]
    assert serious == []


def test_a_new_page_begins_with_an_example_that_is_drawn(browser, tmp_path):
    with running_app(tmp_path / "log.txt", "--example") as address:
        page = browser.new_page()
        page.set_default_timeout(WAIT)
        page.goto(address)
        page.locator("#go").wait_for()
        wait_status(page, "The example above, drawn when the app started, in ")
        assert page.locator(".panels figure img").count() == 3
        assert page.locator(".verdicts li.drawn").count() > 12
        page.get_by_role("tab", name="Keep").click()
        assert page.locator(".gallery button").count() == 1
        page.goto(f"{address}/?prompt=A+star.&steps=2")
        wait_prompt(page, "A star.")
        page.wait_for_timeout(1500)
        assert page.locator(".panels figure img").count() == 0
        page.close()


def test_a_real_pipeline_with_a_judge(browser, tmp_path):
    """A tiny Stable Diffusion of the real architecture, judged by a tiny CLIP, as `--base`, `--encoders`, `--judge`."""
    tiny_sd_pipeline().save_pretrained(tmp_path / "sd")
    tiny_encoder(248, seed=1).save(tmp_path / "long")
    save_clip_model(tmp_path / "judge", seed=3)
    models = ["--base", str(tmp_path / "sd"), "--encoders", "CLIP=base", f"Long={tmp_path / 'long'}"]
    with running_app(tmp_path / "log.txt", *models, "--judge", f"clip:{tmp_path / 'judge'}") as address:
        page = browser.new_page()
        page.set_default_timeout(WAIT)
        page.goto(address)
        page.get_by_text("Judged by clip:").wait_for()
        assert page.locator(".ruler del").count() == 1  # the kitchen's late sentences, for CLIP
        few_steps(page)
        page.get_by_label("Size").click()
        page.get_by_role("option", name="256 x 256").click()
        compare(page)
        wait_status(page, "Done")
        assert page.evaluate("() => document.querySelector('.panel figure img').naturalWidth") == 256
        marks = page.locator(".verdicts .mark").all_inner_texts()
        assert {mark.split(maxsplit=1)[1] for mark in marks} <= {"drawn", "missing", "unsure", "not read", "not judged"}
        assert page.locator(".verdicts .told", has_text="score 0.").count() > 4
        page.close()
        page = browser.new_page()
        page.set_default_timeout(WAIT)
        page.goto(f"{address}/?prompt=A+cat+sleeps.+A+dog+runs.&steps=2")
        wait_prompt(page, "A cat sleeps.")
        compare(page)
        page.locator(".verdicts li[data-sentence='1']").first.hover()
        assert page.locator("img.map.lit").count() == 2
        page.close()
