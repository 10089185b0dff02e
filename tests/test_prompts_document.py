"""What docs/prompts.md shows works: its python blocks print what their comments say, its commands run."""

import ast
import re
import shlex
from pathlib import Path

import pytest
from tiny import CLIP_END, clip_tokenizer, save_clip_model, tiny_sd_pipeline, tiny_text_encoder

from debias_sd import TextEncoder, cli
from debias_sd.encoder_folder import EMBEDDED, WEIGHTS

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "prompts.md").read_text(encoding="utf-8")
COMMANDS = "".join(re.findall(r"^```bash\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)).splitlines()
EMBEDDED_MISSING = not all((WEIGHTS / name).is_dir() for name in EMBEDDED)


def test_python_blocks_print_what_they_say(tmp_path, capsys):
    blocks = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    code = "\n".join(blocks)
    expected = re.findall(r"^print\(.*\)(?:  +|\n)# (.*)$", code, re.MULTILINE)
    assert len(expected) == code.count("print(") > 6
    base = tiny_sd_pipeline(eos_token_id=CLIP_END)  # the numbers on that page are those of CLIP's vocabulary
    base.register_modules(tokenizer=clip_tokenizer())
    base.save_pretrained(tmp_path / "base")
    TextEncoder(tiny_text_encoder(eos_token_id=CLIP_END), clip_tokenizer(248)).save(tmp_path / "encoder")
    places = f"load_debias_pipeline({str(tmp_path / 'base')!r}, {str(tmp_path / 'encoder')!r})"
    assert code.count("load_debias_pipeline()") == 1
    code = code.replace("load_debias_pipeline()", f"{places}; pipe.set_progress_bar_config(disable=True)")
    stock = f"load_debias_pipeline({str(tmp_path / 'base')!r}, 'base')"
    code = code.replace('load_debias_pipeline(None, "base")', f"{stock}; stock.set_progress_bar_config(disable=True)")
    capsys.readouterr()
    exec(compile(ast.parse(code), "docs/prompts.md", "exec"), {})
    said = capsys.readouterr().out.splitlines()
    assert said == expected


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs(command, tmp_path, monkeypatch, capsys):
    program, *arguments = shlex.split(command)
    assert program == "debias-sd"
    if EMBEDDED_MISSING and not {"--encoder", "--base"} & set(arguments):
        pytest.skip("debias_sd/weights is not made; run make weights")
    monkeypatch.chdir(tmp_path)
    Path("prompt.txt").write_text("A red cube.", encoding="utf-8")
    save_clip_model(Path("path/to/encoder"))
    tiny_sd_pipeline().save_pretrained("path/to/pipeline")
    capsys.readouterr()
    assert cli.main(arguments) == 0
    assert "tokens" in capsys.readouterr().out
