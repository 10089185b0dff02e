"""Tokens: golden ids, padding, front padding, on CLIP's real vocabulary."""

import random
import warnings
from collections import Counter

import pytest
import torch
from diffusers import DiffusionPipeline
from tiny import END, START, clip_tokenizer, tiny_sd_pipeline
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from debias_sd.tokens import copy_tokenizer, end_positions, front_pad, spell_out_special_tokens, tokenize, unknown_words
from train_encoder.data.batches import ClipTexts

SOT, EOT = 49406, 49407
# "!" before another sign is id 0: a 0 that is text, not pad.
TEXTS = ["a photo of a cat", "", "wow != ~ !~ ok", "one two three four five six seven eight nine ten"]
LONG = "a red cube stands on a blue sphere near the tall green tower . " * 40


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return clip_tokenizer(model_max_length=77)


@pytest.fixture
def ids(tokenizer: PreTrainedTokenizerBase) -> Tensor:
    return tokenize(tokenizer, TEXTS, length=16, pad_id=0)


def test_layout_and_lengths_without_room(tokenizer: PreTrainedTokenizerBase) -> None:
    ids = tokenize(tokenizer, ["a photo of a cat", ""], length=10, pad_id=0)
    assert ids.dtype == torch.int64
    assert ids.tolist() == [[SOT, 320, 1125, 539, 320, 2368, EOT, 0, 0, 0], [SOT, EOT, 0, 0, 0, 0, 0, 0, 0, 0]]
    assert tokenize(tokenizer, [], length=8, pad_id=0).shape == (0, 8)
    with pytest.raises(ValueError, match="length is 1, start and end token need at least 2"):
        tokenize(tokenizer, ["a"], length=1, pad_id=0)


@pytest.mark.parametrize("pad_id", [0, EOT, 17])
def test_pad_id_is_the_one_asked_for(tokenizer: PreTrainedTokenizerBase, pad_id: int) -> None:
    ids = tokenize(tokenizer, ["a cat"], length=8, pad_id=pad_id)
    assert ids.tolist() == [[SOT, 320, 2368, EOT, pad_id, pad_id, pad_id, pad_id]]


