"""SigLIP's texts to token ids: `[text, EOS, PAD, PAD, ...]`, always of the tower's whole length.

Its text tower attends in both directions without a mask and is pooled at the last slot: every pad is read, and most
texts are pooled at one. So the pad and the length are part of the model, as in its training (big_vision, open_clip's
`HFTokenizer`): pads after the text up to the last position, in lower case, longer texts cut with their end token kept.
SigLIP's own tokenizer (`</s>` is both end token and pad) also drops punctuation; SigLIP 2's is Gemma's (pad 0, end 1),
which older folders load without its lower-casing.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from debias_sd.counts import count_of


def siglip_rows(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], *, length: int | None) -> list[list[int]]:
    """Return the ids of each text with its end token, not padded; cut to `length` where one is given."""
    if not texts:
        return []
    options = {"truncation": False} if length is None else {"truncation": True, "max_length": length}
    return tokenizer([text.lower() for text in texts], padding=False, verbose=False, **options)["input_ids"]


def pad_rows(
    rows: Sequence[Sequence[int]], *, length: int, pad_id: int, fronts: Sequence[int] | None = None
) -> Int[Tensor, "batch length"]:
    """Return rows of ids as one tensor, int64, `pad_id` after each and, with `fronts`, so many pads in front of it.

    The front padding of DeBias-CLIP (arXiv 2602.22419) for texts without a start token:
    `[PAD x n_pre, text, EOS, PAD x (n_post - n_pre)]`; `length - len(row)` is n_post. Raises ValueError when a row and
    its pads in front do not fit.
    """
    ids = torch.full((len(rows), length), pad_id, dtype=torch.long)
    for number, row in enumerate(rows):
        front = fronts[number] if fronts is not None else 0
        if not 0 <= front <= length - len(row):
            raise ValueError(
                f"row {number} has {count_of(len(row), 'token')} and {count_of(front, 'front pad')}, more than "
                f"{length} positions hold; ask for fewer or shorten the text."
            )
        ids[number, front : front + len(row)] = torch.tensor(row, dtype=torch.long)
    return ids
