"""What is seen of a run while it trains: a bar with losses and pace, the log, its trackers, retrieval, pictures.

Retrieval follows the paper's protocol (arXiv 2602.22419): normalised features, dot product, R@1 of both directions in
percent; full captions, the summary moved or dropped, and short captions, for training on long captions can cost what
CLIP knows of short ones. Pictures are of fixed prompts, by a Stable Diffusion pipeline with the encoder as it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from debias_sd.drawing import Variant, draw
from debias_sd.encoder import TextEncoder
from debias_sd.measure.ranks import retrieval_ranks, scores_of
from train_encoder.engine import autocast
from train_encoder.heldout import PROBED, HeldOut
from train_encoder.log import TrainLog, open_trackers
from train_encoder.processes import StopAsked, on_main

if TYPE_CHECKING:
    from types import TracebackType

    from train_encoder.run import Run

BATCH = 32
ERRORS = 2.0  # standard errors of the first measurement that a fall must exceed to be told


@torch.no_grad()
def evaluate(run: Run, heldout: HeldOut) -> dict[str, float]:
    """R@1 in percent of each probe and of the short captions, text to image (t2i) and image to text (i2t).

    Raises StopAsked where SIGTERM comes between two batches.
    """
    was_training = run.towers.training
    run.towers.eval()
    try:
        images = _image_features(run, heldout.pictures)
        same = heldout.short_pictures is heldout.pictures
        short_images = images if same else _image_features(run, heldout.short_pictures)
        pairs = {name: (images, texts) for name, texts in heldout.texts.items()}
        pairs["short"] = (short_images, heldout.short_texts)
        row: dict[str, float] = {"step": run.step}
        for name, (pictures, texts) in pairs.items():
            ranks = retrieval_ranks(pictures, _text_features(run, texts), np.arange(len(texts)))
            row |= {f"{name}_{way}_r1": scores_of(getattr(ranks, way))["r1"] for way in ("t2i", "i2t")}
        return row
    finally:
        run.towers.train(was_training)


def _image_features(run: Run, pictures: list[np.ndarray]) -> np.ndarray:
    found = []
    for start in range(0, len(pictures), BATCH):
        pixels = run.data.preprocessing.normalise(pictures[start : start + BATCH])
        run.stop.check()
        with autocast(run.accelerator, run.config):
            found.append(_normalised(run.towers.image_features(pixels.to(run.accelerator.device))))
    return np.concatenate(found)


def _text_features(run: Run, texts: list[str]) -> np.ndarray:
    ids = run.texts.ids(texts)
    found = []
    for rows in ids.split(BATCH):
        run.stop.check()
        with autocast(run.accelerator, run.config):
            found.append(_normalised(run.towers.text_features(rows.to(run.accelerator.device))))
    return np.concatenate(found)


def _normalised(features: torch.Tensor) -> np.ndarray:
    return F.normalize(features.float(), dim=-1).cpu().numpy()


def describe(row: dict[str, float]) -> str:
    """One line: R@1 text to image and image to text of each probe."""
    parts = (f"{name} {row[f'{name}_t2i_r1']:.1f}/{row[f'{name}_i2t_r1']:.1f}" for name in (*PROBED, "short"))
    return f"step {row['step']}: R@1 t2i/i2t {', '.join(parts)}"


def fall_of_short(first: dict[str, float], row: dict[str, float], *, pairs: int) -> str | None:
    """A sentence when short-caption retrieval fell by more than measurement error since `first`, else None."""
    before, now = (each["short_t2i_r1"] for each in (first, row))
    error = 100 * math.sqrt(max(before / 100 * (1 - before / 100), 1 / pairs) / pairs)
    if before - now <= ERRORS * error:
        return None
    return (
        f"short captions find their pictures less often than at step {first['step']}: R@1 fell from {before:.1f} to "
        f"{now:.1f} on {pairs} pairs; a smaller learning_rate or a larger short_weight holds them."
    )


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

    config = run.config
    pipe = load_debias_pipeline(config.validation_pipeline, present_encoder(run), min_positions=1)
    pipe.to(run.accelerator.device)
    pipe.set_progress_bar_config(disable=True)
    variant = Variant("the encoder in training", pipe, {})
    folder = run.folder / "validation" / f"step-{run.step}"
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, prompt in enumerate(config.validation_prompts):
        image = Image.fromarray(draw(variant, [prompt], [SEED], steps=STEPS, guidance=GUIDANCE)[0])
        content = prompt.encode("utf-8", "replace")
        paths.append(folder / f"{number}-{hashlib.sha256(content).hexdigest()[:12]}.png")
        chunks = PngInfo()
        chunks.add_itxt("prompt", content.decode().replace("\0", ""))  # a zero byte would end the text
        image.save(paths[-1], pnginfo=chunks)
    return paths


class Watch:
    """Enter it around the loop. Only the main process says and writes anything; the others wait where it takes long."""

    def __init__(self, run: Run) -> None:
        self.run, self.main = run, run.accelerator.is_main_process

    def __enter__(self) -> Watch:
        from tqdm import tqdm

        run, config = self.run, self.run.config
        self.bar = tqdm(total=config.max_train_steps, initial=run.step, disable=not self.main, unit="step")
        if self.main:
            trackers = open_trackers(config, run.folder, start=run.step)
            self.log = TrainLog(run.folder, start=run.step, trackers=trackers)
        self._since = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.close()
        if self.main:
            self.log.close()

    def begin(self) -> dict[str, float]:
        """Measure the initial checkpoint, as what later measurements are compared with. Returns the log's last row."""
        if self.run.config.eval_steps and self.run.step == 0:
            self._measure()
        return self.log.last() if self.main else {}

    def step(self, row: dict[str, float]) -> None:
        """Log a step, and measure or draw when that is due."""
        if self.main:
            self.log.write(row)
        self.bar.update()
        self.bar.set_postfix(self._shown(row), refresh=False)
        config, number = self.run.config, self.run.step
        if config.eval_steps and number % config.eval_steps == 0:
            self._measure()
        if config.validation_steps and number % config.validation_steps == 0:
            self._draw()

    def _shown(self, row: dict[str, float]) -> dict[str, str]:
        """Losses, temperature (the factor of the logits) and the pace of all processes since the last step."""
        now = time.monotonic()
        pace, self._since = self.run.pairs / max(now - self._since, 1e-6), now
        parts = {name: f"{row[name]:.3f}" for name in ("loss", "long", "short", "contrastive") if name in row}
        if "contrastive" in parts and "grounding" not in row:
            del parts["contrastive"]  # it is the loss
        if "scale" not in row:
            return parts | {"texts/s": f"{pace:.1f}"}
        return parts | {"scale": f"{row['scale']:.1f}", "images/s": f"{pace:.1f}"}

    def _measure(self) -> None:
        on_main(self.run.accelerator, self._measure_on_main)
        self._since = time.monotonic()

    def _draw_on_main(self) -> None:
        try:
            for path in draw_validation(self.run):
                self.bar.write(f"drawn: {path}")
        except Exception as error:  # pictures to look at do not end a training of days
            first = next(iter(str(error).strip().splitlines()), type(error).__name__)
            self.bar.write(f"warning: the pictures of step {self.run.step} are not drawn ({first}); training goes on")

    def _measure_on_main(self) -> None:
        with contextlib.suppress(StopAsked):
            heldout = self.run.heldout
            if isinstance(heldout, HeldOut):
                self._tell(evaluate(self.run, heldout), pairs=len(heldout.short_texts))
            elif heldout is not None:
                row = heldout.measure(self.run)
                self.log.write_evaluation(row)
                self.bar.write(heldout.describe(row))
                worse = heldout.warning(self.log.evaluations()[0], row)
                if worse:
                    self.bar.write(f"warning: {worse}")

    def _tell(self, row: dict[str, float], *, pairs: int) -> None:
        self.log.write_evaluation(row)
        self.bar.write(describe(row))
        fall = fall_of_short(self.log.evaluations()[0], row, pairs=pairs)
        if fall:
            self.bar.write(f"warning: {fall}")

    def _draw(self) -> None:
        on_main(self.run.accelerator, self._draw_on_main)
        self._since = time.monotonic()
