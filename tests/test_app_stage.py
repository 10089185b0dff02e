"""Panels, the result and the table of a run as HTML, in every state of it."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
from tiny_app import NAMES, drawn, tiny_models

from app import stage
from app.live_run import Run, start_run
from app.look import PALETTE, style_sheet
from app.models import REPORT, Measured, Models, measured_in
from app.request import Request, Settings
from app.result import interval_of, mean_of, mean_of_many, result_of, scores_html, status_html
from app.stage import boxes_of, panel_html, votes_html
from app.table import mark_of, run_table
from debias_sd.comparison import sentences_of
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
        assert ("--columns" in done) == (seeds > 1)


def test_every_encoder_keeps_the_place_of_its_progress_until_all_is_drawn(models):
    run = run_of(models, 2)
    run.tracks[0].state, run.tracks[0].step = "drawing", 1
    assert [panel_html(run, track).count("<span>") for track in run.tracks] == [1, 1]
    assert [panel_html(run, track).count('role="progressbar"') for track in run.tracks] == [1, 0]
    run = drawn_run(models, 2)
    assert '<div class="progress"></div>' in panel_html(run, run.tracks[0])


def test_a_caption_says_what_it_counts(models):
    run = drawn_run(models)
    assert re.search(r'\d of 2 <span class="word">sentences</span></figcaption>', panel_html(run, run.tracks[0]))
    run = drawn_run(models, 3)
    assert re.findall(r"seed (\d): \d of 2</figcaption>", panel_html(run, run.tracks[0])) == ["5", "6", "7"]


@pytest.mark.parametrize(
    ("marks", "kind", "words"),
    [
        (["drawn"], "drawn", "drawn"),
        (["1 of 2"], "some", "1 of 2"),
        (["not read"], "not read", "not read"),
        (["drawn", "drawn"], "drawn", "in 2 of 2"),
        (["drawn", "missing", "unsure"], "some", "in 1 of 3"),
        (["missing", "missing"], "missing", "in 0 of 2"),
        (["missing", "not read"], "missing", "in 0 of 2"),
        (["not read", "not read"], "not read", "not read"),
        (["unsure", "missing"], "unsure", "unsure"),
        (["1 of 2", "missing"], "some", "in 0 of 2"),
        (["not judged", "not judged"], "not judged", "not judged"),
    ],
)
def test_a_cell_says_what_one_picture_shows_or_how_many_of_several(marks, kind, words):
    assert mark_of(marks) == (kind, words)


def test_the_table_has_a_cell_per_sentence_and_encoder_and_marks_the_rows_that_differ(models):
    run = run_of(models)
    assert run_table(run, models).count("…</td>") == 4
    run = drawn_run(models)
    page = run_table(run, models)
    marks = [[picture.verdicts[row].mark for track in run.tracks for picture in track.pictures] for row in range(2)]
    assert re.findall(r'<span class="words">(.*?)</span>', page) == [mark for row in marks for mark in row]
    assert page.count("differs") == sum(len(set(row)) > 1 for row in marks)
    assert 'data-prompt="A small red star' in page


def judged(models: Models, marks: list[list[str]], *, seeds: int = 1) -> Run:
    """A run whose pictures have these marks, a list per encoder; of several seeds each picture has the same."""
    run = drawn_run(models, seeds)
    for track, row in zip(run.tracks, marks, strict=True):
        verdicts = tuple(Verdict("", 1.0, mark) for mark in row)
        for number, picture in enumerate(track.pictures):
            track.pictures[number] = dataclasses.replace(
                picture, verdicts=verdicts, score=Score(50.0, (None,) * 4, 50.0)
            )
    return run


def plain(page: str) -> str:
    return re.sub(r"<[^>]*>", "", page)


def test_the_result_is_one_line_with_one_denominator(models):
    run = judged(models, [["drawn", "missing"], ["drawn", "drawn"]])
    assert plain(result_of(run)) == "CLIP drew 1, DeBias-CLIP 2 of 2 sentences."
    several = judged(models, [["drawn", "missing"], ["drawn", "drawn"]], seeds=3)
    assert plain(result_of(several)) == "CLIP drew 1.0, DeBias-CLIP 2.0 of 2 sentences, in the mean over 3 seeds."
    run.tracks[0].state, run.tracks[0].pictures = "failed", []
    assert plain(result_of(run)) == "DeBias-CLIP drew 2 of 2 sentences. CLIP failed."
    run.tracks[1].state = "stopped"
    assert result_of(run) == "Stopped."


def test_a_moved_prompt_is_shown_beside_the_one_before(models):
    before, after = (judged(models, marks) for marks in ([["drawn"] * 2] * 2, [["drawn", "missing"], ["drawn"] * 2]))
    after.earlier = before
    assert plain(result_of(after)) == "Before and after: CLIP 2 → 1, DeBias-CLIP 2 → 2 of 2 sentences."
    page = panel_html(after, after.tracks[0])
    assert re.findall(r"<figcaption>(.*?)</figcaption>", page) == ["before: 2 of 2", "after: 1 of 2"]
    assert "--columns:2" in page
    assert plain(run_table(after, models)).count("was drawn") == 1


def test_the_mean_is_the_reports(models):
    run = drawn_run(models)
    measured = Measured(200, {"base": 54.78, "debias": 94.24}, 25, 2.0)
    assert "Measured over 200 prompts: CLIP draws 55 %, DeBias-CLIP 94 % of the sentences." in mean_of_many(
        run, measured
    )
    assert "results/sentences" in mean_of_many(run, measured)
    assert mean_of_many(run, None) == mean_of_many(run, Measured(200, {}, 25, 2.0)) == ""


def test_the_report_is_of_the_encoders_that_ship():
    """The numbers of the first screen come from results/, and from weights that are those of this checkout."""
    measured = measured_in(REPORT, Settings().encoders)
    found = json.loads(REPORT.read_text())["encoders"]
    assert list(measured.drawn) == list(Settings().encoders)
    assert measured.drawn["sentences"] == found["base-by-sentence"]["judges"]["checker"]["all"]
    assert measured.drawn["debias"] == found["debias"]["judges"]["checker"]["all"]
    assert measured.prompts == 200
    assert measured_in(REPORT.with_name("none.json"), Settings().encoders) is None
    assert measured_in(REPORT, {"base": "base", "debias": "long-clip"}).drawn.keys() == {"base", "debias"}


def test_the_scores_are_a_row_per_encoder(models):
    page = scores_html(drawn_run(models, 2))
    assert page.count("<tr><th scope=row>") == 2
    assert re.search(r"\d+ % <small>\((all alike|\d+ to \d+)\)", page)
    assert plain(votes_html(2, 0)) == "A is bestB is bestNo difference"


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
        page = result_of(run) + run_table(run, models)
        assert told in page


def test_all_colours_are_the_palettes():
    app = Path(stage.__file__).parent
    others = [path for path in app.iterdir() if path.suffix in (".py", ".js", ".css") and path.name != "look.py"]
    found = {path.name: re.findall(r"#(?:[0-9a-f]{6}|[0-9a-f]{3})\b|rgba?\(", path.read_text()) for path in others}
    assert len(others) > 12
    assert {name: colours for name, colours in found.items() if colours} == {}
    used = set(re.findall(r"var\(--([\w-]+)\)", (app / "style.css").read_text()))
    assert used - PALETTE.keys() == {"font", "ask", "gap", "columns", "side", "at", "body-background-fill"}
    assert f"--ink: {PALETTE['ink'][1]};" in style_sheet()
