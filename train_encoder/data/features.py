"""Image features of a frozen tower: computed once for all pictures of a run's data, kept in a file, mapped into memory.

A run with `freeze_image_tower` reads them in place of pictures: in training, no picture is opened and no image tower
runs. The file is named by a hash of what decides its content, so that a run with the same data and tower finds it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from debias_sd.datasets.pictures import PictureFault
from debias_sd.report import write_atomically
from train_encoder.engine import autocast

if TYPE_CHECKING:
    from accelerate import Accelerator

    from train_encoder.data.pairs import Pairs
    from train_encoder.model.families import Towers
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

    def __init__(self, data: Pairs, numbers: range) -> None:
        self.data, self.numbers = data, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, place: int) -> tuple[int, np.ndarray | str]:
        number = self.numbers[place]
        try:
            return number, self.data.picture(number)
        except PictureFault as fault:
            return number, fault.kind


def name_features(data: Pairs, towers: Towers, config: TrainConfig, *, count: int) -> str:
    """The hash of the tower's weights, of how pictures are read, and of which pictures they are."""
    digest = hashlib.sha256(
        json.dumps([count, data.preprocessing.mean, data.preprocessing.std, config.mixed_precision]).encode()
    )
    for part in towers.image_modules():
        for name, tensor in sorted(part.state_dict().items()):
            digest.update(name.encode() + tensor.detach().float().cpu().contiguous().numpy().tobytes())
    for text in data.identity():
        digest.update(text.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()[:32]


def load_features(
    accelerator: Accelerator, towers: Towers, data: Pairs, config: TrainConfig, *, count: int
) -> ImageFeatures:
    """The features of pictures 0 to `count - 1`, from their file or made now by all processes together.

    Raises ValueError when the folder cannot be written to, or is not the same for all processes.
    """
    from accelerate.utils import broadcast_object_list

    folder = Path(config.image_features_dir or Path(config.output_dir) / "image-features")
    # The main process looks at the pictures and at the folder, and all do what it found.
    plan: list[Any] = [None, None, False]
    if accelerator.is_main_process:
        path = folder / f"{name_features(data, towers, config, count=count)}.npy"
        plan = [path.name, uuid.uuid4().hex[:8], path.is_file() and path.with_suffix(".json").is_file()]
        if not plan[2]:
            _make_folder(folder)
    name, run, is_there = broadcast_object_list(plan)
    path = folder / name
    if is_there:
        accelerator.print(f"image features of {count:,} pictures: {path}")
    else:
        parts = [folder / f".{name}.{run}.{rank}.partial" for rank in range(accelerator.num_processes)]
        try:
            faults = _compute(accelerator, towers, data, config, parts, count=count)
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                _join(parts, path, shape=(count, towers.feature_size), notes={"faults": faults} | _notes(config, count))
                print(f"image features of {count:,} pictures computed: {path}")
            accelerator.wait_for_everyone()
        finally:
            parts[accelerator.process_index].unlink(missing_ok=True)
    if not path.is_file():
        raise ValueError(
            f"image features {path} are not on the disk of process {accelerator.process_index}; "
            "name an image_features_dir that all machines share."
        )
    return ImageFeatures(path)


def _notes(config: TrainConfig, count: int) -> dict[str, Any]:
    return {"pictures": count, "train_data": config.train_data}


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ValueError(
            f"image features cannot be written to {folder} ({error.strerror}); name another image_features_dir."
        ) from error


def _join(parts: list[Path], path: Path, *, shape: tuple[int, int], notes: dict[str, Any]) -> None:
    """Make one file of the processes' parts, in the order of their ranks; whole or not at all."""
    missing = [part for part in parts if not part.is_file()]
    if missing:
        raise ValueError(
            f"{len(missing)} of {len(parts)} processes left their image features elsewhere than in {path.parent}; "
            "name an image_features_dir that all machines share."
        )
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(np.float32)), "fortran_order": False, "shape": shape}
    scratch = parts[0].with_suffix(".whole.partial")
    try:
        with open(scratch, "wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for part in parts:
                with open(part, "rb") as source:
                    shutil.copyfileobj(source, file, 1 << 24)
        write_atomically(path.with_suffix(".json"), (json.dumps(notes, indent=1) + "\n").encode())
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


@torch.no_grad()
def _compute(
    accelerator: Accelerator,
    towers: Towers,
    data: Pairs,
    config: TrainConfig,
    parts: list[Path],
    *,
    count: int,
) -> dict[str, str]:
    """Write this process's rows, one stretch of all, into its own part; the faults of all processes by number.

    A file each: rows of one file that several machines write would share pages of a network disk.
    """
    from accelerate.utils import gather_object
    from tqdm import tqdm

    rank, processes = accelerator.process_index, accelerator.num_processes
    mine = range(count * rank // processes, count * (rank + 1) // processes)
    pictures = _Pictures(data, mine)
    loader = DataLoader(pictures, batch_size=BATCH, collate_fn=list, num_workers=config.dataloader_num_workers)
    faults: list[tuple[int, str]] = []
    parts[rank].parent.mkdir(parents=True, exist_ok=True)
    with open(parts[rank], "wb") as file:
        for items in tqdm(loader, desc="image features", disable=not accelerator.is_main_process):
            rows = np.zeros((len(items), towers.feature_size), np.float32)
            faults += [(number, found) for number, found in items if isinstance(found, str)]
            read = [place for place, (_, found) in enumerate(items) if not isinstance(found, str)]
            if read:
                squares = [items[place][1] for place in read]
                pixels = data.preprocessing.normalise(squares).to(accelerator.device)
                with autocast(accelerator, config):
                    features: Tensor = towers.image_features(pixels)
                rows[read] = features.float().cpu().numpy()
            file.write(rows.tobytes())
    return {str(number): kind for number, kind in gather_object(faults)}
