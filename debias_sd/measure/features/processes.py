"""One process or several (`torchrun` or `accelerate launch`): each embeds its share of the same batches.

The launcher says in the environment how many there are. Batches do not depend on that number, so neither do features.
"""

from __future__ import annotations

import dataclasses
import os
from typing import TypeVar

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
