"""Puts trained designs beside each other: scores, size, and speed measured in one run.

for design in …: captioner fit --config configs/flickr8k.yaml --model configs/model/$design.yaml \
    --data.root DIR --trainer.max_epochs 5 --trainer.default_root_dir runs/designs/$design
python scripts/measure_designs.py --data.root DIR --runs runs/designs --output docs/results/designs.json

The scores are those that ``captioner fit`` wrote. Speeds are medians over rounds that take every design
in turn, from the same annotations, already computed: a training step on 32 photos with 5 captions
each (teacher forcing, loss, gradient, AdamW), and captioning with beam 5, 64 photos at once.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml

from captioner import checkpoint
from captioner.data.pixels import read_batches
from captioner.data.readers import read
from captioner.decoding import Decoding, search
from captioner.files import write_text
from captioner.models.annotations import Annotations
from captioner.models.captioner import Captioner
from captioner.models.registry import build
from captioner.provenance import provenance
from captioner.text import END, START, Tokenizer

PHOTOS, CAPTIONS, WORDS, AT_ONCE = 32, 5, 20, 64


def seconds(work: Callable[[], Any]) -> float:
    """How long a call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class Design:
    """A trained captioner and the two things it is timed at.

    Args:
        run: the run folder.
        texts: five captions of each of 32 photos.
    """

    def __init__(self, run: Path, texts: list[list[str]]) -> None:
        [result] = run.glob("results/val-*.json")
        self.record = json.loads(result.read_text("utf-8"))
        self.captioner: Captioner = checkpoint.load(run).captioner
        config = yaml.safe_load((run / "config.yaml").read_text("utf-8"))
        self.objective = build("objective", config["model"]["objective"])
        learning = [p for p in self.captioner.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(learning, lr=0.0)
        self.tokens = torch.zeros(PHOTOS, CAPTIONS, WORDS + 2, dtype=torch.long)
        for b, captions in enumerate(texts):
            for r, text in enumerate(captions):
                ids = self.captioner.vocabulary.encode(Tokenizer()(text)[:WORDS])
                ids = [START, *ids, END]
                self.tokens[b, r, : len(ids)] = torch.tensor(ids)
        self.training: list[float] = []
        self.captioning: list[float] = []

    def time(self, annotations: Annotations) -> None:
        """One round."""
        some = Annotations(annotations.vectors[:PHOTOS], annotations.grid)
        self.captioner.refiner.train()
        self.captioner.decoder.train()
        self.training.append(seconds(lambda: self._step(some)))
        self.captioner.eval()
        self.captioning.append(seconds(lambda: self._caption(annotations)))

    def row(self) -> dict[str, Any]:
        """What the table says of it."""
        record = self.record
        keep = ("command", "scores", "decoding", "seed", "epoch", "training_seconds", "commit")
        return {
            **{key: record[key] for key in keep},
            "mechanism": self.captioner.decoder.mechanism,
            "refiner": type(self.captioner.refiner).__name__,
            "parameters": sum(
                p.numel()
                for part in (self.captioner.refiner, self.captioner.decoder)
                for p in part.parameters()
            ),
            "training_captions_per_second": round(
                PHOTOS * CAPTIONS / statistics.median(self.training), 1
            ),
            "captioning_images_per_second": round(AT_ONCE / statistics.median(self.captioning), 1),
        }

    def _step(self, annotations: Annotations) -> None:
        detail = "shown" if self.objective.needs_weights else "none"
        decoded = self.captioner(annotations, self.tokens[..., :-1], detail)
        self.optimizer.zero_grad()
        self.objective(decoded, self.tokens[..., 1:]).total.backward()
        self.optimizer.step()

    @torch.inference_mode()
    def _caption(self, annotations: Annotations) -> None:
        search(self.captioner.decoder, self.captioner.refiner(annotations), Decoding(5, 24, 0.9))


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data.root", dest="root", required=True, help="Flickr8k as distributed")
    parser.add_argument("--runs", type=Path, required=True, help="a folder of runs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    records = [r for r in read("flickr8k", options.root) if r.split == "val"][:AT_ONCE]
    texts = [list(record.captions[:CAPTIONS]) for record in records[:PHOTOS]]
    designs = {
        run.name: Design(run, texts)
        for run in sorted(options.runs.iterdir())
        if (run / checkpoint.MODEL).is_dir()
    }
    encoder = next(iter(designs.values())).captioner.encoder
    prints = {design.captioner.encoder.fingerprint() for design in designs.values()}
    if len(prints) > 1:
        raise SystemExit("the designs have different encoders: their speeds cannot be compared")
    paths = [record.path for record in records]
    with torch.inference_mode():
        [batch] = read_batches(paths, AT_ONCE, encoder.preprocessing)
        annotations = encoder(batch.pixels)
    # A tensor of inference mode cannot take part in training.
    annotations = Annotations(annotations.vectors.clone(), annotations.grid)
    for number in range(options.rounds + 1):
        for design in designs.values():
            design.time(annotations)
            if number == 0:  # the first is for warming up
                design.training.clear()
                design.captioning.clear()
        print(f"round {number} of {options.rounds}", file=sys.stderr)
    result = {
        "command": " ".join(["python", *sys.argv]),
        "data": "flickr8k",
        "split": "val",
        "rounds": options.rounds,
        "designs": {name: design.row() for name, design in designs.items()},
        **provenance(),
    }
    write_text(options.output, json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
