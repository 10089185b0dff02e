"""clip_benchmark on an encoder folder: `python scripts/run_clip_benchmark.py eval --model FOLDER ...`.

    pip install clip-benchmark
    python scripts/run_clip_benchmark.py eval --model_type debias_sd --model runs/debias --pretrained "" \\
        --dataset mscoco_captions --dataset_root data/coco --task zeroshot_retrieval --output coco.json

All arguments are clip_benchmark's own; the folder is its `--model`. Its retrieval counts ties for the model, ours
(`debias-sd evaluate retrieval`) against it.
"""

from __future__ import annotations

import sys


def main() -> int:
    try:
        from clip_benchmark import cli, models
    except ImportError as error:  # clip_benchmark itself, or one of the packages that it does not bring along
        name = (error.name or "clip_benchmark").split(".")[0].replace("_", "-")
        print(f"run_clip_benchmark: {name} is not installed; pip install {name}.", file=sys.stderr)
        return 2
    from debias_sd.measure.retrieval.clip_benchmark import load_folder  # takes seconds: what is missing is told before

    models.TYPE2FUNC["debias_sd"] = load_folder
    models.MODEL_TYPES.append("debias_sd")
    cli.main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
