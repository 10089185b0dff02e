"""Texts and pictures -> normalised features, each embedded once: known ones come from the cache.

Texts are sorted by length into batches of one shape; the rows that a last batch lacks are copies of its own. Pictures
are read a few at a time; one that cannot be decoded is counted by its record and left out.

The cache is on disk, found by the content of the encoder and of what it read: `<folder>/<encoder key>/<random
name>.features`, one file per flush, whole or not there, never changed. A file holds two NumPy arrays, the keys [n, 16]
and the features [n, dim]; keys are read, features are mapped and only touched where asked for. A damaged file counts as
not there. Another encoder, preprocessing or device has another key and folder.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from debias_sd.datasets.pictures import PictureFault, decode_rgb, read_content
from debias_sd.datasets.records import Faults, Records
from debias_sd.measure.processes import Processes, run_side_by_side
from debias_sd.measure.towers import Towers
from debias_sd.report import write_atomically

SUFFIX = ".features"
KEY_BYTES = 16


def cache_folder() -> Path:
    """Where features lie unless the user says otherwise: `debias_sd/features` in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "debias_sd" / "features"


def key_of(content: bytes) -> bytes:
    """The key of a text or a picture: 16 bytes of its SHA-256."""
    return hashlib.sha256(content).digest()[:KEY_BYTES]


class FeatureCache:
    """The features of one encoder; `folder` None keeps them in memory alone, for one run."""

    def __init__(self, folder: Path | None, encoder_key: str) -> None:
        self.folder = None if folder is None else folder / encoder_key[:32]
        self.damaged = 0
        self.fault = ""  # why features are no longer kept on disk
        self._known: dict[bytes, np.ndarray] = {}
        self._fresh: list[bytes] = []
        for path in sorted(self.folder.glob(f"*{SUFFIX}")) if self.folder is not None and self.folder.is_dir() else ():
            try:
                self._known.update(_open(path))
            except (OSError, ValueError, EOFError, MemoryError):  # the last one for a length that is damaged
                self.damaged += 1

    def __contains__(self, key: bytes) -> bool:
        return key in self._known

    def __len__(self) -> int:
        return len(self._known)

    def add(self, keys: Iterable[bytes], features: np.ndarray) -> None:
        """Keep features [n, dim] by their keys; on disk after `flush`."""
        for key, row in zip(keys, features, strict=True):
            self._known[key] = row
            self._fresh.append(key)

    def rows(self, keys: list[bytes]) -> np.ndarray:
        """Return the features [n, dim], float32, of keys that are all there."""
        return np.stack([self._known[key] for key in keys]).astype(np.float32, copy=False)

    def flush(self) -> None:
        """Write what was added since the last time as one file.

        A folder that cannot be written to (read-only, a full disk) costs no work: `fault` says so from then on.
        """
        fresh, self._fresh = self._fresh, []
        if self.folder is None or not fresh:
            return
        content = io.BytesIO()
        np.save(content, np.frombuffer(b"".join(fresh), np.uint8).reshape(-1, KEY_BYTES))
        np.save(content, self.rows(fresh))
        try:
            write_atomically(self.folder / f"{uuid.uuid4().hex}{SUFFIX}", content.getvalue())
        except ValueError as error:
            self.folder, self.fault = None, str(error)


def _open(path: Path) -> dict[bytes, np.ndarray]:
    """The keys of a file with their features, mapped; ValueError when the file is not whole."""
    with path.open("rb") as file:
        keys = np.load(file, allow_pickle=False)
        np.lib.format.read_magic(file)
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        start = file.tell()
    wrong = fortran or dtype != np.float32 or keys.dtype != np.uint8 or keys.ndim != 2 or keys.shape[1] != KEY_BYTES
    if wrong or len(shape) != 2 or len(keys) != shape[0] or path.stat().st_size != start + 4 * shape[0] * shape[1]:
        raise ValueError(f"{path} is not a file of features")
    rows = np.memmap(path, np.float32, "r", offset=start, shape=shape)
    return {key.tobytes(): row for key, row in zip(keys, np.asarray(rows), strict=True)}


ROWS = {"cpu": 4, "cuda": 64}  # of one batch: few, for a last batch of a length is filled up with copies
_FLUSH = 8192  # features between two files of the cache
_AT_A_TIME = 256  # pictures whose files are in memory
Progress = Callable[[int], object]


@dataclasses.dataclass
class Work:
    """How much was embedded, and how much was known."""

    texts: int = 0
    texts_known: int = 0
    pictures: int = 0
    pictures_known: int = 0


