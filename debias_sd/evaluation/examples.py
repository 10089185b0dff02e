"""Captions that an encoder fails on, with small pictures: what it should have found, and what it put first."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from debias_sd.datasets.pictures import PictureFault, read_rgb
from debias_sd.datasets.records import Picture
from debias_sd.evaluation.pool import CaptionPool

SIDE = 112  # of a small picture, the longer one: about 4 kB
LONGEST = 1500  # characters of a caption


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


def thumbnail(picture: Picture) -> str | None:
    """A small JPEG in base64; None for a picture that cannot be read any more."""
    try:
        small = read_rgb(picture)
    except PictureFault:
        return None
    small.thumbnail((SIDE, SIDE))
    content = io.BytesIO()
    small.save(content, "JPEG", quality=80)
    return base64.b64encode(content.getvalue()).decode("ascii")
