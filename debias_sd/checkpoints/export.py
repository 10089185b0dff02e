"""An encoder folder written for other programs: ComfyUI and Forge, open_clip, Long-CLIP.

OpenAI's naming, which the single files are in, says nothing of heads, activation or end token: its readers take heads
of 64, QuickGELU and the largest id. An encoder that differs would load there and give other numbers: it is refused.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import CLIPTextConfig, CLIPVisionConfig

from debias_sd.checkpoints.encoder_parts import EncoderParts, has_clip_vocabulary, open_clip_config, read_parts
from debias_sd.checkpoints.keys import State
from debias_sd.encoder_folder import replace_folder

Target = Literal["comfyui", "open_clip", "long-clip"]
TARGETS: tuple[Target, ...] = ("comfyui", "open_clip", "long-clip")
LONG_CLIP_POSITIONS = 248
_HEAD, _MLP = 64, 4
_EPS = 1e-5
# What readers take for a tower of this width and depth: its heads and activation. Others: heads of 64 and QuickGELU.
# ViT-L/14; OpenCLIP's H/14 and bigG/14.
_KNOWN_TEXT = {(768, 12): (12, "quick_gelu"), (1024, 24): (16, "gelu"), (1280, 32): (20, "gelu")}
_KNOWN_IMAGE = {(1024, 24): (16, "quick_gelu"), (1280, 32): (16, "gelu"), (1664, 48): (16, "gelu")}


@dataclass(frozen=True)
class Exported:
    """What was written: `notes` are sentences on what the target's programs will not do with it."""

    path: Path
    tensors: int
    positions: int
    dtype: torch.dtype
    notes: tuple[str, ...] = ()


def export_encoder(source: str | Path, out: str | Path, *, to: Target, image_tower: bool = False) -> Exported:
    """Write the encoder `source` (an embedded name, a folder or a hub id) to `out` in another program's format.

    `comfyui`: one .safetensors file, the text tower; `image_tower` adds the other. `long-clip`: one .pt or .safetensors
    file, both towers and both position tables. `open_clip`: a new folder for `local-dir:`, both towers. Tensors keep
    their dtype; the file or folder is whole or not there; a file that is there is replaced.
    Raises ValueError with one sentence for what the target cannot hold and for what cannot be written.
    """
    if to not in TARGETS:
        raise ValueError(f"unknown target {to!r}; it must be one of {', '.join(TARGETS)}.")
    out = Path(out).expanduser()
    parts = read_parts(source)
    _check_output(out, parts.folder, to)
    state, notes = {"comfyui": _comfyui, "open_clip": _open_clip, "long-clip": _long_clip}[to](parts, image_tower)
    if to == "open_clip":
        replace_folder(out, lambda folder: _write_open_clip(folder, state, parts))
    elif out.suffix.lower() == ".pt":
        _write_file(out, lambda path: torch.save(state, path))
    else:
        _write_file(out, lambda path: save_file(state, path, metadata={"format": "pt"}))
    table = state["positional_embedding"]
    return Exported(out, tensors=len(state), positions=len(table), dtype=table.dtype, notes=notes)


def _comfyui(parts: EncoderParts, image_tower: bool) -> tuple[State, tuple[str, ...]]:
    if image_tower and not parts.image:
        raise ValueError(
            f"{parts.folder} has no image tower; leave --image-tower out, or give a whole CLIPModel folder."
        )
    _check_silent(parts, text=_KNOWN_TEXT, image=_KNOWN_IMAGE if image_tower else None)
    notes = []
    config, vocabulary = parts.config, has_clip_vocabulary(parts.encoder.tokenizer)
    shape = (config.hidden_size, config.num_hidden_layers)
    if shape not in _KNOWN_TEXT or config.intermediate_size != _MLP * shape[0] or not vocabulary:
        known = ", ".join(f"{width} with {blocks}" for width, blocks in _KNOWN_TEXT)
        notes.append(
            f"ComfyUI and Forge know text encoders of width {known} blocks and CLIP's 49,408 tokens; this one has "
            f"{shape[0]} with {shape[1]} and {config.vocab_size:,}, they will not load it."
        )
    elif config.max_position_embeddings > 77:
        also = "" if shape != (1024, 24) else " and so does ComfyUI for this width"
        notes.append(f"Forge's own loader builds 77 positions{also}: {config.max_position_embeddings} do not fit it.")
    if "text_projection" not in parts.text:
        notes.append("the encoder has no text projection: ComfyUI takes an identity for it, Forge needs one.")
    return parts.text | (parts.image if image_tower else {}), tuple(notes)


def _open_clip(parts: EncoderParts, image_tower: bool) -> tuple[State, tuple[str, ...]]:
    _need_both_towers(parts, "open_clip")
    return parts.text | parts.image, ()


