"""Write the tables of configs and settings in docs/training.md: `python scripts/settings_table.py [--check]`.

Both come from `train_encoder`: the first comment of each YAML file, and `TrainConfig` with the help text of its fields.
`--check` writes nothing and ends with exit code 1 when the document is out of date.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # this checkout's settings, whatever is installed

from train_encoder.settings import CONFIGS, RECIPES, TrainConfig  # noqa: E402

DOCUMENT = ROOT / "docs" / "training.md"


def default_of(field: dataclasses.Field) -> str:
    """The field's default as a YAML file would say it; `by recipe` where each recipe has its own."""
    if field.name in RECIPES["debias"]:
        return "by recipe"
    if field.default is dataclasses.MISSING:
        return f"`{field.default_factory()}`"
    if field.default == "":
        return "must be set"
    return f"`{yaml.safe_dump(field.default).splitlines()[0]}`"


def settings_table() -> str:
    """One row a field of TrainConfig."""
    rows = ["| setting | default | meaning |", "|---|---|---|"]
    rows += [f"| `{f.name}` | {default_of(f)} | {f.metadata['help']} |" for f in dataclasses.fields(TrainConfig)]
    return "\n".join(rows)


def first_comment(text: str) -> str:
    """The comment lines that open a file, as one line."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return " ".join(lines)


def configs_table() -> str:
    """One row a YAML file: its opening comment and recipe."""
    rows = ["| config | what it is | recipe |", "|---|---|---|"]
    for path in sorted(CONFIGS.glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        rows.append(f"| `{path.name}` | {first_comment(text)} | {yaml.safe_load(text)['recipe']} |")
    return "\n".join(rows)


def with_tables(document: str) -> str:
    """`document` with both tables made anew; ValueError when it has lost the marks around one."""
    for name, table in (("configs", configs_table()), ("settings", settings_table())):
        start, end = f"<!-- {name}: written by scripts/settings_table.py -->\n", f"\n<!-- end of {name} -->"
        pattern = re.escape(start) + ".*?" + re.escape(end)
        if not re.search(pattern, document, re.DOTALL):
            raise ValueError(f"docs/training.md lacks the marks of its table of {name}; put them back from git.")
        whole = start + table + end
        document = re.sub(pattern, lambda _, whole=whole: whole, document, flags=re.DOTALL)
    return document


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say whether the document is up to date")
    options = parser.parse_args()
    now = DOCUMENT.read_text(encoding="utf-8")
    wanted = with_tables(now)
    if options.check and now != wanted:
        print("docs/training.md is out of date; run python scripts/settings_table.py.", file=sys.stderr)
        return 1
    if now != wanted:
        DOCUMENT.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
