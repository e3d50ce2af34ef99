"""A comparison as Markdown, CSV and JSON."""

import csv
import io
import json
from dataclasses import asdict
from typing import Any

from captioner.comparison.table import Cell, Comparison, Group

DIGITS = {"captions": 1, "grounding": 1, "faithfulness": 3, "speed": 1, "size": 0}
NAMES = {
    **{f"bleu_{n}": f"BLEU-{n}" for n in range(1, 5)},
    "meteor": "METEOR",
    "rouge_l": "ROUGE-L",
    "cider": "CIDEr",
    "true_captions": "true captions, %",
    "bad_endings": "bad endings, %",
    "discrimination": "paired objects",
    "average_precision": "AP",
    "iou": "IoU",
    "chair_i": "CHAIR-i",
    "chair_s": "CHAIR-s",
    "f1_all": "F1-all",
    "f1_all_macro": "F1-all, macro",
    "f1_loc": "F1-loc",
    "map_entropy": "entropy of the maps, nats",
    "map_grad_cam": "correlation with Grad-CAM",
}
FIELDS = (
    *("section", "setting", "measure", "run", "value", "low", "high"),
    *("difference", "difference_low", "difference_high"),
)
HOW_TO_READ = (
    "In brackets behind a value: the difference from {first}, with its 95 % interval of a paired "
    "bootstrap over images; bold where the interval does not hold 0. A dash: not measured."
)


def title(group: Group) -> str:
    """The section and the setting."""
    return f"{group.section}: {group.setting}" if group.setting else group.section


def named(measure: str) -> str:
    """A measure, for people."""
    return NAMES.get(measure, measure.replace(".", ": ").replace("_", " "))


def markdown(comparison: Comparison) -> str:
    """One table: a row for each measure, a column for each run."""
    rows = [["", *comparison.columns], ["---"] * (len(comparison.columns) + 1)]
    for group in comparison.groups:
        rows.append([f"**{title(group)}**", *[""] * len(comparison.columns)])
        for measure, cells in group.rows.items():
            digits = DIGITS[group.section]
            rows.append([named(measure), *(_cell(cell, digits) for cell in cells)])
    lines = [f"| {' | '.join(text.replace('|', '/') for text in row)} |" for row in rows]
    if len(comparison.columns) > 1:
        lines += ["", HOW_TO_READ.format(first=comparison.columns[0])]
    if comparison.notes:
        lines += ["", *(f"- {note}" for note in comparison.notes)]
    return "\n".join(lines) + "\n"


def _cell(cell: Cell | None, digits: int) -> str:
    if cell is None:
        return "–"
    value = _signed(cell.value, digits).removeprefix("+")
    if cell.difference is None:
        return value
    difference = _signed(cell.difference, digits)
    if cell.paired is None:
        return f"{value} ({difference})"
    low, high = (_signed(end, digits) for end in (cell.paired.low, cell.paired.high))
    difference = f"{difference} [{low}, {high}]"
    return f"{value} ({f'**{difference}**' if cell.paired.sign else difference})"


def _signed(value: float, digits: int) -> str:
    text = f"{value:+,.{digits}f}".replace("-", "−")
    return text if text.strip("+−0.,") else text[1:]


def table_csv(comparison: Comparison) -> str:
    """A line for every measure of every run."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(FIELDS)
    for group in comparison.groups:
        for measure, cells in group.rows.items():
            for run, cell in zip(comparison.columns, cells, strict=True):
                if cell is not None:
                    ends = [
                        None if end is None else (end.low, end.high)
                        for end in (cell.interval, cell.paired)
                    ]
                    own, paired = (("", "") if end is None else end for end in ends)
                    difference = "" if cell.difference is None else cell.difference
                    row = [group.section, group.setting, measure, run, cell.value, *own]
                    writer.writerow([*row, difference, *paired])
    return stream.getvalue()


def table_json(comparison: Comparison) -> str:
    """The same as a tree: groups, measures, runs."""

    def of_group(group: Group) -> dict[str, Any]:
        measures = {
            measure: {
                run: None if cell is None else asdict(cell)
                for run, cell in zip(comparison.columns, cells, strict=True)
            }
            for measure, cells in group.rows.items()
        }
        return {"section": group.section, "setting": group.setting, "measures": measures}

    tree = {
        "runs": comparison.columns,
        "groups": [of_group(group) for group in comparison.groups],
        "notes": comparison.notes,
    }
    return json.dumps(tree, indent=1, ensure_ascii=False) + "\n"