def _long_clip(parts: EncoderParts, image_tower: bool) -> tuple[State, tuple[str, ...]]:
    _need_both_towers(parts, "Long-CLIP")
    _check_silent(parts, text={}, image={})
    positions = parts.config.max_position_embeddings
    if positions != LONG_CLIP_POSITIONS:
        raise ValueError(
            f"{parts.folder} has {positions} positions but Long-CLIP's loader builds {LONG_CLIP_POSITIONS}; stretch "
            "the encoder first, with stretch_encoder()."
        )
    assert parts.vision is not None
    for tower, config in (("text", parts.config), ("image", parts.vision)):
        if config.intermediate_size != _MLP * config.hidden_size:
            raise ValueError(
                f"the {tower} tower in {parts.folder} has MLPs of {config.intermediate_size} but Long-CLIP's loader "
                f"builds {_MLP} x {config.hidden_size}; export this encoder to open_clip."
            )
    # Long-CLIP adds rows below 20 of the first table and the others of the second: with one table twice both are it.
    return parts.text | {"positional_embedding_res": parts.text["positional_embedding"].clone()} | parts.image, ()


def _need_both_towers(parts: EncoderParts, target: str) -> None:
    """Raise ValueError for an encoder that is not a whole CLIP."""
    whole = parts.text | parts.image
    nouns = {"visual.conv1.weight": "image tower", "text_projection": "text projection"}
    nouns |= {"visual.proj": "image projection", "logit_scale": "logit scale"}
    for name, noun in nouns.items():
        if name not in whole:
            raise ValueError(
                f"{parts.folder} has no {noun} and {target} loads only a whole CLIP; give a CLIPModel folder, which "
                "training writes, or export to comfyui."
            )
    text, image = whole["text_projection"].shape[1], whole["visual.proj"].shape[1]
    if text != image:
        raise ValueError(
            f"{parts.folder} projects texts to {text} numbers and images to {image}; they belong to different models."
        )


def _check_silent(parts: EncoderParts, *, text: dict, image: dict | None) -> None:
    """Raise ValueError for what a reader of OpenAI's naming would get wrong without a word."""
    if not parts.ends_with_last_id:
        raise ValueError(
            f"{parts.folder} ends a text with id {parts.config.eos_token_id} of {parts.config.vocab_size} but readers "
            "of single files look for the largest; take added tokens out, or export to open_clip."
        )
    _check_tower(parts.folder, "text", parts.config, text)
    if image is not None and parts.vision is not None:
        _check_tower(parts.folder, "image", parts.vision, image)


def _check_tower(folder: Path, tower: str, config: CLIPTextConfig | CLIPVisionConfig, known: dict) -> None:
    width = config.hidden_size
    heads, activation = known.get((width, config.num_hidden_layers), (max(1, width // _HEAD), "quick_gelu"))
    wanted = {"num_attention_heads": heads, "hidden_act": activation, "layer_norm_eps": _EPS}
    for name, value in wanted.items():
        found = getattr(config, name)
        if found != value:
            raise ValueError(
                f"the {tower} tower in {folder} has {name} {found} but a reader of single files takes {value} for this "
                "width without a word; export this encoder to open_clip."
            )


def _check_output(out: Path, source: Path, to: Target) -> None:
    endings = {"comfyui": (".safetensors",), "long-clip": (".pt", ".safetensors"), "open_clip": ()}[to]
    if not endings:
        if out.is_file():
            raise ValueError(f"output {out} is a file but open_clip reads a folder; give one that does not exist yet.")
        if out.is_dir() and any(out.iterdir()):
            raise ValueError(f"output folder {out} is not empty; give one that does not exist yet.")
        return
    if out.suffix.lower() not in endings:
        raise ValueError(f"output {out} does not end in {' or '.join(endings)}, as {to} needs it; add it.")
    if out.is_dir():
        raise ValueError(f"output {out} is a folder; give the name of a file.")
    if out.resolve().parent == source.resolve():
        raise ValueError(f"output {out} lies in the encoder's own folder; give another place.")


def _write_file(out: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `out`, then put it in its place; on a fault nothing is left."""
    scratch = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        write(scratch / out.name)
        (scratch / out.name).chmod(0o644)
        os.replace(scratch / out.name, out)
    except (OSError, RuntimeError, SafetensorError) as error:  # RuntimeError: torch.save on a full disk
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise ValueError(f"output {out} cannot be written ({reason}); give another.") from error
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)


def _write_open_clip(folder: Path, state: State, parts: EncoderParts) -> None:
    config = open_clip_config(parts)
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (folder / "open_clip_config.json").write_text(text, encoding="utf-8")
    save_file(state, folder / "open_clip_model.safetensors", metadata={"format": "pt"})
    (folder / "open_clip_model.safetensors").chmod(0o644)  # safetensors lets only its owner read it
    if not has_clip_vocabulary(parts.encoder.tokenizer):
        parts.encoder.tokenizer.save_pretrained(folder)
