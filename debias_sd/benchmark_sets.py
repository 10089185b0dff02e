"""Pictures for other people's benchmarks, in the folders and under the names that their own scripts read.

Which files a benchmark expects is planned before anything is drawn; all three use the same seeds for every prompt.

* DPG-Bench (github.com/TencentQQGYLab/ELLA, dpg_bench/compute_dpg_bench.py): `images/<id>.png`, four pictures of one
  prompt as 2 x 2, row by row; the id is the name of the prompt's text file. Every file in the folder is judged.
* GenEval (github.com/djghosh13/geneval, README.md and evaluation/evaluate_images.py): `00000/metadata.jsonl` (the
  prompt's line of evaluation_metadata.jsonl), `00000/samples/0000.png`, `00000/grid.png`. Its generation script writes
  five digits, its README four; its evaluation takes any number.
* T2I-CompBench (github.com/Karine-Huang/T2I-CompBench, GORS_finetune/inference_eval.py and the *_eval.py that read):
  `samples/<prompt>_000000.png`, numbered through. The judges read the prompt from the file's name up to the first
  underscore, the number after the last one, and stop at `.png`.

Every file is written whole, and a run goes on where the last one stopped. `manifest.json` in the set's folder says what
was drawn with what; it lies where no benchmark looks for pictures. A set that was begun with other settings is never
mixed with this one. Unfinished files lie in `.unfinished`, away from the folders in which every file is judged.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from debias_sd.prompts.files import ListedPrompt
from debias_sd.report import write_atomically
from debias_sd.text import count_of

LONGEST_NAME = 255  # bytes of a file's name on the disks that people have
GRID = 4
_LINE_BREAKS = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]+")
MANIFEST = "manifest.json"
UNFINISHED = ".unfinished"
_KEY = "debias_sd_key"
Pictures = UInt8[np.ndarray, "seeds height width 3"]


@dataclasses.dataclass(frozen=True)
class Planned:
    """The files of one prompt, as paths inside the set's folder.

    `pictures`: a path for every seed, or none where only the grid is kept. `grid`: a path with its number of columns.
    `texts`: other files with their content.
    """

    prompt: ListedPrompt
    pictures: tuple[str, ...] = ()
    grid: tuple[str, int] | None = None
    texts: tuple[tuple[str, str], ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        grid = () if self.grid is None else (self.grid[0],)
        return (*self.pictures, *grid, *(path for path, _ in self.texts))


@dataclasses.dataclass(frozen=True)
class Layout:
    """A benchmark: how many seeds it wants by default, which folders it reads, and how a set is planned."""

    title: str
    seeds: int
    folders: str  # pattern of the folders in which every file is read
    plan: Callable[[Sequence[ListedPrompt], int], list[Planned]]
    judge: str  # what is typed in the benchmark's own repository


def plan_dpg(prompts: Sequence[ListedPrompt], seeds: int) -> list[Planned]:
    """One grid per prompt, named after it; ValueError unless seeds are four and each id can be a file's name."""
    if seeds != GRID:
        raise ValueError(f"--seeds are {seeds} but DPG-Bench reads grids of 4 pictures; give four seeds.")
    ids = Counter(prompt.id for prompt in prompts)
    for prompt in prompts:
        plain = re.fullmatch(r"[^\x00-\x1f/\\.]+", prompt.id) is not None
        if not plain or len(prompt.id.encode()) > LONGEST_NAME - 4 or prompt.id.strip() != prompt.id:
            raise ValueError(
                f"a prompt has the id {prompt.id[:40]!r} but DPG-Bench takes it for a file's name up to the first dot; "
                "give ids without dots and slashes."
            )
        if ids[prompt.id] > 1:
            raise ValueError(
                f"{ids[prompt.id]} prompts have the id {prompt.id!r}, which names a file; give each its own."
            )
    return [Planned(prompt, grid=(f"images/{prompt.id}.png", 2)) for prompt in prompts]


