"""The embedded world: scenes, captions, pictures, and the two ways back, from words and from pixels."""

import random
import re
import statistics

import numpy as np
import pytest

from debias_sd.sentences import split_sentences
from debias_sd.shapes import caption as captions
from debias_sd.shapes.caption import (
    Caption,
    detail_sentence,
    length,
    long_caption,
    name_place,
    opening_caption,
    read_sentence,
    sentence_caption,
    short_caption,
    tag_caption,
    words,
)
from debias_sd.shapes.render import SIDE, all_looks, cell_box, judge, mask, read_picture, render, tile
from debias_sd.shapes.scene import BACKGROUNDS, COLOURS, SHAPES, SIZES, Scene, Thing, random_scene, twins
from debias_sd.shapes.tokenizer import bpe_merges, build_tokenizer, byte_alphabet


def scenes(count: int, *, seed: int = 0, things: int | None = None) -> list[Scene]:
    return [random_scene(random.Random(f"{seed}/{index}"), things) for index in range(count)]


@pytest.mark.parametrize("count", range(1, 10))
def test_a_scene_has_its_things_in_different_cells_and_large_main_things(count):
    for scene in scenes(50, things=count):
        assert len(scene.things) == count == len({thing.cell for thing in scene.things})
        assert all(thing.size == "large" for thing in scene.main)
        assert scene.main + scene.details == scene.things


def test_a_scene_is_a_function_of_its_seed_and_every_property_comes_about_equally_often():
    assert scenes(20) == scenes(20)
    assert len(set(scenes(200))) == 200
    assert {len(scene.things) for scene in scenes(100)} == {7, 8, 9}
    things = [thing for scene in scenes(1500) for thing in scene.things]
    for part, values in (("colour", tuple(COLOURS)), ("shape", SHAPES), ("cell", range(9))):
        shares = [sum(getattr(t, part) == value for t in things) / len(things) * len(values) for value in values]
        assert min(shares) > 0.9
        assert max(shares) < 1.1


@pytest.mark.parametrize("count", [0, 10, -1])
def test_a_scene_of_no_or_ten_things_is_refused(count):
    with pytest.raises(ValueError, match=f"found count={count}; choose"):
        random_scene(random.Random(0), count)


def test_twins_differ_in_one_detail():
    for number, scene in enumerate(scenes(50)):
        index, family = twins(scene, random.Random(number), 4)
        assert family[0] == scene
        assert len(set(family)) == 4
        assert index >= 2
        for twin in family[1:]:
            assert [i for i in range(len(scene.things)) if twin.things[i] != scene.things[i]] == [index]
            assert (twin.things[index].cell, twin.things[index].size) == (
                scene.things[index].cell,
                scene.things[index].size,
            )
    with pytest.raises(ValueError, match="3 things or more"):
        twins(random_scene(random.Random(0), 2), random.Random(0), 4)


def read_all(caption: Caption) -> list[tuple[Thing, ...]]:
    return [tuple(read_sentence(sentence)) for sentence in caption.sentences]


@pytest.mark.parametrize("make", [long_caption, sentence_caption, opening_caption])
def test_every_sentence_reads_back_as_what_it_names(make):
    for number, scene in enumerate(scenes(300)):
        caption = make(scene, random.Random(number))
        assert read_all(caption) == list(caption.named)
        assert split_sentences(caption.text) == list(caption.sentences)
        assert all(thing in scene.things for named in caption.named for thing in named)


def test_long_captions_name_everything_the_late_thing_late_and_short_ones_read_back():
    lengths = []
    for number, scene in enumerate(scenes(500)):
        caption = long_caption(scene, random.Random(number))
        lengths.append(length(caption.text) + 2)
        assert caption.named[0] == scene.main
        assert sorted(t.cell for named in caption.named[1:] for t in named) == sorted(t.cell for t in scene.things)
    assert min(lengths) > 77
    assert max(lengths) <= 240
    assert 100 < statistics.mean(lengths) < 180
    for number, scene in enumerate(scenes(300)):
        rng = random.Random(number)
        assert set(read_sentence(tag_caption(scene, rng).text)) == set(scene.things)
        pair = tuple(rng.sample(scene.things, 2))
        assert tuple(read_sentence(short_caption(pair, scene, rng).text)) == pair
    for number, scene in enumerate(scenes(200)):
        index = random.Random(number).randrange(2, len(scene.things))
        named = long_caption(scene, random.Random(number), late=index).named[1:]
        assert named.index((scene.things[index],)) >= len(named) / 2
        assert len(named) == len(scene.things)


def test_captions_have_the_length_that_the_world_says_and_those_for_77_positions_fit():
    tokenizer = build_tokenizer()
    for number, scene in enumerate(scenes(200)):
        for make in (tag_caption, sentence_caption, opening_caption):
            assert len(tokenizer(make(scene, random.Random(number)).text)["input_ids"]) <= 77
    for number, scene in enumerate(scenes(50)):
        caption = long_caption(scene, random.Random(number)).text
        assert len(tokenizer(caption, add_special_tokens=False, verbose=False)["input_ids"]) == length(caption)


def test_the_wording_varies_and_no_word_of_the_evaluation_template_is_new():
    scene = scenes(1)[0]
    firsts = {long_caption(scene, random.Random(n)).sentences[0] for n in range(100)}
    details = {detail_sentence(scene.things[3], scene, random.Random(n)) for n in range(100)}
    assert min(len(firsts), len(details)) > 30
    # `SHORT` is unseen as a template; its words must be trained ones, or it would test spelling.
    seen = set(re.findall("[a-z]+", " ".join([*captions.SUMMARIES, *captions.SENTENCES, *captions.ASIDES]).lower()))
    assert set(re.findall("[a-z]+", re.sub(r"{.}", " ", captions.SHORT).lower())) <= seen


