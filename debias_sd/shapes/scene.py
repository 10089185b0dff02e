"""Scenes of the embedded world: coloured shapes on a 3 x 3 grid.

A scene is what a photograph is to a real text-to-image model: the thing that captions talk about. It is small enough
to be rendered by the thousand and to be read back from pixels without error (`render.py`). Its first two things are the
*main* ones, always large: a caption's summary sentence is about them, as real captions open with their subject.
"""

from __future__ import annotations

import dataclasses
import random

from debias_sd.text import count_of

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (220, 40, 40),
    "green": (40, 160, 60),
    "blue": (40, 80, 220),
    "yellow": (240, 215, 40),
    "purple": (140, 50, 180),
    "orange": (245, 130, 30),
}
BACKGROUNDS: dict[str, tuple[int, int, int]] = {
    "white": (245, 245, 245),
    "gray": (150, 150, 150),
    "black": (25, 25, 25),
    "beige": (225, 205, 170),
}
SHAPES: tuple[str, ...] = ("circle", "square", "triangle", "star", "cross", "ring")
SIZES: tuple[str, ...] = ("small", "large")
ROWS: tuple[str, ...] = ("top", "middle", "bottom")
COLUMNS: tuple[str, ...] = ("left", "center", "right")
CELLS: tuple[str, ...] = tuple(f"{row} {column}" for row in ROWS for column in COLUMNS)
LARGE_DETAILS = 0.3  # share of details that are large; the two main things always are


@dataclasses.dataclass(frozen=True)
class Thing:
    """One object: `cell` 0..8 in reading order, and its colour, shape and size by name."""

    cell: int
    colour: str
    shape: str
    size: str

    @property
    def name(self) -> str:
        """Plain words for reports, e.g. `small red star, top left`."""
        return f"{self.size} {self.colour} {self.shape}, {CELLS[self.cell]}"


@dataclasses.dataclass(frozen=True)
class Scene:
    """A background colour and up to nine things in different cells; the first two are the main things."""

    background: str
    things: tuple[Thing, ...]

    @property
    def main(self) -> tuple[Thing, ...]:
        return self.things[:2]

    @property
    def details(self) -> tuple[Thing, ...]:
        return self.things[2:]


def random_scene(rng: random.Random, count: int | None = None) -> Scene:
    """Draw a scene of `count` things (1 to 9; 7 to 9 when None, the length that long captions need)."""
    count = rng.randint(7, 9) if count is None else count
    if not 1 <= count <= len(CELLS):
        raise ValueError(
            f"a scene holds 1 to {count_of(len(CELLS), 'thing')}, found count={count}; choose a number in that range."
        )
    things = []
    for place, cell in enumerate(rng.sample(range(len(CELLS)), count)):
        large = place < 2 or rng.random() < LARGE_DETAILS
        things.append(
            Thing(cell, rng.choice(list(COLOURS)), rng.choice(SHAPES), "large" if large else "small"),
        )
    return Scene(rng.choice(list(BACKGROUNDS)), tuple(things))


def twins(scene: Scene, rng: random.Random, number: int) -> tuple[int, list[Scene]]:
    """Return the index of one detail and `number` scenes, `scene` first, that differ only in that detail.

    Near-twins are what keeps retrieval with full captions from saturating: only a reader of the one sentence about
    the changed detail can tell them apart. Colour, shape or both change; no two twins are equal.
    """
    if len(scene.things) < 3:
        raise ValueError(f"twins need a scene with a detail (3 things or more), found {len(scene.things)}.")
    index = rng.randrange(2, len(scene.things))
    old = scene.things[index]
    looks = [(c, s) for c in COLOURS for s in SHAPES if (c, s) != (old.colour, old.shape)]
    family = [scene]
    for colour, shape in rng.sample(looks, number - 1):
        changed = dataclasses.replace(old, colour=colour, shape=shape)
        family.append(Scene(scene.background, (*scene.things[:index], changed, *scene.things[index + 1 :])))
    return index, family
