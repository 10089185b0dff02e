"""Lengthening against the whole DeBias step: `python benchmarks/lengthen.py [--batch 16] [--width 512] [--out FILE]`.

Both at the same text width with the same captions, in turns in one process, forward and backward: the trainer's whole
step of the debias recipe (`clip_step.py`, image tower included), the lengthening step, and its floor, which is the
student's forward and backward with the target's forward and nothing else. Goals: 4 times the pairs a second of the
whole step at ViT-B/16's size, 0.85 of the floor. Processor time, which does not see what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

import torch
from transformers import CLIPTextConfig, CLIPTextModel

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # this checkout's trainer, whatever is installed

from benchmarks.clip_step import Size, make_batch, make_model, make_step, read_texts  # noqa: E402
from benchmarks.encode import clip_tokenizer, take_turns  # noqa: E402
from benchmarks.train_step import SMALL, TEXTS  # noqa: E402
from debias_sd.encoder import TextEncoder  # noqa: E402
from debias_sd.pipelines.families import Slot  # noqa: E402
from debias_sd.report import installed_versions, write_atomically  # noqa: E402
from train_encoder.data.texts import TextCollator  # noqa: E402
from train_encoder.hold import Hold  # noqa: E402
from train_encoder.model.text_tower import TextTower  # noqa: E402

SLOT = Slot("text_encoder", "tokenizer", "clip", "last", None)  # Stable Diffusion 1.x
GOALS = {"against_whole_step": 4.0, "share_of_floor": 0.85}


def make_encoder(size: Size) -> TextEncoder:
    """A random text encoder of 77 positions and that width, with CLIP's tokenizer; heads of 64, as CLIP has them."""
    torch.manual_seed(0)
    tokenizer = clip_tokenizer()
    tokenizer.model_max_length = 77
    config = CLIPTextConfig(
        hidden_size=size.text_width, intermediate_size=4 * size.text_width, num_hidden_layers=size.text_layers,
        num_attention_heads=size.text_width // 64, vocab_size=len(tokenizer), max_position_embeddings=77,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, hidden_act="quick_gelu",
    )  # fmt: skip
    model = CLIPTextModel(config)
    model.set_attn_implementation("sdpa")
    return TextEncoder(model, tokenizer)


def measure(options: argparse.Namespace) -> dict[str, object]:
    """The whole report."""
    size = SMALL if options.small else Size(text_width=options.width)
    tokenizer = clip_tokenizer()
    texts = read_texts(options.texts, tokenizer, count=options.batch)
    whole = make_step("ours", make_model(size, tokenizer, attention="eager"), make_batch(texts, tokenizer, size), size)
    encoder = make_encoder(size)
    student, hold = TextTower(encoder.stretch(), SLOT), Hold(encoder, encoder.stretch(), SLOT)
    items = [{"number": number, "key": number, "text": text} for number, text in enumerate(texts)]
    batch = TextCollator(encoder.tokenizer, 77, 248)(items)

    def whole_step() -> None:
        whole.module.zero_grad(set_to_none=True)
        whole.loss().backward()

    def lengthening() -> None:
        student.zero_grad(set_to_none=True)
        hold.loss(batch, student(batch)).backward()

    def floor() -> None:
        student.zero_grad(set_to_none=True)
        hold.target(batch)
        student(batch)["states"].sum().backward()

    wall, cpu = take_turns({"whole": whole_step, "lengthen": lengthening, "floor": floor}, rounds=options.rounds)
    medians = {name: statistics.median(times) for name, times in cpu.items()}
    return {
        "kind": "speed of lengthening",
        "size": vars(size),
        "pairs": options.batch,
        "mean_tokens": float(batch["lengths"].float().mean()),
        "rows_of_the_target": sum(map(len, batch["rows"])),
        "threads": torch.get_num_threads(),
        "rounds": options.rounds,
        "texts_per_second": {name: options.batch / statistics.median(times) for name, times in wall.items()},
        "processor_time": {
            "against_whole_step": medians["whole"] / medians["lengthen"],
            "share_of_floor": medians["floor"] / medians["lengthen"],
        },
        "goals": GOALS,
        "cpu_seconds": cpu,
        "versions": installed_versions(),
    }


def describe(report: dict[str, object]) -> str:
    """The report in two lines."""
    found = report["processor_time"]
    goals = (f"{k} {found[k]:.2f} of {v:.2f} {'met' if found[k] >= v else 'missed'}" for k, v in GOALS.items())
    return (
        f"{report['pairs']} captions of {report['mean_tokens']:.0f} tokens at width {report['size']['text_width']}, "
        f"{report['threads']} threads, median of {report['rounds']}, processor time\n  goals: {', '.join(goals)}"
    )


def main(arguments: list[str]) -> int:
    """Measure, print, write the report; the exit code is 2 for a user's fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=16, help="captions")
    parser.add_argument("--width", type=int, default=512, help="of the text encoder: ViT-B/16's, 768 is ViT-L/14's")
    parser.add_argument("--rounds", type=int, default=5, help="steps of each")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--texts", type=Path, default=TEXTS, help="JSON lines with a caption each")
    parser.add_argument("--small", action="store_true", help="a toy's size, to try the script")
    parser.add_argument("--out", type=Path, help="JSON report to write")
    options = parser.parse_args(arguments)
    try:
        if min(options.batch - 1, options.rounds, options.threads) < 1 or options.width % 64:
            raise ValueError("--batch must be at least 2, --rounds and --threads at least 1, --width a multiple of 64.")
        torch.set_num_threads(options.threads)
        report = measure(options)
        print(describe(report))
        if options.out is not None:
            write_atomically(options.out, (json.dumps(report, indent=1) + "\n").encode())
    except ValueError as error:
        print(f"benchmarks/lengthen.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
