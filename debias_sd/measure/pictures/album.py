"""All pictures of one variant, batch by batch; those that are there already are not drawn again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from debias_sd.drawing import Variant, draw
from debias_sd.measure.pictures.store import PictureStore, Shot
from debias_sd.report import hash_texts

Progress = Callable[[int], object]
SEED_STEP = 1_000_000  # prompts of one seed have noise of their own, the same for every encoder
LARGEST_SEED = 10**12


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How pictures are drawn; batches are always the same prompts, for a row's last bits depend on its company."""

    steps: int
    guidance: float
    batch: int = 1


@dataclasses.dataclass
class Album:
    """The pictures of one variant, by seed and prompt; how many were there, how many drawn, how many are all black."""

    variant: str
    shots: list[list[Shot]]
    drawn: int = 0
    found: int = 0
    black: int = 0


def draw_album(
    variant: Variant,
    prompts: Sequence[str],
    seeds: Sequence[int],
    *,
    store: PictureStore,
    pipeline_sha256: str,
    sampling: Sampling,
    progress: Progress = lambda count: None,
) -> Album:
    """Draw every prompt with every seed; ValueError where a picture is NaN or cannot be kept."""
    about = {"pipeline": pipeline_sha256, "reading": variant.reading and dict(variant.reading)}
    company = [
        hash_texts(list(prompts[number - number % sampling.batch :][: sampling.batch]))
        for number in range(len(prompts))
    ]
    shots = [
        [
            store.shot(variant.name, number, prompt, seed, **about, company=company[number])
            for number, prompt in enumerate(prompts)
        ]
        for seed in seeds
    ]
    album = Album(variant.name, shots)
    for seed, row in zip(seeds, shots, strict=True):
        for start in range(0, len(row), sampling.batch):
            batch = row[start : start + sampling.batch]
            pictures = [shot.read() for shot in batch]
            if all(picture is not None for picture in pictures):
                album.found += len(batch)
            else:
                noise = [SEED_STEP * seed + start + place for place in range(len(batch))]
                texts = [shot.prompt for shot in batch]
                pictures = draw(variant, texts, noise, steps=sampling.steps, guidance=sampling.guidance)
                for shot, pixels in zip(batch, pictures, strict=True):
                    shot.write(pixels)
                album.drawn += len(batch)
            album.black += sum(not _has_light(picture) for picture in pictures)
            progress(len(batch))
    return album


def _has_light(picture: object) -> bool:
    """Whether any pixel is not black: safety checkers hide pictures behind black ones."""
    return bool(np.asarray(picture).any())
