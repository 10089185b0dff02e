"""How a data set is named: `KIND:PATH`, or a path alone, whose kind is found out by looking; and what a folder holds.

`sharegpt4v:FILE` and other lists of its form, `llava:FILE`; `tsv:FILE`, `csv:FILE`, `jsonl:FILE`, `json:FILE`,
`folder:DIR`, `shards:PATTERN`, `datasets:DIR`; and the evaluation sets `urban1k`, `dci`, `long-dci`, `docci`, `coco`,
`flickr30k`, `flickr30k-test`, `sharegpt4v-1k`.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from pathlib import Path

from debias_sd.datasets.columns import list_names
from debias_sd.datasets.evaluation_sets import read_evaluation_set
from debias_sd.datasets.folder import read_folder, read_saved
from debias_sd.datasets.records import Records, describe_counts
from debias_sd.datasets.row_files import find_form, read_json, read_jsonl, read_table
from debias_sd.datasets.shards import read_shards
from debias_sd.datasets.sharegpt4v import PARTS, read_sharegpt4v
from debias_sd.text import read_lines

OWN_KINDS = ("sharegpt4v", "llava", "tsv", "csv", "jsonl", "json", "folder", "shards", "datasets")
EVALUATION_KINDS = (
    "urban1k", "dci", "long-dci", "docci", "coco", "flickr30k", "flickr30k-test", "sharegpt4v-1k",
)  # fmt: skip
KINDS = OWN_KINDS + EVALUATION_KINDS
_WITH_COLUMNS = ("tsv", "csv", "jsonl", "json", "folder", "datasets")
_TABLES, _LINES = (".tsv", ".csv"), (".jsonl", ".jsonlines", ".ndjson")
# What a folder of each kind holds; the first that fits decides.
_MARKS = {
    "folder": ("metadata.jsonl", "metadata.csv"),
    "urban1k": ("caption", "Urban1k/caption"),
    "dci": ("annotations/*-data.json", "densely_captioned_images/annotations"),
    "docci": ("docci_descriptions.jsonlines",),
    "coco": ("annotations/captions_val2017.json",),
    "flickr30k": ("dataset_flickr30k.json", "flickr_annotations_30k.csv", "results_20130124.token"),
    "datasets": ("dataset_info.json", "dataset_dict.json"),
    "shards": ("*.tar",),
}
_FILE_NAMES = {
    "docci_descriptions.jsonlines": "docci",
    "captions_val2017.json": "coco",
    "dataset_flickr30k.json": "flickr30k",
    "flickr_annotations_30k.csv": "flickr30k",
}
# Where an evaluation set is to be had; some lie in one folder.
SOURCES = {
    "urban1k": "https://huggingface.co/datasets/BeichenZhang/Urban1k",
    "dci": "https://github.com/facebookresearch/DCI (the pictures are those of SA-1B, which it links to)",
    "long-dci": "the same files as dci",
    "docci": "https://google.github.io/docci",
    "coco": "https://cocodataset.org/#download (2017 Val images, 2017 Train/Val annotations)",
    "flickr30k": "https://shannon.cs.illinois.edu/DenotationGraph (and Karpathy's dataset_flickr30k.json)",
    "flickr30k-test": "the same files as flickr30k",
    "sharegpt4v-1k": "https://huggingface.co/datasets/Lin-Chen/ShareGPT4V (the list; pictures of SAM, COCO and LLaVA)",
}
_TOGETHER = {"dci": ("dci", "long-dci"), "flickr30k": ("flickr30k", "flickr30k-test"), "sharegpt4v": ("sharegpt4v-1k",)}


def split_name(text: str) -> tuple[str, str]:
    """Take `KIND:PATH` or a path apart into (kind, path); ValueError names the nearest kind for an unknown one.

    >>> split_name("urban1k:data/Urban1k")
    ('urban1k', 'data/Urban1k')
    """
    found = re.fullmatch(r"([A-Za-z][\w-]+):(.*)", text, re.DOTALL)
    if found is None or Path(text).exists():
        return find_kind(text), text
    kind, path = found[1].lower(), found[2]
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, n=1, cutoff=0.0)[0]
        raise ValueError(f"unknown kind of data {found[1]!r}; the nearest is {near!r}, all are {', '.join(KINDS)}.")
    if not path:
        raise ValueError(f"{text!r} names no path; write {kind}:PATH.")
    return kind, path


def find_kind(text: str) -> str:
    """The kind of the data at a path without a kind; ValueError when nothing is there."""
    path = Path(text)
    if path.is_dir():
        return next((kind for kind, marks in _MARKS.items() if any(any(path.glob(mark)) for mark in marks)), "folder")
    if path.suffix == ".tar" or re.search(r"[*?]|\{\d+\.\.\d+\}", path.name):
        return "shards"
    if not path.is_file():
        raise ValueError(f"{path} does not exist; name a file or folder of pictures with captions, or KIND:PATH.")
    if path.name in _FILE_NAMES:
        return _FILE_NAMES[path.name]
    if path.suffix == ".token":
        return "flickr30k"
    if path.suffix in _TABLES:
        return path.suffix[1:]
    line = next((line for _, _, line, _ in read_lines(path) if line.strip()), "")
    if path.suffix not in _LINES and line.lstrip().startswith(("[", "{")):
        if path.name.startswith("share-captioner"):
            return "sharegpt4v"
        return find_form(path)
    return "tsv" if path.suffix == ".txt" and "\t" in line else "jsonl"


def open_records(
    text: str,
    *,
    image_root: str | Path | None = None,
    image_column: str | None = None,
    caption_column: str | None = None,
    short_caption_column: str | None = None,
    skip_missing: bool | None = None,
) -> Records:
    """Open the data that `text` names; ValueError with one sentence for what the user can mend.

    `image_root`: the folder that the pictures' names start from, where it is not the reader's usual one. The columns
    are those of a user's own table. `skip_missing`: leave out records whose picture is not there; None does so for
    all lists but ShareGPT4V, whose 1.2 M pictures nobody looks for unasked. The evaluation sets always do.
    """
    kind, path = split_name(text)
    given = {"caption_column": caption_column, "short_caption_column": short_caption_column}
    columns = _own_columns(kind, given | {"image_column": image_column})
    if kind in EVALUATION_KINDS and kind not in PARTS:
        return read_evaluation_set(kind, path, image_root=image_root)
    records = _open_own(kind, path, columns, image_root, skip_missing)
    if len(records) == 0 and kind in OWN_KINDS:
        counts = describe_counts(records.left_out) or "it is empty"
        keys = getattr(records, "keys", ())
        found = f"; it has {list_names(keys)}" if keys else ""
        raise ValueError(f"{text} has 0 usable records ({counts}){found}; correct the paths or the captions.")
    return records


def _open_own(
    kind: str, path: str, columns: dict[str, str | None], image_root: str | Path | None, skip_missing: bool | None
) -> Records:
    if kind in PARTS:
        skip = kind != "sharegpt4v" if skip_missing is None else skip_missing
        return read_sharegpt4v(path, name=kind, image_root=image_root, skip_missing=skip)
    if kind == "datasets":
        return read_saved(path, image_root=image_root, **columns)
    if kind == "shards":
        return read_shards(path, **columns)
    skip = skip_missing is None or skip_missing
    if kind in ("tsv", "csv"):
        return read_table(path, image_root=image_root, **columns, skip_missing=skip, name=kind)
    reader = {"jsonl": read_jsonl, "json": read_json, "folder": read_folder}[kind]
    return reader(path, image_root=image_root, **columns, skip_missing=skip)


def _own_columns(kind: str, given: dict[str, str | None]) -> dict[str, str | None]:
    """The columns that data of this kind can be told; ValueError when another is given."""
    own = {"shards": ("caption_column", "short_caption_column")} | dict.fromkeys(_WITH_COLUMNS, tuple(given))
    wrong = [name for name, value in given.items() if value is not None and name not in own.get(kind, ())]
    if wrong:
        raise ValueError(f"{wrong[0]} is set but data of the kind {kind} has fixed names; leave it out.")
    return {name: given[name] for name in own.get(kind, ())}


@dataclasses.dataclass(frozen=True)
class Found:
    """Sets that were opened, by `KIND:PATH`, and one sentence for each that was not."""

    sets: dict[str, Records]
    missing: dict[str, str]


def find_sets(root: Path) -> Found:
    """Look at `root` and the folders and lists in it; ValueError when no set is there."""
    if not root.is_dir():
        raise ValueError(f"--data-root {root} is not a folder; name the one that holds Urban1k, docci, coco and so on.")
    places: dict[str, Path] = {}
    for path in (root, *sorted(root.iterdir())):
        if path.is_dir() or path.name.startswith("share-captioner"):
            for kind in _TOGETHER.get(found := find_kind(str(path)), (found,)):
                places.setdefault(kind, path)
    sets: dict[str, Records] = {}
    missing: dict[str, str] = {}
    for kind in EVALUATION_KINDS:
        try:
            if kind not in places:
                raise ValueError(f"not found; get it from {SOURCES[kind]}")
            options = {"skip_missing": True} if kind == "sharegpt4v-1k" else {}
            records = open_records(f"{kind}:{places[kind]}", **options)
            if len(records) == 0:
                raise ValueError(f"{places[kind]} has none of its pictures; get them from {SOURCES[kind]}")
            sets[f"{kind}:{places[kind]}"] = records
        except ValueError as error:
            missing[kind] = str(error)
    if not sets:
        raise ValueError(
            f"{root} holds none of {', '.join(EVALUATION_KINDS)}; unpack one there, Urban1k for instance: "
            f"{SOURCES['urban1k']}."
        )
    return Found(sets, missing)
