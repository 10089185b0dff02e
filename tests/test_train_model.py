"""The towers: start, stretch, frozen rows, reading by length, and the term that stays close to the start."""

import copy
import json
import re

import pytest
import torch
from transformers import CLIPTokenizer

from debias_sd.tokens import tokenize
from tests.tiny_world import save_tiny_clip
from tests.train_tiny import tiny_config
from train_encoder.engine import FrozenRows
from train_encoder.model.bases import build_model, load_start
from train_encoder.model.families import stretch_model
from train_encoder.model.towers import encode_by_length
from train_encoder.pair_terms import StayClose

TEXTS = ["a red star.", "a small blue ring in the top left.", "gray", "a big green box. a tiny red hoop. a disc."]


@pytest.fixture
def start(tmp_path):
    config = tiny_config(tmp_path, recipe="debias")
    return *build_model(config), config


def test_start_from_scratch_follows_the_seed_and_the_config(tmp_path):
    first, tokenizer = build_model(tiny_config(tmp_path))
    again, _ = build_model(tiny_config(tmp_path))
    other, _ = build_model(tiny_config(tmp_path, seed=1))
    tables = [model.text_model.embeddings.token_embedding.weight for model in (first, again, other)]
    assert torch.equal(tables[0], tables[1])
    assert not torch.equal(tables[0], tables[2])
    assert tables[0].std().item() == pytest.approx(0.5, rel=0.05)
    assert tables[0].shape[0] == len(tokenizer)
    assert first.config.text_config.eos_token_id == tokenizer.eos_token_id
    with pytest.raises(ValueError, match="init_std names 'tokens', but must name token_embeddings"):
        build_model(tiny_config(tmp_path, init_std={"tokens": 1.0}))


def test_stretch_reaches_248_and_leaves_the_start_alone(start):
    model, tokenizer, config = start
    before = model.text_model.embeddings.position_embedding.weight.clone()
    stretched = stretch_model(model, tokenizer, config)
    table = stretched.text_model.embeddings.position_embedding.weight
    assert table.shape[0] == stretched.config.text_config.max_position_embeddings == tokenizer.model_max_length == 248
    assert torch.equal(table[:20], before[:20])
    assert torch.equal(model.text_model.embeddings.position_embedding.weight, before)
    with pytest.raises(ValueError, match="has 248 positions already"):
        stretch_model(stretched, tokenizer, config)


def test_frozen_rows_do_not_move_by_gradient_momentum_or_weight_decay():
    table = torch.nn.Parameter(torch.randn(6, 3))
    before = table.detach().clone()
    optimizer = torch.optim.AdamW([table], lr=0.1, weight_decay=0.5)
    frozen = FrozenRows(table, 2)
    for _ in range(3):
        (table**2).sum().backward()
        frozen.mask_gradient()
        assert (table.grad[:2] == 0).all()
        optimizer.step()
        frozen.restore()
    assert torch.equal(table[:2], before[:2])
    assert (table[2:] != before[2:]).all()


def test_reading_by_length_equals_reading_at_once(start):
    model, tokenizer, _ = start
    ids = tokenize(tokenizer, TEXTS * 20, length=77, pad_id=0)
    plain = model.text_model(input_ids=ids)
    grouped = encode_by_length(model.text_model, ids)
    torch.testing.assert_close(grouped.pooler_output, plain.pooler_output)
    for row, end in enumerate((ids == tokenizer.eos_token_id).int().argmax(1).tolist()):
        both = grouped.last_hidden_state[row, : end + 1], plain.last_hidden_state[row, : end + 1]
        torch.testing.assert_close(*both)


def test_every_token_before_the_end_reaches_the_pooled_vector(start):
    model, tokenizer, _ = start
    ids = tokenize(tokenizer, TEXTS[3:], length=77, pad_id=0)
    end = int((ids == tokenizer.eos_token_id).int().argmax())
    pooled = encode_by_length(model.text_model, ids).pooler_output
    for position in range(1, end):
        changed = ids.clone()
        changed[0, position] = 40
        assert (encode_by_length(model.text_model, changed).pooler_output - pooled).abs().max() > 1e-5
    changed = ids.clone()
    changed[0, end + 1 :] = 40
    assert torch.equal(encode_by_length(model.text_model, changed).pooler_output, pooled)


def test_stay_close_is_zero_at_the_start_and_reads_only_the_captions_tokens(start):
    model, tokenizer, _ = start
    term = StayClose(copy.deepcopy(model.text_model))
    ids = tokenize(tokenizer, [TEXTS[0], " ".join(TEXTS * 6)], length=248, pad_id=0)
    hidden = model.text_model(input_ids=ids[:, :77]).last_hidden_state
    assert term.distance(ids, hidden).item() == 0
    end = int((ids[0] == tokenizer.eos_token_id).int().argmax())
    beyond = hidden.clone()
    beyond[0, end + 1 :] += 1
    beyond[1, 76:] += 1  # the slot that only ever held the end token
    assert term.distance(ids, beyond).item() == 0
    assert term.distance(ids, 2 * hidden).item() == pytest.approx(1.0)
    near = hidden.clone()
    near[1, 75] += 1
    assert term.distance(ids, near).item() > 0


def test_stay_close_trains_the_student_only(start):
    model, tokenizer, config = start
    term = StayClose(copy.deepcopy(model.text_model))
    student = stretch_model(model, tokenizer, config)
    ids = tokenize(tokenizer, [" ".join(TEXTS * 6)], length=248, pad_id=0)
    loss = term.distance(ids, encode_by_length(student.text_model, ids).last_hidden_state)
    loss.backward()
    assert loss.item() > 0
    assert student.text_model.embeddings.position_embedding.weight.grad is not None
    assert all(p.grad is None for p in [*model.parameters(), *term.teacher.parameters()])


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda folder: truncate(folder / "model.safetensors"), "cannot be loaded .*is truncated or damaged"),
        (lambda folder: edit(folder / "config.json", max_position_embeddings=248), "is damaged or does not fit"),
        (lambda folder: edit(folder / "config.json", num_hidden_layers=3), "cannot be loaded .it lacks 16 tensors"),
        (lambda folder: more_tokens(folder), "cannot be loaded .its tokenizer has"),
    ],
    ids=["truncated", "edited positions", "layers", "other tokenizer"],
)
def test_a_damaged_start_is_one_sentence(tmp_path, spoil, sentence):
    folder = save_tiny_clip(tmp_path / "start")
    spoil(folder)
    with pytest.raises(ValueError, match="^[^\n]*$") as caught:
        load_start(tiny_config(tmp_path, pretrained_model_name_or_path=str(folder)))
    assert re.search(sentence, str(caught.value))


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1000])


def edit(path, **changes):
    content = json.loads(path.read_text())
    content["text_config"] |= changes
    path.write_text(json.dumps(content))


def more_tokens(folder):
    tokenizer = CLIPTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<toy>"])
    tokenizer.save_pretrained(folder)


def test_missing_model_is_one_sentence(tmp_path):
    config = tiny_config(tmp_path, pretrained_model_name_or_path=str(tmp_path / "none"))
    with pytest.raises(ValueError, match=r"pretrained model folder .*none does not exist"):
        load_start(config)
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="^pretrained model .*cannot be loaded.*[^\n]*$"):
        load_start(config)
