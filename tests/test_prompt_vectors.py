"""Learnt tokens of several vectors in the windows of a prompt, and windows for several tokenizers."""

import random
import time

import pytest
from diffusers.loaders import TextualInversionLoaderMixin
from tiny import VOCABULARY, tiny_tokenizer
from transformers import CLIPTokenizer

from debias_sd.prompts.token_report import count_slot
from debias_sd.prompts.windows import TokenizedPrompt, split_prompt

TOKENIZER = tiny_tokenizer(77)
convert = TextualInversionLoaderMixin().maybe_convert_prompt  # diffusers' own


def vectors_tokenizer(count: int, name: str = "<toy>") -> CLIPTokenizer:
    """A tokenizer with one learnt token of `count` vectors, as load_textual_inversion makes it."""
    tokenizer = tiny_tokenizer(77)
    tokenizer.add_tokens([name, *(f"{name}_{number}" for number in range(1, count))])
    return tokenizer


def added(*places: int) -> tuple[int, ...]:
    """The ids of tokens that were added to the vocabulary, by their order."""
    return tuple(VOCABULARY + place for place in places)


def ids_of(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False, verbose=False).input_ids


@pytest.mark.parametrize("typed", ["<toy>", "<toy> <toy>_1 <toy>_2"])
def test_vectors_of_one_learnt_token_stay_together(typed):
    tokenizer = vectors_tokenizer(3)
    used = convert if typed == "<toy>" else None
    windows = split_prompt([tokenizer], f"cat cat {typed} dog", window=6, convert=used)
    assert [len(one.ids) for (one,) in windows] == [2, 4]
    assert [one.text.strip() for (one,) in windows] == ["cat cat", f"{typed} dog"]
    assert windows[1][0].ids[:3] == added(0, 1, 2)


def test_a_learnt_token_at_the_end_of_a_window_moves_to_the_next_and_a_longer_one_is_cut():
    tokenizer = vectors_tokenizer(3)
    (first,), (second,) = split_prompt([tokenizer], "cat " * 244 + "<toy> dog", window=248, convert=convert)
    assert len(first.ids) == 244
    assert second.ids == (*added(0, 1, 2), *ids_of("dog"))
    tokenizer = vectors_tokenizer(7)
    windows = split_prompt([tokenizer], "cat <toy> dog", window=5, convert=convert)
    assert [len(one.ids) for (one,) in windows] == [1, 3, 3, 1, 1]
    assert [id_ for (one,) in windows for id_ in one.ids] == [2368, *added(*range(7)), *ids_of("dog")]


def test_a_word_that_looks_like_a_vector_is_a_word_and_small_letters_are_read_as_diffusers_does():
    tokenizer = tiny_tokenizer(77)
    tokenizer.add_tokens(["style_1"])
    windows = split_prompt([tokenizer], "cat style_1", window=3, convert=convert)
    assert [one.text.strip() for (one,) in windows] == ["cat", "style_1"]
    # Case 114: where its own conversion is right, ours gives the same ids.
    tokenizer = vectors_tokenizer(3)
    for text in ("a <toy> cat", "<toy>, <toy>.", "in <toy>'s house é", "no such thing"):
        stock = tokenizer(convert(text, tokenizer), add_special_tokens=False, verbose=False).input_ids
        ((window,),) = split_prompt([tokenizer], text, window=77, convert=convert)
        assert list(window.ids) == stock


def test_each_encoder_gets_the_same_text():
    """One encoder knows the learnt token as three vectors, one as two, one not at all."""
    tokenizers = [vectors_tokenizer(3), vectors_tokenizer(2), TOKENIZER]
    prompt = "a <toy> on a shelf, beside a red <toy>. " * 10
    windows = split_prompt(tokenizers, prompt, window=20, convert=convert)
    assert all(len({one.text for one in together}) == 1 for together in windows)
    assert "".join(together[0].text for together in windows) == prompt
    for place, tokenizer in enumerate(tokenizers):
        joined = [id_ for together in windows for id_ in together[place].ids]
        assert joined == tokenizer(convert(prompt, tokenizer), add_special_tokens=False, verbose=False).input_ids


