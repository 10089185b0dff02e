"""The published type hints: what the README and the guides show passes a type checker."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCKS = [
    block
    for document in ("README.md", "docs/prompts.md", "docs/pipelines.md")
    for block in re.findall(r"^```python\n(.*?)^```", (ROOT / document).read_text(encoding="utf-8"), re.M | re.S)
]
GIVEN = """
import torch
from debias_sd import TextEncoder, count_tokens, encode_prompt, load_debias_pipeline, with_text_encoder
prompt = very_long_prompt = short = long = "a cat"
pipe = base = load_debias_pipeline()
encoder = TextEncoder.load("base")
"""
# An error each: a checker that accepts everything would prove nothing.
WRONG = {
    'count_tokens(encoder, "a")["text_encoder"]': "index",
    'encode_prompt(pipe, "a")["prompt_embed"]': "typeddict-item",
    'encode_prompt(pipe, "a", window=1.5)': "arg-type",
    'encode_prompt(pipe, "a")["prompt_embeds"].shap': "attr-defined",
}


@pytest.mark.slow  # minutes: the checker reads all of torch and transformers
@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_what_the_documents_show_passes_a_type_checker(tmp_path):
    """Case 124."""
    assert len(BLOCKS) >= 6
    for number, block in enumerate(BLOCKS):
        own = "" if "import" in block and "load_debias_pipeline(" in block else GIVEN
        (tmp_path / f"block_{number}.py").write_text(
            f"{GIVEN}{block}" if own else f'prompt = very_long_prompt = "a"\n{block}'
        )
    (tmp_path / "wrong.py").write_text(GIVEN + "\n".join(WRONG))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert [re.search(r"\[([\w-]+)\]$", line)[1] for line in said if "wrong.py" in line] == list(WRONG.values())
    assert [line for line in said if "wrong.py" not in line] == []
