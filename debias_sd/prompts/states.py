"""Windows of token ids to what a denoiser reads of one text encoder: states joined in order, and pooled vectors.

Texts of one window go through the encoder side by side (the prompts, then the negative prompts), as diffusers does it,
so that they equal diffusers' bit for bit. Else each different window is read once: an empty negative prompt is one
window, however long the prompt and however large the batch is.

Weights are AUTOMATIC1111's (stable-diffusion-webui, modules/sd_hijack_clip.py): each state times the weight of its
token, then the window times one factor that gives it its mean back.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

ROWS = 8  # windows in one forward: memory stays flat, and on a CPU more are no faster
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
    if count == 1:
        return [read(torch.tensor([windows[0] for windows in side])) for side in sides]
    texts = [windows for side in sides for windows in side]
    known = _read_each(read, [windows[0] for windows in texts], {})
    has_states, has_pooled = (one is not None for one in next(iter(known.values())))
    if has_states or pooled == "mean":
        known = _read_each(read, [row for windows in texts for row in windows], known)
    if has_states and any(len(windows) < count for windows in texts):
        known = _read_each(read, [fill], known)
    return [
        Encoded(
            _join([[*windows, *[fill] * (count - len(windows))] for windows in side], known) if has_states else None,
            _pool([windows if pooled == "mean" else windows[:1] for windows in side], known) if has_pooled else None,
        )
        for side in sides
    ]


def _read_each(read: Read, rows: Sequence[Row], known: dict[Row, Encoded]) -> dict[Row, Encoded]:
    """Return `known` with each of `rows`, in forwards of a few."""
    others = [row for row in dict.fromkeys(rows) if row not in known]
    found = dict(known)
    for start in range(0, len(others), ROWS):
        chunk = others[start : start + ROWS]
        columns = [[None] * len(chunk) if tensor is None else tensor for tensor in read(torch.tensor(chunk))]
        found |= {row: Encoded(*parts) for row, *parts in zip(chunk, *columns, strict=True)}
    return found


def _join(side: Sequence[Sequence[Row]], known: dict[Row, Encoded]) -> Float[Tensor, "batch tokens width"]:
    states = torch.stack([known[row].states for windows in side for row in windows])
    return states.reshape(len(side), -1, states.shape[-1])


def _pool(side: Sequence[Sequence[Row]], known: dict[Row, Encoded]) -> Float[Tensor, "batch projection"]:
    """Return the mean of each text's vectors, taken in float32; of one vector it is that vector."""
    dtype = known[side[0][0]].pooled.dtype
    return torch.stack(
        [torch.stack([known[row].pooled for row in windows]).float().mean(dim=0) for windows in side]
    ).to(dtype)


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
