"""The result of a run: an encoder folder for stock transformers and diffusers, its provenance, model card, upload."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from debias_sd.report import source_commit
from debias_sd.run_state import package_versions
from debias_sd.tokens import copy_tokenizer, spell_out_special_tokens
from train_encoder.heldout import PROBED

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from train_encoder.settings import TrainConfig

METHODS = {
    "debias": ("DeBias-CLIP", "2602.22419"),
    "long-clip": ("Long-CLIP", "2403.15378"),
    "short-only": ("contrastive pre-training", "2103.00020"),
}


class _Family(NamedTuple):
    """What the card says of a family of models."""

    name: str
    tags: tuple[str, ...]
    classes: tuple[str, str]
    use: str


_FAMILIES = {
    "clip": _Family(
        "CLIP",
        ("clip", "text-encoder", "stable-diffusion"),
        ("CLIPModel", "CLIPTokenizer"),
        "As the text encoder of a Stable Diffusion pipeline that was trained on CLIP of the same size: "
        "`debias_sd.load_debias_pipeline(BASE, FOLDER)`.",
    ),
    "siglip": _Family(
        "SigLIP",
        ("siglip", "text-encoder", "retrieval"),
        ("SiglipModel", "AutoTokenizer"),
        "For retrieval: `debias-sd evaluate retrieval --encoder NAME=FOLDER --data KIND:PATH --out REPORT`. Texts are "
        'read in lower case and with their pads: `tokenizer(texts, padding="max_length", max_length={positions}, '
        "truncation=True)`. No Stable Diffusion reads a SigLIP.",
    ),
}
_SHOWN = (
    "short_weight",
    "label_smoothing",
    "components",
    "learning_rate",
    "lr_warmup_steps",
    "seed",
    "mixed_precision",
)


def make_card(folder: Path, config: TrainConfig, *, model: PreTrainedConfig, provenance: dict[str, Any]) -> str:
    """The text of README.md for a run in `folder`, whose model has the config `model`; numbers are the run's own."""
    positions, family = model.text_config.max_position_embeddings, _FAMILIES[model.model_type]
    classes = ", ".join(family.classes)
    method, paper = METHODS[config.recipe]
    pairs = config.train_batch_size * config.contrast_chunks * provenance["processes"]
    head = {"library_name": "transformers", "pipeline_tag": "zero-shot-image-classification"}
    head |= {"tags": [*family.tags, config.recipe]}
    base = config.pretrained_model_name_or_path
    if base is not None and len(base.split("/")) == 2 and not Path(base).exists():
        head["base_model"] = base
    lines = [
        "---",
        yaml.safe_dump(head, sort_keys=False).rstrip(),
        "---",
        "",
        f"# {folder.resolve().name}",
        "",
        f"A {family.name} whose text encoder reads {positions} tokens, trained with the `{config.recipe}` recipe: "
        f"{method} (arXiv {paper}). Start: {_said(base) or 'from scratch'}. Data: {_said(config.train_data)}.",
        "",
        "```python",
        f"from transformers import {classes}",
        "",
        f'model, tokenizer = (kind.from_pretrained("{folder.resolve().name}") for kind in ({classes}))',
        "```",
        "",
        family.use.format(positions=positions),
        "",
        f"## Training\n\n{config.max_train_steps} steps of {pairs} pairs ({provenance['processes']} process(es)); "
        + ", ".join(f"{name} {getattr(config, name)}" for name in _SHOWN)
        + ". `provenance.json` has all settings, versions and the last losses.",
        "",
        *_measured(folder),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _said(name: str | None) -> str | None:
    """A hub id or data kind as it is; of a local path its last part, because the rest says nothing elsewhere."""
    if name is None or not Path(name.split(":", 1)[-1]).exists():
        return name
    return Path(name).name


def _measured(folder: Path) -> list[str]:
    """Retrieval before and after, where the run measured it."""
    path = folder / "eval_log.jsonl"
    if not path.is_file():
        return []
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    table = ["## Retrieval on held-out pairs", "", "R@1 in percent, text to image / image to text.", ""]
    table += [f"| step | {' | '.join(PROBED)} | short |", "|---" * (len(PROBED) + 2) + "|"]
    for row in (rows[0], rows[-1]):
        cells = (f"{row[f'{name}_t2i_r1']:.1f} / {row[f'{name}_i2t_r1']:.1f}" for name in (*PROBED, "short"))
        table.append(f"| {row['step']} | {' | '.join(cells)} |")
    return table


# What a run's folder holds beside the encoder; none of it is part of the model.
LEFT_BEHIND = ["checkpoint-*", ".*", "image-features/*", "tensorboard/*", "validation/*"]


def known_words(config: TrainConfig) -> list[str] | None:
    """The words a small encoder was trained on: those of the shapes world, or those of the model it started from."""
    if config.train_data == "shapes":
        from debias_sd.shapes.caption import words

        return words()
    path = Path(config.pretrained_model_name_or_path) / "known_words.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def make_provenance(
    config: TrainConfig, *, command: list[str], processes: int, final: dict[str, float]
) -> dict[str, Any]:
    """How the folder was made: command, commit, seed, versions, settings and the last step's numbers."""
    return {
        "command": command,
        "git_commit": source_commit(__file__),
        "seed": config.seed,
        "processes": processes,
        "versions": package_versions(),
        "config": {"output_dir": config.output_dir, "max_train_steps": config.max_train_steps} | config.trajectory(),
        "final": final,
    }


