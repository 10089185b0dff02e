"""What the tensors of a CLIP do not say: attention heads, activation, epsilon.

Sizes come from shapes. The rest comes, in this order, from what the user says, from a config beside the weights
(transformers' config.json, open_clip's open_clip_config.json or its named architectures), and from what is known of a
layout: OpenAI's and Long-CLIP's models use QuickGELU and heads of 64. Where two families write the same names, shapes
and all, the file cannot tell: then the user is asked. Worked number: width 768 has 768 / 64 = 12 heads.
"""

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub.errors import StrictDataclassError
from transformers import CLIPTextConfig, CLIPVisionConfig

from debias_sd.checkpoints.layouts import TRAINED, Tower
from debias_sd.checkpoints.reading import Source

ACTIVATIONS = ("quick_gelu", "gelu")
HEAD = 64
_HEADS = {1152: 16}  # ViTamin-XL: the one CLIP text tower in open_clip whose heads are not 64 wide but 72
_IMAGE_HEADS = {1280: 16, 1408: 16, 1664: 16, 1792: 16}  # open_clip's ViT-H, g, bigG and e
# Keys of open_clip's configs that are read here, that the shapes say, or that say nothing of the maths.
_HARMLESS = (
    "context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio", "hf_tokenizer_name", "tokenizer_mode",
    "tokenizer_kwargs", "output_tokens", "pad_id", "eos_id", "norm_kwargs", "image_size", "patch_size", "head_width",
    "patch_dropout",
)  # fmt: skip
_PLAIN = {"pool_type": ("argmax", "eos", "tok"), "proj_type": ("linear",), "pos_embed_type": ("learnable",)}


@dataclass(frozen=True)
class Architecture:
    """How to compute a text tower and, where it has one, its image tower."""

    heads: int
    activation: str
    epsilon: float
    image_heads: int
    image_activation: str
    image_epsilon: float
    notes: tuple[str, ...] = ()


