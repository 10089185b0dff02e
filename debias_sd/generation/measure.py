"""Every judge on every encoder's pictures: scores, floors, paired differences, agreement between judges.

Judges are loaded one after another, when all pictures are drawn: no two models are in memory at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

from debias_sd.evaluation.bootstrap import SAMPLES
from debias_sd.evaluation.examples import thumbnail
from debias_sd.generation.drawing import Album
from debias_sd.generation.sentences import Sentences, Table, judge_album
from debias_sd.generation.shares import agreement, difference, summarise
from debias_sd.judges.verdict import Judge

EXAMPLES = 6  # prompts whose pictures go into the report
StartBar = Callable[[str, int], Callable[[int], object]]


@dataclasses.dataclass(frozen=True)
class Judged:
    """`encoders`: scores by encoder and judge; `differences`: by judge and pair of encoders; `agreement`: by pair of
    judges and encoder; `judges`: what identifies each.
    """

    encoders: dict[str, dict[str, Any]]
    differences: dict[str, dict[str, Any]]
    agreement: dict[str, dict[str, Any]]
    judges: dict[str, dict[str, Any]]


def judge_albums(
    albums: Mapping[str, Album],
    sentences: Sentences,
    judges: Sequence[Callable[[], Judge]],
    *,
    samples: int = SAMPLES,
    floor: bool = True,
    start_bar: StartBar = lambda what, total: lambda count: None,
) -> Judged:
    """Judge all pictures. `judges` load when called. `floor`: the first seed also against the next prompt's sentences.

    ValueError with one sentence where a judge cannot read the pictures or gives no finite number.
    """
    tables: dict[str, dict[str, Table]] = {}
    encoders: dict[str, dict[str, Any]] = {way: {} for way in albums}
    about: dict[str, dict[str, Any]] = {}
    prompts = len(sentences.texts)
    with_floor = floor and prompts > 1
    for load in judges:
        judge = load()
        about[judge.name], tables[judge.name] = judge.describe(), {}
        for way, album in albums.items():
            step = start_bar(f"{judge.name} on {way}", prompts * (len(album.shots) + with_floor))
            table = judge_album(judge, album, sentences, progress=step)
            tables[judge.name][way] = table
            encoders[way][judge.name] = summarise(table, sentences, samples=samples)
            if with_floor:
                first = dataclasses.replace(album, shots=album.shots[:1])
                wrong = summarise(judge_album(judge, first, sentences, shift=1, progress=step), sentences, samples=1)
                kept = ("late_detail", "late_score", "all", "score")
                encoders[way][judge.name]["floor"] = {name: wrong[name] for name in kept}
        del judge  # before the next one is loaded
    return Judged(encoders, _differences(tables, sentences, samples), _agreements(tables), about)


def example_pictures(albums: Mapping[str, Album], *, count: int = EXAMPLES) -> list[dict[str, Any]]:
    """The first prompts with each encoder's picture of the first seed, small, as JPEG in base64."""
    first = [album.shots[0][:count] for album in albums.values()]
    return [
        {
            "prompt": shots[0].prompt,
            "pictures": {way: thumbnail(shot.path) for way, shot in zip(albums, shots, strict=True)},
        }
        for shots in zip(*first, strict=True)
    ]


def _differences(tables: dict[str, dict[str, Table]], sentences: Sentences, samples: int) -> dict[str, dict[str, Any]]:
    return {
        judge: {
            f"{ours} - {theirs}": difference(by_way[ours], by_way[theirs], sentences, samples=samples)
            for ours, theirs in combinations(by_way, 2)
        }
        for judge, by_way in tables.items()
    }


def _agreements(tables: dict[str, dict[str, Table]]) -> dict[str, dict[str, Any]]:
    """Of every two judges the exact one, where it is among them, is the one that the other is held against."""
    pairs = combinations(sorted(tables, key=lambda judge: judge == "checker"), 2)
    return {
        f"{ours} against {theirs}": {way: agreement(tables[ours][way], tables[theirs][way]) for way in tables[ours]}
        for ours, theirs in pairs
    }
