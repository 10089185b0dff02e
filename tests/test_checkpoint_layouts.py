"""Every layout that people have, made by its own library: same features after conversion, every key accounted for."""

import json

import pytest
import torch
from safetensors.torch import load_file
from tiny_checkpoints import (
    LAYERS,
    PROJECTION,
    WIDTH,
    clone,
    convert_state,
    converted_features,
    equal_features,
    long_clip,
    long_clip_features,
    padded,
    prefixed,
    save_folder,
    save_safetensors,
    save_torchscript,
    text_features,
    tiny_open_clip,
    tiny_transformers,
    token_ids,
)

from debias_sd.checkpoints.convert import convert_checkpoint
from debias_sd.checkpoints.layouts import find_tower
from debias_sd.checkpoints.reading import read_source

BLOCKS = 12 * LAYERS  # tensors of the blocks in OpenAI's naming
IMAGE = BLOCKS + 8


@pytest.fixture(scope="module")
def standard():
    return tiny_open_clip(quick_gelu=True)


@pytest.fixture(scope="module")
def custom():
    return tiny_open_clip(custom=True, quick_gelu=True, seed=1)


@pytest.fixture(scope="module")
def long():
    return tiny_open_clip(quick_gelu=True, length=248, seed=2)


@pytest.fixture(scope="module")
def stock():
    return tiny_transformers(seed=3)


def test_openai_state_dict(standard, tmp_path):
    constants = {"input_resolution": torch.tensor(32), "context_length": torch.tensor(77)}
    result = convert_state(standard.state_dict() | constants, tmp_path)
    assert (result.layout, result.activation, result.heads, result.positions) == ("OpenAI CLIP", "quick_gelu", 1, 77)
    assert result.left_out == {"constants": 2, "image tower": IMAGE, "logit_scale": 1}
    ids = padded(token_ids(40, batch=2), 77)
    equal_features(result, text_features(standard, ids), ids)


def test_torchscript_archive(standard, tmp_path):
    """Case 25: a JIT archive is told from a state dict, and gives its numbers without being loaded by torch.jit."""
    path = save_torchscript(standard, tmp_path / "ViT.pt")
    result = convert_checkpoint(path, tmp_path / "out")
    assert (result.layout, result.activation) == ("OpenAI CLIP", "quick_gelu")
    assert json.loads((tmp_path / "out" / "provenance.json").read_text())["converted_from"]["format"] == (
        "TorchScript archive"
    )
    ids = padded(token_ids(77), 77)
    equal_features(result, text_features(standard, ids), ids)


def test_long_clip(long, tmp_path):
    """Case 21: rows from 20 on come from the second table."""
    state = long_clip(long)
    result = convert_state(state, tmp_path)
    assert (result.layout, result.tables, result.positions) == ("Long-CLIP", "trained", 248)
    for length in (9, 169, 248):
        ids = padded(token_ids(length), 248)
        equal_features(result, long_clip_features(long, state, ids), ids)


def test_the_first_table_alone_is_another_encoder(long, tmp_path):
    """Case 21, the common converter's fault: right on 9 tokens, wrong on 169; `published` asks for it by name."""
    state = long_clip(long)
    result = convert_state(state, tmp_path, positions="published")
    assert result.tables == "published"
    short, far = padded(token_ids(9), 248), padded(token_ids(169), 248)
    equal_features(result, text_features(long, far), far)
    torch.testing.assert_close(
        converted_features(result.folder, short), long_clip_features(long, state, short), rtol=0, atol=2e-5
    )
    off = converted_features(result.folder, far) - long_clip_features(long, state, far)
    assert off.abs().max() > 0.1


def test_smartclip_leaves_its_mask_net_out(long, tmp_path):
    state = long_clip(long) | {"mask_net.0.weight": torch.zeros(3, 3), "mask_net.0.bias": torch.zeros(3)}
    result = convert_state(state, tmp_path)
    assert (result.layout, result.left_out["mask_net"]) == ("SmartCLIP", 2)


