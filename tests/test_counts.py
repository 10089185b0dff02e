"""A number and its noun in the library's texts: "1 prompt", never "1 prompts"."""

import ast
import re
from pathlib import Path

import pytest

LIBRARY = Path(__file__).parent.parent / "debias_sd"
PLURAL = re.compile(r" (?:[a-z]+ ){0,2}?[a-z]+[^s\W]s\b")
VERBS = {" has", " is", " was", " does", " holds", " takes", " reads", " needs", " lacks", " says", " makes", " as"}


def counted_by_hand(source: str) -> list[str]:
    """Return what of f-strings is a count, `len(...)` or a number with commas, with a plural of its own behind it."""
    found = []
    for text in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.JoinedStr)):
        for value, behind in zip(text.values, text.values[1:], strict=False):
            if not isinstance(value, ast.FormattedValue) or not isinstance(behind, ast.Constant):
                continue
            is_length = isinstance(value.value, ast.Call) and ast.unparse(value.value.func) == "len"
            has_commas = value.format_spec is not None and ast.unparse(value.format_spec).strip("f'\"") == ","
            noun = PLURAL.match(behind.value)
            if (is_length or has_commas) and noun and noun[0] not in VERBS:
                found.append(ast.unparse(value.value) + noun[0])
    return found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('f"{len(rows)} prompts"', ["len(rows) prompts"]),
        ('f"{gone:,} empty captions left out"', ["gone empty captions"]),
        ("f\"{count_of(len(rows), 'prompt')} left out, {rows} rows, {len(rows)} left\"", []),
    ],
)
def test_a_plural_by_hand_is_found(source, found):
    assert counted_by_hand(source) == found


@pytest.mark.parametrize("path", sorted(LIBRARY.rglob("*.py")), ids=lambda path: path.relative_to(LIBRARY).as_posix())
def test_no_text_counts_by_hand(path):
    assert counted_by_hand(path.read_text(encoding="utf-8")) == []
