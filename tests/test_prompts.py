"""Windows of a prompt: nothing lost, nothing over length, cut where a reader would cut."""

import time

import pytest
from tiny import LONG_PROMPT, clip_tokenizer

from debias_sd.captions import split_sentences
from debias_sd.prompts import pad_window, split_windows

TOKENIZER = clip_tokenizer(77)


def ids_of(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False, verbose=False).input_ids


@pytest.mark.parametrize("window", [3, 20, 77, 248])
@pytest.mark.parametrize(
    "prompt",
    [
        "",
        "a cat",
        LONG_PROMPT,
        "cat " * 500,
        "A" * 700,
        "😀🏳️‍🌈 " * 60,
        "一只猫。" * 80,
        "a,b,c," * 90,
        "\n\n a \t b \n" * 50,
    ],
)
def test_windows_joined_are_the_prompt(prompt, window):
    windows = split_windows(TOKENIZER, prompt, window=window)
    assert [id_ for content in windows for id_ in content] == ids_of(prompt)
    assert all(len(content) <= window - 2 for content in windows)
    assert all(windows) or windows == [[]]


def test_a_prompt_that_fits_is_one_window():
    assert len(split_windows(TOKENIZER, "cat " * 75, window=77)) == 1
    assert len(split_windows(TOKENIZER, "cat " * 76, window=77)) == 2


def test_windows_end_at_sentence_ends():
    windows = split_windows(TOKENIZER, LONG_PROMPT, window=77)
    texts = [TOKENIZER.decode(content).strip() for content in windows]
    assert len(windows) == 2 or len(windows) == 3
    assert all(text.endswith(".") for text in texts)
    sentences = split_sentences(LONG_PROMPT)
    assert sum(text.count(".") for text in texts) == len(sentences)


def test_as_many_sentences_as_fit_share_a_window():
    sentence = "one two three four."  # 5 tokens
    windows = split_windows(TOKENIZER, " ".join([sentence] * 4), window=13)
    assert [len(content) for content in windows] == [10, 10]


def test_a_number_is_no_sentence_end():
    prompt = "cat cat cat cat cat cat 3.5 m tall. " + "dog " * 10
    first, *_ = split_windows(TOKENIZER, prompt, window=14)
    assert TOKENIZER.decode(first).strip().endswith("tall .")


def test_without_sentences_a_word_is_not_cut():
    prompt = "cartilaginous " * 20
    length = len(ids_of("cartilaginous"))
    assert length > 1
    windows = split_windows(TOKENIZER, prompt, window=2 + 2 * length + 1)
    assert [len(content) for content in windows] == [2 * length] * 10


def test_vectors_of_one_learnt_token_stay_together():
    tokenizer = clip_tokenizer(77)
    tokenizer.add_tokens(["<toy>", "<toy>_1", "<toy>_2"])
    windows = split_windows(tokenizer, "cat cat <toy> <toy>_1 <toy>_2 dog", window=6)
    assert [len(content) for content in windows] == [2, 4]


def test_typed_special_tokens_are_spelled_out():
    (content,) = split_windows(TOKENIZER, "<|endoftext|> cat", window=77)
    assert TOKENIZER.eos_token_id not in content
    assert content[-1] == ids_of("cat")[0]


def test_a_padded_window_is_what_the_tokenizer_makes():
    content = ids_of("a red cat")
    padded = TOKENIZER("a red cat", padding="max_length", max_length=77).input_ids
    assert pad_window(TOKENIZER, content, window=77) == padded


def test_a_window_without_room_is_refused():
    with pytest.raises(ValueError, match="window is 2, start, end and one token need 3; use 77 or 248."):
        split_windows(TOKENIZER, "a cat", window=2)


def test_ten_thousand_words_are_quick():
    start = time.process_time()
    windows = split_windows(TOKENIZER, "a big red cat sits. " * 2500, window=77)
    assert len(windows) == 2500 * 6 // 72 + 1
    assert time.process_time() - start < 2
