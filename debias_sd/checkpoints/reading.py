"""A checkpoint on disk or on the hub -> its tensors by name, and what else is known of it.

What a file is, `weight_files` finds out by its content. Nothing of a file is ever run: TorchScript archives are read by
their structure alone. Of a 7 GB Stable Diffusion file only the text encoder comes into memory.

The tensors of a TorchScript archive, read without running it.

A TorchScript file (OpenAI's official CLIP files are some) is a zip of raw storages, of the model's code, and of one
pickle that says which attribute is which storage. `torch.jit.load` compiles that code; here only the pickle's structure
is read: each of the archive's classes becomes an empty object, every name but the few below is refused, and no code of
the archive is looked at. The names of the tensors are then those of `torch.jit.load(...).state_dict()`, and those of
attributes that are not parameters (a causal mask).
"""

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from debias_sd.checkpoints.keys import shown
from debias_sd.encoder_folder import FILES, HUB_ID, download, read_json
from debias_sd.report import hash_file
from debias_sd.weight_files import (
    SAFETENSORS,
    TORCHSCRIPT,
    could_run,
    kind_of,
    load_pickle,
    read_safetensors,
    root_of,
    weights_of,
)

_DTYPES = {
    "DoubleStorage": torch.float64, "FloatStorage": torch.float32, "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32,
    "ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool,
}  # fmt: skip


class _Object:
    """Stands for an object of the archive: its attributes, none of its methods."""

    def __init__(self, *_: object) -> None:
        """Take whatever the archive gives; attributes come by `__setstate__`."""

    def __setstate__(self, state: object) -> None:
        self.__dict__.update(state if isinstance(state, dict) else {})


class _Reader(pickle.Unpickler):
    """Unpickles the structure; every name outside the list is refused before anything is called."""

    def __init__(self, archive: zipfile.ZipFile, root: str) -> None:
        super().__init__(io.BytesIO(archive.read(root + "data.pkl")))
        self.archive, self.root = archive, root
        self.storages: dict[str, Tensor] = {}

    def find_class(self, module: str, name: str) -> object:
        if module.split(".")[0] == "__torch__":
            return _Object
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        if module == "torch.jit._pickle":  # lists and dictionaries of a declared type: build_intlist, restore_type_tag
            return _first
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        raise pickle.UnpicklingError(f"GLOBAL {module}.{name}")

    def persistent_load(self, key: object) -> Tensor:
        _, dtype, name, _, _ = key
        if name not in self.storages:
            content = bytearray(self.archive.read(f"{self.root}data/{name}"))
            self.storages[name] = torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)
        return self.storages[name]


def _first(value: object, *_: object) -> object:
    return value


def _rebuild(storage: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: object) -> Tensor:
    return torch.as_strided(storage, size, stride, offset)


