"""Speed of prompt encoding against the bare text encoder: `python benchmarks/encode.py [--embedded] [--out FILE.json]`.

Three ways to the states of one long prompt and an empty negative prompt, in one process, in turns, the order rotating:

* bare: `CLIPTextModel` on the two id tensors, which are there already;
* ours: `encode_prompt(pipe, prompt)`, text to states;
* diffusers: `pipe.encode_prompt(...)`, which a user would call otherwise.

All three must give the same states bit for bit. The goal is ours / bare <= 1.10, of the medians. By default the encoder
has the size of CLIP ViT-L/14's text tower with 248 positions and CLIP's vocabulary, random weights: no download.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from diffusers import AutoencoderKL, DDIMScheduler, DiffusionPipeline, StableDiffusionPipeline, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from debias_sd.checkpoints import convert
from debias_sd.pipelines.load import load_debias_pipeline
from debias_sd.prompts.conditioning import encode_prompt
from debias_sd.report import installed_versions, write_atomically

GOAL = 1.10
POSITIONS = 248
PROMPT = (
    "A wide view of a quiet harbour at dawn. A red fishing boat lies at the stone pier, its nets drying on deck. Two "
    "gulls sit on the mast and look at the water. Behind the pier stand seven narrow houses, each in another colour. "
    "The third one has a green door and a brass lamp. An old man in a blue jacket carries a basket of silver fish. A "
    "small dog with one white paw follows him closely. On the left, a child draws a whale on the ground with chalk. "
    "Far out, a lighthouse sends its last beam into the mist. The sky is pale orange, with one long thin cloud."
)
SHAPES_PROMPT = (
    "A small red star sits in the top left and a large blue ring in the bottom right. There is a big green square in "
    "the centre. A small yellow cross is at the top right. In the bottom left you can see a large purple circle."
)


def clip_tokenizer() -> CLIPTokenizer:
    """CLIP's own tokenizer, 248 tokens at a time."""
    tokenizer = convert.clip_tokenizer()
    tokenizer.model_max_length = POSITIONS
    return tokenizer


