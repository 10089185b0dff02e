"""`debias-sd report`: one or several JSON reports as Markdown tables, an HTML page and plots."""

import argparse
from pathlib import Path

from debias_sd.commands.terminal import say, warn

HELP = "compare JSON reports: Markdown, one HTML page, plots"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `debias-sd report`."""
    parser.add_argument("reports", nargs="+", type=Path, metavar="REPORT", help="JSON of `debias-sd evaluate`")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write one self-contained page")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="also write the plots as PNG files")


def run(arguments: argparse.Namespace) -> int:
    """Write Markdown to standard output, and what was asked for beside it."""
    from debias_sd.report import check_writable, write_atomically
    from debias_sd.report_examples import example_galleries
    from debias_sd.report_judged import TABLES, picture_galleries, quarter_plots
    from debias_sd.report_page import make_page
    from debias_sd.report_plots import make_plots
    from debias_sd.report_reading import KIND as READING
    from debias_sd.report_reading import reading_plots, reading_tables
    from debias_sd.report_tables import make_tables, read_entries

    entries = read_entries(arguments.reports)
    *tables, sources = make_tables(entries, TABLES | {READING: lambda those: []})
    tables = [*tables, *reading_tables(entries), sources]
    plots = {}
    if arguments.plots is not None:
        check_writable(arguments.plots / "plot.png")
        plots = make_plots(entries) | quarter_plots(entries) | reading_plots(entries)
    elif arguments.html is not None:
        try:
            plots = make_plots(entries) | quarter_plots(entries) | reading_plots(entries)
        except ValueError as error:  # the page is whole without them
            warn(str(error))
    if arguments.html is not None:
        check_writable(arguments.html)
        title = ", ".join(path.stem for path in arguments.reports)
        galleries = [*example_galleries(entries), *picture_galleries(entries)]
        write_atomically(arguments.html, make_page(title, tables, plots, galleries).encode())
    if arguments.plots is not None:
        for name, content in plots.items():
            write_atomically(arguments.plots / name, content)
        if not plots:
            warn("the reports hold nothing to plot: plots need retrieval under several probes, "
                 "attention, or judged pictures.")  # fmt: skip
    say("\n".join(table.as_markdown() for table in tables).rstrip())
    return 0
