"""Write docs/does-attention-matter.md and its plot from docs/results/attention-worth.json.

python scripts/attention_worth_page.py          writes them
python scripts/attention_worth_page.py --check  fails if the page differs from what the file says

The text is scripts/attention_worth.md.jinja. scripts/attention_worth.py measures the figures.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from results_tables import Record, source, table, template

from captioner.files import write_bytes, write_text
from captioner.markdown import MISSING
from captioner.resources import bundled_models

SCRIPTS = Path(__file__).parent
DOCS = SCRIPTS.parent / "docs"
RESULT = DOCS / "results" / "attention-worth.json"
PAGE, PLOT = DOCS / "does-attention-matter.md", DOCS / "images" / "attention-worth.png"

KINDS = {
    "even": "even weights",
    "words": "weights of another word",
    "photos": "weights of another photo",
    "show-attend-tell-soft": "weights of the soft model",
    "show-attend-tell-hard": "weights of the hard model",
    "luong-dot": "weights of luong-dot",
    "luong-dot-critical": "weights of the critical model",
}
MEASURES = {
    "log_prob": ("log-probability of a token, nats", 2),
    "content": ("log-probability of a content word, nats", 2),
    "cider": ("CIDEr", 1),
}
Found = Mapping[str, Any] | None


def cell(found: Found, digits: int, sign: str = "") -> str:
    """Format a value with its interval; a dash if there is none."""
    if found is None or found["value"] is None:
        return MISSING
    value, low, high = (f"{found[key]:{sign}.{digits}f}" for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def main_table(record: Record) -> str:
    """Return the table: a column for each model, and one for the pair that was trained."""
    models, rows = record["models"], []
    trained = record.get("trained")
    columns = [*models.values(), *([trained["learned"]] if trained else [])]
    for measure, (title, digits) in MEASURES.items():
        rows.append([f"**{title}**", *(cell(of["own"][measure], digits) for of in columns)])
        for kind, name in KINDS.items():
            changes = [of["changes"].get(kind, {}).get(measure) for of in columns]
            rows.append([name, *(cell(change, digits, "+") for change in changes)])
        if trained:
            change = cell(record["trained_even"][measure], digits, "+")
            rows.append(["trained with even weights", *[MISSING] * len(models), change])

    def add(title: str, digits: int, values: Iterable[Found]) -> None:
        rest = [MISSING] * (len(columns) - len(models))
        rows.append([title, *(cell(value, digits) for value in values), *rest])

    attacked = [of["adversary"] for of in models.values()]
    random = [list(of["randomised"].values()) for of in models.values()]
    title = "**adversary**: divergence of the weights, nats"
    add(title, 2, (of["log_prob.divergence"] for of in attacked))
    title = "content words with very different weights, %"
    add(title, 0, (of["content.far"] for of in attacked))
    add("**random layers**: rank correlation, top layer", 2, (of[0] for of in random))
    add("top two layers", 2, (of[1] for of in random))
    add("all layers", 2, (of[-1] for of in random))
    return table(" | ".join(["", *models, *(["short training"] if trained else [])]), rows)


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
    left.set_xticks(range(len(KINDS)), KINDS.values(), rotation=20, ha="right", fontsize=7)
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
    models = list(record["models"].values())

    def extent(values: Iterable[float], digits: int, sign: str = "") -> str:
        found = sorted(values)
        return f"{found[0]:{sign}.{digits}f} to {found[-1]:{sign}.{digits}f}"

    def span(kind: str, measure: str, digits: int) -> str:
        """The least and the greatest change over the models."""
        found = [m["changes"][kind][measure]["value"] for m in models if kind in m["changes"]]
        return extent(found, digits, "+")

    def spread(part: str, measure: str, digits: int) -> str:
        return extent((m[part][measure]["value"] for m in models), digits)

    def bottom() -> str:
        return extent(([*m["randomised"].values()][-1]["value"] for m in models), 2)

    return template(SCRIPTS / "attention_worth.md.jinja").render(
        record=record,
        table=main_table(record),
        span=span,
        spread=spread,
        bottom=bottom,
        missing=[name for name in bundled_models() if name not in record["models"]],
        source=source([record]),
    )


def write_page() -> None:
    """Write the page and the plot."""
    record = json.loads(RESULT.read_text("utf-8"))
    write_text(PAGE, page(record))
    write_bytes(PLOT, plot(record))


def main() -> int:
    """Write or check the page."""
    if "--check" in sys.argv:
        return int(PAGE.read_text("utf-8") != page(json.loads(RESULT.read_text("utf-8"))))
    write_page()
    return 0


if __name__ == "__main__":
    sys.exit(main())
