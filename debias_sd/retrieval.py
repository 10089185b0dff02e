"""Retrieval on the embedded world's held-out sets: which caption belongs to which picture?

The protocol is the paper's (arXiv 2602.22419): normalised features, dot product, full ranking, text to image (T2I) and
image to text (I2T), R@1/5/10 and mean rank, on full captions (keep) and under the probes that move or drop the summary
sentence. An encoder reads its own window, 77 or 248 tokens; a longer caption is cut and keeps its end token.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import CLIPModel, CLIPTokenizer

from debias_sd.captions import PROBES
from debias_sd.counts import count_of
from debias_sd.encoder import TextEncoder
from debias_sd.encoder_folder import find_encoder_folder
from debias_sd.metrics import RetrievalRanks, mean_rank, median_rank, recall_at, retrieval_ranks
from debias_sd.report import hash_file, hash_texts
from debias_sd.shapes.heldout import FAMILY, ShortSet, TwinSet, short_set, twin_set
from debias_sd.shapes.render import render
from debias_sd.shapes.scene import Scene
from debias_sd.text_files import parse_json, read_text
from debias_sd.tokens import end_positions, front_pad, tokenize

PADS = (0, 20, 40, 80, 120)
PADDED_KINDS = ("summary", "arbitrary")
_TRAINING_PAD = 0  # the pad id of the front padding in training (method, section 2)


@dataclasses.dataclass(frozen=True)
class DualEncoder:
    """A CLIP model with both towers and its tokenizer; `window` is the number of its text positions."""

    model: CLIPModel
    tokenizer: CLIPTokenizer
    folder: Path

    @property
    def window(self) -> int:
        return self.model.config.text_config.max_position_embeddings

    @property
    def end_id(self) -> int:
        return self.tokenizer.eos_token_id

    def tokens_of(self, texts: list[str]) -> torch.Tensor:
        """Token ids [batch, window], cut to the window with the end token kept."""
        return tokenize(self.tokenizer, texts, length=self.window, pad_id=_TRAINING_PAD)


def load_dual_encoder(folder: str | Path, *, attention: str = "sdpa", use: str = "retrieval") -> DualEncoder:
    """Load a `CLIPModel` folder or embedded name; ValueError when it is missing or has no image tower.

    `attention` is transformers' name of a kind of it; `use` says in an error what the folder was to be used for.
    """
    folder = find_encoder_folder(folder)
    try:
        kind = parse_json(read_text(folder / "config.json")).get("model_type")
    except (ValueError, AttributeError):  # AttributeError: JSON, but no object
        raise ValueError(f"folder {folder} holds no readable config.json; give the folder of a CLIPModel.") from None
    if str(kind).startswith("siglip"):
        raise ValueError(
            f"folder {folder} holds a {kind} model, {use} on the embedded world's scenes is for a CLIPModel; measure a "
            "SigLIP on a set: --data KIND:PATH."
        )
    if kind != "clip":
        raise ValueError(
            f"folder {folder} holds a {kind} model, {use} needs a CLIPModel with its image tower; give the folder "
            "that training wrote, or convert the checkpoint with it: debias-sd convert SRC DST --image-tower."
        )
    tokenizer = TextEncoder.load(folder).tokenizer  # names every fault of the text side
    try:
        model, loaded = CLIPModel.from_pretrained(
            folder, local_files_only=True, attn_implementation=attention, output_loading_info=True
        )
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        raise ValueError(
            f"the image tower in {folder} does not fit its config.json ({type(error).__name__}); copy both again."
        ) from error
    if loaded["missing_keys"]:
        missing = sorted(loaded["missing_keys"])
        raise ValueError(
            f"model.safetensors in {folder} lacks {count_of(len(missing), 'tensor')}, {missing[0]} first, {use} "
            "needs both towers; give the folder that training wrote."
        )
    return DualEncoder(model.eval().float(), tokenizer, folder)


def _normalised(features: torch.Tensor) -> np.ndarray:
    return torch.nn.functional.normalize(features.float(), dim=-1).numpy()


@torch.inference_mode()
def embed_ids(encoder: DualEncoder, ids: torch.Tensor, *, batch: int = 32) -> np.ndarray:
    """Normalised text features [texts, dim] of token ids [texts, window].

    Rows are sorted by length and trimmed behind their end token: the mask is causal, so no later slot is ever seen.
    """
    lengths = end_positions(ids, end_id=encoder.end_id) + 1
    order = lengths.argsort()
    features = np.empty((len(ids), encoder.model.config.projection_dim), np.float32)
    for rows in order.split(batch):
        trimmed = ids[rows, : int(lengths[rows].max())]
        features[rows.numpy()] = _normalised(encoder.model.get_text_features(input_ids=trimmed).pooler_output)
    return features


def embed_texts(encoder: DualEncoder, texts: list[str], *, batch: int = 32) -> np.ndarray:
    """Normalised text features [texts, dim]."""
    return embed_ids(encoder, encoder.tokens_of(texts), batch=batch)


def pixels_of(scenes: tuple[Scene, ...] | list[Scene]) -> torch.Tensor:
    """Rendered scenes as the encoders see them: float32 [scenes, 3, 48, 48] in -1..1."""
    pictures = np.stack([render(scene) for scene in scenes])
    return torch.from_numpy(pictures).permute(0, 3, 1, 2).float().div(255).sub(0.5).div(0.5)


@torch.inference_mode()
def embed_scenes(encoder: DualEncoder, scenes: tuple[Scene, ...], *, batch: int = 32) -> np.ndarray:
    """Normalised image features [scenes, dim]."""
    features = [
        _normalised(encoder.model.get_image_features(pixel_values=pixels_of(scenes[at : at + batch])).pooler_output)
        for at in range(0, len(scenes), batch)
    ]
    return np.concatenate(features)


def _scores(ranks: np.ndarray) -> dict[str, float]:
    recalls = {f"r{k}": 100 * recall_at(ranks, k) for k in (1, 5, 10)}
    return recalls | {"median_rank": median_rank(ranks), "mean_rank": mean_rank(ranks)}


def score(images: np.ndarray, texts: np.ndarray) -> dict[str, dict[str, float]]:
    """R@1/5/10 in percent, median and mean rank of both directions; text i belongs to image i."""
    ranks: RetrievalRanks = retrieval_ranks(images, texts, np.arange(len(texts)))
    return {"t2i": _scores(ranks.t2i), "i2t": _scores(ranks.i2t)}


def family_share(images: np.ndarray, texts: np.ndarray) -> float:
    """Percent of captions whose own picture scores above its three twins: 25 is chance."""
    grouped = images.reshape(-1, FAMILY, images.shape[1]), texts.reshape(-1, FAMILY, texts.shape[1])
    similarity = np.einsum("fid,ftd->fti", *grouped)
    own = np.diagonal(similarity, axis1=1, axis2=2)[..., None]
    return float(100 * ((similarity >= own).sum(-1) == 1).mean())


def _score_twins(encoder: DualEncoder, twins: TwinSet) -> dict[str, Any]:
    images = embed_scenes(encoder, twins.scenes)
    results = {}
    for name, probe in PROBES.items():
        texts = embed_texts(encoder, [probe(caption.text) for caption in twins.captions])
        results[name] = score(images, texts) | {"twin_percent": family_share(images, texts)}
    return results


def _padded(encoder: DualEncoder, texts: list[str], count: int) -> torch.Tensor | None:
    """Token ids with `count` pads behind the start token, or None when a text then leaves the window."""
    ids = encoder.tokens_of(texts)
    room = encoder.window - 1 - int(end_positions(ids, end_id=encoder.end_id).max())
    if count > room:
        return None
    return front_pad(ids, torch.full((len(ids),), count), pad_id=_TRAINING_PAD, end_id=encoder.end_id)


def _score_short(encoder: DualEncoder, short: ShortSet) -> tuple[dict[str, Any], dict[str, Any]]:
    images = embed_scenes(encoder, short.scenes)
    plain = {kind: score(images, embed_texts(encoder, texts)) for kind, texts in short.texts.items()}
    pads: dict[str, Any] = {}
    for kind in PADDED_KINDS:
        pads[kind] = {"0": plain[kind]}
        for count in PADS[1:]:
            ids = _padded(encoder, short.texts[kind], count)
            pads[kind][str(count)] = None if ids is None else score(images, embed_ids(encoder, ids))
    return plain, pads


def describe_encoder(encoder: DualEncoder) -> dict[str, Any]:
    """What identifies an encoder in a report: the folder's name, its window and the hash of its weights."""
    weights = encoder.folder / "model.safetensors"
    return {"folder": encoder.folder.resolve().name, "window": encoder.window, "sha256": hash_file(weights)}


def evaluate_retrieval(encoder: DualEncoder, *, seed: int, families: int = 250, short: int = 1000) -> dict[str, Any]:
    """Measure one encoder on the held-out sets of `seed`.

    Returns `probes` (twin set), `short` and `pads` (short set; None where the pads leave no room in the window), each
    with R@1/5/10 in percent, median and mean ranks of both directions, and the sizes and hashes of what was measured.
    """
    twins, shorts = twin_set(seed, families=families), short_set(seed, count=short)
    plain, pads = _score_short(encoder, shorts)
    lengths = end_positions(encoder.tokens_of([c.text for c in twins.captions]), end_id=encoder.end_id) + 1
    return describe_encoder(encoder) | {
        "probes": _score_twins(encoder, twins),
        "short": plain,
        "pads": pads,
        "twin_scenes": len(twins.scenes),
        "short_scenes": len(shorts.scenes),
        "twin_tokens_read_mean": float(lengths.float().mean()),
        "texts_sha256": hash_texts([c.text for c in twins.captions] + [t for k in shorts.texts.values() for t in k]),
    }
