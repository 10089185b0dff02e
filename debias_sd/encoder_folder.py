"""A text-encoder folder on disk: find it, read it with every fault named, write it in one step.

A folder holds config.json, model.safetensors, tokenizer files, provenance.json and, for a small vocabulary,
known_words.json. All layouts of the weights are read: `CLIPTextModel`, `CLIPTextModelWithProjection`, and a whole
`CLIPModel`, whose image tower is left aside. Keys are written as transformers 4 had them (`text_model.` in front),
which transformers 5 reads too.
"""

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import CLIPTextConfig, CLIPTokenizer, PreTrainedTokenizerBase

from debias_sd.text import parse_json, read_text

WEIGHTS = Path(__file__).parent / "weights"
EMBEDDED = ("base", "long-clip", "debias")
SECOND = "encoder_2"  # in a folder of lengthened encoders, that of the pipeline's second one
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
FILES = (
    "config.json", "model.safetensors", "provenance.json", "known_words.json", "tokenizer.json",
    "tokenizer_config.json", "vocab.json", "merges.txt", "special_tokens_map.json", "added_tokens.json",
    "preprocessor_config.json", "processor_config.json", "spiece.model",
)  # fmt: skip
SHARDS = ("model-*.safetensors", "model.*.safetensors", "model.safetensors.index*.json")  # and variants
PICKLES = ("pytorch_model*.bin", "pytorch_model.bin.index*.json")


def embedded_folder(name: str) -> Path:
    """Return the folder of a model that ships with the package; ValueError when it has not been made."""
    folder = WEIGHTS / name
    if not folder.is_dir():
        raise ValueError(f"the embedded model {name!r} is not there; run make weights, or give a folder or a hub id.")
    return folder


def find_encoder_folder(source: str | Path, *, subfolder: str | None = None, **hub: object) -> Path:
    """Return the local folder of `source`: an embedded name (./base is a folder), a folder, or a hub id.

    `subfolder` is the folder of the encoder inside the one that is named; `hub` are the hub's own options: `token`,
    `revision`, `cache_dir`, `local_files_only`, `force_download`. Only the files of an encoder folder are downloaded:
    hub repositories often hold other formats of many gigabytes.
    """
    if not isinstance(source, str | Path):
        raise ValueError(f"encoder is of type {type(source).__name__} but must be a folder, a name or a Hub repo id.")
    name = str(source)
    if name in EMBEDDED:
        return embedded_folder(name)
    path = Path(source).expanduser()
    if path.is_file():
        raise ValueError(f"encoder {name} is a file; give the folder that holds its config.json and model.safetensors.")
    if not path.is_dir():
        if not HUB_ID.fullmatch(name) or path.parent.is_dir():
            raise ValueError(
                f"encoder folder {name} does not exist; give a folder, a hub id, or {', '.join(EMBEDDED)}."
            )
        folders = ("", f"{SECOND}/") if subfolder is None else (f"{subfolder}/", f"{_tokenizer_name(subfolder)}/")
        path = download(name, FILES + SHARDS, PICKLES, what="encoder", folders=folders, **hub)
    if subfolder is not None and not (path / subfolder).is_dir():
        raise ValueError(f"encoder {name} has no folder {subfolder}; correct subfolder, or leave it out.")
    return path / subfolder if subfolder is not None else path


def download(
    name: str, files: Sequence[str], pickles: Sequence[str] = (), *, what: str, folders: Sequence[str] = ("",),
    **hub: object,
) -> Path:  # fmt: skip
    """Return the snapshot of a Hub repository with `files` of its `folders`; `pickles` only without safetensors.

    ValueError where it is nowhere; `what` is what the fault calls it.
    """
    try:
        for names in ([*files], [*files, *pickles])[: 1 + bool(pickles)]:
            patterns = [folder + file for folder in folders for file in names]
            path = Path(snapshot_download(name, allow_patterns=patterns, **hub))
            if any((path / folders[0]).glob("*.safetensors")):
                break
    except (OSError, ValueError) as error:
        where = f" in revision {hub['revision']}" if hub.get("revision") is not None else ""
        raise ValueError(
            f"{what} {name} was not found locally or on the Hub{where} ({type(error).__name__}); check the name, the "
            "network and HF_HUB_OFFLINE."
        ) from error
    return path


def _tokenizer_name(folder: str) -> str:
    """Return where the tokenizer of a text encoder's folder lies in a pipeline: text_encoder_2 -> tokenizer_2."""
    head, slash, last = folder.rpartition("/")
    return head + slash + last.replace("text_encoder", "tokenizer")


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder holds the files of a tokenizer; without them transformers gives one of two tokens, silently."""
    return any((folder / name).is_file() for name in ("tokenizer.json", "vocab.json"))


def tokenizer_folder(folder: Path) -> Path | None:
    """Return the folder with tokenizer files: `folder` itself, or the one beside it in a pipeline; None without."""
    own = folder.resolve()
    for one in (folder, own.with_name(_tokenizer_name(own.name)), folder.with_name(_tokenizer_name(folder.name))):
        if has_tokenizer(one):
            return one
    return None


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


def write_json(path: Path, content: object) -> None:
    """Write a small file of a folder, indented."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


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
    """Return the folder's `CLIPTokenizer`, in a pipeline the one beside it.

    Raises ValueError when it is missing or does not say how many tokens it reads.
    """
    files = tokenizer_folder(folder)
    if files is None:  # without this, transformers gives a tokenizer of two tokens and says nothing
        raise ValueError(f"{folder} has no tokenizer files; copy tokenizer.json and tokenizer_config.json into it.")
    try:
        tokenizer = CLIPTokenizer.from_pretrained(files)
    except Exception as error:  # the Rust library raises bare Exception
        raise ValueError(f"the tokenizer files in {folder} are damaged; copy them again.") from error
    if type(tokenizer.model_max_length) is not int:
        raise ValueError(
            f"model_max_length in {folder}/tokenizer_config.json is {tokenizer.model_max_length!r} but must be a whole "
            "number; write the number of positions of its encoder, 77 or 248."
        )
    if tokenizer.model_max_length > 1_000_000:
        raise ValueError(
            f"tokenizer_config.json in {folder} has no model_max_length, so the tokenizer has no window; add "
            '"model_max_length": 77 or 248, the number of positions of its encoder.'
        )
    return tokenizer


def read_config(folder: Path) -> CLIPTextConfig:
    """Return the config of the folder's text tower; ValueError when that is not valid or not CLIP's."""
    check_kind(folder)
    try:
        return CLIPTextConfig.from_pretrained(folder)
    except (OSError, TypeError, ValueError, StrictDataclassError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"config.json in {folder} is not a valid CLIP config ({reason}); copy it again.") from error


def check_kind(folder: Path) -> None:
    """Raise ValueError when the folder's config.json is not that of a CLIP; say of a SigLIP what it is for."""
    raw = read_json(folder / "config.json")
    kind = raw.get("model_type") if isinstance(raw, dict) else None
    if str(kind).startswith("siglip"):
        raise ValueError(
            f"config.json in {folder} has model_type {kind!r}, which must be 'clip' or 'clip_text_model': SigLIP is "
            "for retrieval, no Stable Diffusion reads its states; give the folder of a CLIP text encoder."
        )
    if kind not in ("clip", "clip_text_model"):
        raise ValueError(
            f"config.json in {folder} has model_type {kind!r}, which must be 'clip' or 'clip_text_model'; give the "
            "folder of a CLIP text encoder."
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
        raise ValueError(f"output folder {folder} holds {strange[0]}, which is not part of an encoder; give another.")
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
