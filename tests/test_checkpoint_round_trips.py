"""Out and back in: `convert` of what `export` wrote gives every tensor and every fact of the config back exactly."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from debias_sd.checkpoints.convert import convert_checkpoint
from debias_sd.checkpoints.export import export_encoder
from debias_sd.encoder import TextEncoder
from debias_sd.encoder_folder import embedded_folder
from tests.test_checkpoint_keys import same
from tests.tiny_clip import make_clip, read_as_openai

GOLDEN = Path(__file__).parent.parent.parent / "shared" / "golden"
FACTS = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "hidden_act", "layer_norm_eps",
    "max_position_embeddings", "vocab_size", "eos_token_id", "bos_token_id", "image_size", "patch_size",
)  # fmt: skip


def facts(folder: Path) -> dict[str, object]:
    """What config.json says of each tower, but for what only names the class."""
    config = json.loads((folder / "config.json").read_text())
    towers = {name: config[name] for name in ("text_config", "vision_config")}
    return {f"{name}.{fact}": towers[name][fact] for name in towers for fact in FACTS if fact in towers[name]}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("to", "name"), [("comfyui", "x.safetensors"), ("long-clip", "x.pt"), ("open_clip", "x")])
def test_a_whole_clip_comes_back(tmp_path, dtype, to, name):
    folder = make_clip(tmp_path / "clip", dtype=dtype)
    export_encoder(folder, tmp_path / name, to=to, image_tower=True)
    told = {"activation": "quick_gelu"} if to == "comfyui" else {}
    convert_checkpoint(tmp_path / name, tmp_path / "back", tokenizer=folder, image_tower=True, **told)
    assert same(load_file(tmp_path / "back" / "model.safetensors"), load_file(folder / "model.safetensors"))
    assert facts(tmp_path / "back") == facts(folder)


@pytest.mark.parametrize("name", ["base", "long-clip", "debias"])
def test_a_shipped_encoder_comes_back_from_open_clip(name, tmp_path):
    folder = embedded_folder(name)
    export_encoder(name, tmp_path / "out", to="open_clip")
    convert_checkpoint(tmp_path / "out", tmp_path / "back", image_tower=True)
    assert same(load_file(tmp_path / "back" / "model.safetensors"), load_file(folder / "model.safetensors"))
    assert facts(tmp_path / "back") == facts(folder)
    assert json.loads((tmp_path / "back" / "preprocessor_config.json").read_text())["image_mean"] == [0.5, 0.5, 0.5]
    before, after = TextEncoder.load(name).tokenizer, TextEncoder.load(tmp_path / "back").tokenizer
    text = "A red circle is left of a blue square."
    assert before(text)["input_ids"] == after(text)["input_ids"]
    assert before.pad_token_id == after.pad_token_id


@pytest.mark.parametrize("name", ["base", "long-clip", "debias"])
def test_a_shipped_encoder_comes_back_from_a_single_file(name, tmp_path):
    folder = embedded_folder(name)
    export_encoder(name, tmp_path / "x.safetensors", to="comfyui")
    convert_checkpoint(tmp_path / "x.safetensors", tmp_path / "back", tokenizer=folder, activation="quick_gelu")
    text = {
        key: value
        for key, value in load_file(folder / "model.safetensors").items()
        if key.startswith(("text_model.", "text_projection."))
    }
    assert same(load_file(tmp_path / "back" / "model.safetensors"), text)


def test_a_checkpoint_of_long_clips_own_making_keeps_its_features(tmp_path):
    """In by `convert`, out to Long-CLIP's naming: the golden features, by a reading of the file alone."""
    if not GOLDEN.is_dir():
        pytest.skip(f"{GOLDEN} is not there")
    convert_checkpoint(GOLDEN / "longclip-tiny.pt", tmp_path / "in", image_tower=True)
    export_encoder(tmp_path / "in", tmp_path / "x.pt", to="long-clip")
    state, golden = (
        torch.load(tmp_path / "x.pt", weights_only=True),
        torch.load(GOLDEN / "longclip-tiny.pt", weights_only=True),
    )
    assert state.keys() == golden.keys()
    assert all(torch.equal(state[name], golden[name].float()) for name in golden if "positional_embedding" not in name)
    assert torch.equal(state["positional_embedding"][:20], golden["positional_embedding"][:20])
    assert torch.equal(state["positional_embedding_res"][20:], golden["positional_embedding_res"][20:])
    expected = load_file(GOLDEN / "longclip-tiny-expected.safetensors")
    found = read_as_openai(state, expected["ids"].long())
    torch.testing.assert_close(found, expected["text_features"], rtol=0, atol=1e-4)


def test_an_open_clip_checkpoint_goes_in_and_out_unchanged(tmp_path):
    """The other way round: in by `convert`, out by `export`, equal files."""
    folder = make_clip(tmp_path / "clip")
    export_encoder(folder, tmp_path / "first", to="open_clip")
    convert_checkpoint(tmp_path / "first", tmp_path / "in", image_tower=True)
    export_encoder(tmp_path / "in", tmp_path / "second", to="open_clip")
    for name in ("open_clip_model.safetensors", "open_clip_config.json"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()
