"""Score a model's captions on Flickr8k's development split with other search options.

python scripts/decoding_table.py MODEL --root DIR --output docs/results/decoding-soft.json
python scripts/decoding_table.py MODEL --root DIR --vary samples --output docs/results/decoding-hard.json
python scripts/results_page.py

One option at a time differs from the model's own.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.progress import track
from train_pretrained import generated

from captioner.data.readers import read
from captioner.evaluation.metrics import CaptionScorer
from captioner.files import write_text
from captioner.language.word_classes import fluency
from captioner.predict.load import load_own
from captioner.provenance import provenance

VALUES: dict[str, Sequence[Any]] = {
    "beam_size": (1, 3, 5, 10, 15, 20),
    "length_penalty": (0.7, 0.9, 1.0, 1.1, 1.2, 1.3),
    "no_repeat": (0, 2, 3),
    "samples": (1, 4, 8, 16),
}


def main() -> None:
    """Search, score and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="a bundled name, a run folder, a model folder or a .ckpt")
    parser.add_argument("--root", required=True, help="Flickr8k as distributed")
    parser.add_argument("--output", type=Path, required=True)
    default = ["beam_size", "length_penalty", "no_repeat"]
    parser.add_argument("--vary", nargs="+", choices=VALUES, default=default, help="options")
    options = parser.parse_args()
    model = load_own(options.model)
    records = list(read("flickr8k", options.root).of_split("val"))
    scorer = CaptionScorer({record.image_id: list(record.captions) for record in records})
    changes = [{name: value} for name in options.vary for value in VALUES[name]]
    searches = dict.fromkeys(model.decoding.with_options(change) for change in changes)
    rows = []
    for decoding in track(list(searches), "searching"):
        texts = generated(model, records, decoding)
        scores = scorer.score(texts).as_dict()
        rows.append({"decoding": asdict(decoding), "scores": scores, **fluency(texts.values())})
    command = shlex.join(["python", "scripts/decoding_table.py", *sys.argv[1:]])
    result = {"command": command, "model": model.name, "split": "val", "searches": rows}
    write_text(options.output, json.dumps(result | provenance(), indent=2) + "\n")


if __name__ == "__main__":
    main()
