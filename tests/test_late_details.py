"""Late details and what a checker says of them: pictures whose content is known, one score for reports and pages."""

import random

import numpy as np
import pytest
from PIL import Image
from tiny_world import tiny_pipeline

from debias_sd.datasets.world import prompt_set
from debias_sd.measure.judges import NOT_JUDGED, Verdict, unjudged
from debias_sd.measure.judges.checker import CheckerJudge, error_rates, measure_checker, near_miss, with_noise
from debias_sd.measure.places import sentences_in
from debias_sd.measure.shares import Score, score_of, summarise, table_of
from debias_sd.shapes.caption import length
from debias_sd.shapes.render import render
from debias_sd.shapes.scene import BACKGROUNDS, Scene, Thing
from debias_sd.shapes.tokenizer import build_tokenizer

PROMPTS = prompt_set(0, count=12)
SENTENCES = sentences_in([caption.text for caption in PROMPTS.captions], build_tokenizer(77))
JUDGE = CheckerJudge()
SUMMARY = "There is a small red star in the top left and a large blue ring in the center."
STAR, RING = Thing(0, "red", "star", "small"), Thing(4, "blue", "ring", "large")


def rendered_up_to(last: int) -> list[Image.Image]:
    """Pictures that hold only the things of the summary and of the first `last` detail sentences."""
    pictures = []
    for scene, caption in zip(PROMPTS.scenes, PROMPTS.captions, strict=True):
        kept = {thing for things in caption.named[: last + 1] for thing in things}
        pictures.append(render(Scene(scene.background, tuple(t for t in scene.things if t in kept))))
    return [Image.fromarray(picture) for picture in pictures]


def picture_of(*things: Thing) -> Image.Image:
    return Image.fromarray(render(Scene(next(iter(BACKGROUNDS)), things)))


def scores_of(pictures: list[Image.Image], *, shift: int = 0) -> dict:
    turned = pictures[-shift:] + pictures[:-shift] if shift else pictures
    verdicts = [v for picture, texts in zip(turned, SENTENCES.texts, strict=True) for v in JUDGE.judge(picture, texts)]
    return summarise(table_of([verdicts]), SENTENCES, samples=20)


def test_rendered_scenes_are_drawn_everywhere_and_leave_unnamed_cells_empty():
    pictures = rendered_up_to(9)
    scores = scores_of(pictures)
    for name in ("late_detail", "late_score", "summary", "summary_score", "first_half", "second_half", "past_77"):
        assert scores[name] == 100, name
    assert scores["by_quarter"] == [100] * 4
    assert set(scores["by_sentence"]) == {100}
    assert scores["late_aspects"] == {"colour": 100, "shape": 100, "anything": 100}
    unnamed = [JUDGE.unnamed(picture, texts) for picture, texts in zip(pictures, SENTENCES.texts, strict=True)]
    assert sum(cells for cells, _ in unnamed) > 0
    assert sum(filled for _, filled in unnamed) == 0
    assert scores_of(pictures, shift=1)["late_detail"] < 15  # the floor is far below


def test_every_late_detail_is_one_that_the_summary_does_not_name():
    captions = PROMPTS.captions
    named = [things for caption in captions for things in caption.named]
    summaries = [set(caption.named[0]) for caption in captions for _ in caption.named]
    assert [not number or things[0] not in summary for number, things, summary in zip(
        SENTENCES.number, named, summaries, strict=True)] == (~SENTENCES.repeats).tolist()  # fmt: skip
    assert not (SENTENCES.is_late & SENTENCES.repeats).any()
    assert (SENTENCES.is_late | SENTENCES.repeats)[SENTENCES.half == 1].all()
    ends = np.flatnonzero(np.diff(SENTENCES.prompt, append=len(captions)))
    starts = [1 + length(" ".join(caption.sentences[:-1])) for caption in captions]
    assert SENTENCES.start[ends].tolist() == starts


ASKED = (SUMMARY, "A small red star sits in the top left.", "There is a small green circle in the top right.",
         "A large blue ring sits in the center.", "There is a large yellow square in the bottom left.")  # fmt: skip


@pytest.mark.parametrize(
    ("things", "marks", "score"),
    [
        ((STAR, RING), "drawn, drawn, missing, drawn, missing", Score(0.0, (100.0, 0.0, 100.0, 0.0), 60.0)),
        ((STAR,), "1 of 2, drawn, missing, missing, missing", Score(0.0, (100.0, 0.0, 0.0, 0.0), 20.0)),
        ((RING, Thing(6, "yellow", "square", "large")), "1 of 2, missing, missing, drawn, drawn",
         Score(100.0, (0.0, 0.0, 100.0, 100.0), 40.0)),
        ((RING, Thing(6, "yellow", "square", "small")), "1 of 2, missing, missing, drawn, missing",
         Score(0.0, (0.0, 0.0, 100.0, 0.0), 20.0)),
    ],
)  # fmt: skip
def test_one_picture_has_one_score_and_one_mark_a_sentence(things, marks, score):
    """Sentences 2 and 4 say again what the summary names: of the second half the last one alone is late."""
    verdicts = JUDGE.judge(picture_of(*things), ASKED)
    assert ", ".join(verdict.mark for verdict in verdicts) == marks
    assert score_of(verdicts) == score
    found = summarise(table_of([verdicts]), sentences_in([" ".join(ASKED)]), samples=5)
    assert (found["late_detail"], tuple(found["by_quarter"]), found["all"]) == (score.late, score.quarters, score.drawn)
    assert found["late_judged"] == 1
    assert score_of(verdicts, can_say_drawn=False) == score_of([]) == Score(None, (None,) * 4, None)


