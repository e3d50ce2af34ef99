"""Markdown tables of the results page: cells, tables and the line that says where a table comes from."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import jinja2

from captioner.markdown import MISSING

Record = Mapping[str, Any]

METRICS = {
    **{f"bleu_{n}": f"BLEU-{n}" for n in range(1, 5)},
    "meteor": "METEOR",
    "rouge_l": "ROUGE-L",
    "cider": "CIDEr",
}


def figures(scores: Mapping[str, Any], metrics: Iterable[str] = METRICS) -> list[str]:
    """Format scores with one decimal; a missing score, such as METEOR without Java, is a dash."""
    return [number(scores[metric]) for metric in metrics]


def number(value: float | None, digits: int = 1) -> str:
    """Format a number with thousands separators; ``None`` is a dash."""
    return MISSING if value is None else f"{value:,.{digits}f}"


def spread(values: Sequence[float]) -> str:
    """Format mean ± standard deviation."""
    return f"{mean(values):.1f} ± {stdev(values):.1f}"


def minutes(record: Record) -> str:
    """Format the training time; an interrupted run knows only its last part and gets a dash."""
    if not record.get("training_seconds") or record.get("resumed"):
        return MISSING
    return f"{record['training_seconds'] / 60:.0f}"


def table(head: str, rows: Iterable[Sequence[Any]]) -> str:
    """Return a Markdown table; ``head`` has the titles of the columns, separated by `` | ``."""
    lines = [f"| {' | '.join(map(str, row))} |" for row in (head.split(" | "), *rows)]
    return "\n".join([lines[0], "|---" * len(head.split(" | ")) + "|", *lines[1:]])


def template(file: Path) -> jinja2.Template:
    """Read a template in which every unknown name is an error."""
    text = file.read_text("utf-8")
    return jinja2.Template(text, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)


def link(text: str, file: str) -> str:
    """Return a link to a file of results."""
    return f"[{text}](results/{file}.json)"


def command(record: Record) -> str:
    """Return the command of a record with the folder of the data written as DIR."""
    return re.sub(r"\.\./[\w/]*data/\w+", "DIR", record["command"])


def source(records: Iterable[Record]) -> str:
    """Return the command, the commits and the machines behind a table.

    Arguments in which the commands differ are written as ``…``; the linked files have them in full.
    """
    rows = list(records)
    commits = list(dict.fromkeys(row["commit"] for row in rows))
    named = f"commit{'s' if len(commits) > 1 else ''} {', '.join(commits)}"
    machines = "; ".join(dict.fromkeys(row["machine"] for row in rows if "machine" in row))
    machines = machines.replace(" 1 threads", " 1 thread")
    shared = _shared([command(row) for row in rows])
    written = "Several commands" if shared == "…" else f"`{shared}`"
    return f"{written}, {named}, {machines}."


def _shared(commands: Sequence[str]) -> str:
    split = [line.split() for line in dict.fromkeys(commands)]
    same = [words[0] if len(set(words)) == 1 else "…" for words in zip(*split, strict=False)]
    if len({len(line) for line in split}) > 1:
        same = [*same[: same.index("…") if "…" in same else None], "…"]
    return re.sub(r"…( …)+", "…", " ".join(same))
