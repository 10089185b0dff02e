"""The embedded world as data: what its sets hold, how they are measured, and encoders that cannot be."""

import itertools

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_world import save_tiny_clip

from debias_sd import cli
from debias_sd.datasets.world import FAMILY, TWINS, short_kinds, short_set, twin_set, world_prompts, world_records
from debias_sd.datasets.world import PROBES as WORLD_PROBES
from debias_sd.measure.embedding import Embedder, FeatureCache
from debias_sd.measure.processes import Processes
from debias_sd.measure.retrieval import Plan, measure_sets
from debias_sd.measure.towers import load_towers
from debias_sd.probes import PROBES
from debias_sd.report import Report
from debias_sd.sentences import split_sentences
from debias_sd.shapes.caption import read_sentence
from debias_sd.tokens import front_pad, tokenize


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Of two encoders with windows of 77 and 248 tokens."""
    root = tmp_path_factory.mktemp("world")
    found = {name: save_tiny_clip(root / name, window=window) for name, window in (("short", 77), ("long", 248))}
    for folder in found.values():
        (folder / "known_words.json").write_text('["red"]')  # by which a folder of the embedded world is known
    return found


def embedder(folder) -> Embedder:
    return Embedder(load_towers(folder), FeatureCache(None, ""), Processes())


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


def test_a_seed_gives_the_same_sets_whose_short_texts_are_about_what_their_name_says():
    assert twin_set(3, families=5) == twin_set(3, families=5)
    assert not set(twin_set(3, families=5).scenes) & set(twin_set(4, families=5).scenes)
    assert not set(short_set(3, count=5).scenes) & set(twin_set(3, families=5).scenes)
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


def test_an_encoder_reads_its_own_window_and_no_more(folders):
    caption = twin_set(0, families=1).captions[0].text
    other = caption[:-1] + ", easy to miss."
    for name, reads_on in (("short", False), ("long", True)):
        features = embedder(folders[name]).texts([caption, other])
        assert (np.abs(features[0] - features[1]).max() > 1e-6) == reads_on


def test_pads_stand_behind_the_start_token_as_in_training(folders):
    one = embedder(folders["long"])
    texts, towers = world_prompts(seed=0, count=3), one.towers
    end = towers.tokenizer.eos_token_id
    ids = front_pad(
        tokenize(towers.tokenizer, texts, length=248, pad_id=0), torch.tensor([20] * 3), pad_id=0, end_id=end
    )
    expected = torch.nn.functional.normalize(towers.text_features(ids), dim=-1).numpy()
    np.testing.assert_allclose(one.texts(texts, pads=20), expected, atol=1e-6)
    assert np.abs(one.texts(texts) - expected).max() > 1e-3
    assert towers.ids_of(texts, pads=20)[1] == [length + 20 for length in towers.ids_of(texts)[1]]


def test_the_sets_are_those_of_the_seed_with_a_caption_a_picture():
    assert list(WORLD_PROBES) == [TWINS, *(f"world-{kind.replace('_', '-')}" for kind in short_kinds())]
    shorts = short_set(2, count=3)
    for name, kind in zip(itertools.islice(WORLD_PROBES, 1, None), short_kinds(), strict=True):
        records = world_records(name, seed=2, count=3)
        assert [record.captions for record in records] == [(text,) for text in shorts.texts[kind]]
        assert records.family == 1
    twins = world_records(seed=2, count=9)
    assert (len(twins), twins.family) == (2 * FAMILY, FAMILY)
    assert [record.captions[0] for record in twins] == [c.text for c in twin_set(2, families=2).captions]


def test_every_set_is_measured_under_its_probes_and_pads_that_do_not_fit_are_left_out(folders):
    sets = [world_records(name, seed=0, count=8) for name in WORLD_PROBES]
    embedders = {name: embedder(folder) for name, folder in folders.items()}
    measured = measure_sets(embedders, sets, Plan(samples=5, by_set=WORLD_PROBES))
    short, long = (measured.encoders[name]["sets"] for name in ("short", "long"))
    assert {name: tuple(found["probes"]) for name, found in long.items()} == WORLD_PROBES
    fits = ["keep", "pads20", "pads40"]
    assert {name: list(short[name]["probes"]) for name in ("world-summary", "world-arbitrary")} == dict.fromkeys(
        ("world-summary", "world-arbitrary"), fits
    )
    assert list(measured.differences["world-summary"]["short - long"]) == fits
    assert 0 <= long[TWINS]["probes"]["keep"]["twin_percent"] <= 100
    assert "twin_percent" not in long["world-summary"]["probes"]["keep"]


@pytest.mark.parametrize("kind", ["retrieval", "attention"])
def test_the_world_is_what_is_measured_where_nothing_is_named(folders, tmp_path, kind):
    command = ["evaluate", kind, "--encoder", f"a={folders['long']}", "--no-cache", "--count", "4", "--samples", "5"]
    for name, options in (("plain", []), ("named", ["--data", "world"])):
        assert cli.main([*command, *options, "--out", str(tmp_path / name)]) == 0
    plain, named = (Report.read(tmp_path / name) for name in ("plain", "named"))
    assert (plain.kind, plain.settings, plain.encoders) == (named.kind, named.settings, named.encoders)
    found = plain.encoders["a"]
    assert list(found["sets"] if kind == "retrieval" else found["reading"]) == (
        list(WORLD_PROBES) if kind == "retrieval" else ["world"]
    )


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
        load_towers(tmp_path)


def keep_tensors(path, prefix):
    state = {name: tensor for name, tensor in load_file(path).items() if name.startswith(prefix)}
    save_file(state, path, metadata={"format": "pt"})


def test_a_folder_without_image_tower_is_refused(tmp_path, folders):
    with pytest.raises(ValueError, match="holds no readable config.json; give the folder"):
        load_towers(tmp_path)
    text_only, towers = tmp_path / "text", load_towers(folders["short"])
    towers.model.text_model.save_pretrained(text_only)
    towers.tokenizer.save_pretrained(text_only)
    with pytest.raises(ValueError, match="holds a clip_text_model model but retrieval needs a CLIPModel"):
        load_towers(text_only)
