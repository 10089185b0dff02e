"""Fingerprints of what a run starts from and of the data that it reads: two runs with equal ones have the same origin.

Of records on disk, as many are looked at as a network disk gives in seconds: their number, the captions of `CAPTIONS`
of them, the sizes of `SIZES` pictures and the whole of `PICTURES`, each spread evenly from the first to the last.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from debias_sd.datasets.pictures import PictureFault, read_content
from debias_sd.datasets.records import Encoded, Picture, Piece
from debias_sd.run_state import fingerprint, weights_fingerprint

if TYPE_CHECKING:
    from debias_sd.datasets.records import Records
    from train_encoder.data.pairs import Pairs
    from train_encoder.model.bases import Start

CAPTIONS, SIZES, PICTURES = 10_000, 4_096, 256
SHAPES = 16
PROBE = "A photo of two small red cats, 1990; l'été <|endoftext|>"


def start_origin(start: Start) -> dict[str, Any]:
    """Of the model before its position table is stretched, of its tokenizer, and of how it reads pictures."""
    words = [sorted(start.tokenizer.get_vocab().items()), start.tokenizer(PROBE).input_ids]
    return {
        "weights of the start": weights_fingerprint(start.model.state_dict()),
        "tokenizer of the start": fingerprint([json.dumps(words).encode()]),
        "preprocessing of the start": fingerprint([repr(start.preprocessing).encode()]),
    }


def data_origin(data: Pairs) -> dict[str, Any]:
    """Of the records, or of the first pairs of the shapes world."""
    records = data.records
    if records is not None:
        return {
            "number of records of train_data": len(records),
            "captions of train_data": fingerprint(_captions(records)),
            "pictures of train_data": fingerprint(_pictures(records)),
        }
    pairs = [data[number] for number in range(SHAPES)]
    return {
        "captions of train_data": fingerprint(pair["text"].encode() for pair in pairs),
        "pictures of train_data": fingerprint(pair["image"].tobytes() for pair in pairs),
    }


def _spread(count: int, at_most: int) -> np.ndarray:
    """At most `at_most` of the numbers 0 to count - 1, evenly spread, first and last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, at_most)).round().astype(np.int64))


def _captions(records: Records) -> Iterator[bytes]:
    for index in _spread(len(records), CAPTIONS):
        record = records[int(index)]
        yield json.dumps([record.key, record.captions, record.short]).encode()


def _pictures(records: Records) -> Iterator[bytes]:
    for index in _spread(len(records), SIZES):
        yield str(_size(records[int(index)].image)).encode()
    for index in _spread(len(records), PICTURES):
        try:
            yield read_content(records[int(index)].image)
        except PictureFault as fault:  # it is replaced in training, by the same other one each time
            yield fault.kind.encode()


def _size(picture: Picture) -> int | None:
    if isinstance(picture, Encoded):
        return len(picture.content)
    if isinstance(picture, Piece):
        return picture.size
    try:
        return os.stat(picture).st_size
    except OSError:
        return None
