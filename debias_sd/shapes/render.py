"""Draw a scene: 48 x 48 pixels from tiles that are drawn once, at 8 times the size, and reduced.

No torch: a scene takes about 30 microseconds, so that training data is made as it is needed and never stored.
"""

from __future__ import annotations

import functools

import numpy as np
from PIL import Image, ImageDraw

from debias_sd.shapes.scene import BACKGROUNDS, COLOURS, SHAPES, SIZES, Scene

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