@pytest.mark.parametrize("cell", range(9))
def test_every_name_of_a_place_reads_back(cell):
    names = {name_place(cell, random.Random(number)) for number in range(200)}
    for name in names:
        assert read_sentence(f"There is a small red star in {name}.") == [Thing(cell, "red", "star", "small")], name


@pytest.mark.parametrize(
    ("sentence", "things"),
    [
        ("A BIG BLUE BOX in the UPPER LEFT corner", [Thing(0, "blue", "square", "large")]),
        ("tiny green hoops, lower middle", [Thing(7, "green", "ring", "small")]),
        ("a red star in the top left", []),  # no size
        ("a small red star", []),  # no place
        ("a small pink star in the center", []),
        ("Beautiful, 8k, detailed", []),
        ("", []),
        ("a small red star in the center and a big blue disc", []),  # two things, one place
    ],
)
def test_what_a_person_types_is_read_or_left_unjudged(sentence, things):
    assert read_sentence(sentence) == things


def test_every_scene_reads_back_from_its_pixels_and_every_look_differs():
    for scene in scenes(400) + scenes(50, seed=1, things=1):
        readings = read_picture(render(scene))
        assert {r.thing for r in readings if r.thing} == set(scene.things)
        assert {r.background for r in readings} == {scene.background}
        assert max(r.distance for r in readings) < 1
    tiles = [tile(background, *look) for background in BACKGROUNDS for look in all_looks()]
    assert len({t.tobytes() for t in tiles}) == len(BACKGROUNDS) * len(COLOURS) * len(SHAPES) * len(SIZES)


def test_a_wrong_colour_shape_size_or_cell_is_not_drawn_and_noise_is_unsure():
    scene = Scene("gray", (Thing(0, "red", "star", "large"), Thing(4, "blue", "ring", "small")))
    image = render(scene)
    assert all(verdict.drawn for verdict in judge(image, scene.things))
    wrong = [Thing(0, "green", "star", "large"), Thing(0, "red", "cross", "large"), Thing(0, "red", "star", "small")]
    wrong += [Thing(1, "red", "star", "large"), Thing(4, "red", "star", "large")]
    assert not any(verdict.drawn for verdict in judge(image, wrong))
    assert judge(image, wrong)[3].found.thing is None
    noise = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    thing = Thing(0, "red", "star", "large")
    assert judge(noise, [thing])[0].unsure
    assert not judge(render(Scene("white", (thing,))), [thing])[0].unsure


def test_enlarged_pictures_are_read_and_others_refused():
    scene = scenes(1)[0]
    large = np.kron(render(scene), np.ones((8, 8, 1), np.uint8))
    assert {r.thing for r in read_picture(large) if r.thing} == set(scene.things)
    for shape in ((48, 48), (48, 96, 3), (50, 50, 3), (48, 48, 4)):
        with pytest.raises(ValueError, match="reads square RGB pictures"):
            read_picture(np.zeros(shape, np.uint8))


def test_a_picture_is_its_tiles_and_large_shapes_cover_more_than_small_ones():
    scene = scenes(1, things=9)[0]
    image = render(scene)
    assert image.shape == (48, 48, 3)
    assert image.dtype == np.uint8
    for thing in scene.things:
        assert np.array_equal(
            image[cell_box(thing.cell)], tile(scene.background, thing.colour, thing.shape, thing.size)
        )
    for shape in SHAPES:
        large, small = mask(shape, "large"), mask(shape, "small")
        assert large.sum() > 1.5 * small.sum()
        assert np.abs(large - large[:, ::-1]).max() < 0.2  # left and right alike


def test_the_tokenizer_knows_every_word_spells_out_the_rest_and_survives_saving(tmp_path):
    tokenizer = build_tokenizer(248)
    for word in words():
        assert len(tokenizer(word, add_special_tokens=False)["input_ids"]) == 1, word
    for text in ("naïve façade", "星がある", "🙂", "supercalifragilistic 8k", "A\tb\n c"):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.eos_token_id not in ids
        assert "".join(tokenizer.decode(ids).split()) == "".join(text.lower().split())
    assert tokenizer.model_max_length == 248
    from transformers import CLIPTokenizer

    tokenizer.save_pretrained(tmp_path)
    again = CLIPTokenizer.from_pretrained(tmp_path)
    text = long_caption(scenes(1)[0], random.Random(0)).text + " naïve 🙂"
    assert again(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert again.model_max_length == 248


def test_the_end_token_is_the_highest_id_and_the_pad_behind_alphabet_and_merges():
    tokenizer = build_tokenizer()
    assert tokenizer.eos_token_id == len(tokenizer) - 1 == tokenizer.pad_token_id
    assert tokenizer.bos_token_id == len(tokenizer) - 2
    ids = tokenizer("a star", padding="max_length")["input_ids"]
    assert len(ids) == 77
    assert ids[:1] == [tokenizer.bos_token_id]
    assert set(ids[3:]) == {tokenizer.eos_token_id}
    assert len(set(byte_alphabet())) == 256
    merges = bpe_merges(["star", "stars", "square"])
    assert merges[:3] == [("s", "t"), ("st", "a"), ("sta", "r</w>")]
    assert len(merges) == len(set(merges))
