"""Windows of token ids to what a denoiser reads of one text encoder: states joined in order, and pooled vectors.

Texts of one window go through the encoder side by side (the prompts, then the negative prompts), as diffusers does it,
so that they equal diffusers' bit for bit. Else each different window is read once: an empty negative prompt is one
window, however long the prompt and however large the batch is.

By sentences, the first window is read as it is, each sentence after it alone, and only the states of their words are
kept: one start token, the words in order, and in every slot after them the state of the end token of the whole text,
which the encoder reads with its position table stretched (`whole.py`). That one state is what a guided picture takes
from the text as a whole, a background for instance, which the end of no single sentence has (docs/prompts.md has the
measurements). No pads are read.

Weights are AUTOMATIC1111's (stable-diffusion-webui, modules/sd_hijack_clip.py): each state times the weight of its
token, then the window times one factor that gives it its mean back.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from debias_sd.prompts.cuts import LONGALIGN

ROWS = 8  # windows in one forward: memory stays flat, and on a CPU more are no faster
POOLED = ("first", "mean")
_PADS = 60  # LongAlign's filling: the mean of the last states of the empty text
_STEP = 8  # lengths of rows without pads, so that a compiled encoder is compiled for few
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
    known = _read_each(read, [windows[0] for windows in texts], {}, fill=fill)
    has_states, has_pooled = (one is not None for one in next(iter(known.values())))
    if has_states or pooled == "mean":
        known = _read_each(read, [row for windows in texts for row in windows], known, fill=fill)
    if has_states and any(len(windows) < count for windows in texts):
        known = _read_each(read, [fill], known, fill=fill)
    return [
        Encoded(
            _join([[*windows, *[fill] * (count - len(windows))] for windows in side], known) if has_states else None,
            _pool([windows if pooled == "mean" else windows[:1] for windows in side], known) if has_pooled else None,
        )
        for side in sides
    ]


def encode_sentences(
    read: Read,
    sides: Sequence[Sequence[Sequence[Row]]],
    firsts: Sequence[Sequence[Row]],
    *,
    fill: Row,
    count: int,
    layout: str,
    pooled: str = "first",
    read_whole: Read | None = None,
) -> list[Encoded]:
    """Return the encoding of each side, (batch, count * window, width), as `layout` joins sentences.

    Args:
        read: the encoder, for a batch of rows of equal length.
        sides: side by side, text by text, its sentences without pads; or its one window, which is encoded as
            `encode_windows` does it, empty windows after it.
        firsts: the first window of each text, side by side: its pooled vector is "first".
        fill: the empty window.
        layout: "sentence" as above; "longalign" (arXiv 2410.11817) keeps each start token, and fills with the mean of
            the last states of the empty text.
        read_whole: the encoder with its position table stretched, for texts that are longer than a window.
    """
    texts = [rows for side in sides for rows in side]
    known = _read_each(read, [row for rows in texts for row in rows], {}, fill=fill)
    has_states, has_pooled = (one is not None for one in next(iter(known.values())))
    if has_pooled and pooled == "first":
        known = _read_each(read, [row for side in firsts for row in side], known, fill=fill)
    if has_states:
        known = _read_each(read, [fill], known, fill=fill)
        if layout != LONGALIGN:
            wholes = [whole_row(rows) for rows in texts if len(rows) > 1]
            known = _read_each(read, [row for row in wholes if len(row) <= len(fill)], known, fill=fill)
            if read_whole is not None:  # else no text is longer than a window
                known = _read_each(read_whole, wholes, known, fill=fill)
    return [
        Encoded(
            torch.stack([_lay_out(rows, known, fill, count, layout) for rows in side]) if has_states else None,
            _pool(side if pooled == "mean" else [[row] for row in first], known) if has_pooled else None,
        )
        for side, first in zip(sides, firsts, strict=True)
    ]


def _lay_out(
    rows: Sequence[Row], known: dict[Row, Encoded], fill: Row, count: int, layout: str
) -> Float[Tensor, "tokens width"]:
    """Return the states of a text's sentences, joined and filled to `count` windows."""
    if len(rows) == 1 and len(rows[0]) == len(fill):
        return torch.cat([known[row].states for row in (*rows, *[fill] * (count - 1))])
    states = [known[row].states for row in rows]
    if layout == LONGALIGN:
        pads = known[fill].states[-_PADS:]
        body, end = [one[:-1] for one in states], pads.float().mean(dim=0, keepdim=True).to(pads.dtype)
    else:
        body, end = [states[0][:1], *(one[1:-1] for one in states)], known[whole_row(rows)].states[-1:]
    joined = torch.cat(body)
    return torch.cat([joined, end.expand(count * len(fill) - len(joined), -1)])


def whole_row(rows: Sequence[Row]) -> Row:
    """Return the sentences of a text, each with start and end token, as one row."""
    return (*rows[0][:1], *(one for row in rows for one in row[1:-1]), *rows[-1][-1:])


def _read_each(read: Read, rows: Sequence[Row], known: dict[Row, Encoded], *, fill: Row) -> dict[Row, Encoded]:
    """Return `known` with each of `rows`, in forwards of a few windows' tokens; shorter rows are read side by side."""
    others = sorted((row for row in dict.fromkeys(rows) if row not in known), key=len, reverse=True)
    found = dict(known)
    while others:
        longest = len(others[0])
        length = row_length(longest) if longest > len(fill) else min(len(fill), row_length(longest))
        size = max(1, ROWS * len(fill) // length)
        chunk, others = others[:size], others[size:]
        ids = torch.tensor([(*row, *fill[-1:] * (length - len(row))) for row in chunk])
        columns = [[None] * len(chunk) if tensor is None else tensor for tensor in read(ids)]
        for row, states, vector in zip(chunk, *columns, strict=True):
            found[row] = Encoded(None if states is None else states[: len(row)], vector)
    return found


def row_length(tokens: int) -> int:
    """Return the length of the row that so many tokens are read in."""
    return -(-tokens // _STEP) * _STEP


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
