"""Probes on a caption that a person can read; the groups; and that chance depends on the caption alone."""

import pytest

from debias_sd.probes import GROUPS, NAMES, probe_names, probe_of, useful_probes

TEXT = "A park. A dog runs fast. A kite flies. Rain falls. The end is near."


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("keep", TEXT),
        ("move", "Rain falls. A dog runs fast. A kite flies. A park. The end is near."),
        ("remove", "A dog runs fast. A kite flies. Rain falls. The end is near."),
        ("first2", "A park. A dog runs fast."),
        ("swap2", "A dog runs fast. A park."),
        ("first_only", "A park."),
        ("photo0", "A park. A dog runs fast."),
        ("photo3", "This is a photo. This is a photo. This is a photo. A park. A dog runs fast."),
        ("words10", "A park. A dog runs fast. A kite flies. Rain"),
        ("words200", TEXT),
    ],
)
def test_what_a_probe_does_to_a_caption(name, expected):
    assert probe_of(name, seed=0)(TEXT) == expected


def test_drawn_sentences_and_words_are_those_of_the_caption():
    sentences = ["A park.", "A dog runs fast.", "A kite flies.", "Rain falls.", "The end is near."]
    for seed in range(30):
        shuffled = probe_of("shuffle", seed=seed)(TEXT)
        assert sorted(shuffled.replace(". ", ".|").split("|")) == sorted(sentences)
        for count in (2, 3):
            kept = probe_of(f"keep{count}", seed=seed)(TEXT).replace(". ", ".|").split("|")
            assert len(kept) == count
            assert kept == [sentence for sentence in sentences if sentence in kept]
        words = TEXT.split()
        dropped = probe_of("word_drop", seed=seed)(TEXT).split()
        assert len(words) - len(dropped) == len(words) // 2
        left = iter(words)
        assert all(word in left for word in dropped)  # in their order
    assert len({probe_of("shuffle", seed=seed)(TEXT) for seed in range(30)}) > 15


def test_chance_depends_on_seed_probe_and_caption_alone():
    for name in ("shuffle", "keep2", "word_drop"):
        assert probe_of(name, seed=1)(TEXT) == probe_of(name, seed=1)(TEXT)
    changed = [probe_of("word_drop", seed=seed)(TEXT) for seed in range(10)]
    assert len(set(changed)) == 10


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", ["", " ", "One", "One sentence only.", "。。"])
def test_every_probe_takes_every_caption(name, text):
    changed = probe_of(name, seed=0)(text)
    assert isinstance(changed, str)
    if not name.startswith("photo") and name != "word_drop" and text.strip() == "One sentence only.":
        assert changed == "One sentence only."


def test_names_groups_and_lengths_up_to_the_longest_caption():
    assert probe_names([]) == ["keep"]
    assert probe_names(["swap2", "keep", "swap2"]) == ["keep", "swap2"]
    assert probe_names(["debias"]) == ["keep", "move", "remove", "first2", "swap2", "first_only"]
    assert probe_names(["all"]) == list(NAMES)
    assert GROUPS["padding"] == tuple(f"photo{k}" for k in range(6))
    with pytest.raises(
        ValueError, match="unknown probe 'suffle'; the nearest is 'shuffle', the groups are all, debias"
    ):
        probe_names(["suffle"])
    captions = ["one two", " ".join(["word"] * 25)]
    assert useful_probes(["keep", *GROUPS["length"]], captions) == ["keep", "words10", "words20", "words30"]
