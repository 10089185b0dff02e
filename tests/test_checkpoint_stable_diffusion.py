"""Text encoders in single files: alone as ComfyUI and Forge use them, and inside Stable Diffusion checkpoints."""

import pytest
import torch
from tiny_checkpoints import (
    around_stable_diffusion,
    clone,
    equal_features,
    prefixed,
    save_safetensors,
    tiny_open_clip,
    tiny_transformers,
    token_ids,
)

from debias_sd.checkpoints.convert import convert_checkpoint
from debias_sd.checkpoints.reading import read_source


@pytest.fixture(scope="module")
def standard():
    return tiny_open_clip(quick_gelu=True)


@pytest.fixture(scope="module")
def stock():
    return tiny_transformers(seed=3)


@pytest.mark.parametrize("prefix", ["", "clip_l.", "clip_l.transformer.", "some.wrapper."])
def test_single_file_text_encoders(stock, prefix, tmp_path):
    """ComfyUI's and Forge's files: transformers' naming, sometimes under a prefix."""
    save_safetensors(prefixed(stock.text_model.state_dict(), prefix + "text_model."), tmp_path / "clip_l.safetensors")
    result = convert_checkpoint(tmp_path / "clip_l.safetensors", tmp_path / "out", activation="quick_gelu")
    assert (result.model_class, result.left_out) == ("CLIPTextModel", {})


def test_stable_diffusion_1_file(stock, tmp_path):
    text = prefixed(stock.text_model.state_dict(), "cond_stage_model.transformer.text_model.")
    save_safetensors(text | around_stable_diffusion(), tmp_path / "sd.safetensors")
    result = convert_checkpoint(tmp_path / "sd.safetensors", tmp_path / "out")
    assert (result.layout, result.activation, result.target, result.pad_id) == (
        "Stable Diffusion 1.x single file", "quick_gelu", "sd1", 49407,
    )  # fmt: skip
    assert result.left_out == {"UNet or transformer": 2, "VAE": 2, "averaged weights": 1, "noise schedule": 7}


def test_stable_diffusion_2_file_as_diffusers_converts_it(tmp_path):
    """24 layers become 23, and the weights are those of diffusers' own conversion."""
    from diffusers.loaders.single_file_utils import convert_open_clip_checkpoint

    model = tiny_open_clip()
    blocks = model.transformer.resblocks
    blocks.extend([blocks[0]] * 22)
    state = prefixed(clone(model.state_dict()), "cond_stage_model.model.")
    state = {name: tensor for name, tensor in state.items() if ".visual." not in name}
    save_safetensors(state | around_stable_diffusion(), tmp_path / "sd2.safetensors")
    result = convert_checkpoint(tmp_path / "sd2.safetensors", tmp_path / "out")
    assert (result.layout, result.activation) == ("Stable Diffusion 2.x single file", "gelu")
    assert (result.layers, result.model_class, result.target, result.pad_id) == (23, "CLIPTextModel", "sd2", 0)
    assert result.left_out["last layer and projection"] == 13
    assert "reads layer 23" in result.notes[0]
    theirs = convert_open_clip_checkpoint(tiny_transformers().text_model, state, prefix="cond_stage_model.model.")
    ours = read_source(tmp_path / "out").tensors
    theirs = {name.removeprefix("text_model."): tensor for name, tensor in theirs.items() if "text_proj" not in name}
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name.removeprefix("text_model.")]), name


def test_stable_diffusion_xl_file_holds_two(stock, standard, tmp_path):
    one = prefixed(stock.text_model.state_dict(), "conditioner.embedders.0.transformer.text_model.")
    two = prefixed(clone(standard.state_dict()), "conditioner.embedders.1.model.")
    two = {name: tensor for name, tensor in two.items() if ".visual." not in name}
    path = save_safetensors(one | two | around_stable_diffusion(), tmp_path / "xl.safetensors")
    with pytest.raises(ValueError, match=r"holds 2 text encoders; choose one with --part: 1 \(conditioner\.emb"):
        convert_checkpoint(path, tmp_path / "out")
    with pytest.raises(ValueError, match=r"--part is 3 but xl\.safetensors holds 2; give 1 to 2\."):
        convert_checkpoint(path, tmp_path / "out", part=3)
    assert not (tmp_path / "out").exists()
    first = convert_checkpoint(path, tmp_path / "1", part=1)
    second = convert_checkpoint(path, tmp_path / "2", part=2)
    assert (first.layout, first.target, first.pad_id) == ("Stable Diffusion XL single file, encoder 1", "sdxl", 49407)
    assert (second.layout, second.target, second.pad_id) == ("Stable Diffusion XL single file, encoder 2", "sdxl-2", 0)
    assert first.left_out["other text encoder"] == len(two)
    assert second.left_out["other text encoder"] == len(one)
    assert (first.activation, second.activation) == ("quick_gelu", "gelu")


def test_stable_diffusion_3_file(stock, tmp_path):
    """CLIP-L is part 1 and CLIP-G part 2, in the order of the pipeline."""
    clip_l = prefixed(stock.state_dict(), "text_encoders.clip_l.transformer.")
    clip_g = prefixed(tiny_transformers(seed=5).state_dict(), "text_encoders.clip_g.transformer.")
    around = ("text_encoders.t5xxl.transformer.shared.weight", "model.diffusion_model.x")
    scale = {"text_encoders.clip_l.logit_scale": torch.tensor(4.6)}
    state = clip_l | clip_g | scale | {name: torch.zeros(3) for name in around}
    path = save_safetensors(state, tmp_path / "sd3.safetensors")
    results = [convert_checkpoint(path, tmp_path / str(part), part=part) for part in (1, 2)]
    assert [result.pad_id for result in results] == [49407, 0]
    assert [result.left_out["T5 text encoder"] for result in results] == [1, 1]
    ids = token_ids(30)
    with torch.no_grad():
        equal_features(results[0], stock(ids).text_embeds, ids)
