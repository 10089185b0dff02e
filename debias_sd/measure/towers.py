"""Both towers of an encoder folder: ids of texts, features of ids, features of pictures. CLIP and SigLIP.

CLIP's text tower is causal and pooled at the end token: slots after it change nothing, so texts are read at their own
length, rounded up to eight tokens. SigLIP's attends to every slot and is pooled at the last one: texts are padded to
the whole window by the model's own tokenizer. Both cut longer texts and keep the end token.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from PIL import Image
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoTokenizer, CLIPModel, PreTrainedTokenizerBase, SiglipModel

from debias_sd.encoder import TextEncoder
from debias_sd.encoder_folder import FILES, find_encoder_folder, read_json
from debias_sd.preprocessing import FILE, HALF, Preprocessing, read_preprocessing
from debias_sd.report import hash_file
from debias_sd.text import count_of
from debias_sd.tokens import pad_rows, siglip_rows

MULTIPLE = 8  # tokens that lengths are rounded up to: rows of one length give the same bits in any company
_PAD = 0  # after the end token a causal mask hides it; in front it is the one of training


@dataclasses.dataclass(frozen=True)
class Towers:
    """Both towers of one folder; features are projected, not normalised, on the CPU."""

    model: CLIPModel | SiglipModel
    tokenizer: PreTrainedTokenizerBase
    folder: Path
    preprocessing: Preprocessing
    device: str = "cpu"
    kind: ClassVar[str]

    @property
    def window(self) -> int:
        return self.model.config.text_config.max_position_embeddings

    def own_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return each text's own ids, without what the tokenizer puts around it and not cut."""
        raise NotImplementedError

    def pooled_slots(self, ids: Int[Tensor, "batch length"]) -> Int[Tensor, " batch"]:
        """Return the slot that each text is pooled at."""
        raise NotImplementedError

    def ids_of(self, texts: Sequence[str], *, pads: int = 0) -> tuple[list[list[int]], list[int]]:
        """Return the ids of each text as they are read (padded to a length of the tower's), and its whole length.

        `pads` stand in front of every text, after the start token where there is one.
        """
        raise NotImplementedError

    def text_features(self, ids: Int[Tensor, "batch length"]) -> Float[Tensor, "batch dim"]:
        raise NotImplementedError

    @torch.inference_mode()
    def image_features(self, pixels: Float[Tensor, "batch 3 size size"]) -> Float[Tensor, "batch dim"]:
        return self.model.get_image_features(pixel_values=pixels.to(self.device)).pooler_output.cpu()


