"""A planned set on disk: every file written whole, a run goes on where the last one stopped, seeds and settings kept.

`manifest.json` in the set's folder says what was drawn with what; it lies where no benchmark looks for pictures. A set
that was begun with other settings is never mixed with this one. Unfinished files lie in `.unfinished`, away from the
folders in which every file is judged.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from debias_sd.benchmark_layouts.layouts import Layout, Planned
from debias_sd.report import write_atomically

MANIFEST = "manifest.json"
UNFINISHED = ".unfinished"
_KEY = "debias_sd_key"
Pictures = UInt8[np.ndarray, "seeds height width 3"]


@dataclasses.dataclass
class Drawn:
    """How many prompts were drawn in this run, how many were there already, and the pictures' side."""

    drawn: int = 0
    found: int = 0
    side: int = 0


@dataclasses.dataclass(frozen=True)
class BenchmarkSet:
    """A set in `folder`; `settings` are all that decide its pixels beside prompt and seed, as JSON takes them."""

    folder: Path
    layout: Layout
    planned: Sequence[Planned]
    seeds: Sequence[int]
    settings: dict[str, Any]

    def check(self) -> None:
        """Raise ValueError where the folder holds another set, or files that the benchmark would judge too."""
        path = self.folder / MANIFEST
        if path.exists():
            try:
                known = json.loads(path.read_text(encoding="utf-8"))["settings"]
            except (OSError, ValueError, KeyError, TypeError):
                raise ValueError(f"{path} is damaged; remove the folder, or give another --out.") from None
            wanted = self._settings()
            other = sorted(key for key in known | wanted if known.get(key) != wanted.get(key))
            if other:
                raise ValueError(
                    f"{self.folder} holds a set that was drawn with other settings ({', '.join(other)}), two sets are "
                    "never mixed; give another --out."
                )
        ours = {path for planned in self.planned for path in planned.paths}
        for found in sorted(self.folder.glob(f"{self.layout.folders}/*")):
            if found.relative_to(self.folder).as_posix() not in ours:
                raise ValueError(
                    f"{found} is not a picture of this set and {self.layout.title} would judge it; move it or give "
                    "another --out."
                )

    def draw(
        self, draw: Callable[[str, Sequence[int]], Pictures], *, progress: Callable[[int], object] = lambda done: None
    ) -> Drawn:
        """Draw what is not there; `draw(prompt, seeds)` gives the pictures of one prompt, in the order of the seeds.

        ValueError where pictures are no squares of one size, which the grids' readers need, or cannot be written.
        """
        done = Drawn()
        for planned in self.planned:
            side = self._side_of(planned)
            if side is None:
                pictures = draw(planned.prompt.text, self.seeds)
                self._write(planned, pictures)
                side = int(pictures.shape[1])
                done.drawn += 1
            else:
                done.found += 1
            if done.side not in (0, side):
                raise ValueError(f"pictures are {done.side} and {side} pixels wide, a set has one size; draw it anew.")
            done.side = side
            progress(1)
        return done

    def write_manifest(self, **about: Any) -> Path:
        """Write what the set is; `about` is what is known of this run."""
        prompts = [
            {"id": planned.prompt.id, "prompt": planned.prompt.text, "files": list(planned.paths)}
            for planned in self.planned
        ]
        content = {"layout": self.layout.title, "settings": self._settings()} | about | {"prompts": prompts}
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        return write_atomically(self.folder / MANIFEST, text.encode(), by_way_of=self.folder / UNFINISHED)

    def tidy(self) -> None:
        """Remove what interrupted runs have left."""
        scratch = self.folder / UNFINISHED
        for path in scratch.glob("*"):
            path.unlink()
        if scratch.is_dir():
            scratch.rmdir()

    def _settings(self) -> dict[str, Any]:
        return self.settings | {"seeds": list(self.seeds)}

    def _key(self, planned: Planned) -> str:
        about = json.dumps([self._settings(), planned.prompt.text, planned.paths], sort_keys=True)
        return hashlib.sha256(about.encode()).hexdigest()

    def _side_of(self, planned: Planned) -> int | None:
        """The side of the prompt's pictures where all of its files are there and its own, or None."""
        if not all((self.folder / path).is_file() for path in planned.paths):
            return None
        side = None
        for path in planned.paths:
            if path.endswith(".png"):
                try:
                    with Image.open(self.folder / path) as picture:
                        picture.load()
                        if picture.info.get(_KEY) != self._key(planned):
                            return None
                        columns = planned.grid[1] if planned.grid is not None and path == planned.grid[0] else 1
                        side = picture.width // columns
                except (OSError, SyntaxError, ValueError):  # Pillow's for files that are none
                    return None
        return side

    def _write(self, planned: Planned, pictures: Pictures) -> None:
        if pictures.shape[1] != pictures.shape[2]:
            raise ValueError(
                f"pictures are {pictures.shape[2]} x {pictures.shape[1]}, these benchmarks read squares; give a base "
                "that draws squares."
            )
        for path, content in planned.texts:
            self._write_whole(path, content.encode())
        for path, picture in zip(planned.pictures, pictures, strict=bool(planned.pictures)):
            self._write_whole(path, self._png(planned, picture))
        if planned.grid is not None:
            path, columns = planned.grid
            self._write_whole(path, self._png(planned, grid_of(pictures, columns=columns)))

    def _png(self, planned: Planned, picture: UInt8[np.ndarray, "height width 3"]) -> bytes:
        chunks, content = PngInfo(), io.BytesIO()
        chunks.add_text(_KEY, self._key(planned))
        Image.fromarray(picture).save(content, "PNG", pnginfo=chunks)
        return content.getvalue()

    def _write_whole(self, path: str, content: bytes) -> None:
        write_atomically(self.folder / path, content, by_way_of=self.folder / UNFINISHED)


def grid_of(pictures: Pictures, *, columns: int) -> UInt8[np.ndarray, "grid_height grid_width 3"]:
    """Pictures row by row in `columns`; black where the last row has room."""
    count, height, width, _ = pictures.shape
    rows = -(-count // columns)
    grid = np.zeros((rows * height, columns * width, 3), np.uint8)
    for number, picture in enumerate(pictures):
        row, column = divmod(number, columns)
        grid[row * height : (row + 1) * height, column * width : (column + 1) * width] = picture
    return grid
