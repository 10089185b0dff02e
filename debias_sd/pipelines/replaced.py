"""How far an encoder is from the one that it replaces: what a fine-tuned base learnt is not thrown away unseen.

Distances are relative, |given - own| / |own|, over the matrices of the layers that both have and over the token
embedding, whichever is larger; position tables differ by design. 16 rows of each matrix stand for it: within a few
hundredths of the distance itself, of 15 MB in place of 500, and the base's own encoder need not stay in memory.
"""

import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from debias_sd.encoder import TextEncoder, text_tower
from debias_sd.encoder_weights import FLOATS
from debias_sd.pipelines.families import Slot

# Adam moves a weight by at most about the learning rate a step. Long-CLIP's training, 1e-6 over some 3,000 steps of a
# cosine, moves it by 0.0015 at most: 0.07 of CLIP-L's weights, whose size is about 0.02. The embedded encoders are 0.07
# from their base. Two CLIPs that were trained apart are 1.4 from each other, whatever their size.
FAR = 0.1
_ROWS = 16
_GROUPS = ("encoder.layers.", "embeddings.token_embedding.")
Sketch = dict[str, tuple[int, Tensor]]  # by name: how many rows the matrix has, and those that stand for it


def sketch(model: nn.Module) -> Sketch:
    """Return some rows of each matrix, in float32 on the CPU; none of a quantised or empty one."""
    found = {}
    for name, weight in text_tower(model).named_parameters():
        plain = type(weight.data) is Tensor and weight.dtype in FLOATS and not weight.is_meta
        if plain and weight.ndim == 2 and name.startswith(_GROUPS):
            found[name] = len(weight), _rows(weight.detach(), len(weight))
    return found


def _rows(weight: Tensor, count: int) -> Tensor:
    return weight[: count : max(1, count // _ROWS)].to("cpu", torch.float32, copy=True)


def distance(own: Sketch, model: nn.Module) -> float:
    """Return how far `model` is from the encoder of a sketch; 0 where they have no matrix of one shape in common."""
    given = dict(text_tower(model).named_parameters())
    largest = 0.0
    for group in _GROUPS:
        apart = size = 0.0
        for name, (count, rows) in own.items():
            other = given.get(name)
            if not name.startswith(group) or other is None or len(other) < count or other.shape[1] != rows.shape[1]:
                continue
            scale = count / len(rows)
            apart += scale * float((_rows(other.detach(), count) - rows).square().sum())
            size += scale * float(rows.square().sum())
        largest = max(largest, (apart / size) ** 0.5 if size else 0.0)
    return largest


def warn_of_replaced(slots: dict[Slot, tuple[Sketch, TextEncoder]], *, name: str, base: str | None) -> None:
    """Warn once of the slots of pipeline `name` whose own encoder is not what the given one was trained from.

    Args:
        slots: for each slot that is filled, its own encoder and the one in its place.
        base: the folder or hub id that the pipeline was loaded from.
    """
    found = {slot: distance(own, encoder.model) for slot, (own, encoder) in slots.items()}
    far = {slot: one for slot, one in found.items() if one > FAR and not _started_from(*slots[slot], base=base)}
    if not far:
        return
    apart = " and ".join(f"{slot.encoder} by {one:.2f}" for slot, one in far.items())
    keep = " and ".join(slot.encoder.removeprefix("text_") + "='stretched'" for slot in far)
    warnings.warn(
        f"the encoder given to {name} was not trained from the base's own, which it replaces: their weights differ "
        f"({apart} of their size, a training moves them by less than {FAR}), so what this base's own was fine-tuned "
        f"for is lost; {keep} keeps it, lengthened without training, or train an encoder from it.",
        stacklevel=4,
    )


def _started_from(own: Sketch, encoder: TextEncoder, *, base: str | None) -> bool:
    """Whether the encoder's provenance names a start that is this base, or lies on disk and is near its own encoder."""
    training = encoder.provenance.get("config")
    start = training.get("pretrained_model_name_or_path") if isinstance(training, dict) else None
    if not isinstance(start, str):
        return False
    if start == base:
        return True
    folder = Path(start).expanduser()
    folder = folder / "text_encoder" if (folder / "model_index.json").is_file() else folder
    try:
        return folder.is_dir() and distance(own, TextEncoder.load(folder).model) <= FAR
    except ValueError:  # it is not whole any more
        return False