@pytest.mark.parametrize("length", [77, 248])
def test_truncation_keeps_the_end_token_last(tokenizer: PreTrainedTokenizerBase, length: int) -> None:
    """248 is past the tokenizer's own 77: the length asked for counts, and nothing warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ids = tokenize(tokenizer, [LONG], length=length, pad_id=0)
    assert ids.shape == (1, length)
    assert ids[0, 0] == SOT
    assert ids[0, -1] == EOT
    assert (ids[0, :-1] != EOT).all()
    assert torch.equal(ids[0, :20], tokenize(tokenizer, [LONG], length=1000, pad_id=0)[0, :20])


@pytest.mark.parametrize("special", ["<|endoftext|>", "<|startoftext|>", "<|ENDOFTEXT|>"])
@pytest.mark.parametrize("text", ["a {} cat", "{}", "a{}cat", "{}{}"])
def test_special_tokens_in_a_text_are_spelled_out(tokenizer: PreTrainedTokenizerBase, special: str, text: str) -> None:
    ids = tokenize(tokenizer, [text.format(special, special)], length=40, pad_id=0)[0].tolist()
    assert ids[0] == SOT
    assert ids.count(SOT) == 1
    assert ids.count(EOT) == 1
    assert tokenizer.decode(ids[1 : ids.index(EOT)]).replace(" ", "").count("oftext|>") == text.count("{}")


def test_specials_are_spelled_as_the_original_tokenizer_does(tokenizer: PreTrainedTokenizerBase) -> None:
    from open_clip.tokenizer import SimpleTokenizer

    texts = ["a <|endoftext|> cat <|startoftext|>", "a cat", "three 3.5 m dogs, (red) & blue!"]
    assert torch.equal(tokenize(tokenizer, texts, length=77, pad_id=0), SimpleTokenizer()(texts))


def test_a_learned_token_is_still_one_token() -> None:
    tokenizer = clip_tokenizer(model_max_length=77)
    tokenizer.add_tokens(["<my-cat>"])
    assert tokenize(tokenizer, ["a <my-cat>"], length=5, pad_id=0).tolist() == [[SOT, 320, 49408, EOT, 0]]


@pytest.mark.parametrize("pad_id", [0, EOT])
def test_end_is_found_by_its_first_place(tokenizer: PreTrainedTokenizerBase, pad_id: int) -> None:
    ids = tokenize(tokenizer, TEXTS, length=16, pad_id=pad_id)
    assert end_positions(ids, end_id=EOT).tolist() == [6, 1, 8, 11]


def test_ids_without_an_end_token_and_pads_that_would_be_pooled_are_refused(ids: Tensor) -> None:
    ids[1] = 5
    with pytest.raises(ValueError, match="row 1 of the token ids has no end token 49407"):
        end_positions(ids, end_id=EOT)
    with pytest.raises(ValueError, match="pad id 49407 is the end token"):
        front_pad(ids, torch.zeros(4, dtype=torch.long), pad_id=EOT, end_id=EOT)


def test_front_pad_by_hand_and_none_in_a_full_row(tokenizer: PreTrainedTokenizerBase) -> None:
    ids = torch.tensor([[8, 1, 2, 9, 0, 0], [8, 3, 9, 0, 0, 0], [8, 1, 2, 3, 4, 9]])
    padded = front_pad(ids, torch.tensor([2, 1, 0]), pad_id=0, end_id=9)
    assert padded.tolist() == [[8, 0, 0, 1, 2, 9], [8, 0, 3, 9, 0, 0], [8, 1, 2, 3, 4, 9]]
    texts = ClipTexts(tokenizer, 77, 0)
    assert torch.equal(texts.front_padded([LONG], [random.Random(0)]), texts.ids([LONG]))


def drawn_pads(tokenizer: PreTrainedTokenizerBase, texts: list[str], rng: random.Random, pad_id: int = 0) -> list[int]:
    """How far training moves the end token of each of `texts` in 16 slots."""
    made = ClipTexts(tokenizer, 16, pad_id)
    moved = made.front_padded(texts, [rng] * len(texts))
    return (end_positions(moved, end_id=EOT) - end_positions(made.ids(texts), end_id=EOT)).tolist()


@pytest.mark.parametrize("seed", range(10))
def test_front_pad_keeps_every_token_and_their_order(ids: Tensor, seed: int) -> None:
    rng, ends = random.Random(seed), end_positions(ids, end_id=EOT)
    counts = torch.tensor([rng.randint(0, 15 - end) for end in ends.tolist()])
    padded = front_pad(ids, counts, pad_id=0, end_id=EOT)
    assert padded.shape == ids.shape
    assert padded[:, 0].tolist() == [SOT] * len(ids)
    # Pooling at the largest id, as OpenAI's code does, finds the moved end token.
    assert padded.argmax(dim=1).tolist() == (ends + counts).tolist()
    for old, new, end, count in zip(ids.tolist(), padded.tolist(), ends.tolist(), counts.tolist(), strict=True):
        assert Counter(old) == Counter(new)
        assert new[1 : 1 + count] == [0] * count
        assert new[1 + count : 1 + count + end] == old[1 : 1 + end]
        assert new[1 + count + end :] == [0] * (len(old) - 1 - count - end)


def test_front_pads_are_uniform_including_both_ends(tokenizer: PreTrainedTokenizerBase) -> None:
    """ "a photo of a cat" leaves 9 of 16 slots: 10 values, 100 expected of each, five deviations are 47."""
    rng = random.Random(5)
    drawn = [drawn_pads(tokenizer, TEXTS, rng) for _ in range(1000)]
    for row, n_post in enumerate([9, 14, 7, 4]):
        counts = Counter(counts[row] for counts in drawn)
        expected = 1000 / (n_post + 1)
        assert set(counts) == set(range(n_post + 1))
        assert all(abs(count - expected) < 5 * expected**0.5 for count in counts.values())


def test_pads_are_counted_behind_the_end_token_whatever_their_id(tokenizer: PreTrainedTokenizerBase) -> None:
    """The text's own "!" has id 0 and is no pad."""
    for pad_id in (0, 17):
        ids = tokenize(tokenizer, ["wow != ~ !~ ok"], length=16, pad_id=pad_id)
        assert (ids[0, : 1 + int(end_positions(ids, end_id=EOT))] == 0).sum() == 2
        counts = {drawn_pads(tokenizer, ["wow != ~ !~ ok"], random.Random(seed), pad_id)[0] for seed in range(300)}
        assert counts == set(range(8))


@pytest.mark.parametrize("count", [-1, 10])
def test_front_pads_out_of_range(ids: Tensor, count: int) -> None:
    with pytest.raises(ValueError, match=f"row 0 asks for {count} front pads but has room for 9"):
        front_pad(ids, torch.tensor([count, 0, 0, 0]), pad_id=0, end_id=EOT)


