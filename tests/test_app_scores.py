"""Scores over seeds, and where the checker looked."""

import pytest

from app.scores import boxes_of, interval_of, mean_of
from debias_sd.comparison import sentences_of
from debias_sd.shapes.heldout import prompt_set
from debias_sd.shapes.render import cell_box
from debias_sd.shapes.tokenizer import build_tokenizer


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