@dataclasses.dataclass(frozen=True)
class Embedder:
    """One encoder with its cache; `lanes` batches run side by side."""

    towers: Towers
    cache: FeatureCache
    processes: Processes
    work: Work = dataclasses.field(default_factory=Work)

    @property
    def _rows(self) -> int:
        return rows_on(self.towers.device)

    @property
    def _lanes(self) -> int:
        return torch.get_num_threads() if self.towers.device == "cpu" else 1

    def texts(self, texts: Sequence[str], *, pads: int = 0, progress: Progress = lambda count: None) -> np.ndarray:
        """Normalised features [texts, dim], `pads` in front of each text; ValueError when one is not finite."""
        kind = b"text\0" if not pads else f"text behind {pads} pads\0".encode()
        keys = [key_of(kind + text.encode()) for text in texts]
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in self.cache}
        self.work.texts += len(missing)
        self.work.texts_known += len(texts) - len(missing)
        progress(len(texts) - len(missing))
        ids, _ = self.towers.ids_of(list(missing.values()), pads=pads)
        batches = list(length_batches([len(row) for row in ids], rows=self._rows))
        names = list(missing)

        def embed(rows: list[int]) -> np.ndarray:
            full = (rows * self._rows)[: self._rows]
            batch = torch.tensor([ids[row] for row in full], dtype=torch.long)
            return _normalised(self.towers.text_features(batch)[: len(rows)])

        self._fill(embed, batches, names, progress)
        return self.cache.rows(keys)

    def pictures(
        self, records: Records, faults: Faults, *, progress: Progress = lambda count: None
    ) -> tuple[np.ndarray, list[int], list[bytes]]:
        """Normalised features [kept, dim], the numbers of the records kept, and the keys of their pictures."""
        kept: list[int] = []
        keys: list[bytes] = []
        for start in range(0, len(records), _AT_A_TIME):
            squares: dict[bytes, np.ndarray] = {}
            for number in range(start, min(start + _AT_A_TIME, len(records))):
                record = records[number]
                try:
                    content = read_content(record.image)
                    key = key_of(b"picture\0" + content)
                    if key not in self.cache and key not in squares:
                        squares[key] = self.towers.preprocessing.square(decode_rgb(content, record.image))
                except PictureFault as fault:
                    faults.add([(number, record.key, fault.kind)])
                    progress(1)
                    continue
                kept.append(number)
                keys.append(key)
            seen = min(start + _AT_A_TIME, len(records)) - start
            self.work.pictures += len(squares)
            self._embed_squares(squares)
            progress(seen)
        self.work.pictures_known += len(kept) - self.work.pictures
        if self.processes.is_main:
            self.cache.flush()
        return (self.cache.rows(keys) if keys else np.empty((0, 1), np.float32)), kept, keys

    def _embed_squares(self, squares: dict[bytes, np.ndarray]) -> None:
        names, size = list(squares), self._rows

        def embed(rows: list[int]) -> np.ndarray:
            batch = [squares[names[row]] for row in (rows * size)[:size]]
            pixels = self.towers.preprocessing.normalise(batch)
            return _normalised(self.towers.image_features(pixels)[: len(rows)])

        batches = [list(range(at, min(at + size, len(names)))) for at in range(0, len(names), size)]
        self._fill(embed, batches, names, lambda count: None)

    def _fill(
        self,
        embed: Callable[[list[int]], np.ndarray],
        batches: list[list[int]],
        names: list[bytes],
        progress: Progress,
    ) -> None:
        """Embed this process's share of the batches, take in the others', keep all of them."""
        own = self.processes.share(batches)
        found: list[tuple[list[int], np.ndarray]] = []
        for rows, features in zip(own, run_side_by_side(embed, own, lanes=self._lanes), strict=True):
            found.append((rows, features))
            progress(len(rows))
            if sum(len(rows) for rows, _ in found) >= _FLUSH and self.processes.count == 1:
                self._keep(found, names)
                found = []
        self._keep(self.processes.gather(found), names)

    def _keep(self, found: list[tuple[list[int], np.ndarray]], names: list[bytes]) -> None:
        for rows, features in found:
            if not np.isfinite(features).all():
                raise ValueError(
                    f"encoder {self.towers.folder} gives features that are NaN or infinite; its training went wrong: "
                    "take an earlier checkpoint."
                )
            self.cache.add([names[row] for row in rows], features)
        if self.processes.is_main:
            self.cache.flush()


def rows_on(device: str) -> int:
    """Texts or pictures in a batch on a device: part of what decides the last bits of a feature."""
    return ROWS["cpu" if device == "cpu" else "cuda"]


def length_batches(lengths: Sequence[int], *, rows: int) -> Iterator[list[int]]:
    """Yield the numbers of texts by length, at most `rows` at a time and of one length each."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    start = 0
    for place in range(1, len(order) + 1):
        ends = place == len(order) or lengths[order[place]] != lengths[order[start]]
        if ends or place - start == rows:
            yield order[start:place]
            start = place


def _normalised(features: torch.Tensor) -> np.ndarray:
    return torch.nn.functional.normalize(features.float(), dim=-1).numpy()
