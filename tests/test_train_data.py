"""Pairs and batches: the same ones whatever the number of processes, and the recipes' short captions."""

import random

import numpy as np
import pytest
import torch

from debias_sd.sentences import split_sentences
from debias_sd.shapes.caption import length
from debias_sd.shapes.render import read_picture
from debias_sd.shapes.tokenizer import build_tokenizer
from tests.train_tiny import tiny_config
from train_encoder.data.batches import ClipTexts, Collator, short_text
from train_encoder.data.pairs import GlobalBatches
from train_encoder.data.shapes import ShapesPairs, cell_table
from train_encoder.pair_terms import Grounding

TEXT = "A summary of all. One is red. Two are blue. Three hide."


def make_batch(tmp_path, data, numbers, **settings):
    tokenizer = build_tokenizer(248)
    config = tiny_config(tmp_path, **settings)
    extras = (Grounding.collate,) if config.grounding_weight else ()
    collate = Collator(ClipTexts(tokenizer, 248, config.pad_id), config, data.preprocessing, extras)
    return tokenizer, collate([data[number] for number in numbers])


def test_processes_share_global_batches_and_short_captions_do_not_depend_on_their_neighbours(tmp_path):
    whole = list(GlobalBatches(8, rank=0, processes=1, start=0, total=3))
    halves = [list(GlobalBatches(4, rank=rank, processes=2, start=0, total=3)) for rank in (0, 1)]
    assert [a + b for a, b in zip(*halves, strict=True)] == whole
    assert list(GlobalBatches(8, rank=0, processes=1, start=1, total=3)) == whole[1:]
    assert sum(whole, []) == list(range(24))
    data = ShapesPairs(seed=0, short=False)
    tokenizer, whole = make_batch(tmp_path, data, range(8), recipe="debias")
    _, half = make_batch(tmp_path, data, range(4, 8), recipe="debias")
    width = half["short_ids"].shape[1]
    ends = (half["short_ids"] == tokenizer.eos_token_id).int().argmax(1)
    for row, end in enumerate(ends.tolist()):
        assert torch.equal(whole["short_ids"][4 + row, : end + 1], half["short_ids"][row, : end + 1])
    assert width <= whole["short_ids"].shape[1] or width == int(ends.max()) + 1


@pytest.mark.parametrize("short", [True, False])
def test_shapes_pairs_are_fixed_by_seed_and_number(short):
    one, again, other = (ShapesPairs(seed=seed, short=short) for seed in (1, 1, 2))
    first, second = one[5], again[5]
    assert first["text"] == second["text"]
    assert (first["image"] == second["image"]).all()
    assert first["text"] != other[5]["text"]


@pytest.mark.parametrize("short", [True, False])
def test_labels_are_what_the_picture_shows(short):
    for number in range(40):
        item = ShapesPairs(seed=0, short=short)[number]
        shown = [reading.thing for reading in read_picture(item["image"]) if reading.thing is not None]
        assert (cell_table(shown) == item["cells"]).all()
        is_named = item["named"].any(axis=1)
        assert (item["named"][is_named] == item["cells"][is_named]).all()
        mentioned, named = {thing.cell for _, thing in item["mentions"]}, set(np.flatnonzero(is_named).tolist())
        assert mentioned <= named
        assert len(named - mentioned) <= 2  # the summary names two things at once
        for end, thing in item["mentions"]:
            assert thing.colour in item["text"][:end]


def test_base_captions_fit_77_positions_and_use_them():
    data = ShapesPairs(seed=0, short=True)
    lengths = [length(data[number]["text"]) for number in range(300)]
    assert max(lengths) <= 75
    assert sum(n > 60 for n in lengths) > 30


def test_mentions_point_at_the_last_word_about_their_thing(tmp_path):
    data = ShapesPairs(seed=3, short=True)
    tokenizer, batch = make_batch(tmp_path, data, range(30), grounding_weight=1.0)
    total = sum(len(data[number]["mentions"]) for number in range(30))
    assert total > 60
    found = [(row, *one) for row, ones in enumerate(batch["mentions"].tolist()) for one in ones if one[0] >= 0]
    assert len(found) == total
    assert (batch["mentions"][batch["mentions"][..., 0] < 0] == -1).all()
    for row, position, cell, *look in found:
        assert data[row]["named"][cell].tolist() == look
        last = tokenizer.decode([int(batch["input_ids"][row, position])]).strip()
        following = tokenizer.decode([int(batch["input_ids"][row, position + 1])]).strip()
        assert last in (".", ",") or following == tokenizer.eos_token


def test_long_clips_short_caption_is_the_first_sentence_and_debias_reaches_every_other(tmp_path):
    data = ShapesPairs(seed=0, short=False)
    tokenizer, batch = make_batch(tmp_path, data, range(4), recipe="long-clip")
    for number, ids in enumerate(batch["short_ids"].tolist()):
        first = split_sentences(data[number]["text"])[0]
        assert ids[: ids.index(tokenizer.eos_token_id) + 1] == tokenizer(first)["input_ids"]
        assert batch["texts"][number] == data[number]["text"]
    rng = random.Random(0)
    draws = [split_sentences(short_text(TEXT, rng, remove_summary=True, subsample=True)) for _ in range(300)]
    assert {sentence for draw in draws for sentence in draw} == set(split_sentences(TEXT)[1:])
    assert {len(draw) for draw in draws} == {1, 2, 3}
    assert any(draw == split_sentences(TEXT)[:0:-1] for draw in draws)
    assert short_text("Only one.", rng, remove_summary=True, subsample=True) == "Only one."


def test_front_pads_lie_behind_the_start_token_and_change_no_token(tmp_path):
    data = ShapesPairs(seed=0, short=False)
    tokenizer, padded = make_batch(tmp_path, data, range(16), recipe="debias")
    _, plain = make_batch(tmp_path, data, range(16), recipe="debias", front_padding=False)
    counts = []
    for with_pads, without in zip(padded["short_ids"].tolist(), plain["short_ids"].tolist(), strict=True):
        text = without[1 : without.index(tokenizer.eos_token_id) + 1]
        end = with_pads.index(tokenizer.eos_token_id)
        count = end - len(text)
        assert with_pads[: end + 1] == [tokenizer.bos_token_id, *[0] * count, *text]
        counts.append(count)
    assert max(counts) > 60 > 20 > min(counts)
    assert padded["short_ids"].shape[1] <= 248
    assert plain["input_ids"].shape[1] == max(len(tokenizer(text)["input_ids"]) for text in plain["texts"])
