"""Golden files of the same making as Long-CLIP's, in other sizes: random networks through open_clip's code.

open_clip's CLIP, with Long-CLIP's sum of its two tables, is an implementation of its own: nothing of the converter runs
in it. It gives ids, hidden states and features of the kinds of text that the golden files have.
"""

import copy

import pytest
import torch
from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg
from open_clip.tokenizer import SimpleTokenizer
from tiny import END, LONG_PROMPT, START, tiny_text_encoder, tiny_tokenizer
from tiny_checkpoints import long_clip, prefixed, with_random_tables
from transformers import AutoTokenizer, CLIPModel, CLIPTokenizer

from debias_sd.checkpoints.convert import convert_checkpoint
from debias_sd.encoder import TextEncoder

TEXTS = [
    "a photo of a cat", "", LONG_PROMPT, LONG_PROMPT * 3, "line\n\nbreaks\t and  spaces", "猫が寝ている。",
    "مرحبا بالعالم", "naïve café, it's the dogs' 1234567890", "👩🏽\u200d🚀 in space", "(red:1.3) [cat] BREAK dog",
    "!!! wow! ???", "zero\u200bwidth",
]  # fmt: skip
TOLERANCE = 1e-4
SIZES = {  # seed, text width, layers, embedding, image width, its layers, image and patch side
    "narrow": (11, 64, 2, 32, 64, 2, 32, 16),
    "two heads": (12, 128, 3, 48, 64, 1, 28, 14),
    "deep": (13, 64, 7, 64, 128, 3, 48, 16),
}


def network(seed, width, layers, embedding, image_width, image_layers, side, patch):
    """A CLIP with QuickGELU and 248 positions, whose every tensor is random: a swapped one would show."""
    torch.manual_seed(seed)
    text = CLIPTextCfg(context_length=248, width=width, heads=width // 64, layers=layers)
    vision = CLIPVisionCfg(layers=image_layers, width=image_width, head_width=64, patch_size=patch, image_size=side)
    return with_random_tables(CLIP(embedding, vision, text, quick_gelu=True).eval())


def golden(model, state):
    """What Long-CLIP computes: ids, hidden states after the last norm, features of texts and pictures."""
    ids = SimpleTokenizer(context_length=248)(TEXTS)
    first = (torch.arange(248) < 20)[:, None]
    running, hidden = copy.deepcopy(model), []
    running.ln_final.register_forward_hook(lambda _module, _inputs, output: hidden.append(output))
    side = model.visual.image_size[0]
    images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        running.positional_embedding.copy_(
            torch.where(first, state["positional_embedding"], state["positional_embedding_res"])
        )
        texts, pictures = running.encode_text(ids), running.encode_image(images)
    return ids, hidden[0], texts, images, pictures


@pytest.mark.parametrize("training", [False, True], ids=["bare", "training checkpoint"])
@pytest.mark.parametrize("size", SIZES)
def test_another_network_gives_the_same_numbers(size, training, tmp_path):
    model = network(*SIZES[size])
    state = long_clip(model)
    ids, hidden, texts, images, pictures = golden(model, state)
    saved = {"epoch": 2, "name": "run", "state_dict": prefixed(state, "module."), "scaler": {}} if training else state
    torch.save(saved, tmp_path / "model.pt")
    result = convert_checkpoint(tmp_path / "model.pt", tmp_path / "out", image_tower=True)
    assert (result.positions, result.heads, result.activation) == (248, SIZES[size][1] // 64, "quick_gelu")
    converted = CLIPModel.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    with torch.no_grad():
        found = converted.text_model(ids).last_hidden_state
        torch.testing.assert_close(found, hidden, rtol=0, atol=TOLERANCE)
        torch.testing.assert_close(converted.get_text_features(ids).pooler_output, texts, rtol=0, atol=TOLERANCE)
        seen = converted.get_image_features(images).pooler_output
        torch.testing.assert_close(seen, pictures, rtol=0, atol=TOLERANCE)
    assert texts.std(dim=0).min() > 0.01  # no two texts look alike to it, so equal is not equal by accident
    assert (hidden[2] - hidden[3]).abs().max() > 0.1


@pytest.mark.parametrize("target", ["retrieval", "sd1"])
def test_the_folders_tokenizer_gives_the_originals_ids_by_itself(target, tmp_path):
    """For the texts above, none of which the original repairs; "!" is a word also where it is the pad."""
    torch.save(long_clip(network(*SIZES["narrow"])), tmp_path / "model.pt")
    convert_checkpoint(tmp_path / "model.pt", tmp_path / "out", target=target)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    own = tokenizer(TEXTS, truncation=True).input_ids
    wanted = SimpleTokenizer(context_length=248)(TEXTS).tolist()
    assert own == [row[: row.index(49407) + 1] for row in wanted]
    assert {row[-1] for row in tokenizer(["a"], padding="max_length").input_ids} == {49407 if target == "sd1" else 0}


def test_stock_transformers_reads_words_that_are_special_tokens_as_words(tmp_path):
    """OpenCLIP pads with "!": in a text it is a word, and so is a typed end token."""
    tokenizer = tiny_tokenizer(248, pad_token="!")
    TextEncoder(tiny_text_encoder(), tokenizer).save(tmp_path / "encoder")
    read = CLIPTokenizer.from_pretrained(tmp_path / "encoder")
    assert read("wow! cat!!!").input_ids == [START, 2781, 256, 2368, 995, END]
    assert read("a <|endoftext|> cat").input_ids.count(END) == 1
    assert read(["a"], padding="max_length").input_ids[0][-1] == 0
    assert tokenizer("a !").input_ids == [START, 320, 0, END]  # the one that was given is as it was
