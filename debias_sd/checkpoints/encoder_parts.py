"""An encoder folder taken apart for export: both towers' tensors as the file holds them, and what the configs say.

Tensors are read from model.safetensors, not from a loaded model: they keep their dtype, bit for bit.

What open_clip must be told of a CLIP beside its tensors: `open_clip_config.json`, as `local-dir:` reads it.

Source: open_clip 3.3, `CLIPVisionCfg` and `CLIPTextCfg` of open_clip/model.py, `get_tokenizer` of open_clip/factory.py.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub.errors import StrictDataclassError
from transformers import CLIPTextConfig, CLIPVisionConfig, PreTrainedTokenizerBase

from debias_sd.checkpoints.keys import State, text_to_openai, vision_to_openai
from debias_sd.encoder import TextEncoder
from debias_sd.encoder_folder import find_encoder_folder
from debias_sd.preprocessing import CLIP_MEAN, CLIP_STD, FILE, HALF
from debias_sd.text import parse_json, read_text
from debias_sd.weight_files import read_state, weights_of

_IMAGE = ("vision_model.", "visual_projection.")
_POSITION_IDS = "embeddings.position_ids"  # saved by old versions, a constant


@dataclass(frozen=True)
class EncoderParts:
    """A checked encoder; `text` and `image` are in OpenAI's naming, `image` is empty without an image tower."""

    folder: Path
    encoder: TextEncoder
    text: State
    image: State
    vision: CLIPVisionConfig | None

    @property
    def config(self) -> CLIPTextConfig:
        return self.encoder.model.config

    @property
    def ends_with_last_id(self) -> bool:
        """Whether the end token has the largest id, which is how readers of OpenAI's naming find it."""
        return self.config.eos_token_id == self.config.vocab_size - 1

    @property
    def pixels(self) -> tuple[list[float], list[float]]:
        """Mean and deviation of the pictures that the image tower was trained on, as the folder says, or CLIP's own."""
        path = self.folder / FILE
        stated = _read_object(path)
        training = self.encoder.provenance.get("config")
        in_world = isinstance(training, dict) and training.get("train_data") == "shapes"
        default = (HALF, HALF) if in_world else (CLIP_MEAN, CLIP_STD)
        names = ("image_mean", "image_std")
        found = [list(stated.get(name) or values) for name, values in zip(names, default, strict=True)]
        for name, values in zip(names, found, strict=True):
            if len(values) != 3 or not all(isinstance(value, int | float) for value in values):
                raise ValueError(f"{name} in {path} is {values} but must be three numbers; copy it again.")
        return found[0], found[1]


def read_parts(source: str | Path) -> EncoderParts:
    """Return the encoder `source` (an embedded name, a folder or a hub id) in parts.

    Raises ValueError with one sentence for every fault of the folder, and for a tensor that belongs to no CLIP.
    """
    folder = find_encoder_folder(source)
    encoder = TextEncoder.load(folder)  # names every fault of the text side
    state: State = {}
    for path in weights_of(folder):
        state |= read_state(path, lambda name: not name.endswith(_POSITION_IDS))
    image = {name: tensor for name, tensor in state.items() if name.startswith(_IMAGE)}
    text = text_to_openai({name: tensor for name, tensor in state.items() if name not in image})
    image = vision_to_openai(image) if image else {}
    vision = _read_vision(folder, image) if image else None
    return EncoderParts(folder, encoder, text=text, image=image, vision=vision)


def _read_object(path: Path) -> dict[str, object]:
    """Return a JSON object that may be missing."""
    if not path.is_file():
        return {}
    try:
        content = parse_json(read_text(path))
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a JSON object; mend or delete it.")
    return content


