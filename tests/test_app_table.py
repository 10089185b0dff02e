"""The table of sentences: where windows end, what each move does, and that a prompt is only ever text."""

import re
import threading
import time
from html import unescape

import pytest
from tiny import clip_tokenizer

from app.models import Ruler
from app.prompts import MOVES, move_sentence, moved
from app.table import live_table
from debias_sd.datasets.world import prompt_set
from debias_sd.probes import move_summary, remove_summary
from debias_sd.prompts.token_report import count_tokens
from debias_sd.sentences import split_sentences
from debias_sd.shapes.tokenizer import build_tokenizer
from debias_sd.tokens import unknown_words

LONG = prompt_set(7, count=1).captions[0].text
NASTY = "<script>alert(1)</script> <img src=x onerror=alert(2)> & &amp; ${value} {{value}} \"'"
WORDS = {"a", "red", "star"}
PROMPTS = ["", "A star.", LONG, LONG * 3, NASTY, "🙂🙃 naïve 星がある。 مرحبا " * 20, "word " * 4000]


class OneEncoder:
    """What the live table takes of the models."""

    def __init__(self, window: int, *, reads_all: bool = False, title: str = "<One>") -> None:
        self.counting, self.reads_t5 = threading.Lock(), False
        self.rulers = {"one": Ruler(title, window, build_tokenizer(window), reads_all=reads_all)}

    def unknown_words(self, prompt: str) -> tuple[str, ...]:
        return unknown_words(prompt, WORDS)


def plain(page: str) -> str:
    return unescape(re.sub(r"<[^>]*>", "", page))


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("window", [77, 248])
def test_what_is_lost_is_what_the_library_counts(prompt, window):
    models = OneEncoder(window)
    report = count_tokens(models.rulers["one"].tokenizer, prompt).readings[window]
    page = live_table(prompt, models, ["one"])
    tokens = len(
        models.rulers["one"].tokenizer(prompt, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    )
    lost = re.search(r"loses ([\d,]+)", page)
    assert (0 if lost is None else int(lost[1].replace(",", ""))) == max(0, tokens - window + 2)
    assert (lost is not None) == bool(report.lost)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_table_shows_sentences_as_text_with_their_buttons(prompt):
    page = live_table(prompt, OneEncoder(77), ["one"])
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;One&gt;" in page
    shown = [unescape(text) for text in re.findall(r'<span class="text" dir="auto">(.*?)</span>', page, re.DOTALL)]
    assert shown == split_sentences(prompt)[:60]
    assert len(re.findall(r"<button[^>]*aria-label=", page)) == 4 * len(shown)
    assert ("more sentence" in page) == (len(split_sentences(prompt)) > 60)


def test_a_line_stands_where_the_window_ends_and_what_follows_is_not_read():
    models = OneEncoder(77)
    spans = models.rulers["one"].sentence_spans(LONG)
    rows = re.findall(r"<tr class=.*?</tr>", live_table(LONG, models, ["one"]), re.DOTALL)
    cut = next(number for number, row in enumerate(rows) if 'class="cut"' in row)
    assert "77 tokens end here: <One> reads no further" in plain(rows[cut])
    assert [first >= 76 for first, _ in spans] == [False] * cut + [True] * (len(spans) - cut)
    assert ["not read" in row for row in rows] == [False] * (cut + 1) + [True] * (len(spans) - cut)
    whole = live_table(LONG, OneEncoder(77, reads_all=True), ["one"])
    assert "not read" not in whole
    assert "all of which every encoder reads" in whole


def test_words_that_the_models_never_saw_are_named():
    assert "never" not in live_table("A red star.", OneEncoder(77), ["one"])
    page = plain(live_table("A red dog <b>sleeps.", OneEncoder(77), ["one"]))
    assert "The embedded models were never trained on: dog, b, sleeps." in page


@pytest.mark.parametrize(("prompt", "sentence"), [("a" * 20_001, "20,001 characters"), ("a \udc80", "not valid text")])
def test_a_prompt_that_cannot_be_is_one_sentence(prompt, sentence):
    page = live_table(prompt, OneEncoder(77), ["one"])
    assert sentence in page
    assert 'role="alert"' in page
    assert "<table" not in page


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
    assert ruler.token_starts(prompt) == starts
    assert ruler.token_starts(prompt) == starts  # from what it remembers
    assert ruler.token_starts(f"{prompt} star")[: len(starts)] == starts


def test_words_are_remembered_up_to_a_limit_and_long_ones_never(monkeypatch):
    monkeypatch.setattr("app.models._REMEMBERED", 5)
    ruler = Ruler("One", 77, build_tokenizer(77))
    ruler.token_starts("a b c " + "x" * 101)
    assert sorted(ruler.words) == ["a", "b", "c"]
    ruler.token_starts("d e f")
    assert sorted(ruler.words) == ["d", "e", "f"]


def test_a_learnt_token_with_white_space_is_counted_in_whole_texts():
    ruler = Ruler("One", 77, clip_tokenizer(77))
    ruler.tokenizer.add_tokens(["my cat"])
    assert len(ruler.token_starts("a my cat b")) == 3
    assert not ruler.words


def test_the_longest_prompt_is_counted_while_typing():
    models, prompt = OneEncoder(248), (LONG + " ") * 30
    prompt = prompt[:20_000]
    live_table(prompt, models, ["one"])
    spent = []
    for _ in range(5):
        started = time.process_time()
        live_table(prompt, models, ["one"])
        spent.append(time.process_time() - started)
    assert min(spent) < 0.05


def test_moves_are_the_probes_of_the_evaluation():
    assert move_sentence(LONG, {"kind": "first", "index": 3}) == move_summary(LONG)
    assert move_sentence(LONG, {"kind": "drop", "index": 0}) == remove_summary(LONG)
    assert moved(LONG, "swap") == move_summary(LONG)
    assert moved(LONG, "drop") == remove_summary(LONG)
    for kind in MOVES:
        with pytest.raises(ValueError, match=r"^the prompt has 1 sentence; write two or more to move one\.$"):
            moved("A star.", kind)


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
