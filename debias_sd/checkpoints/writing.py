"""A converted encoder as files: config, weights in transformers' naming, tokenizer, provenance."""

import math
import shutil
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import CLIPConfig, CLIPTextConfig, PreTrainedTokenizerBase

from debias_sd.checkpoints.architecture import Architecture
from debias_sd.checkpoints.keys import text_from_openai, vision_from_openai
from debias_sd.checkpoints.layouts import Tower
from debias_sd.checkpoints.reading import Source
from debias_sd.checkpoints.weights import Weights, count_blocks
from debias_sd.encoder_folder import write_json
from debias_sd.preprocessing import clip_preprocessing


@dataclass(frozen=True)
class Conversion:
    """What a conversion found, chose, left out and proved."""

    folder: Path
    layout: str
    model_class: str
    width: int
    layers: int
    heads: int
    positions: int
    tables: str
    """"trained" or "published" where the source had two position tables, else "one"."""
    activation: str
    dtype: str
    target: str | None
    pad_id: int
    tokenizer: str
    left_out: dict[str, int]
    notes: tuple[str, ...]
    differences: dict[str, float]


def class_of(weights: Weights) -> str:
    """Return the transformers class that holds exactly what is written."""
    if weights.image:
        return "CLIPModel"
    return "CLIPTextModelWithProjection" if "text_projection" in weights.written else "CLIPTextModel"


def left_out_of(tower: Tower, weights: Weights) -> dict[str, int]:
    """Return what of the source is not in the folder: groups of tensors, or entries beside them, with their number."""
    left_out = dict(tower.left_out)
    if tower.image and not weights.image:
        left_out["image tower"] = len(tower.image)
    if tower.logit_scale is not None and not weights.image:
        left_out["logit_scale"] = 1
    dropped = [name for name in weights.source if name not in weights.written and "positional" not in name]
    if dropped:
        left_out["last layer and projection"] = len(dropped)
    return left_out


def write_model(
    folder: Path,
    source: Source,
    tower: Tower,
    weights: Weights,
    known: Architecture,
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    """Write config.json, model.safetensors, the tokenizer files and, with an image tower, its preprocessing."""
    kind = class_of(weights)
    state = text_from_openai(weights.written)
    text = _text_config(weights, known, tokenizer)
    if kind == "CLIPModel":
        scale = tower.logit_scale if tower.logit_scale is not None else torch.tensor(math.log(100))
        state |= vision_from_openai(weights.image) | {"logit_scale": scale.to(weights.dtype).reshape(()).clone()}
        vision = _image_config(weights, known)
        config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=text["projection_dim"])
        _write_preprocessor(folder, source, vision["image_size"])
    else:
        config = CLIPTextConfig(**text)
    config.architectures = [kind]
    config.dtype = weights.dtype
    config.save_pretrained(folder)
    tensors = {name: tensor.contiguous() for name, tensor in state.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save_pretrained(folder)
    if source.folder is not None and (source.folder / "known_words.json").is_file():
        shutil.copyfile(source.folder / "known_words.json", folder / "known_words.json")


def _text_config(
    weights: Weights, known: Architecture, tokenizer: PreTrainedTokenizerBase
) -> dict[str, int | float | str]:
    state = weights.written
    vocabulary, width = state["token_embedding.weight"].shape
    projection = state["text_projection"].shape[1] if "text_projection" in state else width
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": state["transformer.resblocks.0.mlp.c_fc.weight"].shape[0],
        "num_hidden_layers": weights.layers,
        "num_attention_heads": known.heads,
        "max_position_embeddings": len(state["positional_embedding"]),
        "projection_dim": projection,
        "hidden_act": known.activation,
        "layer_norm_eps": known.epsilon,
        # The real ids: with eos_token_id 2, as old configs have it, transformers pools at the largest id.
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def _image_config(weights: Weights, known: Architecture) -> dict[str, int | float | str]:
    state = weights.image
    width, channels, patch, _ = state["visual.conv1.weight"].shape
    return {
        "hidden_size": width,
        "intermediate_size": state["visual.transformer.resblocks.0.mlp.c_fc.weight"].shape[0],
        "num_hidden_layers": count_blocks(state, "visual."),
        "num_attention_heads": known.image_heads,
        "num_channels": channels,
        "image_size": math.isqrt(len(state["visual.positional_embedding"]) - 1) * patch,
        "patch_size": patch,
        "projection_dim": state["visual.proj"].shape[1],
        "hidden_act": known.image_activation,
        "layer_norm_eps": known.image_epsilon,
    }


def _write_preprocessor(folder: Path, source: Source, size: int) -> None:
    name = "preprocessor_config.json"
    if source.folder is not None and (source.folder / name).is_file():
        shutil.copyfile(source.folder / name, folder / name)
        return
    stated = (source.open_clip or {}).get("preprocess_cfg") or {}
    pixels = {f"image_{key}": list(stated[key]) for key in ("mean", "std") if isinstance(stated.get(key), list)}
    write_json(folder / name, clip_preprocessing(size).as_config() | pixels)


def write_story(folder: Path, source: Source, result: Conversion) -> None:
    """Write provenance.json: what the folder was made of, each choice, and how far it is from its source."""
    found = asdict(result)
    chosen = (
        "tables",
        "positions",
        "activation",
        "heads",
        "dtype",
        "target",
        "pad_id",
        "tokenizer",
        "left_out",
        "notes",
    )
    versions = {name: metadata.version(name) for name in ("debias-sd", "torch", "transformers")}
    origin = {"name": source.name, "format": source.format, "layout": result.layout, "sha256": source.sha256}
    story = {
        "converted_from": origin,
        **{name: found[name] for name in chosen},
        "largest_differences": result.differences,
        "saved_with": versions,
    }
    write_json(folder / "provenance.json", story)
