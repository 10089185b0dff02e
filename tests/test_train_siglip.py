"""SigLIP as a start: both recipes train, save, reload and evaluate equal, with both tokenizers; what is refused."""

import json
import math
import random

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import load_file
from transformers import AutoImageProcessor, AutoTokenizer, SiglipModel

from debias_sd.cli import main as debias_sd
from debias_sd.measure.towers import load_towers
from tests.gradient_step import first_step, largest_difference
from tests.tiny import edit_json
from tests.tiny_sets import check_ranks
from tests.tiny_siglip import HAS_SENTENCEPIECE, STRETCHED, STYLES, make_pictures, make_siglip
from tests.train_tiny import tiny_config, tiny_settings, train_tiny
from train_encoder.data.batches import SiglipTexts
from train_encoder.heldout import PROBED, read_heldout
from train_encoder.model.bases import load_start
from train_encoder.model.families import SIGLIP, family_of
from train_encoder.prepare import prepare
from train_encoder.watch import evaluate

pytestmark = pytest.mark.usefixtures("fresh_accelerator")
TABLE = "text_model.embeddings.position_embedding.weight"


@pytest.fixture(scope="module")
def starts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("siglip")
    styles = ("siglip", "siglip2", *(["own"] if HAS_SENTENCEPIECE else []))
    return {style: make_siglip(folder / style, style) for style in styles}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return make_pictures(tmp_path_factory.mktemp("pictures"))


def settings_of(start, pictures, **more):
    settings = {"pretrained_model_name_or_path": str(start), "train_data": pictures, "train_batch_size": 4}
    return settings | {"recipe": "debias", "label_smoothing": 0.0} | more


@pytest.mark.parametrize("style", STYLES)
def test_texts_fill_the_window_and_front_pads_lose_no_token(starts, style):
    tokenizer = AutoTokenizer.from_pretrained(starts[style])
    texts, pad = SiglipTexts(tokenizer, 24), tokenizer.pad_token_id
    row = tokenizer("a red star")["input_ids"]
    assert row[-1] == tokenizer.eos_token_id == 1
    assert texts.ids(["A RED Star"]).tolist() == [row + [pad] * (24 - len(row))]
    whole = tokenizer("the sky is blue " * 9)["input_ids"]
    assert texts.ids(["the sky is blue " * 9]).tolist() == [[*whole[:23], 1]]
    fronts = set()
    for seed in range(300):
        ids = texts.front_padded(["a red star"], [random.Random(seed)])[0].tolist()
        front = next(place for place in range(24) if ids[place : place + len(row)] == row)
        assert ids == [pad] * front + row + [pad] * (24 - len(row) - front)
        fronts.add(front)
    assert fronts == set(range(24 - len(row) + 1))
    assert texts.cut(texts.ids(["a"])).shape == (1, 24)
    assert torch.equal(*(make(["the sky is blue " * 9]) for make in (texts.ids, padded_by(texts))))


def padded_by(texts):
    return lambda captions: texts.front_padded(captions, [random.Random(0)] * len(captions))


