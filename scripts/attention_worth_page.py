"""Write docs/does-attention-matter.md and its plot from docs/results/attention-worth.json.

The text is scripts/attention_worth.md.jinja. scripts/attention_worth.py measures the figures.
"""

import json
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from results_tables import Record, source, table, template

from captioner.files import write_bytes, write_text

SCRIPTS = Path(__file__).parent
DOCS = SCRIPTS.parent / "docs"
RESULT = DOCS / "results" / "attention-worth.json"
PAGE, PLOT = DOCS / "does-attention-matter.md", DOCS / "images" / "attention-worth.png"

KINDS = {
    "even": "even weights",
    "words": "weights of another word",
    "photos": "weights of another photo",
    "models": "weights of another model",
}
MEASURES = {
    "log_prob": ("log-probability of a token, nats", 2),
    "content": ("log-probability of a content word, nats", 2),
    "cider": ("CIDEr of generated captions", 1),
}


def cell(found: Mapping[str, Any] | None, digits: int, sign: str = "") -> str:
    """Format a value with its interval; a dash if there is none."""
    if found is None or found["value"] is None:
        return "–"
    value, low, high = (found[key] for key in ("value", "low", "high"))
    return f"{value:{sign}.{digits}f} [{low:{sign}.{digits}f}, {high:{sign}.{digits}f}]"


def main_table(record: Record) -> str:
    """Return the table: a column for each model, and one for the pair that was trained."""
    models = record["models"]
    trained = record.get("trained")
    rows = []
    for measure, (title, digits) in MEASURES.items():
        cells = [cell(m["own"][measure], digits) for m in models.values()]
        small = cell(trained["learned"]["own"][measure], digits) if trained else None
        rows.append([f"**{title}**", *cells, *([small] if trained else [])])
        for kind, name in KINDS.items():
            cells = [
                cell(m["changes"].get(kind, {}).get(measure), digits, "+") for m in models.values()
            ]
            small = (
                trained and cell(trained["learned"]["changes"][kind][measure], digits, "+")
                if kind != "models"
                else "–"
            )
            rows.append([name, *cells, *([small] if trained else [])])
        if trained:
            rows.append(
                [
                    "trained with even weights",
                    *["–"] * len(models),
                    cell(record["trained_even"][measure], digits, "+"),
                ]
            )
    for key, name, digits in (
        ("log_prob.divergence", "**adversary**: divergence reached, nats", 2),
        ("content.far", "content words with other weights half as far as possible, %", 0),
    ):
        cells = [cell(m["adversary"][key], digits) for m in models.values()]
        rows.append([name, *cells, *(["–"] if trained else [])])
    for name, which in (
        ("**random layers**: rank correlation, top layer random", 0),
        ("all layers random", -1),
    ):
        cells = [cell([*m["randomised"].values()][which], 2) for m in models.values()]
        rows.append([name, *cells, *(["–"] if trained else [])])
    head = ["", *models, *(["short training"] if trained else [])]
    return table(" | ".join(head), rows)


def plot(record: Record) -> bytes:
    """Draw the loss of CIDEr by intervention, and rank correlations by random layers, as PNG."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    models = record["models"]
    for number, (name, found) in enumerate(models.items()):
        shift = (number - (len(models) - 1) / 2) * 0.14
        kinds = [kind for kind in KINDS if kind in found["changes"]]
        values = [found["changes"][kind]["cider"] for kind in kinds]
        middle = [value["value"] for value in values]
        error = [
            [value["value"] - value["low"] for value in values],
            [value["high"] - value["value"] for value in values],
        ]
        at = [list(KINDS).index(kind) + shift for kind in kinds]
        left.errorbar(at, middle, error, fmt="o", markersize=4, capsize=2, label=name)
        of_layers = [1.0, *(layer["value"] for layer in found["randomised"].values())]
        right.plot(range(len(of_layers)), of_layers, "o-", markersize=4, label=name)
    left.axhline(0, color="grey", linewidth=0.8)
    left.set_xticks(range(len(KINDS)), [name.replace(" of ", "\nof ") for name in KINDS.values()])
    left.tick_params(axis="x", labelsize=8)
    left.set_ylabel("change of CIDEr")
    right.axhline(0, color="grey", linewidth=0.8)
    right.set_xlabel("layers with random weights, from the top")
    right.set_ylabel("rank correlation of maps")
    right.legend(fontsize=7, frameon=False)
    target = BytesIO()
    figure.savefig(target, format="png", dpi=120)
    return target.getvalue()


def page(record: Record) -> str:
    """Return the text of the page."""
    values = {
        "record": record,
        "table": main_table(record),
        "cell": cell,
        "source": source([record]),
    }
    return template(SCRIPTS / "attention_worth.md.jinja").render(values)


def write_page() -> None:
    """Write the page and the plot."""
    record = json.loads(RESULT.read_text("utf-8"))
    write_text(PAGE, page(record))
    write_bytes(PLOT, plot(record))
