"""Held-out sets of the embedded world: scenes and captions that no training run has drawn.

Training draws from other seed strings; each item here is a function of (`eval`, evaluation seed, set, index) alone, so
that every encoder is measured on the same items and another evaluation seed gives fresh ones.

* twins: 250 families of 4 near-twins, which differ in one detail; its sentence is in each caption's second half.
* short: independent scenes with short captions, about the summary's content and about arbitrary content.
* prompts: long captions of independent scenes, to generate pictures from.
"""

from __future__ import annotations

import dataclasses
import random

from debias_sd.shapes.caption import Caption, detail_sentence, long_caption, short_caption
from debias_sd.shapes.scene import Scene, random_scene, twins

FAMILY = 4
DETAIL_COUNTS = (1, 2, 3, 4)


@dataclasses.dataclass(frozen=True)
class TwinSet:
    """Scenes and their long captions, `FAMILY` twins in a row; `changed[i]`: the index of scene i's own detail."""

    scenes: tuple[Scene, ...]
    captions: tuple[Caption, ...]
    changed: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class ShortSet:
    """Scenes and, for each kind of short caption, one text per scene."""

    scenes: tuple[Scene, ...]
    texts: dict[str, list[str]]


@dataclasses.dataclass(frozen=True)
class PromptSet:
    """Scenes and their long captions."""

    scenes: tuple[Scene, ...]
    captions: tuple[Caption, ...]


def _rng(seed: int, *path: str | int) -> random.Random:
    return random.Random("/".join(map(str, ("eval", seed, *path))))


def twin_set(seed: int, *, families: int = 250) -> TwinSet:
    """Draw `families` times `FAMILY` near-twins with captions that name the changed detail in their second half."""
    scenes, captions, changed = [], [], []
    for family in range(families):
        rng = _rng(seed, "twins", family)
        index, members = twins(random_scene(rng), rng, FAMILY)
        for member, scene in enumerate(members):
            scenes.append(scene)
            captions.append(long_caption(scene, _rng(seed, "twins", family, member), late=index))
            changed.append(index)
    return TwinSet(tuple(scenes), tuple(captions), tuple(changed))


def short_set(seed: int, *, count: int = 1000) -> ShortSet:
    """Draw `count` scenes with short captions.

    `summary`: the two main things; `arbitrary`: two random details; both in a template that no encoder was trained
    on. `details_k`: k sentences about k random details, in the wording of long captions.
    """
    scenes: list[Scene] = []
    texts: dict[str, list[str]] = {kind: [] for kind in short_kinds()}
    for index in range(count):
        rng = _rng(seed, "short", index)
        scene = random_scene(rng)
        scenes.append(scene)
        texts["summary"].append(short_caption(scene.main, scene, rng).text)
        texts["arbitrary"].append(short_caption(tuple(rng.sample(scene.details, 2)), scene, rng).text)
        for number in DETAIL_COUNTS:
            things = rng.sample(scene.details, number)
            texts[f"details_{number}"].append(" ".join(detail_sentence(thing, scene, rng) for thing in things))
    return ShortSet(tuple(scenes), texts)


def short_kinds() -> list[str]:
    """The kinds of short captions that `short_set` draws."""
    return ["summary", "arbitrary", *(f"details_{number}" for number in DETAIL_COUNTS)]


def prompt_set(seed: int, *, count: int) -> PromptSet:
    """Draw `count` scenes with a long caption each."""
    scenes, captions = [], []
    for index in range(count):
        rng = _rng(seed, "prompts", index)
        scenes.append(random_scene(rng))
        captions.append(long_caption(scenes[-1], rng))
    return PromptSet(tuple(scenes), tuple(captions))