@pytest.mark.parametrize("style", STYLES)
def test_features_and_gradients_are_stock_transformers(starts, tmp_path, style):
    """The last layer is computed for the pooled position alone; pads are read, so another pad is another text."""
    settings = {"recipe": "debias", "attn_implementation": "sdpa"}  # eager computes in float32 whatever the weights
    start = load_start(tiny_config(tmp_path, **settings, pretrained_model_name_or_path=str(starts[style])))
    model = start.model.double()
    towers = SIGLIP.towers(model, None)
    assert family_of(model) is SIGLIP
    ids = SiglipTexts(start.tokenizer, 64).ids(["a red star.", "the sky is blue. " * 20, ""])
    pixels = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    out = towers({"pixel_values": pixels, "input_ids": ids, "short_ids": ids.roll(1, 0)})
    wanted = {"text": model.get_text_features(input_ids=ids), "image": model.get_image_features(pixel_values=pixels)}
    wanted = {name: found.pooler_output for name, found in wanted.items()} | {
        "short": model.get_text_features(input_ids=ids.roll(1, 0)).pooler_output
    }
    for name, features in wanted.items():
        torch.testing.assert_close(out[name], features, atol=1e-12, rtol=1e-10)
    weights = dict(model.named_parameters())
    grads = [torch.autograd.grad(made["text"].square().sum(), [weights[n] for n in weights if "text" in n])
             for made in (out, wanted)]  # fmt: skip
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, atol=1e-11, rtol=1e-9)
    other_pad = ids.clone()
    other_pad[0, -1] = 5
    assert (towers.text_features(other_pad)[0] - wanted["text"][0]).abs().max() > 1e-4


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("recipe", ["debias", "long-clip"])
def test_both_recipes_train_are_saved_and_evaluate_the_same(starts, pictures, tmp_path, style, recipe):
    settings = settings_of(starts[style], pictures, recipe=recipe, eval_data=pictures, eval_steps=3)
    folder = train_tiny(tmp_path / "run", **settings, learning_rate=0.01)
    last = json.loads((folder / "eval_log.jsonl").read_text().splitlines()[-1])
    start, end = (load_file(one / "model.safetensors") for one in (starts[style], folder))
    assert end[TABLE].shape[0] == STRETCHED
    assert torch.equal(start[TABLE][:20], end[TABLE][:20])
    assert all((start[n] != end[n]).any() for n in start if n != TABLE and not n.endswith("k_proj.bias"))

    model, tokenizer = SiglipModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.config.text_config.max_position_embeddings == tokenizer.model_max_length == STRETCHED
    AcceleratorState._reset_state(reset_partial_state=True)
    settings |= {"pretrained_model_name_or_path": str(folder), "stretch_factor": 1}
    again = tiny_config(tmp_path / "again", **settings)
    run = prepare(again)
    heldout = read_heldout(again, run.preprocessing)

    towers = load_towers(folder)
    assert towers.window == STRETCHED
    pixels = towers.preprocessing.normalise(heldout.pictures)
    texts = {name: torch.tensor(towers.ids_of(heldout.texts[name])[0]) for name in PROBED}
    assert all(torch.equal(ids, run.texts.ids(heldout.texts[name])) for name, ids in texts.items())
    with torch.no_grad():
        images, again = (one.image_features(pixels) for one in (towers, run.towers))
        features = {name: (towers.text_features(ids), run.towers.text_features(ids)) for name, ids in texts.items()}
    for left, right in ((images, again), *features.values()):
        torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-4)
    theirs = AutoImageProcessor.from_pretrained(folder)([p.copy() for p in heldout.pictures], return_tensors="pt")
    torch.testing.assert_close(theirs["pixel_values"], pixels, atol=1e-5, rtol=0)
    measured = measured_by_the_command(folder, pictures, tmp_path / "report.json")
    images = torch.nn.functional.normalize(images, dim=-1).numpy()
    for name, (text, _) in features.items():
        text = torch.nn.functional.normalize(text, dim=-1).numpy()
        check_ranks(measured[name], images, text, np.arange(len(text)), few_ties=False)
        for logged in (last, evaluate(run, heldout)):
            own = {way: {"r1": logged[f"{name}_{way}_r1"]} for way in ("t2i", "i2t")}
            check_ranks(own, images, text, np.arange(len(text)), few_ties=False)


def measured_by_the_command(folder, pictures, out):
    """The probes as `debias-sd evaluate retrieval --data` measures them."""
    options = f"--encoder ours={folder} --data jsonl:{pictures} --no-cache --samples 10 --device cpu --out {out}"
    assert debias_sd(["evaluate", "retrieval", *options.split(), "--probes", *PROBED]) == 0
    return json.loads(out.read_text())["encoders"]["ours"]["sets"]["jsonl"]["probes"]


