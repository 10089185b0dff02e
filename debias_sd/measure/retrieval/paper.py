"""Which of the sets of the published tables lie below a folder, under which probes, and where to get the others."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from debias_sd.datasets.names import EVALUATION_KINDS, find_kind, open_records
from debias_sd.datasets.records import Records
from debias_sd.probes import GROUPS

# What is measured on each set: on DOCCI the paper's robustness tables and the sentences in front.
PROBES = {kind: ("keep",) for kind in EVALUATION_KINDS} | {"docci": (*GROUPS["debias"], *GROUPS["padding"])}
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