def _read_vision(folder: Path, state: State) -> CLIPVisionConfig:
    """Return the image tower's config; ValueError when it does not describe the tensors (in OpenAI's naming)."""
    try:
        config = CLIPVisionConfig.from_pretrained(folder)
    except (OSError, TypeError, ValueError, StrictDataclassError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"vision_config in {folder}/config.json is not valid ({reason}); copy it again.") from error
    width, channels, patch = state["visual.conv1.weight"].shape[:3]
    mlps = [len(tensor) for name, tensor in state.items() if name.endswith(".mlp.c_fc.bias")]
    facts = {
        "hidden_size": width,
        "num_channels": channels,
        "patch_size": patch,
        "num_hidden_layers": len(mlps),
        "intermediate_size": mlps[0] if mlps else config.intermediate_size,
        "image_size": round((len(state["visual.positional_embedding"]) - 1) ** 0.5) * patch,
    }
    for name, found in facts.items():
        stated = getattr(config, name)
        # A picture's last rows that fill no patch are not read: 30 pixels are two patches of 14.
        if stated != found and not (name == "image_size" and stated // patch == found // patch):
            raise ValueError(
                f"vision_config in {folder}/config.json says {name} {stated} but the image tower of model.safetensors "
                f"has {found}; they belong to different models, copy both from one."
            )
    return config


# open_clip has one activation for both towers; arguments for it may differ.
_ACTIVATIONS = {
    "quick_gelu": (True, None),
    "gelu": (False, None),
    "gelu_pytorch_tanh": (False, {"approximate": "tanh"}),
}
_EPS = 1e-5
# Of CLIP's 49,406 tokens in the order of their ids, start and end token (whose names differ) left out.
_CLIP_TOKENS = "ee7a4423aea96d705babd8004aa41e3696ffd366e5d8f3227d4fa057768d60e0"


def open_clip_config(parts: EncoderParts) -> dict[str, object]:
    """Return the content of `open_clip_config.json` for an encoder with an image tower and both projections.

    CLIP's own vocabulary is left to open_clip's tokenizer; for another one the config asks for a Hugging Face tokenizer
    in the same folder. Raises ValueError for an activation that open_clip does not have.
    """
    text, vision = parts.config, parts.vision
    assert vision is not None
    activations = {"text": text.hidden_act, "image": vision.hidden_act}
    for tower, name in activations.items():
        if name not in _ACTIVATIONS:
            raise ValueError(
                f"the {tower} tower's activation is {name} but open_clip has {', '.join(_ACTIVATIONS)}; this encoder "
                "cannot be written for it: use it in transformers."
            )
    quick = {_ACTIVATIONS[name][0] for name in activations.values()}
    if len(quick) > 1:
        raise ValueError(
            f"the text tower's activation is {text.hidden_act} and the image tower's {vision.hidden_act} but open_clip "
            "has one for both; this encoder cannot be written for it: use it in transformers."
        )
    mean, std = parts.pixels
    model = {
        "embed_dim": parts.text["text_projection"].shape[1],
        "quick_gelu": quick.pop(),
        "vision_cfg": _vision_cfg(vision),
        "text_cfg": _text_cfg(text, parts),
    }
    preprocess = {"size": vision.image_size, "mode": "RGB", "mean": mean, "std": std}
    more = {"interpolation": "bicubic", "resize_mode": "shortest", "fill_color": 0}
    return {"model_cfg": model, "preprocess_cfg": preprocess | more}


def has_clip_vocabulary(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the tokenizer has CLIP's own 49,408 tokens, so that every CLIP tokenizer gives its ids."""
    vocabulary = tokenizer.get_vocab()
    if len(vocabulary) != 49408:
        return False
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)[:49406]
    return hashlib.sha256("\n".join(tokens).encode()).hexdigest() == _CLIP_TOKENS


def _text_cfg(config: CLIPTextConfig, parts: EncoderParts) -> dict[str, object]:
    cfg = {
        "context_length": config.max_position_embeddings,
        "vocab_size": config.vocab_size,
        "width": config.hidden_size,
        "heads": config.num_attention_heads,
        "layers": config.num_hidden_layers,
        "mlp_ratio": mlp_ratio(config.hidden_size, config.intermediate_size),
    }
    if not parts.ends_with_last_id:
        cfg |= {"pool_type": "eos", "eos_id": config.eos_token_id}
    if not has_clip_vocabulary(parts.encoder.tokenizer):
        cfg["hf_tokenizer_name"] = "."  # any name: `local-dir:` always looks into its own folder
    return cfg | _details(config)


def _vision_cfg(config: CLIPVisionConfig) -> dict[str, object]:
    return {
        "image_size": config.image_size,
        "patch_size": config.patch_size,
        "width": config.hidden_size,
        "head_width": config.hidden_size // config.num_attention_heads,
        "layers": config.num_hidden_layers,
        "mlp_ratio": mlp_ratio(config.hidden_size, config.intermediate_size),
    } | _details(config)


def _details(config: CLIPTextConfig | CLIPVisionConfig) -> dict[str, object]:
    details: dict[str, object] = {}
    if config.layer_norm_eps != _EPS:
        details["norm_kwargs"] = {"eps": config.layer_norm_eps}
    arguments = _ACTIVATIONS[config.hidden_act][1]
    if arguments is not None:
        details["act_kwargs"] = arguments
    return details


def mlp_ratio(width: int, hidden: int) -> float:
    """Return a ratio of which open_clip's `int(width * ratio)` is `hidden`, not one less.

    >>> mlp_ratio(768, 3072), int(49 * (56 / 49)), int(49 * mlp_ratio(49, 56))
    (4.0, 56, 56)
    """
    ratio = hidden / width
    return ratio if int(width * ratio) == hidden else math.nextafter(ratio, math.inf)
