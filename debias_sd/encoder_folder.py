"""A text-encoder folder on disk: find it, read it with every fault named, write it in one step.

A folder holds config.json, model.safetensors, tokenizer files, provenance.json and, for a small vocabulary,
known_words.json. All layouts of the weights are read: `CLIPTextModel`, `CLIPTextModelWithProjection`, and a whole
`CLIPModel`, whose image tower is left aside. Keys are written as transformers 4 had them (`text_model.` in front),
which transformers 5 reads too.
"""

import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer, PreTrainedTokenizerBase

from debias_sd.counts import count_of
from debias_sd.text_files import parse_json, read_text

WEIGHTS = Path(__file__).parent / "weights"
EMBEDDED = ("base", "long-clip", "debias")
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
FILES = (
    "config.json", "model.safetensors", "provenance.json", "known_words.json", "tokenizer.json",
    "tokenizer_config.json", "vocab.json", "merges.txt", "special_tokens_map.json", "added_tokens.json",
    "preprocessor_config.json", "processor_config.json", "spiece.model",
)  # fmt: skip
PREFIX = "text_model."
PROJECTION = "text_projection.weight"
_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_FLAT = ("embeddings.", "encoder.", "final_layer_norm.")


def embedded_folder(name: str) -> Path:
    """Return the folder of a model that ships with the package; ValueError when it has not been made."""
    folder = WEIGHTS / name
    if not folder.is_dir():
        raise ValueError(f"the embedded model {name!r} is not there; run make weights, or give a folder or a hub id.")
    return folder


def find_encoder_folder(source: str | Path) -> Path:
    """Return the local folder of `source`: an embedded name (./base is a folder), a folder, or a hub id.

    Only the files of an encoder folder are downloaded: hub repositories often hold other formats of many gigabytes.
    """
    if not isinstance(source, str | Path):
        raise ValueError(f"encoder is a {type(source).__name__}, allowed are a folder, a name or a hub id; give one.")
    name = str(source)
    if name in EMBEDDED:
        return embedded_folder(name)
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        raise ValueError(f"encoder {name} is a file; give the folder that holds its config.json and model.safetensors.")
    if not HUB_ID.fullmatch(name) or path.parent.is_dir():
        raise ValueError(f"encoder folder {name} does not exist; give a folder, a hub id, or {', '.join(EMBEDDED)}.")
    try:
        return Path(snapshot_download(name, allow_patterns=list(FILES)))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"encoder {name} is no local folder and the hub did not give it ({type(error).__name__}); check the name, "
            "the network and HF_HUB_OFFLINE."
        ) from error


def read_json(path: Path) -> object:
    """Return the content of a JSON file; ValueError names a file that is missing or not JSON."""
    if not path.exists():
        whole = (path.parent / "model_index.json").is_file()
        why = f"{path.parent} is a whole pipeline" if whole else f"an encoder folder needs {', '.join(FILES[:2])}"
        raise ValueError(f"{path} does not exist; {why}.")
    try:
        return parse_json(read_text(path))
    except ValueError as error:
        raise ValueError(f"{path} is not readable JSON; copy or make the folder again.") from error


def read_known_words(folder: Path) -> frozenset[str] | None:
    """Return the words, lower case, that a small encoder was trained on; None when the folder has no such list.

    Raises ValueError when known_words.json is not a JSON list of words.
    """
    path = folder / "known_words.json"
    if not path.is_file():
        return None
    words = read_json(path)
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError(f"{path} is not a JSON list of words; correct or delete it.")
    return frozenset(word.lower() for word in words)


def read_provenance(folder: Path) -> dict[str, object]:
    """Return how the encoder was made, empty when the folder does not say; ValueError for no JSON object."""
    path = folder / "provenance.json"
    if not path.is_file():
        return {}
    story = read_json(path)
    if not isinstance(story, dict):
        raise ValueError(f"{path} is not a JSON object; correct or delete it.")
    return story


