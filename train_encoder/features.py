"""Image features of a frozen tower: computed once for all pictures of a run's data, kept in a file, mapped into memory.

A run with `freeze_image_tower` reads them in place of pictures: in training, no picture is opened and no image tower
runs. The file is named by a hash of what decides its content, so that a run with the same data and tower finds it.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from debias_sd.datasets.pictures import PictureFault
from debias_sd.report import write_atomically
from train_encoder.batches import normalise
from train_encoder.engines import autocast

if TYPE_CHECKING:
    from accelerate import Accelerator

    from train_encoder.data import RecordPairs, ShapesPairs
    from train_encoder.kinds import AnyTowers
    from train_encoder.settings import TrainConfig

BATCH = 64


class ImageFeatures:
    """Rows of one file, float32 [d] each; PictureFault for a picture that could not be read when they were made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.faults: dict[str, str] = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["faults"]
        self._rows: np.ndarray | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_rows": None}  # each worker maps the file itself

    def __getitem__(self, number: int) -> np.ndarray:
        if str(number) in self.faults:
            raise PictureFault(self.faults[str(number)], self.path)
        if self._rows is None:
            self._rows = np.load(self.path, mmap_mode="r")
        return np.array(self._rows[number])


class _Pictures(Dataset):
    """This process's share of the pictures: (number, uint8 [h, w, 3] or the kind of its fault)."""

    def __init__(self, data: ShapesPairs | RecordPairs, numbers: range) -> None:
        self.data, self.numbers = data, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, place: int) -> tuple[int, np.ndarray | str]:
        number = self.numbers[place]
        try:
            return number, self.data.picture(number)
        except PictureFault as fault:
            return number, fault.kind


def name_features(data: ShapesPairs | RecordPairs, towers: AnyTowers, config: TrainConfig, *, count: int) -> str:
    """The hash of the tower's weights, of how pictures are read, and of which pictures they are."""
    digest = hashlib.sha256(json.dumps([count, data.mean, data.std, config.mixed_precision]).encode())
    for part in towers.image_modules():
        for name, tensor in sorted(part.state_dict().items()):
            digest.update(name.encode() + tensor.detach().float().cpu().contiguous().numpy().tobytes())
    for text in data.identity():
        digest.update(text.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()[:32]


def load_features(
    accelerator: Accelerator, towers: AnyTowers, data: ShapesPairs | RecordPairs, config: TrainConfig, *, count: int
) -> ImageFeatures:
    """The features of pictures 0 to `count - 1`, from their file or made now by all processes together.

    Raises ValueError when the folder cannot be written to.
    """
    folder = Path(config.image_features_dir or Path(config.output_dir) / "image-features")
    path = folder / f"{name_features(data, towers, config, count=count)}.npy"
    if path.is_file() and path.with_suffix(".json").is_file():
        accelerator.print(f"image features of {count:,} pictures: {path}")
        return ImageFeatures(path)
    partial = folder / f".{path.name}.partial"
    if accelerator.is_main_process:
        _make_room(partial, (count, towers.feature_size))
    accelerator.wait_for_everyone()
    faults = _fill(accelerator, towers, data, config, partial, count=count)
    if accelerator.is_main_process:
        text = json.dumps({"pictures": count, "train_data": config.train_data, "faults": faults}, indent=1) + "\n"
        write_atomically(path.with_suffix(".json"), text.encode())
        os.replace(partial, path)
        print(f"image features of {count:,} pictures computed: {path}")
    accelerator.wait_for_everyone()
    return ImageFeatures(path)


def _make_room(path: Path, shape: tuple[int, int]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape).flush()
    except OSError as error:
        raise ValueError(
            f"image features cannot be written to {path.parent} ({error.strerror}); name another image_features_dir."
        ) from error


@torch.no_grad()
def _fill(
    accelerator: Accelerator,
    towers: AnyTowers,
    data: ShapesPairs | RecordPairs,
    config: TrainConfig,
    path: Path,
    *,
    count: int,
) -> dict[str, str]:
    """Compute this process's rows; the faults of all processes by number."""
    from accelerate.utils import gather_object
    from tqdm import tqdm

    rows = np.lib.format.open_memmap(path, mode="r+")
    mine = _Pictures(data, range(accelerator.process_index, count, accelerator.num_processes))
    loader = DataLoader(mine, batch_size=BATCH, collate_fn=list, num_workers=config.dataloader_num_workers)
    faults: list[tuple[int, str]] = []
    for items in tqdm(loader, desc="image features", disable=not accelerator.is_main_process):
        faults += [(number, found) for number, found in items if isinstance(found, str)]
        read = [(number, found) for number, found in items if not isinstance(found, str)]
        if read:
            pixels = normalise([image for _, image in read], data.mean, data.std).to(accelerator.device)
            with autocast(accelerator, config):
                features: Tensor = towers.image_features(pixels)
            rows[[number for number, _ in read]] = features.float().cpu().numpy()
    rows.flush()
    return {str(number): kind for number, kind in gather_object(faults)}
