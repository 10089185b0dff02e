"""Batches run side by side, each on one thread of its own, so that a feature is the same whatever runs beside it.

A matrix product divides its rows by their number and over threads, and the last bits of a row depend on where it was
divided. Batches of one shape on one thread each leave nothing to depend on: features are equal to the last bit in any
order and company, from the cache or not, in one process or several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import torch

Task = TypeVar("Task")
Result = TypeVar("Result")


def run_side_by_side(function: Callable[[Task], Result], tasks: Sequence[Task], *, lanes: int) -> Iterator[Result]:
    """Yield `function` of every task in order, up to `lanes` at work; a lane's torch has one thread."""
    waiting = iter(tasks)
    with ThreadPoolExecutor(lanes, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        running = [pool.submit(function, task) for task in islice(waiting, 2 * lanes)]
        try:
            while running:
                result = running.pop(0).result()
                running += [pool.submit(function, task) for task in islice(waiting, 1)]
                yield result
        finally:
            for future in running:
                future.cancel()
