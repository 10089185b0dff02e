"""The pictures of docs/results.md, from reports only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from reports import Reports, drawn, r1, read, split_weight, spread_of, title_of, values_of

matplotlib.use("Agg")

import matplotlib.pyplot as plt

COLOURS = {"base": "#6e7781", "long-clip": "#cf222e", "debias": "#0969da"}
FREE = {"long-clip": "#f2b8b5", "debias": "#b6d4fe"}  # paler: without the term that keeps close to the base
HELD = {"long-clip": "#82071e", "debias": "#0a3069"}  # darker: with the term that holds late sentences
DASHES = {"base-chunked": "--", "base-stretched": ":"}


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


def _figure(xlabel: str, ylabel: str) -> tuple[plt.Figure, plt.Axes]:
    figure, axes = plt.subplots(figsize=(9.6, 4.2), layout="constrained")
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#d0d7de", linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def _legend(figure: plt.Figure) -> None:
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=9)


def _save(figure: plt.Figure, path: Path) -> Path:
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)
    return path


def _curves(by_seed: dict[str, list[dict[str, Any]]], *path: str) -> np.ndarray:
    """Curves of all seeds [seeds, positions], cut to the shortest."""
    curves = [read("attention", "positions", *path)(result) for results in by_seed.values() for result in results]
    size = min(len(curve) for curve in curves)
    return np.array([curve[:size] for curve in curves], float)


def plot_attention(reports: Reports, path: Path, *, at_least: float = 0.25) -> Path | None:
    """Mean attention from the end token by position, over positions that a quarter of the captions reach."""
    groups = reports.of_kind("attention")
    if not groups:
        return None
    figure, axes = _figure("token position", "mean attention from the end token")
    for recipe, by_seed in groups.items():
        curves = _curves(by_seed, "all_layers")
        reached = _curves(by_seed, "captions").min(0)[: curves.shape[1]]
        curves = curves[:, reached >= at_least * reached[0]]
        places, mean = np.arange(curves.shape[1]), curves.mean(0)
        axes.plot(places, mean, linewidth=1.6, **style_of(recipe))
        if len(curves) > 1:
            axes.fill_between(places, curves.min(0), curves.max(0), color=style_of(recipe)["color"], alpha=0.12, lw=0)
    axes.set_yscale("log")
    axes.axvline(20, color="#afb8c1", linewidth=0.8)
    axes.annotate("20: positions before are frozen", (21, axes.get_ylim()[1]), fontsize=8, color="#57606a", va="top")
    _legend(figure)
    return _save(figure, path)


def plot_places(reports: Reports, path: Path) -> Path | None:
    """Share of things drawn by the sentence that names them (things that the summary names as well left out)."""
    groups = reports.of_kind("fidelity")
    if not groups:
        return None
    figure, axes = _figure("sentence (S: the summary, then details in order)", "things drawn, %")
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
    axes.set_xticks(range(size), ["S", *map(str, range(1, size))])
    axes.set_ylim(bottom=0)
    _legend(figure)
    return _save(figure, path)


def plot_probes(reports: Reports, path: Path) -> Path | None:
    """R@1, text to image, under Keep, Move and Remove, with the spread over training seeds."""
    groups = reports.of_kind("retrieval")
    if not groups:
        return None
    figure, axes = _figure("", "R@1, text to image, %")
    probes = ("keep", "move", "remove")
    width = 0.8 / len(groups)
    for number, (recipe, by_seed) in enumerate(groups.items()):
        found = [spread_of(values_of(by_seed, r1(probe, "t2i"))) for probe in probes]
        places = np.arange(len(probes)) + (number - (len(groups) - 1) / 2) * width
        style = style_of(recipe)
        axes.bar(
            places,
            [point.mean for point in found],
            width * 0.92,
            yerr=[point.deviation or 0 for point in found],
            color=style["color"],
            alpha=0.55 if style["linestyle"] == "--" else 1,
            label=style["label"],
            error_kw={"linewidth": 1, "capsize": 2},
        )
    axes.set_xticks(range(len(probes)), ["Keep", "Move", "Remove"])
    axes.set_ylim(bottom=0)
    _legend(figure)
    return _save(figure, path)