def read_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Return the folder's `CLIPTokenizer`; ValueError when it is missing or does not say how many tokens it reads."""
    has_vocabulary = (folder / "tokenizer.json").is_file() or (folder / "vocab.json").is_file()
    if not has_vocabulary:
        # Without this, transformers gives a tokenizer of two tokens and says nothing.
        raise ValueError(f"{folder} has no tokenizer files; copy tokenizer.json and tokenizer_config.json into it.")
    try:
        tokenizer = CLIPTokenizer.from_pretrained(folder)
    except Exception as error:  # the Rust library raises bare Exception
        raise ValueError(f"the tokenizer files in {folder} are damaged; copy them again.") from error
    if type(tokenizer.model_max_length) is not int:
        raise ValueError(
            f"model_max_length in {folder}/tokenizer_config.json is {tokenizer.model_max_length!r}, a whole number is "
            "needed; write the number of positions of its encoder, 77 or 248."
        )
    if tokenizer.model_max_length > 1_000_000:
        raise ValueError(
            f"tokenizer_config.json in {folder} has no model_max_length, so the tokenizer has no window; add "
            '"model_max_length": 77 or 248, the number of positions of its encoder.'
        )
    return tokenizer


def read_text_model(folder: Path, tokenizer: PreTrainedTokenizerBase) -> CLIPTextModel:
    """Return the folder's text tower in evaluation mode, in the dtype of its weights, on the CPU.

    The end, start and pad ids of old configs (2, 0, 1) are replaced by those of `tokenizer`: with `eos_token_id` 2
    transformers pools at the largest id, which is the wrong token as soon as ids above the end token exist.
    Raises ValueError with one sentence for every fault of the folder.
    """
    config = _read_config(folder)
    if config.eos_token_id == 2:
        config.bos_token_id, config.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
    config.pad_token_id = tokenizer.pad_token_id
    state = _read_state(folder / "model.safetensors")
    _check_shapes(folder, config, state)
    dtype = state[PREFIX + "embeddings.position_embedding.weight"].dtype
    try:
        model, loaded = CLIPTextModel.from_pretrained(
            None, config=config, state_dict=state, dtype=dtype, output_loading_info=True
        )
    except (RuntimeError, KeyError) as error:  # KeyError: an activation that transformers does not know
        raise ValueError(f"model.safetensors in {folder} does not fit its config.json; copy both again.") from error
    if loaded["missing_keys"]:
        missing = sorted(loaded["missing_keys"])
        raise ValueError(
            f"model.safetensors in {folder} lacks {count_of(len(missing), 'tensor')} of the text tower, {missing[0]} "
            "first; copy or convert the checkpoint again."
        )
    if loaded["unexpected_keys"]:
        extra = sorted(loaded["unexpected_keys"])
        raise ValueError(
            f"model.safetensors in {folder} holds {count_of(len(extra), 'tensor')} that its config.json has no place "
            f"for, {extra[0]} first; they belong to different models, copy both from one."
        )
    return model.eval()


def read_width(folder: Path) -> int:
    """Return the width of the folder's text tower, from its config alone; ValueError when that is not valid."""
    return _read_config(folder).hidden_size


def read_projection(folder: Path) -> torch.Tensor | None:
    """Return the projection of the pooled vector, [projection width, width], or None when the folder has none.

    Raises ValueError when it does not fit the text tower; for `read_text_model` that has been read before.
    """
    path = folder / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        if PROJECTION not in file.keys():
            return None
        projection = file.get_tensor(PROJECTION)
        width = next(file.get_slice(n).get_shape()[-1] for n in file.keys() if n.endswith("token_embedding.weight"))
    if projection.ndim != 2 or projection.shape[1] != width:
        raise ValueError(
            f"{PROJECTION} of {path} is {list(projection.shape)}, needed is [any, {width}]; copy or convert the "
            "checkpoint again."
        )
    _check_finite(path, PROJECTION, projection)
    return projection


def check_kind(folder: Path) -> None:
    """Raise ValueError when the folder's config.json is not that of a CLIP; say of a SigLIP what it is for."""
    raw = read_json(folder / "config.json")
    kind = raw.get("model_type") if isinstance(raw, dict) else None
    if str(kind).startswith("siglip"):
        raise ValueError(
            f"config.json in {folder} is of model_type {kind!r}, allowed are 'clip' and 'clip_text_model': SigLIP is "
            "for retrieval, no Stable Diffusion reads its states; give the folder of a CLIP text encoder."
        )
    if kind not in ("clip", "clip_text_model"):
        raise ValueError(
            f"config.json in {folder} is of model_type {kind!r}, allowed are 'clip' and 'clip_text_model'; give the "
            "folder of a CLIP text encoder."
        )


