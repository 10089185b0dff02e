"""Encoder folders with a fault, and encoders that are nowhere: one sentence each."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import END, edit_json, tiny_encoder, tiny_tokenizer

from debias_sd.encoder import load_encoder


def truncate(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def drop_tensor(folder):
    state = load_file(folder / "model.safetensors")
    del state["text_model.final_layer_norm.bias"]
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def flatten_positions(folder):
    state = load_file(folder / "model.safetensors")
    state["text_model.embeddings.position_embedding.weight"] = torch.zeros(248 * 32)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def quantise(dtype, name="text_model.encoder.layers.0.self_attn.q_proj.weight"):
    def spoil(folder):
        state = load_file(folder / "model.safetensors")
        state[name] = state[name].to(dtype)
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})

    return spoil


def other_tokenizer(folder):
    tokenizer = tiny_tokenizer(248)
    tokenizer.add_tokens(["<toy>"])
    tokenizer.save_pretrained(folder)


FAULTS = {
    "edited config": (
        lambda folder: edit_json(folder / "config.json", max_position_embeddings=300),
        r"says 300 positions, model.safetensors has 248; editing the config does not lengthen an encoder",
    ),
    "width": (lambda folder: edit_json(folder / "config.json", hidden_size=64), "says width 64 .* has 32"),
    "layer size": (lambda folder: edit_json(folder / "config.json", intermediate_size=64), "does not fit its config"),
    "no window": (
        lambda folder: edit_json(folder / "tokenizer_config.json", model_max_length=None),
        "has no model_max_length",
    ),
    "short tokenizer": (
        lambda folder: edit_json(folder / "tokenizer_config.json", model_max_length=77),
        "reads 77 tokens, its encoder has 248 positions",
    ),
    "other tokenizer": (other_tokenizer, f"has {END + 2:,} tokens and its encoder {END + 1:,}"),
    "end token": (lambda folder: edit_json(folder / "config.json", eos_token_id=7), f"{END} .* eos_token_id 7"),
    "truncated": (truncate, "model.safetensors is truncated or damaged"),
    "empty weights": (lambda folder: (folder / "model.safetensors").write_bytes(b""), "is empty .0 bytes."),
    "lost tensor": (drop_tensor, "lacks 1 tensor of the text tower, .*final_layer_norm.bias first"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors does not exist"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json does not exist"),
    "no JSON": (lambda folder: (folder / "config.json").write_text("{"), "config.json is not readable JSON"),
    "bad value": (
        lambda folder: edit_json(folder / "config.json", num_hidden_layers="three"),
        "not a valid CLIP config",
    ),
    "other family": (lambda folder: edit_json(folder / "config.json", model_type="siglip"), "model_type 'siglip'"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer files"),
    "bad tokenizer": (lambda folder: (folder / "tokenizer.json").write_text("{"), "tokenizer files .* are damaged"),
    "window is no number": (
        lambda folder: edit_json(folder / "tokenizer_config.json", model_max_length=248.0),
        "model_max_length in .* is 248.0 but must be a whole number",
    ),
    "fewer layers": (
        lambda folder: edit_json(folder / "config.json", num_hidden_layers=2),
        "holds 16 tensors that its config.json has no place for, encoder.layers.2",
    ),
    "unknown activation": (lambda folder: edit_json(folder / "config.json", hidden_act="x"), "does not fit its config"),
    "flat positions": (flatten_positions, "has 1 dimension but must have 2"),
    "fp8": (
        quantise(torch.float8_e4m3fn),
        "q_proj.weight of .* is torch.float8_e4m3fn but must be float32, float16 or",
    ),
    "int8": (
        quantise(torch.int8),
        "q_proj.weight of .* is torch.int8 but must be float32, .*; take unquantised weights",
    ),
    "fp8 positions": (
        quantise(torch.float8_e5m2, "text_model.embeddings.position_embedding.weight"),
        "is torch.float8_e5m2 but must be",
    ),
    "bad provenance": (lambda folder: (folder / "provenance.json").write_text("[1]"), "is not a JSON object"),
    "bad words": (lambda folder: (folder / "known_words.json").write_text("{}"), "is not a JSON list of words"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_folder_is_told_in_one_sentence(fault, tmp_path):
    folder = tmp_path / "encoder"
    tiny_encoder().save(folder)
    spoil, sentence = FAULTS[fault]
    spoil(folder)
    with pytest.raises(ValueError, match=sentence) as caught:
        load_encoder(folder)
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".")


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("/no/such/folder", "encoder folder /no/such/folder does not exist"),
        ("nowhere", "encoder folder nowhere does not exist"),
        ("./base", "encoder folder ./base does not exist"),
        (__file__, "is a file; give the folder"),
        ("nobody-here/no-such-encoder", "was not found locally or on the Hub"),
    ],
)
def test_an_encoder_that_is_nowhere_is_told_in_one_sentence(source, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        load_encoder(source)
    assert "\n" not in str(caught.value)
