"""The public names, and that importing the package is quick and loads nothing heavy."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import debias_sd

HEAVY = ("torch", "transformers", "diffusers", "accelerate", "gradio", "numpy")
# Processor time: a busy machine must not fail a test.
PROBE = "import sys, time; start = time.process_time(); import {name}; print(time.process_time() - start, *sys.modules)"


def probe(name: str) -> tuple[float, set[str]]:
    code = PROBE.format(name=name)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, *modules = done.stdout.split()
    return float(seconds), set(modules)


@pytest.mark.parametrize("name", ["debias_sd", "debias_sd.cli"])
def test_importing_is_quick_and_light(name):
    seconds, modules = probe(name)
    assert not modules & set(HEAVY)
    assert seconds < 0.3


def test_the_probe_sees_a_heavy_import():
    assert set(HEAVY) & probe("debias_sd.shapes.render")[1]


def test_all_is_sorted_complete_importable_and_seen_by_editors():
    assert debias_sd.__all__ == sorted(debias_sd._MODULES)
    for name in debias_sd.__all__:
        assert getattr(debias_sd, name).__name__ == name
    assert set(debias_sd.__all__) <= set(dir(debias_sd))
    # A type checker does not run `__getattr__`; it reads imports that are never run.
    source = Path(debias_sd.__file__)
    imports = [node for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, ast.ImportFrom)]
    shown = {name.name: node.module for node in imports for name in node.names if node.module.startswith("debias_sd.")}
    assert shown == {name: f"debias_sd.{module}" for name, module in debias_sd._MODULES.items()}
    assert (source.parent / "py.typed").is_file()


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'load_pipeline'"):
        debias_sd.load_pipeline  # noqa: B018
