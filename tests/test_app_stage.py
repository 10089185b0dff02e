"""Panels, rows of verdicts and the row of small pictures as HTML, in every state of a run."""

import re
from pathlib import Path

import numpy as np
import pytest
from tiny_app import NAMES, drawn, tiny_models

from app import stage
from app.live_run import Picture, Run, Track, start_run
from app.look import PALETTE, style_sheet
from app.models import Models
from app.request import Request
from app.stage import blind_strip_html, boxes_of, panel_html, status_html, strip_html
from app.verdict_rows import interval_of, mean_of, verdicts_html
from debias_sd.comparison import sentences_for, sentences_of
from debias_sd.datasets.world import prompt_set
from debias_sd.measure.judges import Verdict
from debias_sd.measure.judges.checker import NO_THING
from debias_sd.measure.shares import Score
from debias_sd.shapes.render import cell_box
from debias_sd.shapes.tokenizer import build_tokenizer

PROMPT = "A small red star sits in the top left. A large blue ring is in the bottom right."


@pytest.fixture(scope="module")
def models() -> Models:
    return tiny_models()


def run_of(models: Models, seeds: int = 1) -> Run:
    return start_run(Request(PROMPT, NAMES, seed=5, seeds=seeds, steps=1), models)


def drawn_run(models: Models, seeds: int = 1) -> Run:
    return drawn(models, PROMPT, seed=5, seeds=seeds)


def frames(page: str) -> int:
    return len(re.findall(r'class="frame[" ]', page))


@pytest.mark.parametrize("seeds", [1, 2, 8])
def test_a_panel_has_as_many_places_before_its_pictures_come_as_after(models, seeds):
    """Nothing below moves when a picture arrives."""
    before, after = run_of(models, seeds), drawn_run(models, seeds)
    for track in range(2):
        waiting, done = panel_html(before, before.tracks[track]), panel_html(after, after.tracks[track])
        assert frames(waiting) == frames(done) == seeds
        assert waiting.count("<figcaption") == done.count("<figcaption") == seeds
        assert [f"seed {5 + number}" in waiting for number in range(seeds)] == [True] * seeds
        assert ("--columns" in done) == (seeds > 1)
    assert frames(strip_html(before)) == frames(strip_html(after)) == 2
    assert strip_html(before).count("waiting") == 2


def test_every_encoder_keeps_the_place_of_its_progress_until_all_is_drawn(models):
    run = run_of(models, 2)
    run.tracks[0].state, run.tracks[0].step = "drawing", 1
    assert [panel_html(run, track).count('class="progress"') for track in run.tracks] == [1, 1]
    assert [panel_html(run, track).count('role="progressbar"') for track in run.tracks] == [1, 0]
    run = drawn_run(models, 2)
    assert 'class="progress"' not in panel_html(run, run.tracks[0])


def test_a_caption_says_what_it_counts(models):
    run = drawn_run(models)
    assert re.search(r"<span>seed 5</span> <span>\d of 2 sentences drawn</span>", panel_html(run, run.tracks[0]))


@pytest.mark.parametrize(
    ("marks", "kind", "words"),
    [
        (["drawn"], "drawn", "✓ drawn"),
        (["1 of 2"], "some", "◐ 1 of 2"),
        (["not read"], "quiet", "– not read"),
        (["drawn", "drawn"], "drawn", "✓ in 2 of 2"),
        (["drawn", "missing", "unsure"], "some", "◐ in 1 of 3"),
        (["missing", "missing"], "missing", "✕ in 0 of 2"),
        (["missing", "not read"], "missing", "✕ in 0 of 2"),
        (["not read", "not read"], "quiet", "– not read"),
        (["unsure", "missing"], "unsure", "? unsure"),
        (["1 of 2", "missing"], "some", "◐ in 0 of 2"),
        (["not judged", "not judged"], "quiet", "· not judged"),
    ],
)
def test_a_row_says_what_one_picture_shows_or_how_many_of_several(models, marks, kind, words):
    image = np.zeros((48, 48, 3), np.uint8)
    sentence = sentences_for(PROMPT, models.base)[0]
    pictures = [Picture(0, image, 1.0, (Verdict("", 0.25, mark),), Score(None, (None,) * 4, None)) for mark in marks]
    page = verdicts_html([sentence], pictures)
    assert page.count(f'<li class="{kind}"') == 1
    assert words in re.sub(r"<[^>]*>", "", page)
    assert ("mean score 0.25" in page) == (len(marks) > 1)


def test_the_small_pictures_light_up_with_their_sentences_and_say_what_failed(models):
    run = drawn_run(models)
    page = strip_html(run)
    assert page.count('data-sentence="1"') == 2
    assert "left:66.67%;top:66.67%" in page
    failed = Track("base", 77, 1, 1, state="failed")
    assert "failed" in strip_html(Run(run.request, [failed]))
    blind = blind_strip_html([run.tracks[0].pictures[0], None])
    assert (frames(blind), blind.count("<img")) == (2, 1)
    assert not re.search("CLIP|seed|drawn|box", re.sub(r'src="[^"]*"', "", blind))


def test_the_status_knows_the_prompt_of_its_pictures_as_text():
    page = status_html("Done in 1.0 s", prompt='A "star" <b>& more</b>')
    assert 'data-prompt="A &quot;star&quot; &lt;b&gt;&amp; more&lt;/b&gt;"' in page
    assert "data-prompt" not in status_html("Drawing")
    assert 'class="status blind"' in status_html("Round 1 of 2", blind=True)


def test_boxes_are_the_cells_of_the_named_things():
    summary = sentences_of(prompt_set(7, count=1).captions[0].text, build_tokenizer())[0]
    assert len(boxes_of(summary)) == 2
    for (left, top, width, height), thing in zip(boxes_of(summary), summary.things, strict=True):
        rows, columns = cell_box(thing.cell)
        assert (top * 0.48, left * 0.48) == pytest.approx((rows.start, columns.start))
        assert (width, height) == pytest.approx((100 / 3, 100 / 3))


def test_the_interval_over_seeds_is_students():
    assert interval_of([40.0, 60.0, 50.0, 50.0]) == pytest.approx((37.0096, 62.9904), abs=1e-4)  # t(3) = 3.182
    assert interval_of([0.0, 100.0]) == (0, 100)
    assert interval_of([None, 5.0]) is None
    assert mean_of([None, 4.0, 6.0]) == 5
    assert mean_of([None]) is None


def test_what_cannot_be_judged_says_why_once(models):
    for prompt, told in (("A quiet evening.", f"Not judged: {NO_THING}"), (f"A quiet evening. {PROMPT}", NO_THING)):
        run = drawn(models, prompt)
        page = panel_html(run, run.tracks[1])
        assert told in page
        assert page.count(NO_THING) == 1


def test_all_colours_are_the_palettes():
    app = Path(stage.__file__).parent
    others = [path for path in app.iterdir() if path.suffix in (".py", ".js", ".css") and path.name != "look.py"]
    found = {path.name: re.findall(r"#(?:[0-9a-f]{6}|[0-9a-f]{3})\b|rgba?\(", path.read_text()) for path in others}
    assert len(others) > 15
    assert {name: colours for name, colours in found.items() if colours} == {}
    used = set(re.findall(r"var\(--([\w-]+)\)", (app / "style.css").read_text()))
    assert used - PALETTE.keys() == {"font", "columns", "body-background-fill"}
    assert f"--ink: {PALETTE['ink'][1]};" in style_sheet()
