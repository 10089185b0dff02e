"""The projection of the pooled vector travels with an encoder; weights that are no numbers are refused."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import END, START, edit_json, save_clip_model, tiny_encoder, tiny_text_encoder, tiny_tokenizer
from tiny_pipelines import PROJECTION_2, WIDTH_2, second_encoder, tiny_projected_encoder
from transformers import CLIPModel, CLIPTextModel, CLIPTextModelWithProjection

from debias_sd.encoder import TextEncoder, load_encoder, stretch_encoder, stretch_in_place, text_tower

IDS = torch.tensor([[START, 320, 2368, END]])


def test_a_folder_with_a_projection_is_stock_and_reads_back_equal(tmp_path):
    encoder = second_encoder()
    encoder.save(tmp_path / "encoder")
    assert json.loads((tmp_path / "encoder" / "config.json").read_text())["architectures"] == [
        "CLIPTextModelWithProjection"
    ]
    model, info = CLIPTextModelWithProjection.from_pretrained(tmp_path / "encoder", output_loading_info=True)
    assert not any(info.values())
    expected = encoder.model(IDS).pooler_output @ encoder.projection.T
    assert torch.allclose(model(IDS).text_embeds, expected, atol=1e-5)
    loaded = load_encoder(tmp_path / "encoder")
    assert torch.equal(loaded.projection, encoder.projection)
    assert torch.allclose(loaded.model(IDS)[0], encoder.model(IDS)[0], atol=1e-5)


def test_the_projection_of_a_whole_clip_model_is_kept(tmp_path):
    model = save_clip_model(tmp_path / "clip")
    encoder = load_encoder(tmp_path / "clip")
    assert torch.equal(encoder.projection, model.text_projection.weight)
    assert torch.equal(encoder.stretch().projection, encoder.projection)
    half = encoder.to(device=torch.device("cpu"), dtype=torch.float16)
    assert (half.projection.dtype, encoder.projection.dtype) == (torch.float16, torch.float32)
    encoder.save(tmp_path / "text")
    again, info = CLIPTextModelWithProjection.from_pretrained(tmp_path / "text", output_loading_info=True)
    assert not any(info.values())
    assert torch.equal(again.text_projection.weight, model.text_projection.weight)


def test_a_folder_without_one_has_none(tmp_path):
    tiny_encoder(77).save(tmp_path / "encoder")
    assert load_encoder(tmp_path / "encoder").projection is None
    assert CLIPTextModel.from_pretrained(tmp_path / "encoder").config.architectures == ["CLIPTextModel"]


def test_stretching_a_model_with_a_projection():
    model = tiny_projected_encoder()
    longer = stretch_encoder(model)
    assert model.config.max_position_embeddings == len(model.text_model.embeddings.position_embedding.weight) == 77
    assert longer.config.max_position_embeddings == longer.text_model.config.max_position_embeddings == 248
    assert torch.equal(longer(IDS).text_embeds, model(IDS).text_embeds)
    token = model.text_model.embeddings.token_embedding.weight
    stretch_in_place(model)
    assert model.text_model.embeddings.token_embedding.weight is token
    assert torch.equal(
        model.text_model.embeddings.position_embedding.weight, longer.text_model.embeddings.position_embedding.weight
    )
    assert model(torch.randint(0, START, (1, 248))).text_embeds.shape == (1, PROJECTION_2)
    assert text_tower(model) is model.text_model
    assert text_tower(tiny_text_encoder()).config.hidden_size == 32


def test_a_projection_that_does_not_fit_is_told(tmp_path):
    folder = tmp_path / "encoder"
    second_encoder().save(folder)
    state = load_file(folder / "model.safetensors")
    state["text_projection.weight"] = torch.zeros(PROJECTION_2, WIDTH_2 + 1)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"text_projection.weight of .* is \[24, 49\] but must be \[any, 48\]"):
        load_encoder(folder)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("key", ["text_model.encoder.layers.1.mlp.fc1.bias", "text_projection.weight"])
def test_weights_that_are_no_numbers_are_named(tmp_path, number, key):
    folder = tmp_path / "encoder"
    TextEncoder(tiny_text_encoder(77), tiny_tokenizer(77), projection=torch.ones(8, 32)).save(folder)
    state = load_file(folder / "model.safetensors")
    state[key].flatten()[3] = number
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=f"{key} of .* holds NaN or infinite numbers; .* take an earlier checkpoint"):
        load_encoder(folder)


def test_a_clip_model_whose_text_config_says_another_projection_width(tmp_path):
    model = save_clip_model(tmp_path / "clip")
    config = json.loads((tmp_path / "clip" / "config.json").read_text())
    edit_json(tmp_path / "clip" / "config.json", text_config=config["text_config"] | {"projection_dim": 512})
    load_encoder(tmp_path / "clip").save(tmp_path / "text")
    assert json.loads((tmp_path / "text" / "config.json").read_text())["projection_dim"] == 16
    assert isinstance(model, CLIPModel)
