"""Stock Stable Diffusion pipelines with a longer text encoder.

No pipeline class of our own: the new pipeline is the base pipeline's class, built from its components with text
encoder and tokenizer swapped as a pair. `from_pipe` is not used: without a dtype it makes shared fp16 modules fp32.
Pads are the base pipeline's own (end token in SD 1.x): the UNet attends to padded states and was trained with them.
"""

import copy
from pathlib import Path

import torch
from diffusers import DiffusionPipeline
from diffusers.utils.logging import disable_progress_bar
from huggingface_hub import hf_hub_download
from safetensors import SafetensorError
from transformers import CLIPTextModel, PreTrainedTokenizerBase

from debias_sd.encoder import TextEncoder
from debias_sd.encoder_folder import HUB_ID, embedded_folder

EMBEDDED_BASE = "stable-diffusion"
POSITIONS = 248
# What diffusers and transformers raise for a folder whose parts are damaged or do not fit together.
_LOADING_FAULTS = (OSError, SafetensorError, RuntimeError, ValueError, TypeError, KeyError, AttributeError)


def load_debias_pipeline(
    base: str | Path | None = None,
    encoder: str | Path | TextEncoder | None = None,
    *,
    torch_dtype: torch.dtype | None = None,
    min_positions: int = POSITIONS,
    **options: object,
) -> DiffusionPipeline:
    """Return the base pipeline with a text encoder that reads 248 tokens.

    Args:
        base: folder or hub id of a Stable Diffusion pipeline; None is the embedded one.
        encoder: "debias" (also None, with the embedded base), "long-clip", a folder, a hub id or a `TextEncoder`;
            "base" leaves the base pipeline as it is, with its own 77 tokens.
        torch_dtype: of all models, float32 by default; `dtype` in `options` is the same.
        min_positions: the shortest encoder to accept.
        options: for `DiffusionPipeline.from_pretrained`, such as `variant` or `safety_checker`.

    Raises ValueError with one sentence when a part is missing or does not fit.
    """
    if encoder is None:
        if base is not None:
            raise ValueError(f"no encoder is named for base {base}; give encoder= a folder, a hub id or 'base'.")
        encoder = "debias"
    if isinstance(encoder, str | Path) and str(encoder) != "base":
        encoder = TextEncoder.load(encoder)  # before the base: a wrong name should not cost a long load
    pipe = _load_base(base, {"dtype": torch_dtype or torch.float32} | options)
    if isinstance(encoder, TextEncoder):
        return with_text_encoder(pipe, encoder, min_positions=min_positions)
    _allow_clip_skip(pipe.text_encoder)
    return pipe


def with_text_encoder(
    pipe: DiffusionPipeline, encoder: TextEncoder | str | Path, *, min_positions: int = POSITIONS
) -> DiffusionPipeline:
    """Return a new pipeline of the same class that shares all parts of `pipe` but text encoder, tokenizer, scheduler.

    `pipe` is left as it is. The encoder takes over the dtype and device of the one it replaces; an encoder object that
    already has them is shared. Device offloading is enabled on the result, not before.
    Raises ValueError when `pipe` is of another family or the encoder does not fit it.
    """
    _check_family(type(pipe).__name__, pipe.components)
    if not isinstance(encoder, TextEncoder):
        encoder = TextEncoder.load(encoder)
    encoder.check()
    _check_fit(pipe, encoder, min_positions=min_positions)
    encoder = encoder.to(device=pipe.text_encoder.device, dtype=pipe.text_encoder.dtype)
    _allow_clip_skip(encoder.model)
    components = pipe.components | {
        "text_encoder": encoder.model,
        "tokenizer": _padded_like(encoder.tokenizer, pipe.tokenizer),
        # A scheduler keeps the state of a run: two pipelines that share one cannot run side by side.
        "scheduler": copy.deepcopy(pipe.scheduler),
    }
    settings = {name: value for name, value in pipe.config.items() if name not in components and name[0] != "_"}
    return type(pipe)(**components, **settings)


def hide_loading_bars() -> None:
    """Turn off diffusers' progress bars of loading, for commands whose standard error is one sentence."""
    disable_progress_bar()


