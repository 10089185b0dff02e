"""Bootstrap intervals over groups of observations that belong together: all claims of a picture, all seeds of a prompt.

Groups are drawn with replacement, as many as there are; two things measured on the same groups and the same draws give
a paired difference.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

SAMPLES = 1000


def draw_groups(groups: int, *, samples: int = SAMPLES, seed: int = 0) -> Int[np.ndarray, "samples groups"]:
    """Numbers of the groups in each draw; the same for the same arguments."""
    return np.random.default_rng(seed).integers(0, groups, (samples, groups))


def middle_of(draws: Float[np.ndarray, " samples"]) -> list[float] | None:
    """The middle 95 % of the draws, those without a value left out; None where fewer than half have one."""
    known = draws[np.isfinite(draws)]
    if 2 * len(known) < max(1, len(draws)):
        return None
    low, high = np.percentile(known, [2.5, 97.5])
    return [float(low), float(high)]
