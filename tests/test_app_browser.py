"""The page as a person uses it, in Debian's Chromium: everything but the smoke test in test_app_server.py."""

import json
import re
from pathlib import Path

import pytest
from app_page import (
    MARKS,
    PROMPT,
    WAIT,
    browser,
    compare,
    few_steps,
    fill_number,
    page,
    set_up,
    type_prompt,
    url,
    wait_prompt,
    wait_status,
)
from PIL import Image
from test_app_server import ask

from debias_sd.datasets.world import prompt_set

pytestmark = MARKS
NASTY = "<img src=x onerror=alert(1)> ${value} {{value}} &amp; <b>bold</b>."


def test_markup_in_a_prompt_is_text_everywhere(page):
    set_up(page, NASTY)
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
    set_up(page, PROMPT, steps=100)
    page.locator("#go").click()
    page.get_by_text(re.compile(r"step [1-9]\d* of 100 · \d+ s left")).wait_for()
    page.locator("img.preview").wait_for()
    page.locator("#cancel").click()
    wait_status(page, "Stopped")
    fill_number(page, "Steps", 2)
    compare(page)
    wait_status(page, "Done")
    assert page.locator(".panels figure img").count() == 3


def test_a_verdict_lights_up_where_the_checker_looked(page):
    set_up(page, "A small red star sits in the top left. A large blue ring is in the bottom right.")
    compare(page)
    page.locator(".verdicts li[data-sentence='1']").nth(2).hover()
    lit = page.locator(".panels .box.lit")
    assert lit.count() == 3
    assert all("left:66.67%;top:66.67%" in box.get_attribute("style") for box in lit.all())
    page.locator(".verdicts li[data-sentence='0']").first.focus()
    assert "left:0.00%;top:0.00%" in lit.first.get_attribute("style")


def test_several_seeds_blind_votes_and_names_at_the_end(page):
    set_up(page, PROMPT, seeds=2, blind=True)
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


@pytest.mark.parametrize("seconds", [0, 0.05, 1])
def test_blind_votes_of_any_pace_are_kept(page, seconds):
    """Case 136: each click is one vote on a round that is shown, and the last one brings the comparison into Keep."""
    set_up(page, "A star. A ring.", steps=1, seeds=3, blind=True)
    page.locator("#go").click()
    for vote in ("#vote-1", "#vote-1", "#vote-none"):
        page.locator(vote).click()
        page.wait_for_timeout(1000 * seconds)
    page.get_by_role("tab", name="Keep").click()
    page.locator("#gallery li").wait_for()
    assert page.locator("#gallery li").count() == 1
    assert page.locator("#downloads a").count() == 3
    assert "3 rounds, 1 without a difference" in page.locator("#tally").text_content()


def test_a_double_click_is_one_vote(page):
    """Case 136: the second click would be a vote on pictures that nobody has seen."""
    set_up(page, "A star. A ring.", steps=1, seeds=2, blind=True)
    page.locator("#go").click()
    wait_status(page, "Round 1 of 2")
    page.evaluate("for (const id of ['#vote-1', '#vote-1', '#vote-0']) document.querySelector(id).click()")
    wait_status(page, "Round 2 of 2")
    page.locator("#vote-none").click()
    wait_status(page, "Done")
    assert "2 rounds, 1 without a difference" in page.locator("#tally").text_content()
    assert page.locator(".toast-body").count() == 0


def test_what_is_kept_can_be_downloaded_and_repeats_the_run(page, tmp_path):
    set_up(page, PROMPT, steps=3)
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
    link = page.locator("#link input").input_value()
    page.goto(link)
    wait_prompt(page, PROMPT)
    page.get_by_role("tab", name="Keep").click()
    page.locator("#settings textarea").fill(json.dumps(settings | {"prompt": "A star.", "seed": 9}))
    page.locator("#use").click()
    wait_prompt(page, "A star.")
    assert page.get_by_label("Seed", exact=True).input_value() == "9"


def test_the_downloaded_page_works_alone(page, browser, tmp_path):
    set_up(page, PROMPT)
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
    assert alone.locator(".box.lit").count() == 6
    alone.close()
    assert [address for address in asked if not address.startswith(("data:", "file:"))] == []


def test_the_reading_tab_shows_both_plots_and_the_numbers(page):
    type_prompt(page, PROMPT)
    page.get_by_role("tab", name="Reading").click()
    page.locator("#read").click()
    page.locator("#plots img.day").first.wait_for()
    assert page.locator("#plots img.day").count() == 2
    assert page.locator("#plots tbody tr").count() == len(prompt_set(7, count=1).captions[0].sentences)


def test_reloading_and_a_closed_tab_free_the_queue(page, browser, url):
    other = browser.new_page()
    other.goto(url)
    other.locator("#go").wait_for()
    few_steps(other, 100)
    fill_number(other, "Number of seeds", 8)
    other.locator("#go").click()
    other.get_by_text(re.compile(r"step \d+ of 100")).first.wait_for(timeout=WAIT)
    set_up(page, "A star.")
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
