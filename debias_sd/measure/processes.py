"""One process or several (`torchrun` or `accelerate launch`), each with threads side by side: the same bits in all.

The launcher says in the environment how many processes there are; each embeds its share of the same batches, which do
not depend on that number, so neither do features.

Batches run side by side, each on one thread of its own. A matrix product divides its rows by their number and over
threads, and the last bits of a row depend on where it was divided. Batches of one shape on one thread each leave
nothing to depend on: features are equal to the last bit in any order and company, from the cache or not, in one process
or several.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import torch
import torch.distributed

Item = TypeVar("Item")


@dataclasses.dataclass(frozen=True)
class Processes:
    """This process's number and how many there are."""

    rank: int = 0
    count: int = 1

    @classmethod
    def start(cls) -> Processes:
        """Join the others that the launcher started; alone where there is no launcher."""
        count = int(os.environ.get("WORLD_SIZE", 1))
        if count < 2:
            return cls()
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group("gloo")
        return cls(torch.distributed.get_rank(), count)

    def finish(self) -> None:
        """Leave the others: all of them wait until every one is done."""
        if self.count > 1 and torch.distributed.is_initialized():
            torch.distributed.barrier()
            torch.distributed.destroy_process_group()

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def share(self, items: list[Item]) -> list[Item]:
        """Every `count`-th item: lengths are sorted, so that all get as much to do."""
        return items[self.rank :: self.count]

    def gather(self, items: list[Item]) -> list[Item]:
        """The items of all processes, those of the first one first."""
        if self.count < 2:
            return items
        parts: list[list[Item]] = [[] for _ in range(self.count)]
        torch.distributed.all_gather_object(parts, items)
        return [item for part in parts for item in part]


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
