"""How the search changes a model's scores on the development split of Flickr8k.

python scripts/decoding_table.py MODEL --root DIR --output docs/results/decoding-soft.json
python scripts/decoding_table.py MODEL --root DIR --vary samples --output docs/results/decoding-hard.json
python scripts/results_page.py

One option at a time is another than the model's own.
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
from captioner.decoding import Decoding, search
from captioner.evaluation.captions import CaptionScorer
from captioner.evaluation.fluency import fluency
from captioner.files import write_text
from captioner.models.annotations import Annotations
from captioner.predictor import Predictor
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
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="a bundled name, a run folder, a model folder or a .ckpt")
    parser.add_argument("--root", required=True, help="the folder of Flickr8k")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument(
        "--vary",
        nargs="+",
        choices=VALUES,
        default=["beam_size", "length_penalty", "no_repeat"],
        help="options of the search; samples: of hard attention that averages over paths",
    )
    options = parser.parse_args()
    model = captioner.load(options.model)
    records = list(read("flickr8k", options.root).of_split("val"))
    scorer = CaptionScorer({record.image_id: list(record.captions) for record in records})
    preprocessing = model.captioner.encoder.preprocessing
    annotations = []
    for batch in read_batches([record.path for record in records], BATCH, preprocessing):
        for error in batch.failed.values():
            raise error
        annotations.append(
            model.captioner.refiner(model.captioner.encode(batch.pixels.to(model.device)))
        )
    names = [record.image_id for record in records]
    rows = []
    searches = [
        model.decoding.with_options({name: value})
        for name in options.vary
        for value in VALUES[name]
    ]
    for decoding in track(list(dict.fromkeys(searches)), "searching"):
        rows.append(row(model, annotations, names, scorer, decoding))
    command = shlex.join(["python", "scripts/decoding_table.py", *sys.argv[1:]])
    result = {"command": command, "model": model.name, "split": "val", "searches": rows}
    write_text(options.output, json.dumps(result | provenance(), indent=2) + "\n")


def row(
    model: Predictor,
    annotations: list[Annotations],
    names: list[int | str],
    scorer: CaptionScorer[int | str],
    decoding: Decoding,
) -> dict[str, Any]:
    """The scores of one way to search."""
    found = [
        best for some in annotations for best, *_ in search(model.captioner.decoder, some, decoding)
    ]
    texts = {
        name: join(model.vocabulary.decode(hypothesis.tokens))
        for name, hypothesis in zip(names, found, strict=True)
    }
    scores = scorer.score(texts)
    return {"decoding": asdict(decoding), "scores": scores.as_dict(), **fluency(texts.values())}


if __name__ == "__main__":
    main()
