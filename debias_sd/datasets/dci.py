"""DCI, densely captioned images (arXiv 2312.08578): `annotations/*.json`, `photos/`, `splits.json`.

The caption is `short_caption` and `extra_caption` put together without a separator, stripped; Long-DCI has the
`extra_caption` alone, and no record where that is empty. All splits are one pool of 7,805; Long-DCI has 7,602 in one
published rebuild.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from debias_sd.datasets.columns import NoText, check_text
from debias_sd.datasets.listing import BROKEN, NO_CAPTION, NOT_UTF8, LeftOut, find_place, list_records, load_json
from debias_sd.datasets.records import ListedRecords, Pool, Record
from debias_sd.text_files import NotText

POOLS = {"dci": Pool(7805, 7805), "long-dci": Pool(7602, 7602)}
_PLACES = ("annotations", "densely_captioned_images/annotations", "data/densely_captioned_images/annotations")


def read_dci(
    root: str | Path, *, long: bool = False, split: str | None = None, image_root: str | Path | None = None
) -> ListedRecords:
    """Read the folder with `annotations` (or one above it), in the order of the files' names.

    `split` takes one of `splits.json` (train, valid, test) instead of all records.
    """
    annotations = find_place(Path(root), _PLACES, what="DCI")
    photos = Path(image_root) if image_root is not None else annotations.parent / "photos"
    files = sorted(path for path in annotations.glob("*.json") if path.name != "splits.json")
    if split is not None:
        named = _split_names(annotations.parent / "splits.json", split)
        files = [path for path in files if path.name in named]
    left_out = LeftOut()
    name = "long-dci" if long else "dci"
    records = _read(files, photos, long=long, left_out=left_out)
    return list_records(name, records, expected=POOLS[name] if split is None else None, left_out=left_out)


def _read(files: list[Path], photos: Path, *, long: bool, left_out: LeftOut) -> Iterator[Record]:
    for path in files:
        try:
            row = load_json(path, kind=dict, what="an annotation of DCI")
            texts = [row.get(name) for name in ("short_caption", "extra_caption")]
            short, extra = ("" if text is None else check_text(text) for text in texts)
        except (NotText, NoText) as fault:
            left_out.add(*((NOT_UTF8, fault.place) if isinstance(fault, NotText) else (str(fault),)))
            continue
        if not isinstance(row.get("image"), str):
            left_out.add(BROKEN)
            continue
        caption = extra.strip() if long else (short + extra).strip()
        if caption:
            yield Record(row["image"], photos / row["image"], (caption,), short.strip() or None)
        else:
            left_out.add(NO_CAPTION)


def _split_names(path: Path, split: str) -> set[str]:
    splits = load_json(path, kind=dict, what="DCI's splits.json")
    if split not in splits:
        raise ValueError(f"{path} has no split {split!r}, it has {', '.join(splits)}; name one of them.")
    return {Path(name).name for name in splits[split]}