def _read_config(folder: Path) -> CLIPTextConfig:
    check_kind(folder)
    try:
        return CLIPTextConfig.from_pretrained(folder)
    except (OSError, TypeError, ValueError, StrictDataclassError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"config.json in {folder} is not a valid CLIP config ({reason}); correct it.") from error


def _read_state(path: Path) -> dict[str, torch.Tensor]:
    """Return the text tower's tensors, each key with `text_model.` in front."""
    if not path.is_file():
        raise ValueError(f"{path} does not exist; an encoder folder keeps its weights in one model.safetensors.")
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            inside = [name for name in names if name.startswith(PREFIX)] or [n for n in names if n.startswith(_FLAT)]
            state = {PREFIX + name.removeprefix(PREFIX): file.get_tensor(name) for name in inside}
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} is truncated or damaged; copy or download it again.") from error
    state.pop(PREFIX + "embeddings.position_ids", None)  # saved by old versions, a constant
    for name, tensor in state.items():
        _check_finite(path, name, tensor)
    if PREFIX + "embeddings.position_embedding.weight" not in state:
        raise ValueError(f"{path} holds no CLIP text tower in transformers' naming; convert the checkpoint first.")
    return state


def _check_finite(path: Path, name: str, tensor: torch.Tensor) -> None:
    """Raise ValueError for NaN or infinity, which make every picture black without an error, and for quantised ones."""
    if tensor.dtype not in _DTYPES:
        raise ValueError(
            f"{name} of {path} is {tensor.dtype}, allowed are float32, float16 and bfloat16; take unquantised weights."
        )
    # One pass without a tensor of booleans; NaN comes through the minimum.
    if tensor.numel() and not all(map(torch.isfinite, torch.aminmax(tensor))):
        raise ValueError(
            f"{name} of {path} holds NaN or infinite numbers; its training went wrong, take an earlier checkpoint."
        )


def _check_shapes(folder: Path, config: CLIPTextConfig, state: dict[str, torch.Tensor]) -> None:
    table = state[PREFIX + "embeddings.position_embedding.weight"]
    if table.ndim != 2:
        raise ValueError(
            f"the position table of model.safetensors in {folder} has {count_of(table.ndim, 'dimension')}, 2 are "
            "needed; copy or convert the checkpoint again."
        )
    rows, width = table.shape
    if rows != config.max_position_embeddings:
        raise ValueError(
            f"config.json in {folder} says {config.max_position_embeddings} positions, model.safetensors has {rows}; "
            f"editing the config does not lengthen an encoder: put {rows} back and use stretch_encoder()."
        )
    if width != config.hidden_size:
        raise ValueError(
            f"config.json in {folder} says width {config.hidden_size} and model.safetensors has {width}; they belong "
            "to different models, copy both from one."
        )


def replace_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary folder next to `folder`, then put it in its place; on a fault nothing is left.

    An encoder folder that is there is replaced only at the end. Raises ValueError when `folder` holds anything that no
    encoder folder holds (it would be lost), and when it cannot be written.
    """
    if folder.is_file():
        raise ValueError(f"output {folder} is a file; give a folder that does not exist yet or is an encoder folder.")
    strange = sorted(path.name for path in folder.iterdir() if path.name not in FILES) if folder.is_dir() else []
    if strange:
        raise ValueError(f"output folder {folder} holds {strange[0]}, which is no part of an encoder; give another.")
    scratch = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        fresh, old = scratch / "new", scratch / "old"
        fresh.mkdir()
        write(fresh)
        for file in fresh.iterdir():  # safetensors writes for the owner alone
            file.chmod(fresh.stat().st_mode & 0o666)
        if folder.is_dir():
            folder.rename(old)
        fresh.rename(folder)
    except (OSError, SafetensorError) as error:
        if scratch is not None and (scratch / "old").is_dir():
            (scratch / "old").rename(folder)
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise ValueError(f"output folder {folder} cannot be written ({reason}); give another.") from error
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
