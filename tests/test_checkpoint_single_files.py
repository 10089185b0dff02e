"""Encoders in single files for ComfyUI, Forge and Long-CLIP: exact, equal numbers, refused where they would differ."""

import shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from debias_sd.checkpoints import export
from debias_sd.checkpoints.export import export_encoder
from debias_sd.checkpoints.keys import clip_to_openai, text_from_openai
from debias_sd.encoder_folder import embedded_folder
from debias_sd.positions import merge_position_tables
from tests.test_checkpoint_keys import same
from tests.tiny import tiny_encoder
from tests.tiny_clip import IMAGES, TEXTS, features, ids_of, make_clip, read_as_openai

SHIPPED = ("base", "long-clip", "debias")


def test_a_single_file_holds_the_text_tower_in_openais_naming(clip, tmp_path):
    out = tmp_path / "clip_l.safetensors"
    written = export_encoder(clip, out, to="comfyui")
    assert (written.path, written.tensors, written.positions, written.dtype) == (out, 30, 248, torch.float32)
    with safe_open(out, framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
    state = load_file(out)
    assert "transformer.resblocks.0.ln_1.weight" in state  # the key by which ComfyUI and Forge know the naming
    assert not [name for name in state if name.startswith("visual.")]
    assert state["text_projection"].shape == (64, 32)
    assert out.stat().st_mode & 0o777 == 0o644
    assert [path.name for path in tmp_path.iterdir()] == ["clip_l.safetensors"]


@torch.no_grad()
def test_a_reader_of_openais_naming_gets_the_same_features(clip, tmp_path):
    export_encoder(clip, tmp_path / "x.safetensors", to="comfyui")
    expected, _ = features(clip, TEXTS, IMAGES)
    torch.testing.assert_close(
        read_as_openai(load_file(tmp_path / "x.safetensors"), ids_of(clip)), expected, rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_encoder_comes_back_bit_for_bit(name, tmp_path):
    export_encoder(name, tmp_path / "x.safetensors", to="comfyui")
    source = load_file(embedded_folder(name) / "model.safetensors")
    text = {key: value for key, value in source.items() if not key.startswith(("vision_model.", "visual_proj"))}
    assert next(iter(text.values())).dtype == torch.float16
    assert same(text_from_openai(load_file(tmp_path / "x.safetensors")), text)


def test_the_image_tower_comes_on_request(clip, tmp_path):
    export_encoder(clip, tmp_path / "x.safetensors", to="comfyui", image_tower=True)
    assert same(load_file(tmp_path / "x.safetensors"), clip_to_openai(load_file(clip / "model.safetensors")))


def test_an_encoder_without_projection_is_written_and_noted(tmp_path):
    tiny = tiny_encoder(width=64)
    tiny.model.config.num_attention_heads = 1
    tiny.save(tmp_path / "text")
    written = export_encoder(tmp_path / "text", tmp_path / "x.safetensors", to="comfyui")
    assert "text_projection" not in load_file(tmp_path / "x.safetensors")
    assert written.notes[1] == (
        "the encoder has no text projection: ComfyUI takes an identity for it, Forge needs one."
    )
    with pytest.raises(ValueError, match="has no image tower; leave --image-tower out, or give a whole CLIPModel"):
        export_encoder(tmp_path / "text", tmp_path / "x.safetensors", to="comfyui", image_tower=True)


def test_the_flat_layout_gives_the_same_file(clip, tmp_path):
    flat = shutil.copytree(clip, tmp_path / "flat")
    state = load_file(clip / "model.safetensors")
    text = {name.removeprefix("text_model."): tensor for name, tensor in state.items() if "vis" not in name[:4]}
    save_file(text | {"embeddings.position_ids": torch.arange(248)[None]}, flat / "model.safetensors")
    export_encoder(clip, tmp_path / "a.safetensors", to="comfyui")
    export_encoder(flat, tmp_path / "b.safetensors", to="comfyui")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_a_tensor_of_no_clip_is_named(copy, tmp_path):
    state = load_file(copy / "model.safetensors")
    save_file(state | {"lora.weight": torch.zeros(1)}, copy / "model.safetensors")
    with pytest.raises(ValueError, match=r"unknown tensor, lora\.weight \(1 in all\)"):
        export_encoder(copy, tmp_path / "x.safetensors", to="comfyui")


def test_notes_say_what_the_readers_will_not_do(clip, tmp_path, monkeypatch):
    out = tmp_path / "x.safetensors"
    unknown = (
        "ComfyUI and Forge know text encoders of width 768 with 12, 1024 with 24, 1280 with 32 blocks and CLIP's "
        "49,408 tokens; this one has 64 with 2 and 777, they will not load it."
    )
    assert export_encoder(clip, out, to="comfyui").notes == (unknown,)
    monkeypatch.setattr(export, "_KNOWN_TEXT", {(64, 2): (1, "quick_gelu")})
    (note,) = export_encoder(clip, out, to="comfyui").notes
    assert note.endswith("this one has 64 with 2 and 777, they will not load it.")
    real = make_clip(tmp_path / "real", clip_vocabulary=True)
    (note,) = export_encoder(real, out, to="comfyui").notes
    assert note == "Forge's own loader builds 77 positions: 248 do not fit it."
    short = make_clip(tmp_path / "short", length=77, clip_vocabulary=True)
    assert export_encoder(short, out, to="comfyui").notes == ()


@pytest.mark.parametrize(
    ("tower", "changes", "said"),
    [
        (
            "text",
            {"hidden_act": "gelu"},
            "the text tower in .* has hidden_act gelu but a reader .* takes quick_gelu",
        ),
        ("text", {"num_attention_heads": 2}, "has num_attention_heads 2 but a reader of single files takes 1 for this"),
        ("text", {"layer_norm_eps": 1e-6}, "has layer_norm_eps 1e-06 but a reader of single files takes 1e-05"),
        ("vision", {"hidden_act": "gelu"}, "the image tower in .* has hidden_act gelu"),
        ("vision", {"num_attention_heads": 4}, "the image tower in .* has num_attention_heads 4"),
    ],
)
def test_what_a_single_file_cannot_say_is_refused(tmp_path, tower, changes, said):
    folder = make_clip(tmp_path / "clip", **{tower: changes})
    for to, out in (("comfyui", "x.safetensors"), ("long-clip", "x.pt")):
        with pytest.raises(ValueError, match=said):
            export_encoder(folder, tmp_path / out, to=to, image_tower=True)
        assert not (tmp_path / out).exists()


def test_openclips_towers_are_taken_with_their_own_activation(tmp_path, monkeypatch):
    folder = make_clip(tmp_path / "clip", text={"hidden_act": "gelu"})
    monkeypatch.setattr(export, "_KNOWN_TEXT", {(64, 2): (1, "gelu")})
    export_encoder(folder, tmp_path / "x.safetensors", to="comfyui")
    assert (tmp_path / "x.safetensors").is_file()


@torch.no_grad()
def test_long_clip_gets_two_tables_that_merge_into_the_encoders(clip, tmp_path):
    written = export_encoder(clip, tmp_path / "x.pt", to="long-clip")
    state = torch.load(tmp_path / "x.pt", weights_only=True)
    assert all(type(value) is torch.Tensor for value in state.values())
    assert (len(state), written.notes) == (written.tensors, ())
    merged = merge_position_tables(state["positional_embedding"], state["positional_embedding_res"])
    assert torch.equal(merged, state["positional_embedding"])
    expected, _ = features(clip, TEXTS, IMAGES)
    torch.testing.assert_close(read_as_openai(state, ids_of(clip)), expected, rtol=0, atol=1e-5)
    state["positional_embedding"] = merged
    del state["positional_embedding_res"]
    assert same(state, clip_to_openai(load_file(clip / "model.safetensors")))


def test_long_clip_as_safetensors_is_the_same(clip, tmp_path):
    export_encoder(clip, tmp_path / "x.pt", to="long-clip")
    export_encoder(clip, tmp_path / "x.safetensors", to="long-clip")
    assert same(load_file(tmp_path / "x.safetensors"), torch.load(tmp_path / "x.pt", weights_only=True))


def test_half_precision_stays(tmp_path):
    folder = make_clip(tmp_path / "half", dtype=torch.float16)
    written = export_encoder(folder, tmp_path / "x.pt", to="long-clip")
    state = torch.load(tmp_path / "x.pt", weights_only=True)
    assert written.dtype == torch.float16
    assert {tensor.dtype for tensor in state.values()} == {torch.float16}


def test_what_long_clips_loader_would_not_build_is_refused(tmp_path):
    short = make_clip(tmp_path / "short", length=77)
    with pytest.raises(
        ValueError, match="has 77 positions but Long-CLIP's loader builds 248; stretch the encoder first"
    ):
        export_encoder(short, tmp_path / "x.pt", to="long-clip")
    narrow = make_clip(tmp_path / "narrow", vision={"intermediate_size": 128})
    with pytest.raises(
        ValueError, match="the image tower in .* has MLPs of 128 but Long-CLIP's loader builds 4 x 64; exp"
    ):
        export_encoder(narrow, tmp_path / "x.pt", to="long-clip")
    with pytest.raises(
        ValueError, match="the image tower in .* has num_attention_heads 4 but a reader of single files take"
    ):
        export_encoder("debias", tmp_path / "x.pt", to="long-clip")


def test_an_end_token_that_is_not_the_last_id_is_refused(tmp_path):
    folder = make_clip(tmp_path / "clip", added=2)
    with pytest.raises(ValueError, match="ends a text with id 776 of 779 but readers of single files look for the lar"):
        export_encoder(folder, tmp_path / "x.safetensors", to="comfyui")
