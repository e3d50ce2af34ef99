"""Score captions against references, and the diversity of several captions per photo.

captioner evaluate captions.json --references captions_val2014.json
captioner evaluate captions.jsonl --references captions.json --output scores.json
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from captioner.cli.arguments import add_output, open_output
from captioner.cli.outputs import check_files
from captioner.errors import plural


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``evaluate``."""
    parser.add_argument("results", help="COCO results JSON, or the JSONL of captioner caption")
    parser.add_argument("--references", required=True, help="COCO captions JSON")
    text = "use Java for the PTB tokenizer and METEOR; auto uses it if it is installed"
    parser.add_argument("--java", choices=("auto", "yes", "no"), default="auto", help=text)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Write the scores as JSON, rounded to two decimals, and return the exit status."""
    if options.output is not None:
        inputs = [Path(options.results), Path(options.references)]
        check_files([Path(options.output)], options.overwrite, inputs)
    from captioner.evaluation.metrics import evaluate_files

    java = {"auto": None, "yes": True, "no": False}[options.java]
    scores = evaluate_files(options.results, options.references, java=java)
    if scores.missing > scores.images:
        total = plural(scores.images + scores.missing, "photo")
        print(
            f"captioner: {scores.missing:,} of {total} with references have no caption and are not "
            "scored; scores of few photos are not comparable with scores of all photos",
            file=sys.stderr,
        )
    with open_output(options.output) as stream:
        print(json.dumps(_rounded(scores.as_dict()), indent=2), file=stream)
    return 0


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    return round(value, 2) if isinstance(value, float) else value
