"""The page in Debian's Chromium: what stays in sight, does not move, is not clipped; how soon rulers follow a key."""

import os
import re

import pytest
from app_page import MARKS, PROMPT, WAIT, browser, compare, page, set_up, type_prompt, url, wait_prompt, wait_status

from debias_sd.datasets.world import prompt_set

pytestmark = MARKS
LONG = " ".join(PROMPT for _ in range(4))
# The place of the first lit box whose picture is shown, and the window's height.
LIT = """() => [...document.querySelectorAll(".lit.box")].map((box) => box.getBoundingClientRect())
  .filter((box) => box.width > 0).map((box) => [box.top, box.bottom, window.innerHeight])"""


@pytest.fixture
def phone(browser, url):
    context = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme="dark")
    opened = context.new_page()
    opened.set_default_timeout(WAIT)
    opened.goto(url)
    opened.locator("#go").wait_for()
    yield opened
    context.close()


def height(page, selector: str) -> float:
    return page.locator(selector).first.bounding_box()["height"]


def top(page, selector: str) -> float:
    """From the page's own top, however far it is scrolled."""
    return page.locator(selector).first.evaluate("(node) => node.getBoundingClientRect().top + window.scrollY")


@pytest.mark.parametrize("width", [1440, 390])
def test_where_it_was_looked_at_is_in_sight_from_the_last_sentence(page, width):
    page.set_viewport_size({"width": width, "height": 844})
    set_up(page, PROMPT)
    compare(page)
    last = page.locator(".panels > :first-child .verdicts li").last
    last.focus()
    page.wait_for_timeout(600)
    boxes = page.evaluate(LIT)
    assert any(0 <= upper and lower <= window for upper, lower, window in boxes), boxes
    row = last.bounding_box()
    assert 0 < row["y"] < 844 - row["height"]
    picture = page.locator("#status" if width == 390 else ".panel .pictures").first.bounding_box()
    assert row["y"] >= picture["y"] + picture["height"] - 1  # the focused sentence is not behind the picture


def test_nothing_moves_when_pictures_come(phone):
    """The panels' place on a phone, where a row of small pictures stands before them; the places in each panel."""
    set_up(phone, PROMPT, steps=60, seeds=3)  # long enough to be seen on a quick machine
    phone.locator("#go").click()
    phone.get_by_text(re.compile(r"step [1-9]\d* of 60")).first.wait_for()
    before = [top(phone, "#panels"), height(phone, ".panel .pictures"), height(phone, ".strip")]
    places = phone.locator(".panels > :first-child figure").count()
    wait_status(phone, "Done")
    assert [top(phone, "#panels"), height(phone, ".panel .pictures"), height(phone, ".strip")] == pytest.approx(
        before, abs=1
    )
    assert phone.locator(".panels > :first-child figure").count() == places == 3


def test_a_phone_shows_whole_lines_and_keeps_the_prompt_small(phone):
    type_prompt(phone, LONG)
    phone.get_by_text("loses").first.wait_for()
    phone.wait_for_timeout(500)
    assert height(phone, "#prompt textarea") < 200
    assert height(phone, "#surprise") == height(phone, "#go") == height(phone, "#cancel")
    off = phone.locator(".ruler .text").first.evaluate(
        "(text) => text.scrollTop > 0 && (text.scrollTop / parseFloat(getComputedStyle(text).lineHeight)) % 1"
    )
    assert min(off, 1 - off) < 0.1
    edges = phone.locator("#prompt").bounding_box()
    assert (edges["x"], edges["width"]) == pytest.approx((14, 362), abs=2)


def test_the_plots_are_readable_on_a_phone(phone):
    type_prompt(phone, PROMPT)
    phone.get_by_role("tab", name="Reading").click()
    phone.locator("#read").click()
    phone.locator("#plots img.night").first.wait_for()
    assert phone.locator("#plots img.night").first.bounding_box()["width"] >= 680
    assert phone.evaluate("() => document.documentElement.scrollWidth") <= 390


def test_a_blind_round_has_its_pictures_in_one_row_on_a_phone_and_no_word_of_marks(phone):
    set_up(phone, PROMPT)
    assert phone.locator("#judged-by").is_visible()
    phone.locator("#blind input").check()
    compare(phone)
    wait_status(phone, "Round 1 of 1")
    assert [item.inner_text() for item in phone.locator(".strip li").all()] == ["A", "B", "C"]
    assert phone.locator(".strip img").count() == 3
    assert not phone.locator("#judged-by").is_visible()
    phone.locator("#vote-0").click()
    wait_status(phone, "Done")
    assert "DeBias-CLIP" in phone.locator(".strip").inner_text()
    assert phone.locator("#judged-by").is_visible()
    assert "1 round, 0 without a difference" in phone.locator("#tally").inner_text()


def test_the_status_says_when_the_box_holds_another_prompt_than_the_pictures(page):
    set_up(page, "A small red star sits in the top left.")
    compare(page)
    note = page.get_by_text("the prompt has changed since")
    assert not note.is_visible()
    page.locator("#prompt textarea").press("End")
    page.keyboard.type("!")
    assert note.is_visible()
    page.keyboard.press("Backspace")
    assert not note.is_visible()
    page.locator("#surprise").click()
    note.wait_for()


def test_an_example_is_named_as_long_as_it_is_in_the_box_and_can_be_chosen_again(page):
    first = prompt_set(0, count=1).captions[0].text
    example = page.get_by_label("Examples")
    assert example.input_value() == "Scene 1: 10 sentences"
    type_prompt(page, first + " And more.")
    page.wait_for_function("() => document.querySelector('#example input').value === ''")
    example.click()
    page.get_by_role("option").first.click()
    wait_prompt(page, first)
    page.wait_for_function("() => document.querySelector('#example input').value === 'Scene 1: 10 sentences'")
    page.wait_for_timeout(800)  # the server has said by now which example it is
    assert example.input_value() == "Scene 1: 10 sentences"


def test_a_refused_request_does_not_scroll_away_from_the_box(page):
    page.locator("#prompt textarea").fill("  ")
    page.locator("#go").click()
    page.get_by_text("The prompt is empty").wait_for()
    page.wait_for_timeout(800)
    assert page.evaluate("() => window.scrollY") == 0


@pytest.mark.parametrize("width", [1440, 390])
def test_labels_and_controls_do_not_touch(page, width):
    page.set_viewport_size({"width": width, "height": 844})
    label = page.locator("label", has_text="Number of seeds").first.bounding_box()
    number = page.get_by_label("number input for Number of seeds").bounding_box()
    apart = number["x"] - (label["x"] + label["width"]), number["y"] - (label["y"] + label["height"])
    assert max(apart) >= 0
    border = page.locator("#blind input").evaluate("(box) => getComputedStyle(box).borderColor")
    assert border in ("rgb(100, 116, 139)", "rgb(148, 163, 184)")  # 3 : 1 or more against both grounds


def test_six_encoders_stand_in_two_rows_of_three(page):
    """Copies of the panels and rulers in place of six encoders: the layout is the style sheet's alone."""
    for box in (".panels", ".rulers"):
        tops = page.locator(box).evaluate(
            """(box) => {
              const three = [...box.children];
              three.forEach((child) => box.append(child.cloneNode(true)));
              return [...box.children].map((child) => Math.round(child.getBoundingClientRect().top));
            }"""
        )
        assert len(tops) == 6
        assert tops[0] == tops[1] == tops[2] < tops[3] == tops[4] == tops[5]


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
