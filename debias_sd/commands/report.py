"""`debias-sd report`: one or several JSON reports as Markdown tables, an HTML page and plots."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from debias_sd.commands.terminal import say, warn

if TYPE_CHECKING:
    from debias_sd.measure.reports.page import Gallery, Table

HELP = "compare JSON reports: Markdown, one HTML page, plots"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `debias-sd report`."""
    parser.add_argument("reports", nargs="+", type=Path, metavar="REPORT", help="JSON of `debias-sd evaluate`")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write one self-contained page")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="also write the plots as PNG files")


def run(arguments: argparse.Namespace) -> int:
    """Write Markdown to standard output, and what was asked for beside it."""
    from debias_sd.measure.reports.page import make_page
    from debias_sd.report import check_writable, write_atomically

    if arguments.plots is not None:
        check_writable(arguments.plots / "plot.png")
    if arguments.html is not None:
        check_writable(arguments.html)
    try:
        tables, plots, galleries = _parts(arguments)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(
            f"a report lacks what its kind has ({type(error).__name__}: {error}): it was edited or is of another "
            "version; measure again."
        ) from error
    if arguments.html is not None:
        title = ", ".join(path.stem for path in arguments.reports)
        write_atomically(arguments.html, make_page(title, tables, plots, galleries).encode())
    if arguments.plots is not None:
        for name, content in plots.items():
            write_atomically(arguments.plots / name.replace("/", "_"), content)
        if not plots:
            warn(
                "the reports hold nothing to plot: plots need retrieval under several probes, attention, or pictures "
                "by a judge that can say drawn."
            )
    say("\n".join(table.as_markdown() for table in tables).rstrip())
    return 0


def _parts(arguments: argparse.Namespace) -> tuple[list[Table], dict[str, bytes], list[Gallery]]:
    """Tables, and plots and pictures where they were asked for."""
    from debias_sd.measure.reports.page import number_table, read_entries, settings_table
    from debias_sd.measure.reports.pictures import TABLES, picture_galleries, quarter_plots
    from debias_sd.measure.reports.reading import reading_plots, reading_tables
    from debias_sd.measure.reports.retrieval import example_galleries, make_plots, retrieval_tables
    from debias_sd.report import ATTENTION, RETRIEVAL

    entries = read_entries(arguments.reports)
    tables = retrieval_tables(entries)
    for kind in dict.fromkeys(entry.report.kind for entry in entries):
        if kind not in (RETRIEVAL, ATTENTION):  # what is read is in reports of retrieval too
            those = [entry for entry in entries if entry.report.kind == kind]
            tables += TABLES[kind](those) if kind in TABLES else [number_table(kind, those)]
    tables += [*reading_tables(entries), settings_table(entries)]
    plots: dict[str, bytes] = {}
    if arguments.plots is not None or arguments.html is not None:
        try:
            plots = make_plots(entries) | quarter_plots(entries) | reading_plots(entries)
        except ValueError as error:
            if arguments.plots is not None:
                raise
            warn(str(error))  # the page is whole without them
    return tables, plots, [*example_galleries(entries), *picture_galleries(entries)]
