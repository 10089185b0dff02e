"""Retrieval of every encoder on every set under every probe, with intervals and paired differences.

Protocol (arXiv 2602.22419): normalised features, dot product, full ranking, ties against the encoder; an image with
several captions has the best rank of them. The pool of a set is the pictures that can be read and all their captions,
and everything that was not as it should be; it is the same for all encoders: what the first could not read, none is
given.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from debias_sd.datasets.records import Faults, ListedRecords, Pool, Records, describe_counts, pool_difference
from debias_sd.measure.embedding import Embedder, Progress
from debias_sd.measure.ranks import (
    SCORES,
    RetrievalRanks,
    draw_scores,
    family_share,
    intervals_of,
    retrieval_ranks,
    scores_of,
)
from debias_sd.measure.reports.page import thumbnail
from debias_sd.measure.towers import describe_towers
from debias_sd.probes import pads_of, probe_of, useful_probes
from debias_sd.report import hash_texts
from debias_sd.text import count_of

NO_TEXT = "caption with characters that are not text"
WAYS = ("t2i", "i2t")
LONGEST = 1500  # characters of a caption that is kept as an example


@dataclasses.dataclass(frozen=True)
class CaptionPool:
    """Captions and, for each, the place of its picture among the `images` that were kept."""

    name: str
    captions: tuple[str, ...]
    image_of_caption: np.ndarray
    images: int
    expected: Pool | None
    left_out: Mapping[str, int]
    faults: Mapping[str, int]
    mended: Mapping[str, int]
    repeated: Mapping[str, int]
    pictures_sha256: str
    family: int = 1  # near-twins in a row

    @property
    def notes(self) -> list[str]:
        """One sentence each about what makes the numbers other than they seem."""
        gone = dict(Counter(self.left_out) + Counter(self.faults))
        notes = []
        if self.faults:
            notes.append(f"{self.name}: {describe_counts(self.faults)}, left out with their captions.")
        found = Pool(self.images, len(self.captions))
        expected = found if self.expected is None else self.expected
        difference = pool_difference(self.name, found, expected, left_out=gone)
        if difference is not None:
            notes.append(difference)
        elif self.left_out:
            notes.append(f"{self.name}: {describe_counts(self.left_out)} left out.")
        if any(self.repeated.values()):
            notes.append(
                f"{self.name}: {describe_counts(self.repeated)}; equal candidates tie, and ties count against the "
                "encoder."
            )
        if self.mended:
            notes.append(f"{self.name}: {describe_counts(self.mended)}, read with question marks in their place.")
        return notes

    def describe(self) -> dict[str, object]:
        """The pool in a report."""
        expected = None if self.expected is None else dataclasses.asdict(self.expected)
        return {
            "pool": {"images": self.images, "captions": len(self.captions)},
            "published_pool": expected,
            "left_out": dict(self.left_out),
            "faults": dict(self.faults),
            "mended": dict(self.mended),
            "repeated": dict(self.repeated),
            "notes": self.notes,
            "texts_sha256": hash_texts(list(self.captions)),
            "pictures_sha256": self.pictures_sha256,
        }


def make_pool(
    records: Records, kept: list[int], keys: list[bytes], *, name: str, faults: Mapping[str, int]
) -> CaptionPool:
    """Return the pool of the records `kept`, whose pictures have `keys`; ValueError when none is left."""
    if not kept:
        gone = describe_counts(dict(Counter(records.left_out) + Counter(faults))) or "the list is empty"
        raise ValueError(f"{name} has no picture with a caption ({gone}); correct the path or the files.")
    captions: list[str] = []
    owners: list[int] = []
    mended = 0
    for place, number in enumerate(kept):
        record = records[number]
        mended += record.mended
        captions += record.captions
        owners += [place] * len(record.captions)
    repeated = {"repeated picture": len(keys) - len(set(keys)), "repeated caption": len(captions) - len(set(captions))}
    return CaptionPool(
        name=name,
        captions=tuple(captions),
        image_of_caption=np.array(owners),
        images=len(kept),
        expected=records.expected,
        left_out=dict(records.left_out),
        faults=dict(faults),
        mended={NO_TEXT: mended} if mended else {},
        repeated={name: count for name, count in repeated.items() if count},
        pictures_sha256=hashlib.sha256(b"".join(keys)).hexdigest(),
        family=1 if faults else getattr(records, "family", 1),
    )


def first_records(records: Records, count: int) -> Records:
    """The first `count` records, as a set of its own with the published size of the whole."""
    some = tuple(records[number] for number in range(min(count, len(records))))
    return ListedRecords(records.name, some, records.expected, records.left_out)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is measured: probes by name, the seed of what they draw, the draws of the intervals; `by_set` has the
    probes of the sets that have their own. `examples`: the worst captions of each set that are kept with pictures.
    """

    probes: tuple[str, ...] = ("keep",)
    seed: int = 0
    samples: int = 1000
    by_set: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    examples: int = 0