def test_what_is_written_says_what_it_is_for(starts, pictures, tmp_path):
    folder = train_tiny(tmp_path / "run", **settings_of(starts["siglip2"], pictures, max_train_steps=2))
    card = (folder / "README.md").read_text()
    assert "A SigLIP whose text encoder reads 196 tokens, trained with the `debias` recipe" in card
    assert "from transformers import SiglipModel, AutoTokenizer" in card
    assert "No Stable Diffusion reads a SigLIP" in card
    assert "load_debias_pipeline" not in card
    pictures_config = json.loads((folder / "preprocessor_config.json").read_text())
    assert (pictures_config["size"], pictures_config["resample"]) == ({"height": 32, "width": 32}, 2)
    row = json.loads((folder / "train_log.jsonl").read_text().splitlines()[0])
    assert row["loss"] == pytest.approx(0.1 * row["short"] + 0.9 * row["long"], rel=1e-5)


def test_pictures_are_read_whole(starts, pictures, tmp_path):
    run = prepare(tiny_config(tmp_path, **settings_of(starts["siglip"], pictures)))
    seen = run.data.picture(3)
    assert seen.shape == (32, 32, 3)
    assert seen[:, 0, 2].min() > 150  # the edge is there: no centre square was cut
    assert tuple(run.data.preprocessing.mean) == (0.5, 0.5, 0.5)


def test_a_temperature_above_100_is_not_clamped_and_the_bias_trains(starts, pictures, tmp_path):
    start = SiglipModel.from_pretrained(starts["siglip"])
    torch.nn.init.constant_(start.logit_scale, math.log(120))
    start.save_pretrained(tmp_path / "hot")
    AutoTokenizer.from_pretrained(starts["siglip"]).save_pretrained(tmp_path / "hot")
    folder = train_tiny(tmp_path / "run", **settings_of(tmp_path / "hot", pictures))
    end = load_file(folder / "model.safetensors")
    assert end["logit_scale"].exp().item() == pytest.approx(120, rel=0.01)
    assert end["logit_scale"].item() != pytest.approx(math.log(120), abs=1e-5)
    assert end["logit_bias"].item() != pytest.approx(-10, abs=1e-5)


