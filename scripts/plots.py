"""The pictures of docs/results.md, from reports only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from reports import Reports, drawn, r1, read, split_weight, spread_of, title_of, values_of

from debias_sd.measure.reports.page import draw_png
from debias_sd.report import write_atomically

COLOURS = {"base": "#6e7781", "long-clip": "#cf222e", "debias": "#0969da"}
FREE = {"long-clip": "#f2b8b5", "debias": "#b6d4fe"}  # paler: without the term that keeps close to the base
HELD = {"long-clip": "#82071e", "debias": "#0a3069"}  # darker: with the term that holds late sentences
DASHES = {"base-chunked": "--", "base-stretched": ":", "base-by-sentence": "-."}


def style_of(recipe: str) -> dict[str, Any]:
    """Colour by family, paler where it is free, darker where late sentences are held; dashed are the recipe's second
    weight and the base's other ways."""
    plain, weight = split_weight(recipe)
    family = next((name for name in COLOURS if plain.startswith(name)), "base")
    second = {"long-clip": "0.1", "debias": "0.5"}.get(family) == weight and weight is not None
    shades = {"-free": FREE, "-sentences": HELD}
    return {
        "color": next((own for end, own in shades.items() if plain.endswith(end)), COLOURS)[family],
        "linestyle": DASHES.get(plain, "--" if second else "-"),
        "label": title_of(recipe),
    }


def _curves(by_seed: dict[str, list[dict[str, Any]]], *path: str) -> np.ndarray:
    """Curves of all seeds [seeds, positions], cut to the shortest."""
    curves = [read("attention", "positions", *path)(result) for results in by_seed.values() for result in results]
    size = min(len(curve) for curve in curves)
    return np.array([curve[:size] for curve in curves], float)


def _plot(kind: str, ylabel: str, draw: Callable[[dict, Axes], None]) -> Callable[[Reports, Path], Path | None]:
    """What writes a plot of the reports of one kind; None where there are none."""

    def plot(reports: Reports, path: Path) -> Path | None:
        groups = reports.of_kind(kind)
        return write_atomically(path, draw_png(partial(draw, groups), ylabel, dpi=130)) if groups else None

    return plot


def _attention(groups: dict, axes: Axes) -> None:
    """Over positions that a quarter of the captions reach."""
    for recipe, by_seed in groups.items():
        curves = _curves(by_seed, "all_layers")
        reached = _curves(by_seed, "captions").min(0)[: curves.shape[1]]
        curves = curves[:, reached >= 0.25 * reached[0]]
        places, mean = np.arange(curves.shape[1]), curves.mean(0)
        axes.plot(places, mean, linewidth=1.6, **style_of(recipe))
        if len(curves) > 1:
            axes.fill_between(places, curves.min(0), curves.max(0), color=style_of(recipe)["color"], alpha=0.12, lw=0)
    axes.set_xlabel("token position")
    axes.set_yscale("log")
    axes.axvline(20, color="#afb8c1", linewidth=0.8)
    axes.annotate("20: positions before are frozen", (21, axes.get_ylim()[1]), fontsize=8, color="#57606a", va="top")


def _places(groups: dict, axes: Axes) -> None:
    """By the sentence that names the things, those that the summary names as well left out."""
    size = min(len(drawn("by_sentence")(results[0])) for by_seed in groups.values() for results in by_seed.values())
    for recipe, by_seed in groups.items():
        points = [spread_of(values_of(by_seed, drawn("summary_score")))]
        points += [spread_of(values_of(by_seed, drawn("by_sentence", place))) for place in range(1, size)]
        places = [place for place, point in enumerate(points) if point is not None]
        mean = [point.mean for point in points if point is not None]
        bars = [point.deviation or 0 for point in points if point is not None]
        axes.errorbar(places, mean, bars, marker="o", markersize=4, capsize=2, linewidth=1.6, **style_of(recipe))
    floors = [values_of(by_seed, drawn("floor", "late_detail")) for by_seed in groups.values()]
    floor = float(np.mean([value for values in floors for value in values]))
    axes.axhline(floor, color="#57606a", linewidth=1, linestyle=(0, (1, 2)), label="floor: other scenes' prompts")
    axes.set_xlabel("sentence (S: the summary, then details in order)")
    axes.set_xticks(range(size), ["S", *map(str, range(1, size))])


def _probes(groups: dict, axes: Axes) -> None:
    """Under Keep, Move and Remove, with the spread over training seeds."""
    probes = ("keep", "move", "remove")
    width = 0.8 / len(groups)
    for number, (recipe, by_seed) in enumerate(groups.items()):
        found = [spread_of(values_of(by_seed, r1(probe, "t2i"))) for probe in probes]
        places = np.arange(len(probes)) + (number - (len(groups) - 1) / 2) * width
        style = style_of(recipe)
        errors = [point.deviation or 0 for point in found]
        options = {"color": style["color"], "label": style["label"], "error_kw": {"linewidth": 1, "capsize": 2}}
        alpha = 0.55 if style["linestyle"] == "--" else 1
        axes.bar(places, [point.mean for point in found], width * 0.92, yerr=errors, alpha=alpha, **options)
    axes.set_xticks(range(len(probes)), ["Keep", "Move", "Remove"])


plot_attention = _plot("attention", "mean attention from the end token", _attention)
plot_places = _plot("fidelity", "things drawn, %", _places)
plot_probes = _plot("retrieval", "R@1, text to image, %", _probes)
