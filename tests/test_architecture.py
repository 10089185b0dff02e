"""The tree and the arrows of docs/architecture.md, held by the code's own files and imports.

The document is the one source: its tree names the modules, and the blank lines in it part the library into groups, of
which each may import only those above. Each rule has a planted violation below that it must find.
"""

import ast
import graphlib
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("debias_sd", "train_encoder", "train_unet", "app")
LEAVES = PACKAGES[1:]
# Where a heavy dependency may be imported: folders end in "/".
HOMES = {
    "accelerate": ("train_encoder/",),
    "gradio": ("app/",),
    "diffusers": (
        "debias_sd/pipelines/single_file.py", "debias_sd/pipelines/base.py", "debias_sd/pipelines/load.py",
        "debias_sd/prompts/conditioning.py", "train_unet/",
    ),
}  # fmt: skip
HEAVY = ("torch", "transformers", "diffusers", "accelerate", "gradio")
GRAB_BAGS = {"utils.py", "util.py", "common.py", "helpers.py", "misc.py"}
MAX_LINES = 300


def tree_groups(document: str) -> dict[str, int]:
    """Return every file and folder of the document's tree, as "debias_sd/shapes/scene.py", with its group's number."""
    tree = re.search(r"^```\n(debias_sd/.*?)^```", document, re.MULTILINE | re.DOTALL)
    assert tree is not None, "docs/architecture.md has no tree that starts with debias_sd/"
    entries: dict[str, int] = {}
    folders: list[str] = []
    group = 0
    for line in tree[1].splitlines():
        if not line.strip():
            group += 1
            continue
        depth = (len(line) - len(line.lstrip(" "))) // 2
        for name in itertools.takewhile(lambda word: word.endswith((".py", "/")), line.split()):
            folders = [*folders[:depth], name]
            path = "".join(folders)
            assert path not in entries, f"docs/architecture.md: its tree names {path} twice"
            entries[path] = group
    return entries


def modules_of(root: Path) -> list[str]:
    """Return the packages' Python files below `root` as posix paths."""
    return sorted(path.relative_to(root).as_posix() for package in PACKAGES for path in (root / package).rglob("*.py"))


