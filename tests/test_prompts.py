"""Windows of a prompt: nothing lost, nothing over length, cut where a reader would cut, one text for all encoders."""

import json
import random
import time
from pathlib import Path

import pytest
from tiny import LONG_PROMPT, clip_tokenizer

from debias_sd.prompts.batch import PromptBatch, Reader
from debias_sd.prompts.windows import TokenizedPrompt, Window, split_prompt
from debias_sd.sentences import split_sentences

TOKENIZER = clip_tokenizer(77)
DATA = Path(__file__).parents[2] / "shared" / "data"
HIPPO = (
    "A detailed oil painting of a strange creature that is half waffle and half hippopotamus. Its round belly has a "
    "golden grid of crisp squares, and maple syrup runs down its broad back. It stands in a warm swamp of melted "
    "butter, between blueberries as large as stones. Steam rises from its nostrils into the cold morning air. In the "
    "background a row of tall pines leans over the water, and the low sun throws long soft shadows, highly detailed."
)


def ids_of(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False, split_special_tokens=True, verbose=False).input_ids


def windows_of(prompt: str, window: int = 77, **options: object) -> list[Window]:
    return [one for (one,) in split_prompt([TOKENIZER], prompt, window=window, **options)]


def texts_of(prompt: str, window: int = 77, **options: object) -> list[str]:
    return [one.text.strip() for one in windows_of(prompt, window, **options)]


@pytest.mark.parametrize("window", [3, 20, 77, 248])
@pytest.mark.parametrize(
    "prompt",
    [
        "",
        " ",
        "a cat",
        LONG_PROMPT,
        "cat " * 500,
        "A" * 700,
        "😀🏳️‍🌈 " * 60,
        "一只猫。" * 80,
        "a,b,c," * 90,
        "\n\n a \t b \n" * 50,
        "<|endoftext|> x" * 40,
        "1234567890" * 30,
    ],
)
def test_windows_joined_are_the_prompt(prompt, window):
    windows = windows_of(prompt, window)
    assert [id_ for one in windows for id_ in one.ids] == ids_of(prompt)
    assert "".join(one.text for one in windows) == prompt
    assert all(len(one.ids) <= window - 2 for one in windows)
    assert all(one.ids for one in windows) or [one.ids for one in windows] == [()]
    assert all(one.weights == (1.0,) * len(one.ids) for one in windows)


def test_any_prompt_is_split():
    rng = random.Random(1)
    signs = [*"aB ,.;:()[]\\<>\n\t'-_5é", "😀", "🏳️‍🌈", "👍🏽", "猫", "e\u0301", "<|endoftext|>", "BREAK", " the cat ",
             "\u200b", "\u200d", "ﬁ", "ß", "İ", "\x85", "\u3000", "<toy>", "(a:1.2)", "<toy>_1"]  # fmt: skip
    for _ in range(1000):
        prompt = "".join(rng.choice(signs) for _ in range(rng.randrange(60)))
        window = rng.choice([3, 4, 7, 12, 30])
        windows = windows_of(prompt, window)
        assert [id_ for one in windows for id_ in one.ids] == ids_of(prompt), prompt
        assert "".join(one.text for one in windows) == prompt
        assert all(0 < len(one.ids) <= window - 2 for one in windows) or len(windows) == 1, prompt


@pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data is not there")
@pytest.mark.parametrize("name", ["dpg_prompts", "iiw400_captions", "longbench_t2i_prompts"])
def test_real_texts_lose_nothing_and_end_at_sentences(name, caplog, capfd):
    texts = [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
    ends = inside = 0
    for text in (row.get("prompt") or row["caption"] for row in texts[::4]):
        for window in (77, 248):
            windows = windows_of(text, window)
            assert [id_ for one in windows for id_ in one.ids] == ids_of(text)
            for one in windows:
                assert list(one.ids) == ids_of(one.text)  # each window's text has its tokens by itself
            cuts = [one.text.rstrip() for one in windows[:-1]]
            ends += sum(cut.endswith((".", "!", "?", '"', "”", ")", ":", ";", ",")) for cut in cuts)
            inside += sum(not cut.endswith((".", "!", "?", '"', "”", ")", ":", ";", ",")) for cut in cuts)
    assert inside <= 0.05 * ends
    assert caplog.text == ""
    assert capfd.readouterr().err == ""


def test_windows_end_at_sentence_ends_and_hold_as_many_as_fit():
    assert len(windows_of("cat " * 75)) == 1
    assert len(windows_of("cat " * 76)) == 2
    texts = texts_of(LONG_PROMPT)
    assert len(texts) in (2, 3)
    assert all(text.endswith(".") for text in texts)
    assert sum(text.count(".") for text in texts) == len(split_sentences(LONG_PROMPT))
    sentence = "one two three four."  # 5 tokens
    assert [len(one.ids) for one in windows_of(" ".join([sentence] * 4), 13)] == [10, 10]
    prompt = "cat cat cat cat cat cat 3.5 m tall. " + "dog " * 10
    assert texts_of(prompt, 14)[0].endswith("tall.")


@pytest.mark.parametrize(
    ("prompt", "first"),
    [
        ("one two three, four five six seven", "one two three,"),
        ("one two three; four five six seven", "one two three;"),
        ("one two three: four five six seven", "one two three:"),
        ("one two three - four five six seven", "one two three -"),
        ("one two three — four five six seven", "one two three —"),
        ("one two three (four five six seven)", "one two three"),
        ("one (two three) four five six seven", "one (two three)"),
        ("one two, three. four, five six seven", "one two, three."),
        ("一二三，四五六七八九十，", "一二三，"),
    ],
)
def test_without_a_sentence_end_a_clause_ends_the_window(prompt, first):
    room = len(ids_of(first)) + 1
    assert texts_of(prompt, room + 2)[0] == first


@pytest.mark.parametrize("first", ["one two 3,000 four", "one two-three four", "one 16:9 four", "one http://a four"])
def test_a_sign_inside_a_word_or_a_number_ends_no_clause(first):
    assert texts_of(f"{first} five six", 2 + len(ids_of(first)))[0] == first


def test_lists_are_cut_at_commas_and_long_words_between_characters_or_bytes():
    tags = ["cyberpunk", "sci-fi", "dark-fantasy", "portrait 400", "8k", "soft light"]
    texts = texts_of(",".join(tags * 10))
    assert len(texts) > 1
    assert all(text.endswith(",") for text in texts[:-1])
    assert [tag for text in texts for tag in text.strip(",").split(",")] == tags * 10
    prompt = "cartilaginous " * 20
    length = len(ids_of("cartilaginous"))
    assert length > 1
    assert [len(one.ids) for one in windows_of(prompt, 2 + 2 * length + 1)] == [2 * length] * 10
    texts = texts_of("猫" * 200 + " 👩🏽‍🚀" * 3, 20)
    assert "".join(texts).replace(" ", "") == "猫" * 200 + "👩🏽‍🚀" * 3
    assert all(text[-1] in "猫🚀" for text in texts)
    (first,) = {len(ids_of(sign)) for sign in "猫"}
    windows = windows_of("猫", 3)
    assert [one.text for one in windows] == ["猫", *[""] * (first - 1)]
    assert [id_ for one in windows for id_ in one.ids] == ids_of("猫")


def test_typed_special_tokens_are_spelled_out_and_a_padded_window_is_the_tokenizers():
    (only,) = windows_of("<|endoftext|> cat")
    assert only.ids == (27, 347, 40786, 4160, 91, 285, 2368)
    padded = TOKENIZER("a red cat", padding="max_length", max_length=77).input_ids
    (rows,) = PromptBatch([Reader(TOKENIZER, 77)], [[["a red cat"]]]).rows(window=77)
    assert rows.sides == [[[tuple(padded)]]]
    with pytest.raises(ValueError, match="window is 2, start, end and one token need 3; use 77 or 248."):
        windows_of("a cat", 2)


def test_weights_are_per_token_and_markup_uses_no_tokens():
    (only,) = windows_of("a (red:1.3) cartilaginous [cat].", weighting="a1111")
    assert list(only.ids) == ids_of("a red cartilaginous cat.")
    words = len(ids_of("cartilaginous"))
    assert only.weights == (1.0, 1.3, *[1.0] * words, pytest.approx(1 / 1.1), 1.0)
    tags = [f"tag{number}" for number in range(1, 31)]
    prompt = ", ".join(f"({tag}:{max(0.04, 1 - number / 30):.2f})" for number, tag in enumerate(tags))
    marked, plain = windows_of(prompt, 248, weighting="a1111"), windows_of(", ".join(tags), 248)
    assert [one.ids for one in marked] == [one.ids for one in plain]
    assert len(windows_of(prompt, 248)[0].ids) > 2 * len(plain[0].ids)
    (only,) = windows_of("(cat.:1.3), dog", weighting="a1111")
    assert list(only.ids) == ids_of("cat., dog")
    assert only.weights == (1.3, 1.3, 1.0)


def test_break_begins_a_window_is_no_token_and_a_long_part_has_several_windows():
    windows = windows_of("red cat BREAK blue dog", weighting="a1111")
    assert [list(one.ids) for one in windows] == [ids_of("red cat"), ids_of("blue dog")]
    assert len(windows_of("x BREAK BREAK y", weighting="a1111")) == 2
    assert len(windows_of("BREAK", weighting="a1111")) == 1
    assert len(windows_of("BREAKFAST table", weighting="a1111")) == 1
    assert len(windows_of("red cat BREAK blue dog")) == 1
    windows = windows_of("cat " * 80 + "BREAK " + "dog " * 80, weighting="a1111")
    assert [len(one.ids) for one in windows] == [75, 5, 75, 5]


@pytest.mark.parametrize(
    ("prompt", "fits"),
    [
        ("", True),
        ("cat " * 75, True),
        ("cat " * 76, False),
        ("cat " * 75 + "BREAK " + "dog " * 75, True),
        ("(cat:1.3) " * 75, True),
        ("BREAK cat " * 2 + "cat " * 75, False),
    ],
)
def test_a_prompt_fits_where_each_part_is_one_window(prompt, fits):
    read = TokenizedPrompt.read([TOKENIZER, clip_tokenizer(248)], prompt, weighting="a1111")
    assert read.fits(77) == fits == (len(read.split(77)) == len(read.parts))
    assert read.fits(248)


@pytest.mark.parametrize(
    ("prompt", "tokens", "windows"),
    [
        ("a cat " * 101, 202, 3),
        (25 * "a cat playing with a ball in the forest ", 225, 3),
        (HIPPO, 93, 2),
        (",".join(["cyberpunk", "sci-fi", "dark-fantasy", "portrait 400", "8k", "soft light"] * 5), 104, 2),
        (", ".join(["blurry", "low quality", "bad hands"] * 30), 239, 4),
        ("猫" * 60, 180, 3),
    ],
    ids=["cases 1", "3", "16", "15", "17", "69"],
)
def test_prompts_that_people_lost_the_end_of_fit_in_248(prompt, tokens, windows, caplog, capfd):
    assert len(ids_of(prompt)) == tokens
    assert len(windows_of(prompt, 248)) == 1
    assert len(windows_of(prompt, 77)) == windows
    assert caplog.text == ""
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "prompt",
    ["a big red cat sits. " * 3500, "(a:1.2) " * 20_000, "A" * 150_000, "a. b, " + "cat " * 20_000, "猫" * 20_000,
     "(a " * 20_000, "a" + " " * 100_000 + "b", "-" * 50_000, ",;" * 20_000],
    ids=lambda prompt: f"{prompt[:8]} * {len(prompt)}",
)  # fmt: skip
def test_twenty_thousand_tokens_are_quick(prompt):
    start = time.process_time()
    windows_of(prompt, weighting="a1111")
    assert time.process_time() - start < 4
