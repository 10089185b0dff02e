"""A SigLIP of open_clip (its image tower is timm's) as a `SiglipModel` folder: the same tensors under other names.

open_clip strips punctuation before its SigLIP tokenizers (`clean: canonicalize`); that goes into the tokenizer here.
"""

from __future__ import annotations

import json
import re
import string
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, SiglipConfig

_TRUNK, _TEXT = "visual.trunk.", "text."
# What stands in both libraries for one layer or the whole tower; `{}` is the layer's number.
_VISION = {
    "patch_embed.proj": "vision_model.embeddings.patch_embedding",
    "norm": "vision_model.post_layernorm",
    "attn_pool.proj": "vision_model.head.attention.out_proj",
    "attn_pool.norm": "vision_model.head.layernorm",
    "attn_pool.mlp.fc1": "vision_model.head.mlp.fc1",
    "attn_pool.mlp.fc2": "vision_model.head.mlp.fc2",
    "blocks.{}.norm1": "vision_model.encoder.layers.{}.layer_norm1",
    "blocks.{}.attn.proj": "vision_model.encoder.layers.{}.self_attn.out_proj",
    "blocks.{}.norm2": "vision_model.encoder.layers.{}.layer_norm2",
    "blocks.{}.mlp.fc1": "vision_model.encoder.layers.{}.mlp.fc1",
    "blocks.{}.mlp.fc2": "vision_model.encoder.layers.{}.mlp.fc2",
}
_TEXTS = {
    "token_embedding": "text_model.embeddings.token_embedding",
    "ln_final": "text_model.final_layer_norm",
    "text_projection": "text_model.head",
    "transformer.resblocks.{}.ln_1": "text_model.encoder.layers.{}.layer_norm1",
    "transformer.resblocks.{}.attn.out_proj": "text_model.encoder.layers.{}.self_attn.out_proj",
    "transformer.resblocks.{}.ln_2": "text_model.encoder.layers.{}.layer_norm2",
    "transformer.resblocks.{}.mlp.c_fc": "text_model.encoder.layers.{}.mlp.fc1",
    "transformer.resblocks.{}.mlp.c_proj": "text_model.encoder.layers.{}.mlp.fc2",
}
_ACTIVATIONS = {"none": "gelu", "tanh": "gelu_pytorch_tanh"}


def is_siglip(folder: Path) -> bool:
    """Whether a folder of open_clip holds a SigLIP: a bias of the logits, a text tower pooled at its last slot."""
    try:
        model = json.loads((folder / "open_clip_config.json").read_text(encoding="utf-8"))["model_cfg"]
        return "init_logit_bias" in model and model["text_cfg"].get("pool_type") == "last"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def convert_siglip(source: Path, folder: Path) -> Path:
    """Write open_clip's folder `source` as a `SiglipModel` folder, in float32.

    Raises ValueError with one sentence for another image tower, for tensors without a place, and without a tokenizer.
    """
    from transformers import SiglipModel

    from debias_sd.checkpoints.reading import read_source

    read = read_source(source)
    tensors = {name: tensor.float() for name, tensor in read.tensors.items()}
    model_cfg = read.open_clip["model_cfg"]
    config = _config_of(model_cfg, tensors)
    tokenizer = _tokenizer_of(source, model_cfg["text_cfg"])
    model = SiglipModel(config)
    state = rename(tensors)
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if wrong := sorted(set(wanted.items()) ^ set(found.items())):
        raise ValueError(f"its tensors are not those of a SigLIP ({len(wrong)} differ, {wrong[0][0]} first)")
    model.load_state_dict(state)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _write_preprocessing(folder, read.open_clip.get("preprocess_cfg") or {}, size=config.vision_config.image_size)
    return folder


