"""The tensors of a TorchScript archive, read without running it.

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
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from debias_sd.weight_files import root_of

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