def resolve_architecture(
    source: Source,
    tower: Tower,
    *,
    heads: int | None,
    activation: str | None,
    architecture: str | None,
    image_tower: bool,
) -> Architecture:
    """Return heads, activation and epsilon of `tower`, and those of its image tower if that is wanted.

    Raises ValueError when a config does not belong to the weights, names a text tower that is not CLIP's, or when the
    file cannot tell and nobody said.
    """
    width = tower.text["token_embedding.weight"].shape[-1]
    if activation is not None and activation not in ACTIVATIONS:
        raise ValueError(f"unknown activation {activation!r}; it must be {' or '.join(ACTIVATIONS)}.")
    if source.config is not None:
        found = _from_transformers(source, tower)
    else:
        found = _from_open_clip(source, tower, architecture, image_tower=image_tower)
    if found is None:
        image_width = next((one.numel() for key, one in tower.image.items() if key.endswith("class_embedding")), HEAD)
        told, notes = (activation, ()) if activation is not None else _usual_activation(source, tower, width)
        count = heads or _HEADS.get(width) or _usual_heads(source, width)
        image_heads = _IMAGE_HEADS.get(image_width, max(image_width // HEAD, 1))
        found = Architecture(count, told, 1e-5, image_heads, told, 1e-5, notes)
    count, told = heads or found.heads, activation or found.activation
    if count < 1 or width % count:
        raise ValueError(f"heads is {count} but must divide the width {width}; change --heads.")
    if told not in ACTIVATIONS:
        raise ValueError(f"{source.name} uses the activation {told!r}, which must be {' or '.join(ACTIVATIONS)}.")
    image = found.image_activation if activation is None else activation
    return Architecture(count, told, found.epsilon, found.image_heads, image, found.image_epsilon, found.notes)


def _from_transformers(source: Source, tower: Tower) -> Architecture:
    try:
        text = CLIPTextConfig.from_pretrained(source.folder)
        image = CLIPVisionConfig.from_pretrained(source.folder) if tower.image else CLIPVisionConfig()
    except (OSError, TypeError, ValueError, StrictDataclassError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"config.json of {source.name} is not a valid CLIP config ({reason}); copy it again."
        ) from error
    rows, width = tower.text["positional_embedding"].shape
    if rows != text.max_position_embeddings:
        raise ValueError(
            f"config.json of {source.name} says {text.max_position_embeddings} positions but its weights have {rows}; "
            f"editing the config does not lengthen an encoder: put {rows} back and convert with --stretch."
        )
    if width != text.hidden_size:
        raise ValueError(
            f"config.json of {source.name} says width {text.hidden_size} but its weights have {width}; they belong to "
            "different models, copy both from one."
        )
    return Architecture(
        text.num_attention_heads, text.hidden_act, text.layer_norm_eps,
        image.num_attention_heads, image.hidden_act, image.layer_norm_eps,
    )  # fmt: skip


def _from_open_clip(
    source: Source, tower: Tower, architecture: str | None, *, image_tower: bool
) -> Architecture | None:
    """Return what open_clip's config says, of the folder or of the architecture named; None without either."""
    if architecture is None and source.open_clip is None:
        if any(name.startswith("visual.trunk.") for name in tower.image) and tower.custom_text:
            raise ValueError(
                f"{source.name} has a timm image tower, and text towers beside those are sometimes not causal "
                "(MobileCLIP); name its open_clip model with --architecture, EVA02-L-14 for instance."
            )
        return None
    name = architecture or source.name
    config = _named_config(architecture) if architecture is not None else source.open_clip["model_cfg"]
    text, image = config["text_cfg"], config.get("vision_cfg") or {}
    _check_plain(name, "text", text)
    if image_tower:
        _check_plain(name, "image", image)
    embedding = tower.text["token_embedding.weight"]
    said = (text.get("vocab_size", 49408), text.get("width", 512))
    if said != tuple(embedding.shape):
        raise ValueError(
            f"{name} has a vocabulary of {said[0]} and width {said[1]} in open_clip but {source.name} has "
            f"{embedding.shape[0]} and {embedding.shape[1]}; name the architecture that the weights belong to."
        )
    told = "quick_gelu" if config.get("quick_gelu") else "gelu"
    image_heads = max(image.get("width", 768) // image.get("head_width", HEAD), 1)
    return Architecture(text.get("heads", 8), told, _epsilon(text), image_heads, told, _epsilon(image))


def _check_plain(name: str, kind: str, config: dict[str, object]) -> None:
    for key, value in config.items():
        if key not in _HARMLESS and value and value not in _PLAIN.get(key, ()):
            raise ValueError(
                f"the {kind} tower of {name} has {key} {value!r} in open_clip, which CLIP's own {kind} tower does not; "
                "give a CLIP checkpoint."
            )


def _epsilon(config: dict[str, object]) -> float:
    return (config.get("norm_kwargs") or {}).get("eps", 1e-5)


def _named_config(name: str) -> dict[str, object]:
    folder = open_clip_folder("--architecture") / "model_configs"
    path = folder / f"{name}.json"
    if Path(name).name != name or not path.is_file():
        raise ValueError(f"open_clip has no architecture {name!r}; see open_clip.list_models() for those that it has.")
    return json.loads(path.read_text(encoding="utf-8"))


def open_clip_folder(purpose: str) -> Path:
    """Return the folder of the installed open_clip, which is not imported; ValueError when it is not installed."""
    found = importlib.util.find_spec("open_clip")
    if found is None or not found.submodule_search_locations:
        raise ValueError(f"{purpose} needs the package open_clip_torch; install it with pip install open_clip_torch.")
    return Path(found.submodule_search_locations[0])


def _usual_heads(source: Source, width: int) -> int:
    if width % HEAD:
        raise ValueError(
            f"{source.name} has width {width}, not a multiple of {HEAD}; give its attention heads with --heads."
        )
    return width // HEAD


def _usual_activation(source: Source, tower: Tower, width: int) -> tuple[str, tuple[str, ...]]:
    """Return the activation that a layout is known for, with a note where that is not certain."""
    if TRAINED in tower.text or tower.layout == "OpenAI CLIP" or tower.target in ("sd1", "sdxl", "sd3"):
        return "quick_gelu", ()
    if tower.target in ("sd2", "sdxl-2"):
        return "gelu", ()
    if width in (1024, 1280):
        note = (
            f"activation gelu, as of LAION's models of width {width}; for DFN's and MetaCLIP's: --activation quick_gelu"
        )
        return "gelu", (note,)
    if width == 768 and tower.naming != "openai":
        return "quick_gelu", ("activation quick_gelu, as of CLIP-L; for another model of width 768: --activation gelu",)
    raise ValueError(
        f"{source.name} does not say its activation, and OpenAI's and LAION's models of width {width} differ in it; "
        "give --activation quick_gelu (OpenAI and what was trained from it) or --activation gelu (LAION)."
    )