def test_a_verdict_says_what_is_there_instead_and_in_part():
    star, ring, nothing = JUDGE.judge(
        picture_of(Thing(0, "red", "circle", "small"), RING), [*ASKED[1:4:2], "A quiet harbour."]
    )
    assert (star.mark, star.score, star.found) == ("missing", 0, "a small red circle in the top left")
    assert star.aspects == {"colour": 1, "shape": 0, "anything": 1}
    assert (ring.mark, ring.score, ring.found) == ("drawn", 1, "")
    assert (nothing.mark, nothing.score, nothing.is_judged) == (NOT_JUDGED, None, False)
    blurred = np.full((48, 48, 3), 127, np.uint8)
    blurred[::2] = 0
    (unclear,) = JUDGE.judge(Image.fromarray(blurred), ASKED[1:2])
    assert unclear.mark == "unsure"


@pytest.mark.parametrize(
    ("mark", "first", "expected"),
    [("missing", 75, "missing"), ("missing", 76, "not read"), ("drawn", 90, "drawn"), ("unsure", 90, "unsure"),
     ("1 of 2", 90, "1 of 2")],
)  # fmt: skip
def test_what_is_missing_and_stands_after_the_window_was_not_read(mark, first, expected):
    assert Verdict("A cat.", 0.1, mark).read(first=first, window=77).mark == expected
    assert unjudged("A cat.", "why").read(first=90, window=77).mark == NOT_JUDGED


def test_checker_rates_are_zero_on_rendered_scenes_see_a_wrong_picture_and_the_vae():
    scenes = prompt_set(3, count=40).scenes
    images = np.stack([render(scene) for scene in scenes])
    rates = error_rates(images, scenes, seed=0)
    assert (rates["missed_percent"], rates["false_percent"], rates["filled_percent"]) == (0, 0, 0)
    assert error_rates(images[::-1], scenes, seed=0)["missed_percent"] > 85
    noisy = error_rates(with_noise(images, deviation=10, seed=0), scenes, seed=0)
    assert noisy["missed_percent"] < 1
    rates = measure_checker(prompt_set(0, count=4).scenes, tiny_pipeline().vae, seed=0)
    assert list(rates) == ["rendered", "noise_10", "vae"]
    assert rates["rendered"]["missed_percent"] == 0
    assert rates["vae"]["missed_percent"] > 50  # a random VAE keeps nothing


def test_a_near_miss_has_one_wrong_property_and_the_first_sentences_score_alone():
    thing, rng = PROMPTS.scenes[0].things[0], random.Random(0)
    for _ in range(50):
        other = near_miss(thing, rng)
        parts = ("cell", "colour", "shape", "size")
        (different,) = [part for part in parts if getattr(other, part) != getattr(thing, part)]
        assert different != "cell"
    scores = scores_of(rendered_up_to(2))
    assert (scores["summary"], scores["late_detail"], scores["late_aspects"]["anything"]) == (100, 0, 0)
    assert scores["by_sentence"][:3] == [100] * 3
    assert scores["past_77"] < 20
    assert 0 < scores["first_half"] < 100
    assert scores["second_half"] > 0  # the main things have a sentence there, and the summary named them
    assert JUDGE.unnamed(picture_of(STAR, RING), [SUMMARY]) == (7, 0)
    assert JUDGE.unnamed(picture_of(STAR, RING, Thing(8, "red", "star", "large")), [SUMMARY]) == (7, 1)


@pytest.mark.parametrize(
    ("sentences", "ground"),
    [
        ([SUMMARY.replace(".", " on a gray background.")], "gray"),
        (["A black picture with a red star.", SUMMARY], "black"),
        ([SUMMARY, "The background is beige."], "beige"),
        (["The image shows a white background on which things stand."], "white"),
        ([SUMMARY, "A gray cat."], None),
    ],
)
def test_the_background_that_a_prompt_names_is_asked_of_the_whole_picture(sentences, ground):
    for drawn in BACKGROUNDS:
        picture = Image.fromarray(render(Scene(drawn, (STAR, RING))))
        assert JUDGE.background(picture, sentences) == (None if ground is None else drawn == ground)
