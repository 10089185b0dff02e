"""The README's table of results, written between its two marks from the same reports as docs/results.md."""

from __future__ import annotations

from pathlib import Path

from reports import Reports, drawn, r1, spread_of, title_of, values_of

from debias_sd.report import write_atomically

BEGIN, END = "<!-- results: written by scripts/results.py -->", "<!-- end of results -->"
ROWS = ("base", "base-chunked", "base-stretched", "long-clip-l0.5", "debias-l0.1")
ROWS += ("long-clip-sentences-l0.5", "debias-sentences-l0.1")
COLUMNS = {
    "Keep": ("retrieval", r1("keep", "t2i")),
    "Move": ("retrieval", r1("move", "t2i")),
    "Remove": ("retrieval", r1("remove", "t2i")),
    "summary drawn": ("fidelity", drawn("summary_score")),
    "late details drawn": ("fidelity", drawn("late_detail")),
}


def headline_table(reports: Reports) -> list[str]:
    """Markdown lines: retrieval under the probes and what was drawn, a row for each way to read a long prompt."""
    lines = ["| | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for recipe in ROWS:
        cells = []
        for kind, pick in COLUMNS.values():
            value = spread_of(values_of(reports.of_kind(kind).get(recipe, {}), pick))
            cells.append("–" if value is None else str(value))
        lines.append(f"| {title_of(recipe)} | " + " | ".join(cells) + " |")
    return lines


def write_headline(reports: Reports, readme: Path) -> None:
    """Replace what stands between the marks of `readme`; ValueError when it has none."""
    replace_between(readme, (BEGIN, END), headline_table(reports))


def replace_between(document: Path, marks: tuple[str, str], lines: list[str]) -> None:
    """Write `lines` between the two marks of `document`; ValueError when it has none."""
    text, (begin, end) = document.read_text(encoding="utf-8"), marks
    if begin not in text or end not in text.split(begin)[1]:
        raise ValueError(
            f"{document} lacks the marks of its table; put back {begin!r} and {end!r} or leave out --readme."
        )
    before, rest = text.split(begin, 1)
    after, table = rest.split(end, 1)[1], "\n".join(lines)
    write_atomically(document, f"{before}{begin}\n{table}\n{end}{after}".encode())
