"""Tables of judged pictures: a judge that may never say drawn has measured no share of what was drawn."""

import base64

import pytest

from debias_sd.measure.reports import pictures as judged
from debias_sd.measure.reports.page import Entry
from debias_sd.measure.reports.pictures import picture_tables
from debias_sd.report import Report

JPEG = base64.b64encode(b"\xff\xd8\xff").decode()
SCORES = {
    "late_detail": 0.0, "late_detail_interval": [0.0, 0.0], "unsure": 60.0, "late_score": 30.9,
    "late_score_interval": [28.0, 33.5], "by_quarter": [0.0] * 4, "late_judged": 36,
}  # fmt: skip


@pytest.mark.parametrize("drawn", [None, 0.0, 0.7])
def test_a_share_of_nothing_is_said_to_be_none(drawn):
    about = {"meaning": "a probability", "thresholds": {"drawn": drawn, "missing": 0.2, "source": "world, 12 pictures"}}
    extra = {"judges": {"clip:x": about}, "differences_of_pictures": {}, "agreement": {}}
    result = {"judges": {"clip:x": SCORES}}
    report = Report("fidelity", {"texts_sha256": "0", "seeds": [0]}, {"a": result}, extra=extra)
    (table,) = picture_tables([Entry("a", "a", report, result)])
    assert ("0 is not a measurement, only the mean scores are" in table.note) == (drawn is None)
    assert table.note.startswith("A probability. Thresholds: world, 12 pictures.")


def judged_report(thresholds, *, label="a"):
    """A report of one encoder and one other, judged by clip:x with these thresholds, and its entry for each."""
    about = {"meaning": "a probability", "thresholds": {"missing": 0.2, "source": "world, 12 pictures"} | thresholds}
    scores = SCORES | {"late_per_prompt": [[0, 1]]}
    point = {"points": 0.0, "interval": [0.0, 0.0]}
    differences = {f"{label} - b": {"late_drawn": point, "late_score": {"points": -3.0, "interval": [-4.0, -2.0]}}}
    extra = {
        "judges": {"clip:x": about}, "differences_of_pictures": {"clip:x": differences}, "agreement": {},
        "examples": [{"prompt": "A cat.", "pictures": {label: JPEG}}],
    }  # fmt: skip
    result = {"judges": {"clip:x": scores}}
    settings = {"texts_sha256": "0", "seeds": [0], "prompts": "world"}
    return Entry(label, label, Report("fidelity", settings, {label: result}, extra=extra), result)


def drawn_lines(entries, monkeypatch):
    """The lines of the quarter plots by label, as matplotlib was asked for them."""
    drawn = {}

    class Axes:
        def plot(self, places, values, *, label, **_):
            drawn[label] = list(values)

        def set_xticks(self, *_):
            pass

    monkeypatch.setattr(judged, "draw_png", lambda draw, ylabel: draw(Axes()) or ylabel.encode())
    return judged.quarter_plots(entries), drawn


def test_a_judge_that_can_never_say_drawn_says_so_wherever_a_share_would_stand(monkeypatch):
    never = judged_report({"drawn": None})
    tables = {table.title: table for table in picture_tables([never])}
    assert tables["Differences in late details"].rows == (("a - b", "clip:x", "–", "-3.0, **-4.00 to -2.00**"),)
    assert tables["Differences in late details"].note.endswith(" –: the judge can never say drawn.")
    (gallery,) = judged.picture_galleries([never])
    assert [shown.words for shown in gallery.rows[0][1]] == ["a: clip:x can never say drawn"]
    assert drawn_lines([never], monkeypatch) == ({}, {})


def test_a_judge_that_can_say_drawn_keeps_its_zeros(monkeypatch):
    able = judged_report({"drawn": 0.7})
    tables = {table.title: table for table in picture_tables([able])}
    assert tables["Differences in late details"].rows[0][2] == "+0.0, +0.00 to +0.00"
    assert "never" not in tables["Differences in late details"].note
    (gallery,) = judged.picture_galleries([able])
    assert [shown.words for shown in gallery.rows[0][1]] == ["a: 0 of 1 late detail by clip:x"]
    assert drawn_lines([able], monkeypatch)[1] == {"a": [0.0] * 4}


def test_reports_whose_thresholds_differ_are_told_apart(monkeypatch):
    """The same judge, calibrated twice: in one of the reports it can say drawn."""
    both = [judged_report({"drawn": 0.7}), judged_report({"drawn": None, "source": "own, 4 pictures"}, label="c")]
    note = next(picture_tables(both)).note
    assert "Thresholds: world, 12 pictures; own, 4 pictures." in note
    assert "No score is enough for it to say drawn, in the report of c: 0 is not a measurement" in note
    plots, drawn = drawn_lines(both, monkeypatch)
    assert list(plots) == ["pictures-clip-x.png"]
    assert drawn == {"a": [0.0] * 4, "c: never drawn": []}


def test_the_plot_with_a_name_and_no_line_is_a_picture():
    both = [judged_report({"drawn": 0.7}), judged_report({"drawn": None}, label="c")]
    (content,) = judged.quarter_plots(both).values()
    assert content.startswith(b"\x89PNG")
