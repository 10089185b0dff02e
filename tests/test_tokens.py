"""Tokens: padding, front padding and the report, on CLIP's real vocabulary."""

import random
import warnings
from collections import Counter

import pytest
import torch
from tiny import clip_tokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from debias_sd.tokens import count_tokens, end_positions, front_pad, random_front_pads, tokenize

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


def test_layout(tokenizer: PreTrainedTokenizerBase) -> None:
    ids = tokenize(tokenizer, ["a photo of a cat", ""], length=10, pad_id=0)
    assert ids.dtype == torch.int64
    assert ids.tolist() == [[SOT, 320, 1125, 539, 320, 2368, EOT, 0, 0, 0], [SOT, EOT, 0, 0, 0, 0, 0, 0, 0, 0]]


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


def test_no_texts(tokenizer: PreTrainedTokenizerBase) -> None:
    assert tokenize(tokenizer, [], length=8, pad_id=0).shape == (0, 8)


def test_length_without_room(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(ValueError, match="length is 1, start and end token need at least 2"):
        tokenize(tokenizer, ["a"], length=1, pad_id=0)


@pytest.mark.parametrize("pad_id", [0, EOT])
def test_end_is_found_by_its_first_place(tokenizer: PreTrainedTokenizerBase, pad_id: int) -> None:
    ids = tokenize(tokenizer, TEXTS, length=16, pad_id=pad_id)
    assert end_positions(ids, end_id=EOT).tolist() == [6, 1, 8, 11]


def test_no_end_token(ids: Tensor) -> None:
    ids[1] = 5
    with pytest.raises(ValueError, match="row 1 of the token ids has no end token 49407"):
        end_positions(ids, end_id=EOT)


def test_front_pad_by_hand() -> None:
    ids = torch.tensor([[8, 1, 2, 9, 0, 0], [8, 3, 9, 0, 0, 0], [8, 1, 2, 3, 4, 9]])
    padded = front_pad(ids, torch.tensor([2, 1, 0]), pad_id=0, end_id=9)
    assert padded.tolist() == [[8, 0, 0, 1, 2, 9], [8, 0, 3, 9, 0, 0], [8, 1, 2, 3, 4, 9]]


@pytest.mark.parametrize("seed", range(10))
def test_front_pad_keeps_every_token_and_their_order(ids: Tensor, seed: int) -> None:
    counts = random_front_pads(ids, random.Random(seed), end_id=EOT)
    padded = front_pad(ids, counts, pad_id=0, end_id=EOT)
    ends = end_positions(ids, end_id=EOT)
    assert padded.shape == ids.shape
    assert padded[:, 0].tolist() == [SOT] * len(ids)
    # Pooling at the largest id, as OpenAI's code does, finds the moved end token.
    assert padded.argmax(dim=1).tolist() == (ends + counts).tolist()
    for old, new, end, count in zip(ids.tolist(), padded.tolist(), ends.tolist(), counts.tolist(), strict=True):
        assert Counter(old) == Counter(new)
        assert new[1 : 1 + count] == [0] * count
        assert new[1 + count : 1 + count + end] == old[1 : 1 + end]
        assert new[1 + count + end :] == [0] * (len(old) - 1 - count - end)


def test_front_pads_are_uniform_including_both_ends(ids: Tensor) -> None:
    """ "a photo of a cat" leaves 9 of 16 slots: 10 values, 400 expected of each, five deviations are 95."""
    rng = random.Random(5)
    drawn = [random_front_pads(ids, rng, end_id=EOT).tolist() for _ in range(4000)]
    for row, n_post in enumerate([9, 14, 7, 4]):
        counts = Counter(counts[row] for counts in drawn)
        expected = 4000 / (n_post + 1)
        assert set(counts) == set(range(n_post + 1))
        assert all(abs(count - expected) < 5 * expected**0.5 for count in counts.values())


def test_pads_are_counted_behind_the_end_token_whatever_their_id(tokenizer: PreTrainedTokenizerBase) -> None:
    """The text's own "!" has id 0 and is no pad; pads that equal the end token are pads."""
    counts = []
    for pad_id in (0, EOT):
        ids = tokenize(tokenizer, ["wow != ~ !~ ok"], length=16, pad_id=pad_id)
        assert (ids[0, : 1 + int(end_positions(ids, end_id=EOT))] == 0).sum() == 2
        counts.append({random_front_pads(ids, random.Random(seed), end_id=EOT).item() for seed in range(300)})
    assert counts == [set(range(8)), set(range(8))]


def test_a_full_row_gets_no_front_pads(tokenizer: PreTrainedTokenizerBase) -> None:
    ids = tokenize(tokenizer, [LONG], length=77, pad_id=0)
    counts = random_front_pads(ids, random.Random(0), end_id=EOT)
    assert counts.tolist() == [0]
    assert torch.equal(front_pad(ids, counts, pad_id=0, end_id=EOT), ids)


@pytest.mark.parametrize("count", [-1, 10])
def test_front_pads_out_of_range(ids: Tensor, count: int) -> None:
    with pytest.raises(ValueError, match=f"row 0 asks for {count} front pads, allowed are 0 to 9"):
        front_pad(ids, torch.tensor([count, 0, 0, 0]), pad_id=0, end_id=EOT)


def test_front_pads_that_would_be_pooled_are_refused(ids: Tensor) -> None:
    with pytest.raises(ValueError, match="pad id 49407 is the end token"):
        front_pad(ids, torch.zeros(4, dtype=torch.long), pad_id=EOT, end_id=EOT)


def test_report_of_a_short_prompt(tokenizer: PreTrainedTokenizerBase) -> None:
    report = count_tokens(tokenizer, "a photo of a cat")
    assert report.tokens == 5
    assert report.unknown_words == ()
    assert list(report.readings) == [77, 248]
    assert report.readings[77].kept == "a photo of a cat"
    assert report.readings[77].lost == ""


def test_report_cuts_where_the_tokenizer_cuts(tokenizer: PreTrainedTokenizerBase) -> None:
    """202 tokens: 75 are read at 77 positions, all at 248."""
    prompt = "A cat " * 101
    report = count_tokens(tokenizer, prompt)
    assert report.tokens == 202
    assert (report.readings[77].kept_tokens, report.readings[77].lost_tokens) == (75, 127)
    assert report.readings[77].kept == "A cat " * 37 + "A "
    assert report.readings[77].lost == prompt[len("A cat " * 37 + "A ") :]
    assert report.readings[248].lost == ""


@pytest.mark.parametrize("length", [77, 248])
@pytest.mark.parametrize(
    "piece", ["A Red, cube! ", "naïve Ünïcode e\u0301 ", "🎉🎂 party ", "红色的猫 ", "<|endoftext|> x "]
)
def test_kept_text_is_what_the_encoder_reads(tokenizer: PreTrainedTokenizerBase, length: int, piece: str) -> None:
    """The kept text alone has the very tokens that the encoder sees of the whole prompt."""
    prompt = piece * 200
    reading = count_tokens(tokenizer, prompt, lengths=(length,)).readings[length]
    assert reading.kept + reading.lost == prompt
    assert reading.lost
    whole = tokenize(tokenizer, [prompt], length=length, pad_id=0)[0]
    alone = tokenize(tokenizer, [reading.kept], length=length, pad_id=0)[0]
    cut = int(end_positions(alone[None], end_id=EOT)[0])
    # A character of several byte tokens may be cut apart, and then counts as lost.
    assert cut >= length - 4
    assert torch.equal(alone[: cut - 1], whole[: cut - 1])


def test_ten_thousand_words_without_a_warning(
    tokenizer: PreTrainedTokenizerBase, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    report = count_tokens(tokenizer, "word " * 10_000)
    assert report.tokens == 10_000
    assert report.readings[248].lost_tokens == 10_000 - 246
    assert caplog.records == []
    assert capfd.readouterr().err == ""


def test_empty_prompt(tokenizer: PreTrainedTokenizerBase) -> None:
    report = count_tokens(tokenizer, "")
    assert report.tokens == 0
    assert (report.readings[77].kept, report.readings[77].lost) == ("", "")


def test_unknown_words_once_each_in_order(tokenizer: PreTrainedTokenizerBase) -> None:
    known = {"a", "red", "cube", "top", "left"}
    prompt = "A red Zebra, a zebra! A top-left cube, a top-secret CUBE; 7 naïve 红."
    report = count_tokens(tokenizer, prompt, known_words=known)
    assert report.unknown_words == ("zebra", "top-secret", "7", "naïve", "红")


def test_report_length_without_room(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(ValueError, match="length is 1, start and end token"):
        count_tokens(tokenizer, "a", lengths=(1,))