def random_pipeline(*, width: int, layers: int) -> StableDiffusionPipeline:
    """A stock pipeline whose text encoder has `width` and `layers`; its UNet and VAE are as small as they can be."""
    torch.manual_seed(0)
    tokenizer = clip_tokenizer()
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        max_position_embeddings=POSITIONS,
        projection_dim=width,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    unet = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(4, 8),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=width,
        norm_num_groups=2,
    )
    return StableDiffusionPipeline(
        vae=AutoencoderKL(block_out_channels=(4,), norm_num_groups=2),
        text_encoder=CLIPTextModel(config).eval(),
        tokenizer=tokenizer,
        unet=unet,
        scheduler=DDIMScheduler(steps_offset=1, clip_sample=False),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def ways_to_encode(pipe: DiffusionPipeline, prompt: str) -> dict[str, Callable[[], list[torch.Tensor]]]:
    """The three ways by name, each from nothing to the states of the prompt and of the empty negative prompt."""
    padding = {"padding": "max_length", "max_length": pipe.tokenizer.model_max_length, "truncation": True}
    ids = [pipe.tokenizer(text, return_tensors="pt", **padding).input_ids for text in (prompt, "")]
    options = {"num_images_per_prompt": 1, "do_classifier_free_guidance": True, "device": pipe.text_encoder.device}

    @torch.no_grad()
    def bare() -> list[torch.Tensor]:
        return [pipe.text_encoder(one)[0] for one in ids]

    @torch.no_grad()
    def diffusers() -> list[torch.Tensor]:
        return list(pipe.encode_prompt(prompt, **options))

    return {"bare": bare, "ours": lambda: list(encode_prompt(pipe, prompt).values()), "diffusers": diffusers}


def check_equal(ways: dict[str, Callable[[], list[torch.Tensor]]]) -> None:
    """Raise RuntimeError unless all ways give the same states: other work would be compared. Warms all of them up."""
    wanted = ways["bare"]()
    for name, way in ways.items():
        if not all(torch.equal(one, other) for one, other in zip(wanted, way(), strict=True)):
            raise RuntimeError(f"{name} gives other states than the bare encoder; their times cannot be compared.")


def take_turns(ways: dict[str, Callable[[], object]], *, rounds: int) -> tuple[dict[str, list[float]], ...]:
    """Wall and processor seconds of every call, `rounds` a way; each round begins with another way, against drift."""
    seconds, cpu = ({name: [] for name in ways} for _ in range(2))
    names = list(ways)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            started, started_cpu = time.perf_counter(), time.process_time()
            ways[name]()
            seconds[name].append(time.perf_counter() - started)
            cpu[name].append(time.process_time() - started_cpu)
    return seconds, cpu


def ratios(seconds: dict[str, list[float]]) -> dict[str, float]:
    """Each way's median by the bare encoder's."""
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return {name: median / medians["bare"] for name, median in medians.items() if name != "bare"}


def measure(pipe: DiffusionPipeline, prompt: str, *, rounds: int) -> dict[str, object]:
    """Medians in milliseconds, ratios to the bare encoder, and every time that was taken.

    Wall time is what counts; processor time (`cpu_ratio`) says whether a busy machine has blurred it.
    """
    ways = ways_to_encode(pipe, prompt)
    check_equal(ways)
    seconds, cpu = take_turns(ways, rounds=rounds)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    ratio = ratios(seconds)
    config = pipe.text_encoder.config
    return {
        "kind": "speed of prompt encoding",
        "encoder": {
            "width": config.hidden_size,
            "layers": config.num_hidden_layers,
            "positions": config.max_position_embeddings,
            "vocabulary": config.vocab_size,
        },
        "prompt_tokens": len(pipe.tokenizer(prompt, add_special_tokens=False).input_ids),
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "median_ms": {name: 1000 * value for name, value in medians.items()},
        "ratio": ratio,
        "cpu_ratio": ratios(cpu),
        "goal": GOAL,
        "goal_met": ratio["ours"] <= GOAL,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "versions": installed_versions(),
    }


def describe(report: dict[str, object]) -> str:
    """The report in four lines."""
    encoder, medians, ratio = report["encoder"], report["median_ms"], report["ratio"]
    lines = [
        f"text encoder {encoder['width']} wide, {encoder['layers']} layers, {encoder['positions']} positions; prompt "
        f"of {report['prompt_tokens']} tokens, empty negative; {report['threads']} threads; "
        f"median of {report['rounds']} (processor time: ratio {report['cpu_ratio']['ours']:.3f})",
        f"  bare CLIPTextModel      {medians['bare']:8.1f} ms",
        f"  ours, encode_prompt     {medians['ours']:8.1f} ms   ratio {ratio['ours']:.3f}   goal <= {GOAL:.2f}: "
        + ("met" if report["goal_met"] else "missed"),
        f"  pipe.encode_prompt      {medians['diffusers']:8.1f} ms   ratio {ratio['diffusers']:.3f}",
    ]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Measure, print, write the report; the exit code is 2 for a user's fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--embedded", action="store_true", help="the encoder that ships with the package")
    parser.add_argument("--width", type=int, default=768, help="width of the random encoder, a multiple of 64")
    parser.add_argument("--layers", type=int, default=12, help="layers of the random encoder")
    parser.add_argument("--rounds", type=int, default=21, help="calls of each way")
    parser.add_argument("--out", type=Path, help="JSON report to write")
    options = parser.parse_args(arguments)
    try:
        if options.rounds < 1 or options.layers < 1 or options.width < 64 or options.width % 64:
            raise ValueError("--rounds and --layers start at 1 and --width is a multiple of 64; correct them.")
        if options.embedded:
            pipe, prompt = load_debias_pipeline(), SHAPES_PROMPT
        else:
            pipe, prompt = random_pipeline(width=options.width, layers=options.layers), PROMPT
        report = measure(pipe, prompt, rounds=options.rounds)
        print(describe(report))
        if options.out is not None:
            write_atomically(options.out, (json.dumps(report, indent=1) + "\n").encode())
    except ValueError as error:
        print(f"benchmarks/encode.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
