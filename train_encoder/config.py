"""A training run's settings from a YAML file and the command line; the settings themselves are in `settings.py`.

A YAML file is a named run; `--key value` on the command line overrides it. An unknown key fails with the nearest name.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
from pathlib import Path
from typing import Any

import yaml

from debias_sd.text_files import read_text
from train_encoder.settings import TrainConfig

JOINED = ("report_to",)  # names in one text, with commas between them: a list on the command line


def _convert(name: str, value: Any, kind: str) -> Any:
    """Bring `value` to the annotated type; YAML reads 1e-6 as a string, and the command line gives strings only."""
    kinds = [part.strip() for part in kind.split("|")]
    if value is None:
        if "None" not in kinds:
            raise ValueError(f"{name} is null, a value is needed; write {name}: VALUE or leave the line out.")
        return None
    base = kinds[0].split("[")[0]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if base == "float" and (is_number or isinstance(value, str)):
        try:
            return float(value)
        except ValueError:
            pass
    elif base == "int" and is_number and float(value).is_integer():
        return int(value)
    elif (base == "bool" and isinstance(value, bool)) or (base == "dict" and isinstance(value, dict)):
        return value
    elif base == "list" and isinstance(value, str | list):
        return [_text_of(name, one) for one in ([value] if isinstance(value, str) else value)]
    elif name in JOINED and isinstance(value, list):
        return ",".join(_text_of(name, one) for one in value)
    elif base == "str" and (isinstance(value, str) or is_number):
        return str(value)
    raise ValueError(f"{name} is {value!r}, a value of type {base} is needed; correct it.")


def _text_of(name: str, value: Any) -> str:
    """One entry of a list of texts; YAML reads `- a: b` as a mapping and `- yes` as true."""
    if isinstance(value, bool | dict | list) or value is None:
        raise ValueError(f"{name} has the entry {value!r}, which YAML does not read as text; put it in quotes.")
    return str(value)


def make_config(values: dict[str, Any]) -> TrainConfig:
    """Make a TrainConfig of plain values; ValueError names the nearest field for an unknown key."""
    kinds = {f.name: f.type for f in dataclasses.fields(TrainConfig)}
    for key in values:
        if key not in kinds:
            near = difflib.get_close_matches(str(key), list(kinds), n=1, cutoff=0.0)[0]
            raise ValueError(f"unknown setting {key!r}; the nearest is {near!r} (--help lists all).")
    return TrainConfig(**{key: _convert(key, value, kinds[key]) for key, value in values.items()})


def read_config(path: str | Path) -> dict[str, Any]:
    """Read the settings of a YAML file, unchecked."""
    path = Path(path)
    if not path.is_file():
        near = ", ".join(sorted(p.name for p in (Path(__file__).parent / "configs").glob("*.yaml")))
        raise ValueError(f"config file {path} does not exist; name a YAML file (train_encoder/configs has {near}).")
    try:
        values = yaml.safe_load(read_text(path, what="config file")) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"config file {path} is not YAML ({' '.join(str(error).split())}); correct it.") from None
    if not isinstance(values, dict):
        raise ValueError(f"config file {path} holds a {type(values).__name__}, lines of `key: value` are needed.")
    return values


def parse_arguments(arguments: list[str]) -> TrainConfig:
    """Make the config of `--config FILE --key value ...`; the command line wins over the file."""
    parser = argparse.ArgumentParser(prog="train_encoder", description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--config", help="YAML file of a named run", metavar="FILE")
    for f in dataclasses.fields(TrainConfig):
        shown = f.default_factory() if f.default is dataclasses.MISSING else f.default
        text = f"{f.metadata['help']} (default: {shown})".replace("%", "%%")
        options: dict[str, Any] = {"default": argparse.SUPPRESS, "metavar": "VALUE", "help": text}
        if _is_list(f):
            options |= {"nargs": "+", "action": "extend"}  # A B, and given twice
        elif f.type.startswith("bool"):
            options |= {"nargs": "?", "const": "true"}  # the bare flag
        parser.add_argument(f"--{f.name}", **options)
    known, unknown = parser.parse_known_args(arguments)
    if unknown:
        name = unknown[0].removeprefix("--").split("=")[0]
        near = difflib.get_close_matches(name, [f.name for f in dataclasses.fields(TrainConfig)], n=1, cutoff=0.0)[0]
        raise ValueError(f"unknown option {unknown[0]!r}; the nearest is '--{near}' (--help lists all).")
    given = vars(known)
    path = given.pop("config", None)
    values = read_config(path) if path else {}
    lists = {f.name for f in dataclasses.fields(TrainConfig) if _is_list(f)}
    read = {key: (_read_texts if key in lists else _read_value)(key, value) for key, value in given.items()}
    return make_config(values | read)


def _is_list(f: dataclasses.Field) -> bool:
    return f.type.startswith("list") or f.name in JOINED


def _read_texts(name: str, given: list[str]) -> list[Any]:
    """The entries of a list: each text as it is, and those of a text that is a list in JSON or YAML, `["a", "b"]`."""
    texts = []
    for text in given:
        value: Any = text
        if text.startswith("[") and text.endswith("]"):
            try:
                value = json.loads(text)  # YAML takes JSON's escape of an emoji for two halves of a character
            except ValueError:
                value = _read_value(name, text)
        texts += value if isinstance(value, list) else [text]
    return texts


def _read_value(name: str, value: str) -> Any:
    """What a value of the command line says in YAML."""
    try:
        return yaml.safe_load(value)
    except yaml.YAMLError:
        raise ValueError(f"--{name} is {value!r}, which is not YAML; correct or quote it.") from None
