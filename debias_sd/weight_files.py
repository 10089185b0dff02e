"""What a file of weights is, by its content: the one place that every command and loader asks.

A suffix says nothing: `.ckpt` files that are safetensors and pickles named `.safetensors` are about. Nothing of a file
is ever run: pickles are read with `weights_only=True`. Tensors of safetensors files and of torch's zip files are
mapped, not read. What is not a file of weights is told by what it is.
"""

import json
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import numpy
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

SAFETENSORS, ZIP, TORCHSCRIPT, PICKLE = "safetensors", "torch zip", "TorchScript archive", "torch pickle"
Keep = Callable[[str], bool]  # of a tensor's name
_NAMES = ("model.safetensors", "pytorch_model.bin")
_VARIANT = re.compile(r"[\w-]+\.(\w+?)(?:-\d+-of-\d+)?\.safetensors")
_NONE = "not a checkpoint (safetensors, torch or TorchScript)"
_AGAIN = "copy or download it again"
# First bytes of what people give, or are given, in place of weights.
_OTHERS = (
    (rb"GGUF", "a GGUF file, whose weights are quantised; give the .safetensors file that it was made of"),
    (rb"version https://git-lfs", "a git-LFS pointer, not the weights that it stands for; run `git lfs pull`, or "
     "download the file itself"),
    (rb"\s*<(!doctype|html|\?xml|head|body|script)", "a web page under the name of a file; download the file itself "
     "(on the hub: /resolve/ in its address in place of /blob/)"),
    (rb"\s*[{\[]\s*[\"{\]}]", "JSON text, which holds no weights; give the file of the weights, or the whole folder"),
    (rb"\x1f\x8b|BZh|\xfd7zXZ|7z\xbc\xaf|Rar!|\x28\xb5\x2f\xfd", "a compressed archive; unpack it and give the weights "
     "file"),
    (rb"\x89HDF", "an HDF5 file, as TensorFlow and Keras have them; give the weights for PyTorch"),
    (rb"\x00{9}", "only zeros, as an interrupted download leaves them; download it again"),
)  # fmt: skip
# Training scripts leave numpy scalars next to the weights (the epoch); none of these types runs code.
_SCALAR = numpy._core.multiarray.scalar
_NUMPY = [
    _SCALAR,
    (_SCALAR, "numpy.core.multiarray.scalar"),
    numpy.dtype,
    *(type(numpy.dtype(code)) for code in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?")),
]


def kind_of(path: Path) -> str:
    """Return what `path` is: one of the four kinds above.

    Raises ValueError with one sentence for a file that cannot be read, is empty or damaged, or is something else.
    """
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); {_AGAIN}.") from error
    if not head:
        raise ValueError(f"{path} is empty (0 bytes); {_AGAIN}.")
    if head[:2] == b"PK":
        return _kind_of_zip(path)
    if head[8:9] == b"{":
        return SAFETENSORS
    for pattern, what in _OTHERS:
        if re.match(pattern, head, re.IGNORECASE):
            raise ValueError(f"{path} is {_NONE} but {what}.")
    if head[:1] == b"\x80":
        return PICKLE
    raise ValueError(f"{path} is {_NONE}; give the weights file itself.")


