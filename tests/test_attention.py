"""Attention from the end token and sensitivity, on encoders whose answer is known."""

import random

import numpy as np
import pytest
import torch
from tiny_world import save_tiny_clip

from debias_sd.attention import (
    end_attention,
    evaluate_attention,
    half_of,
    relative_attention,
    sensitivity,
    sentence_slots,
    with_changed_thing,
)
from debias_sd.retrieval import load_dual_encoder
from debias_sd.shapes.caption import detail_sentence
from debias_sd.shapes.heldout import prompt_set
from debias_sd.shapes.reading import read_sentence
from debias_sd.shapes.scene import random_scene


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    return load_dual_encoder(save_tiny_clip(tmp_path_factory.mktemp("long"), window=248), attention="eager")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return load_dual_encoder(save_tiny_clip(tmp_path_factory.mktemp("base")), attention="eager")


CAPTIONS = prompt_set(0, count=6).captions
TEXTS = [caption.text for caption in CAPTIONS]


def test_attention_sums_to_one_up_to_the_end_token_and_ignores_the_batch(long):
    mean, last = end_attention(long, TEXTS, batch=4)
    for attention in (mean, last):
        np.testing.assert_allclose(np.nansum(attention, axis=1), 1, atol=1e-5)
        lengths = [len(long.tokenizer(text)["input_ids"]) for text in TEXTS]
        assert (~np.isnan(attention)).sum(axis=1).tolist() == lengths
    alone, _ = end_attention(long, TEXTS[:1])
    np.testing.assert_allclose(alone[0], mean[0], atol=1e-6)


def test_uniform_attention_is_one_in_every_sentence(long):
    attention = np.full((len(TEXTS), 248), 0.01, np.float32)
    relative = relative_attention(long, CAPTIONS, attention)
    np.testing.assert_allclose(relative["by_sentence"], 1, atol=1e-6)
    assert relative["first_half"] == pytest.approx(1)
    assert relative["second_half"] == pytest.approx(1)


def test_attention_on_one_sentence_is_found_there(long):
    attention = np.full((len(TEXTS), 248), 1e-9, np.float32)
    for row, caption in zip(attention, CAPTIONS, strict=True):
        row[sentence_slots(long, caption)[2]] = 0.05
    by_sentence = relative_attention(long, CAPTIONS, attention)["by_sentence"]
    assert int(np.argmax(by_sentence)) == 2
    assert by_sentence[1] < 1e-5


def test_sentence_slots_cover_the_caption_and_end_at_the_window(base, long):
    for caption in CAPTIONS:
        slots = sentence_slots(long, caption)
        ids = long.tokens_of([caption.text])[0]
        for slot, sentence in zip(slots, caption.sentences, strict=True):
            assert long.tokenizer.decode(ids[slot]).replace(" ", "") == sentence.lower().replace(" ", "")
        assert sentence_slots(base, caption)[-1].stop == 76


def test_halves():
    assert [half_of(index, 4) for index in (1, 2, 3, 4)] == [0, 0, 1, 1]


def test_a_changed_sentence_names_another_thing_in_the_same_place():
    rng = random.Random(0)
    for _ in range(200):
        scene = random_scene(rng)
        thing = rng.choice(scene.things)
        sentence = detail_sentence(thing, scene, rng)
        (changed,) = read_sentence(with_changed_thing(sentence, thing, rng))
        assert changed.cell == thing.cell
        assert changed.size == thing.size
        assert changed.colour != thing.colour
        assert changed.shape != thing.shape


def test_an_encoder_that_reads_77_tokens_does_not_feel_what_stands_behind(base, long):
    cut, whole = sensitivity(base, CAPTIONS, seed=0), sensitivity(long, CAPTIONS, seed=0)
    assert cut["by_sentence"][-1] == pytest.approx(0, abs=1e-6)
    assert cut["summary"] > 1e-5
    assert whole["by_sentence"][-1] > 1e-5


def test_report_has_a_value_for_every_position_and_names_the_texts(long):
    report = evaluate_attention(long, seed=1, count=5)
    longest = max(len(long.tokenizer(c.text)["input_ids"]) for c in prompt_set(1, count=5).captions)
    for curve in report["positions"].values():
        assert len(curve) == longest
    assert report["positions"]["captions"][0] == 5
    assert sum(report["relative"]["captions"]) == sum(len(c.sentences) for c in prompt_set(1, count=5).captions)
    assert report["texts_sha256"] == evaluate_attention(long, seed=1, count=5)["texts_sha256"]


def test_sdpa_is_refused(tmp_path):
    encoder = load_dual_encoder(save_tiny_clip(tmp_path), attention="sdpa")
    with torch.no_grad(), pytest.raises(ValueError, match="load it with attention='eager'"):
        end_attention(encoder, TEXTS[:1])
