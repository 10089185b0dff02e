"""Windows of token ids to what a denoiser reads of one text encoder: states joined in order, and pooled vectors.

The first windows of a side (the prompts, or the negative prompts) go through the encoder together, as diffusers does
it: so one window equals diffusers bit for bit. All other windows follow, each different one once: a short negative
prompt is filled up with one empty window, however long the prompt is.

Weights are AUTOMATIC1111's (stable-diffusion-webui, modules/sd_hijack_clip.py): each state times the weight of its
token, then the window times one factor that gives it its mean back.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

ROWS = 8  # windows in one forward behind the first ones: memory stays flat, more are no faster
POOLED = ("first", "mean")
# A mean below this part of the mean size is rounding (normalised states of an encoder without bias have mean 0).
_MEAN_OF_SIZE = 1e-3
_MOST = 10.0  # and a factor beyond it, or below its inverse, would drown all that is not weighted

Row = tuple[int, ...]  # the ids of one window, with start, end and pads


class Encoded(NamedTuple):
    """What an encoder makes of a batch of windows or texts; None is what the denoiser does not read of it."""

    states: Float[Tensor, "batch tokens width"] | None
    pooled: Float[Tensor, "batch projection"] | None


Read = Callable[[Int[Tensor, "batch window"]], Encoded]


def encode_windows(
    read: Read, sides: Sequence[Sequence[Sequence[Row]]], *, fill: Row, count: int, pooled: str = "first"
) -> list[Encoded]:
    """Return the encoding of each side: states of all windows of a text joined, (batch, count * window, width).

    Args:
        read: the encoder, for a batch of windows.
        sides: side by side, text by text, the text's windows.
        fill: the empty window, for texts with fewer than `count`.
        pooled: "first" is the vector of a text's first window, "mean" of all its own windows.
    """
    firsts = [read(torch.tensor([windows[0] for windows in side])) for side in sides]
    if count == 1:
        return firsts
    known: dict[Row, tuple[Encoded, int]] = {}
    for side, encoded in zip(sides, firsts, strict=True):
        known |= {windows[0]: (encoded, index) for index, windows in enumerate(side)}
    with_states = firsts[0].states is not None
    if with_states or pooled == "mean":
        wanted = (row for side in sides for windows in side for row in windows[1:])
        _read_others(read, [*wanted, *([fill] if with_states else [])], known)
    return [
        Encoded(
            _join(side, known, fill=fill, count=count) if with_states else None,
            _mean(side, known) if pooled == "mean" and encoded.pooled is not None else encoded.pooled,
        )
        for side, encoded in zip(sides, firsts, strict=True)
    ]


def _read_others(read: Read, rows: list[Row], known: dict[Row, tuple[Encoded, int]]) -> None:
    """Add each row that is not in `known`."""
    others = [row for row in dict.fromkeys(rows) if row not in known]
    for start in range(0, len(others), ROWS):
        chunk = others[start : start + ROWS]
        encoded = read(torch.tensor(chunk))
        known |= {row: (encoded, index) for index, row in enumerate(chunk)}


def _join(
    side: Sequence[Sequence[Row]], known: dict[Row, tuple[Encoded, int]], *, fill: Row, count: int
) -> Float[Tensor, "batch tokens width"]:
    texts = ([*windows, *[fill] * (count - len(windows))] for windows in side)
    found = [known[row] for text in texts for row in text]
    states = torch.stack([encoded.states[index] for encoded, index in found])
    return states.reshape(len(side), -1, states.shape[-1])


def _mean(side: Sequence[Sequence[Row]], known: dict[Row, tuple[Encoded, int]]) -> Float[Tensor, "batch projection"]:
    texts = ([known[row] for row in windows] for windows in side)
    means = [torch.stack([encoded.pooled[index].float() for encoded, index in text]).mean(dim=0) for text in texts]
    return torch.stack(means).to(known[side[0][0]][0].pooled.dtype)


def weigh(
    states: Float[Tensor, "batch tokens width"], weights: Float[Tensor, "batch tokens"], *, window: int
) -> Float[Tensor, "batch tokens width"]:
    """Return the states times their tokens' weights, each window of `window` tokens with the mean it had before.

    In float32, then in the dtype of `states`, always finite. The mean stays as the weights make it where it is about
    zero before or after, or changes its sign or its size more than tenfold: the factor would be rounding, or turn the
    picture inside out. Windows without weights do not change.
    """
    plain = states.float().reshape(len(states), -1, window, states.shape[-1])
    heavy = plain * weights.float().to(states.device).reshape(len(states), -1, window, 1)
    before, after = plain.mean(dim=(2, 3)), heavy.mean(dim=(2, 3))
    sizes = plain.abs().mean(dim=(2, 3)), heavy.abs().mean(dim=(2, 3))
    factor = before / after
    sound = (before.abs() > _MEAN_OF_SIZE * sizes[0]) & (after.abs() > _MEAN_OF_SIZE * sizes[1])
    sound &= (factor > 1 / _MOST) & (factor < _MOST)
    heavy = heavy * torch.where(sound, factor, 1.0)[:, :, None, None]
    limit = torch.finfo(states.dtype).max
    return heavy.clamp(-limit, limit).to(states.dtype).reshape(states.shape)