def read_torchscript(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a TorchScript archive by attribute name, on the CPU; nothing of it is run.

    Raises pickle.UnpicklingError for a structure that names anything but tensors and modules, and whatever reading a
    damaged archive raises.
    """
    with zipfile.ZipFile(path) as archive:
        root = root_of(archive.namelist())
        if root is None:
            raise ValueError("no data.pkl")
        return dict(_tensors(_Reader(archive, root).load(), ""))


def _tensors(value: object, prefix: str) -> Iterator[tuple[str, Tensor]]:
    for name, child in vars(value).items() if isinstance(value, _Object) else ():
        if isinstance(child, Tensor):
            yield prefix + name, child
        else:
            yield from _tensors(child, f"{prefix}{name}.")


ANCHOR = "token_embedding.weight"  # what every CLIP text tower holds, in each naming
_OPEN_CLIP = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin", "open_clip_pytorch_model.safetensors")
_HUB = (*FILES, "model-*.safetensors", "model.safetensors.index.json", "open_clip_config.json", _OPEN_CLIP[0])
_HUB_PICKLES = ("pytorch_model*.bin", "pytorch_model.bin.index.json", _OPEN_CLIP[1])


@dataclass(frozen=True)
class Source:
    """What was read: tensors by their own names, and what stands beside them."""

    name: str
    """File or folder name, or the hub id; no path."""
    format: str
    tensors: Mapping[str, Tensor]
    sha256: dict[str, str]
    """By file name, of each file that holds weights."""
    beside: tuple[str, ...] = ()
    """Entries next to the state dict of a training checkpoint: epoch, optimizer."""
    config: dict[str, object] | None = None
    """config.json of a transformers folder."""
    open_clip: dict[str, object] | None = None
    """open_clip_config.json of an open_clip folder."""
    folder: Path | None = field(default=None, compare=False)
    """Where the tokenizer files lie, for a folder."""


def read_source(source: str | Path) -> Source:
    """Read a checkpoint file, a transformers or open_clip folder, or a hub id.

    Raises ValueError with one sentence for everything that is not a checkpoint, is damaged, or could run code.
    """
    name, path = str(source), Path(source).expanduser()
    if path.is_dir():
        return _read_folder(path, path.resolve().name)
    if path.is_file():
        tensors, beside, kind = _read_file(path)
        return Source(name=path.name, format=kind, tensors=tensors, sha256={path.name: hash_file(path)}, beside=beside)
    if not HUB_ID.fullmatch(name) or path.parent.is_dir():
        raise ValueError(f"checkpoint {name} does not exist; give a file, a folder or a hub id.")
    return _read_folder(download(name, _HUB, _HUB_PICKLES, what="checkpoint"), name)


def _read_folder(folder: Path, name: str) -> Source:
    if (folder / "model_index.json").is_file():
        raise ValueError(
            f"{name} is a whole pipeline; give one of its text encoders, {folder / 'text_encoder'} for instance."
        )
    config = open_clip = None
    if (folder / "config.json").is_file():
        config, kind, files = _read_clip_config(folder), "transformers folder", weights_of(folder)
    elif (folder / "open_clip_config.json").is_file():
        open_clip, kind = _read_open_clip_config(folder), "open_clip folder"
        files = [folder / file for file in _OPEN_CLIP if (folder / file).is_file()][:1]
    else:
        raise ValueError(f"folder {name} has no config.json; give the folder of a CLIP text encoder, or a file.")
    if not files:
        raise ValueError(
            f"folder {name} holds no weights (model.safetensors, pytorch_model.bin, {_OPEN_CLIP[0]}); "
            "copy them into it."
        )
    tensors: dict[str, Tensor] = {}
    beside: tuple[str, ...] = ()
    for file in files:
        part, entries, _ = _read_file(file)
        tensors, beside = tensors | dict(part), beside + entries
    hashes = {file.name: hash_file(file) for file in files}
    return Source(name, kind, tensors, hashes, beside, config, open_clip, folder)


def _read_clip_config(folder: Path) -> dict[str, object]:
    config = read_json(folder / "config.json")
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind not in ("clip", "clip_text_model"):
        raise ValueError(
            f"config.json in {folder} has model_type {kind!r}, which must be 'clip' or 'clip_text_model'; give a CLIP "
            "model."
        )
    return config


def _read_open_clip_config(folder: Path) -> dict[str, object]:
    config = read_json(folder / "open_clip_config.json")
    model = config.get("model_cfg") if isinstance(config, dict) else None
    if not isinstance(model, dict) or not isinstance(model.get("text_cfg"), dict):
        raise ValueError(f"open_clip_config.json in {folder} has no model_cfg with a text_cfg; copy it again.")
    return config


def _read_file(path: Path) -> tuple[Mapping[str, Tensor], tuple[str, ...], str]:
    """Return a file's tensors, the entries beside them, and its format."""
    kind = kind_of(path)
    if kind == SAFETENSORS:
        found = read_safetensors(path), (), kind
    elif kind == TORCHSCRIPT:
        found = _read_archive(path), (), kind
    else:
        found = *_unwrap(path, load_pickle(path, kind=kind)), kind
    if not found[0]:
        raise ValueError(f"{path} holds no tensors by name; save model.state_dict() and give that file.")
    for name, tensor in found[0].items():
        kinds = {"sparse": tensor.layout != torch.strided, "quantised": tensor.is_quantized, "empty": tensor.is_meta}
        for kind in (kind for kind, found_so in kinds.items() if found_so):
            raise ValueError(f"tensor {shown(name)} of {path} is {kind} but must be plain numbers; save it as such.")
    return found


def _read_archive(path: Path) -> Mapping[str, Tensor]:
    try:
        return read_torchscript(path)
    except pickle.UnpicklingError as error:
        raise could_run(path, error) from error
    except Exception as error:  # whatever unpickling and slicing raise on bytes that are not an archive
        raise ValueError(f"{path} is a damaged TorchScript archive; copy or download it again.") from error


def _unwrap(path: Path, content: object) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return the state dict of a loaded checkpoint, and the names of the entries that stand beside it."""
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, not a state dict; save model.state_dict().")
    content = {str(name): value for name, value in content.items()}
    inner = {name: value for name, value in content.items() if isinstance(value, dict) and _holds_tensors(value)}
    has_inner_tower = not _holds_tower(content) and any(_holds_tower(value) for value in inner.values())
    if inner and (has_inner_tower or not _holds_tensors(content)):
        rank = {name: (not _holds_tower(inner[name]), name != "state_dict", name != "model") for name in inner}
        state = content.pop(min(rank, key=rank.__getitem__))
    else:
        state, content = content, {}
    tensors = {str(name): value.detach() for name, value in state.items() if isinstance(value, Tensor)}
    content |= {str(name): value for name, value in state.items() if not isinstance(value, Tensor)}
    return tensors, tuple(sorted(content))


def _holds_tensors(value: dict[object, object]) -> bool:
    return any(isinstance(tensor, Tensor) for tensor in value.values())


def _holds_tower(value: dict[object, object]) -> bool:
    return any(str(name).endswith(ANCHOR) for name in value)