def test_training_checkpoint_in_custom_text_layout(custom, tmp_path):
    """The released DeBias-CLIP's layout, prefixes and all."""
    inside = prefixed(custom.state_dict(), "module.")
    inside["module.text.positional_embedding_res"] = inside["module.text.positional_embedding"].clone()
    optimizer = torch.optim.AdamW(custom.parameters()).state_dict()
    result = convert_state(
        {"epoch": 3, "name": "run", "state_dict": inside, "optimizer": optimizer, "scaler": {}}, tmp_path
    )
    assert result.layout == "Long-CLIP in open_clip's custom-text layout"
    assert result.left_out == {
        "epoch": 1, "name": 1, "optimizer": 1, "scaler": 1, "image tower": IMAGE, "logit_scale": 1,
    }  # fmt: skip
    ids = padded(token_ids(60), 77)
    equal_features(result, text_features(custom, ids), ids)


@pytest.mark.parametrize("layout", ["standard", "custom"])
@pytest.mark.parametrize("quick_gelu", [False, True])
def test_open_clip(layout, quick_gelu, tmp_path):
    """Case 39: the activation that was trained is kept, and another gives other numbers."""
    model = tiny_open_clip(custom=layout == "custom", quick_gelu=quick_gelu)
    told = {True: "quick_gelu", False: "gelu"}
    result = convert_state(model.state_dict(), tmp_path, activation=told[quick_gelu])
    assert (
        result.layout == {"standard": "OpenAI or open_clip naming", "custom": "open_clip, custom-text layout"}[layout]
    )
    ids = padded(token_ids(77), 77)
    equal_features(result, text_features(model, ids), ids)
    other = convert_state(model.state_dict(), tmp_path, activation=told[not quick_gelu])
    assert (converted_features(other.folder, ids) - text_features(model, ids)).abs().max() > 1e-3


@pytest.mark.parametrize("flat", [False, True])
def test_transformers_folder_and_both_key_layouts(stock, flat, tmp_path):
    """Case 31: keys of transformers before and since 5.6 give equal outputs."""
    save_folder(stock, tmp_path / "in")
    if flat:
        state = {name.removeprefix("text_model."): tensor for name, tensor in stock.state_dict().items()}
        save_safetensors(state, tmp_path / "in" / "model.safetensors")
    result = convert_checkpoint(tmp_path / "in", tmp_path / "out")
    assert result.layout == "transformers CLIPTextModelWithProjection" + (", flat keys" if flat else "")
    assert (result.left_out, result.target, result.pad_id) == ({}, None, 49407)
    ids = token_ids(50)
    with torch.no_grad():
        equal_features(result, stock(ids).text_embeds, ids)