def test_all_vectors_of_a_learnt_token_count_and_have_its_weight():
    ((only,),) = split_prompt([vectors_tokenizer(3)], "a (<toy>:1.5) b", window=77, weighting="a1111", convert=convert)
    assert only.weights == (1.0, 1.5, 1.5, 1.5, 1.0)
    tokenizer = vectors_tokenizer(3)
    assert TokenizedPrompt.read([tokenizer], "cat " * 72 + "<toy>", convert=convert).fits(77)
    assert not TokenizedPrompt.read([tokenizer], "cat " * 73 + "<toy>", convert=convert).fits(77)


def test_any_prompt_is_split_alike_for_all():
    rng = random.Random(1)
    signs = [*"aB ,.()[]\\<>\n_5é", "😀", "猫", "e\u0301", "BREAK", " the cat ", "<toy>", "(a:1.2)", "<toy>_1"]
    tokenizers = [TOKENIZER, vectors_tokenizer(3), vectors_tokenizer(2)]
    for _ in range(300):
        prompt = "".join(rng.choice(signs) for _ in range(rng.randrange(60)))
        window, weighting = rng.choice([3, 4, 7, 12, 30]), rng.choice([None, "a1111"])
        windows = split_prompt(tokenizers, prompt, window=window, weighting=weighting, convert=convert)
        for together in windows:
            assert len({one.text for one in together}) == 1
            assert all(len(one.ids) == len(one.weights) <= window - 2 for one in together), prompt
        assert len(windows) == 1 or all(any(one.ids for one in together) for together in windows)


def test_many_learnt_tokens_are_quick():
    tokenizer = vectors_tokenizer(3)
    tokenizer.add_tokens([f"<style-{number}>" for number in range(200)])
    start = time.process_time()
    windows = split_prompt([tokenizer], "a <toy> in <style-7>, " * 4000, window=77, convert=convert)
    assert sum(len(one.ids) for (one,) in windows) == 7 * 4000
    assert time.process_time() - start < 4


NEGATIVE, CAT = added(0, 1, 2), added(3, 4)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("EasyNegative", [NEGATIVE]),
        ("easynegative, EASYNEGATIVE", [NEGATIVE, ",", NEGATIVE]),
        ("a EasyNegative cat", ["a", NEGATIVE, "cat"]),
        ("EasyNegative EasyNegative_1 easynegative_2", [NEGATIVE]),
        ("EasyNegative_2", [NEGATIVE[2:]]),
        ("MyCat's (mycat)", [CAT, "'s (", CAT, ")"]),
        ("mycategory mycats my_mycat mycat2", ["mycategory mycats my_mycat mycat2"]),
        ("a+b xa+by A+B.", [added(5), "xa+by", added(5), "."]),
        ("qzx qzx2 Qzx-1", [added(6), added(7), added(6), "-1"]),
        ("<Toy>x<toy>", [added(8, 9), "x", added(8, 9)]),
    ],
)
def test_all_vectors_are_read_whatever_the_case_and_never_inside_a_word(text, read):
    """Case 114: capitals, prefixes, signs that mean something to a pattern, words that hold a token; counted alike."""
    tokenizer = vectors_tokenizer(3, "EasyNegative")
    tokenizer.add_tokens(["mycat", "mycat_1", "a+b", "qzx", "qzx2", "<Toy>", "<Toy>_1"])
    wanted = [id_ for part in read for id_ in (part if isinstance(part, tuple) else ids_of(part))]
    ((window,),) = split_prompt([tokenizer], text, window=77, convert=convert)
    assert list(window.ids) == wanted
    assert count_slot(tokenizer, text, lengths=[77], convert=convert).tokens == len(wanted)
