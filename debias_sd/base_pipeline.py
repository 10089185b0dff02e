"""The base pipeline: found as a folder, a hub id or a single file, and loaded by diffusers with every fault named."""

import json
import pickle
import re
from dataclasses import dataclass
from pathlib import Path

import diffusers
import torch
from diffusers import DiffusionPipeline
from diffusers.loaders.single_file_utils import fetch_diffusers_config
from huggingface_hub import hf_hub_download
from safetensors import SafetensorError, safe_open

from debias_sd.encoder_folder import HUB_ID, embedded_folder
from debias_sd.families import Family, Slot, family_of

EMBEDDED_BASE = "stable-diffusion"
FILES = (".safetensors", ".ckpt", ".pt", ".pth", ".bin")
_VARIANT = re.compile(r"[\w-]+\.(\w+?)(?:-\d+-of-\d+)?\.safetensors")  # model.fp16.safetensors
# What diffusers and transformers raise for a folder whose parts are damaged or do not fit together.
_LOADING_FAULTS = (OSError, SafetensorError, RuntimeError, ValueError, TypeError, KeyError, AttributeError)
# A single file does not name its pipeline; diffusers tells what model it is from its tensors.
_CLASSES = {
    "stable-diffusion-v1-5/stable-diffusion-v1-5": "StableDiffusionPipeline",
    "stable-diffusion-v1-5/stable-diffusion-inpainting": "StableDiffusionInpaintPipeline",
    "timbrooks/instruct-pix2pix": "StableDiffusionInstructPix2PixPipeline",
    "stabilityai/stable-diffusion-2-1": "StableDiffusionPipeline",
    "stabilityai/stable-diffusion-2-inpainting": "StableDiffusionInpaintPipeline",
    "stabilityai/stable-diffusion-xl-base-1.0": "StableDiffusionXLPipeline",
    "stabilityai/stable-diffusion-xl-refiner-1.0": "StableDiffusionXLImg2ImgPipeline",
    "diffusers/stable-diffusion-xl-1.0-inpainting-0.1": "StableDiffusionXLInpaintPipeline",
    "playgroundai/playground-v2.5-1024px-aesthetic": "StableDiffusionXLPipeline",
    "stabilityai/stable-diffusion-3-medium-diffusers": "StableDiffusion3Pipeline",
    "stabilityai/stable-diffusion-3.5-large": "StableDiffusion3Pipeline",
    "stabilityai/stable-diffusion-3.5-medium": "StableDiffusion3Pipeline",
    "black-forest-labs/FLUX.1-dev": "FluxPipeline",
    "black-forest-labs/FLUX.1-schnell": "FluxPipeline",
    "black-forest-labs/FLUX.1-Fill-dev": "FluxFillPipeline",
    "black-forest-labs/FLUX.1-Depth-dev": "FluxControlPipeline",
}


@dataclass(frozen=True)
class Base:
    """A base pipeline that was found and not loaded yet; of a single file, `folder` and `family` are not known yet."""

    name: str
    folder: Path | None
    family: Family | None
    options: dict[str, object]

    def width_of(self, slot: Slot) -> int | None:
        """Return the width of the base's own encoder in `slot`, from its config alone; None when it does not say."""
        try:
            path = Path(self.name, slot.encoder, "config.json")
            if not Path(self.name).is_dir():
                path = Path(hf_hub_download(self.name, f"{slot.encoder}/config.json", **_hub_options(self.options)))
            width = json.loads(path.read_text(encoding="utf-8"))["hidden_size"]
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return width if isinstance(width, int) else None

    def load(self) -> DiffusionPipeline:
        """Return the pipeline as diffusers loads it; ValueError with one sentence for every fault."""
        if self.family is None:
            return _load_file(Path(self.name), self.options)
        try:
            return DiffusionPipeline.from_pretrained(self.name, **self.options)
        except _LOADING_FAULTS as error:
            for slot in self.family.clip_slots:
                _check_edited(self.folder / slot.encoder, name=f"{slot.encoder} of base {self.name}")
            raise _base_fault(self.name, error) from error


