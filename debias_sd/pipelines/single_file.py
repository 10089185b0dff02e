"""A base pipeline from one file, as most fine-tuned models are shared: loaded by diffusers with every fault named.

A file holds the denoiser, and of the rest what its maker put in: files of Stable Diffusion 1.x, 2.x and XL hold all of
it, those of 3 may lack text encoders, those of FLUX hold nothing else. What a file lacks comes from `config=`, when
that is a whole pipeline's folder, or as an option.
"""

import pickle
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import diffusers
import torch
from diffusers import DiffusionPipeline
from diffusers.loaders.single_file_utils import SingleFileComponentError, fetch_diffusers_config
from safetensors import SafetensorError

from debias_sd.pipelines.families import SUPPORTED
from debias_sd.pipelines.options import FROM_SINGLE_FILE, check_known
from debias_sd.weight_files import (
    SAFETENSORS,
    TORCHSCRIPT,
    kind_of,
    load_pickle,
    only_variant,
    plain_values,
    read_safetensors,
)

# What diffusers and transformers raise for files and folders whose parts are damaged or do not fit together.
LOADING_FAULTS = (
    OSError, SafetensorError, RuntimeError, ValueError, TypeError, KeyError, AttributeError, IndexError, EOFError,
    pickle.UnpicklingError,
)  # fmt: skip
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
# Where a file has its parts other than the denoiser; a CLIP of the second slot is in one of the last two places.
_CLIP = ("cond_stage_model.", "conditioner.embedders.0.", "text_encoders.clip_l.")
_CLIP_2 = ("conditioner.embedders.1.", "conditioner.embedders.0.model.", "text_encoders.clip_g.")
_PLACES = {
    ("text_encoder", "CLIPTextModel"): _CLIP,
    ("text_encoder", "CLIPTextModelWithProjection"): _CLIP,
    ("text_encoder_2", "CLIPTextModelWithProjection"): _CLIP_2,
    ("text_encoder_2", "T5EncoderModel"): ("text_encoders.t5xxl.",),
    ("text_encoder_3", "T5EncoderModel"): ("text_encoders.t5xxl.",),
    ("vae", "AutoencoderKL"): ("first_stage_model.", "vae."),
}
_NAMED = re.compile(r"^(\w+) = (\w+)\.from_pretrained", re.MULTILINE)


def load_single_file(path: Path, options: dict[str, object]) -> DiffusionPipeline:
    """Return the pipeline of a checkpoint file, its models in evaluation mode; else ValueError with one sentence.

    `options` are those of diffusers' `from_single_file`: `dtype`, `config` (a hub id or a local folder), parts.
    """
    try:
        content = kind_of(path)
        shapes = _shapes(path, content)
    except ValueError as error:
        raise _unreadable(path, error) from error
    if isinstance(options.get("dtype"), dict):
        raise ValueError("torch_dtype by parts is for bases in folders; give one dtype for a single file.")
    config = options.get("config")
    folder = Path(str(config)) if config is not None and Path(str(config)).is_dir() else None
    kind = _kind(path, shapes, folder)
    loader = getattr(getattr(diffusers, kind, None), "from_single_file", None)
    if loader is None:
        raise ValueError(
            f"base {path} is a checkpoint of {kind} but must be one of {SUPPORTED}; give one of these, or config= the "
            "folder of its pipeline."
        )
    check_known(options, FROM_SINGLE_FILE, kind=getattr(diffusers, kind))
    try:
        if folder is not None:
            options = _parts_beside(folder, shapes, options) | options | {"config": str(folder)}
        with _named_by_content(path, content) as named, plain_values():
            pipe = loader(str(named), **options)
    except SingleFileComponentError as error:
        raise _lacking(path, str(error)) from error
    except LOADING_FAULTS as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"base {path} cannot be loaded as a {kind} ({type(error).__name__}); check the file, and without a network "
            "give config= the folder of a pipeline of this kind, and as options the parts that the file lacks; "
            f"diffusers says: {reason}"
        ) from error
    # diffusers (0.42) leaves the T5 of such a file in training mode: its dropout makes other states in every call.
    for name, part in pipe.components.items():
        if isinstance(part, torch.nn.Module) and name not in options:
            part.eval()
    return pipe


