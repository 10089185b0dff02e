"""The embedded world as data: held-out sets of scenes with captions, which no training run has drawn.

`world-twins` are near-twins in families of four, which differ in one detail; its sentence is in each caption's second
half. `world-summary`, `world-arbitrary` and `world-details-1` to `world-details-4` are other scenes with short
captions, about the summary's content, arbitrary content and 1 to 4 details; `world` is all of them. Prompts to draw and
captions to read are long captions of independent scenes.

Training draws from other seed strings; each item here is a function of (`eval`, evaluation seed, set, index) alone, so
that every encoder is measured on the same items and another evaluation seed gives fresh ones.
"""

from __future__ import annotations

import dataclasses
import io
import random
from collections.abc import Iterable, Sequence

from PIL import Image

from debias_sd.datasets.records import Encoded, ListedRecords, Record
from debias_sd.probes import GROUPS
from debias_sd.shapes.caption import Caption, detail_sentence, long_caption, short_caption
from debias_sd.shapes.render import render
from debias_sd.shapes.scene import Scene, random_scene, twins

FAMILY = 4
DETAIL_COUNTS = (1, 2, 3, 4)
NAME = "world"
COUNT = 1000  # pictures of a set
PROMPTS = 200  # captions that are read, prompts that are drawn
TWINS = f"{NAME}-twins"
PADDED = (f"{NAME}-summary", f"{NAME}-arbitrary")


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


_SHORT = {f"{NAME}-{kind.replace('_', '-')}": kind for kind in short_kinds()}


# What each set is measured under where no probe is named.
PROBES = {TWINS: GROUPS["debias"]} | {
    name: ("keep", *GROUPS["pads"]) if name in PADDED else ("keep",) for name in _SHORT
}


def world_records(name: str = TWINS, *, seed: int, count: int = COUNT) -> ListedRecords:
    """One of the world's sets, its pictures as PNG; near-twins are whole families, at least one."""
    if name == TWINS:
        twins = twin_set(seed, families=max(1, count // FAMILY))
        texts: Iterable[str] = (caption.text for caption in twins.captions)
        return ListedRecords(name, _records(twins.scenes, texts), family=FAMILY)
    short = short_set(seed, count=count)
    return ListedRecords(name, _records(short.scenes, short.texts[_SHORT[name]]))


def world_prompts(*, seed: int, count: int = PROMPTS) -> list[str]:
    """Long captions of independent scenes."""
    return [caption.text for caption in prompt_set(seed, count=count).captions]


def picture_of(scene: Scene, name: str) -> Encoded:
    """A scene as the bytes of a PNG."""
    content = io.BytesIO()
    Image.fromarray(render(scene)).save(content, "PNG")
    return Encoded(content.getvalue(), name)


def _records(scenes: Sequence[Scene], texts: Iterable[str]) -> tuple[Record, ...]:
    names = (f"scene-{number}" for number in range(len(scenes)))
    described = zip(names, scenes, texts, strict=True)
    return tuple(Record(name, picture_of(scene, name), (text,)) for name, scene, text in described)
