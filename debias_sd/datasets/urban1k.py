"""Urban1k (Long-CLIP): `image/1.jpg` with `caption/1.txt`, of which the first line counts; one text file is empty.

Source of the protocol: arXiv 2403.15378 and its evaluation script. The empty caption stays in the pool, which is 1,000
to 1,000 in every published table.
"""

from __future__ import annotations

from pathlib import Path

from debias_sd.datasets.listing import NO_CAPTION, NO_PICTURE, NOT_UTF8, LeftOut, find_place
from debias_sd.datasets.records import ListedRecords, Pool, Record
from debias_sd.text_files import NotText, read_text

POOL = Pool(1000, 1000)


def read_urban1k(root: str | Path, *, image_root: str | Path | None = None) -> ListedRecords:
    """Read the folder with `image` and `caption`, or the one above it, in the order of the numbers."""
    captions = find_place(Path(root), ("caption", "Urban1k/caption"), what="Urban1k")
    images = Path(image_root) if image_root is not None else captions.parent / "image"
    texts = {path.stem: path for path in captions.glob("*.txt")}
    pictures = {path.stem: path for path in images.glob("*.jpg")}
    left_out = LeftOut()
    left_out.add(NO_PICTURE, count=len(texts.keys() - pictures.keys()))
    left_out.add(NO_CAPTION, count=len(pictures.keys() - texts.keys()))
    records = []
    for stem in sorted(texts.keys() & pictures.keys(), key=lambda stem: (len(stem), stem)):
        try:
            records.append(Record(stem, pictures[stem], (read_text(texts[stem]).partition("\n")[0].strip(),)))
        except NotText as fault:
            left_out.add(NOT_UTF8, fault.place)
    return ListedRecords("urban1k", tuple(records), POOL, left_out.as_dict())
