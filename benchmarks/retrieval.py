"""Speed of retrieval: `python benchmarks/retrieval.py [--texts FILE] [--count 256] [--rounds 3] [--out FILE]`.

Two comparisons, each in turns in one process:

* texts: ours (sorted by length, cut at their end) against padding all of them to 248 by 16 in the order of the file,
  with the same weights and threads; goal: 2 times on DPG-Bench's prompts, never below 1;
* ranking: ours (counting, in blocks) against a full argsort of the same similarities, both directions; goal: 5 times.

`--flickr30k` also ranks a pool of that set's size (31,014 pictures, 155,070 captions, random features of 512 numbers)
in a process of its own and measures its time and its peak of memory, everything counted; goal: under 2 GB.

The encoder has the size of CLIP ViT-L/14's text tower and random weights: no download. The default texts are those of
../shared/data/dpg_prompts.jsonl, or random words of the same lengths where that file is not there.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from encode import POSITIONS, clip_tokenizer, take_turns
from transformers import CLIPConfig, CLIPModel

from debias_sd.measure.embedding import Embedder, FeatureCache
from debias_sd.measure.processes import Processes
from debias_sd.measure.ranks import retrieval_ranks
from debias_sd.measure.towers import ClipTowers
from debias_sd.preprocessing import CLIP_MEAN, CLIP_STD, Preprocessing
from debias_sd.report import installed_versions, write_atomically
from debias_sd.tokens import tokenize

BATCH = 16  # of the padded way
GOALS = {"texts": 2.0, "ranking": 5.0, "memory": 2.0}
FLICKR30K = 31_014
RANK_POOL = """
import sys, time
from pathlib import Path
import numpy as np
from debias_sd.measure.ranks import retrieval_ranks
count = int(sys.argv[1])
rng = np.random.default_rng(0)
images, captions = (rng.standard_normal((n, 512), np.float32) for n in (count, 5 * count))
started = time.perf_counter()
ranks = retrieval_ranks(images, captions, np.repeat(np.arange(count), 5))
assert (len(ranks.t2i), len(ranks.i2t)) == (5 * count, count)
seconds = time.perf_counter() - started
# Not ru_maxrss: it starts from what the process that started this one held.
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(seconds, int(peak.split()[1]) * 1024 / 1e9)
"""
TEXTS = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "dpg_prompts.jsonl"


def random_towers(*, width: int, layers: int) -> ClipTowers:
    """A dual encoder with `width` and `layers` of text, random weights and an image tower as small as can be."""
    torch.manual_seed(0)
    tokenizer = clip_tokenizer()
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 64,
        "max_position_embeddings": POSITIONS,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1}
    vision = sizes | {"image_size": 32, "patch_size": 32}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=width)).eval()
    preprocessing = Preprocessing(32, 32, 3, CLIP_MEAN, CLIP_STD, "none")
    return ClipTowers(model, tokenizer, Path("random"), preprocessing)


def read_texts(path: Path, count: int) -> tuple[list[str], str]:
    """The first `count` prompts of a file of JSON lines, or random words of such lengths; and where they come from."""
    if path.is_file():
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [row.get("prompt") or row["caption"] for row in rows][:count], path.name
    rng = random.Random(0)
    words = "red cat stone harbour light old green boat narrow silver morning tall glass quiet field behind".split()
    return [" ".join(rng.choices(words, k=rng.randint(20, 130))) for _ in range(count)], "random words"


def ours(towers: ClipTowers, texts: list[str]) -> np.ndarray:
    """What `debias-sd evaluate` does, without a cache from before."""
    return Embedder(towers, FeatureCache(None, ""), Processes()).texts(texts)


def padded(towers: ClipTowers, texts: list[str]) -> np.ndarray:
    """The same features as most evaluation scripts make them: 248 slots each, in the order of the file."""
    rows = []
    for start in range(0, len(texts), BATCH):
        ids = tokenize(towers.tokenizer, texts[start : start + BATCH], length=POSITIONS, pad_id=0)
        rows.append(torch.nn.functional.normalize(towers.text_features(ids), dim=-1).numpy())
    return np.concatenate(rows)


def argsorted(images: np.ndarray, captions: np.ndarray, owners: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ranks of both directions by sorting the whole matrix, as CLIP's evaluations often do (no ties here)."""
    similarity = captions @ images.T
    order = np.argsort(-similarity, axis=1)
    t2i = 1 + np.argmax(order == owners[:, None], axis=1)
    order = np.argsort(-similarity.T, axis=1)
    return t2i, 1 + np.argmax(owners[order] == np.arange(len(images))[:, None], axis=1)


def compare(ways: dict[str, Callable[[], object]], *, rounds: int, goal: float) -> dict[str, object]:
    """Ours and another way: seconds of each round, and how many times quicker ours is, by the medians."""
    seconds, _ = take_turns(ways, rounds=rounds)
    mine, other = (statistics.median(times) for times in seconds.values())
    return {"seconds": seconds, "times_quicker": other / mine, "goal": goal, "goal_met": other / mine >= goal}


