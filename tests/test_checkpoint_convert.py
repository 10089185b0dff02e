"""convert_checkpoint: each choice, each refusal, the folder as a whole, and the command."""

import json

import pytest
import torch
from tiny_checkpoints import (
    clone,
    converted_features,
    long_clip,
    padded,
    save_folder,
    save_safetensors,
    text_features,
    tiny_open_clip,
    tiny_transformers,
    token_ids,
)
from transformers import CLIPModel, CLIPTextModel

from debias_sd import cli
from debias_sd.checkpoints import convert as conversion
from debias_sd.checkpoints.convert import convert_checkpoint
from debias_sd.encoder import TextEncoder
from debias_sd.positions import stretch_positions


@pytest.fixture(scope="module")
def model():
    return tiny_open_clip(quick_gelu=True)


@pytest.fixture(scope="module")
def file(model, tmp_path_factory):
    return save_safetensors(model.state_dict(), tmp_path_factory.mktemp("in") / "clip.safetensors")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_folder(tiny_transformers(), tmp_path_factory.mktemp("in") / "encoder")


def convert(source, tmp_path, **options):
    return convert_checkpoint(source, tmp_path / "out", **{"activation": "quick_gelu"} | options)


def test_the_folder_is_an_encoder_for_everybody(file, tmp_path):
    result = convert(file, tmp_path)
    encoder = TextEncoder.load(tmp_path / "out")
    assert (encoder.positions, encoder.width, encoder.tokenizer.model_max_length) == (77, 64, 77)
    assert CLIPTextModel.from_pretrained(tmp_path / "out").config.hidden_act == "quick_gelu"
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (49406, 49407, result.pad_id)
    assert (config["architectures"], config["projection_dim"]) == (["CLIPTextModelWithProjection"], 32)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    assert len({path.stat().st_mode for path in (tmp_path / "out").iterdir()}) == 1  # readable to whom the rest is


def test_provenance(file, tmp_path):
    convert(file, tmp_path)
    story = json.loads((tmp_path / "out" / "provenance.json").read_text())
    origin = story["converted_from"]
    assert (origin["name"], origin["format"], origin["layout"]) == (
        "clip.safetensors", "safetensors", "OpenAI or open_clip naming",
    )  # fmt: skip
    assert len(origin["sha256"]["clip.safetensors"]) == 64
    assert story["left_out"] == {"image tower": 32, "logit_scale": 1}
    assert (story["activation"], story["heads"], story["tables"], story["positions"]) == ("quick_gelu", 1, "one", 77)
    assert story["saved_with"].keys() == {"debias-sd", "torch", "transformers"}
    assert str(file.parent) not in json.dumps(story)


@torch.no_grad()
def test_a_whole_clip_model(file, model, tmp_path):
    result = convert(file, tmp_path, image_tower=True)
    assert (result.model_class, result.left_out) == ("CLIPModel", {})
    assert result.differences["image features"] < 1e-4
    whole = CLIPModel.from_pretrained(tmp_path / "out").eval()
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        whole.get_image_features(images).pooler_output, model.encode_image(images), rtol=0, atol=2e-5
    )
    assert torch.equal(whole.logit_scale, model.logit_scale)
    preprocessing = json.loads((tmp_path / "out" / "preprocessor_config.json").read_text())
    assert preprocessing["crop_size"] == {"height": 32, "width": 32}
    again = convert_checkpoint(tmp_path / "out", tmp_path / "again", image_tower=True)  # and in again
    assert again.layout == "transformers CLIPModel"
    assert torch.equal(CLIPModel.from_pretrained(again.folder).visual_projection.weight, whole.visual_projection.weight)


def test_image_towers_that_no_clip_model_has(model, folder, tmp_path):
    text = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("visual.")}
    resnet = save_safetensors(text | {"visual.layer1.0.conv1.weight": torch.zeros(2)}, tmp_path / "rn.safetensors")
    assert convert(resnet, tmp_path).left_out["image tower"] == 1
    with pytest.raises(
        ValueError, match=r"is a ResNet but a CLIPModel's is a Vision Transformer; leave out --image-tower"
    ):
        convert(resnet, tmp_path, image_tower=True)
    with pytest.raises(ValueError, match=r"holds no image tower; leave out --image-tower, or give the whole"):
        convert(folder, tmp_path, image_tower=True)


