"""List the models that --model accepts by name.

captioner models
captioner models --runs experiments
"""

import argparse
import re
from pathlib import Path

from captioner.errors import UsageError
from captioner.resources import bundled_models
from captioner.store.model_folder import BEST, CONFIG, MODEL

GOOD_FOR = {
    "luong-dot": "general use: its maps are most often on the right object (the default)",
    "luong-dot-critical": "the best BLEU and CIDEr; its sentences are less coherent",
    "show-attend-tell-soft": "studying soft attention as in the paper",
    "show-attend-tell-hard": "studying hard attention: one sampled region for each word",
    "transformer": "maps for each layer and head",
    "lite": "the smallest: for old processors and large collections of photos",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``models``."""
    text = "folder whose training runs are listed, too (default: runs)"
    parser.add_argument("--runs", metavar="DIR", help=text)


def run(options: argparse.Namespace) -> int:
    """Print a line for each model, its scores and its size; return the exit status."""
    runs = Path(options.runs or "runs").expanduser()
    if options.runs is not None and not runs.is_dir():
        raise UsageError(f"--runs '{runs}' is not a folder: check the path")
    print(f"{'model':26} {'BLEU-4':>6} {'CIDEr':>6} {'size':>8}  good for")
    for name, folder in bundled_models().items():
        card = (folder / "README.md").read_text("utf-8")
        [[header, row]] = re.findall(r"^\| (BLEU-1 .*)\n\|[-|]+\n\| (.*)$", card, re.MULTILINE)
        scores = dict(zip(header.split(" | "), row.split(" | "), strict=True))
        size = re.findall(r"[\d.]+ MB", card)[0]
        print(f"{name:26} {scores['BLEU-4']:>6} {scores['CIDEr']:>6} {size:>8}  {GOOD_FOR[name]}")
    for folder in sorted(runs.glob("*/")):
        if (folder / MODEL / CONFIG).is_file() or (folder / BEST).is_file():
            print(f"{folder}  (your run)")
    return 0
