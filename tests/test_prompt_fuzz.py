"""Prompts that nobody would think of, 2,000 of them by one seed: finite states of equal length, or one sentence."""

import functools
import random
import sys

import pytest
import torch
from tiny import tiny_encoder, tiny_sd_pipeline

from debias_sd import cli, count_tokens, encode_prompt, encoder_folder, with_text_encoder
from debias_sd.prompts.cuts import cut_ranks
from debias_sd.sentences import split_sentences

FEW, MANY = 60, 2000
WORDS = (
    "cat",
    "red",
    "a",
    "Dr.",
    "3.5",
    "BREAK",
    "AND",
    "Ph.D.",
    "<lora:x:1>",
    "<|endoftext|>",
    "<|startoftext|>",
    "\\",
)
MARKUP = (
    "(",
    ")",
    "[",
    "]",
    ":1.3)",
    ":-2)",
    ":nan)",
    ":1e99)",
    "((",
    "))",
    "\\(",
    "|",
    "{",
    "}",
    ":",
    "(:",
    "()",
    "[]",
)
SIGNS = (".", "!", "?", "…", "。", "।", "؟", ",", ";", "-", "“", "”", "'", '"', "\n", "\n\n", "\t", "\r", "\u2028")
EMOJI = ("👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "❤️", "\u200d", "\ufe0f", "🧑🏿‍🚀")
OTHERS = ("مرحبا", "שלום", "\u202e", "\u200f", "हिन्दी", "ไทย", "日本語", "é", "e\u0301", "ß", "İ", "ﬁ", "Z̷̧̢̛͔͓̦̝͉̪̹̈́̓͐͘")


def any_character(rng):
    """One of all planes, lone surrogates and unassigned ones too."""
    return chr(
        rng.choice((rng.randrange(0x110000), rng.randrange(0x3000), rng.randrange(0x20), 0xD800 + rng.randrange(2048)))
    )


def prompt_of(rng):
    """A prompt: of one kind or of all, empty to very long."""
    if rng.random() < 0.05:
        return rng.choice(
            ("", " ", "\n\t \u3000", "\0", "\ufeff", "(" * 500, ")" * 500, "((a" * 200, "BREAK " * 90, "-")
        )
    kinds = (WORDS, MARKUP, SIGNS, EMOJI, OTHERS, None)
    chosen = rng.sample(kinds, rng.randint(1, len(kinds)))
    pieces = []
    for _ in range(rng.choice((1, 3, 10, 40, 40, 150))):
        kind = rng.choice(chosen)
        pieces.append(any_character(rng) if kind is None else rng.choice(kind))
    text = rng.choice(("", " ", " ")).join(pieces)
    return text if rng.random() < 0.5 else "".join(one for one in text if not "\ud800" <= one <= "\udfff")


@pytest.fixture(scope="module")
def pipe():
    return with_text_encoder(tiny_sd_pipeline(), tiny_encoder())


def sentence_of(error):
    """One line that ends as a sentence does."""
    text = str(error)
    assert "\n" not in text
    assert text.endswith(".")
    return text


def check_states(pipe, prompt, negative, options):
    """States are finite and of one length, or the fault is a sentence and the prompt is no text."""
    is_text = not any("\ud800" <= one <= "\udfff" for one in prompt + negative)
    try:
        found = encode_prompt(pipe, prompt, negative, **options)
    except ValueError as error:
        sentence_of(error)
        if is_text:
            raise
        return
    states, others = found["prompt_embeds"], found["negative_prompt_embeds"]
    assert is_text
    assert states.shape == others.shape
    assert bool(torch.isfinite(states).all() & torch.isfinite(others).all())


def check_counts(pipe, prompt, options):
    """All of the text is kept or lost, and its windows hold all tokens."""
    try:
        report = count_tokens(pipe, prompt, **options)["text_encoder"]
    except ValueError as error:
        sentence_of(error)
        assert any("\ud800" <= one <= "\udfff" for one in prompt)
        return
    for length, reading in report.readings.items():
        assert reading.kept_tokens + reading.lost_tokens == report.tokens
        assert sum(window.tokens for window in reading.windows) == report.tokens
        assert all(window.tokens <= length - 2 for window in reading.windows)
        if not options["weighting"]:
            assert reading.kept + reading.lost == prompt


def check_cuts(prompt):
    """No character is lost, and every place has a rank."""
    assert "".join("".join(split_sentences(prompt)).split()) == "".join(prompt.split())
    places = [place for place, character in enumerate(prompt) if not character.isspace()]
    assert set(cut_ranks(prompt, places)) <= set(range(6))


def check_command(prompt, encoder, capsys):
    """The command line reads the same prompt: a report, or one sentence."""
    words = ["tokens", "--encoder", str(encoder), "--weighting", "a1111", "--words"]
    code = cli.main([*words, "--", prompt])
    out, err = capsys.readouterr()
    assert code == (0 if out else 2)
    assert code == 0 or (err.startswith("debias-sd: error: ") and err.count("\n") == 1), err


@pytest.mark.filterwarnings("ignore:.* in a prompt loads nothing:UserWarning")
@pytest.mark.parametrize(
    "count",
    [FEW, pytest.param(MANY, marks=pytest.mark.slow)],  # minutes: each is encoded, counted, cut and given to a command
)
def test_any_prompt_is_read_or_refused_in_one_sentence(pipe, tmp_path_factory, monkeypatch, capsys, count):
    """Cases 102, 111 and 126."""
    encoder = tmp_path_factory.mktemp("encoder") / "long"
    tiny_encoder().save(encoder)
    monkeypatch.setattr(sys, "stdin", None)
    # The same tokenizer for every command: reading its files is most of what the command takes.
    monkeypatch.setattr(encoder_folder, "read_tokenizer", functools.cache(encoder_folder.read_tokenizer))
    rng = random.Random(20)
    for number in range(count):
        prompt, negative = prompt_of(rng), prompt_of(rng) if number % 3 else ""
        weighting = rng.choice((None, "a1111"))
        try:
            check_states(
                pipe,
                prompt,
                negative,
                {"weighting": weighting, "window": rng.choice((None, 77, "auto", "sentence", "sentence-always"))},
            )
            check_counts(pipe, prompt, {"weighting": weighting})
            check_cuts(prompt)
            check_command(prompt, encoder, capsys)
        except BaseException as error:
            error.add_note(f"prompt {number}: {prompt!r}, negative {negative!r}, weighting {weighting}")
            raise
