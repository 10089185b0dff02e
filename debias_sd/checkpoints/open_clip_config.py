"""What open_clip must be told of a CLIP beside its tensors: `open_clip_config.json`, as `local-dir:` reads it.

Source: open_clip 3.3, `CLIPVisionCfg` and `CLIPTextCfg` of open_clip/model.py, `get_tokenizer` of open_clip/factory.py.
"""

from __future__ import annotations

import hashlib
import math

from transformers import CLIPTextConfig, CLIPVisionConfig, PreTrainedTokenizerBase

from debias_sd.checkpoints.encoder_parts import EncoderParts

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
                f"the {tower} tower's activation is {name}, open_clip has {', '.join(_ACTIVATIONS)}; this encoder "
                "cannot be written for it, use it in transformers."
            )
    quick = {_ACTIVATIONS[name][0] for name in activations.values()}
    if len(quick) > 1:
        raise ValueError(
            f"the text tower's activation is {text.hidden_act} and the image tower's {vision.hidden_act}, open_clip "
            "has one for both; this encoder cannot be written for it, use it in transformers."
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
