"""List the models that --model accepts by name.

captioner models
captioner models --runs experiments
"""

import argparse
import re
from pathlib import Path

from captioner.cli.checks import MODEL_FILES
from captioner.resources import DEFAULT_MODEL, models

GOOD_FOR = {
    "luong-dot": "general use: the sharpest maps, and the most kinds of photos",
    "show-attend-tell-soft": "studying soft attention as in the paper",
    "show-attend-tell-critical": "the best scores on Flickr8k; its sentences are less coherent",
    "show-attend-tell-hard": "studying hard attention: one sampled region for each word",
    "transformer": "the smallest; has maps for each layer and head",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``models``."""
    text = "folder whose training runs are listed, too"
    parser.add_argument("--runs", metavar="DIR", help=f"{text} (default: runs)")


def run(options: argparse.Namespace) -> int:
    """Print a line for each model, its scores and its size; return the exit status."""
    print(f"{'model':26} {'BLEU-4':>6} {'CIDEr':>6} {'size':>8}  good for")
    for name, folder in models().items():
        card = (folder / "README.md").read_text("utf-8")
        scores = dict(zip(*_table(card), strict=True))
        [size] = re.findall(r"([\d.]+ MB)", card)[:1]
        purpose = GOOD_FOR.get(name, "") + (" (the default)" if name == DEFAULT_MODEL else "")
        print(f"{name:26} {scores['BLEU-4']:>6} {scores['CIDEr']:>6} {size:>8}  {purpose}")
    runs = [
        folder
        for folder in sorted(Path(options.runs or "runs").glob("*/"))
        if any((folder / file).is_file() for file in MODEL_FILES[1:])
    ]
    print(*(f"{folder}  (your run)" for folder in runs), sep="\n", end="\n" if runs else "")
    return 0


def _table(card: str) -> list[list[str]]:
    """The header and the row of a card's table of scores."""
    rows = re.search(r"^(\| BLEU-1 .*)\n\|[-|]+\n(.*)$", card, re.MULTILINE)
    return [re.split(r" *\| *", row.strip("| ")) for row in rows.groups()] if rows else []