@dataclasses.dataclass
class Measured:
    """Results by encoder; differences by set, pair and probe; notes for a person to read.

    `pictures`: by set, small pictures in base64 by their number in the pool, those that examples name.
    """

    encoders: dict[str, dict[str, Any]]
    differences: dict[str, dict[str, dict[str, Any]]]
    notes: list[str]
    pictures: dict[str, dict[str, str | None]] = dataclasses.field(default_factory=dict)


def measure_sets(
    embedders: dict[str, Embedder],
    sets: Sequence[Records],
    plan: Plan,
    *,
    progress: Callable[[str, int], Progress] = lambda what, total: lambda count: None,
) -> Measured:
    """Measure; ValueError for an empty set and for features that are not finite.

    `progress(what, total)` is asked once a task and then told how much was done.
    """
    measured = Measured({name: describe_towers(e.towers) | {"sets": {}} for name, e in embedders.items()}, {}, [])
    for label, records in _labels(sets):
        drawn: dict[str, dict[tuple[str, str], np.ndarray]] = {}
        pool: CaptionPool | None = None
        for name, embedder in embedders.items():
            faults = Faults(len(records), setting="the number of records")
            told = progress(f"{label}: pictures by {name}", len(records))
            images, kept, keys = embedder.pictures(records, faults, progress=told)
            if pool is None:
                pool = make_pool(records, kept, keys, name=label, faults=faults.counts())
                measured.notes += pool.notes
            drawn[name], result = _measure_probes(embedder, images, pool, plan, name=name, progress=progress)
            measured.encoders[name]["sets"][label] = pool.describe() | result
            measured.notes += _cut_notes(name, label, result)
            seen = measured.pictures.setdefault(label, {})
            for place in {place for one in result["examples"] for place in (one["picture"], one["first"])}:
                if str(place) not in seen:
                    seen[str(place)] = thumbnail(records[kept[place]].image)
        measured.differences[label] = _differences(drawn)
    return measured


def _labels(sets: Sequence[Records]) -> list[tuple[str, Records]]:
    """Each set with its kind as its name, `folder`, `folder-2` where there are several of a kind."""
    kinds = [records.name for records in sets]
    numbers = [kinds[: place + 1].count(kind) for place, kind in enumerate(kinds)]
    names = [kind if number == 1 else f"{kind}-{number}" for kind, number in zip(kinds, numbers, strict=True)]
    return list(zip(names, sets, strict=True))