class ClipTowers(Towers):
    """A `CLIPModel` folder: what training writes, what `debias-sd convert --image-tower` makes of a checkpoint."""

    kind = "CLIP"

    def pooled_slots(self, ids: Int[Tensor, "batch length"]) -> Int[Tensor, " batch"]:
        """The first end token, whatever the config calls the end token (2 in old ones)."""
        return (ids == self.tokenizer.eos_token_id).int().argmax(dim=1)

    def own_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The texts' own ids without start and end, not cut; special tokens typed in a text are spelled out."""
        options = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
        return self.tokenizer(list(texts), **options)["input_ids"]

    def ids_of(self, texts: Sequence[str], *, pads: int = 0) -> tuple[list[list[int]], list[int]]:
        """Cut to the window with the end token last."""
        if not texts:
            return [], []
        start, end, window = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id, self.window
        whole = [[start, *[_PAD] * pads, *row, end] for row in self.own_ids(texts)]
        rows = [row if len(row) <= window else [*row[: window - 1], end] for row in whole]
        lengths = [min(window, -(-len(row) // MULTIPLE) * MULTIPLE) for row in rows]
        padded = [row + [_PAD] * (length - len(row)) for row, length in zip(rows, lengths, strict=True)]
        return padded, [len(row) for row in whole]

    @torch.inference_mode()
    def text_features(self, ids: Int[Tensor, "batch length"]) -> Float[Tensor, "batch dim"]:
        ends = self.pooled_slots(ids).to(self.device)
        hidden = self.model.text_model(input_ids=ids.to(self.device)).last_hidden_state
        return self.model.text_projection(hidden[torch.arange(len(ids)), ends]).cpu()


class SiglipTowers(Towers):
    """A folder of SigLIP or of SigLIP 2 at a fixed resolution: both are transformers' `SiglipModel`."""

    kind = "SigLIP"

    def pooled_slots(self, ids: Int[Tensor, "batch length"]) -> Int[Tensor, " batch"]:
        """The last slot of the window, a pad of most texts."""
        return torch.full((len(ids),), ids.shape[1] - 1)

    def own_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """In lower case, as the model reads them."""
        options = {"add_special_tokens": False, "verbose": False}
        return self.tokenizer([text.lower() for text in texts], **options)["input_ids"]

    def ids_of(self, texts: Sequence[str], *, pads: int = 0) -> tuple[list[list[int]], list[int]]:
        """Lower case, padded at the end to the window and cut to it with the end token last, as both were trained."""
        pad, window = self.tokenizer.pad_token_id, self.window
        whole = [[pad] * pads + row for row in siglip_rows(self.tokenizer, texts, length=None)]
        rows = [row if len(row) <= window else [*row[: window - 1], row[-1]] for row in whole]
        ids = pad_rows(rows, length=window, pad_id=pad)
        return ids.tolist(), [len(row) for row in whole]

    @torch.inference_mode()
    def text_features(self, ids: Int[Tensor, "batch length"]) -> Float[Tensor, "batch dim"]:
        return self.model.get_text_features(input_ids=ids.to(self.device)).pooler_output.cpu()


def load_towers(source: str | Path, *, device: str = "cpu", use: str = "retrieval") -> Towers:
    """Load an embedded name, a `CLIPModel` or `SiglipModel` folder or a hub id; ValueError with one sentence.

    `use` says in an error what it was to be used for.
    """
    folder = find_encoder_folder(source)
    config = folder / "config.json"
    raw = read_json(config) if config.is_file() else None
    kind = raw.get("model_type") if isinstance(raw, dict) else None
    if kind == "siglip2":
        raise ValueError(
            f"folder {folder} holds a SigLIP 2 of the NaFlex kind, whose pictures have no fixed size; give one of a "
            "fixed resolution, whose name ends in patch16-224 for instance."
        )
    if kind == "siglip":
        return _load_siglip(folder, device)
    if kind is None:
        raise ValueError(f"folder {folder} holds no readable config.json; give the folder of a CLIPModel.")
    if kind != "clip":
        raise ValueError(
            f"folder {folder} holds a {kind} model but {use} needs a CLIPModel with its image tower; give the folder "
            "that training wrote, or convert the checkpoint with it: debias-sd convert SRC DST --image-tower."
        )
    return _load_clip(folder, device, use)


def _load_clip(folder: Path, device: str, use: str) -> ClipTowers:
    tokenizer = TextEncoder.load(folder).tokenizer  # names every fault of the text side
    try:
        model, loaded = CLIPModel.from_pretrained(folder, local_files_only=True, output_loading_info=True)
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        raise ValueError(
            f"the image tower in {folder} does not fit its config.json ({type(error).__name__}); copy both again."
        ) from error
    _check_whole(loaded, folder, f"{use} needs both towers; give the folder that training wrote.")
    preprocessing = read_preprocessing(folder, size=model.config.vision_config.image_size)
    return ClipTowers(model.eval().float().to(device), tokenizer, folder, preprocessing, device)


def _check_whole(loaded: dict, folder: Path, why: str) -> None:
    if loaded["missing_keys"]:
        missing = sorted(loaded["missing_keys"])
        raise ValueError(
            f"model.safetensors in {folder} lacks {count_of(len(missing), 'tensor')}, {missing[0]} first, {why}"
        )


def _load_siglip(folder: Path, device: str) -> SiglipTowers:
    tokenizer = read_siglip_tokenizer(folder)
    model = read_siglip_model(folder)
    preprocessing = read_siglip_preprocessing(folder, size=model.config.vision_config.image_size)
    return SiglipTowers(model.eval().float().to(device), tokenizer, folder, preprocessing, device)


def read_siglip_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a `SiglipModel` folder; ValueError with one sentence, also for a package it needs."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except ImportError as error:
        package = "sentencepiece" if "sentencepiece" in str(error).lower() else "protobuf"
        raise ValueError(f"the tokenizer of {folder} needs {package}; install it: pip install {package}.") from None
    except Exception as error:  # the Rust library raises bare Exception
        raise ValueError(f"the tokenizer files in {folder} are missing or damaged; copy them again.") from error
    if tokenizer.pad_token_id is None:
        raise ValueError(
            f"the tokenizer of {folder} has no pad token, which SigLIP reads up to its last position; copy the "
            "tokenizer of the model that it was made of."
        )
    return tokenizer


def read_siglip_model(folder: Path, **options: object) -> SiglipModel:
    """Return the `SiglipModel` of a folder; ValueError with one sentence. Options go to `from_pretrained`."""
    try:
        model, loaded = SiglipModel.from_pretrained(folder, local_files_only=True, output_loading_info=True, **options)
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, SafetensorError) as error:
        raise ValueError(
            f"the weights in {folder} do not fit its config.json ({type(error).__name__}); copy both again."
        ) from error
    _check_whole(loaded, folder, "retrieval needs both towers; copy the whole model.")
    return model


def read_siglip_preprocessing(folder: Path, *, size: int) -> Preprocessing:
    """Return what the folder says, else SigLIP's own: the whole picture as a square (bicubic), -1 to 1."""
    if (folder / FILE).is_file():
        return read_preprocessing(folder, size=size)
    return Preprocessing(size, None, int(Image.Resampling.BICUBIC), HALF, HALF, f"SigLIP's own (no {FILE})")


def describe_towers(towers: Towers) -> dict[str, object]:
    """What identifies an encoder in a report."""
    return {
        "folder": towers.folder.resolve().name,
        "kind": towers.kind,
        "window": towers.window,
        "sha256": hash_file(towers.folder / "model.safetensors"),
        "content_sha256": content_hash(towers.folder),
        "preprocessing": dataclasses.asdict(towers.preprocessing),
    }


def content_hash(folder: Path) -> str:
    """SHA-256 over all files of a folder that decide features: config, weights, tokenizer, preprocessing."""
    digest = hashlib.sha256()
    for name in sorted(set(FILES) - {"provenance.json"}):
        if (folder / name).is_file():
            digest.update(f"{name}\0{hash_file(folder / name)}\n".encode())
    return digest.hexdigest()
