"""Miniature sets of pictures with captions, for retrieval."""

import json
import random
from pathlib import Path

import numpy as np
from PIL import Image

from tests.tiny import LONG_PROMPT

SENTENCES = LONG_PROMPT.split(". ")


def draw(path: Path, number: int) -> None:
    """A small picture unlike the others, as PNG: no codec may change it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = random.Random(number)
    Image.frombytes("RGB", (12, 8), rng.randbytes(12 * 8 * 3)).resize((48, 32)).save(path, "PNG")


def caption(number: int) -> str:
    """A caption of six sentences, the same in every run."""
    rng = random.Random(f"caption {number}")
    return " ".join(f"{sentence.rstrip('.')} {number}." for sentence in rng.sample(SENTENCES, 6))


def make_folder(folder: Path, *, count: int = 12) -> Path:
    """A folder with metadata.jsonl, as a user has one."""
    for number in range(count):
        draw(folder / f"{number}.png", number)
    rows = [{"file_name": f"{number}.png", "text": caption(number)} for number in range(count)]
    (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def make_coco(root: Path, *, count: int = 6) -> Path:
    """COCO's form, with five captions a picture and six of the first."""
    images = [{"id": number, "file_name": f"{number:012d}.jpg"} for number in range(count)]
    pairs = [(number, place) for number in range(count) for place in range(6 if number == 0 else 5)]
    texts = [f"{caption(n).split(chr(46))[0]} seen {p}." for n, p in pairs]
    rows = [{"image_id": n, "id": i, "caption": texts[i]} for i, (n, _) in enumerate(pairs)]
    (root / "annotations").mkdir(parents=True)
    (root / "annotations" / "captions_val2017.json").write_text(json.dumps({"images": images, "annotations": rows}))
    for number in range(count):
        draw(root / "val2017" / f"{number:012d}.jpg", number)
    return root


def make_urban1k(root: Path, *, count: int = 8) -> Path:
    """Urban1k's form; the last text file is empty."""
    for number in range(1, count + 1):
        draw(root / "image" / f"{number}.jpg", number)
        path = root / "caption" / f"{number}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text("" if number == count else caption(number) + "\nA second line.")
    return root


def make_docci(root: Path, *, count: int = 8) -> Path:
    rows = [
        {"example_id": f"test_{n}", "split": "test", "image_file": f"test_{n}.jpg", "description": caption(n)}
        for n in range(count)
    ]
    root.mkdir(parents=True)
    (root / "docci_descriptions.jsonlines").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for number in range(count):
        draw(root / "images" / f"test_{number}.jpg", number)
    return root


def check_ranks(found: dict, images: np.ndarray, texts: np.ndarray, owners: np.ndarray, *, few_ties: bool = True):
    """Assert that a report's scores of both directions are those of `images` and `texts`, normalised [n, dim].

    Another processor sums in another order, and two similarities that differ in the last bits change places. So every
    rank has a lowest and a highest value, by what lies within 1e-5 of the right one, and scores lie between.
    `few_ties`: the data must be such that this says something.
    """
    similarity, own = texts @ images.T, owners[:, None] == np.arange(len(images))
    for way, scores, right in (("t2i", similarity, own), ("i2t", similarity.T, own.T)):
        best = np.where(right, scores, -np.inf).max(axis=1, keepdims=True)
        lowest, highest = (1 + ((scores > best + slack) & ~right).sum(axis=1) for slack in (1e-5, -1e-5))
        assert not few_ties or (highest - lowest).mean() < 1, "too many near-ties for a test that could fail"
        measures = {"mean_rank": np.mean, "median_rank": np.median, "r1": lambda ranks: 100 * np.mean(ranks == 1)}
        for name in measures.keys() & found[way].keys():
            ends = sorted((measures[name](lowest), measures[name](highest)))
            assert ends[0] - 1e-6 <= found[way][name] <= ends[1] + 1e-6, (way, name)
