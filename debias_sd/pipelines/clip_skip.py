"""`clip_skip` of Stable Diffusion 1.x and 2.x in stock pipelines, on transformers 5.6 and newer.

diffusers (0.42) reads `text_encoder.text_model.final_layer_norm` right after it has asked the encoder for all layers.
Newer text models hold that layer directly. They must not have a `text_model` for good either: diffusers' LoRA loader
takes a text encoder with one for an old layout, and finds none of its layers.
"""

from torch import nn


class _LentLayers:
    """What diffusers reads as `text_model`, once."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    @property
    def final_layer_norm(self) -> nn.Module:
        """The model's own last norm; with it `text_model` is gone."""
        vars(self._model).pop("text_model", None)
        return self._model.final_layer_norm


def allow_clip_skip(model: nn.Module) -> None:
    """Let diffusers' `clip_skip` find the last norm of `model`, a CLIPTextModel, where it looks for it.

    A forward hook lends it after a call that asked for all layers, until it is read or the model is called again. It
    adds no weights, and it is not in saved files: a pipeline that is loaded by diffusers alone has diffusers' own fault
    again, one loaded or swapped here has not.
    """
    if _lend not in model._forward_hooks.values():
        model.register_forward_hook(_lend, with_kwargs=True)


def _lend(model: nn.Module, _args: object, named: dict[str, object], _output: object) -> None:
    vars(model).pop("text_model", None)
    if named.get("output_hidden_states"):
        vars(model)["text_model"] = _LentLayers(model)
