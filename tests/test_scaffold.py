"""The commands, pins and papers that a fresh clone relies on."""

import os
import re
import stat
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, PYTEST = SETTINGS["project"], SETTINGS["tool"]["pytest"]["ini_options"]
PIN_LINES = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
PINS = {canonicalize_name(name): Version(version) for name, _, version in (line.partition("==") for line in PIN_LINES)}
DECLARED = [*PROJECT["dependencies"], *(line for lines in PROJECT["optional-dependencies"].values() for line in lines)]
INSTALLED_EXTRAS = {"app", "dev", "train"}  # what the Makefile installs
TARGETS = ("demo", "app", "test", "test-all", "lint", "types", "help", "clean")
TARGETS += ("weights", "weights-quick", "results", "benchmark")


def make(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    # MAKEFLAGS of the make that runs these tests must not reach the one under test.
    clean = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=ROOT, env=clean | environment, capture_output=True, text=True, check=False)


def required_names() -> set[str]:
    """Return the names of everything that installing the project with its default extras brings in here."""
    waiting = [("debias-sd", frozenset(INSTALLED_EXTRAS))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        for line in metadata.requires(name) or []:
            requirement = Requirement(line)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras | {""}):
                waiting.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return {name for name, _ in seen} - {"debias-sd"}


def test_each_pin_is_an_exact_version_and_what_the_dependencies_need_is_pinned_too():
    odd = [line for line in PIN_LINES if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line)]
    assert odd == []
    assert len(PINS) == len(PIN_LINES)
    # setuptools comes with the virtual environment and is nobody's business to hold back.
    assert sorted(required_names() - PINS.keys() - {"setuptools"}) == []


@pytest.mark.parametrize("line", DECLARED)
def test_a_declared_range_has_its_pin(line):
    requirement = Requirement(line)
    assert requirement.specifier.contains(PINS[canonicalize_name(requirement.name)])


def test_a_wheel_installs_no_package_of_anybodys_name():
    """`app` is a top-level name that many projects have: the app runs from a checkout."""
    pytest.importorskip("setuptools", reason="setuptools is not installed: pip install setuptools")
    from setuptools import Distribution
    from setuptools.config.pyprojecttoml import apply_configuration

    packages = apply_configuration(Distribution({"src_root": str(ROOT)}), ROOT / "pyproject.toml").packages
    assert {name.partition(".")[0] for name in packages} == {"debias_sd", "train_encoder", "train_unet"}
    assert "debias_sd.measure.judges" in packages


def test_the_changelog_knows_the_version_and_the_licence_is_apache_2():
    headings = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert PROJECT["version"] == metadata.version("debias-sd")
    assert all(Version(heading) <= Version(PROJECT["version"]) for heading in headings[1:])
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert PROJECT["license"] == "Apache-2.0"
    assert text.split()[:5] == ["Apache", "License", "Version", "2.0,", "January"]
    assert "END OF TERMS AND CONDITIONS" in text


@pytest.mark.parametrize("target", TARGETS)
def test_each_target_explains_itself(target):
    assert re.search(rf"^  make {target} +\S", make("help").stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("target", "command"),
    [
        ("demo", "-m debias_sd.demo"),
        ("test", "-m pytest -n 2 --dist loadfile --no-loadscope-reorder"),
        ("test-all", '-m pytest -n 2 --dist loadfile --no-loadscope-reorder -m ""'),
        ("weights", "scripts/weights.py"),
        ("weights-quick", "scripts/weights.py --quick"),
    ],
)
def test_a_target_installs_with_the_pins_and_then_does_its_job(tmp_path, target, command):
    lines = make("--dry-run", target, f"VENV={tmp_path}/venv").stdout.splitlines()
    (install,) = (number for number, line in enumerate(lines) if "-c constraints.txt -e" in line)
    (job,) = (number for number, line in enumerate(lines) if line.endswith(command))
    assert install < job


@pytest.mark.parametrize("target", ["demo", "weights", "weights-quick", "results", "benchmark"])
def test_what_a_target_runs_is_there(tmp_path, target):
    lines = make("--dry-run", target, f"VENV={tmp_path}/venv").stdout
    files = re.findall(r"/bin/python (\S+\.py)", lines)
    files += [module.replace(".", "/") + ".py" for module in re.findall(r"/bin/python -m (debias_sd\S+)", lines)]
    assert files
    assert [file for file in files if not (ROOT / file).exists()] == []


@pytest.mark.parametrize(
    ("refuses", "sentence"),
    [
        ("version_info", "Python 3.11 or newer is needed and {} is not; name another one: make PYTHON=python3.12."),
        (
            "ensurepip",
            "{} has no venv module; install it (Debian, Ubuntu: apt install python3-venv) and call make again.",
        ),
    ],
)
def test_an_unfit_python_is_told_in_one_sentence(tmp_path, refuses, sentence):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$2" in *{refuses}*) exit 1;; esac\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    done = make("install", f"PYTHON={python}", f"VENV={tmp_path}/venv")
    first, *others = done.stderr.splitlines()
    assert done.returncode != 0
    assert first == sentence.format(python)
    assert all(line.startswith("make: ***") for line in others)
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize(
    ("script", "command"),
    [(".ci/run", "lint"), (".ci/run", "test"), *(("scripts/check", command) for command in ("lint", "types", "test"))],
)
def test_a_script_runs_make(script, command):
    path = ROOT / script
    assert os.access(path, os.X_OK)
    assert re.search(rf"\bmake --no-print-directory {command}$", path.read_text(encoding="utf-8"), re.MULTILINE)


def test_shapes_and_doctests_are_checked_wherever_they_are_written():
    """The shapes of signatures in each module that has them; pytest looks for doctests in each package."""
    packages = ("debias_sd", "train_encoder", "train_unet", "app")
    assert set(packages) <= set(PYTEST["testpaths"])
    assert "--doctest-modules" in PYTEST["addopts"]
    (checked,) = (option for option in PYTEST["addopts"] if option.startswith("--jaxtyping-packages="))
    modules = [path.relative_to(ROOT) for package in packages for path in sorted((ROOT / package).rglob("*.py"))]
    shaped = [module for module in modules if re.search(r"^from jaxtyping", (ROOT / module).read_text(), re.MULTILINE)]
    names = {".".join(module.with_suffix("").parts) for module in shaped}
    names -= {"debias_sd.encoder", "debias_sd.prompts.batch"}  # they refuse wrong types in sentences of their own
    assert sorted(names) == sorted(checked.partition("=")[2].removesuffix(",beartype.beartype").split(","))


def test_the_files_that_the_tests_begin_with_are_there():
    names = re.search(r"^LONGEST = \((.*?)^\)", (ROOT / "tests" / "conftest.py").read_text(), re.MULTILINE | re.DOTALL)
    assert [
        name for name in re.findall(r'"(\w+)"', names[1]) if not (ROOT / "tests" / f"test_{name}.py").is_file()
    ] == []