def _load_base(base: str | Path | None, options: dict[str, object]) -> DiffusionPipeline:
    source = embedded_folder(EMBEDDED_BASE) if base is None else Path(base).expanduser()
    if source.is_file():
        raise ValueError(f"base {base} is a file; load it with from_single_file() and use with_text_encoder().")
    if source.is_dir() and not (source / "model_index.json").is_file():
        raise ValueError(f"base {source} has no model_index.json; give the folder of a whole pipeline.")
    if not source.is_dir() and (not HUB_ID.fullmatch(str(base)) or source.parent.is_dir()):
        raise ValueError(
            f"base folder {base} does not exist; give a folder or a hub id of a Stable Diffusion pipeline."
        )
    name = str(source if source.is_dir() else base)
    try:
        found = {key: options[key] for key in ("revision", "cache_dir", "token") if key in options}
        folder = source if source.is_dir() else Path(hf_hub_download(name, "model_index.json", **found)).parent
        index = DiffusionPipeline.load_config(folder)
    except (OSError, SafetensorError) as error:
        raise _base_fault(name, error) from error
    if not isinstance(index, dict):
        raise ValueError(f"model_index.json of base {name} is not a JSON object; copy the folder again.")
    _check_family(index.get("_class_name", name), index)
    try:
        pipe = DiffusionPipeline.from_pretrained(name, **options)
    except _LOADING_FAULTS as error:
        raise _base_fault(name, error) from error
    reads, positions = pipe.tokenizer.model_max_length, pipe.text_encoder.config.max_position_embeddings
    if reads > positions:  # without its files, transformers gives a tokenizer of two tokens and no limit
        raise ValueError(
            f"the tokenizer of base {name} reads {reads} tokens and its text encoder {positions}; copy the whole "
            "tokenizer folder again."
        )
    return pipe


def _base_fault(name: str, error: Exception) -> ValueError:
    where = "is damaged or incomplete" if Path(name).is_dir() else "is no local folder and the hub did not give it"
    return ValueError(
        f"base {name} {where} ({type(error).__name__}); check the name, copy it again, or see HF_HUB_OFFLINE."
    )


def _check_family(name: str, components: dict[str, object]) -> None:
    """Raise ValueError unless the pipeline has one CLIP text encoder that conditions a UNet."""
    one_encoder = {"text_encoder", "tokenizer", "unet"} <= components.keys() and "text_encoder_2" not in components
    encoder = components.get("text_encoder")
    # In model_index.json a component is [library, class]; in a pipeline it is the object.
    kind = encoder[1] if isinstance(encoder, list | tuple) else type(encoder).__name__
    if not one_encoder or kind != CLIPTextModel.__name__:
        raise ValueError(
            f"{name} is not of the Stable Diffusion 1.x family (one CLIPTextModel and a UNet), and only that is "
            "supported; give a StableDiffusionPipeline or one of its siblings."
        )


def _check_fit(pipe: DiffusionPipeline, encoder: TextEncoder, *, min_positions: int) -> None:
    if encoder.positions < min_positions:
        raise ValueError(
            f"the encoder has {encoder.positions} positions, {min_positions} are needed; lengthen it with stretch() or "
            "train it longer (editing max_position_embeddings in config.json does not lengthen it)."
        )
    dims = pipe.unet.config.cross_attention_dim
    widths = set(dims) if isinstance(dims, list | tuple) else {dims}
    if widths != {encoder.width}:
        need = "/".join(str(width) for width in sorted(widths))
        raise ValueError(
            f"the encoder is {encoder.width} wide and the UNet needs {need}; give an encoder made for this base "
            "(SD 1.x: 768, CLIP ViT-L/14; SD 2.x: 1024)."
        )
    if any(hasattr(part, "_hf_hook") for part in pipe.components.values()):
        raise ValueError(
            "the pipeline is offloaded already, so its parts are not in one place; swap the text encoder first and "
            "call enable_model_cpu_offload() on the result."
        )


def _padded_like(tokenizer: PreTrainedTokenizerBase, base: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Return a copy of `tokenizer` with the pad token of `base`."""
    padded = copy.deepcopy(tokenizer)
    if base.pad_token not in padded.get_vocab():
        raise ValueError(
            f"the encoder's vocabulary lacks {base.pad_token!r}, which the base pipeline pads with; give an encoder "
            "with the vocabulary of this base."
        )
    padded.pad_token = base.pad_token
    if padded.pad_token_id != base.pad_token_id:
        raise ValueError(
            f"the base pipeline pads with id {base.pad_token_id}, in the encoder's vocabulary that token has id "
            f"{padded.pad_token_id}; give an encoder with the vocabulary of this base."
        )
    return padded


def _allow_clip_skip(model: CLIPTextModel) -> None:
    """Let `model.text_model` be `model`, so that `clip_skip` works in diffusers with transformers 5.6 and newer.

    diffusers reads `text_encoder.text_model.final_layer_norm`, which newer text models hold directly. A plain attribute
    of this one object, not a submodule: state dict, parameters and saved files do not change, and `copy.deepcopy` and
    pickle point the copy at itself. It is not in saved files: a pipeline that is loaded by diffusers alone has
    diffusers' own fault again, one loaded or swapped here has not.
    """
    object.__setattr__(model, "text_model", model)
