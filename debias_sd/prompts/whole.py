"""An encoder that reads more tokens than it has positions, for one call: its position table stretched, nothing trained.

Long-CLIP's interpolation (arXiv 2403.15378), as `TextEncoder.stretch` has it, on a structure of its own around the same
weights, so that another thread that reads with the encoder sees nothing of it. Weights that lie elsewhere between calls
are brought by hooks on the encoder's own parts: there the table itself is exchanged for the call.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn

from debias_sd.encoder import stretch_in_place, text_tower, uncompiled
from debias_sd.pipelines.slots import shared_copy
from debias_sd.positions import FACTOR, KEEP, stretch_positions


def reader_of_whole(
    encoder: nn.Module, tokens: int, *, device: torch.device
) -> Callable[[], AbstractContextManager[nn.Module]]:
    """Return what hands out `encoder`, a CLIP text model of any class, as one that reads rows of `tokens` tokens.

    Each call is entered for a forward pass: `with whole() as model: model(ids)`. `device` is where hooks run it.
    """
    bare = uncompiled(encoder)
    own = text_tower(bare).embeddings.position_embedding.num_embeddings
    factor = max(FACTOR, -(-(tokens - KEEP) // (own - KEEP)))
    if any(hasattr(part, "_hf_hook") for part in bare.modules()):
        return lambda: _exchanged(bare, factor, device)
    whole = shared_copy(bare)
    stretch_in_place(whole, factor=factor)
    return lambda: nullcontext(whole)


@contextmanager
def _exchanged(bare: nn.Module, factor: int, device: torch.device) -> Iterator[nn.Module]:
    embeddings = text_tower(bare).embeddings
    table, ids = embeddings.position_embedding, embeddings.position_ids
    rows = stretch_positions(table(torch.arange(table.num_embeddings, device=device)), factor=factor)
    try:
        embeddings.position_embedding = nn.Embedding.from_pretrained(rows)
        embeddings.position_ids = torch.arange(len(rows), device=device)[None]
        yield bare
    finally:
        embeddings.position_embedding, embeddings.position_ids = table, ids