def _kind_of_zip(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except Exception as error:  # zipfile has many for damaged bytes: NotImplementedError, UnicodeDecodeError, OSError
        raise damaged(path) from error
    root = root_of(names)
    if root is None:
        raise ValueError(f"{path} is a zip archive but not a torch checkpoint; unpack it and give the weights file.")
    return TORCHSCRIPT if is_torchscript(names, root) else ZIP


def root_of(names: list[str]) -> str | None:
    """Return the folder of a torch archive's `data.pkl` inside its zip, with a slash at its end; None without one."""
    found = [name for name in names if PurePosixPath(name).name == "data.pkl" and name.count("/") == 1]
    return found[0].removesuffix("data.pkl") if len(found) == 1 else None


def is_torchscript(names: list[str], root: str) -> bool:
    """Whether the names of a torch archive are those of a TorchScript model, not of `torch.save`."""
    return root + "constants.pkl" in names or any(name.startswith(root + "code/") for name in names)


def read_safetensors(
    path: Path, keep: Callable[[str], bool] = lambda _: True, *, meta: bool = False
) -> dict[str, Tensor]:
    """Return the tensors whose names `keep` takes, with `meta` only their shapes; ValueError for a damaged file."""
    try:
        with safe_open(path, framework="pt") as file:
            names = [name for name in file.keys() if keep(name)]
            if meta:
                return {name: torch.empty(file.get_slice(name).get_shape(), device="meta") for name in names}
            return {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError, UnicodeDecodeError) as error:
        raise damaged(path) from error


def load_pickle(path: Path, *, kind: str, device: str = "cpu") -> object:
    """Return what `torch.save` wrote; ValueError for a damaged file and for one that holds more than plain values."""
    # torch.load takes every path that ends in .safetensors for such a file; it cannot map what it has no path of.
    mapped = kind == ZIP and device == "cpu" and path.suffix.lower() != ".safetensors"
    try:
        with path.open("rb") as file, plain_values():
            return torch.load(str(path) if mapped else file, map_location=device, weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        raise could_run(path, error) from error
    except Exception as error:  # whatever torch's readers raise on bytes of another kind: KeyError, IndexError
        raise ValueError(f"{path} is truncated, damaged or not a torch checkpoint; {_AGAIN}.") from error


@contextmanager
def plain_values() -> Iterator[None]:
    """Let `torch.load` read numpy's scalars, and say nothing of pickle protocols other than torch.save's own."""
    with warnings.catch_warnings(), torch.serialization.safe_globals(_NUMPY):
        warnings.simplefilter("ignore", UserWarning)
        yield


def read_state(path: Path, keep: Keep = lambda _: True) -> dict[str, Tensor]:
    """Return the tensors of a plain file of weights, such as a model's folder holds, whose names `keep` takes."""
    kind = kind_of(path)
    if kind == SAFETENSORS:
        return read_safetensors(path, keep)
    content = load_pickle(path, kind=kind) if kind != TORCHSCRIPT else None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a state dict; save model.state_dict(), best as safetensors.")
    return {str(name): one.detach() for name, one in content.items() if isinstance(one, Tensor) and keep(str(name))}


def weights_of(folder: Path, variant: str | None = None) -> list[Path]:
    """Return the files of a transformers folder's weights, shards by their index; an empty list when it has none.

    Safetensors come before pickles, and the files of `variant` before those without one.
    """
    for name in _NAMES:
        stem, _, suffix = name.partition(".")
        for whole in (f"{stem}.{variant}.{suffix}", name) if variant else (name,):
            if (folder / whole).is_file():
                return [folder / whole]
            for index in (folder / f"{whole}.index.json", folder / f"{stem}.{suffix}.index.{variant}.json"):
                if index.is_file():
                    return _shards(index)
    return []


def only_variant(folder: Path) -> dict[str, str]:
    """Return `variant` as an option when the weights in `folder` are there in one variant and not without one."""
    found = {match and match[1] for match in (_VARIANT.fullmatch(path.name) for path in folder.glob("*.safetensors"))}
    return {"variant": found.pop()} if len(found) == 1 and None not in found else {}


def _shards(index: Path) -> list[Path]:
    try:
        content = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{index} is not readable JSON; copy or make the folder again.") from error
    shards = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(shards, dict) or any(Path(str(shard)).name != shard for shard in shards.values()):
        raise ValueError(f"{index} has no weight_map of file names; copy it again.")
    return [index.parent / shard for shard in sorted(set(shards.values()))]


def check_weights(path: Path) -> None:
    """Raise ValueError, as `kind_of` and the readers do, for a file of weights that cannot be read."""
    kind = kind_of(path)
    if kind == SAFETENSORS:
        read_safetensors(path, meta=True)
    elif kind != TORCHSCRIPT:
        load_pickle(path, kind=kind, device="meta")


def damaged(path: Path) -> ValueError:
    """Return the fault of a file whose bytes are not what its kind needs."""
    return ValueError(f"{path} is truncated or damaged; {_AGAIN}.")


def could_run(path: Path, error: pickle.UnpicklingError) -> ValueError:
    """Return the fault of a pickle that names more than tensors and plain values."""
    found = re.search(r"GLOBAL ([\w.]+)", str(error))
    what = f"the Python object {found[1]}" if found else "more than tensors and plain values"
    return ValueError(
        f"{path} is a pickle with {what} in it, and reading it could run code; nothing was run: save only the model's "
        "state_dict, best as safetensors, and give that file."
    )
