"""Long prompts for Stable Diffusion: text encoders that read 248 tokens, as stock transformers and diffusers parts.

    from debias_sd import encode_prompt, load_debias_pipeline

    pipe = load_debias_pipeline()                                    # the embedded models; or a base and an encoder
    image = pipe(prompt).images[0]                                   # up to 248 tokens
    image = pipe(**encode_prompt(pipe, very_long_prompt)).images[0]  # any length

Importing this package loads nothing: a public name is looked up in its module on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for editors and type checkers
    from debias_sd.checkpoints.convert import convert_checkpoint
    from debias_sd.checkpoints.export import export_encoder
    from debias_sd.encoder import TextEncoder, load_encoder, stretch_encoder
    from debias_sd.pipelines.load import load_debias_pipeline, with_text_encoder
    from debias_sd.pipelines.slots import describe_encoders
    from debias_sd.prompts.conditioning import encode_prompt
    from debias_sd.prompts.token_report import count_tokens

__version__ = "0.1.0"

_MODULES = {
    "TextEncoder": "encoder",
    "convert_checkpoint": "checkpoints.convert",
    "count_tokens": "prompts.token_report",
    "describe_encoders": "pipelines.slots",
    "encode_prompt": "prompts.conditioning",
    "export_encoder": "checkpoints.export",
    "load_debias_pipeline": "pipelines.load",
    "load_encoder": "encoder",
    "stretch_encoder": "encoder",
    "with_text_encoder": "pipelines.load",
}

__all__ = [
    "TextEncoder",
    "convert_checkpoint",
    "count_tokens",
    "describe_encoders",
    "encode_prompt",
    "export_encoder",
    "load_debias_pipeline",
    "load_encoder",
    "stretch_encoder",
    "with_text_encoder",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
