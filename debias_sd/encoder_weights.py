"""The text tower in an encoder folder's weights, checked against its config.

All layouts are read: `CLIPTextModel`, `CLIPTextModelWithProjection`, and a whole `CLIPModel`, whose image tower is left
aside; one file or shards, with or without a variant, whatever format the content is in. Keys may have `text_model.` in
front, as transformers 4 wrote them, or not.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from transformers import CLIPTextConfig, CLIPTextModel, PreTrainedTokenizerBase

from debias_sd.encoder_folder import read_config
from debias_sd.text import count_of
from debias_sd.weight_files import only_variant, read_state, weights_of

WHOLE = "model.safetensors"
PREFIX = "text_model."
PROJECTION = "text_projection.weight"
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_FLAT = ("embeddings.", "encoder.", "final_layer_norm.")


def read_text_model(folder: Path, tokenizer: PreTrainedTokenizerBase, variant: str | None = None) -> CLIPTextModel:
    """Return the folder's text tower in evaluation mode, in the dtype of its weights, on the CPU.

    The end, start and pad ids of old configs (2, 0, 1) are replaced by those of `tokenizer`: with `eos_token_id` 2
    transformers pools at the largest id, which is the wrong token as soon as ids above the end token exist.
    Raises ValueError with one sentence for every fault of the folder.
    """
    config = read_config(folder)
    if config.eos_token_id == 2:
        config.bos_token_id, config.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
    config.pad_token_id = tokenizer.pad_token_id
    state = _read_state(folder, variant)
    _check_shapes(folder, config, state)
    dtype = state[PREFIX + "embeddings.position_embedding.weight"].dtype
    try:
        model, loaded = CLIPTextModel.from_pretrained(
            None, config=config, state_dict=state, dtype=dtype, output_loading_info=True
        )
    except (RuntimeError, KeyError) as error:  # KeyError: an activation that transformers does not know
        raise ValueError(f"model.safetensors in {folder} does not fit its config.json; copy both again.") from error
    if loaded["missing_keys"]:
        missing = sorted(loaded["missing_keys"])
        raise ValueError(
            f"model.safetensors in {folder} lacks {count_of(len(missing), 'tensor')} of the text tower, {missing[0]} "
            "first; copy or convert the checkpoint again."
        )
    if loaded["unexpected_keys"]:
        extra = sorted(loaded["unexpected_keys"])
        raise ValueError(
            f"model.safetensors in {folder} holds {count_of(len(extra), 'tensor')} that its config.json has no place "
            f"for, {extra[0]} first; they belong to different models, copy both from one."
        )
    return model.eval()


def read_projection(folder: Path, variant: str | None = None) -> torch.Tensor | None:
    """Return the projection of the pooled vector, [projection width, width], or None when the folder has none.

    Raises ValueError when it does not fit the text tower; for `read_text_model` that has been read before.
    """
    state = _tensors(folder, variant, lambda name: name == PROJECTION or name.endswith("token_embedding.weight"))
    projection = state.pop(PROJECTION, None)
    if projection is None:
        return None
    (width,) = {one.shape[-1] for one in state.values()}
    path = folder / WHOLE
    if projection.ndim != 2 or projection.shape[1] != width:
        raise ValueError(
            f"{PROJECTION} of {path} is {list(projection.shape)} but must be [any, {width}]; copy or convert the "
            "checkpoint again."
        )
    _check_finite(path, PROJECTION, projection)
    return projection


def _tensors(folder: Path, variant: str | None, keep: Callable[[str], bool]) -> dict[str, torch.Tensor]:
    """Return the tensors of the folder's weights that `keep` takes; ValueError with one sentence for every fault."""
    files = weights_of(folder, variant or only_variant(folder).get("variant"))
    if not files:
        raise ValueError(f"{folder / WHOLE} does not exist; an encoder folder keeps its weights in one {WHOLE}.")
    state: dict[str, torch.Tensor] = {}
    for path in files:
        state |= read_state(path, keep)
    return state


def _read_state(folder: Path, variant: str | None) -> dict[str, torch.Tensor]:
    """Return the text tower's tensors, each key with `text_model.` in front."""
    path = folder / WHOLE
    found = _tensors(folder, variant, lambda name: name.startswith((PREFIX, *_FLAT)))
    inside = [name for name in found if name.startswith(PREFIX)] or list(found)
    state = {PREFIX + name.removeprefix(PREFIX): found[name] for name in inside}
    state.pop(PREFIX + "embeddings.position_ids", None)  # saved by old versions, a constant
    for name, tensor in state.items():
        _check_finite(path, name, tensor)
    if PREFIX + "embeddings.position_embedding.weight" not in state:
        raise ValueError(f"{path} holds no CLIP text tower in transformers' naming; convert the checkpoint first.")
    return state


def _check_finite(path: Path, name: str, tensor: torch.Tensor) -> None:
    """Raise ValueError for NaN or infinity, which make every picture black without an error, and for quantised ones."""
    if tensor.dtype not in FLOATS:
        raise ValueError(
            f"{name} of {path} is {tensor.dtype} but must be float32, float16 or bfloat16; take unquantised weights."
        )
    # One pass without a tensor of booleans; NaN comes through the minimum.
    if tensor.numel() and not all(map(torch.isfinite, torch.aminmax(tensor))):
        raise ValueError(
            f"{name} of {path} holds NaN or infinite numbers; its training went wrong, take an earlier checkpoint."
        )


def _check_shapes(folder: Path, config: CLIPTextConfig, state: dict[str, torch.Tensor]) -> None:
    table = state[PREFIX + "embeddings.position_embedding.weight"]
    if table.ndim != 2:
        raise ValueError(
            f"the position table of model.safetensors in {folder} has {count_of(table.ndim, 'dimension')} but "
            "must have 2; copy or convert the checkpoint again."
        )
    rows, width = table.shape
    if rows != config.max_position_embeddings:
        raise ValueError(
            f"config.json in {folder} says {config.max_position_embeddings} positions, model.safetensors has {rows}; "
            f"editing the config does not lengthen an encoder: put {rows} back and use stretch_encoder()."
        )
    if width != config.hidden_size:
        raise ValueError(
            f"config.json in {folder} says width {config.hidden_size} and model.safetensors has {width}; they belong "
            "to different models, copy both from one."
        )
