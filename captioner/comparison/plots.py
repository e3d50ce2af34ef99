"""Plots of a comparison: a panel for every measure, with its intervals."""

import textwrap
from collections import Counter
from collections.abc import Sequence
from io import BytesIO

from matplotlib.figure import Figure

from captioner.comparison.formats import measure_label, title
from captioner.comparison.table import Comparison, Group

PANELS_PER_ROW = 3


def draw(comparison: Comparison) -> dict[str, bytes]:
    """Return PNG files by name, one per group of the table."""
    files: dict[str, bytes] = {}
    counts: Counter[str] = Counter()
    for group in comparison.groups:
        counts[group.section] += 1
        number = counts[group.section]
        name = group.section if number == 1 else f"{group.section}-{number}"
        stream = BytesIO()
        _plot(group, comparison.columns).savefig(
            stream, format="png", dpi=120, metadata={"Software": "captioner"}
        )
        files[f"{name}.png"] = stream.getvalue()
    return files


def _plot(group: Group, columns: Sequence[str]) -> Figure:
    """Draw one panel per measure: a dot per run, with a line for its 95 % interval."""
    rows = -(-len(group.rows) // PANELS_PER_ROW)
    figure = Figure((13, 1 + rows * (1 + 0.35 * len(columns))), layout="constrained")
    figure.suptitle(_wrap(title(group), 150), fontsize=11)
    for number, (measure, cells) in enumerate(group.rows.items(), start=1):
        panel = figure.add_subplot(rows, PANELS_PER_ROW, number)
        panel.set_title(_wrap(measure_label(measure), 34), fontsize=10, loc="left")
        for row, cell in enumerate(cells):
            if cell is not None:
                panel.plot(cell.value, row, "o", color=f"C{row}")
                if cell.low is not None and cell.high is not None:
                    panel.plot([cell.low, cell.high], [row, row], color=f"C{row}", linewidth=2)
        panel.set_yticks(range(len(columns)), [_wrap(name, 24) for name in columns], fontsize=8)
        panel.set_ylim(len(columns) - 0.5, -0.5)
        panel.grid(axis="x")
    return figure


def _wrap(text: str, width: int) -> str:
    """Break text into lines, and keep matplotlib from reading dollar signs as mathematics."""
    return textwrap.fill(text, width).replace("$", r"\$")