# What transformers' CLIPTokenizer makes of signs that tokenizers disagree about. It composes accents (NFC) and makes
# letters small; it does not unescape HTML, split ligatures or straighten quotes, as OpenAI's with ftfy does.
GOLDEN = {
    "résumé with àccents": [29106, 7054, 4166, 593, 36149, 2976, 870],
    "re\u0301sume\u0301": [29106, 7054, 4166],
    "should've don't": [1535, 1200, 847, 713],
    "&amp; <b>": [261, 6259, 282, 283, 321, 285],
    "ﬁne ﬀ": [171, 105, 223, 1422, 171, 105, 478],
    "“curly” ‘quotes’ it’s": [728, 506, 20795, 728, 507, 728, 502, 5808, 728, 503, 585, 728, 503, 338],
    "👩‍👩‍👧": [26304, 26304, 964, 356],
    "👍🏽": [43722],
    "日本語の猫": [39121, 44353, 34002, 252, 21575, 163, 234, 360],
    "1234567890": [272, 273, 274, 275, 276, 277, 278, 279, 280, 271],
    "A" * 300: [23126] * 37 + [19336],
    "a\n\tcat": [320, 2368],
    "a\u00a0cat": [320, 2368],
    "a\u200bcat": [320, 9844, 2368],
    "Straße İstanbul": [1894, 127, 253, 324, 328, 16384, 11231],
    "ΑΣ": [138, 109, 139, 481],
    "½ Ⅷ": [33613, 158, 227, 371],
    "c++ (a_b) #1 'tis": [322, 19056, 263, 320, 318, 321, 264, 258, 272, 713, 533],
    "<|endoftext|> cat": [27, 347, 40786, 4160, 91, 285, 2368],
    "一" * 60: [19759, 222] * 59 + [19759, 478],
}


@pytest.mark.parametrize("text", GOLDEN, ids=lambda text: ascii(text[:20]))
def test_golden_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    expected = [SOT, *GOLDEN[text], EOT]
    assert tokenize(tokenizer, [text], length=len(expected) + 1, pad_id=0)[0].tolist() == [*expected, 0]


def test_a_tokenizer_that_spells_special_tokens_out_keeps_to_it_where_it_is_saved(tmp_path) -> None:
    """A typed end token no longer ends the text of a stock pipeline, also after it is loaded by diffusers alone."""
    text = "<|endoftext|> cat"
    pipe = tiny_sd_pipeline()
    assert pipe.tokenizer(text).input_ids == [START, END, 2368, END]
    spelt = pipe.tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids
    assert len(spelt) > 4
    stock = {prompt: pipe.encode_prompt(prompt, "cpu", 1, False)[0] for prompt in ("", "a cat", text)}
    spell_out_special_tokens(pipe.tokenizer)
    pipe.save_pretrained(tmp_path)
    for one in (pipe, DiffusionPipeline.from_pretrained(tmp_path)):
        assert one.tokenizer(text).input_ids == [START, *spelt, END]
        for prompt, embeds in stock.items():
            assert torch.equal(one.encode_prompt(prompt, "cpu", 1, False)[0], embeds) == (prompt != text)
        one.load_textual_inversion({"<toy>": torch.ones(3, 32)}, token="<toy>")
        assert one.tokenizer(one.maybe_convert_prompt("a <toy>", one.tokenizer)).input_ids == [
            START, 320, END + 1, END + 2, END + 3, END
        ]  # fmt: skip


def test_unknown_words_once_each_in_order() -> None:
    known = {"a", "red", "cube", "top", "left"}
    prompt = "A red Zebra, a zebra! A top-left cube, a top-secret CUBE; 7 naïve 红."
    assert unknown_words(prompt, known) == ("zebra", "top-secret", "7", "naïve", "红")
    assert unknown_words(prompt, None) == ()


def test_a_copy_shares_its_merges_and_nothing_that_changes():
    tokenizer = clip_tokenizer()
    copied = copy_tokenizer(tokenizer)
    copied.add_tokens(["<my-cat>"])
    copied.pad_token = "!"
    copied.model_max_length = 248
    assert (len(copied), len(tokenizer)) == (EOT + 2, EOT + 1)
    assert (tokenizer.pad_token, tokenizer.model_max_length) == ("<|endoftext|>", 77)
    assert copied("a <my-cat>").input_ids == [SOT, 320, EOT + 1, EOT]
    assert copied("a cat, 3.5 m").input_ids == tokenizer("a cat, 3.5 m").input_ids
    assert copied._merges is tokenizer._merges
