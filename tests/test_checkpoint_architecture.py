"""Heads and activation: told, read from a config, known from a layout, or asked for; never guessed in silence."""

import json

import pytest
import torch
from open_clip import list_models
from tiny_checkpoints import (
    PROJECTION,
    converted_features,
    equal_features,
    padded,
    save_folder,
    save_safetensors,
    text_features,
    tiny_open_clip,
    tiny_transformers,
    token_ids,
)

from debias_sd.checkpoints import architecture
from debias_sd.checkpoints.architecture import Architecture, open_clip_folder, resolve_architecture
from debias_sd.checkpoints.convert import convert_checkpoint
from debias_sd.checkpoints.layouts import Tower
from debias_sd.checkpoints.reading import Source
from debias_sd.encoder import TextEncoder

# Real text towers of open_clip: one of each kind that a CLIPTextModel can be, with width, heads and activation.
KNOWN = {
    "ViT-B-16": (512, 8, "gelu"),
    "ViT-B-32-quickgelu": (512, 8, "quick_gelu"),
    "RN50x4": (640, 10, "gelu"),
    "ViT-L-14": (768, 12, "gelu"),
    "ViT-H-14": (1024, 16, "gelu"),
    "ViT-H-14-quickgelu": (1024, 16, "quick_gelu"),
    "ViT-bigG-14": (1280, 20, "gelu"),
    "EVA02-L-14": (768, 12, "gelu"),
    "ViTamin-XL-256": (1152, 16, "gelu"),
    "convnext_large_d": (768, 12, "gelu"),
}


def settle(
    width: int = 512, *, layout: str = "OpenAI or open_clip naming", use: str | None = None, naming: str = "openai",
    vocabulary: int = 49408, res: bool = False, image: tuple[str, ...] = (), custom: bool = False, **options: object,
) -> Architecture:  # fmt: skip
    """Settle a text tower of which only the shapes are there."""
    text = {"token_embedding.weight": torch.empty(vocabulary, width, device="meta")}
    if res:
        text["positional_embedding_res"] = torch.empty(248, width, device="meta")
    tower = Tower(layout, use, naming, text, {name: torch.empty(1280) for name in image}, None, {}, custom)
    source = Source(name="file", format="safetensors", tensors={}, sha256={})
    told = {"heads": None, "activation": None, "architecture": None, "image_tower": False} | options
    return resolve_architecture(source, tower, **told)


@pytest.mark.parametrize("name", KNOWN)
def test_named_architectures(name):
    width, heads, activation = KNOWN[name]
    known = settle(width, architecture=name)
    assert (known.heads, known.activation, known.epsilon) == (heads, activation, 1e-5)
    assert settle(width, activation="gelu").heads == heads  # and without the name


def test_every_architecture_is_taken_or_refused_with_a_reason():
    """All of open_clip's: those taken are the causal towers of CLIP's kind; none of the others slips through."""
    folder = open_clip_folder("this test") / "model_configs"
    refused = {}
    for name in list_models():
        text = json.loads((folder / f"{name}.json").read_text())["text_cfg"]
        try:
            settle(text.get("width", 512), vocabulary=text.get("vocab_size", 49408), architecture=name)
        except ValueError as error:
            refused[name] = str(error)
    causal = set(list_models()) - refused.keys()
    foreign = ("SigLIP", "MobileCLIP-S", "MobileCLIP2-S", "MobileCLIP2-L", "coca", "roberta", "mt5", "nllb", "CLIPA")
    assert {name for name in list_models() if any(part in name for part in foreign)} == refused.keys()
    assert {"ViT-L-14", "RN50", "MobileCLIP-B", "PE-Core-L-14-336", "ViT-e-14", "EVA01-g-14"} <= causal
    assert all("which CLIP's own text tower does not; give a CLIP checkpoint." in reason for reason in refused.values())


@pytest.mark.parametrize(
    ("options", "activation"),
    [
        ({"res": True}, "quick_gelu"),
        ({"layout": "OpenAI CLIP"}, "quick_gelu"),
        ({"width": 768, "use": "sd1"}, "quick_gelu"),
        ({"width": 768, "use": "sdxl"}, "quick_gelu"),
        ({"width": 768, "use": "sd3"}, "quick_gelu"),
        ({"width": 1024, "use": "sd2"}, "gelu"),
        ({"width": 1280, "use": "sdxl-2"}, "gelu"),
    ],
)
def test_layouts_that_say_their_activation(options, activation):
    assert (settle(**options).activation, settle(**options).notes) == (activation, ())


@pytest.mark.parametrize(
    ("options", "activation", "note"),
    [
        ({"width": 1024}, "gelu", "for DFN's and MetaCLIP's: --activation quick_gelu"),
        ({"width": 1280}, "gelu", "for DFN's and MetaCLIP's: --activation quick_gelu"),
        ({"width": 768, "naming": "text_model"}, "quick_gelu", "as of CLIP-L; for another model of width 768"),
    ],
)
def test_what_is_likely_is_said(options, activation, note):
    known = settle(**options)
    assert known.activation == activation
    assert note in known.notes[0]
    assert settle(**options, activation="quick_gelu").notes == ()


