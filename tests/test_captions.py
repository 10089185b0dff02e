"""Captions: the splitter on text that breaks naive ones, and the distribution of the short captions."""

import random
import time
from collections import Counter

import pytest

from debias_sd.probes import PROBES, move_summary, remove_summary
from debias_sd.sentences import sample_sentences, split_sentences, without_summary
from train_encoder.data.batches import short_text

DEBIAS = {"remove_summary": True, "subsample": True}
SPLITS = {
    "issue": ("Dr. A. Smith, 3.5 m tall, waves. Rain falls!", ["Dr. A. Smith, 3.5 m tall, waves.", "Rain falls!"]),
    "empty": ("", []),
    "blank": (" \n\t ", []),
    "no stop": ("a cat on a mat", ["a cat on a mat"]),
    "marks": ("Is it a dog? Yes! It is.", ["Is it a dog?", "Yes!", "It is."]),
    "doubled marks": ("What?! Really!!! Yes.", ["What?!", "Really!!!", "Yes."]),
    "lower case": ("a cat sits. a dog runs", ["a cat sits.", "a dog runs"]),
    "newlines": ("A cat\nA dog.\n\nA bird.", ["A cat", "A dog.", "A bird."]),
    "windows newlines": ("A cat.\r\nA dog.", ["A cat.", "A dog."]),
    "wrapped line": ("A cat on\na mat. A dog\nruns.", ["A cat on a mat.", "A dog runs."]),
    "spaces": ("  A  cat.   A\tdog. ", ["A cat.", "A dog."]),
    "initials": ("J. R. R. Tolkien reads. He smiles.", ["J. R. R. Tolkien reads.", "He smiles."]),
    "letter": ("It is marked with an A. The wall is red.", ["It is marked with an A.", "The wall is red."]),
    "pronoun": ("He is taller than I. Then he sits.", ["He is taller than I.", "Then he sits."]),
    "acronym": ("A U.S. Army truck in the U.S. The sun sets.", ["A U.S. Army truck in the U.S.", "The sun sets."]),
    "hours": ("It is 5 p.m. People wait at 6 a.m. in line.", ["It is 5 p.m.", "People wait at 6 a.m. in line."]),
    "latin": ("Fruit, e.g. apples, i.e. Braeburn, etc. in a bowl. Two.", None),
    "etc at the end": ("Cups, plates, etc. A knife.", ["Cups, plates, etc.", "A knife."]),
    "street": ("St. Mary stands on Main St. The shop is open.", ["St. Mary stands on Main St.", "The shop is open."]),
    "unit": ("A plank 12 in. wide lies there. Rain comes in. It is wet.", None),
    "number": ("Bus No. 5 waits. He says no. She nods.", ["Bus No. 5 waits.", "He says no.", "She nods."]),
    "decimals": ("Version 2.0 costs $3.50. It is new.", ["Version 2.0 costs $3.50.", "It is new."]),
    "file": ("The sign reads www.a.com today. It glows.", ["The sign reads www.a.com today.", "It glows."]),
    "year": ("Built in 1990. The roof is red.", ["Built in 1990.", "The roof is red."]),
    "list": ("1. A cat. 2. A dog.", ["1. A cat.", "2. A dog."]),
    "quote": ('The sign says "Stop." A car stops.', ['The sign says "Stop."', "A car stops."]),
    "curly quote": ("It says “Go!” A man runs.", ["It says “Go!”", "A man runs."]),
    "quote goes on": ('"Stop!" says a sign. It is red.', ['"Stop!" says a sign.', "It is red."]),
    "brackets": ("A cat (it is grey.) A dog (old.) sleeps.", ["A cat (it is grey.)", "A dog (old.) sleeps."]),
    "ellipsis": ("A man waits... A bus comes. He is... happy.", ["A man waits...", "A bus comes.", "He is... happy."]),
    "ellipsis sign": ("A man waits… A bus… comes.", ["A man waits…", "A bus… comes."]),
    "only stops": ("...", ["..."]),
    "cjk": ("一只猫。一只狗！鸟？鱼", ["一只猫。", "一只狗！", "鸟？", "鱼"]),
    "cjk quote": ("他说「停。」车停了。", ["他说「停。」", "车停了。"]),
    "emoji": ("A party 🎉. A cake 🎂! Fun", ["A party 🎉.", "A cake 🎂!", "Fun"]),
}
COUNTS = {"latin": 2, "unit": 3}
CAPTION = "S1 a. S2 b. S3 c. S4 d. S5 e."
DETAILS = ["S2 b.", "S3 c.", "S4 d.", "S5 e."]


@pytest.mark.parametrize("name", SPLITS)
def test_split(name: str) -> None:
    text, expected = SPLITS[name]
    sentences = split_sentences(text)
    if expected is None:
        assert len(sentences) == COUNTS[name]
    else:
        assert sentences == expected


