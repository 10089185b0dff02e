"""What encoders read of a set of captions, by place: attention, sentences dropped, words and things swapped.

Attention says where the pooled token looks, and does not prove use; `change` says how far the embedding turns (1 -
cosine) when a sentence is dropped, a word swapped or, in captions of the embedded world, the thing that a sentence
names. Vector spaces differ in how far anything turns, so each value is also given relative to its caption, which two
encoders are compared by:

* attention: the share of it that a place gets, over the share of the words that it has (what was cut off gets none);
* attention per token: that of a sentence's tokens over that of all tokens that were read (what was cut off counts for
  nothing);
* changes: one change over the mean of the caption's changes.

1 everywhere is an encoder that reads all places alike. Beside the places, `by_part` has plain means over all sentences:
the summary, and the details of each half.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from debias_sd.encoder_folder import read_known_words
from debias_sd.measure.attention import LAYERS, TokenAttention, pooled_attention
from debias_sd.measure.bootstrap import difference_of, draws_of, mean_in_bins, spread_of
from debias_sd.measure.changes import Change, Text, drops_of, swaps_of, texts_of, things_of
from debias_sd.measure.embedding import Embedder, Progress
from debias_sd.measure.places import WAYS, Place, bins_of, half_of, names_of, word_bin
from debias_sd.measure.towers import Towers
from debias_sd.report import hash_texts
from debias_sd.text import count_of

COUNT = 200
PARTS = ("summary", "first_half", "second_half")
Tables = dict[tuple[str, str], np.ndarray]  # [captions, bins] by (measure, way)


@dataclasses.dataclass
class Read:
    """Results by encoder; differences by pair, measure and way; notes for a person to read."""

    encoders: dict[str, dict[str, Any]]
    differences: dict[str, dict[str, dict[str, Any]]]
    notes: list[str]


@dataclasses.dataclass(frozen=True)
class _Asked:
    """What every encoder is asked about one set."""

    texts: list[Text]
    changes: dict[str, list[Change]]
    draws: np.ndarray

    @property
    def count(self) -> int:
        return len(self.texts) + sum(map(len, self.changes.values()))


def measure_reading(
    embedders: dict[str, Embedder],
    captions: Sequence[str],
    *,
    label: str,
    seed: int = 0,
    samples: int = 1000,
    progress: Callable[[str, int], Progress] = lambda what, total: lambda count: None,
) -> Read:
    """Measure; ValueError where fewer than two captions have two sentences, or features are not finite.

    `seed`: of the things that are put in the place of the embedded world's.
    """
    texts, short = texts_of(captions)
    if len(texts) < 2:
        raise ValueError(
            f"{label} has {count_of(len(texts), 'caption')} of two sentences or more but reading by place needs at "
            "least 2; give longer captions."
        )
    swaps = swaps_of(texts, knows=_known_to_all([embedder.towers for embedder in embedders.values()]))
    if not swaps:
        raise ValueError(
            f"{label} has no word that can be swapped for one that every encoder was trained on; give captions in the "
            "encoders' own words."
        )
    changes = {"drop": drops_of(texts), "swap": swaps, "thing": things_of(texts, seed=seed)}
    asked = _Asked(texts, {name: some for name, some in changes.items() if some}, draws_of(len(texts), samples=samples))
    found: dict[str, Tables] = {}
    read = Read({}, {}, [])
    if short:
        read.notes.append(f"{label}: {count_of(short, 'caption')} of fewer than two sentences left out.")
    for name, embedder in embedders.items():
        told = progress(f"{label}: changes read by {name}", asked.count)
        found[name], result = _measure_one(embedder, asked, told)
        common = {"captions": len(texts), "one_sentence": short, "texts_sha256": hash_texts([t.whole for t in texts])}
        read.encoders[name] = common | result
        if result["cut"]:
            read.notes.append(f"{label}: {count_of(result['cut'], 'caption')} longer than the window of {name}.")
    for one, other in combinations(found, 2):
        by_measure: dict[str, Any] = {}
        for measure, way in found[one]:
            pair = (found[name][measure, way] for name in (one, other))
            by_measure.setdefault(measure, {})[way] = difference_of(*pair, asked.draws, names_of(way))
        read.differences[f"{one} - {other}"] = by_measure
    return read


def _known_to_all(towers: Sequence[Towers]) -> Callable[[str], bool]:
    """Whether a word is one that every encoder was trained on, as far as their folders say."""
    lists = [words for tower in towers if (words := read_known_words(tower.folder)) is not None]
    return lambda word: all(part in words for words in lists for part in word.lower().split())


def _measure_one(embedder: Embedder, asked: _Asked, progress: Progress) -> tuple[Tables, dict[str, Any]]:
    wholes = [text.whole for text in asked.texts]
    whole = embedder.texts(wholes, progress=progress)
    tables: Tables = {}
    result: dict[str, Any] = {"cut": _cut(embedder.towers, wholes)}
    for measure, changes in asked.changes.items():
        changed = embedder.texts([change.text for change in changes], progress=progress)
        places = [change.place for change in changes]
        owners = np.array([place.caption for place in places], dtype=np.int64)
        # In float64: a change of a word in a long text is near the last bit of a float32 cosine.
        turned = 1 - (whole[owners].astype(np.float64) * changed).sum(axis=1)
        rules = [change.rule for change in changes]
        result[measure] = {
            "changes": len(changes),
            "rules": {rule: rules.count(rule) for rule in dict.fromkeys(rules)},
            "change": _spreads(turned, places, asked, tables, None),
            "relative": _spreads(_relative(turned, owners), places, asked, tables, measure),
        }
    attention = pooled_attention(embedder.towers, wholes, embedder.processes)
    result["attention"] = _describe_attention(embedder.towers, attention, asked, tables)
    return tables, result


def _cut(towers: Towers, texts: list[str]) -> int:
    _, lengths = towers.ids_of(texts)
    return sum(length > towers.window for length in lengths)


def _relative(values: np.ndarray, owners: np.ndarray) -> np.ndarray:
    """Each value over the mean of its caption's values; NaN where none of them changed anything."""
    sums, counts = (np.bincount(owners, weights=weights) for weights in (values, np.ones(len(values))))
    means = np.divide(sums, counts, out=np.zeros(len(sums)), where=counts > 0)[owners]
    return np.divide(values, means, out=np.full(len(values), np.nan), where=means > 1e-12)


