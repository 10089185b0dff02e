"""Position tables: Long-CLIP's knowledge-preserving stretch, and the merge of its two tables into one.

Source: Long-CLIP (arXiv 2403.15378, section 3.2), used unchanged by DeBias-CLIP (arXiv 2602.22419). CLIP was trained
on captions of about 20 tokens, so its first 20 positions are well trained and are kept; the others are made 4 times
finer by linear interpolation. Worked number: 20 + (77 - 20) * 4 = 248; SigLIP: 20 + (64 - 20) * 4 = 196.
"""

import torch
from jaxtyping import Float
from torch import Tensor

KEEP = 20
FACTOR = 4


def stretch_positions(
    table: Float[Tensor, "old width"], *, keep: int = KEEP, factor: int = FACTOR
) -> Float[Tensor, "new width"]:
    """Return `table` with its rows from `keep` on interpolated `factor` times finer, in the dtype of `table`.

    Row `keep + factor * i + j` of the result is `((factor - j) * old[keep + i] + j * old[keep + i + 1]) / factor`.
    The last row has no successor, so its new rows continue the last slope. Low-precision tables are interpolated in
    float32: in float16 neighbouring rows are often closer than one rounding step.

    Raises ValueError when `keep` or `factor` is out of range, or when fewer than two rows are left to interpolate.

    >>> stretch_positions(torch.tensor([[0.0], [1.0], [3.0]]), keep=1, factor=2).flatten().tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0]
    >>> stretch_positions(torch.zeros(77, 1)).shape[0], stretch_positions(torch.zeros(64, 1)).shape[0]
    (248, 196)
    """
    if isinstance(factor, bool) or factor < 1:
        raise ValueError(f"factor is {factor}, a stretch needs 1 or more; use factor=4 for 77 to 248 positions.")
    if isinstance(keep, bool) or not 0 <= keep <= table.shape[0] - 2:
        raise ValueError(
            f"keep is {keep} for a table of {table.shape[0]} positions but must be from 0 to {table.shape[0] - 2}; "
            "pass a smaller keep or a longer table."
        )
    wide = torch.promote_types(table.dtype, torch.float32)
    coarse = table[keep:].to(wide)
    following = torch.cat([coarse[1:], 2 * coarse[-1:] - coarse[-2:-1]])
    weight = (torch.arange(factor, dtype=wide, device=table.device) / factor)[None, :, None]
    fine = (1 - weight) * coarse[:, None] + weight * following[:, None]
    return torch.cat([table[:keep], fine.flatten(0, 1).to(table.dtype)])


def merge_position_tables(
    frozen: Float[Tensor, "positions width"], trained: Float[Tensor, "rows columns"], *, keep: int = KEEP
) -> Float[Tensor, "positions width"]:
    """Return one table that equals Long-CLIP's pair exactly: rows < `keep` of `frozen`, the others of `trained`.

    In original checkpoints `frozen` is `positional_embedding` and `trained` is `positional_embedding_res`. Converters
    that keep only the first are right for captions under 20 tokens and wrong for all others.

    Raises ValueError when the two tables differ in shape or are shorter than `keep`.

    >>> merge_position_tables(torch.zeros(3, 1), torch.ones(3, 1), keep=2).flatten().tolist()
    [0.0, 0.0, 1.0]
    """
    if frozen.shape != trained.shape:
        raise ValueError(
            f"the frozen position table is {tuple(frozen.shape)} and the trained one {tuple(trained.shape)}, both must "
            "have one shape; take both from the same checkpoint."
        )
    if not 0 <= keep <= frozen.shape[0]:
        raise ValueError(
            f"keep is {keep} for tables of {frozen.shape[0]} positions but must be from 0 to {frozen.shape[0]}; "
            "pass keep=20 for Long-CLIP's tables of 248."
        )
    return torch.cat([frozen[:keep], trained[keep:]])
