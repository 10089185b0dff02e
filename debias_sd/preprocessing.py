"""From a picture to what an image tower reads: size, cut, mean and deviation, as preprocessor_config.json says them.

A folder without that file gets CLIP's own mean and deviation, and one of the embedded world (it has known_words.json)
0.5 and 0.5, which its training used. Every report says which of the three it was.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from debias_sd.datasets.pictures import square
from debias_sd.encoder_folder import read_json

FILE = "preprocessor_config.json"
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
HALF = (0.5, 0.5, 0.5)


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """`shortest`: the shorter side is scaled to it and a centre square of `size` cut out; None: scaled to a square."""

    size: int
    shortest: int | None
    resample: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    source: str

    def square(self, picture: Image.Image) -> UInt8[np.ndarray, "size size 3"]:
        """Return an RGB picture as the tower's square of whole numbers."""
        if self.shortest is None:
            return np.asarray(picture.resize((self.size, self.size), Image.Resampling(self.resample)))
        pixels = square(picture, size=self.shortest)
        margin = round((self.shortest - self.size) / 2.0)
        return pixels[margin : margin + self.size, margin : margin + self.size]

    def normalise(self, squares: list[np.ndarray]) -> Float[Tensor, "batch 3 size size"]:
        """Return squares as the tower reads them, float32."""
        mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (self.mean, self.std))
        # Laid out as bytes and computed in place: twice as fast as a chain of new float tensors.
        pixels = torch.from_numpy(np.stack(squares)).permute(0, 3, 1, 2).contiguous()
        return pixels.float().div_(255).sub_(mean).div_(std)

    def as_config(self) -> dict[str, Any]:
        """The same as preprocessor_config.json says it, for transformers' image processors."""
        square = {"height": self.size, "width": self.size}
        kind = "SiglipImageProcessor" if self.shortest is None else "CLIPImageProcessor"
        cut = {} if self.shortest is None else {"do_center_crop": True, "crop_size": square}
        return {
            "image_processor_type": kind,
            "do_convert_rgb": True,
            "do_resize": True,
            "size": square if self.shortest is None else {"shortest_edge": self.shortest},
            "resample": self.resample,
            **cut,
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
        }


def clip_preprocessing(size: int) -> Preprocessing:
    """CLIP's own: shorter side to `size`, centre square, its mean and deviation."""
    return Preprocessing(size, size, int(Image.Resampling.BICUBIC), CLIP_MEAN, CLIP_STD, "CLIP's own")


def read_preprocessing(folder: Path, *, size: int) -> Preprocessing:
    """Return what the folder says for an image tower of `size` pixels; ValueError where the two do not fit."""
    path = folder / FILE
    if not path.is_file():
        own_world = (folder / "known_words.json").is_file()
        mean, std = (HALF, HALF) if own_world else (CLIP_MEAN, CLIP_STD)
        source = "the embedded world's" if own_world else "CLIP's own"
        return Preprocessing(size, size, int(Image.Resampling.BICUBIC), mean, std, f"{source} (no {FILE})")
    config = read_json(path)
    try:
        found = _from_config(config)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ValueError(
            f"{path} does not say size, image_mean and image_std as image processors of transformers do; copy it from "
            "the model that the encoder was made of, or delete it for CLIP's own."
        ) from None
    if found.size != size:
        raise ValueError(
            f"{path} makes pictures of {found.size} x {found.size} but the image tower reads {size} x {size}; copy "
            "both from one model."
        )
    return found


def _from_config(config: dict[str, Any]) -> Preprocessing:
    size = config["size"]
    size = {"shortest_edge": size} if isinstance(size, int) else size
    shortest = size.get("shortest_edge")
    if shortest is None and size["height"] != size["width"]:
        raise ValueError("an image tower reads squares")
    crop = config.get("crop_size", shortest) if config.get("do_center_crop", shortest is not None) else None
    crop = crop["height"] if isinstance(crop, dict) else crop
    if shortest is not None and not 0 < int(crop) <= int(shortest):
        raise ValueError("a square cannot be cut out of a smaller picture")
    resample = int(config.get("resample", Image.Resampling.BICUBIC))
    if shortest is not None and resample != Image.Resampling.BICUBIC:
        raise ValueError("no CLIP scales in another way")
    mean, std = (tuple(map(float, config[key])) for key in ("image_mean", "image_std"))
    if not len(mean) == len(std) == 3 or min(std) <= 0:
        raise ValueError("three channels")
    whole = int(size["height"]) if shortest is None else int(crop)
    return Preprocessing(whole, None if shortest is None else int(shortest), resample, mean, std, FILE)
