"""Put the app into a folder that is a Space of the Hugging Face hub as it stands: `python scripts/space.py FOLDER`.

The folder holds the app, the library with its models, the report behind the first screen's numbers, a README with the
hub's header and the requirements of pyproject.toml. Push it to a Space's repository, or start it with `python app.py`.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("app", "debias_sd")
FILES = ("results/sentences/guidance-2.json", "LICENSE")


def make_space(folder: Path) -> None:
    """Write the Space; ValueError when there is something in `folder`."""
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"folder {folder} is not empty; name a new one.")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    shutil.copy(ROOT / "space/app.py", folder / "app.py")
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE))
    readme = (ROOT / "space/README.md").read_text(encoding="utf-8")
    (folder / "README.md").write_text(readme.replace("SDK_VERSION", pins["gradio"]), encoding="utf-8")
    (folder / "requirements.txt").write_text("".join(f"{line}\n" for line in requirements()), encoding="utf-8")


def requirements() -> list[str]:
    """What the app needs; gradio itself comes with the hub's `sdk_version`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["app"]]
    return [line for line in needed if not line.startswith("gradio")]


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 2 with one sentence for a folder that is not empty."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    try:
        make_space(parser.parse_args(argv).folder)
    except ValueError as error:
        print(f"space: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
