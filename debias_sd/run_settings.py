"""The settings of a training run: a frozen dataclass, filled from a YAML file and the command line.

Every field is a key of the YAML file and a `--key` of the command line, which wins. A field is made by `setting`, whose
text is the line that `--help` prints. What is wrong with a value is a ValueError of one sentence.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
import json
import math
import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from debias_sd.text import read_text

_BOUNDS = {"at_least": operator.ge, "at_most": operator.le, "above": operator.gt, "below": operator.lt}
Config = TypeVar("Config")
WANTED = {"str": "a text", "int": "a whole number", "float": "a number", "bool": "true or false"}
WANTED |= {"list": "a list of texts", "dict": "a mapping", "tuple": "two whole numbers such as [64, 112]"}


def setting(
    default: Any, text: str, *, at_least: float | None = None, at_most: float | None = None, above: float | None = None,
    below: float | None = None,
    choices: tuple[str, ...] = (), joined: bool = False, decides: bool = True,
) -> Any:  # fmt: skip
    """A field with its line of help and the values that it may have (`check_values`).

    `joined`: a text of names with commas, given as a list too. `decides`: two runs that differ in it differ in their
    weights.
    """
    bounds = {"at_least": at_least, "at_most": at_most, "above": above, "below": below}
    metadata = {"help": text, "bounds": bounds, "choices": choices, "joined": joined, "decides": decides}
    if isinstance(default, dict | list):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def required(text: str) -> Any:
    """A field without default."""
    return dataclasses.field(metadata={"help": text, "bounds": {}, "choices": (), "joined": False, "decides": True})


def check_values(config: Any) -> None:
    """Raise ValueError for a number out of its bounds, and for a text that is not among its choices."""
    for field in dataclasses.fields(config):
        value, choices = getattr(config, field.name), field.metadata["choices"]
        named = [name.strip() for name in value.split(",")] if field.metadata["joined"] else [value]
        for name in named if choices else []:
            if name not in choices:
                raise ValueError(
                    f"{field.name} must be one of {', '.join(choices)}, found {name!r}; choose one of them."
                )
        for bound, limit in field.metadata["bounds"].items():
            if limit is None or value is None:
                continue
            if not _BOUNDS[bound](value, limit):
                said = bound.replace("_", " ")
                raise ValueError(f"{field.name} must be {said} {limit:,}, found {value}; change that setting.")


def make_settings(kind: type[Config], values: Mapping[str, Any], *, renamed: Mapping[str, str]) -> Config:
    """A `kind` of plain values. `renamed` has names of before with those of now."""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for key in values:
        if key not in fields:
            _refuse_name(str(key), list(fields), renamed)
    for name, field in fields.items():
        has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if name not in values and not has_default:
            raise ValueError(f"missing setting {name!r}; give it in the YAML file or as --{name}.")
    return kind(**{key: _convert(fields[key], value) for key, value in values.items()})


def _refuse_name(name: str, known: list[str], renamed: Mapping[str, str], *, dashes: str = "") -> None:
    if name in renamed:
        raise ValueError(
            f"the setting {dashes}{name} is called {dashes}{renamed[name]} now, and means the same; rename it."
        )
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
    what = "option" if dashes else "setting"
    raise ValueError(f"unknown {what} '{dashes}{name}'; the nearest is '{dashes}{near}' (--help lists all).")


def _convert(field: dataclasses.Field, value: Any) -> Any:
    """`value` as the field's type; YAML reads 1e-6 as a text and `no` as false."""
    name, base = field.name, field.type.split("|")[0].split("[")[0].strip()
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is None and field.type.endswith("| None"):
        return None
    if base == "float" and (is_number or isinstance(value, str)):
        with contextlib.suppress(ValueError):
            if math.isfinite(float(value)):
                return float(value)
    elif base == "int" and is_number and float(value).is_integer():
        return int(value)
    elif (base == "bool" and isinstance(value, bool)) or (base == "dict" and isinstance(value, dict)):
        return value
    elif base == "list" and isinstance(value, str | list):
        return [_text_of(name, one) for one in ([value] if isinstance(value, str) else value)]
    elif field.metadata["joined"] and isinstance(value, list):
        return ",".join(_text_of(name, one) for one in value)
    elif base == "str" and (isinstance(value, str) or is_number):
        return str(value)
    elif base == "str" and value is False and "no" in field.metadata["choices"]:
        return "no"
    elif base == "tuple" and isinstance(value, list) and len(value) == 2 and all(type(one) is int for one in value):
        return tuple(value)
    found = "null" if value is None else repr(value)
    raise ValueError(f"{name} must be {WANTED[base]}, found {found}; change that setting.")


