"""The prompts that README.md and docs/app.md tell a user to type are drawn by the shipped models."""

import re
import shlex
from pathlib import Path

import pytest

import app.client
from debias_sd.comparison import compare_encoders
from debias_sd.encoder import TextEncoder
from debias_sd.encoder_folder import WEIGHTS
from debias_sd.pipelines.load import load_debias_pipeline

ROOT = Path(__file__).parent.parent
TYPED = r'^(?:debias-sd (?:generate|compare)|python -m app\.client|    ")[^\n]*'
SEEDS, STEPS = (0, 3, 7), 25


def prompts_of(text: str) -> set[str]:
    """The quoted prompts of the commands and of the three lines of use in a text."""
    commands = [line for line in text.replace("\\\n", " ").splitlines() if re.match(TYPED, line)]
    words = [word for line in commands for word in shlex.split(line)]
    return {word for word in words if word.endswith(".") and " " in word} | set(re.findall(r'pipe\("([^"]+\.)"', text))


DOCUMENTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/app.md")}
DOCUMENTS["app/client.py"] = app.client.__doc__
PROMPTS = sorted(set().union(*map(prompts_of, DOCUMENTS.values())))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_document_has_prompts(document):
    assert prompts_of(DOCUMENTS[document])


@pytest.fixture(scope="module")
def base():
    if not (WEIGHTS / "stable-diffusion").is_dir():
        pytest.skip("debias_sd/weights is not made; run make weights")
    return load_debias_pipeline(None, "base")


@pytest.mark.slow  # draws nine pictures of 25 steps a prompt
@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_documented_prompt_is_drawn_by_every_shipped_encoder(base, prompt):
    """Case 142: of three seeds at most one picture lacks something, by each encoder, at the default guidance."""
    encoders = {name: TextEncoder.load(name) for name in ("base", "long-clip", "debias")}
    whole = dict.fromkeys(encoders, 0)
    for seed in SEEDS:
        comparison = compare_encoders(prompt, encoders, base=base, seed=seed, steps=STEPS)
        assert all(sentence.things for sentence in comparison.sentences), "a sentence that names no shape in a place"
        for panel in comparison.panels:
            drawn, judged = comparison.total(panel)
            whole[panel.name] += drawn == judged > 0
    assert all(count >= len(SEEDS) - 1 for count in whole.values()), whole
