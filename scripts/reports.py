"""Reports read and grouped: values of a recipe over its training seeds, their mean and spread, titles; as tables."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from debias_sd.report import Report, hash_file, split_name, write_atomically

TITLES = {"base": "CLIP", "long-clip": "Long-CLIP", "debias": "DeBias-CLIP"}
_ORDER = (
    "base", "base-chunked", "base-stretched", "base-by-sentence", "long-clip", "debias", "long-clip-sentences",
    "debias-sentences",
)  # fmt: skip
_WEIGHTED = re.compile(r"(?P<recipe>.+)-l(?P<weight>[\d.]+)")
Pick = Callable[[dict[str, Any]], float | None]


@dataclasses.dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over training seeds; `deviation` is None for one seed."""

    mean: float
    deviation: float | None
    seeds: int

    def __str__(self) -> str:
        return f"{self.mean:.1f}" + ("" if self.deviation is None else f" ± {self.deviation:.1f}")


@dataclasses.dataclass(frozen=True)
class Source:
    """One report file."""

    path: Path
    report: Report

    @property
    def sha256(self) -> str:
        return hash_file(self.path)


@dataclasses.dataclass(frozen=True)
class Reports:
    """All reports of a folder, and the results of one kind by recipe and training seed."""

    sources: tuple[Source, ...]

    @classmethod
    def read(cls, folder: Path) -> Reports:
        """Read every *.json of `folder`; ValueError when there is none."""
        paths = sorted(folder.glob("*.json"))
        if not paths:
            raise ValueError(f"folder {folder} holds no reports; make them with `debias-sd evaluate`.")
        return cls(tuple(Source(path, Report.read(path)) for path in paths))

    def of_kind(self, kind: str) -> dict[str, dict[str, list[dict[str, Any]]]]:
        """Recipe -> training seed -> results (one for each evaluation seed), each with its report's settings."""
        found: dict[str, dict[str, list[dict[str, Any]]]] = {}
        for source in self.sources:
            if source.report.kind != kind:
                continue
            for name, result in source.report.encoders.items():
                recipe, seed = split_name(name)
                found.setdefault(recipe, {}).setdefault(seed or "", []).append(
                    result | {"settings": source.report.settings}
                )
        return {recipe: found[recipe] for recipe in sorted(found, key=_rank)}


def _rank(recipe: str) -> tuple[int, str]:
    plain = split_weight(recipe)[0]
    return (_ORDER.index(plain) if plain in _ORDER else len(_ORDER), recipe)


def split_weight(recipe: str) -> tuple[str, str | None]:
    """`debias-l0.1` -> (`debias`, `0.1`)."""
    match = _WEIGHTED.fullmatch(recipe)
    return (match["recipe"], match["weight"]) if match else (recipe, None)


def title_of(recipe: str) -> str:
    """How a recipe is called in tables: `DeBias-CLIP, λs 0.1`, `CLIP, chunked`."""
    plain, weight = split_weight(recipe)
    family = next((name for name in TITLES if plain == name or plain.startswith(name + "-")), None)
    if family is None:
        return recipe
    suffix = plain[len(family) :].replace("-by-", "-by ").replace("-", ", ")
    return TITLES[family] + suffix + ("" if weight is None else f", λs {weight}")


def values_of(by_seed: dict[str, list[dict[str, Any]]], pick: Pick) -> list[float]:
    """One value for each training seed (the mean over evaluation seeds), without those that were not measurable."""
    values = []
    for results in by_seed.values():
        picked = [value for value in map(pick, results) if value is not None]
        if picked:
            values.append(float(np.mean(picked)))
    return values


def spread_of(values: list[float]) -> Spread | None:
    """Mean and spread; None without values."""
    if not values:
        return None
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Spread(float(np.mean(values)), deviation, len(values))


def at(*path: str | int) -> Pick:
    """Pick the number at a path of keys, None where a part of it is null or missing."""

    def pick(result: dict[str, Any]) -> float | None:
        value: Any = result
        for key in path:
            inside = isinstance(value, list) and isinstance(key, int) and key < len(value)
            value = value[key] if inside else value.get(key) if isinstance(value, dict) else None
        return value

    return pick


def r1(probe: str, way: str, *, of: str = "twins") -> Pick:
    """R@1 on one of the embedded world's sets under a probe, `t2i` or `i2t`."""
    return found(probe, way, "r1", of=of)


def found(probe: str, *path: str, of: str = "twins") -> Pick:
    """Any score of retrieval on one of the embedded world's sets under a probe."""
    return at("sets", f"world-{of.replace('_', '-')}", "probes", probe, *path)


def read(*path: str | int) -> Pick:
    """What is read of the world's captions, by place."""
    return at("reading", "world", *path)


def drawn(*path: str | int) -> Pick:
    """What the checker says of the pictures of the world's prompts."""
    return at("judges", "checker", *path)


def table_of(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table."""
    return ["|" + "".join(f" {cell} |" if cell else " |" for cell in heads), "|---" * len(heads) + "|"] + [
        f"| {' | '.join(row)} |" for row in rows
    ]


def replace_between(document: Path, marks: tuple[str, str], lines: list[str]) -> None:
    """Write `lines` between the two marks of `document`; ValueError when it has none."""
    text, (begin, end) = document.read_text(encoding="utf-8"), marks
    if begin not in text or end not in text.split(begin)[1]:
        raise ValueError(
            f"{document} lacks the marks of its table; put back {begin!r} and {end!r} or leave out --readme."
        )
    before, rest = text.split(begin, 1)
    after, table = rest.split(end, 1)[1], "\n".join(lines)
    write_atomically(document, f"{before}{begin}\n{table}\n{end}{after}".encode())
