"""Urban1k (Long-CLIP): `image/1.jpg` with `caption/1.txt`, of which the first line counts; one text file is empty.

Source of the protocol: arXiv 2403.15378 and its evaluation script. The empty caption stays in the pool, which is 1,000
to 1,000 in every published table.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from debias_sd.datasets.listing import NO_CAPTION, NO_PICTURE, find_place
from debias_sd.datasets.records import ListedRecords, Pool, Record

POOL = Pool(1000, 1000)


def read_urban1k(root: str | Path, *, image_root: str | Path | None = None) -> ListedRecords:
    """Read the folder with `image` and `caption`, or the one above it, in the order of the numbers."""
    captions = find_place(Path(root), ("caption", "Urban1k/caption"), what="Urban1k")
    images = Path(image_root) if image_root is not None else captions.parent / "image"
    texts = {path.stem: path for path in captions.glob("*.txt")}
    pictures = {path.stem: path for path in images.glob("*.jpg")}
    left_out = +Counter(
        {NO_PICTURE: len(texts.keys() - pictures.keys()), NO_CAPTION: len(pictures.keys() - texts.keys())}
    )
    records = tuple(
        Record(stem, pictures[stem], (_first_line(texts[stem]),))
        for stem in sorted(texts.keys() & pictures.keys(), key=lambda stem: (len(stem), stem))
    )
    return ListedRecords("urban1k", records, POOL, dict(left_out))


def _first_line(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.readline().strip()
