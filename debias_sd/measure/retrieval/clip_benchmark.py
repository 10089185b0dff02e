"""Our folders as clip_benchmark wants a model: `load_folder` returns (model, transform, tokenizer).

`scripts/run_clip_benchmark.py` puts it into clip_benchmark's table of loaders and runs its command line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor, nn

from debias_sd.measure.features.towers import Towers, load_towers


class BenchmarkModel(nn.Module):
    """Both towers under the names that clip_benchmark calls; features are not normalised, on the model's device."""

    def __init__(self, towers: Towers) -> None:
        super().__init__()
        self.towers = towers

    def encode_image(self, pixels: Float[Tensor, "batch 3 size size"]) -> Float[Tensor, "batch dim"]:
        return self.towers.image_features(pixels).to(self.towers.device)

    def encode_text(self, ids: Int[Tensor, "batch length"]) -> Float[Tensor, "batch dim"]:
        return self.towers.text_features(ids.cpu()).to(self.towers.device)


def load_folder(
    model_name: str, pretrained: str = "", cache_dir: str | None = None, device: str = "cpu"
) -> tuple[BenchmarkModel, Callable[[Image.Image], Tensor], Callable[[Sequence[str]], Tensor]]:
    """Load the encoder folder `model_name`; `pretrained` and `cache_dir` are the other loaders' and not used."""
    towers = load_towers(model_name, device=str(device))

    def transform(picture: Image.Image) -> Tensor:
        return towers.preprocessing.normalise([towers.preprocessing.square(picture.convert("RGB"))])[0]

    def tokenizer(texts: str | Sequence[str]) -> Int[Tensor, "batch length"]:
        rows, _ = towers.ids_of([texts] if isinstance(texts, str) else list(texts))
        length = max(map(len, rows), default=0)
        return torch.tensor([row + [0] * (length - len(row)) for row in rows], dtype=torch.long)

    return BenchmarkModel(towers), transform, tokenizer
