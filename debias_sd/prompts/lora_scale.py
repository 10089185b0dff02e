"""The strength of LoRA layers for the time of one call."""

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from weakref import WeakKeyDictionary

from torch import nn

# One lock an encoder with LoRA layers: in two threads, one call's strength would be the other's, and would remain.
_LOCKS: "WeakKeyDictionary[nn.Module, threading.RLock]" = WeakKeyDictionary()
_GUARD = threading.Lock()


@contextmanager
def lora_at(encoders: Sequence[nn.Module], scale: float | None) -> Iterator[None]:
    """Multiply the strength of the LoRA layers (of peft) in `encoders` by `scale`; afterwards it is what it was.

    The very numbers come back. diffusers divides by the scale again, which may be off in the last digit, and after 0
    gives 1 whatever was set before. None leaves all as it is. Other threads that want the same encoders wait where
    these have LoRA layers. Raises ValueError for a scale that is not a finite number.
    """
    if scale is not None and (type(scale) not in (int, float) or not math.isfinite(scale)):
        raise ValueError(f"lora_scale is {scale!r} but must be a finite number; 1 is full strength.")
    found = [(encoder, _lora_layers(encoder)) for encoder in encoders]
    found = [(encoder, layers) for encoder, layers in found if layers]
    with ExitStack() as stack:
        for lock in sorted((_lock_of(encoder) for encoder, _ in found), key=id):  # one order: no thread waits for good
            stack.enter_context(lock)
        layers = [layer for _, layers in found for layer in layers] if scale is not None else []
        before = [dict(layer.scaling) for layer in layers]
        try:
            for layer in layers:
                layer.scale_layer(scale)
            yield
        finally:
            for layer, scaling in zip(layers, before, strict=True):
                layer.scaling.update(scaling)


def _lora_layers(encoder: nn.Module) -> list[nn.Module]:
    return [module for module in encoder.modules() if isinstance(getattr(module, "scaling", None), dict)]


def _lock_of(encoder: nn.Module) -> threading.RLock:
    with _GUARD:
        return _LOCKS.setdefault(encoder, threading.RLock())
