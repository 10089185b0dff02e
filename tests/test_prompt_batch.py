"""Texts of one call to rows of ids: who reads what, how long windows are, and what is refused."""

import pytest
import torch
from tiny import END, START, tiny_tokenizer
from tiny_pipelines import t5_tokenizer

from debias_sd.prompts.batch import PromptBatch, Reader, texts_of

FIRST, SECOND = Reader(tiny_tokenizer(248), 248), Reader(tiny_tokenizer(248, pad_token="!"), 248)
T5 = Reader(t5_tokenizer(), None)
LONG = "a cat lies on a bed, " * 20


def test_texts_are_shared_until_an_encoder_has_its_own_which_have_windows_of_their_own():
    assert texts_of(("cat", None, None), readers=3) == [["cat"]] * 3
    assert texts_of(("cat", "", "dog"), readers=3) == [["cat"], ["cat"], ["dog"]]
    assert texts_of((["cat", "dog"], "bird"), readers=2) == [["cat", "dog"], ["bird", "bird"]]
    assert texts_of(("bad",), readers=1, size=3) == [["bad"] * 3]
    batch = PromptBatch([FIRST, SECOND], [[["cat"], [LONG]]])
    first, second = batch.rows(window=77)
    assert (len(first.sides[0][0]), len(second.sides[0][0])) == (1, 2)
    assert first.count == second.count == 2


@pytest.mark.parametrize(
    ("given", "options", "sentence"),
    [
        ((["a", "b"], ["c"]), {"readers": 2}, "2 prompts and 1 text for another text encoder are given; give one for"),
        (
            (["a"],),
            {"readers": 1, "size": 2, "side": "negative_prompt"},
            "2 prompts and 1 text for its negative are given; give",
        ),
        (([],), {"readers": 1}, "0 prompts are given; give one or more"),
        ((None,), {"readers": 1}, "a prompt is of type NoneType but must be str or a list of str"),
        ((["a", 1],), {"readers": 1}, "a prompt is of type int but must be str"),
        (("a", torch.ones(2)), {"readers": 2}, "a prompt is of type Tensor but must be str or a list of str"),
        (("a", "b", "c"), {"readers": 2}, "prompt_3 is for text encoder 3 and this pipeline has 2; leave it out"),
        (("a \udc80",), {"readers": 1}, "not valid text"),
    ],
)
def test_what_is_no_batch_is_one_sentence(given, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        texts_of(given, **options)


def rows_of(readers, *sides, weighting=None, **options):
    return PromptBatch(readers, [[list(texts)] * len(readers) for texts in sides], weighting=weighting).rows(**options)


def test_rows_have_start_end_and_pads_and_special_tokens_that_a_user_types_are_text():
    first, second = rows_of([FIRST, SECOND], ["cat"], [""], window=5)
    cat = FIRST.tokenizer("cat", add_special_tokens=False).input_ids[0]
    assert first.sides == [[[(START, cat, END, END, END)]], [[(START, END, END, END, END)]]]
    assert second.sides[0] == [[(START, cat, END, 0, 0)]]
    assert (second.fill, second.count, second.weights) == ((START, END, 0, 0, 0), 1, [None, None])
    first, t5 = rows_of([FIRST, T5], ["a </s> cat <pad> <|endoftext|> dog"], shortest=64)
    ids = t5.sides[0][0][0]
    end, pad = T5.tokenizer.eos_token_id, T5.tokenizer.pad_token_id
    assert ids.count(end) == 1
    assert set(ids[ids.index(end) + 1 :]) == {pad}
    assert pad not in ids[: ids.index(end)]
    (row,) = first.sides[0][0]
    assert row.index(END) > FIRST.tokenizer("a </s> cat <pad>").input_ids.index(END) + 1


@pytest.mark.parametrize(
    ("texts", "window", "length"),
    [
        (["cat"], None, 248),
        (["cat"], "auto", 77),
        (["cat", LONG], "auto", 248),
        ([LONG * 9], "auto", 248),
        (["cat " * 75], "auto", 77),
        (["cat " * 76], "auto", 248),
        (["cat"], 100, 100),
    ],
)
def test_the_window(texts, window, length):
    (rows,) = rows_of([FIRST], texts, window=window)
    assert len(rows.fill) == length
    assert all(len(row) == length for text in rows.sides[0] for row in text)


def test_the_window_is_that_of_the_encoder_that_reads_least_and_auto_counts_each_part():
    (rows,) = rows_of([FIRST], ["cat " * 60 + "BREAK" + " dog" * 60], window="auto", weighting="a1111")
    assert (len(rows.fill), rows.count) == (77, 2)
    short = Reader(tiny_tokenizer(77), 77)
    first, second = rows_of([FIRST, short], [LONG])
    assert len(first.fill) == len(second.fill) == 77
    with pytest.raises(ValueError, match="window is 248, this text encoder reads 3 to 77 tokens"):
        rows_of([FIRST, short], ["cat"], window=248)


@pytest.mark.parametrize("window", [2, 249, "77", 77.0])
def test_a_window_that_is_not_there_is_told(window):
    with pytest.raises(ValueError, match=r"reads 3 to 248 tokens; use 77, 248, 'auto' or 'sentence'\."):
        rows_of([FIRST], ["cat"], window=window)


def test_t5_has_one_row_as_long_as_needed():
    text = LONG * 4
    whole = tuple(T5.tokenizer(text, verbose=False).input_ids)
    first, t5 = rows_of([FIRST, T5], [text, "cat"], [""], shortest=16)
    assert t5.count == 1
    assert t5.sides[0][0] == [whole]
    assert len(t5.sides[1][0][0]) == len(whole) > 512
    assert first.count > 1
    _, short = rows_of([FIRST, T5], ["a cat"], shortest=16)
    assert len(short.fill) == 16
    assert short.fill[:2] == (T5.tokenizer.eos_token_id, T5.tokenizer.pad_token_id)


def test_weights_lie_at_their_tokens_and_tags_are_kept_once():
    first, t5 = rows_of(
        [FIRST, T5], ["a (cat:1.5) BREAK dog", "bird"], ["bad"], weighting="a1111", window=6, shortest=8
    )
    assert first.weights[1] is None
    assert first.weights[0].tolist() == [[1, 1, 1.5, 1, 1, 1] + [1] * 6, [1] * 12]
    cat = len(T5.tokenizer("cat", add_special_tokens=False).input_ids)
    assert torch.equal(t5.weights[0][0].sort(descending=True).values[:cat], torch.full((cat,), 1.5))
    assert t5.weights[0].sum() == t5.weights[0].numel() + 0.5 * cat
    batch = PromptBatch([FIRST], [[["<lora:a:1> cat", "dog <lora:a:1> <lora:b:0.5>"]]], weighting="a1111")
    assert batch.tags == ("<lora:a:1>", "<lora:b:0.5>")
