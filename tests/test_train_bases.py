"""Starts in other people's formats: both recipes train them, and what is saved evaluates as it did before."""

import json

import pytest
import torch
from accelerate.state import AcceleratorState
from PIL import Image
from safetensors.torch import save_file

from debias_sd.preprocessing import clip_preprocessing
from debias_sd.tokens import tokenize
from tests.tiny_checkpoints import LAYERS, PROJECTION, WIDTH, text_features, tiny_open_clip
from tests.train_tiny import tiny_config, train_tiny
from train_encoder.heldout import read_heldout
from train_encoder.model.bases import is_checkpoint, load_start
from train_encoder.prepare import prepare
from train_encoder.watch import evaluate

pytestmark = pytest.mark.usefixtures("fresh_accelerator")


def save_open_clip(folder, *, quick_gelu, custom=False):
    """A folder as open_clip's `save_pretrained` and the hub have it."""
    model = tiny_open_clip(quick_gelu=quick_gelu, custom=custom)
    folder.mkdir()
    text = {"context_length": 77, "vocab_size": 49408, "width": WIDTH, "heads": WIDTH // 64, "layers": LAYERS}
    vision = {"image_size": 32, "layers": LAYERS, "width": 64, "head_width": 64, "patch_size": 16}
    config = {"embed_dim": PROJECTION, "quick_gelu": quick_gelu, "vision_cfg": vision, "text_cfg": text}
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": {}}))
    save_file({name: value.contiguous() for name, value in model.state_dict().items()},
              folder / "open_clip_model.safetensors")  # fmt: skip
    return model


@pytest.fixture
def pictures(tmp_path):
    lines = []
    for number in range(12):
        Image.new("RGB", (32, 32), (20 * number, 90, 0)).save(tmp_path / f"{number}.png")
        text = f"A red star, number {number}. It is small. {'A box lies there. ' * (1 + number % 4)}The sky is blue."
        lines.append(json.dumps({"file_name": f"{number}.png", "text": text}))
    (tmp_path / "metadata.jsonl").write_text("\n".join(lines))
    return str(tmp_path / "metadata.jsonl")


@pytest.mark.parametrize("quick_gelu", [False, True])
def test_an_open_clip_start_has_open_clips_own_features(tmp_path, quick_gelu):
    theirs = save_open_clip(tmp_path / "laion", quick_gelu=quick_gelu)
    assert is_checkpoint(tmp_path / "laion")
    model, tokenizer, _ = load_start(tiny_config(tmp_path, pretrained_model_name_or_path=str(tmp_path / "laion")))
    ids = tokenize(tokenizer, ["a red star", "the sky is blue and wide"], length=77, pad_id=0)
    found = model.get_text_features(input_ids=ids).pooler_output
    torch.testing.assert_close(found, text_features(theirs, ids), atol=1e-5, rtol=1e-4)
    pixels = torch.randn(2, 3, 32, 32)
    found = model.get_image_features(pixel_values=pixels).pooler_output
    torch.testing.assert_close(found, theirs.encode_image(pixels), atol=1e-5, rtol=1e-4)
    assert model.logit_scale.item() == pytest.approx(theirs.logit_scale.item())
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("recipe", ["debias", "long-clip"])
def test_an_open_clip_start_trains_is_saved_and_evaluates_the_same(tmp_path, pictures, recipe):
    save_open_clip(tmp_path / "laion", quick_gelu=False)
    settings = {"train_data": pictures, "train_batch_size": 4, "eval_data": pictures, "eval_steps": 3}
    folder = train_tiny(
        tmp_path / "run", **settings, recipe=recipe, pretrained_model_name_or_path=str(tmp_path / "laion")
    )
    first, last = (json.loads(line) for line in (folder / "eval_log.jsonl").read_text().splitlines())
    assert (first["step"], last["step"]) == (0, 3)
    AcceleratorState._reset_state(reset_partial_state=True)
    again = tiny_config(tmp_path / "again", **settings, recipe=recipe, stretch_factor=1,
                        pretrained_model_name_or_path=str(folder))  # fmt: skip
    run = prepare(again)
    assert run.tokenizer.model_max_length == 248
    assert evaluate(run, read_heldout(again, clip_preprocessing(32))) | {"step": 3} == last


def test_a_checkpoint_that_does_not_say_enough_is_one_sentence(tmp_path):
    model = tiny_open_clip()
    path = tmp_path / "model.safetensors"
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, path)
    with pytest.raises(ValueError, match=r"^pretrained model .* cannot be loaded \(.*; make a folder of it") as fault:
        load_start(tiny_config(tmp_path, pretrained_model_name_or_path=str(path)))
    assert "\n" not in str(fault.value)
