"""The settings of a training run: one frozen dataclass, checked when it is made.

Names follow Hugging Face's training scripts where they have one. Fields that are null take the value of their recipe
(`RECIPES`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from train_encoder.trackers import PACKAGES

# What each recipe means, in separate switches. short-only has one caption per image and reads no short-caption switch.
RECIPES: dict[str, dict[str, Any]] = {
    "short-only": {"stretch_factor": 1, "short_weight": 0.0, "label_smoothing": 0.0}
    | {"remove_summary": False, "subsample": False, "front_padding": False},
    "long-clip": {"stretch_factor": 4, "short_weight": 0.5, "label_smoothing": 0.1}
    | {"remove_summary": False, "subsample": False, "front_padding": False},
    "debias": {"stretch_factor": 4, "short_weight": 0.1, "label_smoothing": 0.0}
    | {"remove_summary": True, "subsample": True, "front_padding": True},
}
# Fields that may differ between a checkpoint and the run that continues it.
NOT_PART_OF_THE_TRAJECTORY = (
    "output_dir",
    "checkpointing_steps",
    "checkpoints_total_limit",
    "resume_from_checkpoint",
    "overwrite_output_dir",
    "dataloader_num_workers",
    "expect_processes",
    "eval_steps",
    "eval_data",
    "eval_limit",
    "validation_prompts",
    "validation_pipeline",
    "validation_steps",
    "push_to_hub",
    "hub_model_id",
    "report_to",
    "tracker_project_name",
    "data_fault_limit",
    "image_features_dir",
    "gradient_checkpointing",
    "torch_compile",
)
# What a checkpoint that was written before these settings existed had in their place; of all others, the default.
BEFORE = {"text_pass": "grouped", "engine": "whole"}


def setting(default: Any, text: str) -> Any:
    """A field with its one-line description, which `--help` prints."""
    if isinstance(default, dict | list):
        return field(default_factory=lambda: type(default)(default), metadata={"help": text})
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class TrainConfig:
    """All settings of one run; ValueError with one sentence when they do not fit together."""

    output_dir: str = setting("", "folder of the run: encoder, log, checkpoints")
    pretrained_model_name_or_path: str | None = setting(
        None,
        "folder or hub id of CLIP or SigLIP, or a checkpoint (open_clip, OpenAI), to start from; null: from scratch",
    )
    model_config: dict[str, Any] = setting({}, "CLIPConfig as a dict, for a start from scratch")
    init_std: dict[str, float] = setting(
        {}, "start from scratch: standard deviations of token_embeddings, text_positions, vision_positions"
    )
    attn_implementation: str = setting("eager", "attention of transformers: eager (fastest on CPU) or sdpa")
    text_pass: str = setting(
        "packed", "CLIP: packed (compute only what is read) or grouped (by length, as the shipped encoders)"
    )
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
    data_fault_limit: int = setting(100, "broken records that are replaced; one more stops the run with their list")
    recipe: str = setting("debias", "short-only, long-clip or debias; sets the fields below that are null")
    remove_summary: bool | None = setting(None, "short caption: drop the first sentence (debias)")
    subsample: bool | None = setting(None, "short caption: draw sentences at random, in random order (debias)")
    front_padding: bool | None = setting(None, "short caption: move a random number of pads to the front (debias)")
    short_weight: float | None = setting(None, "share of the short caption in the loss (debias 0.1, long-clip 0.5)")
    label_smoothing: float | None = setting(None, "label smoothing of both losses (debias 0, long-clip 0.1; SigLIP: 0)")
    components: int = setting(32, "principal components of the image features that meet the short caption")
    local_components: bool = setting(
        False, "components of each process's own pairs; false: of the pairs of all processes"
    )
    stretch_factor: int | None = setting(
        None, "stretch of the position table (4: 77 to 248, SigLIP 64 to 196; 1: keep it)"
    )
    keep_positions: int = setting(20, "first rows of the position table, unchanged and frozen when it is stretched")
    pad_id: int = setting(
        0, "CLIP: id of the pads in training, those in front of a short caption are read; SigLIP has its own"
    )
    grounding_weight: float = setting(0.0, "weight of dense supervision on the shapes world; 0: none")
    stay_close_weight: float = setting(0.0, "weight of the distance to the start's hidden states; 0: none")
    late_sentences_weight: float = setting(
        0.0, "the same for each sentence behind the start's window, as the start reads it alone; 0: none"
    )
    max_train_steps: int = setting(1000, "optimizer steps of the whole run")
    train_batch_size: int = setting(64, "pairs per process and chunk; a batch contrasts the pairs of all processes")
    gradient_accumulation_steps: int = setting(
        1, "chunks per process and step, contrasted as one batch (gradient caching): memory of one chunk"
    )
    gradient_checkpointing: bool = setting(False, "recompute the layers in the backward pass: less memory, more time")
    torch_compile: bool = setting(False, "compile the layers; the first steps take minutes")
    freeze_image_tower: bool = setting(False, "train the text tower only; image features are computed once and kept")
    image_features_dir: str | None = setting(
        None, "folder of kept image features, shared by runs with the same data; null: in output_dir"
    )
    learning_rate: float = setting(1e-6, "peak learning rate")
    lr_scheduler: str = setting(
        "cosine", "after the warm-up: cosine (to 0 at max_train_steps) or constant (a finished run can be made longer)"
    )
    lr_warmup_steps: int = setting(200, "steps of linear warm-up")
    adam_beta1: float = setting(0.9, "AdamW")
    adam_beta2: float = setting(0.999, "AdamW")
    adam_epsilon: float = setting(1e-8, "AdamW")
    adam_weight_decay: float = setting(0.01, "AdamW, on all tensors alike")
    max_grad_norm: float = setting(0.0, "clip the gradient to this norm; 0: off")
    mixed_precision: str = setting("no", "no or bf16")
    seed: int = setting(0, "seed of weights, data and captions")
    dataloader_num_workers: int = setting(0, "worker processes for data; 0: in the training process")
    checkpointing_steps: int = setting(0, "save a checkpoint every so many steps; 0: never")
    checkpoints_total_limit: int = setting(1, "checkpoints to keep")
    resume_from_checkpoint: str | None = setting(None, "latest, or a checkpoint folder; none there: start anew")
    overwrite_output_dir: bool = setting(False, "delete what an earlier run wrote to output_dir, and train anew")
    expect_processes: int = setting(0, "stop unless the run has this many processes; 0: any")
    eval_steps: int = setting(0, "measure retrieval at the start and every so many steps; 0: never")
    eval_data: str | None = setting(None, "held-out pairs, named like train_data; null: those of the shapes world")
    eval_limit: int = setting(1000, "pairs of eval_data that are read")
    validation_prompts: list[str] = setting([], "prompts to draw while training")
    validation_pipeline: str | None = setting(None, "Stable Diffusion folder or hub id that draws them")
    validation_steps: int = setting(0, "draw them every so many steps; 0: never")
    push_to_hub: bool = setting(False, "upload the finished folder to the Hugging Face hub")
    hub_model_id: str | None = setting(None, "repository to upload to, OWNER/NAME; null: the folder's name")
    report_to: str = setting("none", "tensorboard, wandb, trackio (one or several) or none, beside train_log.jsonl")
    tracker_project_name: str = setting("train_encoder", "project that wandb and trackio file the run under")

    def __post_init__(self) -> None:
        _choose("recipe", self.recipe, tuple(RECIPES))
        _choose("mixed_precision", self.mixed_precision, ("no", "bf16"))
        for name in self.report_to.split(","):
            _choose("report_to", name.strip(), ("none", *PACKAGES))
        _choose("attn_implementation", self.attn_implementation, ("eager", "sdpa"))
        _choose("text_pass", self.text_pass, ("packed", "grouped"))
        _choose("lr_scheduler", self.lr_scheduler, ("cosine", "constant"))
        for name, value in RECIPES[self.recipe].items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        self._check_numbers()
        self._check_combinations()

    def _check_numbers(self) -> None:
        at_least = {"max_train_steps": 1, "train_batch_size": 1, "stretch_factor": 1, "components": 1}
        at_least |= {"lr_warmup_steps": 0, "keep_positions": 0, "pad_id": 0, "checkpointing_steps": 0}
        at_least |= {"eval_steps": 0, "eval_limit": 2, "validation_steps": 0}
        at_least |= {"gradient_accumulation_steps": 1, "checkpoints_total_limit": 1}
        at_least |= {"dataloader_num_workers": 0, "expect_processes": 0}
        at_least |= {
            "data_fault_limit": 0,
            "grounding_weight": 0,
            "stay_close_weight": 0,
            "late_sentences_weight": 0,
            "max_grad_norm": 0,
            "learning_rate": 0,
        }
        for name, low in at_least.items():
            if not getattr(self, name) >= low:
                raise ValueError(f"{name} is {getattr(self, name)}, allowed are numbers from {low}; correct it.")
        for name in ("short_weight", "label_smoothing"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}, allowed are 0 to 1; correct it.")

        if not -(2**63) <= self.seed < 2**63:
            raise ValueError(f"seed is {self.seed}, allowed are whole numbers of 64 bits; choose a smaller one.")

    def _check_combinations(self) -> None:
        if not self.output_dir:
            raise ValueError("output_dir is not set, a run needs a folder to write to; pass --output_dir FOLDER.")
        if self.overwrite_output_dir and self.resume_from_checkpoint is not None:
            raise ValueError(
                "overwrite_output_dir deletes what resume_from_checkpoint goes on from; set one of the two."
            )
        if self.lr_warmup_steps >= self.max_train_steps:
            raise ValueError(
                f"lr_warmup_steps is {self.lr_warmup_steps} and max_train_steps {self.max_train_steps}, the warm-up "
                "must be shorter than the run; lower the one or raise the other."
            )
        if self.pretrained_model_name_or_path is None and (not self.model_config or self.train_data != "shapes"):
            raise ValueError(
                "pretrained_model_name_or_path is null, a start from scratch needs model_config and train_data shapes; "
                "name a CLIP folder or add the config."
            )
        for name in ("stay_close_weight", "late_sentences_weight"):
            if getattr(self, name) and self.pretrained_model_name_or_path is None:
                raise ValueError(
                    f"{name} is set without a pretrained model to stay close to; "
                    "set pretrained_model_name_or_path, or the weight to 0."
                )
        if self.late_sentences_weight and self.stretch_factor == 1:
            raise ValueError(
                "late_sentences_weight is set with stretch_factor 1, no sentence begins behind the start's window; "
                "set stretch_factor to 4, or the weight to 0."
            )
        files = ("train_data_dir", "image_column", "caption_column", "short_caption_column", "skip_missing_images")
        named = [name for name in files if getattr(self, name) is not None]
        if named and self.train_data == "shapes":
            raise ValueError(
                f"{named[0]} is set for train_data shapes, which has no files; "
                "name a file or folder with train_data, or leave the setting out."
            )
        if self.eval_steps and self.eval_data is None and self.train_data != "shapes":
            raise ValueError("eval_steps is set without eval_data; name held-out pairs there, or set eval_steps to 0.")
        drawn = (bool(self.validation_prompts), self.validation_pipeline is not None, bool(self.validation_steps))
        if len(set(drawn)) > 1:
            raise ValueError(
                "of validation_prompts, validation_pipeline and validation_steps some are set and some not; "
                "set all three to draw pictures, or none."
            )
        if self.grounding_weight and self.freeze_image_tower:
            raise ValueError(
                "grounding_weight is set with freeze_image_tower, the supervision trains the image tower; "
                "set the weight to 0."
            )
        if self.grounding_weight and self.train_data != "shapes":
            raise ValueError(
                f"grounding_weight is set for train_data {self.train_data}, only shapes knows what is in a picture; "
                "set the weight to 0."
            )

    def trajectory(self) -> dict[str, Any]:
        """The fields that decide the weights of a step: two runs with equal ones are the same run.

        With a constant rate the length of the run decides nothing.
        """
        others = {*NOT_PART_OF_THE_TRAJECTORY, *(["max_train_steps"] if self.lr_scheduler == "constant" else [])}
        return {name: v for name, v in dataclasses.asdict(self).items() if name not in others}

    @staticmethod
    def before() -> dict[str, Any]:
        """What each field was in effect before it existed: for checkpoints that do not name it."""
        plain = {f.name: f.default for f in dataclasses.fields(TrainConfig) if f.default is not dataclasses.MISSING}
        return plain | BEFORE


def _choose(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}, allowed are {', '.join(allowed)}; choose one of them.")