def find_base(base: str | Path | None, options: dict[str, object]) -> Base:
    """Find the pipeline of a folder, a hub id or a single file; None is the embedded one.

    `options` go to `from_pretrained` or `from_single_file`. Raises ValueError with one sentence when it is nowhere or
    of another family.
    """
    source = embedded_folder(EMBEDDED_BASE) if base is None else Path(base).expanduser()
    if source.is_file():
        return Base(str(source), None, None, options)
    if source.is_dir() and not (source / "model_index.json").is_file():
        raise ValueError(f"base {source} has no model_index.json; give the folder of a whole pipeline.")
    if not source.is_dir() and (not HUB_ID.fullmatch(str(base)) or source.parent.is_dir()):
        raise ValueError(
            f"base folder {base} does not exist; give a folder, a hub id or a file of a Stable Diffusion pipeline."
        )
    name = str(source if source.is_dir() else base)
    try:
        found = source if source.is_dir() else hf_hub_download(name, "model_index.json", **_hub_options(options))
        folder = source if source.is_dir() else Path(found).parent
        index = DiffusionPipeline.load_config(folder)
    except (OSError, SafetensorError) as error:
        raise _base_fault(name, error) from error
    if not isinstance(index, dict):
        raise ValueError(f"model_index.json of base {name} is not a JSON object; copy the folder again.")
    parts = index | {key: value for key, value in options.items() if key in index}
    family = family_of(parts, str(index.get("_class_name", name)))
    if source.is_dir():
        options = _only_variant(source / family.denoiser) | options
    return Base(name, folder, family, options)


def _only_variant(folder: Path) -> dict[str, str]:
    """Return `variant` as an option when the weights in `folder` are there in one variant and not without one."""
    found = {match and match[1] for match in (_VARIANT.fullmatch(path.name) for path in folder.glob("*.safetensors"))}
    return {"variant": found.pop()} if len(found) == 1 and None not in found else {}


def _hub_options(options: dict[str, object]) -> dict[str, object]:
    return {key: options[key] for key in ("revision", "cache_dir", "token") if key in options}


def _load_file(path: Path, options: dict[str, object]) -> DiffusionPipeline:
    """Load a checkpoint of one file. What is not in it (configs, tokenizers) comes from `config=` or from the hub."""
    if path.suffix.lower() not in FILES:
        raise ValueError(f"base {path} is no checkpoint file ({', '.join(FILES)}); give a folder, a hub id or a file.")
    config = options.get("config")
    try:
        if config is not None and Path(str(config)).is_dir():
            kind = str(DiffusionPipeline.load_config(config).get("_class_name"))
        else:
            repository = fetch_diffusers_config(_shapes(path))["pretrained_model_name_or_path"]
            kind = _CLASSES.get(repository, repository)
        loader = getattr(getattr(diffusers, kind, None), "from_single_file", None)
        if loader is None:
            raise ValueError(
                f"base {path} is a checkpoint of {kind}, supported are those of Stable Diffusion 1.x, 2.x, XL with its "
                "refiner, 3 and FLUX; give one of these, or config= the folder of its pipeline."
            )
    except (*_LOADING_FAULTS, EOFError, pickle.UnpicklingError) as error:
        if isinstance(error, ValueError) and str(error).startswith("base "):
            raise
        what = "is damaged or no checkpoint"
        if isinstance(error, pickle.UnpicklingError):
            what = "is damaged, or a pickle with more in it than tensors, which is not run"
        raise ValueError(
            f"base {path} {what} ({type(error).__name__}); copy it again, or give a .safetensors."
        ) from error
    try:
        return loader(str(path), **options)
    except _LOADING_FAULTS as error:
        raise ValueError(
            f"base {path} cannot be loaded as a {kind} ({type(error).__name__}); check the file, and without a network "
            "give config= the folder of a pipeline of this kind, and as options the parts that the file lacks."
        ) from error


def _shapes(path: Path) -> dict[str, torch.Tensor]:
    """Return the file's tensors without their numbers."""
    if path.suffix.lower() == ".safetensors":
        with safe_open(path, framework="pt") as file:
            shapes = {key: file.get_slice(key).get_shape() for key in file.keys()}
        return {key: torch.empty(shape, device="meta") for key, shape in shapes.items()}
    content = torch.load(path, map_location="meta", weights_only=True)
    while isinstance(content, dict) and "state_dict" in content:
        content = content["state_dict"]
    if not isinstance(content, dict):
        raise TypeError("no state dict")
    return content


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
            f"config.json of {name} says {says} positions, its weights have {rows}; editing the config does not "
            f"lengthen an encoder: put {rows} back and name an encoder for load_debias_pipeline()."
        )


def _base_fault(name: str, error: Exception) -> ValueError:
    where = "is damaged or incomplete" if Path(name).is_dir() else "is no local folder and the hub did not give it"
    return ValueError(
        f"base {name} {where} ({type(error).__name__}); check the name, copy it again, or see HF_HUB_OFFLINE."
    )