def _spreads(
    values: np.ndarray, places: list[Place], asked: _Asked, tables: Tables, measure: str | None
) -> dict[str, Any]:
    """Spread by each way, and by part; the tables of a named measure are kept for the differences."""
    found: dict[str, Any] = {"by_part": _by_part(values, places)}
    finite = np.isfinite(values)
    owners = np.array([place.caption for place in places], dtype=np.int64)[finite]
    for way, bins in bins_of(places).items():
        shape = (len(asked.texts), len(names_of(way)))
        table = mean_in_bins(values[finite], owners, bins[finite], shape=shape)
        found[way] = spread_of(table, asked.draws, names_of(way))
        if measure is not None:
            tables[measure, way] = table
    return found


def _by_part(values: np.ndarray, places: list[Place]) -> dict[str, float | None]:
    """The means over all sentences that are a summary, in the first and in the second half of the details."""
    halves = [half_of(place.sentence, place.sentences - 1) if place.sentence else -1 for place in places]
    chosen = {name: values[np.array(halves) == half] for half, name in enumerate(PARTS, start=-1)}
    return {name: float(np.nanmean(some)) if np.isfinite(some).any() else None for name, some in chosen.items()}


def _describe_attention(
    towers: Towers, attention: list[TokenAttention], asked: _Asked, tables: Tables
) -> dict[str, Any]:
    by_position = np.full((2, len(attention), max(text.slots.shape[1] for text in attention)), np.nan)
    for row, text in enumerate(attention):
        by_position[:, row, : text.slots.shape[1]] = text.slots
    curves = dict(zip(LAYERS, np.nanmean(by_position, axis=1).tolist(), strict=True))
    result: dict[str, Any] = {
        "pooled_at": "end token" if towers.kind == "CLIP" else "last slot",
        "heads": "mean of all",
        "positions": curves | {"captions": np.isfinite(by_position[0]).sum(axis=0).tolist()},
        "elsewhere": {
            name: float(np.mean([1 - text.attention[layer].sum() for text in attention]))
            for layer, name in enumerate(LAYERS)
        },
    }
    for layer, name in enumerate(LAYERS):
        result[f"relative_{name}"] = {}
        for way in WAYS:
            table = np.stack([_shares(t, a, layer, way) for t, a in zip(asked.texts, attention, strict=True)])
            tables[f"attention_{name}", way] = table
            result[f"relative_{name}"][way] = spread_of(table, asked.draws, names_of(way))
        places, values = _per_token(asked.texts, attention, layer)
        result[f"per_token_{name}"] = _spreads(values, places, asked, tables, f"per_token_{name}")
    return result


def _per_token(texts: list[Text], attention: list[TokenAttention], layer: int) -> tuple[list[Place], np.ndarray]:
    """Of every sentence that was read at all: the mean attention of its tokens over that of the text's tokens."""
    places, values = [], []
    for number, (text, seen) in enumerate(zip(texts, attention, strict=True)):
        sentence_of = np.repeat(np.arange(len(text.sentences)), text.words)[seen.word_of]
        for index in np.unique(sentence_of):
            places.append(Place(number, int(index), len(text.sentences), text.starts[index]))
            values.append(seen.attention[layer][sentence_of == index].mean() / seen.attention[layer].mean())
    return places, np.array(values, dtype=float)


def _shares(text: Text, attention: TokenAttention, layer: int, way: str) -> np.ndarray:
    """The share of the attention on the text that each bin gets, over the share of the words that it has."""
    bins = _bins_of_words(text, way)
    size = len(names_of(way))
    words = np.bincount(bins, minlength=size) / len(bins)
    weights = attention.attention[layer].astype(np.float64)
    got = np.bincount(bins[attention.word_of], weights=weights, minlength=size)
    return np.divide(got, words * weights.sum(), out=np.full(size, np.nan), where=words * weights.sum() > 0)


def _bins_of_words(text: Text, way: str) -> np.ndarray:
    if way == "by_words":
        return np.array([word_bin(before) for before in range(sum(text.words))])
    sentences = len(text.sentences)
    by_sentence = [Place(0, index, sentences, 0).bins()[WAYS.index(way)] for index in range(sentences)]
    return np.repeat(by_sentence, text.words)
