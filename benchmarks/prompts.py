"""Speed of `encode_prompt` on real prompts, side by side: `python benchmarks/prompts.py [--prompts 500] [--out FILE]`.

Ways from texts to states, with an empty negative prompt each, in one process with the same weights, in turns:

* ours: `encode_prompt(pipe, prompts)`;
* diffusers: `pipe.encode_prompt(...)`, on the prompts that fit into one window of 248 (it cuts the others);
* compel: `Compel(..., truncate_long_prompts=False)`, on all of them, where it is installed;
* sentences and chunked: `encode_prompt(window="sentence")` and `window=77`, on the prompts of more than 77 tokens, by a
  pipeline of 77.

One by one, then by 16. Goals, of total times: ours / diffusers <= 1.05, ours / compel <= 1, sentences / chunked <= 1.2.
The texts are those of `--texts`, by default ../shared/data; without that folder they are made of random words. The
encoder has the size of CLIP ViT-L/14's text tower with 248 positions and random weights: no download.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

import torch
from diffusers import DiffusionPipeline
from encode import random_pipeline, take_turns

from debias_sd.prompts.batch import SHORT
from debias_sd.prompts.conditioning import encode_prompt
from debias_sd.report import installed_versions, write_atomically
from debias_sd.tokens import copy_tokenizer

GOALS = {"diffusers": 1.05, "compel": 1.0, "chunked": 1.2}
BATCHES = (1, 16)
TEXTS = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
WORDS = (
    "red cat stone harbour light old green boat narrow silver morning tall, glass. quiet, field. behind beneath".split()
)

Way = Callable[[list[str]], list[torch.Tensor]]


def real_prompts(folder: Path, count: int) -> tuple[list[str], str]:
    """Return `count` texts drawn from the JSON lines in `folder`, or made ones, and where they come from."""
    rng = random.Random(0)
    texts = [
        text
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
        for key, text in json.loads(line).items()
        if key in ("prompt", "caption")
    ]
    if not texts:
        made = [" ".join(rng.choices(WORDS, k=round(rng.lognormvariate(4.6, 0.8)) + 5)) for _ in range(count)]
        return made, "random words"
    rng.shuffle(texts)
    return texts[:count], folder.name


def ways_to_encode(pipe: DiffusionPipeline) -> dict[str, Way]:
    """Return the ways by name; compel only where it is installed."""
    device = pipe.text_encoder.device

    def ours(prompts: list[str]) -> list[torch.Tensor]:
        return list(encode_prompt(pipe, prompts).values())

    @torch.no_grad()
    def diffusers(prompts: list[str]) -> list[torch.Tensor]:
        return list(pipe.encode_prompt(prompts, device, 1, True))

    short = copy.copy(pipe)
    short.register_modules(tokenizer=copy_tokenizer(pipe.tokenizer))
    short.tokenizer.model_max_length = SHORT

    def by_sentence(prompts: list[str]) -> list[torch.Tensor]:
        return list(encode_prompt(short, prompts, window="sentence").values())

    def chunked(prompts: list[str]) -> list[torch.Tensor]:
        return list(encode_prompt(short, prompts).values())

    ways = {"ours": ours, "diffusers": diffusers, "sentences": by_sentence, "chunked": chunked}
    if importlib.util.find_spec("compel"):
        from compel import Compel

        reader = Compel(tokenizer=pipe.tokenizer, text_encoder=pipe.text_encoder, truncate_long_prompts=False)

        def compel(prompts: list[str]) -> list[torch.Tensor]:
            return reader.pad_conditioning_tensors_to_same_length([reader(prompts), reader([""] * len(prompts))])

        ways["compel"] = compel
    return ways


def check_equal(ways: dict[str, Way], prompt: str) -> None:
    """Raise RuntimeError unless all ways give the same states for a prompt that fits; warms all of them up."""
    wanted = ways["diffusers"]([prompt])
    for name, way in ways.items():
        if name in ("sentences", "chunked"):  # other states by design
            way([prompt])
            continue
        if not all(torch.equal(one, other) for one, other in zip(wanted, way([prompt]), strict=True)):
            raise RuntimeError(f"{name} gives other states than diffusers; their times cannot be compared.")


def compare(ways: dict[str, Way], own: str, other: str, prompts: Sequence[str], *, batch: int) -> dict[str, object]:
    """Return the totals of `own` and `other` on the same prompts, and their ratio."""
    batches = [list(prompts[start : start + batch]) for start in range(0, len(prompts), batch)]
    works = {name: map(ways[name], batches) for name in (own, other)}
    times = take_turns({name: work.__next__ for name, work in works.items()}, rounds=len(batches))
    totals = {name: {"seconds": sum(times[0][name]), "cpu_seconds": sum(times[1][name])} for name in works}
    ratio = totals[own]["seconds"] / totals[other]["seconds"]
    return {
        "own": own,
        "other": other,
        "batch": batch,
        "prompts": len(prompts),
        "totals": totals,
        "ratio": ratio,
        "cpu_ratio": totals[own]["cpu_seconds"] / totals[other]["cpu_seconds"],
        "goal": GOALS[other],
        "goal_met": ratio <= GOALS[other],
    }


def measure(pipe: DiffusionPipeline, prompts: Sequence[str], *, source: str) -> dict[str, object]:
    """Return the report: every comparison, with what was compared."""
    window = pipe.tokenizer.model_max_length
    tokens = [len(pipe.tokenizer(text, verbose=False).input_ids) for text in prompts]
    fitting = [text for text, count in zip(prompts, tokens, strict=True) if count <= window]
    ways = ways_to_encode(pipe)
    if not fitting:
        raise ValueError(f"none of the {len(prompts)} prompts fits into {window} tokens; take more with --prompts.")
    check_equal(ways, fitting[0])
    pairs = [("ours", "diffusers", fitting)] + ([("ours", "compel", prompts)] if "compel" in ways else [])
    long = [text for text, count in zip(prompts, tokens, strict=True) if count > SHORT]
    pairs += [("sentences", "chunked", long)] if long else []
    config = pipe.text_encoder.config
    return {
        "kind": "speed of encode_prompt on real prompts",
        "encoder": {"width": config.hidden_size, "layers": config.num_hidden_layers, "positions": window},
        "source": source,
        "tokens": {
            "median": statistics.median(tokens),
            "longest": max(tokens),
            "past_one_window": sum(count > window for count in tokens),
        },
        "threads": torch.get_num_threads(),
        "comparisons": [
            compare(ways, own, other, texts, batch=batch) for own, other, texts in pairs for batch in BATCHES
        ],
        "versions": installed_versions() | ({"compel": metadata.version("compel")} if "compel" in ways else {}),
    }


def describe(report: dict[str, object]) -> str:
    """The report in a few lines."""
    encoder, tokens = report["encoder"], report["tokens"]
    lines = [
        f"text encoder {encoder['width']} wide, {encoder['layers']} layers, {encoder['positions']} positions; prompts "
        f"of {report['source']}, median {tokens['median']:.0f} and at most {tokens['longest']} tokens; "
        f"{report['threads']} threads"
    ]
    for one in report["comparisons"]:
        per = {name: 1000 * total["seconds"] / one["prompts"] for name, total in one["totals"].items()}
        lines.append(
            f"  {one['prompts']} prompts by {one['batch']:2}: {one['own']} {per[one['own']]:7.1f} ms a prompt, "
            f"{one['other']} {per[one['other']]:7.1f} ms   ratio {one['ratio']:.3f} "
            f"(processor {one['cpu_ratio']:.3f})   goal <= {one['goal']:.2f}: {'met' if one['goal_met'] else 'missed'}"
        )
    if "compel" not in report["versions"]:
        lines.append("  compel is not installed and was not compared: pip install compel")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Measure, print, write the report; the exit code is 2 for a user's fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=500, help="how many texts")
    parser.add_argument("--texts", type=Path, default=TEXTS, help="a folder of JSON lines with a prompt or a caption")
    parser.add_argument("--width", type=int, default=768, help="width of the random encoder, a multiple of 64")
    parser.add_argument("--layers", type=int, default=12, help="layers of the random encoder")
    parser.add_argument("--out", type=Path, help="JSON report to write")
    options = parser.parse_args(arguments)
    try:
        if options.prompts < 1 or options.layers < 1 or options.width < 64 or options.width % 64:
            raise ValueError("--prompts and --layers start at 1 and --width is a multiple of 64; correct them.")
        prompts, source = real_prompts(options.texts, options.prompts)
        report = measure(random_pipeline(width=options.width, layers=options.layers), prompts, source=source)
        print(describe(report))
        if options.out is not None:
            write_atomically(options.out, (json.dumps(report, indent=1) + "\n").encode())
    except ValueError as error:
        print(f"benchmarks/prompts.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
