"""Pictures whose content is known, with sentences that are true and false of them: what a judge is calibrated on.

The embedded world gives them without end: rendered scenes that no training run has drawn. A user's own are JSON lines,
`{"image": "photo.jpg", "true": ["A red car."], "false": ["A blue car."]}`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from debias_sd.datasets.columns import IMAGE_NAMES, fold
from debias_sd.datasets.listing import check_file
from debias_sd.datasets.pictures import PictureFault, read_content, read_rgb
from debias_sd.datasets.records import Picture, describe_counts
from debias_sd.datasets.row_files import parse_object
from debias_sd.datasets.world import picture_of
from debias_sd.measure.judges.checker import near_miss
from debias_sd.shapes.caption import detail_sentence
from debias_sd.shapes.scene import random_scene
from debias_sd.text import count_of, read_text

TRUE, FALSE = "true", "false"
NEAR_MISS = "near miss"  # a thing of the picture with one property changed
ELSEWHERE = "elsewhere"  # a thing of another picture
THINGS = 3  # of each picture of the world, each with a true and two false sentences
NO_CLAIMS = "no sentence"


@dataclasses.dataclass(frozen=True)
class Claim:
    """A sentence about a picture; `kind` is `true` or says how it is false."""

    sentence: str
    kind: str

    @property
    def is_true(self) -> bool:
        return self.kind == TRUE


@dataclasses.dataclass(frozen=True)
class KnownPicture:
    """One picture and what is claimed of it."""

    picture: Picture
    claims: tuple[Claim, ...]


@dataclasses.dataclass(frozen=True)
class Known:
    """Pictures with claims; `left_out` counts what of the list could not be used."""

    name: str
    pictures: tuple[KnownPicture, ...]
    left_out: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        """Counts, and hashes of the claims and of the pictures' files."""
        claims = [claim for picture in self.pictures for claim in picture.claims]
        digest = hashlib.sha256("\n".join(f"{claim.kind}\t{claim.sentence}" for claim in claims).encode())
        kinds = dict(Counter(claim.kind for claim in claims))
        counts = {"pictures": len(self.pictures), "claims": kinds, "left_out": dict(self.left_out)}
        seen = hashlib.sha256()
        for known in self.pictures:
            seen.update(hashlib.sha256(read_content(known.picture)).digest())
        hashes = {"claims_sha256": digest.hexdigest(), "pictures_sha256": seen.hexdigest()}
        return {"known": self.name, **counts, **hashes}


def world_pictures(*, seed: int, count: int) -> Known:
    """Rendered scenes, each with true sentences, near misses, and sentences about things of another scene."""
    scenes = [random_scene(random.Random(f"eval/{seed}/known/{index}")) for index in range(count + 1)]
    pictures = []
    for index, scene in enumerate(scenes[:-1]):
        rng = random.Random(f"eval/{seed}/claims/{index}")
        claims = []
        for thing in rng.sample(scene.things, THINGS):
            claims.append(Claim(detail_sentence(thing, scene, rng), TRUE))
            claims.append(Claim(detail_sentence(near_miss(thing, rng), scene, rng), NEAR_MISS))
        others = [thing for thing in scenes[index + 1].things if thing not in scene.things]
        claims += [Claim(detail_sentence(thing, scene, rng), ELSEWHERE) for thing in rng.sample(others, THINGS)]
        pictures.append(KnownPicture(picture_of(scene, f"scene-{index}"), tuple(claims)))
    return Known("world", tuple(pictures))


def read_known(path: str | Path, *, image_root: str | Path | None = None, count: int | None = None) -> Known:
    """Read JSON lines; names of pictures start from `image_root`, by default the file's folder.

    `count` takes the first pictures. Pictures that cannot be read, lines without a sentence and repeated sentences of
    a picture are left out and counted. ValueError with one sentence for a file of another form, and where nothing
    true or nothing false is left.
    """
    path = Path(path).expanduser()
    check_file(path, what="file of known pictures")
    root = Path(image_root) if image_root is not None else path.parent
    left_out: Counter[str] = Counter()
    pictures = []
    for number, line in enumerate(read_text(path, what="file of known pictures").split("\n"), start=1):
        if not line.strip():
            continue
        row = parse_object(line, number=number, path=path)
        name, claims = _claims_of(row, where=f"line {number} of {path}")
        if not claims:
            left_out[NO_CLAIMS] += 1
            continue
        try:
            read_rgb(root / name)
        except PictureFault as fault:
            left_out[fault.kind] += 1
            continue
        pictures.append(KnownPicture(root / name, claims))
        if len(pictures) == count:
            break
    kinds = {claim.kind for picture in pictures for claim in picture.claims}
    if len(pictures) < 4 or kinds != {TRUE, FALSE}:
        lost = f" ({describe_counts(left_out)} left out)" if left_out else ""
        raise ValueError(
            f"{path} has {count_of(len(pictures), 'picture')} that can be read{lost} but needs 4 or more, with "
            "sentences that are true and sentences that are false; add some."
        )
    return Known(path.name, tuple(pictures), dict(left_out))


def _claims_of(row: dict[str, Any], *, where: str) -> tuple[str, tuple[Claim, ...]]:
    name = next((row[key] for key in IMAGE_NAMES if isinstance(row.get(key), str)), None)
    if name is None:
        raise ValueError(f"{where} names no picture; write it as image.")
    claims: list[Claim] = []
    for kind in (TRUE, FALSE):
        sentences = row.get(kind, [])
        if not isinstance(sentences, list) or not all(isinstance(sentence, str) for sentence in sentences):
            raise ValueError(f"{kind!r} in {where} is not a list of sentences; write one, it may be empty.")
        claims += [Claim(fold(sentence), kind) for sentence in dict.fromkeys(sentences) if fold(sentence)]
    return name, tuple(claims)
