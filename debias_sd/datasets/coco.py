"""COCO val2017: `annotations/captions_val2017.json` and `val2017/`, 5,000 pictures and 25,014 captions.

All captions count: twelve pictures have 6 of them and one has 7. Evaluations that keep 5 of each have another pool.
"""

from __future__ import annotations

from pathlib import Path

from debias_sd.datasets.columns import NoText, check_text
from debias_sd.datasets.listing import NO_CAPTION, LeftOut, find_place, list_records, load_json
from debias_sd.datasets.records import ListedRecords, Pool, Record

POOL = Pool(5000, 25_014)
_PLACES = ("annotations/captions_val2017.json", "captions_val2017.json")


def read_coco(root: str | Path, *, image_root: str | Path | None = None) -> ListedRecords:
    """Read the folder with `annotations` (or the file itself), pictures in the order of the file."""
    path = Path(root)
    path = find_place(path, _PLACES, what="COCO val2017") if path.is_dir() else path
    content = load_json(path, kind=dict, what="COCO's captions file")
    try:
        files = {row["id"]: row["file_name"] for row in content["images"]}
        texts: dict[int, list[str]] = {number: [] for number in files}
        for row in content["annotations"]:
            texts[row["image_id"]].append(check_text(row["caption"]).strip())
    except NoText as error:
        raise ValueError(f"{path} has a {error}; copy it again.") from None
    except (KeyError, TypeError, AttributeError):
        raise ValueError(f"{path} lacks images or annotations as COCO's captions have them; copy it again.") from None
    images = Path(image_root) if image_root is not None else _images_of(path)
    left_out = LeftOut()
    records = []
    for number, file in files.items():
        captions = tuple(text for text in texts[number] if text)
        if captions:
            records.append(Record(file, images / file, captions))
        else:
            left_out.add(NO_CAPTION)
    return list_records("coco", records, expected=POOL, left_out=left_out)


def _images_of(path: Path) -> Path:
    root = path.parent.parent if path.parent.name == "annotations" else path.parent
    return find_place(root, ("val2017", "images/val2017"), what="COCO val2017")
