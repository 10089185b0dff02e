"""The tokenizer of a converted encoder: whose it is, its length, its pad token."""

import json

import pytest
import tiny
import torch
from tiny_checkpoints import clone, save_folder, save_safetensors, tiny_open_clip, tiny_transformers
from transformers import CLIPTokenizer

from debias_sd.checkpoints.convert import clip_tokenizer, convert_checkpoint, resolve_tokenizer
from debias_sd.encoder import TextEncoder
from debias_sd.shapes.tokenizer import build_tokenizer
from debias_sd.tokens import tokenize


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
    return convert_checkpoint(source, tmp_path / "out", activation="quick_gelu", **options)


PAD_IDS = {"sd1": 49407, "sd2": 0, "sdxl": 49407, "sdxl-2": 0, "sd3": 49407, "flux": 49407, "retrieval": 0}


@pytest.mark.parametrize("target", PAD_IDS)
def test_the_pad_token_is_the_targets(target):
    tokenizer, _ = resolve_tokenizer(None, vocabulary=49408, positions=12, target=target)
    assert tokenizer(["a cat"], padding="max_length").input_ids[0][-1] == PAD_IDS[target]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_the_pad_token_is_kept_or_the_targets(file, folder, tmp_path, kind):
    """A folder's own tokenizer keeps its pad token, here the end token, unless a target is named."""
    source = {"file": file, "folder": folder}[kind]
    assert convert(source, tmp_path).pad_id == {"file": 0, "folder": 49407}[kind]
    result = convert(source, tmp_path, target="sdxl-2")
    assert (result.target, result.pad_id) == ("sdxl-2", 0)
    encoder = TextEncoder.load(tmp_path / "out")
    assert (encoder.model.config.pad_token_id, encoder.tokenizer.pad_token_id) == (0, 0)


def test_tokenizers(folder, file, tmp_path):
    """The source's own files, a folder's, CLIP's own vocabulary; a wrong one and none are refused (case 34 too)."""
    own = json.loads((folder / "tokenizer_config.json").read_text())
    bare = save_folder(tiny_transformers(), tmp_path / "bare", tokenizer=False)
    assert "CLIP's vocabulary" in convert(bare, tmp_path).tokenizer
    assert convert(bare, tmp_path, tokenizer=folder).tokenizer == "tokenizer files of encoder"
    del own["model_max_length"]
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (bare / name).write_text((folder / name).read_text() if name == "tokenizer.json" else json.dumps(own))
    assert convert(bare, tmp_path).tokenizer == "tokenizer files of bare"
    assert CLIPTokenizer.from_pretrained(tmp_path / "out").model_max_length == 77
    world = tmp_path / "world"
    build_tokenizer(77).save_pretrained(world)
    with pytest.raises(
        ValueError, match=r"\(tokenizer files of world\) has \d+ tokens and the encoder 49,408; give the"
    ):
        convert(file, tmp_path, tokenizer=world)
    with pytest.raises(ValueError, match=r"has no tokenizer files; give the folder that holds tokenizer\.json"):
        convert(file, tmp_path, tokenizer=tmp_path)
    (world / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"the tokenizer files in .*world are damaged; copy them again"):
        convert(file, tmp_path, tokenizer=world)


def test_the_encoder_of_a_pipeline_folder_finds_its_tokenizer(folder, tmp_path):
    pipeline = tmp_path / "pipeline"
    save_folder(tiny_transformers(), pipeline / "text_encoder_2", tokenizer=False)
    (pipeline / "tokenizer_2").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (pipeline / "tokenizer_2" / name).write_text((folder / name).read_text())
    assert convert(pipeline / "text_encoder_2", tmp_path).tokenizer == "tokenizer files of tokenizer_2"


def test_another_vocabulary_needs_its_tokenizer(model, tmp_path):
    state = clone(model.state_dict())
    state["token_embedding.weight"] = state["token_embedding.weight"][:500].clone()
    path = save_safetensors(state, tmp_path / "in.safetensors")
    with pytest.raises(
        ValueError, match=r"the encoder has 500 tokens but CLIP's own vocabulary has 49408, .* --tokenizer"
    ):
        convert(path, tmp_path)


def test_clips_own_vocabulary_out_of_the_wheel():
    built, reference = clip_tokenizer(), tiny.clip_tokenizer(77)
    texts = ["a photo of a cat", "an unusual wörd 日本 <|endoftext|> 12.5", "“curly” &amp; ﬁle"]
    assert built.get_vocab() == reference.get_vocab()
    assert torch.equal(*(tokenize(one, texts, length=77, pad_id=0) for one in (built, reference)))
