"""The token rulers in Debian's Chromium: what they show, how soon after a key, and where they stand."""

import os

import pytest
from app_page import MARKS, PROMPT, browser, page, type_prompt, url

pytestmark = MARKS


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
