"""A comparison as Markdown, CSV and JSON."""

import csv
import io
import json
from dataclasses import asdict
from typing import Any

from captioner.comparison.run_results import SCORES
from captioner.comparison.table import Cell, Comparison, Group
from captioner.markdown import MISSING, table

DIGITS = {"captions": 1, "grounding": 1, "faithfulness": 3, "speed": 1, "size": 0}
NAMES = {score: score.upper().replace("_", "-") for score in SCORES} | {
    "cider": "CIDEr",
    "chair_i": "CHAIR-i",
    "chair_s": "CHAIR-s",
    "f1_all": "F1-all",
    "f1_loc": "F1-loc",
    "discrimination": "paired objects",
    "mass": "mass in mask",
    "correctness": "attention correctness",
    "map_entropy": "entropy of the maps, nats",
}
HOW_TO_READ = (
    "In parentheses: the difference from {first} with the 95 % interval of a paired bootstrap over "
    "images, bold if the interval excludes 0. A dash means not measured."
)


def title(group: Group) -> str:
    """Return the heading of a group."""
    return f"{group.section}: {group.setting}" if group.setting else group.section


def measure_label(measure: str) -> str:
    """Return the display name of a measure."""
    return NAMES.get(measure, measure.replace(".", ": ").replace("_", " "))


def markdown(comparison: Comparison) -> str:
    """Return one table with a row per measure and a column per run."""
    rows = []
    for group in comparison.groups:
        rows.append([f"**{title(group)}**", *[""] * len(comparison.columns)])
        for measure, cells in group.rows.items():
            digits = DIGITS[group.section]
            rows.append([measure_label(measure), *(_cell(cell, digits) for cell in cells)])
    lines = table(["", *comparison.columns], rows)
    if len(comparison.columns) > 1:
        lines += ["", HOW_TO_READ.format(first=comparison.columns[0])]
    if comparison.notes:
        lines += ["", *(f"- {note}" for note in comparison.notes)]
    return "\n".join(lines) + "\n"


def _cell(cell: Cell | None, digits: int) -> str:
    if cell is None:
        return MISSING
    value = _signed(cell.value, digits).removeprefix("+")
    if cell.difference is None:
        return value
    difference = _signed(cell.difference, digits)
    low, high = cell.difference_low, cell.difference_high
    if low is not None and high is not None:
        difference += f" [{_signed(low, digits)}, {_signed(high, digits)}]"
        if low > 0 or high < 0:
            difference = f"**{difference}**"
    return f"{value} ({difference})"


def _signed(value: float, digits: int) -> str:
    text = f"{value:+,.{digits}f}".replace("-", "−")
    return text if text.strip("+−0.,") else text[1:]


def _records(comparison: Comparison) -> list[dict[str, Any]]:
    """Return every measure of every run."""
    return [
        {"section": group.section, "setting": group.setting, "measure": measure, "run": run}
        | asdict(cell)
        for group in comparison.groups
        for measure, cells in group.rows.items()
        for run, cell in zip(comparison.columns, cells, strict=True)
        if cell is not None
    ]


def table_csv(comparison: Comparison) -> str:
    """Return one line per measure and run."""
    stream, records = io.StringIO(), _records(comparison)
    writer = csv.DictWriter(stream, records[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return stream.getvalue()


def table_json(comparison: Comparison) -> str:
    """Return the lines of the CSV, with the names of the runs and the notes."""
    tree = {
        "runs": comparison.columns,
        "notes": comparison.notes,
        "measures": _records(comparison),
    }
    return json.dumps(tree, indent=1, ensure_ascii=False) + "\n"
