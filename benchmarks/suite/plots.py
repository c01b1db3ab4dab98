"""The pictures: the headline, and cost against the size of the tree, changes and checkpoints."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.suite import floors, peers, promises, trees, watching
from benchmarks.suite.results import Case, Results, distinct
from benchmarks.suite.series import CHANGES, TOOLS

HEADLINE = "headline.svg"
HEADLINE_TOOLS = ("treesnap", watching.WATCH, "git", "restic", "borg", "rsync", "tar | zstd")
COLOURS = {
    "treesnap": "#d62728",
    watching.WATCH: "#ff9896",
    "git": "#1f77b4",
    "restic": "#2ca02c",
    "borg": "#9467bd",
    "rsync": "#8c564b",
    "tar | zstd": "#17becf",
    "tar + sync": "#bcbd22",
    floors.FLOOR: "#7f7f7f",
}


def is_possible() -> bool:
    """Returns whether matplotlib is there."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(results: Results, directory: Path) -> list[tuple[str, str]]:
    """Writes the pictures that the numbers suffice for; returns their names and titles."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "treesnap"  # equal numbers give an equal file
    mpl.rcParams["svg.fonttype"] = "none"
    pictures: list[tuple[str, str, Callable[[Results], Any]]] = [
        (HEADLINE, "Five tasks on a source tree; a shorter bar is better", _headline),
        ("sizes.svg", "Cost against the size of the tree", _sizes),
        ("changes.svg", "Cost against the number of changed files", _changes),
        ("checkpoints.svg", "Many checkpoints with one small change each", _checkpoints),
    ]
    written = []
    for name, title, make in pictures:
        (directory / name).unlink(missing_ok=True)  # of an earlier run
        figure = make(results)
        if figure is not None:
            figure.suptitle(title)
            figure.tight_layout()
            figure.savefig(directory / name, metadata={"Date": None, "Creator": None})
            _tidy(directory / name)
            written.append((name, title))
    return written


def _tidy(path: Path) -> None:
    """Removes the blanks at the ends of lines."""
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join(line.rstrip() for line in lines) + "\n", encoding="utf-8")


def _panels(count: int) -> tuple[Any, list[Any]]:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, count, figsize=(5 * count, 4))
    return figure, list(axes)


def _line(axes: Any, points: list[tuple[float, float]], name: str, label: str, style: str) -> None:
    if points:
        xs, ys = zip(*sorted(points), strict=True)
        axes.plot(xs, ys, style, marker="o", markersize=3, color=COLOURS.get(name), label=label)


def _finish(axes: Any, title: str, x: str, y: str, *, logarithmic: str = "xy") -> None:
    """Completes a panel; ``logarithmic`` names the axes that are, all others begin at 0."""
    from matplotlib.ticker import NullFormatter, StrMethodFormatter

    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if "x" in logarithmic:
        axes.set_xscale("log")
    if "y" in logarithmic:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)  # a logarithmic axis has no 0
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.grid(visible=True, alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)


def _headline(results: Results) -> Any:
    """Returns the time of five tasks for each tool, as bars on the source tree."""
    from matplotlib import pyplot as plt

    tasks = (peers.FIRST, peers.SAME, promises.TEN, promises.BACK, peers.RESTORE)
    figure, panels = plt.subplots(1, len(tasks), figsize=(15, 3.2), sharey=True)
    has_bars = False
    for axes, task in zip(panels, tasks, strict=True):
        for place, tool in enumerate(reversed(HEADLINE_TOOLS)):
            value = results.median(Case(trees.SOURCE, task, tool))
            if value is not None:
                has_bars = True
                axes.barh(place, value, color=COLOURS[tool])
                axes.text(value, place, f" {value:.2g} s", va="center", fontsize=8)
        axes.set_title(task, fontsize=10)
        axes.set_xlabel("seconds")
        axes.margins(x=0.25)
        axes.set_yticks(range(len(HEADLINE_TOOLS)), reversed(HEADLINE_TOOLS))
    return figure if has_bars else None


def _sizes(results: Results) -> Any:
    """Returns the times of snapshots over the number of files, for source trees."""
    names = [name for name in results.trees if name == trees.SOURCE or name.startswith("files-")]
    if len(names) < 2:
        return None
    figure, panels = _panels(3)
    works = (peers.FIRST, peers.SAME, "10 files changed")
    for axes, work in zip(panels, works, strict=True):
        tools = distinct(case.tool for case in results.samples if case.work == work)
        for tool in tools:
            points = _by_size(results, names, work, tool)
            _line(axes, points, tool, tool, "-")
        if work != peers.FIRST:
            for walk, style in ((floors.C_WALK, ":"), (floors.PYTHON_WALK, "--")):
                points = _by_size(results, names, walk, floors.FLOOR)
                _line(axes, points, floors.FLOOR, walk, style)
        _finish(axes, work, "files", "seconds")
    return figure


def _by_size(results: Results, names: list[str], work: str, tool: str) -> list[tuple[float, float]]:
    medians = {name: results.median(Case(name, work, tool)) for name in names}
    return [
        (results.trees[name]["files"], value)
        for name, value in medians.items()
        if value is not None
    ]


def _changes(results: Results) -> Any:
    """Returns the times over the number of changed files, in the source tree."""
    figure, panels = _panels(2)
    has_points = False
    for axes, work in zip(panels, (peers.CHANGED, peers.BACK), strict=True):
        for tool in TOOLS:
            points = []
            for count in sorted({*CHANGES, 10}):
                name = "1 file changed" if count == 1 else f"{count:,} files changed"
                value = results.median(Case(trees.SOURCE, work.format(edit=name), tool))
                if value is not None:
                    points.append((float(count), value))
            has_points = has_points or len(points) > 1
            _line(axes, points, tool, tool, "-")
        title = "snapshot" if work == peers.CHANGED else "roll back"
        _finish(axes, title, "changed files", "seconds")
    return figure if has_points else None


def _checkpoints(results: Results) -> Any:
    """Returns the time of each, and what the store takes, over the number of checkpoints."""
    if not results.checkpoints:
        return None
    figure, panels = _panels(3)
    quantities = (
        ("seconds", "time of one snapshot", "seconds", 1.0),
        ("store_bytes", "store", "MB", 1e-6),
        ("store_files", "files in the store", "files", 1.0),
    )
    for axes, (quantity, title, unit, factor) in zip(panels, quantities, strict=True):
        for tool, points in results.checkpoints.items():
            line = [(point["number"], point[quantity] * factor) for point in points]
            _line(axes, line, tool, tool, "-")
        is_wide = quantity == "store_files"  # from some dozens to hundred thousands
        _finish(axes, title, "checkpoints", unit, logarithmic="y" if is_wide else "")
    return figure
