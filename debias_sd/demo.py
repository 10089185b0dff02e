"""`python -m debias_sd.demo`: one long prompt, three text encoders, the same seed; a table and demo.png.

The prompt is the first held-out scene of a fixed seed, not a chosen one. `debias-sd compare` does the same for any
prompt.
"""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path

from debias_sd.commands.terminal import open_terminal, quiet_loading, refuse, say

PROMPT_SEED, NOISE_SEED = 0, 0
OUT = Path("demo.png")
ENCODERS = ("base", "long-clip", "debias")


def demo_prompt() -> str:
    """The first held-out long caption of PROMPT_SEED."""
    from debias_sd.datasets.world import prompt_set

    return prompt_set(PROMPT_SEED, count=1).captions[0].text


def make_demo(out: Path) -> str:
    """Draw, write the picture, return the table."""
    from tqdm import tqdm

    from debias_sd.comparison import compare_encoders, table_of
    from debias_sd.encoder import TextEncoder
    from debias_sd.panels import draw_panels
    from debias_sd.pipelines.load import hide_loading_bars, load_debias_pipeline
    from debias_sd.report import write_atomically

    quiet_loading()
    hide_loading_bars()
    with tqdm(total=len(ENCODERS) + 1, desc="loading the models", unit="step", leave=False) as bar:
        base = load_debias_pipeline(None, "base")
        encoders = {name: TextEncoder.load(name) for name in ENCODERS}

        def drawing(name: str) -> None:
            bar.set_description(f"drawing with {name}")
            bar.update()

        comparison = compare_encoders(demo_prompt(), encoders, base=base, seed=NOISE_SEED, progress=drawing)
    content = io.BytesIO()
    draw_panels(comparison).save(content, format="PNG")
    write_atomically(out, content.getvalue())
    return table_of(comparison)


def main() -> int:
    """Run the demo; exit code 2 and one sentence when the models are not there or nothing can be written."""
    open_terminal()
    started = time.perf_counter()
    say("One long prompt, one seed, three text encoders. Which sentences are in the picture?\n")
    try:
        table = make_demo(OUT)
    except ValueError as error:
        return refuse(str(error), program="demo")
    say(table)
    say(f"\n{OUT.resolve()} shows the three pictures ({time.perf_counter() - started:.0f} s). How to go on:")
    say('  your own prompt   .venv/bin/debias-sd compare "A large blue ring is in the center." --out mine.png')
    say('  one picture       .venv/bin/debias-sd generate "A large blue ring is in the center." --out ring.png')
    say("  measured results  docs/results.md; real models and training: README.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
