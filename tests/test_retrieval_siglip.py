"""SigLIP folders: their own padding and lower case, and one sentence where something is missing."""

import json

import numpy as np
import pytest
import torch
from tiny import edit_json
from tiny_sets import make_folder
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, SiglipConfig, SiglipModel

from debias_sd.datasets.names import open_records
from debias_sd.measure.embedding import Embedder, FeatureCache
from debias_sd.measure.processes import Processes
from debias_sd.measure.retrieval import Plan, measure_sets
from debias_sd.measure.towers import load_towers

WORDS = ["<pad>", "</s>", "<unk>", "a", "red", "cat", "dog", "sits", "on", "the", "boat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random SigLIP of 16 positions with a tokenizer of eleven words, as `save_pretrained` writes both."""
    path = tmp_path_factory.mktemp("siglip")
    size = {"hidden_size": 32, "intermediate_size": 37, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = size | {"vocab_size": len(WORDS), "max_position_embeddings": 16, "projection_size": 32}
    vision = size | {"image_size": 30, "patch_size": 15}
    torch.manual_seed(0)
    model = SiglipModel(SiglipConfig(text_config=text, vision_config=vision)).eval()
    torch.nn.init.normal_(model.text_model.embeddings.token_embedding.weight, std=0.5)
    model.save_pretrained(path)
    inner = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "model_max_length": 16}
    PreTrainedTokenizerFast(tokenizer_object=inner, **names).save_pretrained(path)
    config = {"size": {"height": 30, "width": 30}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 2}
    (path / "preprocessor_config.json").write_text(json.dumps(config))
    return path


def test_texts_are_padded_to_the_window_in_lower_case_and_cut_with_their_end_token(folder):
    towers = load_towers(folder)
    texts = ["A RED cat", "the boat " * 20]
    rows, lengths = towers.ids_of(texts)
    assert rows[0] == [3, 4, 5, 1] + [0] * 12
    assert rows[1] == [9, 10] * 7 + [9, 1]
    assert lengths == [4, 41]
    found = Embedder(towers, FeatureCache(None, ""), Processes()).texts(texts)
    model = SiglipModel.from_pretrained(folder).eval()
    with torch.no_grad():
        wanted = model.get_text_features(input_ids=torch.tensor(rows)).pooler_output
    np.testing.assert_allclose(found, torch.nn.functional.normalize(wanted, dim=-1).numpy(), atol=1e-6)


def test_a_whole_picture_is_squashed_not_cut(folder, tmp_path):
    towers = load_towers(folder)
    assert towers.preprocessing.shortest is None
    records = open_records(str(make_folder(tmp_path / "data", count=6)))
    embedder = Embedder(towers, FeatureCache(None, ""), Processes())
    result = measure_sets({"siglip": embedder}, [records], Plan(samples=5)).encoders["siglip"]
    assert (result["kind"], result["window"]) == ("SigLIP", 16)
    assert result["sets"]["folder"]["pool"] == {"images": 6, "captions": 6}
    assert result["sets"]["folder"]["probes"]["keep"]["tokens"]["cut"] == 6


def test_what_is_missing_is_said(folder, tmp_path):
    for name in ("config.json", "model.safetensors", "preprocessor_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(
        ValueError, match="the tokenizer files in .* are missing or damaged|needs sentencepiece; install"
    ):
        load_towers(tmp_path)
    edit_json(tmp_path / "config.json", model_type="siglip2")
    with pytest.raises(ValueError, match="SigLIP 2 of the NaFlex kind, .*; give one of a fixed resolution"):
        load_towers(tmp_path)