def _unreadable(path: Path, error: ValueError) -> ValueError:
    """Return the sentence for a file that is not a checkpoint, by its own fault."""
    cause = error.__cause__
    if isinstance(cause, pickle.UnpicklingError):
        what = "is damaged, or a pickle with more in it than tensors, which is not run"
    else:
        is_empty = path.stat().st_size == 0  # not by the sentence, which has the path in it
        what = "is damaged or not a checkpoint" if cause or is_empty else "is not a checkpoint file"
    return ValueError(f"base {path} {what}" + (f" ({type(cause).__name__})" if cause else "") + f": {error}")


def _kind(path: Path, shapes: dict[str, torch.Tensor], folder: Path | None) -> str:
    """Return the class of the file's pipeline: that of the config's folder, or what diffusers takes the file for."""
    try:
        if folder is not None:
            return str(DiffusionPipeline.load_config(folder).get("_class_name"))
        repository = fetch_diffusers_config(shapes)["pretrained_model_name_or_path"]
    except LOADING_FAULTS as error:
        what = f"base {path} is damaged or not a checkpoint" if folder is None else f"config {folder} is not a pipeline"
        raise ValueError(f"{what} ({type(error).__name__}); copy it again, or give another.") from error
    return _CLASSES.get(repository, repository)


def _parts_beside(folder: Path, keys: Collection[str], options: dict[str, object]) -> dict[str, torch.nn.Module]:
    """Return the models that are not in the file of `keys` nor among `options`, and whose weights are in `folder`.

    diffusers takes configs and tokenizers from there, but no models of transformers and no VAE.
    """
    found = {}
    for name, value in DiffusionPipeline.load_config(folder).items():
        library, kind = value if isinstance(value, list | tuple) and len(value) == 2 else (None, None)
        places = _PLACES.get((name, kind))
        if places is None or name in options or any(key.startswith(places) for key in keys):
            continue
        if not any((folder / name).glob("*.safetensors")) and not any((folder / name).glob("*.bin")):
            continue
        own = {"torch_dtype" if library == "diffusers" else "dtype": options["dtype"]} if "dtype" in options else {}
        model = getattr(import_module("diffusers" if library == "diffusers" else "transformers"), kind)
        found[name] = model.from_pretrained(folder / name, **own, **only_variant(folder / name))
    return found


def _lacking(path: Path, message: str) -> ValueError:
    """Return the sentence for a part that neither the file nor the config's folder has; `message` is diffusers'."""
    match = _NAMED.search(message)
    name, kind = match.groups() if match else ("a part", "a model")
    without = ""
    if name == "text_encoder_3":
        without = ", or text_encoder_3=None and tokenizer_3=None, which Stable Diffusion 3 can do without"
    return ValueError(
        f"base {path} has no weights of {name} ({kind}), nor has its config; give {name}= as an option, or config= the "
        f"folder of a whole pipeline{without}."
    )


def _shapes(path: Path, kind: str) -> dict[str, torch.Tensor]:
    """Return the file's tensors without their numbers; ValueError with one sentence when it cannot be read."""
    if kind == SAFETENSORS:
        return read_safetensors(path, meta=True)
    if kind == TORCHSCRIPT:
        raise ValueError(f"{path} is a TorchScript archive, no pipeline's checkpoint; give a .safetensors or .ckpt.")
    content = load_pickle(path, kind=kind, device="meta")
    while isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, not a state dict; save model.state_dict().")
    return {str(name): tensor for name, tensor in content.items() if isinstance(tensor, torch.Tensor)}


@contextmanager
def _named_by_content(path: Path, kind: str) -> Iterator[Path]:
    """Give the file a name by which diffusers, which goes by the suffix, reads it as what it is, while it does."""
    suffix = ".safetensors" if kind == SAFETENSORS else ".ckpt"
    if (path.suffix == ".safetensors") == (kind == SAFETENSORS) and path.suffix != ".gguf":
        yield path
        return
    with tempfile.TemporaryDirectory() as scratch:
        link = Path(scratch, path.stem + suffix)
        try:
            link.symlink_to(path.resolve())
        except OSError:  # Windows lets only some users make one
            shutil.copyfile(path, link)
        yield link
