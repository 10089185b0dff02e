"""What stock pipelines ask of a text encoder and its tokenizer that transformers' own classes lack.

`clip_skip` of Stable Diffusion 1.x and 2.x: diffusers (0.42) reads `text_encoder.text_model.final_layer_norm` for it.
Since transformers 5.6 a text model holds that layer directly, and a child of that name would rename its weights; so its
class gets a property. diffusers' LoRA loader alone must not see it: it takes a text encoder with a `text_model` for one
of the old layout, and finds no layer there.

Threads: a tokenizer sets length and padding on itself and then reads the text, so that of two pipelines' calls at once
one may read by the other's settings. Here one is read after the other.

Nothing is kept between calls, and a saved pipeline is a stock one: each class goes by the name of the one that it
stands for.
"""

import sys
import threading
from types import SimpleNamespace
from typing import Any

from transformers import CLIPTextModel, CLIPTokenizer

_LOADERS = "diffusers.loaders."
_READING = threading.Lock()


def _text_model(self: CLIPTextModel) -> SimpleNamespace:
    """The parts that a text model of older transformers held there; AttributeError for diffusers' LoRA loader."""
    if sys._getframe(1).f_globals.get("__name__", "").startswith(_LOADERS):
        raise AttributeError("text_model")
    names = ("embeddings", "encoder", "final_layer_norm", "config", "dtype", "device")
    return SimpleNamespace(**{name: getattr(self, name) for name in names})


def _encode_alone(self: CLIPTokenizer, *given: Any, **named: Any) -> Any:
    with _READING:
        return CLIPTokenizer._encode_plus(self, *given, **named)


def _stand_in(kind: type, members: dict[str, object]) -> type:
    """Return a subclass of `kind` under its name, for diffusers and transformers write class names into their files."""
    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__")}
    # Pickle looks a class up by its name, and would find `kind`.
    copied = {"__reduce_ex__": lambda self, _: (_blank, (kind,), self.__getstate__())}
    return type(kind.__name__, (kind,), names | copied | members)


_STAND_INS = {
    CLIPTextModel: _stand_in(CLIPTextModel, {"text_model": property(_text_model)}),
    CLIPTokenizer: _stand_in(CLIPTokenizer, {"_encode_plus": _encode_alone}),
}


def _blank(kind: type) -> object:
    return _STAND_INS[kind].__new__(_STAND_INS[kind])


def allow_clip_skip(model: CLIPTextModel) -> None:
    """Let diffusers' `clip_skip` find the last norm of `model`, which no other pipeline has, where it looks for it.

    A class other than transformers' own stays as it is, and one that has a `text_model` needs nothing.
    """
    if type(model) is CLIPTextModel and not hasattr(model, "text_model"):
        model.__class__ = _STAND_INS[CLIPTextModel]


def allow_threads(tokenizer: CLIPTokenizer) -> None:
    """Let several threads read by `tokenizer`, which no other pipeline has; other classes than CLIP's own stay."""
    if type(tokenizer) is CLIPTokenizer:
        tokenizer.__class__ = _STAND_INS[CLIPTokenizer]
