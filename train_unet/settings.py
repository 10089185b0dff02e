"""The settings of a UNet run: one frozen dataclass, filled from YAML and the command line."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from debias_sd.run_settings import check_values, parse_settings, required, setting


@dataclasses.dataclass(frozen=True)
class UnetConfig:
    """Settings for `python -m train_unet`; names as in Hugging Face's training scripts where they have one."""

    text_encoder: str = required("folder of the base text encoder (77 positions) that conditions the UNet")
    output_dir: str = required("folder for the states, the log and, under pipeline/, the finished Stable Diffusion")
    overwrite_output_dir: bool = setting(False, "delete what an earlier run wrote to output_dir, and train anew")
    vae_only: bool = setting(
        False, "stop after the VAE, which needs no text encoder, so that it can be trained beside the encoders"
    )
    seed: int = setting(0, "seed of weights and data")
    vae_train_steps: int = setting(2500, "steps on the VAE", above=0)
    vae_train_batch_size: int = setting(32, "pictures of a step on the VAE", above=0)
    vae_learning_rate: float = setting(2e-3, "peak learning rate of the VAE", above=0)
    decoder_train_steps: int = setting(
        600, "steps on the VAE's decoder alone, after the whole VAE; the latents do not change any more", at_least=0
    )
    max_train_steps: int = setting(6000, "steps on the UNet", above=0)
    train_batch_size: int = setting(128, "latents of a step on the UNet", above=0)
    learning_rate: float = setting(1.5e-3, "peak learning rate of the UNet", above=0)
    lr_warmup_steps: int = setting(200, "steps of linear warm-up", above=0)
    adam_weight_decay: float = setting(0.01, "AdamW, on all tensors alike", at_least=0)
    ema_decay: float = setting(0.998, "decay of the running mean of the UNet's weights", at_least=0, below=1)
    widths: tuple[int, int] = setting((128, 192), "channels at 6 x 6 and at 3 x 3")
    scenes_per_count: int = setting(5000, "training scenes for each number of things, 1 to 9", above=0)
    captions_per_scene: int = setting(2, "captions of each scene", above=0)
    checkpointing_steps: int = setting(500, "save a state every so many steps", above=0)
    validation_prompts: int = setting(
        24, "held-out scenes for each number of things that are drawn at every checkpoint and at the end", above=0
    )

    def __post_init__(self) -> None:
        check_values(self)
        if any(width < 1 or width % 16 for width in self.widths):
            raise ValueError(f"widths must be two multiples of 16, found {list(self.widths)}; change that setting.")

    def vae_settings(self) -> dict[str, Any]:
        """What decides the VAE that a run trains."""
        names = [field.name for field in dataclasses.fields(self) if field.name.startswith(("vae_", "decoder_"))]
        return {name: getattr(self, name) for name in ["seed", *names] if name != "vae_only"}

    def unet_settings(self) -> dict[str, Any]:
        """What decides the UNet beside the VAE and the text encoder; not where and how often it is looked at."""
        others = ("text_encoder", "output_dir", "overwrite_output_dir", "vae_only")
        others += ("checkpointing_steps", "validation_prompts")
        values = dataclasses.asdict(self) | {"widths": list(self.widths)}
        return {name: value for name, value in values.items() if name not in {*others, *self.vae_settings()}}


def parse_arguments(arguments: list[str]) -> UnetConfig:
    """The config of `--config FILE --key value ...`; the command line wins over the file."""
    about = "Train the embedded world's Stable Diffusion; a YAML file is a named run."
    configs = Path(__file__).parent / "configs"
    return parse_settings(UnetConfig, arguments, prog="python -m train_unet", about=about, configs=configs, renamed={})
