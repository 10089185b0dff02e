"""What docs/prompts.md shows works: its python blocks print what their comments say, its commands run."""

import ast
import re
import shlex
from pathlib import Path

import pytest
from tiny import CLIP_END, clip_tokenizer, save_clip_model, tiny_sd_pipeline, tiny_text_encoder

from debias_sd import TextEncoder, cli
from debias_sd.encoder_folder import EMBEDDED, WEIGHTS
from debias_sd.report import Report

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "prompts.md").read_text(encoding="utf-8")
COMMANDS = "".join(re.findall(r"^```bash\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)).splitlines()
SENTENCE_ROWS = {
    "base-chunked": "chunked, windows of 77",
    "base-by-sentence": "**by sentences**",
    "lengthened": "**lengthened on text alone**",
    "base-longalign": "LongAlign's layout, without its UNet",
    "long-clip": "Long-CLIP's recipe, as it ships",
    "debias": "DeBias-CLIP's recipe, as it ships",
}
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


@pytest.mark.parametrize("path", sorted((ROOT / "results" / "sentences").glob("*.json")), ids=lambda path: path.stem)
def test_the_table_of_sentences_is_that_of_its_reports(path):
    report = Report.read(path)
    place = ("2.0", "5.0", "7.5").index(str(report.settings["guidance"])) + 1
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in TEXT.splitlines() if line.startswith("| ")]
    table = {row[0]: row for row in rows if len(row) == 6}
    for name, title in SENTENCE_ROWS.items():
        scores = report.encoders[name]["judges"]["checker"]
        low, high = scores["late_detail_interval"]
        assert table[title][place] == f"{scores['late_detail']:.1f} ({low:.1f} to {high:.1f})"
        assert table[title][4].split(", ")[place - 1] == f"{scores['summary']:.1f}"
        assert table[title][5].split(", ")[place - 1] == f"{scores['background']['drawn_percent']:.1f}"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"\| ([\d.]+) / ([\d.]+) / ([\d.]+) \| ([\d.]+) / ([\d.]+) / ([\d.]+) \|$", readme, re.MULTILINE)
    assert len(shown) == 4
    for name, row in zip(("base-by-sentence", "lengthened", "base-chunked", "debias"), shown, strict=True):
        scores = report.encoders[name]["judges"]["checker"]
        assert row[place - 1] == f"{scores['late_detail']:.1f}"
        assert row[place + 2] == f"{scores['background']['drawn_percent']:.1f}"


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
