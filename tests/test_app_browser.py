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
    wait_done,
    wait_prompt,
    wait_status,
)
from PIL import Image
from test_app_server import ask

from app.prompts import examples
from app.request import Settings
from debias_sd.datasets.world import prompt_set

pytestmark = MARKS
NASTY = "<img src=x onerror=alert(1)> ${value} {{value}} &amp; <b>bold</b>."


def test_markup_in_a_prompt_is_text_everywhere(page):
    set_up(page, NASTY)
    compare(page)
    for place in ("#table .text", "#live .text", ".gallery .words"):
        if place.startswith("#live"):
            type_prompt(page, f"{NASTY} A star.")
        if place.startswith(".gallery"):
            page.get_by_role("button", name="Earlier comparisons").click()
        shown = page.locator(place).first
        assert "<img src=x onerror=alert(1)> ${value} {{value}} &amp; <b>bold</b>." in shown.inner_text()
        assert shown.locator("img, b").count() == 0


def test_a_sentence_is_moved_by_keyboard_swapped_dragged_and_dropped(page):
    type_prompt(page, "One is red. Two is blue. Three is green.")
    page.get_by_label("Move up: sentence 3").press("Enter")
    wait_prompt(page, "One is red. Three is green.")
    page.wait_for_function("() => document.activeElement.getAttribute('aria-label') === 'Move up: sentence 2'")
    page.locator("#live .acts").nth(2).hover()  # its buttons are seen then
    page.get_by_label("Swap with the first: sentence 3").click()
    wait_prompt(page, "Two is blue. Three is green. One is red.")
    page.get_by_text("One is red.", exact=True).wait_for()
    page.drag_and_drop("#live tr.sentence:nth-child(3) .text", "#live tr.sentence:nth-child(1) .text")
    wait_prompt(page, "One is red. Two is blue.")
    page.wait_for_function("() => document.querySelector('#live .text').innerText.startsWith('One')")
    page.locator("#live .acts").first.hover()
    page.get_by_label("Drop: sentence 1").click()
    wait_prompt(page, "Two is blue. Three is green.")


def test_surprise_and_examples_fill_the_box(page):
    before = page.locator("#prompt textarea").input_value()
    page.locator("#surprise").click()
    page.wait_for_function("before => document.querySelector('#prompt textarea').value !== before", arg=before)
    page.get_by_label("Examples").click()
    page.get_by_role("option").nth(1).click()
    wait_prompt(page, list(examples(Settings()).values())[1][:60])


def test_progress_cancel_and_again(page):
    set_up(page, PROMPT, steps=100)
    page.locator("#go").click()
    page.get_by_text(re.compile(r"step [1-9]\d* of 100 · \d+ s left")).wait_for()
    page.locator("img.preview").wait_for()
    page.locator("#cancel").click()
    wait_status(page, "Stopped")
    fill_number(page, "Steps", 2)
    compare(page)
    wait_done(page)
    assert page.locator(".panels figure img").count() == 3


def test_a_verdict_lights_up_where_the_checker_looked(page):
    set_up(page, "A small red star sits in the top left. A large blue ring is in the bottom right.")
    compare(page)
    page.locator("#table tr[data-sentence='1']").hover()
    lit = page.locator(".panels .box.lit")
    assert lit.count() == 3
    assert all("left:66.67%;top:66.67%" in box.get_attribute("style") for box in lit.all())
    page.locator("#table tr[data-sentence='0']").focus()
    assert "left:0.00%;top:0.00%" in lit.first.get_attribute("style")


def test_several_seeds_blind_votes_and_names_at_the_end(page):
    set_up(page, PROMPT, seeds=2, blind=True)
    compare(page)
    for place, vote in enumerate(("#vote-1", "#vote-none"), start=1):
        wait_status(page, f"Round {place} of 2")
        assert "CLIP" not in page.locator("#panels").inner_text()
        assert page.locator("#panels img").count() == 3
        page.locator(vote).click()
    wait_done(page)
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
    page.get_by_role("button", name="Earlier comparisons").click()
    page.locator("#gallery li").wait_for()
    assert page.locator("#gallery li").count() == 1
    assert page.locator("#share a").count() == 2
    assert "3 rounds, 1 without a difference" in page.locator("#tally").text_content()


def test_a_double_click_is_one_vote(page):
    """Case 136: the second click would be a vote on pictures that nobody has seen."""
    set_up(page, "A star. A ring.", steps=1, seeds=2, blind=True)
    page.locator("#go").click()
    wait_status(page, "Round 1 of 2")
    page.evaluate("for (const id of ['#vote-1', '#vote-1', '#vote-0']) document.querySelector(id).click()")
    wait_status(page, "Round 2 of 2")
    page.locator("#vote-none").click()
    wait_done(page)
    assert "2 rounds, 1 without a difference" in page.locator("#tally").text_content()
    assert page.locator(".toast-body").count() == 0


def test_what_is_shared_can_be_downloaded_and_draws_again(page, tmp_path):
    set_up(page, PROMPT, steps=3)
    compare(page)
    files = {}
    for words in ("Save as picture", "Save as page"):
        with page.expect_download() as download:
            page.get_by_role("link", name=words).click()
        name = download.value.suggested_filename
        files[name] = tmp_path / name
        download.value.save_as(files[name])
    assert sorted(files) == ["comparison-seed-0.html", "comparison-seed-0.png"]
    with Image.open(files["comparison-seed-0.png"]) as image:
        settings = json.loads(image.text["debias_sd"])["settings"]
    assert (settings["prompt"], settings["steps"]) == (PROMPT, 3)
    page.locator("#share summary").click()
    assert page.locator("#command").inner_text().startswith("debias-sd compare --encoders base long-clip")
    shown = page.locator("#panels img").first.get_attribute("src")
    query = page.locator("#share button[data-query]").get_attribute("data-query")
    page.goto(f"{page.url.partition('?')[0]}?{query}")
    wait_prompt(page, PROMPT)
    wait_done(page)
    assert page.locator("#panels img").first.get_attribute("src") == shown


