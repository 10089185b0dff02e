"""What every term that looks at one pair at a time has: name, weight, loss, and what it asks of batch and towers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor, nn


class PairTerm(nn.Module):
    """One term of the loss. Its setting is `<name>_weight` of `terms.TermWeights`."""

    name: ClassVar[str]
    distils: ClassVar[bool] = False  # made with a frozen copy of the initial checkpoint's text tower
    reads_states: ClassVar[bool] = True  # of all tokens, not of the pooled one alone
    weight: float = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.heads: nn.Module | None = None  # of its own that train with the towers: `heads.loss(batch, vision, text)`

    @staticmethod
    def collate(items: list[dict[str, Any]], texts: Any) -> dict[str, Tensor]:
        """What it needs in a batch beside pictures and captions, one row a pair; `texts` is a `data.batches.Texts`."""
        return {}

    def loss(self, batch: dict[str, Any], out: dict[str, Tensor]) -> Tensor:
        """Its value, a mean over the pairs, so that it does not depend on the number of processes or chunks.

        `out` is what the towers return for `batch`.
        """
        raise NotImplementedError


def collators_of(terms: Sequence[PairTerm]) -> tuple[Any, ...]:
    """What a data worker calls; it needs none of the terms' weights."""
    return tuple(type(term).collate for term in terms)
