"""The settings of a training run, in groups: what it starts from, its data, recipe, terms, batch, optimizer, output.

A group is a frozen dataclass with its own check, and `TrainConfig` is all of them: YAML files, the command line and the
code know every setting by its name alone. Names follow Hugging Face's training scripts where they have one. Fields that
are null take the value of their recipe (`RECIPES`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from debias_sd.run_settings import check_values, make_settings, parse_settings, read_settings, setting
from train_encoder.terms import TermWeights

CONFIGS = Path(__file__).parent / "configs"
# What each recipe means, in separate switches. short-only has one caption per image and reads no short-caption switch.
RECIPES: dict[str, dict[str, Any]] = {
    "short-only": {"stretch_factor": 1, "short_weight": 0.0, "label_smoothing": 0.0}
    | {"remove_summary": False, "subsample": False, "front_padding": False},
    "long-clip": {"stretch_factor": 4, "short_weight": 0.5, "label_smoothing": 0.1}
    | {"remove_summary": False, "subsample": False, "front_padding": False},
    "debias": {"stretch_factor": 4, "short_weight": 0.1, "label_smoothing": 0.0}
    | {"remove_summary": True, "subsample": True, "front_padding": True},
}
# The text encoders of a pipeline, on text alone (`lengthen.py`): it has no pairs and no short captions either.
RECIPES["lengthen"] = RECIPES["short-only"] | {"stretch_factor": 4}
LENGTHEN = "lengthen"
TRACKERS = ("tensorboard", "wandb", "trackio")
# Other trainers' gradient_accumulation_steps sums gradients of batches apart; here all chunks are one contrast.
RENAMED = {"gradient_accumulation_steps": "contrast_chunks"}
# What a checkpoint that was written before these settings existed had in their place; of all others, the default.
BEFORE = {"text_pass": "grouped", "engine": "whole"}


@dataclass(frozen=True)
class Start:
    """What a run starts from, and how its towers are read."""

    pretrained_model_name_or_path: str | None = setting(
        None, "CLIP or SigLIP: folder or hub id, or a file of open_clip or OpenAI (lengthen: a pipeline); null: none"
    )
    text_encoder: str | None = setting(None, "lengthen: text_encoder or text_encoder_2 of the pipeline; null: each")
    pipeline_config: str | None = setting(
        None, "lengthen: of a single file, folder or hub id of a pipeline of its kind"
    )
    model_config: dict[str, Any] = setting({}, "CLIPConfig as a mapping, for training from scratch")
    init_std: dict[str, float] = setting(
        {}, "from scratch: standard deviations of token_embeddings, text_positions, vision_positions"
    )
    attn_implementation: str = setting(
        "eager", "attention of transformers: eager (fastest on CPU) or sdpa", choices=("eager", "sdpa")
    )
    text_pass: str = setting(
        "packed", "CLIP: packed (compute only what is read) or grouped (by length, as the shipped encoders)",
        choices=("packed", "grouped"),
    )  # fmt: skip

    def check(self) -> None:
        if self.recipe == LENGTHEN:
            return  # null is the embedded base
        for name in ("text_encoder", "pipeline_config"):
            if getattr(self, name) is not None:
                raise ValueError(f"{name} is set for recipe {self.recipe}, but is for lengthen; leave it out.")
        if self.pretrained_model_name_or_path is None and (not self.model_config or self.train_data != "shapes"):
            raise ValueError(
                "pretrained_model_name_or_path is null, but training from scratch needs model_config and train_data "
                "shapes; name a CLIP folder or add the config."
            )


@dataclass(frozen=True)
class Data:
    """Which pairs are trained on."""

    train_data: str = setting("shapes", "shapes, a file or folder of pictures with captions, or KIND:PATH")
    train_data_dir: str | None = setting(None, "folder that the pictures' paths start from; null: the reader's own")
    image_column: str | None = setting(None, "column of the picture in your own list; null: the usual names")
    caption_column: str | None = setting(None, "column of the caption; null: the usual names, the longest text of them")
    short_caption_column: str | None = setting(
        None, "column whose text replaces the recipe's short caption; null: none"
    )
    skip_missing_images: bool | None = setting(
        None, "leave records without picture out and say how many; null: yes, but for sharegpt4v"
    )
    data_fault_limit: int = setting(
        100, "broken records that are replaced; one more stops the run with their list", at_least=0, decides=False
    )
    dataloader_num_workers: int = setting(
        0, "worker processes for data; 0: in the training process", at_least=0, decides=False
    )

    def check(self) -> None:
        files = ("train_data_dir", "image_column", "caption_column", "short_caption_column", "skip_missing_images")
        named = [name for name in files if getattr(self, name) is not None]
        if named and self.train_data == "shapes":
            raise ValueError(
                f"{named[0]} is set for train_data shapes, which has no files; "
                "name a file or folder with train_data, or leave the setting out."
            )


@dataclass(frozen=True)
class Recipe:
    """The two captions of a picture, the contrast between them, the position table."""

    recipe: str = setting(
        "debias",
        "short-only, long-clip, debias or lengthen; sets the fields below that are null",
        choices=tuple(RECIPES),
    )
    remove_summary: bool | None = setting(None, "short caption: drop the first sentence (debias)")
    subsample: bool | None = setting(None, "short caption: draw sentences at random, in random order (debias)")
    front_padding: bool | None = setting(None, "short caption: move a random number of pads to the front (debias)")
    short_weight: float | None = setting(
        None, "share of the short caption in the loss (debias 0.1, long-clip 0.5)", at_least=0, at_most=1
    )
    label_smoothing: float | None = setting(
        None, "label smoothing of both losses (debias 0, long-clip 0.1; SigLIP: 0)", at_least=0, at_most=1
    )
    components: int = setting(32, "principal components of the image features that meet the short caption", at_least=1)
    local_components: bool = setting(
        False, "components of each process's own pairs; false: of the pairs of all processes"
    )
    stretch_factor: int | None = setting(
        None, "stretch of the position table (4: 77 to 248, SigLIP 64 to 196; 1: keep it)", at_least=1
    )
    keep_positions: int = setting(
        20, "first rows of the position table, unchanged and frozen when it is stretched", at_least=0
    )
    pad_id: int = setting(
        0, "CLIP: id of the pads in training, those in front of a short caption are read; SigLIP has its own",
        at_least=0,
    )  # fmt: skip


@dataclass(frozen=True)
class Batch:
    """The pairs of a step, and what is done to fit them in memory."""

    max_train_steps: int = setting(1000, "optimizer steps of the whole run", at_least=1)
    train_batch_size: int = setting(
        64, "pairs per process and chunk; a batch contrasts the pairs of all processes", at_least=1
    )
    contrast_chunks: int = setting(
        1, "chunks per process and step, contrasted as one batch (gradient caching): memory of one chunk", at_least=1
    )
    gradient_checkpointing: bool = setting(
        False, "recompute the layers in the backward pass: less memory, more time", decides=False
    )
    torch_compile: bool = setting(False, "compile the layers; the first steps take minutes", decides=False)
    freeze_image_tower: bool = setting(False, "train the text tower only; image features are computed once and kept")
    image_features_dir: str | None = setting(
        None, "folder of kept image features, shared by runs with the same data; null: in output_dir", decides=False
    )
    mixed_precision: str = setting("no", "no or bf16", choices=("no", "bf16"))
    seed: int = setting(0, "seed of weights, data and captions", at_least=-(2**63), at_most=2**63 - 1)
    expect_processes: int = setting(0, "stop unless the run has this many processes; 0: any", at_least=0, decides=False)


@dataclass(frozen=True)
class Optimizer:
    """AdamW and its learning rate."""

    learning_rate: float = setting(1e-6, "peak learning rate", at_least=0)
    lr_scheduler: str = setting(
        "cosine", "after the warm-up: cosine (to 0 at max_train_steps) or constant (a finished run can be made longer)",
        choices=("cosine", "constant"),
    )  # fmt: skip
    lr_warmup_steps: int = setting(200, "steps of linear warm-up", at_least=0)
    adam_beta1: float = setting(0.9, "AdamW")
    adam_beta2: float = setting(0.999, "AdamW")
    adam_epsilon: float = setting(1e-8, "AdamW")
    adam_weight_decay: float = setting(0.01, "AdamW, on all tensors alike")
    max_grad_norm: float = setting(0.0, "clip the gradient to this norm; 0: off", at_least=0)

    def check(self) -> None:
        if self.recipe == LENGTHEN and (self.contrast_chunks > 1 or self.freeze_image_tower or self.torch_compile):
            raise ValueError(
                "recipe is lengthen, which has no pictures and no contrast; leave contrast_chunks, freeze_image_tower "
                "and torch_compile out."
            )
        if self.lr_warmup_steps >= self.max_train_steps:
            raise ValueError(
                f"lr_warmup_steps is {self.lr_warmup_steps} and max_train_steps {self.max_train_steps}, but the "
                "warm-up must be shorter than the run; lower the one or raise the other."
            )


@dataclass(frozen=True)
class Output:
    """The folder that a run writes, its checkpoints, its upload."""

    output_dir: str = setting("", "folder of the run: encoder, log, checkpoints", decides=False)
    checkpointing_steps: int = setting(0, "save a checkpoint every so many steps; 0: never", at_least=0, decides=False)
    checkpoints_total_limit: int = setting(1, "checkpoints to keep", at_least=1, decides=False)
    resume_from_checkpoint: str | None = setting(
        None, "latest, or a checkpoint folder; none there: start anew", decides=False
    )
    overwrite_output_dir: bool = setting(
        False, "delete what an earlier run wrote to output_dir, and train anew", decides=False
    )
    push_to_hub: bool = setting(False, "upload the finished folder to the Hugging Face hub", decides=False)
    hub_model_id: str | None = setting(
        None, "repository to upload to, OWNER/NAME; null: the folder's name", decides=False
    )

    def check(self) -> None:
        if not self.output_dir:
            raise ValueError("output_dir is not set, but a run needs a folder to write to; pass --output_dir FOLDER.")
        if self.overwrite_output_dir and self.resume_from_checkpoint is not None:
            raise ValueError(
                "overwrite_output_dir deletes what resume_from_checkpoint goes on from; set one of the two."
            )


@dataclass(frozen=True)
class Watched:
    """What is measured, drawn and reported while a run trains."""

    eval_steps: int = setting(
        0, "measure retrieval at the start and every so many steps; 0: never", at_least=0, decides=False
    )
    eval_data: str | None = setting(
        None, "held-out pairs, named like train_data; null: those of the shapes world", decides=False
    )
    eval_limit: int = setting(1000, "pairs of eval_data that are read", at_least=2, decides=False)
    validation_prompts: list[str] = setting([], "prompts to draw while training", decides=False)
    validation_pipeline: str | None = setting(None, "Stable Diffusion folder or hub id that draws them", decides=False)
    validation_steps: int = setting(0, "draw them every so many steps; 0: never", at_least=0, decides=False)
    report_to: str = setting(
        "none", "tensorboard, wandb, trackio (one or several) or none, beside train_log.jsonl",
        choices=("none", *TRACKERS), joined=True, decides=False,
    )  # fmt: skip
    tracker_project_name: str = setting(
        "train_encoder", "project that wandb and trackio file the run under", decides=False
    )

    def check(self) -> None:
        for name in ("validation_prompts", "push_to_hub"):
            if self.recipe == LENGTHEN and getattr(self, name):
                raise ValueError(f"{name} is set for recipe lengthen, which neither draws nor uploads; leave it out.")
        if self.recipe != LENGTHEN and self.eval_steps and self.eval_data is None and self.train_data != "shapes":
            raise ValueError("eval_steps is set without eval_data; name held-out pairs there, or set eval_steps to 0.")
        drawn = (bool(self.validation_prompts), self.validation_pipeline is not None, bool(self.validation_steps))
        if len(set(drawn)) > 1:
            raise ValueError(
                "of validation_prompts, validation_pipeline and validation_steps some are set and some not; "
                "set all three to draw pictures, or none."
            )


GROUPS = (Output, Start, Data, Recipe, TermWeights, Batch, Optimizer, Watched)


@dataclass(frozen=True)
class TrainConfig(*reversed(GROUPS)):
    """All settings of one run; ValueError with one sentence when they do not fit together."""

    def __post_init__(self) -> None:
        for name, value in RECIPES.get(self.recipe, {}).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        check_values(self)
        for group in GROUPS:
            if "check" in vars(group):
                group.check(self)

    def trajectory(self) -> dict[str, Any]:
        """The fields that decide the weights of a step: two runs with equal ones are the same run.

        With a constant rate the length of the run decides nothing.
        """
        fields = [field for field in dataclasses.fields(self) if field.metadata["decides"]]
        others = ("max_train_steps",) if self.lr_scheduler == "constant" else ()
        return {field.name: getattr(self, field.name) for field in fields if field.name not in others}

    @staticmethod
    def before() -> dict[str, Any]:
        """What each field was in effect before it existed: for checkpoints that do not name it."""
        plain = {f.name: f.default for f in dataclasses.fields(TrainConfig) if f.default is not dataclasses.MISSING}
        return plain | BEFORE


def make_config(values: dict[str, Any]) -> TrainConfig:
    """The config of plain values by name."""
    return make_settings(TrainConfig, values, renamed=RENAMED)


def read_config(path: str | Path) -> dict[str, Any]:
    """The values of a YAML file, unchecked."""
    return read_settings(path, configs=CONFIGS)


def parse_arguments(arguments: list[str]) -> TrainConfig:
    """The config of `--config FILE --key value ...`; the command line wins over the file."""
    about = "Train a text encoder with two captions per image; a YAML file is a named run."
    return parse_settings(TrainConfig, arguments, prog="train_encoder", about=about, configs=CONFIGS, renamed=RENAMED)
