"""Plots of a comparison: every measure with its intervals, and deletion curves."""

import textwrap
from collections.abc import Sequence
from dataclasses import astuple
from io import BytesIO
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter, StrMethodFormatter

from captioner.comparison.formats import measure_label, title
from captioner.comparison.run_results import Curve
from captioner.comparison.table import Comparison, Group

# The colour-blind safe palette of Okabe and Ito, 2008.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#8a6f00", "#555555")
ORDERS = {
    "most": (COLORS[1], "most attended regions first"),
    "random": (COLORS[7], "random order"),
    "least": (COLORS[0], "least attended regions first"),
}
PANELS_PER_ROW = 3
PANEL_WIDTH = 4.2  # inches


def draw(comparison: Comparison) -> dict[str, bytes]:
    """Return PNG files by name: one per group of the table, and one more if it has deletion curves."""
    files: dict[str, bytes] = {}
    for group in comparison.groups:
        name, number = group.section, 1
        while f"{name}.png" in files:
            number += 1
            name = f"{group.section}-{number}"
        files[f"{name}.png"] = _png(_plot_measures(group, comparison.columns))
        if any(result is not None and result.curves for result in group.results):
            files[f"{name}-curves.png"] = _png(_plot_curves(group, comparison.columns))
    return files


def _plot_measures(group: Group, columns: Sequence[str]) -> Figure:
    """Draw one panel per measure: a dot per measured run, with a line for its 95 % interval."""
    runs = [index for index, result in enumerate(group.results) if result is not None]
    rows = -(-len(group.rows) // PANELS_PER_ROW)
    height = rows * (1.0 + 0.35 * len(runs)) + 0.9
    figure, panels = _panels(group, rows, min(PANELS_PER_ROW, len(group.rows)), height)
    for panel, (measure, cells) in zip(panels, group.rows.items(), strict=False):
        panel.set_title(_wrap(measure_label(measure), 34), fontsize=10, loc="left")
        for row, index in enumerate(runs):
            color = COLORS[index % len(COLORS)]
            if (cell := cells[index]) is not None:
                if cell.interval is not None:
                    ends = [cell.interval.low, cell.interval.high]
                    panel.plot(ends, [row, row], color=color, lw=2)
                panel.plot(cell.value, row, "o", color=color)
        names = [_wrap(columns[index], 24) for index in runs]
        panel.set_yticks(range(len(runs)), names, fontsize=8)
        panel.set_ylim(len(runs) - 0.5, -0.5)
        panel.xaxis.set_major_locator(MaxNLocator(4))
        panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
        panel.tick_params(labelsize=8, length=0)
        panel.grid(axis="x", color="#d9d9de")
        panel.margins(x=0.08)
    for panel in panels[len(group.rows) :]:
        panel.set_visible(False)
    return figure


def _plot_curves(group: Group, columns: Sequence[str]) -> Figure:
    """Draw the drop of log-probability as regions are erased, per run and group of words."""
    runs = [
        (name, result.curves)
        for name, result in zip(columns, group.results, strict=True)
        if result is not None and result.curves
    ]
    word_groups = list(dict.fromkeys(words for _, curves in runs for words, _ in curves))
    height = 2.3 * len(word_groups) + 1.4
    figure, panels = _panels(group, len(word_groups), len(runs), height, share_axes=True)
    shown = [(words, name, curves) for words in word_groups for name, curves in runs]
    for panel, (words, name, curves) in zip(panels, shown, strict=True):
        panel.set_title(_wrap(f"{name}: {words} words", 44), fontsize=10, loc="left")
        for order, (color, label) in ORDERS.items():
            if (words, order) in curves:
                _plot_curve(panel, curves[words, order], color, label)
        panel.xaxis.set_major_formatter(PercentFormatter(1))
        panel.tick_params(labelsize=8)
        panel.grid(axis="y", color="#d9d9de")
    for panel in panels[-len(runs) :]:
        panel.set_xlabel("share of the image's regions erased", fontsize=9)
    figure.supylabel("drop of log p(word), nats", fontsize=9)
    lines, labels = panels[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower left", ncols=3, fontsize=8, frameon=False)
    return figure


def _plot_curve(panel: Any, curve: Curve, color: str, label: str) -> None:
    """A line from the origin, with the band of its 95 % intervals."""
    points = [(0.0, 0.0, 0.0, 0.0), *((share, *astuple(drop)) for share, drop in curve)]
    shares, values, low, high = zip(*points, strict=True)
    panel.fill_between(shares, low, high, color=color, alpha=0.2, lw=0)
    panel.plot(shares, values, color=color, label=label)


def _panels(
    group: Group, rows: int, columns: int, height: float, share_axes: bool = False
) -> tuple[Figure, list[Any]]:
    """A figure with its title, and its panels in rows."""
    width = max(2, columns)
    figure = Figure(figsize=(width * PANEL_WIDTH, height), layout="constrained")
    figure.suptitle(_wrap(title(group), 55 * width), fontsize=11, x=0.01, ha="left")
    panels = figure.subplots(rows, columns, squeeze=False, sharex=share_axes, sharey=share_axes)
    for panel in panels.flat:
        panel.spines[:].set_visible(False)
    return figure, list(panels.flat)


def _wrap(text: str, width: int) -> str:
    """Break text into lines, and keep matplotlib from reading dollar signs as mathematics."""
    return textwrap.fill(text, width).replace("$", r"\$")


def _png(figure: Figure) -> bytes:
    stream = BytesIO()
    figure.savefig(stream, format="png", dpi=120)
    return stream.getvalue()
