"""The settings of a training run: one frozen dataclass, filled from a YAML file and the command line.

A YAML file is a named run; `--key value` on the command line overrides it. Names follow Hugging Face's training
scripts where they have one. Fields that are null take the value of their recipe (`RECIPES`).
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

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
    "dataloader_num_workers",
    "expect_processes",
    "report_to",
    "data_fault_limit",
)


def setting(default: Any, text: str) -> Any:
    """A field with its one-line description, which `--help` prints."""
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata={"help": text})
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class TrainConfig:
    """All settings of one run; ValueError with one sentence when they do not fit together."""

    output_dir: str = setting("", "folder of the run: encoder, log, checkpoints")
    pretrained_model_name_or_path: str | None = setting(None, "CLIP folder or hub id to start from; null: from scratch")
    model_config: dict[str, Any] = setting({}, "CLIPConfig as a dict, for a start from scratch")
    init_std: dict[str, float] = setting(
        {}, "start from scratch: standard deviations of token_embeddings, text_positions, vision_positions"
    )
    attn_implementation: str = setting("eager", "attention of transformers: eager (fastest on CPU) or sdpa")
    text_pass: str = setting("packed", "packed: compute only what is read; grouped: by length, as the shipped encoders")
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
    label_smoothing: float | None = setting(None, "label smoothing of both losses (debias 0, long-clip 0.1)")
    components: int = setting(32, "principal components of the image features that meet the short caption")
    stretch_factor: int | None = setting(None, "stretch of the position table (4: 77 to 248; 1: keep it)")
    keep_positions: int = setting(20, "first rows of the position table, unchanged and frozen when it is stretched")
    pad_id: int = setting(0, "id of the pads in training; those in front of a short caption are read by it")
    grounding_weight: float = setting(0.0, "weight of dense supervision on the shapes world; 0: none")
    stay_close_weight: float = setting(0.0, "weight of the distance to the start's hidden states; 0: none")
    max_train_steps: int = setting(1000, "optimizer steps of the whole run")
    train_batch_size: int = setting(64, "pairs per process and step; a batch contrasts the pairs of all processes")
    learning_rate: float = setting(1e-6, "peak learning rate")
    lr_warmup_steps: int = setting(200, "steps of linear warm-up, before a cosine to 0")
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
    expect_processes: int = setting(0, "stop unless the run has this many processes; 0: any")
    report_to: str = setting("none", "none or tensorboard; train_log.jsonl is always written")

    def __post_init__(self) -> None:
        _choose("recipe", self.recipe, tuple(RECIPES))
        _choose("mixed_precision", self.mixed_precision, ("no", "bf16"))
        _choose("report_to", self.report_to, ("none", "tensorboard"))
        _choose("attn_implementation", self.attn_implementation, ("eager", "sdpa"))
        _choose("text_pass", self.text_pass, ("packed", "grouped"))
        for name, value in RECIPES[self.recipe].items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        self._check_numbers()
        self._check_combinations()

    def _check_numbers(self) -> None:
        at_least = {"max_train_steps": 1, "train_batch_size": 1, "stretch_factor": 1, "components": 1}
        at_least |= {"lr_warmup_steps": 0, "keep_positions": 0, "pad_id": 0, "checkpointing_steps": 0}
        at_least |= {"checkpoints_total_limit": 1, "dataloader_num_workers": 0, "expect_processes": 0}
        at_least |= {
            "data_fault_limit": 0,
            "grounding_weight": 0,
            "stay_close_weight": 0,
            "max_grad_norm": 0,
            "learning_rate": 0,
        }
        for name, low in at_least.items():
            if not getattr(self, name) >= low:
                raise ValueError(f"{name} is {getattr(self, name)}, allowed are numbers from {low}; correct it.")
        for name in ("short_weight", "label_smoothing"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}, allowed are 0 to 1; correct it.")

    def _check_combinations(self) -> None:
        if not self.output_dir:
            raise ValueError("output_dir is not set, a run needs a folder to write to; pass --output_dir FOLDER.")
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
        if self.stay_close_weight and self.pretrained_model_name_or_path is None:
            raise ValueError(
                "stay_close_weight is set without a pretrained model to stay close to; "
                "set pretrained_model_name_or_path, or the weight to 0."
            )
        files = ("train_data_dir", "image_column", "caption_column", "short_caption_column", "skip_missing_images")
        named = [name for name in files if getattr(self, name) is not None]
        if named and self.train_data == "shapes":
            raise ValueError(
                f"{named[0]} is set for train_data shapes, which has no files; "
                "name a file or folder with train_data, or leave the setting out."
            )
        if self.grounding_weight and self.train_data != "shapes":
            raise ValueError(
                f"grounding_weight is set for train_data {self.train_data}, only shapes knows what is in a picture; "
                "set the weight to 0."
            )

    def trajectory(self) -> dict[str, Any]:
        """The fields that decide the weights: two runs with equal ones are the same run."""
        return {name: v for name, v in dataclasses.asdict(self).items() if name not in NOT_PART_OF_THE_TRAJECTORY}


def _choose(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}, allowed are {', '.join(allowed)}; choose one of them.")


def _convert(name: str, value: Any, kind: str) -> Any:
    """Bring `value` to the annotated type; YAML reads 1e-6 as a string, and the command line gives strings only."""
    kinds = [part.strip() for part in kind.split("|")]
    if value is None:
        if "None" not in kinds:
            raise ValueError(f"{name} is null, a value is needed; write {name}: VALUE or leave the line out.")
        return None
    base = kinds[0].split("[")[0]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if base == "float" and (is_number or isinstance(value, str)):
        try:
            return float(value)
        except ValueError:
            pass
    elif base == "int" and is_number and int(value) == value:
        return int(value)
    elif (base == "bool" and isinstance(value, bool)) or (base == "dict" and isinstance(value, dict)):
        return value
    elif base == "str" and (isinstance(value, str) or is_number):
        return str(value)
    raise ValueError(f"{name} is {value!r}, a value of type {base} is needed; correct it.")


def make_config(values: dict[str, Any]) -> TrainConfig:
    """Make a TrainConfig of plain values; ValueError names the nearest field for an unknown key."""
    kinds = {f.name: f.type for f in dataclasses.fields(TrainConfig)}
    for key in values:
        if key not in kinds:
            near = difflib.get_close_matches(str(key), list(kinds), n=1, cutoff=0.0)[0]
            raise ValueError(f"unknown setting {key!r}; the nearest is {near!r} (--help lists all).")
    return TrainConfig(**{key: _convert(key, value, kinds[key]) for key, value in values.items()})


def read_config(path: str | Path) -> dict[str, Any]:
    """Read the settings of a YAML file, unchecked."""
    path = Path(path)
    if not path.is_file():
        near = ", ".join(sorted(p.name for p in (Path(__file__).parent / "configs").glob("*.yaml")))
        raise ValueError(f"config file {path} does not exist; name a YAML file (train_encoder/configs has {near}).")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except UnicodeDecodeError:
        raise ValueError(f"config file {path} is not UTF-8 text; name a YAML file.") from None
    except yaml.YAMLError as error:
        raise ValueError(f"config file {path} is not YAML ({' '.join(str(error).split())}); correct it.") from None
    if not isinstance(values, dict):
        raise ValueError(f"config file {path} holds a {type(values).__name__}, lines of `key: value` are needed.")
    return values


def parse_arguments(arguments: list[str]) -> TrainConfig:
    """Make the config of `--config FILE --key value ...`; the command line wins over the file."""
    parser = argparse.ArgumentParser(prog="train_encoder", description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--config", help="YAML file of a named run", metavar="FILE")
    for f in dataclasses.fields(TrainConfig):
        shown = "{}" if f.default is dataclasses.MISSING else f.default
        text = f"{f.metadata['help']} (default: {shown})".replace("%", "%%")
        parser.add_argument(f"--{f.name}", default=argparse.SUPPRESS, metavar="VALUE", help=text)
    known, unknown = parser.parse_known_args(arguments)
    if unknown:
        name = unknown[0].removeprefix("--").split("=")[0]
        near = difflib.get_close_matches(name, [f.name for f in dataclasses.fields(TrainConfig)], n=1, cutoff=0.0)[0]
        raise ValueError(f"unknown option {unknown[0]!r}; the nearest is '--{near}' (--help lists all).")
    given = vars(known)
    path = given.pop("config", None)
    values = read_config(path) if path else {}
    return make_config(values | {key: _read_value(key, value) for key, value in given.items()})


def _read_value(name: str, value: str) -> Any:
    """What a value of the command line says in YAML."""
    try:
        return yaml.safe_load(value)
    except yaml.YAMLError:
        raise ValueError(f"--{name} is {value!r}, which is not YAML; correct or quote it.") from None