def save_encoder_folder(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, *, files: dict[str, Any]
) -> None:
    """Write the whole model with both towers, its tokenizer and `files` (text or JSON, by name) into `folder`.

    provenance.json gets the hash of the weights. The files are made beside the folder and moved in, config.json last: a
    folder that loads is a whole one. Where the disk does not take them what was there before stays.
    """
    scratch = folder / ".encoder.partial"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        _write_parts(model, tokenizer, scratch, files=files)
        move_in(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def move_in(scratch: Path, folder: Path) -> None:
    """Move the files of a whole encoder folder into `folder`, config.json last."""
    (folder / "config.json").unlink(missing_ok=True)
    for file in sorted(scratch.iterdir(), key=lambda p: p.name == "config.json"):
        os.replace(file, folder / file.name)


def _write_parts(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, scratch: Path, *, files: dict[str, Any]
) -> None:
    model.save_pretrained(scratch)
    if model.config.model_type == "clip":
        tokenizer = copy_tokenizer(tokenizer)
        spell_out_special_tokens(tokenizer)  # as in every other encoder folder: a pad may be "!", which people type
    tokenizer.save_pretrained(scratch)
    digest = hashlib.sha256((scratch / "model.safetensors").read_bytes()).hexdigest()
    provenance = files["provenance.json"] | {"sha256": {"model.safetensors": digest}}
    for name, content in (files | {"provenance.json": provenance}).items():
        text = content if isinstance(content, str) else json.dumps(content, indent=1) + "\n"
        (scratch / name).write_text(text, encoding="utf-8")


class HubFault(ValueError):
    """The folder could not be uploaded; it is whole on disk."""


def check_hub(hub_model_id: str | None) -> None:
    """Raise ValueError when nobody is logged in, or the name is not a repository's: before training, not at its end."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    if hub_model_id is not None:
        try:
            validate_repo_id(hub_model_id)
        except HFValidationError as error:
            raise ValueError(
                f"hub_model_id {hub_model_id!r} is not the name of a repository ({error}); write OWNER/NAME."
            ) from None
    if get_token() is None:
        raise ValueError("push_to_hub is set and nobody is logged in; run `hf auth login`, or set HF_TOKEN.")


def push_folder(folder: Path, hub_model_id: str | None) -> str:
    """Make the repository where it is missing, upload the folder in one commit; returns its address.

    Raises HubFault with one sentence when the hub cannot be reached or refuses.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError  # the HTTP client's own; OfflineModeIsEnabled is an OSError

    name = hub_model_id or folder.resolve().name
    api = HfApi()
    try:
        address = api.create_repo(name, exist_ok=True)
        api.upload_folder(
            repo_id=address.repo_id,
            folder_path=folder,
            ignore_patterns=LEFT_BEHIND,
            commit_message="Text encoder trained by train_encoder",
        )
    except (HTTPError, OSError) as error:
        first = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
        raise HubFault(
            f"{folder} could not be uploaded to {name} ({first}); it is whole on disk: "
            f"upload it later with `hf upload {name} {folder}`."
        ) from error
    return str(address)
