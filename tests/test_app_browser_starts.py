"""The page's first look in Debian's Chromium: widths, schemes, the example, a real pipeline with a judge."""

import json
from importlib.util import find_spec

import pytest
from app_page import MARKS, PROMPT, WAIT, browser, compare, few_steps, url, wait_done, wait_prompt
from app_server import running_app
from tiny import save_clip_model, tiny_encoder, tiny_sd_pipeline

from app.prompts import examples
from app.request import Settings

pytestmark = MARKS


@pytest.mark.parametrize("width", [1440, 720, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_width_and_scheme_has_no_serious_fault_of_accessibility(browser, url, width, scheme):
    context = browser.new_context(viewport={"width": width, "height": 1000}, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(WAIT)
    page.goto(f"{url}/?prompt={PROMPT.replace(' ', '+')}&steps=2")
    wait_done(page)
    assert page.locator("#panels figure img").count() == 3
    tops = {round(panel.bounding_box()["y"]) for panel in page.locator("#panels .panel").all()}
    assert len(tops) == 1
    page.locator("#table tr.sentence").first.focus()
    page.get_by_role("button", name="Details").click()
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
    """The operator's own, when there are some; their titles are text."""
    (tmp_path / "mine.jsonl").write_text(json.dumps({"id": "<b>Mine</b>", "prompt": PROMPT}))
    with running_app(tmp_path / "log.txt", "--example", "--examples", str(tmp_path / "mine.jsonl")) as address:
        page = browser.new_page()
        page.set_default_timeout(WAIT)
        page.goto(address)
        page.locator("#go").wait_for()
        wait_done(page)
        assert page.locator(".panels figure img").count() == 3
        assert page.locator("#table td.drawn").count() > 12
        assert page.locator("#prompt textarea").input_value() == PROMPT
        assert page.get_by_label("Examples").input_value() == "<b>Mine</b>"
        page.get_by_label("Examples").click()
        assert page.get_by_role("option").first.inner_text().endswith("<b>Mine</b>")
        assert page.locator("[role=option] b").count() == 0
        page.get_by_role("option").nth(1).click()
        wait_prompt(page, list(examples(Settings()).values())[0][:60])
        page.get_by_role("button", name="Earlier comparisons").click()
        page.locator(".gallery button").first.wait_for()
        page.goto(f"{address}/?prompt=A+star.&steps=2")
        wait_prompt(page, "A star.")
        page.locator("#table table[data-prompt='A star.']").wait_for()  # a link draws
        wait_done(page)
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
        page.get_by_role("button", name="Details").click()
        page.get_by_text("Judged by clip:").wait_for()
        assert page.locator("#live tr.cut").count() == 1  # the kitchen's late sentences, for CLIP
        few_steps(page)
        assert page.get_by_label("Size").input_value() == "the pipeline's own"
        page.get_by_label("Size").click()
        page.get_by_role("option", name="256 x 256").click()
        compare(page)
        wait_done(page)
        assert page.evaluate("() => document.querySelector('.panel figure img').naturalWidth") == 256
        marks = page.locator("#table .mark").all_inner_texts()
        assert {mark.split(maxsplit=1)[1] for mark in marks} <= {"drawn", "missing", "unsure", "not read", "not judged"}
        assert page.locator("#table .told", has_text="score 0.").count() > 4
        page.close()
        page = browser.new_page()
        page.set_default_timeout(WAIT)
        page.goto(f"{address}/?prompt=A+cat+sleeps.+A+dog+runs.&steps=2")
        wait_prompt(page, "A cat sleeps.")
        wait_done(page)
        page.get_by_role("button", name="Settings").click()
        assert page.get_by_label("Size").input_value() == "the pipeline's own"
        assert "not its wording" in page.locator("#example").inner_text()
        page.locator("#table tr[data-sentence='1']").hover()
        assert page.locator(".panels img.map.lit").count() == 2
        page.close()