def _measure_probes(
    embedder: Embedder, images: np.ndarray, pool: CaptionPool, plan: Plan, *, name: str, progress: Callable
) -> tuple[dict[tuple[str, str], np.ndarray], dict[str, Any]]:
    """Scores of every probe; one whose pads leave a caption no room in the window is left out."""
    drawn: dict[tuple[str, str], np.ndarray] = {}
    probes: dict[str, Any] = {}
    examples: list[dict[str, Any]] = []
    chosen = useful_probes(plan.by_set.get(pool.name, plan.probes), pool.captions)
    told = progress(f"{pool.name}: captions by {name}", len(chosen) * len(pool.captions))
    for probe in chosen:
        change, pads = probe_of(probe, seed=plan.seed), pads_of(probe)
        texts = [change(text) for text in pool.captions]
        tokens = _token_counts(embedder, texts, pads=pads)
        if pads and tokens["cut"]:
            told(len(texts))
            continue
        features = embedder.texts(texts, pads=pads, progress=told)
        ranks = retrieval_ranks(images, features, pool.image_of_caption)
        changed = len(texts) if pads else sum(a != b for a, b in zip(texts, pool.captions, strict=True))
        probes[probe] = _scores(ranks, pool, plan, probe, drawn) | {"tokens": tokens, "changed": changed}
        if pool.family > 1:
            share = family_share(images, features, pool.image_of_caption, size=pool.family)
            probes[probe]["twin_percent"] = share
        if probe == "keep":
            examples = worst_captions(images, features, ranks.t2i, pool, count=plan.examples)
    return drawn, {"probes": probes, "examples": examples}


def _scores(
    ranks: RetrievalRanks, pool: CaptionPool, plan: Plan, probe: str, drawn: dict[tuple[str, str], np.ndarray]
) -> dict[str, Any]:
    groups = {"t2i": pool.image_of_caption, "i2t": np.unique(pool.image_of_caption)}
    scores = {}
    for way in WAYS:
        found = getattr(ranks, way)
        drawn[probe, way] = draw_scores(found, groups[way], samples=plan.samples)
        scores[way] = scores_of(found) | {"intervals": intervals_of(drawn[probe, way])}
    return scores


def _token_counts(embedder: Embedder, texts: list[str], *, pads: int) -> dict[str, float]:
    """Tokens of the captions, start, end and pads in front counted, and how many are cut to the window."""
    _, lengths = embedder.towers.ids_of(texts, pads=pads)
    counts = np.array(lengths)
    cut = int((counts > embedder.towers.window).sum())
    return {"mean": float(counts.mean()), "longest": int(counts.max()), "cut": cut}


def _cut_notes(encoder: str, name: str, result: dict[str, Any]) -> list[str]:
    cut = result["probes"]["keep"]["tokens"]["cut"]
    if not cut:
        return []
    return [f"{name}: {count_of(cut, 'caption')} longer than the window of {encoder}: cut, the end token kept."]


def _differences(drawn: dict[str, dict[tuple[str, str], np.ndarray]]) -> dict[str, Any]:
    """For each pair of encoders the interval of the first minus the second, by direction and probe that both have."""
    found: dict[str, Any] = {}
    for one, other in combinations(drawn, 2):
        by_probe: dict[str, Any] = {}
        for probe, way in (key for key in drawn[one] if key in drawn[other]):
            intervals = intervals_of(drawn[one][probe, way] - drawn[other][probe, way])
            by_probe.setdefault(probe, {})[way] = {"intervals": {score: intervals[score] for score in SCORES}}
        found[f"{one} - {other}"] = by_probe
    return found


def worst_captions(
    images: Float[np.ndarray, "images dim"],
    captions: Float[np.ndarray, "captions dim"],
    ranks: Int[np.ndarray, " captions"],
    pool: CaptionPool,
    *,
    count: int,
) -> list[dict[str, Any]]:
    """The `count` captions whose own picture has the worst ranks, none that has the first; the worst one first."""
    found = []
    for caption in np.argsort(-ranks, kind="stable")[:count]:
        if ranks[caption] == 1:
            break
        own = int(pool.image_of_caption[caption])
        scores = images @ captions[caption]
        scores[own] = -np.inf
        text = pool.captions[caption]
        found.append({
            "caption": text if len(text) <= LONGEST else text[: LONGEST - 1] + "…",
            "rank": int(ranks[caption]),
            "picture": own,
            "first": int(scores.argmax()),
        })  # fmt: skip
    return found
