"""One whole run: VAE, UNet, and the Stable Diffusion folder that they make together with the base encoder.

Finished folders are written under a temporary name, then renamed.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, StableDiffusionPipeline
from tqdm import tqdm

from debias_sd.encoder import TextEncoder
from debias_sd.encoder_folder import find_encoder_folder
from debias_sd.report import check_writable, hash_file, source_commit, write_atomically
from debias_sd.run_state import check_finite, fingerprint, list_changes, note_versions, package_versions, remove_files
from train_unet.models import (
    DIVERGED,
    caption_of,
    draw_scene,
    new_scheduler,
    new_unet,
    pictures,
    refine_decoder,
    train_vae,
)
from train_unet.settings import UnetConfig
from train_unet.train import COUNTS, Conditioner, share_drawn, train_unet

# What a run writes into its folder.
MADE = ("vae", "vae-first", "pipeline")
WRITTEN = (
    *(name + ending for name in MADE for ending in ("", ".tmp", ".old")),
    *("vae-state.pt", "decoder-state.pt", "unet-state.pt", ".*-state.pt.partial"),
    *("pool.safetensors", "pool.tmp", "log.jsonl", "settings.json"),
)
LENGTHS = ("vae_train_steps", "decoder_train_steps", "max_train_steps")


def get_vae(config: UnetConfig, folder: Path) -> AutoencoderKL:
    """Load the finished VAE of this run, or train it (resuming) and keep it: first `vae-first`, with its final decoder
    `vae`."""
    shared = {"batch_size": config.vae_train_batch_size, "seed": config.seed}
    if not (folder / "vae-first").exists():
        with progress("VAE", config.vae_train_steps) as report:
            rates = {"steps": config.vae_train_steps, "learning_rate": config.vae_learning_rate}
            keep(train_vae(folder, **rates, **shared, report=report), folder / "vae-first")
    if not (folder / "vae").exists():
        vae = AutoencoderKL.from_pretrained(folder / "vae-first", torch_dtype=torch.float32)
        with progress("VAE decoder", config.decoder_train_steps) as report:
            rates = {"steps": config.decoder_train_steps, "learning_rate": config.vae_learning_rate / 2}
            keep(refine_decoder(vae, folder, **rates, **shared, report=report), folder / "vae")
    return AutoencoderKL.from_pretrained(folder / "vae", torch_dtype=torch.float32).eval()


@contextlib.contextmanager
def progress(name: str, steps: int) -> Iterator[Callable[[int, float], None]]:
    """A progress bar as a function of the step and its loss."""
    with tqdm(total=steps, desc=name) as bar:

        def report(step: int, loss: float) -> None:
            bar.set_postfix(loss=f"{loss:.4f}", refresh=False)
            bar.update(step + 1 - bar.n)

        yield report


def keep(vae: AutoencoderKL, target: Path) -> None:
    """Write `vae` to `target` in one step."""
    check_finite(vae.state_dict(), what=f"{target.name} is not written: the VAE", advice=DIVERGED)
    temporary = target.with_name(target.name + ".tmp")
    vae.save_pretrained(temporary)
    put_in_place(temporary, target)


def run(config: UnetConfig, *, command: list[str]) -> Path:
    """Train what is not trained yet and write the pipeline folder (or only the VAE's); return its path."""
    folder = Path(config.output_dir)
    check_writable(folder / "train_log.jsonl")
    if config.vae_only:
        begin(config, config.vae_settings() | vae_origin(config.seed))
        if not is_finished(folder / "vae"):
            get_vae(config, folder)
            print(f"written to {folder / 'vae'}")
        return folder / "vae"
    encoder = TextEncoder.load(config.text_encoder)
    if encoder.model.config.max_position_embeddings != 77:
        raise ValueError(
            f"the UNet is conditioned on the base encoder with 77 positions, found "
            f"{encoder.model.config.max_position_embeddings} in {config.text_encoder}; name the base encoder's folder."
        )
    origin = {"text_encoder": weights_hash(config.text_encoder)} | vae_origin(config.seed) | unet_origin(config.seed)
    versions = begin(config, config.vae_settings() | config.unet_settings() | origin)
    if is_finished(folder / "pipeline"):
        return folder / "pipeline"
    text_encoder = encoder.model.float().eval()
    vae = get_vae(config, folder)
    conditioner = Conditioner(text_encoder, encoder.tokenizer)
    unet = new_unet(
        config.seed,
        latent_channels=vae.config.latent_channels,
        text_width=text_encoder.config.hidden_size,
        widths=config.widths,
    )
    unet, loss = train_unet(config, conditioner, vae, unet, folder)
    pipeline = StableDiffusionPipeline(
        vae=vae,
        text_encoder=text_encoder,
        tokenizer=encoder.tokenizer,
        unet=unet,
        scheduler=new_scheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    drawn = share_drawn(unet, vae, conditioner, prompts=config.validation_prompts)
    metrics = {"loss": None if loss is None else round(loss, 5), "share_drawn_by_number_of_things": drawn}
    facts = provenance(config, command, metrics) | ({"resumed": versions} if len(versions) > 1 else {})
    target = save_pipeline(pipeline, folder / "pipeline", facts)
    print(f"written to {target}")
    return target


def begin(config: UnetConfig, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Take the folder for a run with `settings`; see `check_same_run`."""
    folder = Path(config.output_dir)
    if config.overwrite_output_dir and (folder / "settings.json").exists():
        remove_files(folder, WRITTEN)
    return check_same_run(folder / "settings.json", settings)


def vae_origin(seed: int) -> dict[str, str]:
    """Fingerprint of what the VAE is trained on."""
    return {"pictures": fingerprint([pictures(0, 16, seed=seed).numpy().tobytes()])}


def unet_origin(seed: int) -> dict[str, str]:
    """Fingerprint of the captions that the UNet is trained on."""
    scenes = [draw_scene(0, count, seed=seed) for count in range(1, COUNTS + 1)]
    captions = (caption_of(scene, random.Random(f"unet/{seed}/origin")).text for scene in scenes)
    return {"captions": fingerprint(caption.encode() for caption in captions)}


def weights_hash(text_encoder: str) -> str:
    """SHA-256 of the text encoder's weights: the pool holds its states, so that another one cannot take over."""
    return hash_file(find_encoder_folder(text_encoder) / "model.safetensors")


def provenance(config: UnetConfig, command: list[str], metrics: dict[str, Any]) -> dict[str, Any]:
    """Where these weights come from: command, commit, settings, versions, metrics (hashes are added when saved)."""
    return {
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(command),
        "git_commit": source_commit(__file__),
        "config": asdict(config),
        "versions": package_versions(),
        "metrics": metrics,
    }


def load_in_float32(config: Path) -> None:
    """Have transformers load the float16 weights beside `config` in float32, as diffusers does with the other parts.

    Its default is the dtype that the config names; with float16 there, a pipeline that is loaded without a dtype would
    mix float16 text states with a float32 UNet and fail.
    """
    settings = json.loads(config.read_text())
    config.write_text(json.dumps(settings | {"dtype": "float32"}, indent=2) + "\n")


def save_pipeline(pipeline: StableDiffusionPipeline, target: Path, facts: dict[str, Any]) -> Path:
    """Write `pipeline` in float16 with `provenance.json`; an older folder stays until the new one is complete."""
    temporary = target.with_name(target.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    pipeline.to(torch.float16)
    for name, part in pipeline.components.items():
        if isinstance(part, torch.nn.Module):  # in float16, where a large weight has become infinite
            check_finite(part.state_dict(), what=f"{target.name} is not written: its {name}", advice=DIVERGED)
    pipeline.save_pretrained(temporary)
    load_in_float32(temporary / "text_encoder" / "config.json")
    hashes = {
        str(file.relative_to(temporary)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(temporary.rglob("*.safetensors"))
    }
    (temporary / "provenance.json").write_text(json.dumps({**facts, "sha256": hashes}, indent=2) + "\n")
    put_in_place(temporary, target)
    return target


def check_same_run(path: Path, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Note at `path` what decides this run's result; ValueError when an earlier run in that folder had it otherwise.

    Finished parts and states of a folder are taken as they are, so they must be those of the same run. Settings that
    the earlier run did not note (it stopped after the VAE) are added. Makes the folder. Returns the versions of the
    packages that the run has been computed with so far, and says where they have changed.
    """
    folder = path.parent
    noted = json.loads(path.read_text()) if path.exists() else {}
    if not noted and any((folder / name).exists() for name in MADE):
        raise ValueError(f"{folder} has a model that train_unet did not write; give another output_dir.")
    now = json.loads(json.dumps(settings))
    changes = list_changes(noted, {name: value for name, value in now.items() if name in noted})
    if changes:
        only_length = all(change.startswith(LENGTHS) for change in changes)
        reason = "; its learning rate falls to 0 over exactly these steps, so no other length has its weights"
        raise ValueError(
            f"{folder} holds a run with another {', '.join(changes)}{reason if only_length else ''}; give another "
            "output_dir, or what that run had, or delete it with --overwrite_output_dir."
        )
    today = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    versions, warning = note_versions(noted.get("versions", []), since=today)
    if warning:
        print(f"warning: {warning}")
    write_atomically(path, (json.dumps(noted | now | {"versions": versions}, indent=1) + "\n").encode())
    return versions


def is_finished(target: Path) -> bool:
    """Whether the run has made the folder `target`; says so."""
    if target.exists():
        print(f"{target} is finished; everything is left as it is (--overwrite_output_dir deletes it and trains anew)")
    return target.exists()


def put_in_place(fresh: Path, target: Path) -> None:
    """Give the finished folder `fresh` the name `target`; an older folder there is moved aside first, deleted last."""
    old = target.with_name(target.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        os.replace(target, old)
    os.replace(fresh, target)
    shutil.rmtree(old, ignore_errors=True)
