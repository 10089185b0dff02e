"""Which files each benchmark's own scripts expect, planned before anything is drawn.

* DPG-Bench (github.com/TencentQQGYLab/ELLA, dpg_bench/compute_dpg_bench.py): `images/<id>.png`, four pictures of one
  prompt as 2 x 2, row by row; the id is the name of the prompt's text file. Every file in the folder is judged.
* GenEval (github.com/djghosh13/geneval, README.md and evaluation/evaluate_images.py): `00000/metadata.jsonl` (the
  prompt's line of evaluation_metadata.jsonl), `00000/samples/0000.png`, `00000/grid.png`. Its generation script writes
  five digits, its README four; its evaluation takes any number.
* T2I-CompBench (github.com/Karine-Huang/T2I-CompBench, GORS_finetune/inference_eval.py and the *_eval.py that read):
  `samples/<prompt>_000000.png`, numbered through. The judges read the prompt from the file's name up to the first
  underscore, the number behind the last one, and stop at `.png`.

All three use the same seeds for every prompt.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence

from debias_sd.prompts.files import ListedPrompt
from debias_sd.text import count_of

LONGEST_NAME = 255  # bytes of a file's name on the disks that people have
GRID = 4
_LINE_BREAKS = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]+")


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
    """One grid a prompt, named as the prompt; ValueError for other than four seeds or an id that is no such name."""
    if seeds != GRID:
        raise ValueError(f"--seeds are {seeds}, DPG-Bench reads grids of 4 pictures; give four seeds.")
    ids = Counter(prompt.id for prompt in prompts)
    for prompt in prompts:
        plain = re.fullmatch(r"[^\x00-\x1f/\\.]+", prompt.id) is not None
        if not plain or len(prompt.id.encode()) > LONGEST_NAME - 4 or prompt.id.strip() != prompt.id:
            raise ValueError(
                f"a prompt has the id {prompt.id[:40]!r}, DPG-Bench takes it for a file's name up to the first dot; "
                "give ids without dots and slashes."
            )
        if ids[prompt.id] > 1:
            raise ValueError(f"{ids[prompt.id]} prompts have the id {prompt.id!r}, it names a file; make each its own.")
    return [Planned(prompt, grid=(f"images/{prompt.id}.png", 2)) for prompt in prompts]


def plan_geneval(prompts: Sequence[ListedPrompt], seeds: int) -> list[Planned]:
    """A folder a prompt; ValueError for a prompt without what GenEval's evaluation reads of its line."""
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
        metadata = json.dumps(dict(prompt.row))
        # The original's grid has its batch size as columns, 1 by default; here it is as square as the seeds allow.
        columns = next(count for count in range(1, seeds + 1) if count * count >= seeds)
        texts = ((f"{folder}/metadata.jsonl", metadata),)
        planned.append(Planned(prompt, pictures, (f"{folder}/grid.png", columns), texts))
    return planned


def plan_t2i_compbench(prompts: Sequence[ListedPrompt], seeds: int) -> list[Planned]:
    """A picture a seed, numbered through; ValueError for a prompt that is too long for a file's name."""
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
    """A prompt as T2I-CompBench's file names have it: exactly what a disk or its judges cannot take is a space.

    Slashes and line breaks; underscores, which end the prompt for the judges; the dot of `.png`.

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
