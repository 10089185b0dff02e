"""Draw a scene: 48 x 48 pixels from tiles that are drawn once, at 8 times the size, and reduced.

No torch: a scene takes about 30 microseconds, so that training data is made as it is needed and never stored.

To say from pixels alone what is in a cell, and whether the thing that a sentence names was drawn, each cell is compared
with every tile that the world can draw (6 colours x 6 shapes x 2 sizes x 4 backgrounds, and the four empty ones) and
read as the nearest by mean squared difference. A picture that a model made is judged by the same rule as a rendered
one; the checker never sees the prompt when it reads. Its error rate is measured by `measure.judges.checker`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from debias_sd.shapes.scene import BACKGROUNDS, COLOURS, SHAPES, SIZES, Scene, Thing

CELL = 16
SIDE = 3 * CELL
_SUPERSAMPLE = 8
_RADIUS = {"small": 4.5, "large": 7.5}  # pixels


def _polygon(shape: str, radius: float, centre: float) -> list[tuple[float, float]]:
    angles = {"triangle": (3, (1.0,)), "star": (10, (1.0, 0.42))}
    corners, radii = angles[shape]
    turn = -np.pi / 2 + 2 * np.pi * np.arange(corners) / corners
    reach = radius * np.resize(radii, corners)
    return [(centre + r * np.cos(t), centre + r * np.sin(t)) for r, t in zip(reach, turn, strict=True)]


@functools.cache
def mask(shape: str, size: str) -> np.ndarray:
    """Coverage of one cell by a shape: float32 [16, 16] in 0..1."""
    side = CELL * _SUPERSAMPLE
    centre, radius = side / 2, _RADIUS[size] * _SUPERSAMPLE
    canvas = Image.new("L", (side, side), 0)
    pen = ImageDraw.Draw(canvas)
    box = (centre - radius, centre - radius, centre + radius, centre + radius)
    if shape == "circle":
        pen.ellipse(box, fill=255)
    elif shape == "square":
        shrink = radius * 0.12
        pen.rectangle((box[0] + shrink, box[1] + shrink, box[2] - shrink, box[3] - shrink), fill=255)
    elif shape == "ring":
        inner = radius * 0.52
        pen.ellipse(box, fill=255)
        pen.ellipse((centre - inner, centre - inner, centre + inner, centre + inner), fill=0)
    elif shape == "cross":
        arm = radius * 0.3
        pen.rectangle((box[0], centre - arm, box[2], centre + arm), fill=255)
        pen.rectangle((centre - arm, box[1], centre + arm, box[3]), fill=255)
    else:
        pen.polygon(_polygon(shape, radius, centre), fill=255)
    small = canvas.resize((CELL, CELL), Image.Resampling.BOX)
    return np.asarray(small, dtype=np.float32) / 255


@functools.cache
def tile(background: str, colour: str, shape: str, size: str) -> np.ndarray:
    """One finished cell: uint8 [16, 16, 3]."""
    cover = mask(shape, size)[..., None]
    paint = np.array(COLOURS[colour], dtype=np.float32)
    ground = np.array(BACKGROUNDS[background], dtype=np.float32)
    return np.rint(ground * (1 - cover) + paint * cover).astype(np.uint8)


def cell_box(cell: int) -> tuple[slice, slice]:
    """The rows and columns of pixels that cell 0..8 covers."""
    row, column = divmod(cell, 3)
    return slice(row * CELL, (row + 1) * CELL), slice(column * CELL, (column + 1) * CELL)


def render(scene: Scene) -> np.ndarray:
    """Draw `scene`: uint8 [48, 48, 3], RGB."""
    picture = np.empty((SIDE, SIDE, 3), dtype=np.uint8)
    picture[:] = BACKGROUNDS[scene.background]
    for thing in scene.things:
        picture[cell_box(thing.cell)] = tile(scene.background, thing.colour, thing.shape, thing.size)
    return picture


def all_looks() -> list[tuple[str, str, str]]:
    """Every (colour, shape, size) that a thing can have."""
    return [(colour, shape, size) for colour in COLOURS for shape in SHAPES for size in SIZES]


UNSURE = 2500.0  # mean squared difference per channel (0..65025) above which a cell looks like no tile at all


@dataclasses.dataclass(frozen=True)
class CellReading:
    """What one cell looks like: a thing (None when empty), the background, and the distance to that tile."""

    thing: Thing | None
    background: str
    distance: float


@dataclasses.dataclass(frozen=True)
class Finding:
    """Whether `thing` was drawn, and what was found in its cell instead; `unsure` when the cell is not a clear tile."""

    thing: Thing
    drawn: bool
    unsure: bool
    found: CellReading


@functools.cache
def templates() -> tuple[np.ndarray, list[tuple[str, tuple[str, str, str] | None]]]:
    """Every tile of the world, float32 [tiles, 768], with its background and its colour, shape, size (None: empty)."""
    tiles: list[np.ndarray] = []
    names: list[tuple[str, tuple[str, str, str] | None]] = []
    for background, rgb in BACKGROUNDS.items():
        empty = np.empty((CELL, CELL, 3), np.float32)
        empty[:] = rgb
        tiles.append(empty)
        names.append((background, None))
        for look in all_looks():
            tiles.append(tile(background, *look).astype(np.float32))
            names.append((background, look))
    return np.stack(tiles).reshape(len(tiles), -1), names


def _as_pixels(image: np.ndarray) -> np.ndarray:
    """Bring an RGB picture of 48k x 48k pixels to float32 [48, 48, 3] by averaging k x k blocks."""
    image = np.asarray(image)
    if image.ndim != 3 or image.shape[2] != 3 or image.shape[0] != image.shape[1] or image.shape[0] % SIDE:
        raise ValueError(
            f"the checker reads square RGB pictures whose side is a multiple of {SIDE}, found shape {image.shape}; "
            f"generate at {SIDE} x {SIDE} pixels."
        )
    factor = image.shape[0] // SIDE
    return image.astype(np.float32).reshape(SIDE, factor, SIDE, factor, 3).mean(axis=(1, 3))


def read_picture(image: np.ndarray) -> list[CellReading]:
    """Read all nine cells of an RGB picture (uint8 [48k, 48k, 3]) in reading order."""
    pixels = _as_pixels(image)
    tiles, names = templates()
    cells = np.stack([pixels[cell_box(cell)].reshape(-1) for cell in range(9)])
    distance = ((cells**2).sum(1)[:, None] - 2 * cells @ tiles.T + (tiles**2).sum(1)[None]) / cells.shape[1]
    readings = []
    for cell, nearest in enumerate(distance.argmin(1)):
        background, look = names[nearest]
        thing = None if look is None else Thing(cell, *look)
        readings.append(CellReading(thing, background, float(max(distance[cell, nearest], 0.0))))
    return readings


def judge(image: np.ndarray, things: Sequence[Thing]) -> list[Finding]:
    """For each thing: was it drawn, in its cell, with its colour, shape and size?"""
    return look_for(read_picture(image), things)


def look_for(cells: Sequence[CellReading], things: Sequence[Thing]) -> list[Finding]:
    """The same from a picture that was read."""
    return [
        Finding(thing, cells[thing.cell].thing == thing, cells[thing.cell].distance > UNSURE, cells[thing.cell])
        for thing in things
    ]