def imports_of(path: Path, module: str) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of every import, inside functions too; `from a import b` gives "a.b"."""
    package = module.removesuffix(".py").split("/")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def package_fault(module: str, name: str) -> str | None:
    """Say what is wrong when `module` imports the dotted `name` from outside the library, or None."""
    here, top = module.split("/")[0], name.split(".")[0]
    if top in LEAVES and top != here:
        return f"imports {name}: only {top}/ may"
    if top in HOMES and not module.startswith(HOMES[top]):
        return f"imports {top}: only {' and '.join(HOMES[top])} may"
    if top == "torch" and module.startswith("debias_sd/shapes/"):
        return "imports torch: debias_sd/shapes/ must draw and check without it"
    return None


def group_fault(module: str, name: str, groups: dict[str, int]) -> str | None:
    """Say what is wrong when the library's `module` imports the library's dotted `name`, or None."""
    parts, here = name.split("."), module.removesuffix("__init__.py")
    if parts[0] != "debias_sd" or here == "debias_sd/" or here not in groups:  # the package's face names everything
        return None
    entry = "debias_sd/" + parts[1] if len(parts) > 1 else ""
    target = next((found for found in (entry + ".py", entry + "/") if found in groups), None)
    last = max(group for path, group in groups.items() if path.startswith("debias_sd/"))
    if target is None:
        public = len(parts) == 2 and not parts[1].startswith("__")
        return f"imports {name} through the package: name its module" if public and groups[here] < last else None
    same_folder = target.endswith("/") and module.startswith(target)
    if groups[target] >= groups[here] and target != module and not same_folder:
        return f"imports {target}, which is not in a group above it"
    return None


def arrow_faults(root: Path, groups: dict[str, int]) -> list[str]:
    """Return one sentence for every import below `root` that goes against an arrow."""
    faults = []
    for module in modules_of(root):
        for line, name in imports_of(root / module, module):
            fault = package_fault(module, name)
            if fault is None and module.startswith("debias_sd/"):
                fault = group_fault(module, name, groups)
            if fault is not None:
                faults.append(f"{module}:{line} {fault}")
    return list(dict.fromkeys(faults))


def circle_of(root: Path, package: str) -> list[str]:
    """Return a circle of imports in `package`, those for type checking and inside functions too; empty without one."""
    modules = [module for module in modules_of(root) if re.match(rf"{package}/(?!.*__init__)", module)]
    names = {module[:-3].replace("/", "."): module for module in modules}
    arrows = {}
    for module in names.values():
        found = [name for _, name in imports_of(root / module, module)]
        arrows[module] = {names[n] for name in found for n in (name, name.rpartition(".")[0]) if n in names} - {module}
    try:
        graphlib.TopologicalSorter(arrows).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def file_faults(root: Path) -> list[str]:
    """Return one sentence for every Python file below `root` that is a grab-bag or too long."""
    faults = []
    for folder in (*PACKAGES, "tests", "scripts", "benchmarks"):
        for path in sorted((root / folder).rglob("*.py")):
            name, lines = path.relative_to(root).as_posix(), len(path.read_text(encoding="utf-8").splitlines())
            if path.name in GRAB_BAGS:
                faults.append(f"{name}: a file is one noun; give its parts to the modules that they are about")
            if lines > MAX_LINES:
                faults.append(f"{name}: {lines} lines, at most {MAX_LINES}; split it")
    return faults


def tree_faults(root: Path, groups: dict[str, int]) -> list[str]:
    """Return one sentence for every module without a line in the tree, and every line without its file or folder."""
    real = [module for module in modules_of(root) if not module.endswith("/__init__.py")]
    missing = [f"docs/architecture.md: its tree lacks {module}" for module in real if module not in groups]
    stale = [
        f"docs/architecture.md: its tree names {name}, which is not there"
        for name in groups
        if not (root / name).exists()
    ]
    return missing + stale


def loaded_by(statement: str) -> set[str]:
    """Return which heavy packages a fresh interpreter has loaded after `statement`."""
    code = f"import sys\n{statement}\nprint(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.fixture(scope="module")
def groups() -> dict[str, int]:
    return tree_groups((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))


def test_the_tree_is_the_real_tree_of_readable_files_and_imports_follow_the_arrows(groups):
    assert arrow_faults(ROOT, groups) == []
    assert tree_faults(ROOT, groups) == []
    assert file_faults(ROOT) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_imports_itself_over_others(package):
    assert circle_of(ROOT, package) == []


def test_a_planted_circle_is_found(tmp_path):
    write(tmp_path, "train_encoder/a.py", "def f():\n    from train_encoder.data import b")
    write(tmp_path, "train_encoder/data/b.py", "from train_encoder.c import X\nimport train_encoder.d")
    write(tmp_path, "train_encoder/c.py", "if True:\n    from train_encoder import a")
    write(tmp_path, "train_encoder/d.py", "import torch")
    assert set(circle_of(tmp_path, "train_encoder")) == {f"train_encoder/{n}.py" for n in ("a", "c", "data/b")}


def test_importing_the_library_and_settings_loads_nothing_heavy():
    light = ("debias_sd", *(f"debias_sd.shapes.{name}" for name in ("scene", "render")))
    assert loaded_by(f"import {', '.join(light)}, train_encoder.settings") == set()
    assert loaded_by("import torch") == {"torch"}


DOCUMENT = """
```
debias_sd/             the library
  positions.py         first group

  shapes/              second group
    scene.py           what is where
    check.py           is it there
  encoder.py

  pipelines/           third group
    load.py            which is another

  cli.py               last group
train_encoder/
  train.py
train_unet/
  train.py
```
"""


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_the_groups_come_from_the_blank_lines_and_a_file_named_twice_is_found():
    assert tree_groups(DOCUMENT) == {
        "debias_sd/": 0, "debias_sd/positions.py": 0,
        "debias_sd/shapes/": 1, "debias_sd/shapes/scene.py": 1, "debias_sd/shapes/check.py": 1,
        "debias_sd/encoder.py": 1, "debias_sd/pipelines/": 2, "debias_sd/pipelines/load.py": 2, "debias_sd/cli.py": 3,
        "train_encoder/": 3, "train_encoder/train.py": 3,
        "train_unet/": 3, "train_unet/train.py": 3,
    }  # fmt: skip
    twice = DOCUMENT.replace("  pipelines/", "  positions.py         again\n  pipelines/")
    with pytest.raises(AssertionError, match=r"names debias_sd/positions\.py twice"):
        tree_groups(twice)


@pytest.mark.parametrize(
    ("module", "text", "fault"),
    [
        ("debias_sd/positions.py", "from debias_sd.encoder import TextEncoder", "debias_sd/encoder.py, which is not"),
        ("debias_sd/positions.py", "def f():\n    from . import pipelines", "debias_sd/pipelines/, which is not"),
        ("debias_sd/encoder.py", "import debias_sd.shapes.scene", "debias_sd/shapes/, which is not"),
        ("debias_sd/encoder.py", "from debias_sd import load_debias_pipeline", "through the package"),
        ("debias_sd/pipelines/load.py", "import train_encoder.train", "only train_encoder/ may"),
        ("debias_sd/shapes/scene.py", "import torch.nn as nn", "without it"),
        ("debias_sd/shapes/scene.py", "from ..pipelines import load", "debias_sd/pipelines/, which is not"),
        ("debias_sd/cli.py", "def f():\n    from diffusers import UNet2DConditionModel", "imports diffusers: only"),
        ("debias_sd/shapes/__init__.py", "from debias_sd import pipelines", "debias_sd/pipelines/, which is not"),
        ("debias_sd/__init__.py", "import accelerate", "imports accelerate: only train_encoder/ may"),
        ("train_unet/train.py", "from train_encoder.train import run", "only train_encoder/ may"),
        ("train_unet/train.py", "import accelerate", "imports accelerate: only train_encoder/ may"),
        ("train_encoder/train.py", "import gradio", "imports gradio: only app/ may"),
    ],
)
def test_a_planted_import_is_found(tmp_path, module, text, fault):
    write(tmp_path, module, text)
    (found,) = arrow_faults(tmp_path, tree_groups(DOCUMENT))
    assert found.startswith(f"{module}:")
    assert fault in found


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("debias_sd/encoder.py", "from debias_sd.positions import stretch_positions"),
        ("debias_sd/encoder.py", "from debias_sd import __version__"),
        ("debias_sd/__init__.py", "from debias_sd.pipelines.load import encode_prompt"),
        ("debias_sd/shapes/check.py", "from debias_sd.shapes.scene import Scene\nfrom .scene import Scene"),
        ("debias_sd/pipelines/load.py", "import diffusers"),
        ("debias_sd/cli.py", "from debias_sd import load_debias_pipeline"),
        ("train_unet/train.py", "import diffusers\nimport debias_sd.pipelines.load"),
        ("train_encoder/train.py", "import accelerate\nfrom debias_sd import TextEncoder"),
    ],
)
def test_an_import_along_the_arrows_is_let_through(tmp_path, module, text):
    write(tmp_path, module, text)
    assert arrow_faults(tmp_path, tree_groups(DOCUMENT)) == []


def test_a_planted_grab_bag_and_a_long_file_are_found(tmp_path):
    write(tmp_path, "debias_sd/utils.py", "")
    write(tmp_path, "tests/test_long.py", "\n" * (MAX_LINES + 1))
    assert [fault.split(":")[0] for fault in file_faults(tmp_path)] == ["debias_sd/utils.py", "tests/test_long.py"]


def test_a_planted_module_and_a_stale_line_are_found(tmp_path):
    for name in tree_groups(DOCUMENT):
        if name.endswith(".py") and name != "debias_sd/encoder.py":
            write(tmp_path, name, "")
    write(tmp_path, "debias_sd/extra.py", "")
    assert tree_faults(tmp_path, tree_groups(DOCUMENT)) == [
        "docs/architecture.md: its tree lacks debias_sd/extra.py",
        "docs/architecture.md: its tree names debias_sd/encoder.py, which is not there",
    ]
