"""The commands of docs/which-way.md run, in a few steps, in the order in which they stand there; its numbers hold."""

import re
import shlex
from pathlib import Path

import pytest
from tiny_pipelines import FAMILIES

from debias_sd import TextEncoder, cli, load_debias_pipeline
from debias_sd.encoder_folder import EMBEDDED, WEIGHTS
from tests.test_lengthen import texts_of

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "which-way.md").read_text(encoding="utf-8")
COMMANDS = "".join(re.findall(r"^```bash\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)).splitlines()


@pytest.mark.skipif(not all((WEIGHTS / name).is_dir() for name in EMBEDDED), reason="make weights has not been run")
def test_its_commands_run_in_their_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    FAMILIES["sdxl"]().save_pretrained("path/to/sdxl")
    Path("prompts.txt").write_text("\n".join(texts_of(12)))
    assert [shlex.split(command)[1] for command in COMMANDS] == ["lengthen", "generate", "lengthen"]
    for command in COMMANDS:
        few = ["--steps", "2", "--batch", "4"] if " lengthen " in command else []
        assert cli.main([*shlex.split(command)[1:], *few]) == 0
    assert TextEncoder.load("runs/lengthened").known_words  # those of the embedded base
    assert Path("star.png").is_file()
    pipe = load_debias_pipeline("path/to/sdxl", "long")
    assert {pipe.text_encoder.config.debias_sd_origin, pipe.text_encoder_2.config.debias_sd_origin} == {"given"}


def test_links_lead_to_files():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", TEXT):
        assert (ROOT / "docs" / target).exists(), target
