"""A SigLIP of open_clip as a start: its own features, and one sentence for what is none."""

import json
import sys

import pytest
import timm
import torch
from open_clip import CLIPTextCfg, CLIPVisionCfg, CustomTextCLIP
from safetensors.torch import load_file, save_file
from timm.models import VisionTransformer, register_model
from transformers import AutoTokenizer

from tests.tiny import edit_json
from tests.tiny_siglip import gemma_tokenizer, make_pictures
from tests.train_tiny import tiny_config, train_tiny
from train_encoder.data.batches import SiglipTexts
from train_encoder.model.bases import load_start
from train_encoder.model.open_clip_siglip import is_siglip

pytestmark = pytest.mark.usefixtures("fresh_accelerator")
TRUNK = {"img_size": 32, "patch_size": 16, "embed_dim": 24, "depth": 2, "num_heads": 3, "class_token": False}


def vit_tiny_siglip_of_tests(pretrained=False, **options):
    known = {"num_classes", "global_pool", "img_size", "act_layer", "device", "dtype"}
    return VisionTransformer(**TRUNK | {name: value for name, value in options.items() if name in known})


if "vit_tiny_siglip_of_tests" not in timm.list_models():
    register_model(vit_tiny_siglip_of_tests)
    sys.modules[__name__].__all__ = []


def save_open_clip(folder, *, tanh, bias=True):
    """A SigLIP folder as open_clip and the hub have it, with Gemma's tokenizer; returns open_clip's model."""
    tokenizer = gemma_tokenizer()
    text = {"context_length": 64, "vocab_size": len(tokenizer), "width": 24, "heads": 2, "layers": 2}
    text |= {"no_causal_mask": True, "proj_bias": bias, "pool_type": "last", "norm_kwargs": {"eps": 1e-6}}
    text |= {"act_kwargs": {"approximate": "tanh"}} if tanh else {}
    vision = {"image_size": 32, "timm_model_name": "vit_tiny_siglip_of_tests", "timm_pool": "map", "timm_proj": "none"}
    config = {"embed_dim": 24, "init_logit_bias": -10, "custom_text": True, "vision_cfg": vision}
    torch.manual_seed(0)
    towers = {"vision_cfg": CLIPVisionCfg(**vision), "text_cfg": CLIPTextCfg(**text)}
    model = CustomTextCLIP(embed_dim=24, init_logit_bias=-10, init_logit_scale=2.5, **towers).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:  # norms and biases start at 0 and 1, where a swapped one would not show
                parameter.add_(torch.randn_like(parameter) * 0.1)
            elif "token_embedding" in name or "positional" in name or "latent" in name:
                parameter.normal_(std=0.5)
    folder.mkdir()
    text |= {"tokenizer_kwargs": {"clean": "canonicalize"}}
    preprocess = {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic", "resize_mode": "squash"}
    content = {"model_cfg": config | {"text_cfg": text}, "preprocess_cfg": preprocess}
    (folder / "open_clip_config.json").write_text(json.dumps(content))
    state = {name: value.contiguous() for name, value in model.state_dict().items()}
    save_file(state, folder / "open_clip_model.safetensors")
    tokenizer.save_pretrained(folder)
    return model


@pytest.mark.parametrize(("tanh", "bias"), [(False, True), (True, True), (False, False)], ids=["1", "2", "i18n"])
def test_a_start_has_open_clips_own_features(tmp_path, tanh, bias):
    theirs = save_open_clip(tmp_path / "webli", tanh=tanh, bias=bias)
    assert is_siglip(tmp_path / "webli")
    start = load_start(tiny_config(tmp_path, recipe="debias", pretrained_model_name_or_path=str(tmp_path / "webli")))
    assert start.model.config.text_config.hidden_act == ("gelu_pytorch_tanh" if tanh else "gelu")
    ids = SiglipTexts(start.tokenizer, 64).ids(["a red star", "the sky is blue and wide"])
    pixels = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        text, image = theirs.encode_text(ids), theirs.encode_image(pixels)
        found = start.model.get_text_features(input_ids=ids).pooler_output
        torch.testing.assert_close(found, text, atol=1e-5, rtol=1e-4)
        found = start.model.get_image_features(pixel_values=pixels).pooler_output
        torch.testing.assert_close(found, image, atol=1e-5, rtol=1e-4)
    assert (text[0] - text[1]).abs().max() > 0.01
    assert start.model.logit_scale.item() == pytest.approx(theirs.logit_scale.item())
    assert start.model.logit_bias.item() == pytest.approx(theirs.logit_bias.item())
    assert (start.preprocessing.shortest, start.preprocessing.resample, start.preprocessing.mean) == (
        None,
        3,
        (0.5,) * 3,
    )


def test_texts_are_cleaned_as_open_clip_cleans_them(tmp_path):
    from open_clip.tokenizer import canonicalize_text

    save_open_clip(tmp_path / "webli", tanh=True)
    start = load_start(tiny_config(tmp_path, recipe="debias", pretrained_model_name_or_path=str(tmp_path / "webli")))
    plain = AutoTokenizer.from_pretrained(tmp_path / "webli")
    for text in ("A Red, (small) star_there.", "  two   spaces; [x] \\ ^ -- ", "!"):
        assert start.tokenizer(text)["input_ids"] == plain(canonicalize_text(text))["input_ids"]
    assert start.tokenizer.pad_token_id == 0


def test_it_trains_and_is_a_siglip_of_transformers_then(tmp_path):
    save_open_clip(tmp_path / "webli", tanh=True)
    settings = {"train_data": make_pictures(tmp_path / "pictures"), "train_batch_size": 4, "recipe": "debias"}
    folder = train_tiny(tmp_path / "run", **settings, pretrained_model_name_or_path=str(tmp_path / "webli"))
    end = load_file(folder / "model.safetensors")
    assert end["text_model.embeddings.position_embedding.weight"].shape == (196, 24)
    assert end["logit_bias"].item() != -10


@pytest.mark.parametrize("tower", ["vit_nobody_knows", "resnet18"])
def test_another_image_tower_is_one_sentence_with_what_to_name(tmp_path, tower):
    save_open_clip(tmp_path / "webli", tanh=True)
    sentence = f"its image tower is '{tower}', timm's Vision Transformers with an attention pool are read"
    config = json.loads((tmp_path / "webli" / "open_clip_config.json").read_text())["model_cfg"]
    config["vision_cfg"]["timm_model_name"] = tower
    edit_json(tmp_path / "webli" / "open_clip_config.json", model_cfg=config)
    with pytest.raises(
        ValueError, match=f"^pretrained model [^\n]*{sentence}.; name the transformers folder of the same"
    ):
        load_start(tiny_config(tmp_path, recipe="debias", pretrained_model_name_or_path=str(tmp_path / "webli")))


def test_tensors_without_a_place_and_no_tokenizer_are_one_sentence(tmp_path):
    save_open_clip(tmp_path / "webli", tanh=True)
    state = load_file(tmp_path / "webli" / "open_clip_model.safetensors")
    settings = {"recipe": "debias", "pretrained_model_name_or_path": str(tmp_path / "webli")}
    save_file(state | {"text.cls_emb": torch.zeros(24)}, tmp_path / "webli" / "open_clip_model.safetensors")
    with pytest.raises(ValueError, match="its tensors are not those of a SigLIP .1 differ, cls_emb first"):
        load_start(tiny_config(tmp_path, **settings))
    save_file(state, tmp_path / "webli" / "open_clip_model.safetensors")
    (tmp_path / "webli" / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="it has no tokenizer.json; copy it"):
        load_start(tiny_config(tmp_path, **settings))
