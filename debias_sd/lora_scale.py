"""The strength of LoRA layers for the time of one call."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn


@contextmanager
def lora_at(encoders: Sequence[nn.Module], scale: float | None) -> Iterator[None]:
    """Multiply the strength of the LoRA layers (of peft) in `encoders` by `scale`; afterwards it is what it was.

    The very numbers come back. diffusers divides by the scale again, which may be off in the last digit, and after 0
    gives 1 whatever was set before. None leaves all as it is. Raises ValueError for a scale that is no finite number.
    """
    if scale is None:
        yield
        return
    if not isinstance(scale, int | float) or not math.isfinite(scale):
        raise ValueError(f"lora_scale is {scale!r}, allowed is any finite number; give one, 1 for full strength.")
    modules = (module for encoder in encoders for module in encoder.modules())
    layers = [module for module in modules if isinstance(getattr(module, "scaling", None), dict)]
    before = [dict(layer.scaling) for layer in layers]
    try:
        for layer in layers:
            layer.scale_layer(scale)
        yield
    finally:
        for layer, scaling in zip(layers, before, strict=True):
            layer.scaling.update(scaling)
