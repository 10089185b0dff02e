"""Encoders in a folder for open_clip: loaded strictly by open_clip itself, with equal features and ids."""

import json
from pathlib import Path

import open_clip
import pytest
import torch
from safetensors.torch import load_file
from transformers import CLIPModel

from debias_sd.checkpoints.encoder_parts import has_clip_vocabulary, mlp_ratio
from debias_sd.checkpoints.export import export_encoder
from debias_sd.checkpoints.keys import clip_to_openai
from debias_sd.encoder import TextEncoder
from debias_sd.encoder_folder import embedded_folder
from debias_sd.tokens import tokenize
from tests.test_checkpoint_keys import same
from tests.tiny import clip_tokenizer, edit_json
from tests.tiny_clip import TEXTS, features, ids_of, make_clip

SHIPPED = ("base", "long-clip", "debias")


@pytest.mark.parametrize("name", SHIPPED)
def test_open_clip_loads_a_shipped_encoder_and_gives_equal_features(name, tmp_path):
    folder = embedded_folder(name)
    export_encoder(name, tmp_path / "out", to="open_clip")
    config = json.loads((tmp_path / "out" / "open_clip_config.json").read_text())
    assert config["preprocess_cfg"]["mean"] == [0.5, 0.5, 0.5]
    check_open_clip(folder, tmp_path / "out", size=48)
    tokenizer, ours = open_clip.get_tokenizer(f"local-dir:{tmp_path / 'out'}"), TextEncoder.load(folder).tokenizer
    texts = ["A red circle is left of a blue square.", "a green star " * 100, ""]
    expected = tokenize(ours, texts, length=ours.model_max_length, pad_id=ours.pad_token_id)
    assert torch.equal(tokenizer(texts), expected)
    source = load_file(folder / "model.safetensors")
    assert same(load_file(tmp_path / "out" / "open_clip_model.safetensors"), clip_to_openai(source))


def check_open_clip(folder: Path, out: Path, *, size: int) -> None:
    """Strict load, equal text and image features, and the context length of the source."""
    model = open_clip.create_model(f"local-dir:{out}", require_pretrained=True).eval()
    encoder = TextEncoder.load(folder)
    assert model.context_length == encoder.positions
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    text, image = features(folder, TEXTS, images)
    ids = tokenize(encoder.tokenizer, TEXTS, length=encoder.positions, pad_id=encoder.tokenizer.pad_token_id)
    with torch.no_grad():
        torch.testing.assert_close(model.encode_text(ids), text, rtol=0, atol=1e-5)
        torch.testing.assert_close(model.encode_image(images), image, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "vision"),
    [
        ({}, {}),
        ({"hidden_act": "gelu", "num_attention_heads": 4}, {"hidden_act": "gelu", "num_attention_heads": 8}),
        ({"hidden_act": "gelu", "layer_norm_eps": 1e-3}, {"hidden_act": "gelu_pytorch_tanh", "image_size": 40}),
        ({"intermediate_size": 57}, {"layer_norm_eps": 1e-4, "intermediate_size": 199}),
    ],
)
def test_open_clip_is_told_what_the_config_says(tmp_path, text, vision):
    folder = make_clip(tmp_path / "clip", text=text, vision=vision)
    export_encoder(folder, tmp_path / "out", to="open_clip")
    check_open_clip(folder, tmp_path / "out", size=vision.get("image_size", 32))


def test_added_tokens_do_not_take_the_end_tokens_place(tmp_path):
    folder = make_clip(tmp_path / "clip", added=2)
    export_encoder(folder, tmp_path / "out", to="open_clip")
    name = f"local-dir:{tmp_path / 'out'}"
    ids = open_clip.get_tokenizer(name)(["a cat <new-1> here"])
    assert 778 in ids  # an id above the end token's 776
    own = CLIPModel.from_pretrained(folder).eval()
    with torch.no_grad():
        expected = own.get_text_features(ids).pooler_output
        torch.testing.assert_close(open_clip.create_model(name).eval().encode_text(ids), expected, rtol=0, atol=1e-5)


