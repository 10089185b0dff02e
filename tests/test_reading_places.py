"""Changes of captions by place: each rule, each place, the same in every run."""

import numpy as np

from debias_sd.datasets.world import prompt_set
from debias_sd.measure.bootstrap import difference_of, drawn_means, draws_of, mean_in_bins, spread_of
from debias_sd.measure.changes import Text, drops_of, swaps_of, texts_of, things_of
from debias_sd.measure.places import Place, bins_of, names_of, word_bin
from debias_sd.sentences import split_sentences
from debias_sd.shapes.caption import read_sentence

CAPTIONS = [
    "A harbour at dawn.  A red boat lies there. Nobody answers.",
    "One sentence alone.",
    "Fog over fields. Someone hesitates. The town sleeps.\nTwo dogs run.",
]


def test_every_sentence_is_dropped_once_at_its_place_and_captions_of_one_are_left_out():
    texts, _ = texts_of(CAPTIONS)
    drops = drops_of(texts)
    assert len(drops) == 3 + 4
    assert drops[1].text == "A harbour at dawn. Nobody answers."
    assert drops[1].place == Place(caption=0, sentence=1, sentences=3, before=4)
    for drop in drops:
        gone = set(texts[drop.place.caption].sentences) - set(split_sentences(drop.text))
        assert gone == {texts[drop.place.caption].sentences[drop.place.sentence]}
    texts, short = texts_of(CAPTIONS)
    assert short == 1
    assert texts[0].whole == "A harbour at dawn. A red boat lies there. Nobody answers."
    assert texts[0].words == [4, 5, 2]
    assert texts[0].starts == [0, 4, 9]
    assert len(texts[1].sentences) == 4
    assert [swap.place.caption for swap in swaps_of([Text(("?!", "...")), Text(("A dog.", "!!"))])] == [1]


def test_one_word_a_sentence_is_swapped_by_the_rules():
    texts, _ = texts_of(CAPTIONS)
    swaps = swaps_of(texts)
    by_place = {(swap.place.caption, swap.place.sentence): swap for swap in swaps}
    red = by_place[0, 1]
    words = texts[0].whole.split(), red.text.split()
    different = [place for place, (one, other) in enumerate(zip(*words, strict=True)) if one != other]
    assert red.rule == "detail"
    assert red.place.before in different
    assert all(word in ("A", "An", "a", "an", "red", "boat") for word in (words[0][place] for place in different))
    # No word of "Nobody answers." names a detail: the longest is replaced by that of the other caption's third.
    answers = by_place[0, 2]
    assert (answers.rule, answers.place.before) == ("same place", 10)
    assert answers.text.endswith("Nobody sleeps.")
    assert swaps == swaps_of(texts)


def test_words_are_only_put_in_where_every_encoder_knows_them():
    texts, _ = texts_of(CAPTIONS)
    assert swaps_of(texts, knows=lambda word: False) == []
    for swap in swaps_of(texts, knows=lambda word: word in ("blue", "green", "sleeps")):
        new = set(swap.text.lower().strip(".").replace(".", "").split())
        new -= set(texts[swap.place.caption].whole.lower().replace(".", "").split())
        assert new <= {"blue", "green", "sleeps", "a", "an"}


def test_bins_of_no_draw_are_null_and_differences_are_paired_within_captions():
    places = [Place(0, 0, 4, 0), Place(0, 3, 4, 39), Place(0, 30, 40, 999)]
    bins = bins_of(places)
    assert bins["by_sentence"].tolist() == [0, 3, 11]
    assert bins["by_words"].tolist() == [0, 1, 11]
    assert bins["by_quarter"].tolist() == [0, 3, 3]
    assert [len(names_of(way)) for way in bins] == [12, 12, 4]
    assert (names_of("by_sentence")[0], names_of("by_sentence")[-1]) == ("1", "12+")
    assert word_bin(219) == 10
    table = np.array([[1.0, 2.0], [1.0, np.nan]])
    found = spread_of(table, np.array([[0.0, 2.0]]), ["a", "b"])
    assert (found["low"], found["high"]) == ([1.0, None], [1.0, None])
    assert spread_of(table[:, :0], np.array([[0.0, 2.0]]), [])["mean"] == []
    one = np.array([[1.0], [5.0], [9.0]])
    found = difference_of(one + 0.25, one, draws_of(3, samples=50), ["a"])
    assert found["difference"] == found["low"] == found["high"] == [0.25]


def test_a_caption_counts_once_in_a_bin_and_intervals_are_those_of_captions():
    values, captions, bins = np.array([1.0, 3.0, 10.0, 5.0]), np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1])
    table = mean_in_bins(values, captions, bins, shape=(3, 3))
    np.testing.assert_array_equal(table, [[2, np.nan, np.nan], [10, 5, np.nan], [np.nan] * 3])
    draws = draws_of(3, samples=200)
    assert draws.sum(axis=1).tolist() == [3.0] * 200
    found = spread_of(table, draws, ["a", "b", "c"])
    assert (found["places"], found["mean"], found["captions"]) == (["a", "b"], [6.0, 5.0], [2, 1])
    assert (found["low"], found["high"]) == ([2.0, 5.0], [10.0, 5.0])
    by_hand = [np.nanmean(np.repeat(table[:2, 0], row[:2].astype(int))) for row in draws if row[:2].any()]
    np.testing.assert_allclose(drawn_means(table, draws)[draws[:, :2].any(axis=1), 0], by_hand)


def test_the_thing_of_a_sentence_is_changed_where_the_summary_does_not_name_it_too():
    captions = prompt_set(0, count=6).captions
    texts, _ = texts_of([caption.text for caption in captions])
    changes = things_of(texts, seed=0)
    wanted = [
        (number, index, things[0])
        for number, caption in enumerate(captions)
        for index, things in enumerate(caption.named)
        if not index or things[0] not in caption.named[0]
    ]
    assert [(change.place.caption, change.place.sentence) for change in changes] == [one[:2] for one in wanted]
    for change, (number, index, thing) in zip(changes, wanted, strict=True):
        sentences = split_sentences(change.text)
        pairs = enumerate(zip(sentences, texts[number].sentences, strict=True))
        assert [place for place, (one, other) in pairs if one != other] == [index]
        other = read_sentence(sentences[index])[0]
        assert (other.cell, other.size) == (thing.cell, thing.size)
        assert other.colour != thing.colour
        assert other.shape != thing.shape
    assert things_of(texts, seed=0) == changes != things_of(texts, seed=1)
    assert things_of(texts_of(CAPTIONS)[0], seed=0) == []
