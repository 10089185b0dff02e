"""Token rulers and the list of sentences: where the text is cut, and that a prompt is only ever text."""

import re
import time
from html import unescape

import pytest
from tiny import clip_tokenizer

from app.models import Ruler
from app.prompt_box import move_sentence, sentences_html
from app.rulers import ruler_html, rulers_html, stretches_of, token_starts
from debias_sd.datasets.world import prompt_set
from debias_sd.probes import move_summary, remove_summary
from debias_sd.prompts.token_report import count_tokens
from debias_sd.sentences import split_sentences
from debias_sd.shapes.tokenizer import build_tokenizer

LONG = prompt_set(7, count=1).captions[0].text
NASTY = "<script>alert(1)</script> <img src=x onerror=alert(2)> & &amp; ${value} {{value}} \"'"
PROMPTS = ["", "A star.", LONG, LONG * 3, NASTY, "🙂🙃 naïve 星がある。 مرحبا " * 20, "word " * 4000]


class OneRuler:
    """What `rulers_html` takes of the models."""

    def __init__(self, window: int) -> None:
        import threading

        self.counting = threading.Lock()
        self.rulers = {"one": Ruler("<One>", window, build_tokenizer(window))}


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("window", [77, 248])
def test_the_pieces_are_the_prompt_and_what_is_lost_is_what_the_library_counts(prompt, window):
    ruler = Ruler("One", window, build_tokenizer(window))
    pieces = stretches_of(prompt, token_starts(ruler, prompt), window=window)
    report = count_tokens(ruler.tokenizer, prompt).readings[window]
    assert "".join(piece.text for piece in pieces) == prompt
    assert "".join(piece.text for piece in pieces if piece.is_read) == report.kept
    assert "".join(piece.text for piece in pieces if not piece.is_read) == report.lost
    assert [piece.window for piece in pieces] == sorted({piece.window for piece in pieces})


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_ruler_shows_the_prompt_as_text(prompt):
    page = rulers_html(prompt, OneRuler(77))
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;One&gt;" in page
    shown = unescape(re.sub(r"<[^>]*>", "", re.search(r"<p class=\"text\".*?</p>", page, re.DOTALL)[0]))
    assert shown.startswith(prompt[:6000])
    assert ("more characters" in page) == (len(prompt) > 6000)


def test_a_ruler_tells_the_counts():
    ruler = Ruler("CLIP", 77, build_tokenizer(77))
    assert "5 of 75 tokens" in ruler_html(ruler, "A small red star.", token_starts(ruler, "A small red star."))
    tokens = len(token_starts(ruler, LONG))
    page = ruler_html(ruler, LONG, token_starts(ruler, LONG))
    assert f"{tokens} tokens, reads 75, loses {tokens - 75}" in page
    assert "<del" in page
    long = Ruler("Long", 248, build_tokenizer(248))
    assert "<del" not in ruler_html(long, LONG, token_starts(long, LONG))


@pytest.mark.parametrize(("prompt", "sentence"), [("a" * 20_001, "20,001 characters"), ("a \udc80", "not valid text")])
def test_a_prompt_that_cannot_be_is_one_sentence(prompt, sentence):
    page = rulers_html(prompt, OneRuler(77))
    assert sentence in page
    assert 'role="alert"' in page


@pytest.mark.parametrize(
    "prompt", [*PROMPTS, "it's  A\u0301b\tc\r\nd\u00a0e\u2003f\x1cg\x0bh <|endoftext|>x ...!? 12ab", "x" * 300]
)
@pytest.mark.parametrize("build", [build_tokenizer, clip_tokenizer])
def test_counting_word_by_word_is_counting_the_whole(prompt, build):
    ruler = Ruler("One", 77, build(77))
    whole = ruler.tokenizer(
        prompt, add_special_tokens=False, return_offsets_mapping=True, split_special_tokens=True, verbose=False
    )
    starts = [start for start, _ in whole["offset_mapping"]]
    assert token_starts(ruler, prompt) == starts
    assert token_starts(ruler, prompt) == starts  # from what it remembers
    assert token_starts(ruler, f"{prompt} star")[: len(starts)] == starts


def test_words_are_remembered_up_to_a_limit_and_long_ones_never(monkeypatch):
    monkeypatch.setattr("app.rulers._REMEMBERED", 5)
    ruler = Ruler("One", 77, build_tokenizer(77))
    token_starts(ruler, "a b c " + "x" * 101)
    assert sorted(ruler.words) == ["a", "b", "c"]
    token_starts(ruler, "d e f")
    assert sorted(ruler.words) == ["d", "e", "f"]


def test_a_learnt_token_with_white_space_is_counted_in_whole_texts():
    ruler = Ruler("One", 77, clip_tokenizer(77))
    ruler.tokenizer.add_tokens(["my cat"])
    assert len(token_starts(ruler, "a my cat b")) == 3
    assert not ruler.words


def test_the_longest_prompt_is_counted_while_typing():
    models, prompt = OneRuler(248), (LONG + " ") * 30
    prompt = prompt[:20_000]
    rulers_html(prompt, models)
    spent = []
    for _ in range(5):
        started = time.process_time()
        rulers_html(prompt, models)
        spent.append(time.process_time() - started)
    assert min(spent) < 0.05


def test_moves_are_the_probes_of_the_evaluation():
    assert move_sentence(LONG, {"kind": "first", "index": 3}) == move_summary(LONG)
    assert move_sentence(LONG, {"kind": "drop", "index": 0}) == remove_summary(LONG)


@pytest.mark.parametrize(
    ("action", "after"),
    [
        ({"kind": "up", "index": 2}, "One. Three. Two."),
        ({"kind": "down", "index": 0}, "Two. One. Three."),
        ({"kind": "to", "index": 2, "to": 0}, "Three. One. Two."),
        ({"kind": "drop", "index": 1}, "One. Three."),
        ({"kind": "up", "index": 0}, "One. Two. Three."),
        ({"kind": "down", "index": 2}, "One. Two. Three."),
        ({"kind": "drop", "index": 3}, "One. Two. Three."),
        ({"kind": "drop", "index": -1}, "One. Two. Three."),
        ({"kind": "to", "index": 0, "to": "x"}, "One. Two. Three."),
        ({"kind": "import os", "index": 0}, "One. Two. Three."),
        ({}, "One. Two. Three."),
    ],
)
def test_each_action_and_those_that_cannot_be(action, after):
    assert move_sentence("One. Two. Three.", action) == after


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_list_shows_sentences_as_text(prompt):
    page = sentences_html(prompt)
    assert "<script" not in page
    assert "<img" not in page
    shown = [unescape(text) for text in re.findall(r'<span class="text" dir="auto">(.*?)</span>', page, re.DOTALL)]
    assert shown == split_sentences(prompt)[:60]
    assert len(re.findall(r"<button[^>]*aria-label=", page)) == 4 * len(shown)
