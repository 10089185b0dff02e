"""TextEncoder: folders of all kinds, equal values after a round trip."""

import json
import logging
import os

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tiny import END, START, save_clip_model, tiny_clip_model, tiny_encoder, tiny_text_encoder, tiny_tokenizer
from transformers import CLIPTextModel, CLIPTokenizer

from debias_sd import encoder_folder
from debias_sd.encoder import TextEncoder, load_encoder, stretch_encoder
from debias_sd.positions import stretch_positions

TEXTS = ["a red cat", "dog " * 150]


def saved(folder, *, length: int = 248):
    tiny_encoder(length).save(folder)
    return folder


def test_save_and_load_keep_every_value_and_half_precision(tmp_path):
    encoder = tiny_encoder()
    encoder.save(tmp_path / "encoder")
    loaded = load_encoder(tmp_path / "encoder")
    assert torch.equal(loaded.embed(TEXTS).hidden, encoder.embed(TEXTS).hidden)
    assert torch.equal(loaded.embed(TEXTS).pooled, encoder.embed(TEXTS).pooled)
    assert loaded.tokenizer.model_max_length == loaded.positions == 248
    assert not loaded.model.training
    assert len({file.stat().st_mode for file in (tmp_path / "encoder").iterdir()}) == 1  # whoever reads one reads all
    encoder = tiny_encoder().to(device=torch.device("cpu"), dtype=torch.float16)
    encoder.save(tmp_path / "encoder")
    assert load_encoder(tmp_path / "encoder").model.dtype == torch.float16
    assert json.loads((tmp_path / "encoder" / "config.json").read_text())["dtype"] == "float16"


def test_stock_transformers_reads_the_folder_version_4_too(tmp_path):
    folder = saved(tmp_path / "encoder")
    model, info = CLIPTextModel.from_pretrained(folder, output_loading_info=True)
    tokenizer = CLIPTokenizer.from_pretrained(folder)
    assert not any(info.values())
    ids = tokenizer(TEXTS, padding="max_length", truncation=True, return_tensors="pt").input_ids
    assert torch.equal(model(ids)[0], load_encoder(folder).embed(TEXTS).hidden)
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert all(name.startswith("text_model.") for name in file.keys())
    assert sorted(os.listdir(folder)) == [
        "config.json", "model.safetensors", "provenance.json", "tokenizer.json", "tokenizer_config.json"
    ]  # fmt: skip


def test_a_whole_clip_model_loads_quietly_with_equal_values(tmp_path, caplog, capfd):
    model = save_clip_model(tmp_path)
    capfd.readouterr()
    with caplog.at_level(logging.INFO):
        encoder = load_encoder(tmp_path)
    ids = encoder.tokenizer(TEXTS, padding="max_length", truncation=True, return_tensors="pt").input_ids
    assert torch.equal(encoder.embed(TEXTS).hidden, model.text_model(ids)[0])
    said = caplog.text + "".join(capfd.readouterr())
    assert "vision" not in said
    assert "UNEXPECTED" not in said


def test_flat_keys_load_too_and_a_stretched_encoder_is_a_pair(tmp_path):
    model = tiny_text_encoder(248)
    model.save_pretrained(tmp_path)
    tiny_tokenizer(248).save_pretrained(tmp_path)
    assert "embeddings.position_embedding.weight" in load_file(tmp_path / "model.safetensors")
    ids = torch.tensor([[START, 320, 2368, END]])
    assert torch.equal(load_encoder(tmp_path).model(ids)[0], model(ids)[0])
    encoder = tiny_encoder(77)
    longer = encoder.stretch()
    longer.save(tmp_path / "long")
    assert load_encoder(tmp_path / "long").positions == 248
    assert encoder.tokenizer.model_max_length == encoder.positions == 77
    story = json.loads((tmp_path / "long" / "provenance.json").read_text())
    assert story["stretched"] == {"from": 77, "keep": 20, "factor": 4}


def test_old_end_token_ids_become_the_real_ones_and_pooling_is_there_for_ids_above_it(tmp_path):
    save_clip_model(tmp_path)
    config = load_encoder(tmp_path).model.config
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (START, END, END)
    encoder = load_encoder(tmp_path)
    encoder.tokenizer.add_tokens(["<toy>"])
    encoder.model.resize_token_embeddings(len(encoder.tokenizer))
    hidden, pooled = encoder.embed(["a <toy> cat"])
    assert torch.equal(pooled[0], hidden[0, 4])


