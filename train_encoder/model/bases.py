"""The initial checkpoint: a folder or hub id of CLIP or SigLIP, a checkpoint of another library, or a new model."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from debias_sd.preprocessing import Preprocessing, clip_preprocessing
from train_encoder.model.open_clip_siglip import convert_siglip, is_siglip

if TYPE_CHECKING:
    from transformers import CLIPModel, CLIPTokenizer, PreTrainedTokenizerBase, SiglipModel

    from train_encoder.settings import TrainConfig

SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


class Start(NamedTuple):
    """A model with both towers, its tokenizer, and how it reads pictures."""

    model: CLIPModel | SiglipModel
    tokenizer: PreTrainedTokenizerBase
    preprocessing: Preprocessing


def load_start(config: TrainConfig) -> Start:
    """Load or build the model that the run starts from, not stretched, in float32, with its tokenizer."""
    source = config.pretrained_model_name_or_path
    if source is None:
        return _clip_start(*build_model(config))
    looks_local = source.startswith((".", "/", "~")) or not 1 <= len(source.split("/")) <= 2
    if looks_local and not Path(source).exists():
        raise ValueError(f"pretrained model folder {source} does not exist; train it first, or name a CLIP folder.")
    if is_checkpoint(Path(source)):
        with tempfile.TemporaryDirectory() as scratch:
            if is_siglip(Path(source)):
                return _load_siglip(convert_start(source, Path(scratch) / "siglip", siglip=True), config, name=source)
            folder = convert_start(source, Path(scratch) / "clip")
            return _clip_start(*_load_folder(str(folder), config, name=source))
    kind = _model_type(source)
    if kind == "siglip2":
        raise ValueError(
            f"pretrained model {source} is a SigLIP 2 of the NaFlex kind, whose pictures have no fixed size; name one "
            "of a fixed resolution, google/siglip2-base-patch16-224 for instance."
        )
    if kind == "siglip":
        return _load_siglip(source, config, name=source)
    return _clip_start(*_load_folder(source, config, name=source))


def _clip_start(model: CLIPModel, tokenizer: CLIPTokenizer) -> Start:
    return Start(model, tokenizer, clip_preprocessing(model.config.vision_config.image_size))


def _model_type(source: str) -> str | None:
    """What config.json of a folder or hub id calls the model; None where it does not say."""
    from transformers import PreTrainedConfig

    try:
        return PreTrainedConfig.get_config_dict(source)[0].get("model_type")
    except (OSError, ValueError, AttributeError):
        return None


def _load_siglip(source: str | Path, config: TrainConfig, *, name: str) -> Start:
    """Load a `SiglipModel` folder or hub id (SigLIP, or SigLIP 2 of a fixed resolution); `name` as for CLIP's."""
    from debias_sd.encoder_folder import find_encoder_folder
    from debias_sd.measure.towers import read_siglip_model, read_siglip_preprocessing, read_siglip_tokenizer

    try:
        folder = find_encoder_folder(source)
        tokenizer = read_siglip_tokenizer(folder)
        model = read_siglip_model(folder, dtype=torch.float32, attn_implementation=config.attn_implementation)
        preprocessing = read_siglip_preprocessing(folder, size=model.config.vision_config.image_size)
        if not model.config.vision_config.vision_use_head:
            raise ValueError("its image tower has no pooling head")
        if preprocessing.shortest is not None:
            raise ValueError("its preprocessor_config.json cuts pictures, SigLIP reads them whole")
        if len(tokenizer) > model.config.text_config.vocab_size:
            raise ValueError(f"its tokenizer has {len(tokenizer)} tokens, it {model.config.text_config.vocab_size}")
    except ValueError as error:
        raise ValueError(
            f"pretrained model {name} cannot be loaded ({str(error).rstrip('.')}); name a SiglipModel folder with "
            "its tokenizer."
        ) from error
    _set_special_tokens(model, tokenizer)
    return Start(model, tokenizer, preprocessing)


def is_checkpoint(path: Path) -> bool:
    """A file, or a folder as open_clip writes it: what `debias-sd convert` reads and transformers does not."""
    return path.is_file() or (path / "open_clip_config.json").is_file()