def test_a_whole_clip_for_stable_diffusion_2_is_a_contradiction(tmp_path):
    model = tiny_open_clip()
    model.transformer.resblocks.extend([model.transformer.resblocks[0]] * 22)
    path = save_safetensors(model.state_dict(), tmp_path / "h.safetensors")
    with pytest.raises(
        ValueError, match=r"--target sd2 leaves out the last layer, which a whole CLIPModel needs; give one"
    ):
        convert(path, tmp_path, image_tower=True, target="sd2")
    assert convert(path, tmp_path).layers == 24  # only for whom it is asked


def test_stretch(file, model, tmp_path):
    result = convert(file, tmp_path, stretch=True)
    assert result.positions == 248
    assert result.notes == ("positions stretched from 77 to 248, not trained",)
    table = TextEncoder.load(tmp_path / "out").model.embeddings.position_embedding.weight
    torch.testing.assert_close(table, stretch_positions(model.positional_embedding.detach()), rtol=0, atol=0)
    short = token_ids(20)
    torch.testing.assert_close(
        converted_features(tmp_path / "out", short), text_features(model, padded(short, 77)), rtol=0, atol=2e-5
    )
    with pytest.raises(ValueError, match=r"this file has 248 positions but --stretch is for 22 to 77; leave it out"):
        convert_checkpoint(tmp_path / "out", tmp_path / "more", stretch=True)


def test_a_short_file_where_a_long_one_is_needed(file, tmp_path):
    """Case 22."""
    with pytest.raises(ValueError, match=r"this file has 77 positions but needs 248; give a longer .*, or --stretch"):
        convert(file, tmp_path, positions_needed=248)
    assert convert(file, tmp_path, positions_needed=77).positions == 77
    assert convert(file, tmp_path, positions_needed=248, stretch=True).positions == 248
    with pytest.raises(ValueError, match=r"has one position table, of 77 rows; --positions chooses between two"):
        convert(file, tmp_path, positions="published")


