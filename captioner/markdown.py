"""Tables in Markdown whose columns are aligned in a terminal too."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MISSING = "–"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table; the first column is left-aligned, all others right-aligned."""
    cells = [[cell.replace("|", "/") for cell in row] for row in (head, *rows)]
    widths = [max(2, *map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
        for row in cells
    ]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return [f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:])]


def interval(
    estimate: Mapping[str, Any] | None, digits: int = 1, sign: str = "", scale: int = 1
) -> str:
    """Format an estimate with its confidence interval; a dash without a value."""
    if estimate is None or estimate["value"] is None:
        return MISSING
    value, low, high = (f"{scale * estimate[k]:{sign}.{digits}f}" for k in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"
