"""Every judge on every encoder's pictures: scores, floors, paired differences, agreement between judges.

Judges are loaded one after another, when all pictures are drawn: no two models are in memory at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

from PIL import Image

from debias_sd.measure.album import Album, Shot
from debias_sd.measure.bootstrap import SAMPLES
from debias_sd.measure.judges import Judge, Verdict
from debias_sd.measure.places import Sentences
from debias_sd.measure.reports.page import thumbnail
from debias_sd.measure.shares import Table, agreement, difference, summarise, table_of

EXAMPLES = 6  # prompts whose pictures go into the report
Progress = Callable[[int], object]
StartBar = Callable[[str, int], Progress]


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
    encoders: dict[str, dict[str, Any]] = {variant: {} for variant in albums}
    about: dict[str, dict[str, Any]] = {}
    prompts = len(sentences.texts)
    with_floor = floor and prompts > 1
    for load in judges:
        judge = load()
        about[judge.name], tables[judge.name] = judge.describe(), {}
        for variant, album in albums.items():
            step = start_bar(f"{judge.name} on {variant}", prompts * (len(album.shots) + with_floor))
            table = judge_album(judge, album, sentences, progress=step)
            tables[judge.name][variant] = table
            scores = summarise(table, sentences, samples=samples)
            encoders[variant][judge.name] = scores | whole_picture(judge, album, sentences)
            if with_floor:
                first = dataclasses.replace(album, shots=album.shots[:1])
                wrong = summarise(judge_album(judge, first, sentences, shift=1, progress=step), sentences, samples=1)
                kept = ("late_detail", "late_score", "all", "score")
                encoders[variant][judge.name]["floor"] = {name: wrong[name] for name in kept}
        del judge  # before the next one is loaded
    return Judged(encoders, _differences(tables, sentences, samples), _agreements(tables), about)


def judge_album(
    judge: Judge, album: Album, sentences: Sentences, *, shift: int = 0, progress: Progress = lambda count: None
) -> Table:
    """Judge every picture against its prompt's sentences, or those of the prompt `shift` further on: the floor.

    A shifted table has its columns in the order of the prompts that are asked about. ValueError where a picture is
    gone.
    """
    rows, count = [], len(sentences.texts)
    for shots in album.shots:
        verdicts: list[Verdict] = []
        for asked in range(count):
            verdicts += judge.judge(_opened(shots[(asked - shift) % count]), sentences.texts[asked])
            progress(1)
        rows.append(verdicts)
    return table_of(rows)


def whole_picture(judge: Judge, album: Album, sentences: Sentences) -> dict[str, Any]:
    """What is true of the whole picture, by a judge that can tell: the checker.

    `background`: of the prompts that name one, the percent drawn on it. `unnamed`: places that no sentence names, and
    the percent of them in which something is.
    """
    if not hasattr(judge, "unnamed"):
        return {}
    cells = filled = named = right = 0
    for shots in album.shots:
        for shot, texts in zip(shots, sentences.texts, strict=True):
            image = _opened(shot)
            places, others = judge.unnamed(image, texts)
            ground = judge.background(image, texts)
            cells, filled = cells + places, filled + others
            named, right = named + (ground is not None), right + bool(ground)
    return {
        "background": {"prompts": named, "drawn_percent": 100 * right / named if named else None},
        "unnamed": {"cells": cells, "filled_percent": 100 * filled / cells if cells else None},
    }


def _opened(shot: Shot) -> Image.Image:
    image = shot.read()
    if image is None:
        raise ValueError(f"picture {shot.path} is gone or was changed while it was judged; run the command again.")
    return image


def example_pictures(albums: Mapping[str, Album], *, count: int = EXAMPLES) -> list[dict[str, Any]]:
    """The first prompts with each encoder's picture of the first seed, small, as JPEG in base64."""
    first = [album.shots[0][:count] for album in albums.values()]
    return [
        {
            "prompt": shots[0].prompt,
            "pictures": {variant: thumbnail(shot.path) for variant, shot in zip(albums, shots, strict=True)},
        }
        for shots in zip(*first, strict=True)
    ]


def _differences(tables: dict[str, dict[str, Table]], sentences: Sentences, samples: int) -> dict[str, dict[str, Any]]:
    return {
        judge: {
            f"{ours} - {theirs}": difference(by_variant[ours], by_variant[theirs], sentences, samples=samples)
            for ours, theirs in combinations(by_variant, 2)
        }
        for judge, by_variant in tables.items()
    }


def _agreements(tables: dict[str, dict[str, Table]]) -> dict[str, dict[str, Any]]:
    """Of every two judges the exact one, where it is among them, is the one that the other is held against."""
    pairs = combinations(sorted(tables, key=lambda judge: judge == "checker"), 2)
    return {
        f"{ours} against {theirs}": {
            variant: agreement(table, tables[theirs][variant]) for variant, table in tables[ours].items()
        }
        for ours, theirs in pairs
    }