@pytest.mark.parametrize("place", [1, 5, 100, 245])
def test_every_token_before_the_end_moves_the_pooled_vector(place):
    encoder = tiny_encoder()
    words = ["cat"] * 246
    other = [*words]
    other[place] = "dog"
    assert not torch.equal(encoder.embed([" ".join(words)]).pooled, encoder.embed([" ".join(other)]).pooled)


@pytest.mark.parametrize("make", [tiny_clip_model, tiny_text_encoder], ids=["CLIPModel", "CLIPTextModel"])
def test_stretching_makes_a_longer_copy(make, tmp_path):
    model = make(77)
    longer = stretch_encoder(model)
    tower, old = (longer.text_model, model.text_model) if make is tiny_clip_model else (longer, model)
    assert torch.equal(
        tower.embeddings.position_embedding.weight, stretch_positions(old.embeddings.position_embedding.weight)
    )
    assert old.embeddings.position_embedding.num_embeddings == old.config.max_position_embeddings == 77
    assert tower.config.max_position_embeddings == 248
    assert tower.embeddings.position_embedding.weight.requires_grad
    ids = torch.randint(0, START, (1, 248))
    longer.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    again = again.text_model if make is tiny_clip_model else again
    assert torch.equal(again(ids)[0], tower(ids)[0])
    assert torch.equal(tower(ids[:, :20])[0], old(ids[:, :20])[0])


def test_known_words_travel_and_unknown_ones_are_named(tmp_path):
    encoder = TextEncoder(tiny_text_encoder(), tiny_tokenizer(248), known_words=frozenset({"red", "cat", "left"}))
    encoder.save(tmp_path / "encoder")
    loaded = load_encoder(tmp_path / "encoder")
    assert loaded.known_words == {"red", "cat", "left"}
    assert loaded.unknown_words("A Red dragon, left of a cat.") == ("a", "dragon", "of")
    assert tiny_encoder().unknown_words("a dragon") == ()


def test_an_embedded_name_without_weights_says_what_to_run(tmp_path, monkeypatch):
    monkeypatch.setattr(encoder_folder, "WEIGHTS", tmp_path)
    with pytest.raises(ValueError, match="'debias' is not there; run make weights"):
        load_encoder("debias")


def test_a_hub_id_is_read_from_the_cache(tmp_path, monkeypatch):
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "models--someone--encoder"
    saved(repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", str(tmp_path))
    assert load_encoder("someone/encoder").positions == 248


def test_an_encoder_folder_is_replaced_only_when_all_is_written(tmp_path, monkeypatch):
    folder = saved(tmp_path / "encoder", length=77)
    before = load_encoder(folder).embed(TEXTS).hidden

    def full_disk(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("debias_sd.encoder.save_file", full_disk)
        with pytest.raises(ValueError, match=r"cannot be written \(No space left on device\)"):
            tiny_encoder(seed=5).save(folder)
    assert torch.equal(load_encoder(folder).embed(TEXTS).hidden, before)
    assert os.listdir(tmp_path) == ["encoder"]
    tiny_encoder(seed=5).save(folder)
    assert load_encoder(folder).positions == 248
    assert os.listdir(tmp_path) == ["encoder"]


@pytest.mark.parametrize("target", ["/proc/encoder", "/dev/null/encoder", "/dev/null"])
def test_an_output_that_cannot_be_written_is_told_in_one_sentence(target):
    with pytest.raises(ValueError, match=r"output") as caught:
        tiny_encoder(77).save(target)
    assert "\n" not in str(caught.value)


def test_a_pair_that_does_not_belong_together_and_a_folder_of_other_things_are_refused(tmp_path):
    with pytest.raises(ValueError, match="reads 77 tokens, its encoder has 248 positions"):
        TextEncoder(tiny_text_encoder(248), tiny_tokenizer(77)).save(tmp_path / "encoder")
    assert os.listdir(tmp_path) == []
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match=r"holds thesis.txt, which is not part of an encoder"):
        tiny_encoder().save(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.txt"]
