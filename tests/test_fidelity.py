"""Fidelity: what counts as drawn and where, with pictures whose content is known, and the ways of one encoder."""

import random

import numpy as np
import pytest
from tiny_world import save_tiny_clip, tiny_pipeline

from debias_sd.encoder import TextEncoder
from debias_sd.fidelity import (
    draw,
    evaluate_fidelity,
    floor_of,
    judge_caption,
    summarise,
    unnamed_cells,
    ways_of,
)
from debias_sd.measure.judges.checker_error import error_rates, measure_checker, near_miss, with_noise
from debias_sd.shapes.caption import length
from debias_sd.shapes.heldout import prompt_set
from debias_sd.shapes.render import render
from debias_sd.shapes.scene import Scene

PROMPTS = prompt_set(0, count=12)


def rendered_up_to(last: int) -> np.ndarray:
    """Pictures that hold only the things of the summary and of the first `last` detail sentences."""
    pictures = []
    for scene, caption in zip(PROMPTS.scenes, PROMPTS.captions, strict=True):
        kept = {thing for things in caption.named[: last + 1] for thing in things}
        pictures.append(render(Scene(scene.background, tuple(t for t in scene.things if t in kept))))
    return np.stack(pictures)


def judged(images: np.ndarray):
    return [judge_caption(image, caption) for image, caption in zip(images, PROMPTS.captions, strict=True)]


def test_rendered_scenes_are_drawn_everywhere_and_leave_unnamed_cells_empty():
    images = rendered_up_to(9)
    scores = summarise(judged(images))
    for name in ("late_detail", "summary", "first_half", "second_half", "past_77", "late_detail_colour"):
        assert scores[name] == 100, name
    assert scores["by_quarter"] == [100] * 4
    assert set(scores["by_sentence"]) == {100}
    assert unnamed_cells(images, PROMPTS.captions)["filled_percent"] == 0


def test_a_picture_of_the_first_sentences_scores_there_and_not_later():
    scores = summarise(judged(rendered_up_to(2)))
    assert scores["summary"] == 100
    assert scores["by_sentence"][:3] == [100] * 3
    assert scores["late_detail"] == 0
    assert scores["past_77"] < 20
    assert 0 < scores["first_half"] < 100
    # The main things have a sentence of their own in the second half, and the summary named them.
    assert scores["second_half"] > 0


def test_every_named_thing_is_counted_once_a_sentence():
    scores = summarise(judged(rendered_up_to(9)))
    assert scores["named_by_sentence"][0] == 2 * len(PROMPTS.captions)
    assert sum(scores["named_by_sentence"]) == sum(len(n) for c in PROMPTS.captions for n in c.named)
    assert sum(named for _, named in scores["late_per_prompt"]) == scores["late_details"]
    for caption, prompt in zip(PROMPTS.captions, judged(rendered_up_to(9)), strict=True):
        assert prompt[-1].start == 1 + length(" ".join(caption.sentences[:-1]))


def test_the_floor_of_rendered_scenes_is_far_below_the_ceiling():
    assert floor_of(rendered_up_to(9), PROMPTS.captions)["late_detail"] < 15


def test_a_thing_drawn_in_an_unnamed_cell_is_noticed():
    number = next(i for i, scene in enumerate(PROMPTS.scenes) if len(scene.things) < 9)
    scene, captions = PROMPTS.scenes[number], [PROMPTS.captions[number]]
    empty = set(range(9)) - {thing.cell for thing in scene.things}
    extra = type(scene.things[0])(min(empty), "red", "star", "large")
    image = render(Scene(scene.background, (*scene.things, extra)))
    found = unnamed_cells(image[None], captions)
    assert found["filled_percent"] == pytest.approx(100 / len(empty))


def test_checker_rates_are_zero_on_rendered_scenes_and_see_a_wrong_picture():
    scenes = prompt_set(3, count=40).scenes
    images = np.stack([render(scene) for scene in scenes])
    rates = error_rates(images, scenes, seed=0)
    assert (rates["missed_percent"], rates["false_percent"], rates["filled_percent"]) == (0, 0, 0)
    assert error_rates(images[::-1], scenes, seed=0)["missed_percent"] > 85
    noisy = error_rates(with_noise(images, deviation=10, seed=0), scenes, seed=0)
    assert noisy["missed_percent"] < 1


def test_a_near_miss_has_one_wrong_property():
    thing, rng = PROMPTS.scenes[0].things[0], random.Random(0)
    for _ in range(50):
        other = near_miss(thing, rng)
        different = [
            part for part in ("cell", "colour", "shape", "size") if getattr(other, part) != getattr(thing, part)
        ]
        assert len(different) == 1
        assert different[0] != "cell"


@pytest.fixture(scope="module")
def base():
    return tiny_pipeline()


def test_a_short_encoder_is_measured_three_ways_and_a_long_one_once(base, tmp_path):
    short = TextEncoder.load(save_tiny_clip(tmp_path / "short"))
    long = TextEncoder.load(save_tiny_clip(tmp_path / "long", window=248, seed=1))
    ways = ways_of(base, "base-s0", short)
    assert [way.name for way in ways] == ["base-s0", "base-chunked-s0", "base-stretched-s0"]
    assert [way.pipe.tokenizer.model_max_length for way in ways] == [77, 77, 248]
    assert [way.name for way in ways_of(base, "debias-l0.1-s0", long)] == ["debias-l0.1-s0"]
    assert ways_of(base, "base", short)[1].name == "base-chunked"
    assert base.tokenizer.model_max_length == 77


def test_ways_share_their_noise_and_differ_where_they_read_on(base, tmp_path):
    cut, chunked, stretched = ways_of(base, "base", TextEncoder.load(save_tiny_clip(tmp_path)))
    text = PROMPTS.captions[0].text
    short = "There is a small red star in the top left."
    options = {"steps": 2, "guidance": 3.0}

    def pictures(way, prompt):
        return draw(way, [prompt], [5], **options)

    assert np.array_equal(pictures(cut, short), pictures(chunked, short))
    assert np.array_equal(pictures(cut, text), pictures(cut, text))
    assert not np.array_equal(pictures(cut, text), pictures(chunked, text))
    assert not np.array_equal(pictures(cut, text), pictures(stretched, text))
    alone, batched = pictures(cut, text), draw(cut, [short, text], [4, 5], **options)
    assert np.abs(alone[0].astype(int) - batched[1]).max() <= 1


def test_a_report_of_one_way_is_complete_and_repeatable(base, tmp_path):
    way = ways_of(base, "base", TextEncoder.load(save_tiny_clip(tmp_path)))[0]
    prompts, done = prompt_set(1, count=3), []
    result = evaluate_fidelity(way, prompts, seed=1, steps=2, batch=2, progress=done.append)
    assert done == [2, 1]
    assert result["prompts"] == 3
    assert len(result["late_per_prompt"]) == 3
    assert result["floor"]["late_detail"] is not None
    assert result == evaluate_fidelity(way, prompts, seed=1, steps=2, batch=2)


def test_the_checker_is_measured_through_the_vae(base):
    rates = measure_checker(prompt_set(0, count=4).scenes, base.vae, seed=0)
    assert list(rates) == ["rendered", "noise_10", "vae"]
    assert rates["rendered"]["missed_percent"] == 0
    assert rates["vae"]["missed_percent"] > 50  # a random VAE keeps nothing