@pytest.mark.parametrize("name", [name for name in SPLITS if not name.startswith("cjk")])
def test_split_loses_no_character(name: str) -> None:
    text = SPLITS[name][0]
    assert " ".join(split_sentences(text)) == " ".join(text.split())


@pytest.mark.parametrize(
    "text", ["Dr. " * 20_000, "a. " * 20_000, " " * 200_000, "!" * 200_000 + "x", "a" * 200_000, '."' * 50_000]
)
def test_split_takes_linear_time(text: str) -> None:
    """A quadratic splitter needs minutes for these; half a second is what a loaded machine takes."""
    start = time.process_time()
    split_sentences(text)
    assert time.process_time() - start < 5


def test_the_summary_is_removed_and_the_same_seed_gives_the_same_caption() -> None:
    assert remove_summary(CAPTION) == "S2 b. S3 c. S4 d. S5 e."
    assert {short_text("One. Two.", random.Random(seed), **DEBIAS) for seed in range(20)} == {"Two."}
    assert short_text(CAPTION, random.Random(3), **DEBIAS) == short_text(CAPTION, random.Random(3), **DEBIAS)


@pytest.mark.parametrize("text", ["Only one.", "only one", ""])
def test_one_sentence_stays(text: str) -> None:
    assert remove_summary(text) == text
    assert short_text(text, random.Random(0), **DEBIAS) == text


def draws(count: int) -> list[list[str]]:
    rng = random.Random(7)
    return [split_sentences(short_text(CAPTION, rng, **DEBIAS)) for _ in range(count)]


def test_the_number_of_sentences_is_uniform_and_every_detail_comes_as_often_but_never_the_summary() -> None:
    """1,000 expected of each; five standard deviations of a binomial are 137."""
    counts = Counter(len(drawn) for drawn in draws(4000))
    assert set(counts) == {1, 2, 3, 4}
    assert all(abs(count - 1000) < 137 for count in counts.values())
    for drawn in draws(1000):
        assert len(set(drawn)) == len(drawn)
        assert set(drawn) <= set(DETAILS)
    # Alone, each of the 4 details comes a quarter of the time.
    alone = Counter(drawn[0] for drawn in draws(4000) if len(drawn) == 1)
    mean = sum(alone.values()) / 4
    assert set(alone) == set(DETAILS)
    assert all(abs(count - mean) < 5 * mean**0.5 for count in alone.values())


def test_every_order_comes_equally_often() -> None:
    """24 orders of the full draw, about 100 of each; kept or merely rotated order would leave most out."""
    rng = random.Random(1)
    drawn = (sample_sentences(DETAILS, rng) for _ in range(9600))
    orders = Counter(tuple(order) for order in drawn if len(order) == 4)
    mean = sum(orders.values()) / 24
    assert len(orders) == 24
    assert all(abs(count - mean) < 5 * mean**0.5 for count in orders.values())


def test_steps_can_be_switched_apart() -> None:
    sentences = split_sentences(CAPTION)
    assert without_summary(sentences) == DETAILS
    with_summary = [sample_sentences(sentences, random.Random(seed)) for seed in range(200)]
    assert {len(drawn) for drawn in with_summary} == {1, 2, 3, 4, 5}
    assert any("S1 a." in drawn for drawn in with_summary)
    assert sentences == split_sentences(CAPTION), "the drawn list must be a new one"
    assert sample_sentences([], random.Random(0)) == []


@pytest.mark.parametrize(
    ("probe", "expected"),
    [
        ("keep", CAPTION),
        ("move", "S4 d. S2 b. S3 c. S1 a. S5 e."),
        ("remove", "S2 b. S3 c. S4 d. S5 e."),
        ("first2", "S1 a. S2 b."),
        ("swap2", "S2 b. S1 a."),
        ("first_only", "S1 a."),
    ],
)
def test_probes(probe: str, expected: str) -> None:
    assert PROBES[probe](CAPTION) == expected


def test_all_probes_are_tested() -> None:
    assert sorted(PROBES) == ["first2", "first_only", "keep", "move", "remove", "swap2"]


@pytest.mark.parametrize(
    ("text", "moved"), [("A. B.", "A. B."), ("Aa. Bb.", "Bb. Aa."), ("Aa. Bb. Cc.", "Cc. Bb. Aa."), ("Aa.", "Aa.")]
)
def test_move_of_fewer_than_four_swaps_first_and_last(text: str, moved: str) -> None:
    assert move_summary(text) == moved


@pytest.mark.parametrize("probe", PROBES)
def test_probes_of_an_empty_caption(probe: str) -> None:
    assert PROBES[probe]("") == ""
