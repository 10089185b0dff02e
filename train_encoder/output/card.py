"""The model card of a finished folder: README.md with what the hub reads of it, what was trained and how to use it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from train_encoder.watch.heldout import PROBED

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

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
