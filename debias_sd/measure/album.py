"""Pictures on disk, one PNG each, written whole; what they were drawn with is inside, so that a run can go on.

`DIR/<encoder>/<number of the prompt>-s<seed>.png`. A picture counts as there when it decodes and was drawn with the
same weights, prompt, noise, settings, device and versions; any other is drawn again.

All pictures of one variant, batch by batch; those that are there already are not drawn again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import re
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from debias_sd.drawing import Variant, draw
from debias_sd.pipelines.load import DiffusionPipeline
from debias_sd.report import hash_texts, installed_versions, write_atomically

_KEY = "debias_sd_key"


@dataclasses.dataclass(frozen=True)
class Shot:
    """Where one picture lies, and the hash of all that decides its pixels."""

    path: Path
    key: str
    prompt: str

    def read(self) -> Image.Image | None:
        """The picture in RGB, or None where it is missing, damaged or was drawn with something else."""
        try:
            with Image.open(self.path) as opened:
                opened.load()
                return opened.convert("RGB") if opened.info.get(_KEY) == self.key else None
        except (OSError, SyntaxError, ValueError):  # Pillow's for files that are none
            return None

    def write(self, pixels: np.ndarray) -> None:
        """Keep a picture, uint8 [height, width, 3]; ValueError where the folder cannot be written to."""
        chunks, content = PngInfo(), io.BytesIO()
        chunks.add_text(_KEY, self.key)
        chunks.add_itxt("prompt", self.prompt.replace("\0", ""))
        Image.fromarray(pixels).save(content, "PNG", pnginfo=chunks)
        write_atomically(self.path, content.getvalue())


@dataclasses.dataclass(frozen=True)
class PictureStore:
    """A folder of pictures; `common` is what all of them have in common, as JSON takes it."""

    folder: Path
    common: dict[str, Any]

    def shot(self, variant: str, number: int, prompt: str, seed: int, **settings: Any) -> Shot:
        """The place of the picture of prompt `number` in `variant`; `settings` are its own."""
        about = self.common | settings | {"number": number, "prompt": prompt, "seed": seed}
        key = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()
        return Shot(self.folder / folder_name(variant) / f"{number:05d}-s{seed}.png", key, prompt)


def folder_name(variant: str) -> str:
    """The folder of a variant's pictures.

    >>> folder_name("my/encoder s0")
    'my_encoder_s0'
    """
    return re.sub(r"[^\w.-]", "_", variant).lstrip(".") or "_"


def common_settings(*, steps: int, guidance: float, batch: int) -> dict[str, Any]:
    """What decides pixels beside pipeline, prompt and seed: settings and versions."""
    return {"steps": steps, "guidance": guidance, "batch": batch, "versions": installed_versions()}


def hash_pipeline(pipe: DiffusionPipeline, known: MutableMapping[torch.nn.Module, str] | None = None) -> str:
    """SHA-256 of a pipeline's class, weights, dtypes, device type, tokenizer windows and scheduler.

    `known` keeps the hashes of modules, for pipelines that share them.
    """
    known = {} if known is None else known
    digest = hashlib.sha256(f"{type(pipe).__name__} {pipe.device.type}\n".encode())
    for name, part in sorted(pipe.components.items()):
        if isinstance(part, torch.nn.Module):
            if part not in known:
                known[part] = _hash_module(part)
            digest.update(f"{name} {known[part]}\n".encode())
        elif hasattr(part, "model_max_length"):
            digest.update(f"{name} {part.model_max_length} {part.pad_token_id}\n".encode())
        elif name == "scheduler":
            settings = json.dumps(dict(part.config), sort_keys=True, default=str)
            digest.update(f"{type(part).__name__} {settings}\n".encode())
    return digest.hexdigest()


def _hash_module(module: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


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
