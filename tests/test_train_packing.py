"""All captions in one row: the same features and gradients as padded passes, and nothing computed that nobody reads."""

import json
import random

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from debias_sd.shapes.tokenizer import build_tokenizer
from debias_sd.tokens import tokenize
from tests.tiny_world import tiny_clip
from tests.train_tiny import tiny_config
from train_encoder.data.batches import ClipTexts
from train_encoder.model import packing
from train_encoder.model.packing import encode_packed, pack_captions, use_packed_attention
from train_encoder.model.towers import ClipTowers
from train_encoder.terms import make_terms

PAD = 0
TEXTS = [
    "a red star.",
    "a small blue ring in the top left. a disc. a tiny red hoop in the centre.",
    "gray",
    "a big green box. a tiny red hoop. a disc. a small blue ring in the bottom left.",
    "a large purple circle sits in the top right.",
]


def make_batch(seed=0, size=5):
    """A batch of `size` pictures with long and front-padded short captions, cut at the longest as the collator does."""
    rng, tokenizer = random.Random(seed), build_tokenizer(248)
    end = tokenizer.eos_token_id
    long = tokenize(tokenizer, [" ".join(rng.choices(TEXTS, k=4)) for _ in range(size)], length=248, pad_id=PAD)
    short = ClipTexts(tokenizer, 120, PAD).front_padded(rng.choices(TEXTS, k=size), [rng] * size)
    longest = int((long == end).int().argmax(1).max()) + 1
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randn(size, 3, 48, 48, generator=generator, dtype=torch.float64)
    return {"input_ids": long[:, :longest], "short_ids": short, "pixel_values": pixels}


def make_towers(tmp_path, **settings):
    model, tokenizer = tiny_clip(window=248)
    config = tiny_config(tmp_path, recipe="debias", pretrained_model_name_or_path="x", **settings)
    return ClipTowers(model.double(), config, make_terms(model, tokenizer, config)).train()


def padded(towers, batch):
    """The same features by the model's own forward pass, each kind of caption padded to 248 in a pass of its own."""
    ids = {"text": batch["input_ids"], "short": batch["short_ids"]}
    pooled = {
        name: towers.clip.text_model(
            input_ids=torch.nn.functional.pad(rows, (0, 248 - rows.shape[1]), value=PAD)
        ).pooler_output
        for name, rows in ids.items()
    }
    out = {name: towers.clip.text_projection(rows) for name, rows in pooled.items()}
    vision = towers.clip.vision_model(pixel_values=batch["pixel_values"])
    return out | {"image": towers.clip.visual_projection(vision.pooler_output)}


