"""Published R@1 of the models that this project is compared with, from one data file, published.json.

A row belongs to an encoder whose name is the row's id, with or without a training seed: `debias-b16`, `debias-b16-s0`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path

from debias_sd.report import split_name

WAYS = ("t2i", "i2t")
_FILE = Path(__file__).with_name("published.json")


@dataclasses.dataclass(frozen=True)
class PublishedRow:
    """One model of one published table; `values` are R@1 in percent by (set, probe, direction)."""

    id: str
    name: str
    values: dict[tuple[str, str, str], float]


@dataclasses.dataclass(frozen=True)
class PublishedTable:
    """One published table or figure."""

    title: str
    source: str
    rows: tuple[PublishedRow, ...]

    def columns(self, *, way: str) -> list[tuple[str, str]]:
        """The (set, probe) pairs that some row has a value of, in the table's order."""
        found = (key[:2] for row in self.rows for key in row.values if key[2] == way)
        return list(dict.fromkeys(found))


@functools.cache
def published_tables() -> tuple[PublishedTable, ...]:
    """All tables of the data file."""
    tables = json.loads(_FILE.read_text(encoding="utf-8"))["tables"]
    return tuple(PublishedTable(t["title"], t["source"], tuple(map(_row, t["rows"]))) for t in tables)


def _row(row: dict) -> PublishedRow:
    values = {}
    for key, pair in row["t2i_i2t"].items():
        data, probe = key.split("/")
        values |= {(data, probe, way): value for way, value in zip(WAYS, pair, strict=True) if value is not None}
    return PublishedRow(row["id"], row["name"], values)


def published_value(encoder: str, data: str, probe: str, way: str) -> float | None:
    """The published R@1 of the model that an encoder is named after, or None.

    >>> published_value("debias-b16-s0", "docci", "move", "t2i"), published_value("mine", "docci", "move", "t2i")
    (76.68, None)
    """
    recipe, _ = split_name(encoder)
    for table in published_tables():
        for row in table.rows:
            if row.id in (recipe, encoder) and (data, probe, way) in row.values:
                return row.values[data, probe, way]
    return None
