"""The held-out pairs that retrieval is measured on while a run trains: users' own, or the shapes world's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from debias_sd.datasets.names import open_records
from debias_sd.datasets.pictures import PictureFault, read_rgb
from debias_sd.datasets.world import short_set, twin_set
from debias_sd.preprocessing import Preprocessing
from debias_sd.probes import PROBES
from debias_sd.sentences import first_only
from debias_sd.shapes.render import render

if TYPE_CHECKING:
    from train_encoder.settings import TrainConfig

PROBED = ("keep", "move", "remove")
FAMILIES, SHORT = 50, 200  # of the shapes world


@dataclass(frozen=True)
class HeldOut:
    """Pictures, uint8 [size, size, 3] each, with the texts of every probe; `short` has pictures of its own."""

    pictures: list[np.ndarray]
    texts: dict[str, list[str]]
    short_pictures: list[np.ndarray]
    short_texts: list[str]


def read_heldout(config: TrainConfig, preprocessing: Preprocessing) -> HeldOut:
    """The pairs of `eval_data`, at most `eval_limit`; without it, those of the shapes world that no run trains on.

    A pair whose picture cannot be read is left out. Raises ValueError when none is left.
    """
    if config.eval_data is None:
        twins, shorts = twin_set(0, families=FAMILIES), short_set(0, count=SHORT)
        captions = [caption.text for caption in twins.captions]
        pictures, short_pictures = ([render(scene) for scene in one.scenes] for one in (twins, shorts))
        short_texts = shorts.texts["summary"]
    else:
        pictures, captions, short_texts = _read_pairs(config, preprocessing)
        short_pictures = pictures
    texts = {name: [PROBES[name](caption) for caption in captions] for name in PROBED}
    return HeldOut(pictures, texts, short_pictures, short_texts)


def _read_pairs(config: TrainConfig, preprocessing: Preprocessing) -> tuple[list[np.ndarray], list[str], list[str]]:
    """Pictures, captions and short captions: a record's own or, without, its first sentence."""
    try:
        records = open_records(config.eval_data)
    except ValueError as error:
        raise ValueError(f"eval_data {config.eval_data} cannot be read: {error}") from None
    pictures, captions, shorts = [], [], []
    for index in range(min(len(records), config.eval_limit)):
        record = records[index]
        text = next((" ".join(caption.split()) for caption in record.captions if caption.strip()), "")
        try:
            picture = preprocessing.square(read_rgb(record.image))
        except PictureFault:
            continue
        if text:
            pictures.append(picture)
            captions.append(text)
            shorts.append(record.short or first_only(text))
    if len(pictures) < 2:
        found = f"eval_data {config.eval_data} has {len(pictures)} usable pairs"
        raise ValueError(f"{found}, but at least 2 are needed; check its paths, or leave eval_steps at 0.")
    return pictures, captions, shorts
