"""How the search changes a model's scores on the development split of Flickr8k.

python scripts/decoding_table.py MODEL --root DIR --output docs/results/decoding-soft.json
python scripts/results_page.py
"""

import argparse
import json
import shlex
import sys
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

SEARCHES = [  # beam, length penalty, no run of so many words twice
    *((beam, 0.9, 2) for beam in (1, 3, 5, 10)),
    *((5, penalty, 2) for penalty in (0.7, 0.8, 1.0, 1.1)),
    *((5, 0.9, no_repeat) for no_repeat in (0, 3)),
]
BATCH = 64


@torch.inference_mode()
def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="a bundled name, a run folder, a model folder or a .ckpt")
    parser.add_argument("--root", required=True, help="the folder of Flickr8k")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    model = captioner.load(options.model)
    records = list(read("flickr8k", options.root).of_split("val"))
    scorer = CaptionScorer({record.image_id: list(record.captions) for record in records})
    preprocessing = model.captioner.encoder.preprocessing
    annotations = [
        model.captioner.refiner(model.captioner.encode(batch.pixels.to(model.device)))
        for batch in read_batches([record.path for record in records], BATCH, preprocessing)
    ]
    names = [record.image_id for record in records]
    rows = []
    for beam_size, length_penalty, no_repeat in track(SEARCHES, "searching"):
        decoding = Decoding(beam_size, length_penalty=length_penalty, no_repeat=no_repeat)
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