def convert_start(source: str, folder: Path, *, siglip: bool = False) -> Path:
    """Write both towers of a checkpoint (OpenAI's, open_clip's, Long-CLIP's) as a CLIPModel folder, in float32.

    With `siglip`, those of open_clip's SigLIP as a SiglipModel folder.
    """
    from debias_sd.checkpoints.convert import convert_checkpoint

    if siglip:
        try:
            return convert_siglip(Path(source), folder)
        except (ValueError, KeyError, TypeError) as error:
            reason = str(error).rstrip(".") if isinstance(error, ValueError) else f"it lacks {error}"
            raise ValueError(
                f"pretrained model {source} cannot be loaded ({reason}); name the transformers folder of the same "
                "model, google/siglip-base-patch16-224 for instance."
            ) from error
    try:
        convert_checkpoint(source, folder, image_tower=True, dtype="float32", target="retrieval")
    except ValueError as error:
        raise ValueError(_refused(source, str(error).rstrip("."))) from error
    return folder


def _refused(source: str, reason: str) -> str:
    """Return the sentence for a checkpoint that conversion refuses, with its advice only where an option can help."""
    if " --" not in reason:
        return f"pretrained model {source} cannot be loaded ({reason})."
    return (
        f"pretrained model {source} cannot be loaded ({reason}); make a folder of it with "
        f"`debias-sd convert {source} FOLDER --image-tower` and that option, and name that."
    )


def _load_folder(source: str, config: TrainConfig, *, name: str) -> tuple[CLIPModel, CLIPTokenizer]:
    """Load a CLIPModel folder or hub id; `name` is what the user knows it by."""
    from safetensors import SafetensorError
    from transformers import CLIPModel, CLIPTokenizer

    _check_files(source, name=name)
    try:
        tokenizer = CLIPTokenizer.from_pretrained(source)
        model, loaded = CLIPModel.from_pretrained(
            source,
            dtype=torch.float32,
            attn_implementation=config.attn_implementation,
            output_loading_info=True,
        )
        if loaded["missing_keys"]:
            raise ValueError(f"it lacks {len(loaded['missing_keys'])} tensors, {min(loaded['missing_keys'])} first")
        if len(tokenizer) != model.config.text_config.vocab_size:
            raise ValueError(f"its tokenizer has {len(tokenizer)} tokens, it {model.config.text_config.vocab_size}")
    except (RuntimeError, KeyError, SafetensorError) as error:  # a config of another model
        raise ValueError(
            f"pretrained model {name} is damaged or does not fit its config.json ({type(error).__name__}); copy or "
            "make the folder again."
        ) from error
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
        raise ValueError(
            f"pretrained model {name} cannot be loaded ({first}); name a CLIPModel folder with its tokenizer."
        ) from None
    _set_special_tokens(model, tokenizer)
    return model, tokenizer


def _check_files(source: str, *, name: str) -> None:
    """Raise ValueError, with the file's own fault, when a local folder's weights cannot be read."""
    from debias_sd.weight_files import check_weights, weights_of

    for path in weights_of(Path(source)):
        try:
            check_weights(path)
        except ValueError as error:
            raise ValueError(f"pretrained model {name} cannot be loaded ({str(error).rstrip('.')}).") from error


def build_model(config: TrainConfig) -> tuple[CLIPModel, CLIPTokenizer]:
    """Build a small CLIP with the shapes world's tokenizer, weights drawn from the run's seed."""
    from transformers import CLIPConfig, CLIPModel

    from debias_sd.shapes.tokenizer import build_tokenizer

    settings = {key: dict(v) if isinstance(v, dict) else v for key, v in config.model_config.items()}
    text = settings.setdefault("text_config", {})
    tokenizer = build_tokenizer(text.get("max_position_embeddings", 77))
    text["vocab_size"] = len(tokenizer)
    text |= {name: getattr(tokenizer, name) for name in SPECIAL_IDS}
    torch.manual_seed(config.seed)
    model = CLIPModel(CLIPConfig(**settings))
    model.set_attn_implementation(config.attn_implementation)
    tables = {
        "token_embeddings": model.text_model.embeddings.token_embedding.weight,
        "text_positions": model.text_model.embeddings.position_embedding.weight,
        "vision_positions": model.vision_model.embeddings.position_embedding.weight,
    }
    for name, std in config.init_std.items():
        if name not in tables:
            raise ValueError(f"init_std names {name!r}, but must name {', '.join(tables)}; rename that entry.")
        nn.init.normal_(tables[name], std=float(std))
    _set_special_tokens(model, tokenizer)
    return model, tokenizer


def _set_special_tokens(model: CLIPModel | SiglipModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write the tokenizer's ids into the config, so that pooling looks for the one end token.

    Old CLIP configs say `eos_token_id: 2`, which makes transformers pool at the largest id. SigLIP's pooling asks for
    none, but its configs name CLIP's ids where they name any.
    """
    for name in SPECIAL_IDS:
        setattr(model.config.text_config, name, getattr(tokenizer, name))
    if hasattr(model.text_model, "eos_token_id"):
        model.text_model.eos_token_id = tokenizer.eos_token_id