def test_open_clips_own_tokenizer_gives_our_ids(tmp_path):
    clip = make_clip(tmp_path / "clip", clip_vocabulary=True)
    export_encoder(clip, tmp_path / "out", to="open_clip")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["open_clip_config.json", "open_clip_model.safetensors"]
    tokenizer = open_clip.get_tokenizer(f"local-dir:{tmp_path / 'out'}")
    assert type(tokenizer).__name__ == "SimpleTokenizer"
    assert torch.equal(tokenizer(TEXTS), ids_of(clip))


def test_the_config_is_what_open_clip_documents(tmp_path):
    clip = make_clip(tmp_path / "clip", clip_vocabulary=True)
    export_encoder(clip, tmp_path / "out", to="open_clip")
    assert json.loads((tmp_path / "out" / "open_clip_config.json").read_text()) == {
        "model_cfg": {
            "embed_dim": 32,
            "quick_gelu": True,
            "vision_cfg": {"image_size": 32, "patch_size": 16, "width": 64, "head_width": 64, "layers": 3,
                           "mlp_ratio": 4.0},
            "text_cfg": {"context_length": 248, "vocab_size": 49408, "width": 64, "heads": 1, "layers": 2,
                         "mlp_ratio": 4.0},
        },
        "preprocess_cfg": {
            "size": 32, "mode": "RGB", "mean": [0.48145466, 0.4578275, 0.40821073],
            "std": [0.26862954, 0.26130258, 0.27577711], "interpolation": "bicubic", "resize_mode": "shortest",
            "fill_color": 0,
        },
    }  # fmt: skip


def test_the_pictures_are_normalised_as_the_folder_says(copy, tmp_path):
    (copy / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0, 0.1, 0.2], "image_std": [1, 1, 1]}))
    export_encoder(copy, tmp_path / "out", to="open_clip")
    _, _, preprocess = open_clip.create_model_and_transforms(f"local-dir:{tmp_path / 'out'}")
    normalise = preprocess.transforms[-1]
    assert (tuple(normalise.mean), tuple(normalise.std)) == ((0, 0.1, 0.2), (1, 1, 1))
    for broken, said in (('{"image_mean": [1, 2]}', "but must be three numbers"), ("[", "is not a JSON object")):
        (copy / "preprocessor_config.json").write_text(broken)
        with pytest.raises(ValueError, match=said):
            export_encoder(copy, tmp_path / "other", to="open_clip")
    assert not (tmp_path / "other").exists()


def test_a_ratio_gives_back_the_mlp_and_clips_vocabulary_is_known_by_its_tokens():
    for width in (49, 64, 768, 1664):
        for hidden in range(1, 3 * width):
            assert int(width * mlp_ratio(width, hidden)) == hidden
    tokenizer = clip_tokenizer()
    assert has_clip_vocabulary(tokenizer)
    tokenizer.add_tokens(["<new>"])
    assert not has_clip_vocabulary(tokenizer)
    assert not has_clip_vocabulary(TextEncoder.load("debias").tokenizer)


def test_activations_that_open_clip_lacks_are_refused(tmp_path):
    folder = make_clip(tmp_path / "relu", text={"hidden_act": "relu"})
    with pytest.raises(
        ValueError, match="^the text tower's activation is relu but open_clip has quick_gelu, gelu, gelu_py"
    ):
        export_encoder(folder, tmp_path / "out", to="open_clip")
    folder = make_clip(tmp_path / "mixed", vision={"hidden_act": "gelu"})
    with pytest.raises(ValueError, match="^the text tower's activation is quick_gelu and the image tower's gelu but"):
        export_encoder(folder, tmp_path / "out", to="open_clip")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "value"), [("num_hidden_layers", 2), ("image_size", 48), ("patch_size", 8), ("intermediate_size", 64)]
)
def test_an_image_tower_that_its_config_does_not_describe_is_refused(copy, tmp_path, name, value):
    config = json.loads((copy / "config.json").read_text())
    config["vision_config"][name] = value
    edit_json(copy / "config.json", **config)
    with pytest.raises(ValueError, match=f"says {name} {value} but the image tower of model.safetensors has "):
        export_encoder(copy, tmp_path / "out", to="open_clip")