def test_the_downloaded_page_works_alone(page, browser, tmp_path):
    set_up(page, PROMPT)
    compare(page)
    with page.expect_download() as download:
        page.get_by_role("link", name="Save as page").click()
    path = Path(tmp_path / "alone.html")
    download.value.save_as(path)
    alone, asked = browser.new_page(), []
    alone.on("request", lambda request: asked.append(request.url))
    alone.goto(path.as_uri())
    alone.locator("tr.sentence").first.hover()
    assert alone.locator(".box.lit").count() == 6
    alone.locator("button.frame").first.click()
    assert alone.locator("dialog.closer").is_visible()
    alone.close()
    assert [address for address in asked if not address.startswith(("data:", "file:"))] == []


def test_what_each_encoder_looks_at_shows_both_plots_and_the_numbers(page):
    type_prompt(page, PROMPT)
    page.get_by_role("button", name="What each encoder looks at").click()
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
    wait_done(page)
    page.reload()
    page.locator("#go").wait_for()
    assert ask(url, "A star.", steps=1, encoders=["base"])["state"] == "done"


def test_faults_are_notices_of_one_sentence(page):
    type_prompt(page, "A star.")
    page.locator("#prompt textarea").fill("  ")
    page.locator("#go").click()
    page.get_by_text("The prompt is empty; write what the picture should show.").wait_for()
    page.locator("#prompt textarea").fill("A star.")
    page.locator("#move-swap").click()
    page.get_by_text("The prompt has 1 sentence; write two or more to move one.").wait_for()


def test_a_move_is_drawn_and_shown_beside_the_prompt_before(page):
    set_up(page, "A small red star sits in the top left. A large blue ring is in the bottom right.", steps=3)
    page.locator("#move-last").click()  # nothing is drawn yet: both prompts are
    wait_prompt(page, "A large blue ring is in the bottom right. A small red star sits in the top left.")
    wait_done(page)
    assert page.locator("#panels figcaption").all_inner_texts()[0].startswith("before: ")
    assert page.locator("#panels figure img").count() == 6
    assert re.search(
        r"CLIP \d → \d, Long-CLIP \d → \d, DeBias-CLIP \d → \d of 2 sentences", page.locator("#status").inner_text()
    )
    assert page.locator("#table tr.sentence .text").first.inner_text() == "A large blue ring is in the bottom right."


def test_two_pictures_are_flipped_in_one_place_by_mouse_and_by_keyboard(page):
    set_up(page, "A small red star sits in the top left.")
    compare(page)
    first, *_, last = [image.get_attribute("src") for image in page.locator("#panels figure img").all()]
    page.locator("#panels button.frame").first.click()
    dialog = page.locator("dialog.closer")
    assert [dialog.locator(f".{name}").get_attribute("src") for name in ("over", "under")] == [first, last]
    shown = lambda: dialog.evaluate("(box) => getComputedStyle(box).getPropertyValue('--at').trim()")  # noqa: E731
    assert shown() == "50%"
    page.keyboard.press("f")
    assert shown() == "100%"
    page.keyboard.press("f")
    assert shown() == "0%"
    page.keyboard.press("ArrowRight")
    assert shown() == "1%"
    dialog.locator(".pair").click()
    assert shown() == "100%"
    page.keyboard.press("d")
    assert dialog.locator(".over").evaluate("(image) => getComputedStyle(image).mixBlendMode") == "difference"
    dialog.locator("select.left").select_option(index=1)
    assert "Long-CLIP" in dialog.locator(".over").get_attribute("alt")
    page.keyboard.press("Escape")
    assert not dialog.is_visible()


def test_four_columns_are_chosen_and_compared_by_the_keyboard(page):
    type_prompt(page, "A small red star sits in the top left.")
    few_steps(page)
    page.get_by_label("CLIP, by sentences").check()
    page.locator("#prompt textarea").press("Control+Enter")
    wait_done(page)
    tops = [panel.bounding_box() for panel in page.locator("#panels .panel").all()]
    assert len(tops) == 4
    assert len({round(box["y"]) for box in tops}) == 1
    cells = page.locator("#table tr.sentence").first.locator("td").all()
    assert [round(cell.bounding_box()["x"]) for cell in cells] == [round(box["x"]) for box in tops]
    assert "CLIP, by sentences" in page.locator("#status .result").inner_text()
    assert "CLIP, by sentences" in page.locator("#status .mean").inner_text()


def test_a_reload_brings_back_the_prompt_the_pictures_and_what_was_kept(page):
    set_up(page, "A small red star sits in the top left.", seeds=2)
    compare(page)
    shown = page.locator("#panels img").first.get_attribute("src")
    page.locator("#prompt textarea").press("End")
    page.keyboard.type(" And more.")
    page.reload()
    wait_prompt(page, "A small red star sits in the top left. And more.")
    wait_done(page)
    assert page.locator("#panels img").first.get_attribute("src") == shown
    assert page.get_by_text("The prompt has changed since.").is_visible()
    page.get_by_role("button", name="Earlier comparisons").click()
    page.locator("#gallery button").click()  # shows it again, with its settings
    page.wait_for_function("() => document.querySelector('#prompt textarea').value.endsWith('top left.')")
    page.get_by_role("button", name="Settings").click()
    assert page.get_by_label("number input for Number of seeds").input_value() == "2"
    page.goto("about:blank")
    page.go_back()
    wait_done(page)
    assert page.locator("#panels img").first.get_attribute("src") == shown
