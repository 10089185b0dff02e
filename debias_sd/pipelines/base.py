"""The base pipeline: found as a folder, a hub id or a single file, and loaded by diffusers with every fault named."""

import json
from dataclasses import dataclass
from pathlib import Path

import diffusers
from diffusers import DiffusionPipeline
from huggingface_hub import hf_hub_download
from safetensors import SafetensorError, safe_open

from debias_sd.encoder_folder import HUB_ID, embedded_folder
from debias_sd.pipelines.families import INSTEAD_OF_MODULAR, Family, Slot, family_of
from debias_sd.pipelines.options import FROM_PRETRAINED, check_known, hub_options
from debias_sd.pipelines.single_file import load_single_file
from debias_sd.weight_files import check_weights, only_variant, plain_values

MODULAR = "modular_model_index.json"
EMBEDDED_BASE = "stable-diffusion"


@dataclass(frozen=True)
class Base:
    """A base pipeline that was found and not loaded yet; of a single file, `folder` and `family` are not known yet."""

    name: str
    folder: Path | None
    family: Family | None
    options: dict[str, object]

    def sizes_of(self, slot: Slot) -> tuple[int | None, int | None]:
        """Return width and layers of the base's own encoder in `slot`, from its config; None where it is not said."""
        try:
            path = Path(self.name, slot.encoder, "config.json")
            if not Path(self.name).is_dir():
                path = Path(hf_hub_download(self.name, f"{slot.encoder}/config.json", **hub_options(self.options)))
            config = json.loads(path.read_text(encoding="utf-8"))
            width, layers = (config.get(name) for name in ("hidden_size", "num_hidden_layers"))
        except (OSError, ValueError, AttributeError):
            return None, None
        return width if isinstance(width, int) else None, layers if isinstance(layers, int) else None

    def load(self) -> DiffusionPipeline:
        """Return the pipeline as diffusers loads it; ValueError with one sentence for every fault."""
        if self.family is None:
            return load_single_file(Path(self.name), self.options)
        try:
            with plain_values():
                return DiffusionPipeline.from_pretrained(self.name, **self.options)
        except Exception as error:  # whatever diffusers, transformers, torch and pickle raise
            for slot in self.family.clip_slots:
                name = f"{slot.encoder} of base {self.name}"
                _check_edited(self.folder / slot.encoder, name=name)
                _check_whole(self.folder / slot.encoder, name=name)
            _check_files(self.folder, name=self.name)
            raise _base_fault(self.name, error) from error


def find_base(base: str | Path | None, options: dict[str, object]) -> Base:
    """Find the pipeline of a folder, a hub id or a single file; None is the embedded one.

    `options` go to `from_pretrained` or `from_single_file`. Raises ValueError with one sentence when it is nowhere or
    of another family.
    """
    if base is not None and not isinstance(base, str | Path):
        raise ValueError(
            f"base is of type {type(base).__name__} but must be a folder, a Hub repo id or a file; for a loaded "
            "pipeline there is with_text_encoder(pipe, encoder)."
        )
    source = embedded_folder(EMBEDDED_BASE) if base is None else Path(base).expanduser()
    if source.is_file():
        return Base(str(source), None, None, options)
    if source.is_dir() and (source / MODULAR).is_file() and not (source / "model_index.json").is_file():
        raise ValueError(f"base {source} is a pipeline of Modular Diffusers; {INSTEAD_OF_MODULAR}.")
    if source.is_dir() and not (source / "model_index.json").is_file():
        raise ValueError(f"base {source} has no model_index.json; give the folder of a whole pipeline.")
    if not source.is_dir() and (not HUB_ID.fullmatch(str(base)) or source.parent.is_dir()):
        raise ValueError(
            f"base folder {base} does not exist; give a folder, a hub id or a file of a Stable Diffusion pipeline."
        )
    name = str(source if source.is_dir() else base)
    try:
        found = source if source.is_dir() else hf_hub_download(name, "model_index.json", **hub_options(options))
        folder = source if source.is_dir() else Path(found).parent
        index = DiffusionPipeline.load_config(folder)
    except (OSError, SafetensorError) as error:
        raise _base_fault(name, error) from error
    if not isinstance(index, dict):
        raise ValueError(f"model_index.json of base {name} is not a JSON object; copy the folder again.")
    parts = index | {key: value for key, value in options.items() if key in index}
    family = family_of(parts, str(index.get("_class_name", name)))
    kind = None if "custom_pipeline" in options else getattr(diffusers, str(index.get("_class_name")), None)
    check_known(options, FROM_PRETRAINED, kind=kind)
    if source.is_dir():
        options = only_variant(source / family.denoiser) | options
    return Base(name, folder, family, options)


def _check_edited(folder: Path, *, name: str) -> None:
    """Raise ValueError when the config of a text encoder in `folder` says other positions than its weights have."""
    key = "text_model.embeddings.position_embedding.weight"
    try:
        says = json.loads((folder / "config.json").read_text(encoding="utf-8"))["max_position_embeddings"]
        with safe_open(folder / "model.safetensors", framework="pt") as file:
            found = [k for k in (key, key.removeprefix("text_model.")) if k in file.keys()]
            rows = file.get_slice(found[0]).get_shape()[0]
    except (OSError, SafetensorError, ValueError, TypeError, KeyError, IndexError):
        return  # another fault, which the caller names
    if says != rows:
        raise ValueError(
            f"config.json of {name} says {says} positions but its weights have {rows}; editing the config does not "
            f"lengthen an encoder: put {rows} back and name an encoder for load_debias_pipeline()."
        )


def _check_whole(folder: Path, *, name: str) -> None:
    """Raise ValueError when `folder` holds only a LoRA, which is what transformers saves while one is loaded."""
    if (folder / "adapter_config.json").is_file() and not any(folder.glob("model*")):
        raise ValueError(
            f"{name} is only a LoRA because its pipeline was saved while one was loaded; before save_pretrained() call "
            "unload_lora_weights(), or fuse_lora() and then unload_lora_weights() to keep what it does."
        )


def _check_files(folder: Path, *, name: str) -> None:
    """Raise ValueError, with the file's own fault, when a file of weights in the pipeline's folder cannot be read."""
    for path in sorted(one for suffix in ("safetensors", "bin") for one in folder.glob(f"*/*.{suffix}")):
        try:
            check_weights(path)
        except ValueError as error:
            raise ValueError(f"base {name} is damaged or incomplete: {error}") from error


def _base_fault(name: str, error: Exception) -> ValueError:
    if not Path(name).is_dir():
        return ValueError(
            f"base {name} was not found locally or on the Hub ({type(error).__name__}); check the name, "
            "copy it again, or see HF_HUB_OFFLINE."
        )
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    if "trust_remote_code" in reason:
        return ValueError(f"base {name} has code of its own, which is run only where you say so ({reason}).")
    return ValueError(f"base {name} is damaged or incomplete ({reason}), or does not take an option given.")
