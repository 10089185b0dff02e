"""clip_benchmark on an encoder folder: `python scripts/run_clip_benchmark.py eval --model FOLDER ...`.

    pip install clip-benchmark
    python scripts/run_clip_benchmark.py eval --model_type debias_sd --model runs/debias --pretrained "" \\
        --dataset mscoco_captions --dataset_root data/coco --task zeroshot_retrieval --output coco.json

All arguments are clip_benchmark's own; the folder is its `--model`. Its retrieval counts ties for the model, ours
(`debias-sd evaluate retrieval`) against it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor


def load_folder(
    model_name: str, pretrained: str = "", cache_dir: str | None = None, device: str = "cpu"
) -> tuple[Any, Callable[[Image.Image], Tensor], Callable[[Sequence[str]], Tensor]]:
    """Load the encoder folder `model_name` as clip_benchmark wants a model: (model, transform, tokenizer).

    Features are not normalised and lie on `device`. `pretrained` and `cache_dir` are the other loaders' and not used.
    """
    import torch

    from debias_sd.measure.towers import load_towers  # takes seconds: what is missing is told before

    towers = load_towers(model_name, device=str(device))

    class Model(torch.nn.Module):
        """Both towers under the names that clip_benchmark calls."""

        def encode_image(self, pixels: Tensor) -> Tensor:
            return towers.image_features(pixels).to(towers.device)

        def encode_text(self, ids: Tensor) -> Tensor:
            return towers.text_features(ids.cpu()).to(towers.device)

    def transform(picture: Image.Image) -> Tensor:
        return towers.preprocessing.normalise([towers.preprocessing.square(picture.convert("RGB"))])[0]

    def tokenizer(texts: str | Sequence[str]) -> Tensor:
        rows, _ = towers.ids_of([texts] if isinstance(texts, str) else list(texts))
        length = max(map(len, rows), default=0)
        return torch.tensor([row + [0] * (length - len(row)) for row in rows], dtype=torch.long)

    return Model(), transform, tokenizer


def main() -> int:
    try:
        from clip_benchmark import cli, models
    except ImportError as error:  # clip_benchmark itself, or one of the packages that it does not bring along
        name = (error.name or "clip_benchmark").split(".")[0].replace("_", "-")
        print(f"run_clip_benchmark: {name} is not installed; pip install {name}.", file=sys.stderr)
        return 2
    models.TYPE2FUNC["debias_sd"] = load_folder
    models.MODEL_TYPES.append("debias_sd")
    cli.main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
