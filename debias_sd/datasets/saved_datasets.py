"""A folder that Hugging Face's `datasets` wrote with `save_to_disk`; the library itself is only needed for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from debias_sd.datasets.columns import SAMPLE, Columns, choose_columns, fold
from debias_sd.datasets.records import Encoded, Picture, Pool, Record


class SavedDataset:
    """Records of one split; rows are read when asked for, so empty captions are not known beforehand."""

    name = "datasets"
    expected: Pool | None = None

    def __init__(self, rows: Any, columns: Columns, root: Path) -> None:
        self._rows, self._columns, self._root = rows, columns, root
        self.left_out: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Record:
        row = self._rows[index]
        key, image = self._picture(row[self._columns.image], index)
        return Record(key, image, self._columns.text_of(row), self._columns.short_of(row))

    def _picture(self, value: Any, index: int) -> tuple[str, Picture]:
        """A path as text, bytes, or what an undecoded Image column holds: bytes and the path they came from."""
        if isinstance(value, str):
            return value, self._root / value
        if isinstance(value, bytes):
            return f"row {index}", Encoded(value, f"row {index}")
        if value is None:
            return f"row {index}", Encoded(b"", f"row {index}")
        path = fold(value.get("path"))
        key = f"row {index}" + (f" ({path})" if path else "")
        if value.get("bytes") is None:
            return key, self._root / path
        return key, Encoded(value["bytes"], key)


def read_saved(
    root: str | Path,
    *,
    image_root: str | Path | None = None,
    image_column: str | None = None,
    caption_column: str | None = None,
    short_caption_column: str | None = None,
) -> SavedDataset:
    """Open the folder of a Dataset, or the `train` split (else the only one) of a DatasetDict.

    ValueError with one sentence when the library is not installed or the folder is no saved data set.
    """
    try:
        import datasets
    except ImportError:
        raise ValueError(f"{root} is read with Hugging Face's datasets, not installed: pip install datasets.") from None
    root = Path(root)
    try:
        rows = datasets.load_from_disk(str(root))
    except (OSError, ValueError, LookupError) as error:  # LookupError: no rows at all, or notes without their keys
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{root} is no folder of datasets.save_to_disk, or an empty one ({first}).") from None
    if isinstance(rows, dict):
        if "train" not in rows and len(rows) != 1:
            raise ValueError(f"{root} has the splits {', '.join(rows)}; name the folder of one, as {root}/NAME.")
        rows = rows["train"] if "train" in rows else next(iter(rows.values()))
    # Undecoded, so that a broken picture is named and counted like one of any other reader.
    for name, feature in rows.features.items():
        if isinstance(feature, datasets.Image):
            rows = rows.cast_column(name, datasets.Image(decode=False))
    sample = [rows[index] for index in range(min(SAMPLE, len(rows)))] or [dict.fromkeys(rows.column_names)]
    columns = choose_columns(
        sample, subject=f"data set {root}", image=image_column, caption=caption_column, short=short_caption_column
    )
    _check_pictures(rows.features[columns.image], columns.image, root)
    return SavedDataset(rows, columns, Path(image_root) if image_root is not None else root)


def _check_pictures(feature: Any, column: str, root: Path) -> None:
    """ValueError unless a column holds pictures: an Image, its path or its bytes."""
    import datasets

    readable = ("string", "large_string", "binary", "large_binary", "null")
    if isinstance(feature, datasets.Image) or getattr(feature, "dtype", None) in readable:
        return
    if isinstance(feature, dict) and {"bytes", "path"} & feature.keys():
        return
    raise ValueError(
        f"column {column} of data set {root} holds {feature}, one picture a row, its path or its bytes are needed; "
        "name another with image_column."
    )