def test_chunks_and_a_frozen_image_tower_have_the_gradient_of_the_whole_batch(starts, pictures, tmp_path):
    settings = settings_of(starts["siglip2"], pictures)
    whole = first_step(tiny_settings(tmp_path, **settings | {"train_batch_size": 8}))
    assert {"clip.logit_scale", "clip.logit_bias"} < whole["gradients"].keys()
    assert all(gradient.abs().max() > 0 for name, gradient in whole["gradients"].items() if "k_proj.bias" not in name)
    for size in (4, 2):
        chunks = {"train_batch_size": size, "contrast_chunks": 8 // size}
        assert largest_difference(whole, first_step(tiny_settings(tmp_path, **settings | chunks))) < 1e-5
    recomputed = first_step(
        tiny_settings(tmp_path, **settings | {"train_batch_size": 8, "gradient_checkpointing": True})
    )
    assert largest_difference(whole, recomputed) < 1e-6
    frozen = first_step(tiny_settings(tmp_path, **settings | {"train_batch_size": 8, "freeze_image_tower": True}))
    assert not any("vision" in name for name in frozen["gradients"])
    assert frozen["loss"] == pytest.approx(whole["loss"], abs=1e-5)
    for name, gradient in frozen["gradients"].items():
        torch.testing.assert_close(gradient, whole["gradients"][name], atol=1e-5, rtol=1e-4)
    alone = first_step(tiny_settings(tmp_path, **settings))
    assert abs(alone["loss"] - whole["loss"]) > 0.01


def test_a_resumed_run_trains_the_same_weights(starts, pictures, tmp_path):
    settings = settings_of(
        starts["siglip"], pictures, max_train_steps=4, checkpointing_steps=2, checkpoints_total_limit=9
    )
    whole = train_tiny(tmp_path / "whole", **settings)
    resumed = tmp_path / "resumed"
    resumed.mkdir()
    (whole / "checkpoint-2").rename(resumed / "checkpoint-2")
    AcceleratorState._reset_state(reset_partial_state=True)
    train_tiny(resumed, **settings, resume_from_checkpoint="latest")
    left, right = (load_file(folder / "model.safetensors") for folder in (whole, resumed))
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert "logit_bias" in left


REFUSED = {
    "smoothing": (
        {"recipe": "long-clip", "label_smoothing": None},
        "^label_smoothing is 0.1 .recipe long-clip. and the initial checkpoint is a SigLIP, whose sigmoid loss has no",
    ),
    "pad": ({"pad_id": 3}, "^pad_id is 3 and the initial checkpoint is a SigLIP, which is padded with its tokenizer's"),
    "grounding": ({"train_data": "shapes", "grounding_weight": 1.0}, "^grounding_weight is 1.0 and the initial check"),
    "drawing": (
        {"validation_steps": 1, "validation_prompts": ["a"], "validation_pipeline": "x"},
        "^validation_steps is 1 and the initial checkpoint is a SigLIP, whose states no Stable Diffusion reads",
    ),
} | {
    name: ({f"{name}_weight": 0.5}, f"^{name}_weight is 0.5 and the initial checkpoint is a SigLIP, whose states no")
    for name in ("stay_close", "late_sentences")
}


@pytest.mark.parametrize("name", REFUSED)
def test_settings_without_a_meaning_are_one_sentence(starts, pictures, tmp_path, name):
    changes, sentence = REFUSED[name]
    with pytest.raises(ValueError, match=sentence) as caught:
        prepare(tiny_config(tmp_path, **settings_of(starts["siglip"], pictures) | changes))
    assert "\n" not in str(caught.value)


SPOILT = {
    "NaFlex": (
        lambda folder: edit_json(folder / "config.json", model_type="siglip2"),
        "is a SigLIP 2 of the NaFlex kind",
    ),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "cannot be loaded .the tokenizer"),
    "no tensors": (lambda folder: (folder / "model.safetensors").unlink(), "cannot be loaded .the weights in"),
    "truncated": (lambda folder: truncate(folder / "model.safetensors"), "cannot be loaded .the weights in"),
    "no head": (
        lambda folder: without_head(folder / "config.json"),
        "cannot be loaded .its image tower has no pooling",
    ),
    "cut pictures": (
        lambda folder: edit_json(folder / "preprocessor_config.json", size={"shortest_edge": 32}, resample=3),
        "cannot be loaded .its preprocessor_config.json cuts pictures",
    ),
}


def without_head(path):
    content = json.loads(path.read_text())
    content["vision_config"]["vision_use_head"] = False
    path.write_text(json.dumps(content))


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1000])


@pytest.mark.parametrize("name", SPOILT)
def test_a_damaged_start_is_one_sentence(tmp_path, name):
    spoil, sentence = SPOILT[name]
    folder = make_siglip(tmp_path / "start", "siglip", layers=1)
    spoil(folder)
    with pytest.raises(ValueError, match=f"^pretrained model [^\n]*{sentence}[^\n]*$"):
        load_start(tiny_config(tmp_path, recipe="debias", pretrained_model_name_or_path=str(folder)))


def test_pictures_of_another_size_are_one_sentence(starts, tmp_path):
    settings = {"pretrained_model_name_or_path": str(starts["siglip"]), "recipe": "debias"}
    sentence = "^train_data is shapes, whose pictures are 48 x 48, and the initial checkpoint reads"
    with pytest.raises(ValueError, match=sentence):
        prepare(tiny_config(tmp_path, **settings))


def test_no_stable_diffusion_takes_it(starts, capsys, tmp_path):
    from debias_sd.encoder import load_encoder

    with pytest.raises(ValueError, match="SigLIP is for retrieval, no Stable Diffusion reads its states; give the"):
        load_encoder(starts["siglip2"])
    assert debias_sd(["convert", str(starts["siglip2"]), str(tmp_path / "out")]) == 2
    assert "has model_type 'siglip', which must be 'clip' or 'clip_text_model'" in capsys.readouterr().err
