"""Held-out sets and retrieval: what they hold, that trimming changes nothing, and scores a human can check."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_world import save_tiny_clip

from debias_sd.captions import PROBES, split_sentences
from debias_sd.retrieval import (
    embed_ids,
    embed_texts,
    evaluate_retrieval,
    family_share,
    load_dual_encoder,
    score,
)
from debias_sd.shapes.heldout import FAMILY, short_kinds, short_set, twin_set
from debias_sd.shapes.reading import read_sentence


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return load_dual_encoder(save_tiny_clip(tmp_path_factory.mktemp("base")))


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    return load_dual_encoder(save_tiny_clip(tmp_path_factory.mktemp("long"), window=248))


def test_twins_differ_in_one_detail_that_stands_in_the_second_half():
    twins = twin_set(0, families=20)
    assert len(twins.scenes) == len(twins.captions) == 20 * FAMILY
    for at in range(0, len(twins.scenes), FAMILY):
        family = twins.scenes[at : at + FAMILY]
        assert len(set(family)) == FAMILY
        changed = twins.changed[at]
        assert changed >= 2
        unchanged = {(*scene.things[:changed], *scene.things[changed + 1 :]) for scene in family}
        assert len(unchanged) == 1
        for scene, caption in zip(family, twins.captions[at : at + FAMILY], strict=True):
            place = [things for things in caption.named[1:]].index((scene.things[changed],)) + 1
            assert place > len(caption.named[1:]) / 2
            assert scene.things[changed] not in caption.named[0]


def test_a_seed_gives_the_same_sets_and_another_seed_none_of_the_same_scenes():
    assert twin_set(3, families=5) == twin_set(3, families=5)
    assert not set(twin_set(3, families=5).scenes) & set(twin_set(4, families=5).scenes)
    assert not set(short_set(3, count=5).scenes) & set(twin_set(3, families=5).scenes)


def test_short_texts_are_about_what_their_name_says():
    short = short_set(1, count=30)
    assert list(short.texts) == short_kinds()
    for index, scene in enumerate(short.scenes):
        assert set(read_sentence(short.texts["summary"][index])) == set(scene.main)
        assert set(read_sentence(short.texts["arbitrary"][index])) <= set(scene.details)
        for number in (1, 2, 3, 4):
            sentences = split_sentences(short.texts[f"details_{number}"][index])
            assert len(sentences) == number
            assert {thing for s in sentences for thing in read_sentence(s)} <= set(scene.details)


def test_probes_keep_every_named_thing_of_a_caption_but_the_removed_summary():
    caption = twin_set(0, families=1).captions[0]
    assert split_sentences(caption.text) == list(caption.sentences)
    assert split_sentences(PROBES["remove"](caption.text)) == list(caption.sentences[1:])
    moved = split_sentences(PROBES["move"](caption.text))
    assert moved[0] == caption.sentences[3]
    assert moved[3] == caption.sentences[0]


def test_trimmed_sorted_batches_give_the_features_of_untrimmed_rows(long):
    texts = [caption.text for caption in twin_set(0, families=3).captions] + ["a small red star"]
    ids = long.tokens_of(texts)
    with torch.inference_mode():
        plain = long.model.get_text_features(input_ids=ids).pooler_output
    plain = torch.nn.functional.normalize(plain, dim=-1).numpy()
    np.testing.assert_allclose(embed_ids(long, ids, batch=4), plain, atol=1e-5)


def test_an_encoder_reads_its_own_window_and_no_more(base, long):
    caption = twin_set(0, families=1).captions[0].text
    assert len(base.tokenizer(caption)["input_ids"]) > 77
    other = caption[:-1] + ", easy to miss."
    for encoder, reads_on in ((base, False), (long, True)):
        features = embed_texts(encoder, [caption, other])
        assert (np.abs(features[0] - features[1]).max() > 1e-6) == reads_on


def test_scores_of_a_hand_made_example():
    images = np.eye(3, dtype=np.float32)
    texts = np.array([[1, 0, 0], [0, 0, 1], [0, 1, 0]], np.float32)  # two of three captions swapped
    result = score(images, texts)
    assert result["t2i"]["r1"] == pytest.approx(100 / 3)
    assert result["t2i"]["r5"] == 100
    assert result["i2t"]["mean_rank"] == pytest.approx((1 + 3 + 3) / 3)


def test_twin_percent_counts_ties_against_us():
    images = np.eye(4, dtype=np.float32)
    assert family_share(images, np.eye(4, dtype=np.float32)) == 100
    assert family_share(images, np.ones((4, 4), np.float32)) == 0
    texts = np.eye(4, dtype=np.float32)[[0, 1, 3, 2]]
    assert family_share(images, texts) == 50


def test_report_of_an_encoder_has_every_set_and_null_where_pads_do_not_fit(base, long):
    short_window = evaluate_retrieval(base, seed=0, families=3, short=8)
    long_window = evaluate_retrieval(long, seed=0, families=3, short=8)
    assert set(short_window["probes"]) == set(PROBES)
    assert set(short_window["short"]) == set(short_kinds())
    for kind in ("summary", "arbitrary"):
        assert short_window["pads"][kind]["20"] is not None
        assert short_window["pads"][kind]["80"] is None
        assert short_window["pads"][kind]["120"] is None
        assert None not in long_window["pads"][kind].values()
    assert short_window["texts_sha256"] == long_window["texts_sha256"]
    assert short_window["twin_tokens_read_mean"] == 77 < long_window["twin_tokens_read_mean"]
    assert short_window == evaluate_retrieval(base, seed=0, families=3, short=8)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-1000]), "is truncated or damaged"),
        (lambda path: keep_tensors(path, "text_model."), "lacks .* tensors, .* retrieval needs both towers"),
        (lambda path: keep_tensors(path, "vision_model."), "holds no CLIP text tower"),
    ],
    ids=["truncated", "text only", "pictures only"],
)
def test_weights_that_are_not_whole_are_refused(tmp_path, spoil, sentence):
    spoil(save_tiny_clip(tmp_path) / "model.safetensors")
    with pytest.raises(ValueError, match=sentence):
        load_dual_encoder(tmp_path)


def keep_tensors(path, prefix):
    state = {name: tensor for name, tensor in load_file(path).items() if name.startswith(prefix)}
    save_file(state, path, metadata={"format": "pt"})


def test_a_folder_without_image_tower_is_refused(tmp_path, base):
    with pytest.raises(ValueError, match="holds no readable config.json; give the folder"):
        load_dual_encoder(tmp_path)
    text_only = tmp_path / "text"
    base.model.text_model.save_pretrained(text_only)
    base.tokenizer.save_pretrained(text_only)
    with pytest.raises(ValueError, match="holds a clip_text_model model, retrieval needs a CLIPModel"):
        load_dual_encoder(text_only)
