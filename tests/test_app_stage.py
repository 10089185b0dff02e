"""Panels, rows of verdicts and the row of small pictures as HTML, in every state of a run."""

import asyncio
import re

import numpy as np
import pytest
from tiny_app import finish, tiny_encoder
from tiny_world import tiny_pipeline

from app.frames import blind_strip_html, strip_html
from app.models import Models
from app.request import Request
from app.run import Picture, Run, Track, start_run
from app.stage import panel_html, status_html
from app.verdict_rows import verdicts_html
from debias_sd.comparison import pipes_of, sentences_for
from debias_sd.measure.judges.verdict import Verdict
from debias_sd.measure.pictures.shares import Score

PROMPT = "A small red star sits in the top left. A large blue ring is in the bottom right."


@pytest.fixture(scope="module")
def models() -> Models:
    base = tiny_pipeline()
    return Models(pipes_of(base, {"base": tiny_encoder(77, 0), "debias": tiny_encoder(248, 1)}), base)


def run_of(models: Models, seeds: int = 1, *, is_drawn: bool = True) -> Run:
    run = start_run(Request(PROMPT, ("base", "debias"), seed=5, seeds=seeds, steps=1), models)
    if is_drawn:
        asyncio.run(finish(run, models))
    return run


def frames(page: str) -> int:
    return len(re.findall(r'class="frame[" ]', page))


@pytest.mark.parametrize("seeds", [1, 2, 8])
def test_a_panel_has_as_many_places_before_its_pictures_come_as_after(models, seeds):
    """Nothing below moves when a picture arrives."""
    before, after = run_of(models, seeds, is_drawn=False), run_of(models, seeds)
    for track in range(2):
        waiting, done = panel_html(before, before.tracks[track]), panel_html(after, after.tracks[track])
        assert frames(waiting) == frames(done) == seeds
        assert waiting.count("<figcaption") == done.count("<figcaption") == seeds
        assert [f"seed {5 + number}" in waiting for number in range(seeds)] == [True] * seeds
        assert ("--columns" in done) == (seeds > 1)
    assert frames(strip_html(before)) == frames(strip_html(after)) == 2
    assert strip_html(before).count("waiting") == 2


def test_every_encoder_keeps_the_place_of_its_progress_until_all_is_drawn(models):
    run = run_of(models, 2, is_drawn=False)
    run.tracks[0].state, run.tracks[0].step = "drawing", 1
    assert [panel_html(run, track).count('class="progress"') for track in run.tracks] == [1, 1]
    assert [panel_html(run, track).count('role="progressbar"') for track in run.tracks] == [1, 0]
    assert 'class="progress"' not in panel_html(run_of(models, 2), run_of(models, 2).tracks[0])


def test_a_caption_says_what_it_counts(models):
    run = run_of(models)
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
    run = run_of(models)
    page = strip_html(run)
    assert page.count('data-sentence="1"') == 2
    assert "left:66.67%;top:66.67%" in page
    failed = Track("base", 77, 1, 1, state="failed")
    assert "failed" in strip_html(Run(run.request, [failed]))
    blind = blind_strip_html([run.tracks[0].pictures[0], None])
    assert (frames(blind), blind.count("<img")) == (2, 1)
    assert not re.search("CLIP|seed|drawn|look", re.sub(r'src="[^"]*"', "", blind))


def test_the_status_knows_the_prompt_of_its_pictures_as_text():
    page = status_html("Done in 1.0 s", prompt='A "star" <b>& more</b>')
    assert 'data-prompt="A &quot;star&quot; &lt;b&gt;&amp; more&lt;/b&gt;"' in page
    assert "data-prompt" not in status_html("Drawing")
    assert 'class="status blind"' in status_html("Round 1 of 2", blind=True)