def plan_geneval(prompts: Sequence[ListedPrompt], seeds: int) -> list[Planned]:
    """A folder per prompt; ValueError for a prompt without what GenEval's evaluation reads of its line."""
    planned = []
    for number, prompt in enumerate(prompts):
        lacking = [key for key in ("tag", "include", "prompt") if key not in prompt.row]
        if lacking:
            raise ValueError(
                f"prompt {number} has no {lacking[0]!r}, which GenEval's evaluation reads; give --prompts its "
                "prompts/evaluation_metadata.jsonl, or lines of that form."
            )
        folder = f"{number:05d}"
        pictures = tuple(f"{folder}/samples/{place:04d}.png" for place in range(seeds))
        # The original's grid has its batch size as columns, 1 by default; here it is as square as the seeds allow.
        columns = next(count for count in range(1, seeds + 1) if count * count >= seeds)
        texts = ((f"{folder}/metadata.jsonl", json.dumps(dict(prompt.row))),)
        planned.append(Planned(prompt, pictures, (f"{folder}/grid.png", columns), texts))
    return planned


def plan_t2i_compbench(prompts: Sequence[ListedPrompt], seeds: int) -> list[Planned]:
    """A picture per seed, numbered through; ValueError for a prompt that is too long for a file's name."""
    planned = []
    for number, prompt in enumerate(prompts):
        # As the original reads its own lists: what stands in front of the first tab.
        prompt = dataclasses.replace(prompt, text=prompt.text.split("\t")[0].strip())
        name = file_name_of(prompt.text)
        longest = f"{name}_{number * seeds + seeds:06d}.png"
        if not name or len(longest.encode()) > LONGEST_NAME:
            raise ValueError(
                f"prompt {prompt.id} ({prompt.text[:40]!r}) has {count_of(len(name.encode()), 'byte')} as a file's "
                f"name but may have 1 to {LONGEST_NAME - len(longest) + len(name)}; T2I-CompBench's judges read the "
                "prompt from that name: shorten it, or use --layout dpg."
            )
        names = tuple(f"samples/{name}_{number * seeds + place:06d}.png" for place in range(seeds))
        planned.append(Planned(prompt, names))
    return planned


def file_name_of(prompt: str) -> str:
    """A prompt as T2I-CompBench's file names have it, a space for each thing that a disk or its judges cannot take.

    These are slashes, line breaks, underscores (which end the prompt for the judges) and the dot of `.png`.

    >>> file_name_of("a red/blue book_end. A cat's \\"hat\\"")
    'a red blue book end. A cat\\'s "hat"'
    """
    plain = re.sub("[/_]", " ", _LINE_BREAKS.sub(" ", prompt))
    return plain.replace(".png", " png").strip()


LAYOUTS = {
    "dpg": Layout("DPG-Bench", GRID, "images", plan_dpg, "bash dpg_bench/dist_eval.sh {out}/images {side}"),
    "geneval": Layout(
        "GenEval",
        4,
        "[0-9]*/samples",
        plan_geneval,
        "python evaluation/evaluate_images.py {out} --outfile results.jsonl",
    ),
    "t2i-compbench": Layout(
        "T2I-CompBench", 10, "samples", plan_t2i_compbench, "python BLIPvqa_eval/BLIP_vqa.py --out_dir={out}"
    ),
}


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
                    f"{self.folder} holds a set that was drawn with other settings ({', '.join(other)}) and two sets "
                    "are never mixed; give another --out."
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

        ValueError where pictures are not squares of one size, which the grids' readers need, or cannot be written.
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
                raise ValueError(
                    f"pictures are {done.side} and {side} pixels wide but a set has one size; draw it anew."
                )
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
        shutil.rmtree(self.folder / UNFINISHED, ignore_errors=True)

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
                f"pictures are {pictures.shape[2]} x {pictures.shape[1]} but these benchmarks read squares; give a "
                "base that draws squares."
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
    cells = np.zeros((rows * columns, height, width, 3), np.uint8)
    cells[:count] = pictures
    return cells.reshape(rows, columns, height, width, 3).swapaxes(1, 2).reshape(rows * height, columns * width, 3)