def test_a_config_edited_to_be_longer(tmp_path):
    """Case 20."""
    folder = save_folder(tiny_transformers(), tmp_path / "in")
    config = json.loads((folder / "config.json").read_text())
    for key, value, sentence in (
        (
            "max_position_embeddings",
            248,
            "says 248 positions but its weights have 77; .*put 77 back and convert with --str",
        ),
        ("hidden_size", 128, "says width 128 but its weights have 64; they belong to different models"),
        ("hidden_size", "wide", "is not a valid CLIP config"),
    ):
        (folder / "config.json").write_text(json.dumps(config | {key: value}))
        with pytest.raises(ValueError, match=sentence):
            convert_checkpoint(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_dtype(file, model, tmp_path, dtype):
    result = convert(file, tmp_path, dtype=dtype)
    assert result.dtype == dtype
    assert TextEncoder.load(tmp_path / "out").model.dtype == getattr(torch, dtype)
    assert max(result.differences.values()) < 1e-4  # both sides rounded: what is compared is the conversion
    ids = padded(token_ids(30), 77)
    rounded = converted_features(tmp_path / "out", ids) - text_features(model, ids)
    assert 1e-5 < rounded.abs().max() < 0.5


def test_mixed_precision_becomes_the_widest(model, tmp_path):
    """Long-CLIP's files keep the token embedding in float16: nothing of the others is rounded for it."""
    state = clone(model.state_dict())
    state["token_embedding.weight"] = state["token_embedding.weight"].half()
    assert convert(save_safetensors(state, tmp_path / "a.safetensors"), tmp_path).dtype == "float32"
    half = {name: tensor.half() for name, tensor in state.items()}
    assert convert(save_safetensors(half, tmp_path / "b.safetensors"), tmp_path).dtype == "float16"
    mixed = half | {"ln_final.bias": half["ln_final.bias"].bfloat16()}
    assert convert(save_safetensors(mixed, tmp_path / "c.safetensors"), tmp_path).dtype == "float32"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_broken_weights_are_named(model, tmp_path, value):
    state = clone(model.state_dict())
    state["transformer.resblocks.1.mlp.c_fc.bias"][3] = value
    path = save_safetensors(state, tmp_path / "in.safetensors")
    with pytest.raises(ValueError, match=r"resblocks\.1\.mlp\.c_fc\.bias of in\.safetensors holds NaN or infinite"):
        convert(path, tmp_path)
    state["transformer.resblocks.1.mlp.c_fc.bias"][3] = 1e6
    path = save_safetensors(state, tmp_path / "in.safetensors")
    with pytest.raises(ValueError, match=r"values too large for torch\.float16; give another --dtype"):
        convert(path, tmp_path, dtype="float16")
    assert not (tmp_path / "out").exists()


def test_wrong_widths_and_quantised_tensors(model, tmp_path):
    state = clone(model.state_dict())
    wrong = {
        "ln_final.weight": (torch.zeros(65), r"ln_final\.weight is \[65\], expected \[64\]"),
        "positional_embedding": (torch.zeros(77, 32), r"expected"),
        "token_embedding.weight": (state["token_embedding.weight"].char(), r"is torch\.int8 but must be float32 or "),
    }
    for name, (tensor, sentence) in wrong.items():
        path = save_safetensors(state | {name: tensor}, tmp_path / "in.safetensors")
        with pytest.raises(ValueError, match=sentence):
            convert(path, tmp_path)
    long = save_safetensors(state | {"positional_embedding_res": torch.zeros(248, 64)}, tmp_path / "in.safetensors")
    with pytest.raises(ValueError, match=r"the frozen position table is \(77, 64\) and the trained one \(248, 64\)"):
        convert(long, tmp_path)


def test_the_embedded_encoder_comes_in_with_its_words(tmp_path):
    from debias_sd.encoder_folder import embedded_folder

    source = TextEncoder.load("debias")
    convert_checkpoint(embedded_folder("debias"), tmp_path / "out")
    result = TextEncoder.load(tmp_path / "out")
    assert result.known_words == source.known_words
    texts = ["a red circle above a blue square"]
    torch.testing.assert_close(result.embed(texts).hidden, source.embed(texts).hidden, rtol=0, atol=0)


def test_a_fault_leaves_what_was_there(file, tmp_path, monkeypatch):
    """Also one that the proof finds: the folder before stays, nothing else is left."""
    convert(file, tmp_path)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    swapped = conversion.text_states

    def wrong(state, *arguments, **options):
        block = "transformer.resblocks.0."
        swap = {block + "ln_1.bias": state[block + "ln_2.bias"], block + "ln_2.bias": state[block + "ln_1.bias"]}
        return swapped(state | swap, *arguments, **options)

    monkeypatch.setattr(conversion, "text_states", wrong)
    with pytest.raises(
        ValueError, match=r"the converted encoder differs from its checkpoint by .* in hidden states, 9 t"
    ):
        convert(file, tmp_path, target="flux")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_choices_are_checked(file, tmp_path):
    for options, sentence in (
        ({"target": "sd4"}, "unknown target 'sd4'; it must be one of sd1, sd2, sdxl, sdxl-2, sd3, flux, retrieval"),
        ({"dtype": "int8"}, "unknown dtype 'int8'; it must be one of float32, float16, bfloat16"),
        ({"positions": "both"}, "positions is 'both' but must be trained or published"),
        ({"activation": "relu"}, "unknown activation 'relu'; it must be quick_gelu or gelu"),
        ({"heads": 7}, "heads is 7 but must divide the width 64; change --heads"),
        ({"heads": -1}, "heads is -1"),
        ({"part": 0}, "--part is 0 but clip.safetensors holds 1; give 1 to 1"),
    ):
        with pytest.raises(ValueError, match=sentence):
            convert(file, tmp_path, **options)


def test_the_command_says_what_it_did(tmp_path, capsys):
    long = tiny_open_clip(length=248)
    torch.save(long_clip(long) | {"mask_net.w": torch.zeros(2)}, tmp_path / "in.pt")
    assert (
        cli.main(["convert", str(tmp_path / "in.pt"), str(tmp_path / "out"), "--target", "sdxl", "--dtype", "float16"])
        == 0
    )
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[:4] == [
        f"{tmp_path / 'out'}: CLIPTextModelWithProjection from SmartCLIP",
        "  width 64, layers 2, heads 1, quick_gelu, float16",
        "  248 positions (two tables, trained), pad id 49407 as for sdxl, CLIP's vocabulary, out of open_clip_torch",
        "  left out: image tower (32), logit_scale (1), mask_net (1)",
    ]
    assert lines[4].startswith("  largest difference from the source: ")
    assert len(lines) == 5
    assert err == ""


def test_the_command_warns_of_what_is_no_proof_and_refuses_in_one_sentence(file, tmp_path, capsys):
    assert cli.main(["convert", str(file), str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == (
        "debias-sd: error: clip.safetensors does not say its activation, and OpenAI's and LAION's models of width 64 "
        "differ in it; give --activation quick_gelu (OpenAI and what was trained from it) or --activation gelu "
        "(LAION).\n"
    )
    assert cli.main(["convert", str(file), str(tmp_path / "out"), "--activation", "gelu", "--stretch"]) == 0
    assert capsys.readouterr().err == "debias-sd: warning: positions stretched from 77 to 248, not trained\n"
