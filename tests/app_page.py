"""A person's page in Debian's Chromium: fixtures and gestures that the tests of the page share."""

import pytest
from app_server import CHROMIUM, CHROMIUM_OPTIONS, NO_APP, NO_BROWSER, running_app

from debias_sd.datasets.world import prompt_set

REASON = NO_APP or NO_BROWSER
MARKS = [pytest.mark.slow, pytest.mark.skipif(bool(REASON), reason=REASON or "never")]
PROMPT = prompt_set(7, count=1).captions[0].text
WAIT = 300_000  # milliseconds; a free core needs a few seconds
# What gradio's own script says when a page is left while a stream is open.
LEAVING = ("BodyStreamBuffer was aborted", "Connection errored out", "AbortError: signal is aborted without reason")


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
    faults = [words for words in told if not any(note in words for note in LEAVING)]
    others = [address for address in asked if not address.startswith((url, "data:", "blob:"))]
    assert not faults and not others, (faults, others)  # noqa: PT018 - pytest does not spell out this file's asserts


def type_prompt(page, text: str) -> None:
    page.locator("#prompt textarea").fill(text)
    first = "text => text.startsWith(document.querySelector('#live .text')?.textContent ?? '-')"
    page.wait_for_function(first, arg=" ".join(text.split()))


def wait_status(page, start: str) -> None:
    page.wait_for_function("t => document.querySelector('#status').innerText.startsWith(t)", arg=start)


def wait_done(page) -> None:
    page.locator("#status [data-state=done]").wait_for()


def wait_prompt(page, start: str) -> None:
    page.wait_for_function("t => document.querySelector('#prompt textarea')?.value.startsWith(t)", arg=start)


def fill_number(page, label: str, value: int) -> None:
    box = page.get_by_label(f"number input for {label}")
    box.fill(str(value))
    box.press("Tab")


def few_steps(page, steps: int = 2) -> None:
    page.get_by_role("button", name="Settings").click()
    fill_number(page, "Steps", steps)


def set_up(page, prompt: str, *, steps: int = 2, seeds: int = 1, blind: bool = False) -> None:
    type_prompt(page, prompt)
    few_steps(page, steps)
    if seeds > 1:
        fill_number(page, "Number of seeds", seeds)
    page.locator("#blind input").set_checked(blind)


def compare(page) -> None:
    page.locator("#go").click()
    page.wait_for_function("() => document.querySelector('#go').disabled")
    page.wait_for_function("() => !document.querySelector('#go').disabled")
