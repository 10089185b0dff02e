"""The embedded world as data: sets of pictures with captions, captions to read, prompts to draw.

`world-twins` are near-twins in families of four, which differ in one detail; `world-summary`, `world-arbitrary` and
`world-details-1` to `world-details-4` are other scenes with short captions (`shapes.heldout`); `world` is all of them.
Every item is a function of the evaluation seed, the set and its number alone.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from PIL import Image

from debias_sd.datasets.records import Encoded, ListedRecords, Record
from debias_sd.probes import GROUPS
from debias_sd.shapes.heldout import FAMILY, prompt_set, short_kinds, short_set, twin_set
from debias_sd.shapes.render import render
from debias_sd.shapes.scene import Scene

NAME = "world"
COUNT = 1000  # pictures of a set
PROMPTS = 200  # captions that are read, prompts that are drawn
TWINS = f"{NAME}-twins"
_SHORT = {f"{NAME}-{kind.replace('_', '-')}": kind for kind in short_kinds()}
PADDED = (f"{NAME}-summary", f"{NAME}-arbitrary")
# What each set is measured under where no probe is named.
PROBES = {TWINS: GROUPS["debias"]} | {
    name: ("keep", *GROUPS["pads"]) if name in PADDED else ("keep",) for name in _SHORT
}


def world_records(name: str = TWINS, *, seed: int, count: int = COUNT) -> ListedRecords:
    """One of the world's sets, its pictures as PNG; near-twins are whole families, at least one."""
    if name == TWINS:
        twins = twin_set(seed, families=max(1, count // FAMILY))
        texts: Iterable[str] = (caption.text for caption in twins.captions)
        return ListedRecords(name, _records(twins.scenes, texts), family=FAMILY)
    short = short_set(seed, count=count)
    return ListedRecords(name, _records(short.scenes, short.texts[_SHORT[name]]))


def world_prompts(*, seed: int, count: int = PROMPTS) -> list[str]:
    """Long captions of independent scenes."""
    return [caption.text for caption in prompt_set(seed, count=count).captions]


def _records(scenes: Sequence[Scene], texts: Iterable[str]) -> tuple[Record, ...]:
    records = []
    for number, (scene, text) in enumerate(zip(scenes, texts, strict=True)):
        content = io.BytesIO()
        Image.fromarray(render(scene)).save(content, "PNG")
        name = f"scene-{number}"
        records.append(Record(name, Encoded(content.getvalue(), name), (text,)))
    return tuple(records)