def _text_of(name: str, value: Any) -> str:
    """One entry of a list of texts; YAML reads `- a: b` as a mapping and `- yes` as true."""
    if isinstance(value, bool | dict | list) or value is None:
        raise ValueError(f"{name} has the entry {value!r}, which YAML does not read as text; put it in quotes.")
    return str(value)


def read_settings(path: str | Path, *, configs: Path) -> dict[str, Any]:
    """The settings of a YAML file, unchecked. `configs` is the folder of shipped ones, which a message names."""
    path = Path(path)
    if not path.is_file():
        near = ", ".join(sorted(one.name for one in configs.glob("*.yaml")))
        place = "/".join(configs.parts[-2:])
        raise ValueError(f"config file {path} does not exist; name a YAML file ({place} has {near}).")
    try:
        values = yaml.safe_load(read_text(path, what="config file")) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"config file {path} is not YAML ({' '.join(str(error).split())}); mend that line.") from None
    if not isinstance(values, dict):
        raise ValueError(
            f"config file {path} holds a {type(values).__name__} but must hold lines of `key: value`; write such."
        )
    return values


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:
        raise ValueError(f"{message.removeprefix('argument ')}; --help lists all settings.")


def parse_settings(
    kind: type[Config], arguments: list[str], *, prog: str, about: str, configs: Path, renamed: Mapping[str, str]
) -> Config:
    """A `kind` of `--config FILE --key value ...`; a list is given as `--key A B`, and `--flag` alone is true."""
    parser = _Parser(prog=prog, description=about, allow_abbrev=False)
    parser.add_argument("--config", help="YAML file of a named run", metavar="FILE")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for name, field in fields.items():
        shown = "" if field.default is dataclasses.MISSING else f" (default: {field.default})"
        options: dict[str, Any] = {"default": argparse.SUPPRESS, "metavar": "VALUE", "dest": name}
        if _is_list(field):
            options |= {"nargs": "+", "action": "extend"}  # A B, and given twice
        elif field.type.startswith("bool"):
            options |= {"nargs": "?", "const": "true"}  # the bare flag
        spellings = dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"])
        parser.add_argument(*spellings, help=(field.metadata["help"] + shown).replace("%", "%%"), **options)
    known, unknown = parser.parse_known_args(arguments)
    if unknown and not unknown[0].startswith("--"):
        raise ValueError(
            f"settings come as --key value, found {unknown[0]!r} without a key; --help lists all settings."
        )
    if unknown:
        name = unknown[0].removeprefix("--").split("=")[0]
        _refuse_name(name.replace("-", "_") if name.replace("-", "_") in renamed else name, list(fields), renamed,
                     dashes="--")  # fmt: skip
    given = vars(known)
    path = given.pop("config", None)
    values = read_settings(path, configs=configs) if path else {}
    return make_settings(kind, values | {n: _read(fields[n], value) for n, value in given.items()}, renamed=renamed)


def _is_list(field: dataclasses.Field) -> bool:
    return field.type.startswith(("list", "tuple")) or field.metadata["joined"]


def _read(field: dataclasses.Field, given: Any) -> Any:
    """What a value of the command line says."""
    if field.type.startswith("tuple"):
        parts = [_read_yaml(field.name, text) for text in given]
        return parts[0] if len(parts) == 1 else parts
    if _is_list(field):
        return _read_texts(field.name, given)
    if not field.type.startswith("str"):
        return _read_yaml(field.name, given)
    with contextlib.suppress(yaml.YAMLError):  # a text in quotes; anything else is the text itself
        value = yaml.safe_load(given)
        return value if isinstance(value, str) or (value is None and "None" in field.type) else given
    return given


def _read_texts(name: str, given: list[str]) -> list[Any]:
    """The entries of a list: each text as it is, and those of a text that is a list in JSON or YAML, `["a", "b"]`."""
    texts = []
    for text in given:
        value: Any = text
        if text.startswith("[") and text.endswith("]"):
            try:
                value = json.loads(text)  # YAML takes JSON's escape of an emoji for two halves of a character
            except ValueError:
                value = _read_yaml(name, text)
        texts += value if isinstance(value, list) else [text]
    return texts


def _read_yaml(name: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ValueError(f"--{name} is {text!r}, which is not YAML; put it in quotes.") from None