def gradients(towers, features):
    """The gradient of every parameter for one fixed sum of all features."""
    generator = torch.Generator().manual_seed(1)
    weights = {name: torch.randn(features[name].shape, generator=generator).double() for name in sorted(features)}
    towers.zero_grad()
    sum((features[name] * weights[name]).sum() for name in weights).backward()
    return {name: p.grad.clone() for name, p in towers.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("whole_layers", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
def test_features_and_gradients_are_those_of_padded_passes(tmp_path, monkeypatch, group, whole_layers, seed):
    monkeypatch.setitem(packing.GROUP, "cpu", group)
    plain, towers = make_towers(tmp_path, text_pass="grouped"), make_towers(tmp_path)
    towers.whole_layers = whole_layers
    batch = make_batch(seed)
    wanted = padded(plain, batch)
    found = {name: value for name, value in towers(batch).items() if name in wanted}
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, atol=1e-12, rtol=1e-9)
    want, have = gradients(plain, wanted), gradients(towers, found)
    assert want.keys() == have.keys()
    for name, value in want.items():
        torch.testing.assert_close(have[name], value, atol=1e-11, rtol=1e-8)
    # The shared prefix: pads are read, so their embedding and their positions have a gradient.
    assert have["clip.text_model.embeddings.token_embedding.weight"][PAD].abs().max() > 1e-3


def test_one_gradient_checkpointed_pass_has_the_same_gradients(tmp_path):
    towers, batch = make_towers(tmp_path), make_batch()
    want = gradients(towers, {name: v for name, v in towers(batch).items() if name != "logit_scale"})
    towers.clip.activation_checkpointing_enable({"use_reentrant": False})
    have = gradients(towers, {name: v for name, v in towers(batch).items() if name != "logit_scale"})
    for name, value in want.items():
        torch.testing.assert_close(have[name], value, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("reader", ["stay_close_weight", "late_sentences_weight"])
def test_hidden_states_lie_at_their_slots(tmp_path, reader):
    towers, batch = make_towers(tmp_path, **{reader: 1.0}), make_batch()
    hidden, ids = towers(batch)["text_hidden"], batch["input_ids"]
    whole = towers.clip.text_model(input_ids=ids).last_hidden_state
    ends = (ids == towers.clip.text_model.config.eos_token_id).int().argmax(1)
    for row, end in enumerate(ends.tolist()):
        torch.testing.assert_close(hidden[row, : end + 1], whole[row, : end + 1], atol=1e-12, rtol=1e-9)
        assert (hidden[row, end + 1 :] == 0).all()


def test_the_prefix_is_computed_once_and_nothing_behind_the_end(tmp_path):
    batch = make_batch()
    both = [batch["input_ids"], batch["short_ids"]]
    end = build_tokenizer(248).eos_token_id
    own, prefix = 0, 1
    for row in (row.tolist() for ids in both for row in ids):
        front = next(n for n, token in enumerate(row[1:]) if token != PAD)
        own, prefix = own + row.index(end) - front, max(prefix, front + 1)
    length = max(ids.shape[1] for ids in both)
    ids = torch.cat([torch.nn.functional.pad(ids, (0, length - ids.shape[1]), value=PAD) for ids in both])
    plan = pack_captions(ids, end_id=end, pad_id=PAD)
    assert plan.ids.shape == plan.positions.shape == (own + prefix,)
    assert (plan.ids[plan.ends] == end).all()
    for row, places in zip(ids, plan.places, strict=True):
        last = int((row == end).int().argmax())
        assert torch.equal(plan.ids[places[: last + 1]], row[: last + 1])
        assert torch.equal(plan.positions[places[: last + 1]], torch.arange(last + 1))
        assert (places[last + 1 :] == -1).all()


@pytest.mark.parametrize("rows", [[[8, 9, 1, 0]], [[8, 0, 0, 9, 1]], [[8, 1, 1, 1]], [[8, 0, 1, 0], [8, 0, 0, 1]]])
def test_odd_captions_are_packed_whole(rows):
    """Without pads; with one token after them; empty, pads like the end token; nothing but pads, as the text "!"."""
    ids = torch.tensor(rows)
    for pad_id in (0, 1):
        plan = pack_captions(ids, end_id=1, pad_id=pad_id)
        for row, places in zip(ids, plan.places, strict=True):
            assert torch.equal(plan.ids[places[places >= 0]], row[: row.tolist().index(1) + 1])


def test_without_a_row_the_model_attends_as_it_did(tmp_path):
    model, tokenizer = tiny_clip(window=248)
    ids = tokenize(tokenizer, TEXTS, length=77, pad_id=PAD)
    before = model.text_model(input_ids=ids).last_hidden_state
    use_packed_attention(model.text_model)
    torch.testing.assert_close(model.text_model(input_ids=ids).last_hidden_state, before)
    pooled, none = encode_packed(model.text_model, ids, pad_id=PAD, states=False, whole_layers=False)
    assert none is None
    torch.testing.assert_close(pooled, model.text_model(input_ids=ids).pooler_output)
    model.save_pretrained(tmp_path)
    assert "packed" not in json.dumps(json.loads((tmp_path / "config.json").read_text()))


class Counted(TorchDispatchMode):
    """How often each operation runs, backward too."""

    def __init__(self):
        super().__init__()
        self.counts = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        self.counts[name] = self.counts.get(name, 0) + 1
        return function(*args, **(kwargs or {}))


def test_gradients_of_the_row_are_not_made_once_a_caption(tmp_path):
    """Each is as long as the row, so that one a caption costs the square of the batch."""
    found = []
    for size in (2, 9):
        towers, batch = make_towers(tmp_path), make_batch(size=size)
        with Counted() as counted:
            out = towers(batch)
            (out["text"].sum() + out["short"].sum()).backward()
        found.append(counted.counts)
    assert found[0]["index_put"] > 0
    assert found[1]["index_put"] == found[0]["index_put"]
    flash = "_scaled_dot_product_flash_attention_for_cpu"
    assert found[1][flash] > found[0][flash]  # attention itself is a call a caption on CPUs


def test_attention_under_bfloat16_is_computed_in_float32_on_cpus(tmp_path):
    towers, batch, kinds = make_towers(tmp_path).float(), make_batch(), set()

    class Seen(Counted):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if "scaled_dot_product" in str(function):
                kinds.add(args[0].dtype)
            return super().__torch_dispatch__(function, types, args, kwargs)

    with Seen(), torch.autocast("cpu", dtype=torch.bfloat16):
        found = towers.text_features(batch["input_ids"])
    assert kinds == {torch.float32}
    assert found.dtype == torch.bfloat16
    wanted = towers.text_features(batch["input_ids"])
    torch.testing.assert_close(found.float(), wanted, atol=0.05 * float(wanted.detach().abs().max()), rtol=0)