def test_transformers_pickle_and_shards(stock, tmp_path):
    folder = save_folder(stock, tmp_path / "in")
    (folder / "model.safetensors").unlink()
    torch.save(stock.state_dict(), folder / "pytorch_model.bin")
    ids = token_ids(50)
    with torch.no_grad():
        expected = stock(ids).text_embeds
    equal_features(convert_checkpoint(folder, tmp_path / "a"), expected, ids)
    (folder / "pytorch_model.bin").unlink()
    stock.save_pretrained(folder, max_shard_size="8MB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    result = convert_checkpoint(folder, tmp_path / "b")
    equal_features(result, expected, ids)
    story = json.loads((tmp_path / "b" / "provenance.json").read_text())
    assert len(story["converted_from"]["sha256"]) == len(list(folder.glob("model-*.safetensors")))


def test_text_only_and_whole_clip_files(stock, tmp_path):
    """Cases 23 and 28: a file of the text tower alone and one with an image tower are both a text encoder."""
    text = prefixed(stock.text_model.state_dict(), "text_model.")
    assert convert_state(text, tmp_path, activation="quick_gelu").model_class == "CLIPTextModel"
    image = {"vision_model.embeddings.class_embedding": torch.zeros(64), "visual_projection.weight": torch.zeros(8, 64)}
    whole = text | image | {"logit_scale": torch.tensor(4.0), "text_model.embeddings.position_ids": torch.arange(77)}
    result = convert_state(whole, tmp_path, activation="quick_gelu")
    assert result.layout == "transformers CLIPModel"
    assert result.left_out == {"constants": 1, "image tower": 2, "logit_scale": 1}


def test_every_key_is_used_or_named_and_counts_add_up(standard, tmp_path):
    """One unknown tensor, inside the tower or outside, is an error that names it."""
    for key in ("surprise.weight", "transformer.resblocks.1.surprise", "visual2.proj"):
        with pytest.raises(ValueError, match=rf"{key}.*; (take|give|remove)"):
            convert_state(standard.state_dict() | {key: torch.zeros(2)}, tmp_path, activation="gelu")
    assert not (tmp_path / "out").exists()
    state = clone(standard.state_dict()) | {"attn_mask": torch.zeros(77, 77)}
    assert convert_state(state, tmp_path, activation="gelu").left_out["constants"] == 1
    torch.save(standard.state_dict(), tmp_path / "in.pt")
    source = read_source(tmp_path / "in.pt")
    tower = find_tower(source)
    used = len(tower.text) + len(tower.image) + 1  # the logit scale
    assert used + sum(tower.left_out.values()) == len(source.tensors) == BLOCKS + 5 + IMAGE + 1
    assert tower.text["text_projection"].shape == (WIDTH, PROJECTION)


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"text_model.head.weight": 1}, "a SigLIP text tower reads all tokens at once"),
        ({"text_projection.bias": 1, "logit_bias": 1}, "a SigLIP text tower"),
        ({"cls_emb": 1}, "a CoCa text tower"),
        ({"transformer.resblocks.0.ls_1.gamma": 1}, "no layer scales"),
        ({"transformer.resblocks.0.mlp.c_fc.theta": 1, "transformer.resblocks.0.mlp.c_fc.r": 1}, "GmP, .theta and .r"),
        ({"text.transformer.embeddings.word_embeddings.weight": 1}, "a BERT-like text tower"),
    ],
)
def test_other_families_are_refused_with_the_reason(standard, extra, reason, tmp_path):
    with pytest.raises(ValueError, match=reason):
        convert_state(standard.state_dict() | {key: torch.zeros(size) for key, size in extra.items()}, tmp_path)


def test_a_part_of_a_model_is_refused(standard, tmp_path):
    """Case 27: only the transformer's blocks were saved."""
    with pytest.raises(ValueError, match=r"holds blocks of a transformer but no token embedding \(resblocks"):
        convert_state(standard.transformer.state_dict(), tmp_path)
    with pytest.raises(ValueError, match=r"holds no CLIP text tower \(conv1"):
        convert_state({"conv1.weight": torch.zeros(2)}, tmp_path)
    state = clone(standard.state_dict())
    del state["ln_final.bias"]
    with pytest.raises(ValueError, match=r"the text tower lacks ln_final\.bias; give the complete checkpoint"):
        convert_state(state, tmp_path, activation="gelu")


@pytest.mark.parametrize("layout", ["standard", "custom", "stock"])
def test_a_causal_clip_of_the_sigmoid_loss_is_a_clip(layout, tmp_path, request):
    """Case 120: its logit_bias is left out with a note, in every naming; states and projection are the same."""
    state = request.getfixturevalue(layout).state_dict()
    folders = [tmp_path / "plain", tmp_path / "sigmoid"]
    for folder in folders:
        folder.mkdir()
    plain = convert_state(state, folders[0], activation="quick_gelu")
    found = convert_state(state | {"logit_bias": torch.tensor(-10.0)}, folders[1], activation="quick_gelu")
    assert found.left_out == plain.left_out | {"logit_bias": 1}
    note = "logit_bias left out: it is added to the similarities of the sigmoid loss, no tower has it"
    assert found.notes == (*plain.notes, note)
    weights = [load_file(one.folder / "model.safetensors") for one in (plain, found)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