@pytest.mark.parametrize("width", [512, 640, 768])
def test_what_a_file_cannot_tell_is_asked(width):
    with pytest.raises(
        ValueError, match=rf"width {width} differ in it; give --activation quick_gelu .* or --activation"
    ):
        settle(width)
    assert settle(width, activation="gelu").activation == "gelu"


def test_heads():
    assert settle(768, activation="gelu", heads=8).heads == 8
    with pytest.raises(ValueError, match=r"has width 100, not a multiple of 64; give its attention heads with --heads"):
        settle(100, activation="gelu")
    assert settle(100, activation="gelu", heads=5).heads == 5
    assert settle(1024, image=("visual.class_embedding",)).image_heads == 16  # ViT-H's 1280 by 80


def test_architectures_that_do_not_fit():
    with pytest.raises(
        ValueError, match=r"a vocabulary of 49408 and width 512 in open_clip but file has 49408 and 768; na"
    ):
        settle(768, architecture="ViT-B-16")
    for name in ("ViT-Z-99", "../ViT-B-16", ""):
        with pytest.raises(ValueError, match=r"open_clip has no architecture .*; see open_clip\.list_models\(\)"):
            settle(architecture=name)
    with pytest.raises(ValueError, match=r"has a timm image tower, .* not causal \(MobileCLIP\); name its open_clip"):
        settle(image=("visual.trunk.stem.weight",), custom=True, activation="gelu")
    named = settle(768, image=("visual.trunk.stem.weight",), custom=True, architecture="EVA02-L-14")
    assert named.activation == "gelu"


def test_without_open_clip(monkeypatch):
    monkeypatch.setattr(architecture.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs the package open_clip_torch; install it with pip install open_clip"):
        settle(architecture="ViT-B-16")


def test_an_open_clip_folder_says_it_all(tmp_path):
    """Case 39: quick_gelu of open_clip_config.json is kept; heads and epsilon are read, not derived."""
    model = tiny_open_clip(quick_gelu=True)
    folder = tmp_path / "model"
    folder.mkdir()
    save_safetensors(model.state_dict(), folder / "open_clip_model.safetensors")
    text = {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 1, "layers": 2}
    vision = {"image_size": 32, "layers": 2, "width": 64, "patch_size": 16}
    config = {"embed_dim": PROJECTION, "quick_gelu": True, "vision_cfg": vision, "text_cfg": text}
    preprocessing = {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]}

    def write(**changes: object) -> None:
        content = {"model_cfg": config | changes, "preprocess_cfg": preprocessing}
        (folder / "open_clip_config.json").write_text(json.dumps(content))

    write()
    result = convert_checkpoint(folder, tmp_path / "out", image_tower=True)
    assert result.activation == "quick_gelu"
    ids = padded(token_ids(30), 77)
    with torch.no_grad():
        from transformers import CLIPModel

        found = CLIPModel.from_pretrained(tmp_path / "out").get_text_features(ids).pooler_output
    torch.testing.assert_close(found, text_features(model, ids), rtol=0, atol=2e-5)
    written = json.loads((tmp_path / "out" / "preprocessor_config.json").read_text())
    assert (written["image_mean"], written["image_std"]) == ([0.5] * 3, [0.25] * 3)
    write(text_cfg=text | {"norm_kwargs": {"eps": 1e-3}})
    convert_checkpoint(folder, tmp_path / "eps")
    assert TextEncoder.load(tmp_path / "eps").model.config.layer_norm_eps == 1e-3
    write(vision_cfg=vision | {"pool_type": "avg"})
    equal_features(convert_checkpoint(folder, tmp_path / "text"), text_features(model, ids), ids)
    with pytest.raises(ValueError, match=r"the image tower of model has pool_type 'avg' in open_clip"):
        convert_checkpoint(folder, tmp_path / "refused", image_tower=True)
    write(text_cfg=text | {"no_causal_mask": True})
    with pytest.raises(ValueError, match=r"the text tower of model has no_causal_mask True in open_clip"):
        convert_checkpoint(folder, tmp_path / "refused")
    (folder / "open_clip_config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"has no model_cfg with a text_cfg; copy it again"):
        convert_checkpoint(folder, tmp_path / "refused")


def test_a_transformers_config_is_kept_and_can_be_overruled(tmp_path):
    model = tiny_transformers(width=128)
    model.config.hidden_act = "gelu"
    model.config.num_attention_heads = 4
    model.config.layer_norm_eps = 1e-4
    folder = save_folder(model, tmp_path / "in")
    kept = convert_checkpoint(folder, tmp_path / "kept")
    assert (kept.activation, kept.heads) == ("gelu", 4)
    assert TextEncoder.load(tmp_path / "kept").model.config.layer_norm_eps == 1e-4
    told = convert_checkpoint(folder, tmp_path / "told", activation="quick_gelu", heads=2)
    assert (told.activation, told.heads) == ("quick_gelu", 2)
    ids = token_ids(20)
    assert (converted_features(kept.folder, ids) - converted_features(told.folder, ids)).abs().max() > 1e-3
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_act": "silu"}))
    with pytest.raises(ValueError, match=r"in uses the activation 'silu', which must be quick_gelu or gelu"):
        convert_checkpoint(folder, tmp_path / "out")