def rename(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """open_clip's tensors by `SiglipModel`'s names, fused projections of queries, keys and values taken apart."""
    state = {name: tensors[name].reshape(1) for name in ("logit_scale", "logit_bias") if name in tensors}
    for name, tensor in tensors.items():
        if name.startswith(_TRUNK):
            state |= _rename_vision(name.removeprefix(_TRUNK), tensor, tensors)
        elif name.startswith(_TEXT):
            state |= _rename_text(name.removeprefix(_TEXT), tensor)
        elif name not in state:
            state[name] = tensor  # nothing that a SigLIP has: it is named where the shapes are compared
    return state


def _rename_vision(name: str, tensor: Tensor, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    if name == "pos_embed":
        return {"vision_model.embeddings.position_embedding.weight": tensor[0]}
    if name == "attn_pool.latent":
        return {"vision_model.head.probe": tensor}
    if name.startswith("attn_pool.q."):  # one tensor of transformers' head: queries, keys, values
        part = name.rpartition(".")[2]
        whole = torch.cat([tensor, tensors[f"{_TRUNK}attn_pool.kv.{part}"]])
        return {f"vision_model.head.attention.in_proj_{part}": whole}
    if name.startswith("attn_pool.kv."):
        return {}
    if match := re.fullmatch(r"blocks\.(\d+)\.attn\.qkv\.(weight|bias)", name):
        return _apart(f"vision_model.encoder.layers.{match[1]}.self_attn", match[2], tensor)
    return {_rename(name, _VISION): tensor}


def _rename_text(name: str, tensor: Tensor) -> dict[str, Tensor]:
    if name == "positional_embedding":
        return {"text_model.embeddings.position_embedding.weight": tensor}
    if name == "text_projection":  # without a bias open_clip keeps it the other way round
        return {
            "text_model.head.weight": tensor.T.contiguous(),
            "text_model.head.bias": tensor.new_zeros(tensor.shape[1]),
        }
    if match := re.fullmatch(r"transformer\.resblocks\.(\d+)\.attn\.in_proj_(weight|bias)", name):
        return _apart(f"text_model.encoder.layers.{match[1]}.self_attn", match[2], tensor)
    return {_rename(name, _TEXTS): tensor}


def _apart(attention: str, part: str, tensor: Tensor) -> dict[str, Tensor]:
    chunks = zip("qkv", tensor.chunk(3), strict=True)
    return {f"{attention}.{letter}_proj.{part}": chunk.contiguous() for letter, chunk in chunks}


def _rename(name: str, names: dict[str, str]) -> str:
    stem, _, part = name.rpartition(".")
    number = re.search(r"\.(\d+)\.", name)
    key = stem.replace(f".{number[1]}.", ".{}.", 1) if number else stem
    return f"{names[key].format(number[1] if number else '')}.{part}" if key in names else name


def _config_of(model_cfg: dict[str, Any], tensors: dict[str, Tensor]) -> SiglipConfig:
    """The shapes from the tensors; heads, activation and epsilon from timm's model of that name and from `text_cfg`."""
    from transformers import SiglipConfig

    text, vision = model_cfg["text_cfg"], model_cfg["vision_cfg"]
    trunk = _timm_trunk(vision.get("timm_model_name"))
    table, tokens = tensors["text.positional_embedding"], tensors["text.token_embedding.weight"]
    text_config = {
        "vocab_size": len(tokens),
        "max_position_embeddings": len(table),
        "hidden_size": table.shape[1],
        "intermediate_size": len(tensors["text.transformer.resblocks.0.mlp.c_fc.weight"]),
        "num_hidden_layers": _count(tensors, r"text\.transformer\.resblocks\.(\d+)\."),
        "num_attention_heads": text["heads"],
        "hidden_act": _ACTIVATIONS[(text.get("act_kwargs") or {}).get("approximate", "none")],
        "layer_norm_eps": (text.get("norm_kwargs") or {}).get("eps", 1e-5),
        "projection_size": model_cfg["embed_dim"],
    }
    vision_config = {
        "hidden_size": trunk.embed_dim,
        "intermediate_size": len(tensors[f"{_TRUNK}blocks.0.mlp.fc1.weight"]),
        "num_hidden_layers": _count(tensors, r"visual\.trunk\.blocks\.(\d+)\."),
        "num_attention_heads": trunk.blocks[0].attn.num_heads,
        "hidden_act": _ACTIVATIONS["tanh" if "tanh" in repr(trunk.blocks[0].mlp.act).lower() else "none"],
        "layer_norm_eps": trunk.blocks[0].norm1.eps,
        "image_size": vision["image_size"],
        "patch_size": tensors[f"{_TRUNK}patch_embed.proj.weight"].shape[-1],
    }
    return SiglipConfig(text_config=text_config, vision_config=vision_config)


def _timm_trunk(name: str | None) -> Any:
    """timm's image tower of that name, without weights."""
    try:
        import timm
    except ImportError:
        raise ValueError("its image tower is timm's; install it: pip install timm") from None
    try:
        with torch.device("meta"):
            trunk = timm.create_model(str(name), num_classes=0, global_pool="map")
    except (RuntimeError, TypeError, ValueError, AssertionError):  # unknown to timm, or without such a pool
        trunk = None
    if getattr(trunk, "attn_pool", None) is None or not hasattr(trunk, "blocks"):
        raise ValueError(f"its image tower is {name!r}, timm's Vision Transformers with an attention pool are read")
    return trunk


def _count(tensors: dict[str, Tensor], pattern: str) -> int:
    return 1 + max(int(match[1]) for name in tensors if (match := re.match(pattern, name)))


def _tokenizer_of(folder: Path, text_cfg: dict[str, Any]) -> PreTrainedTokenizerBase:
    """The folder's tokenizer, or the hub's that open_clip names, with open_clip's cleaning inside it."""
    from tokenizers import Regex, Tokenizer, normalizers
    from transformers import PreTrainedTokenizerFast

    if not (folder / "tokenizer.json").is_file():
        raise ValueError("it has no tokenizer.json; copy it and tokenizer_config.json from the model's page on the hub")
    inner = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if (text_cfg.get("tokenizer_kwargs") or {}).get("clean") == "canonicalize":
        clean = [normalizers.Replace("_", " "), normalizers.Replace(Regex(f"[{re.escape(string.punctuation)}]"), "")]
        clean += [normalizers.Lowercase(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
        inner.normalizer = normalizers.Sequence([*clean, *([inner.normalizer] if inner.normalizer else [])])
    named = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    tokens = {key: _content(named[key]) for key in ("pad_token", "eos_token", "unk_token") if named.get(key)}
    return PreTrainedTokenizerFast(tokenizer_object=inner, **tokens, model_max_length=text_cfg["context_length"])


def _content(token: str | dict[str, Any]) -> str:
    return token["content"] if isinstance(token, dict) else token


def _write_preprocessing(folder: Path, config: dict[str, Any], *, size: int) -> None:
    from PIL import Image

    from debias_sd.preprocessing import HALF, Preprocessing

    if config.get("resize_mode", "squash") != "squash":
        raise ValueError(f"it cuts pictures ({config['resize_mode']}), SigLIP reads them whole")
    resample = Image.Resampling[str(config.get("interpolation", "bicubic")).upper()]
    mean, std = (tuple(config.get(name, HALF)) for name in ("mean", "std"))
    pictures = Preprocessing(size, None, int(resample), mean, std, "open_clip_config.json").as_config()
    (folder / "preprocessor_config.json").write_text(json.dumps(pictures, indent=1) + "\n", encoding="utf-8")
