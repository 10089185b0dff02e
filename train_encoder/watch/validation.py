"""Pictures of fixed prompts while a run trains, by a Stable Diffusion pipeline with the encoder as it is by then."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from PIL.PngImagePlugin import PngInfo

from debias_sd.encoder import TextEncoder

if TYPE_CHECKING:
    from train_encoder.run import Run

STEPS, GUIDANCE, SEED = 25, 7.5, 0


def present_encoder(run: Run) -> TextEncoder:
    """The text tower as it is now, as an encoder of its own: training goes on without touching it."""
    from transformers import CLIPTextModel

    model = CLIPTextModel(run.towers.clip.config.text_config).eval()
    model.set_attn_implementation("sdpa")
    model.load_state_dict(run.towers.clip.text_model.state_dict())
    return TextEncoder(model, run.tokenizer)


def draw_validation(run: Run) -> list[Path]:
    """Draw `validation_prompts` with `validation_pipeline` into `validation/step-N`; returns the files.

    A file is named by its place in the list and a hash of its prompt, which stands in the picture's metadata.
    The pipeline is loaded and dropped each time: it would take memory from training. Raises ValueError when it is not
    one or the encoder does not fit it.
    """
    from debias_sd.pipelines.load import load_debias_pipeline
    from debias_sd.prompts.conditioning import encode_prompt

    config = run.config
    pipe = load_debias_pipeline(config.validation_pipeline, present_encoder(run), min_positions=1)
    pipe.to(run.accelerator.device)
    pipe.set_progress_bar_config(disable=True)
    folder = run.folder / "validation" / f"step-{run.step}"
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, prompt in enumerate(config.validation_prompts):
        generator = torch.Generator().manual_seed(SEED)
        settings = {"num_inference_steps": STEPS, "guidance_scale": GUIDANCE, "generator": generator}
        image = pipe(**encode_prompt(pipe, prompt), **settings).images[0]
        content = prompt.encode("utf-8", "replace")
        paths.append(folder / f"{number}-{hashlib.sha256(content).hexdigest()[:12]}.png")
        chunks = PngInfo()
        chunks.add_itxt("prompt", content.decode().replace("\0", ""))  # a zero byte would end the text
        image.save(paths[-1], pnginfo=chunks)
    return paths