def rank_pool(images: int = FLICKR30K) -> dict[str, object]:
    """Seconds and the peak of memory of ranking a pool with five captions a picture, in a process of its own."""
    command = [sys.executable, "-c", RANK_POOL, str(images)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, peak = map(float, done.stdout.split())
    return {
        "images": images,
        "captions": 5 * images,
        "features": 512,
        "seconds": seconds,
        "peak_gb": peak,
        "goal_gb": GOALS["memory"],
        "goal_met": peak < GOALS["memory"],
    }


def measure(towers: ClipTowers, texts: list[str], *, source: str, rounds: int, images: int) -> dict[str, object]:
    """The report; RuntimeError where the two ways do not give the same."""
    apart = np.abs(ours(towers, texts) - padded(towers, texts)).max()
    if apart > 1e-5:
        raise RuntimeError(f"ours and padded features are {apart:.1g} apart; their times cannot be compared.")
    rng = np.random.default_rng(0)
    pools = [rng.normal(size=(count, 128)).astype(np.float32) for count in (images, 5 * images)]
    owners = np.repeat(np.arange(images), 5)
    for one, other in zip(retrieval_ranks(*pools, owners), argsorted(*pools, owners), strict=True):
        # A product that is summed in another order can swap neighbours whose last bits differ.
        if np.abs(one - other).max() > 1 or (one != other).mean() > 0.01:
            raise RuntimeError("ours and the sort give other ranks; their times cannot be compared.")
    text_ways = {"ours": lambda: ours(towers, texts), "padded": lambda: padded(towers, texts)}
    rank_ways = {"ours": lambda: retrieval_ranks(*pools, owners), "argsort": lambda: argsorted(*pools, owners)}
    config = towers.model.config.text_config
    return {
        "kind": "speed of retrieval",
        "encoder": {"width": config.hidden_size, "layers": config.num_hidden_layers, "positions": POSITIONS},
        "texts": {"source": source, "count": len(texts), "largest_difference": float(apart)},
        "pool": {"images": images, "captions": 5 * images},
        "threads": torch.get_num_threads(),
        "comparisons": {
            "texts": compare(text_ways, rounds=rounds, goal=GOALS["texts"]),
            "ranking": compare(rank_ways, rounds=rounds, goal=GOALS["ranking"]),
        },
        "versions": installed_versions(),
    }


def describe(report: dict[str, object]) -> str:
    """The report in three or four lines."""
    encoder, texts, pool = report["encoder"], report["texts"], report["pool"]
    work = {
        "texts": f"{texts['count']} texts of {texts['source']}, {encoder['width']} wide, {encoder['layers']} layers",
        "ranking": f"ranks of {pool['images']:,} pictures and {pool['captions']:,} captions",
    }
    lines = [f"{report['threads']} threads"]
    for name, found in report["comparisons"].items():
        medians = {way: statistics.median(times) for way, times in found["seconds"].items()}
        spent = ", ".join(f"{way} {value:.2f} s" for way, value in medians.items())
        met = "met" if found["goal_met"] else "missed"
        lines.append(
            f"  {work[name]}: {spent}; {found['times_quicker']:.2f} times quicker, goal {found['goal']:.0f}: {met}"
        )
    if "flickr30k" in report:
        found = report["flickr30k"]
        met = "met" if found["goal_met"] else "missed"
        lines.append(
            f"  ranks of {found['images']:,} pictures and {found['captions']:,} captions: {found['seconds']:.0f} s, "
            f"peak {found['peak_gb']:.2f} GB, goal {found['goal_gb']:.0f} GB: {met}"
        )
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Measure, print, write the report; the exit code is 2 for a user's fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=Path, default=TEXTS, help="JSON lines with a prompt or a caption each")
    parser.add_argument("--count", type=int, default=256, help="how many texts")
    parser.add_argument("--images", type=int, default=3000, help="pictures of the ranking; five captions each")
    parser.add_argument("--rounds", type=int, default=3, help="calls of each way")
    parser.add_argument("--width", type=int, default=768, help="width of the random encoder, a multiple of 64")
    parser.add_argument("--layers", type=int, default=12, help="layers of the random encoder")
    parser.add_argument("--flickr30k", action="store_true", help="also rank a pool of its size: minutes")
    parser.add_argument("--out", type=Path, help="JSON report to write")
    options = parser.parse_args(arguments)
    try:
        counts = (options.count, options.images, options.rounds, options.layers)
        if min(counts) < 1 or options.width < 64 or options.width % 64:
            raise ValueError("the counts start at 1 and --width is a multiple of 64; correct them.")
        texts, source = read_texts(options.texts, options.count)
        towers = random_towers(width=options.width, layers=options.layers)
        report = measure(towers, texts, source=source, rounds=options.rounds, images=options.images)
        if options.flickr30k:
            report["flickr30k"] = rank_pool()
        print(describe(report))
        if options.out is not None:
            write_atomically(options.out, (json.dumps(report, indent=1) + "\n").encode())
    except ValueError as error:
        print(f"benchmarks/retrieval.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
