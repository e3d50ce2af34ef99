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

import torch
from rich.progress import track

import captioner
from captioner.data.pixels import read_batches
from captioner.data.readers import read
from captioner.decoding import search
from captioner.evaluation.metrics import CaptionScorer
from captioner.evaluation.word_classes import fluency
from captioner.files import write_text
from captioner.provenance import provenance
from captioner.text import join

VALUES: dict[str, Sequence[Any]] = {
    "beam_size": (1, 3, 5, 10, 15, 20),
    "length_penalty": (0.7, 0.9, 1.0, 1.1, 1.2, 1.3),
    "no_repeat": (0, 2, 3),
    "samples": (1, 4, 8, 16),
}
BATCH = 64


@torch.inference_mode()
def main() -> None:
    """Search, score and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="a bundled name, a run folder, a model folder or a .ckpt")
    parser.add_argument("--root", required=True, help="Flickr8k as distributed")
    parser.add_argument("--output", type=Path, required=True)
    default = ["beam_size", "length_penalty", "no_repeat"]
    parser.add_argument(
        "--vary", nargs="+", choices=VALUES, default=default, help="options to vary"
    )
    options = parser.parse_args()
    model = captioner.load(options.model)
    records = list(read("flickr8k", options.root).of_split("val"))
    names = [record.image_id for record in records]
    scorer = CaptionScorer({record.image_id: list(record.captions) for record in records})
    annotations = []
    paths = [record.path for record in records]
    for batch in read_batches(paths, BATCH, model.captioner.encoder.preprocessing):
        for error in batch.failed.values():
            raise error
        encoded = model.captioner.encode(batch.pixels.to(model.device))
        annotations.append(model.captioner.neck(encoded))
    rows = []
    changes = [{name: value} for name in options.vary for value in VALUES[name]]
    searches = dict.fromkeys(model.decoding.with_options(change) for change in changes)
    for decoding in track(list(searches), "searching"):
        found = [
            best[0]
            for some in annotations
            for best in search(model.captioner.decoder, some, decoding)
        ]
        texts = [join(model.vocabulary.decode(hypothesis.tokens)) for hypothesis in found]
        scores = scorer.score(dict(zip(names, texts, strict=True))).as_dict()
        rows.append({"decoding": asdict(decoding), "scores": scores, **fluency(texts)})
    command = shlex.join(["python", "scripts/decoding_table.py", *sys.argv[1:]])
    result = {"command": command, "model": model.name, "split": "val", "searches": rows}
    write_text(options.output, json.dumps(result | provenance(), indent=2) + "\n")


if __name__ == "__main__":
    main()
