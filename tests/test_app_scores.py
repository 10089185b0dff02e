"""Verdicts and scores of pictures with known content."""

import numpy as np
import pytest
from PIL import Image

from app.scores import boxes_of, interval_of, likeness, mean_of, score_of, verdicts_of
from debias_sd.comparison import sentences_of
from debias_sd.measure.judges.checker import CheckerJudge
from debias_sd.measure.late_details import sentences_in
from debias_sd.measure.pictures.shares import summarise, table_of
from debias_sd.shapes.check import read_picture
from debias_sd.shapes.heldout import prompt_set
from debias_sd.shapes.render import cell_box, render
from debias_sd.shapes.scene import Scene
from debias_sd.shapes.tokenizer import build_tokenizer

SET = prompt_set(7, count=3)
CAPTION, SCENE = SET.captions[0], SET.scenes[0]
SENTENCES = sentences_of(CAPTION.text, build_tokenizer())


def picture_of(sentences: int) -> np.ndarray:
    """A picture that holds what the first `sentences` sentences name."""
    kept = {thing for things in CAPTION.named[:sentences] for thing in things}
    return render(Scene(SCENE.background, tuple(thing for thing in SCENE.things if thing in kept)))


def test_a_rendered_scene_is_drawn_in_every_sentence():
    verdicts = verdicts_of(picture_of(99), SENTENCES, window=248)
    assert {verdict.mark for verdict in verdicts} == {"drawn"}
    assert {verdict.score for verdict in verdicts} == {1.0}
    assert {verdict.found for verdict in verdicts} == {""}


def test_what_is_not_there_is_missing_or_not_read_and_says_what_is_there():
    image = picture_of(1)
    late = max(index for index, named in enumerate(CAPTION.named) if named[0] not in CAPTION.named[0])
    for window, word in ((248, "missing"), (77, "not read")):
        verdict = verdicts_of(image, SENTENCES, window=window)[late]
        assert verdict.mark == word
        assert verdict.score < 0.01
        assert verdict.found.startswith("nothing in the ")
    found = [verdict.found for verdict in verdicts_of(render(SET.scenes[1]), SENTENCES, window=248)]
    assert any(text.startswith(("a small ", "a large ")) for text in found)


def test_noise_is_unsure():
    noise = np.random.default_rng(0).integers(0, 256, (48, 48, 3), dtype=np.uint8)
    verdicts = verdicts_of(noise, SENTENCES, window=248)
    assert {verdict.mark for verdict in verdicts} == {"unsure"}
    assert all(verdict.score < 0.5 for verdict in verdicts)


def test_an_enlarged_picture_is_judged_alike():
    small = picture_of(4)
    large = np.kron(small, np.ones((4, 4, 1), np.uint8))
    assert verdicts_of(large, SENTENCES, window=77) == verdicts_of(small, SENTENCES, window=77)


def test_the_score_falls_with_the_distance_to_what_was_asked_for():
    thing = SENTENCES[-1].things[0]
    image, empty = picture_of(99).astype(float), picture_of(0).astype(float)
    scores = [likeness((1 - share) * image + share * empty, thing) for share in (0, 0.2, 0.5, 0.8, 1)]
    assert scores[0] == 1
    assert scores[-1] == 0
    assert scores == sorted(scores, reverse=True)
    assert scores[1] > 0.5 > scores[3]


@pytest.mark.parametrize("noise", [0, 20, 40, 60])
def test_a_thing_is_drawn_where_its_score_is_above_a_half(noise):
    """Whatever the picture: the score never says the opposite of the verdict."""
    random = np.random.default_rng(noise)
    seen = set()
    for sentences in range(len(SENTENCES) + 1):
        image = np.clip(picture_of(sentences) + random.normal(0, noise + 1e-3, (48, 48, 3)), 0, 255).astype(np.uint8)
        for sentence in SENTENCES:
            (found, *others) = sentence.things
            if others:
                continue
            drawn = read_picture(image)[found.cell].thing == found
            assert (likeness(image.astype(float), found) > 0.5) == drawn
            seen.add(drawn)
    assert seen == {True, False}


@pytest.mark.parametrize("sentences", [0, 1, 4, 7, 99])
def test_late_details_are_those_of_the_evaluation(sentences):
    image = picture_of(sentences)
    verdicts = CheckerJudge().judge(Image.fromarray(image), CAPTION.sentences)
    shares = summarise(table_of([verdicts]), sentences_in([CAPTION.text]), samples=5)
    score = score_of(image, SENTENCES)
    assert score.late == shares["late_detail"]
    assert list(score.quarters) == shares["by_quarter"]
    assert score_of(picture_of(99), SENTENCES).drawn == 100


def test_a_prompt_that_names_nothing_is_not_judged():
    rows = sentences_of("A quiet evening. Rain falls.", build_tokenizer())
    assert [verdict.mark for verdict in verdicts_of(picture_of(3), rows, window=77)] == ["not judged"] * 2
    score = score_of(picture_of(3), rows)
    assert (score.late, score.quarters, score.drawn) == (None, (None,) * 4, None)
    assert verdicts_of(picture_of(3), (), window=77) == ()


def test_boxes_are_the_cells_of_the_named_things():
    summary = SENTENCES[0]
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
