"""How fast, and in what memory: against a tutorial's code, bare matrix products and the bare CNN.

python scripts/benchmark.py train --output docs/results/speed-train.json
python scripts/benchmark.py caption --runs RUN… --data.root DIR --output docs/results/speed-caption.json
python scripts/benchmark.py files --runs RUN… --data.root DIR --output docs/results/speed-files.json
python scripts/benchmark.py memory --runs RUN --data.root DIR --output docs/results/speed-memory.json
python scripts/benchmark.py quality --precision bf16-mixed 32-true --data.root DIR \\
    --output docs/results/speed-quality.json

Every row is one line of JSON. ``train`` and ``caption`` have two yardsticks, measured in the same run,
in turn: ``plain``, the same model as tutorials write it (speed/plain.py), whose numbers are asserted to
be the same; and ``floor``, the matrix products that the real words need, called bare as torch multiplies
(speed/floor.py), in float32 also by oneDNN where the package's own layers ask it.
Times are medians of rounds; a row says

- ``times_plain``: how many times as fast as ``plain`` in float32;
- ``of_floor``: floor / ours, 1 being nothing but the products, in the same precision. 1 can be passed:
  oneDNN may be the faster of the two libraries, and attention's products are counted as if all captions
  of a picture were equally long;
- ``of_onednn``: the same of the products by oneDNN.

``files`` begins with JPEGs; its yardstick is the CNN alone, as its library builds it, on the same
pictures, decoded and in memory, in this process, which keeps its memory as the package's commands do,
and in one that does not; and the CNN as the package runs it, its batch norms folded.
``quality`` begins with them too, and ends with scored captions: its rows, one for each precision, have
the scores of the development split beside the minutes. It trains with two processes of one thread, on
two cores faster than two threads.
DIR is Flickr8k as distributed; RUNs are trained models, such as ``quality --keep RUN`` makes.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from speed import captioning, files, memory, training

from captioner import checkpoint
from captioner.data.pixels import read_batches
from captioner.data.readers import read
from captioner.files import write_text
from captioner.memory import keep_memory
from captioner.models.encoder import CNNEncoder
from captioner.predictor import load
from captioner.provenance import provenance

ENCODERS = ("efficientnet_lite0", "efficientnet_lite2")


def train(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The designs at the sizes of the Flickr8k configuration, and how cost grows."""
    for cells in (49, 196):
        for design in training.DESIGNS:
            sizes = {**training.BASE, "cells": cells}
            yield training.row(design, options.device, options.rounds, **sizes)
    if options.grow:
        for name, values in training.GROWTH.items():
            for value in values:
                for design in training.DESIGNS:
                    sizes = {**training.BASE, name: value}
                    yield training.row(design, options.device, options.rounds, **sizes)


def caption(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every run: beam 5 and greedy; in smaller batches, and with other beams."""
    for run in options.runs:
        stored = checkpoint.load(run)
        encoder = stored.captioner.encoder.to(options.device)
        with torch.inference_mode():
            batches = read_batches(photos(options), 64, encoder.preprocessing)
            vectors = torch.cat([encoder(b.pixels.to(options.device)).vectors for b in batches])
        asked = [(5, 64), (1, 64)]
        if options.grow:
            asked += [(5, 1), (5, 16), (3, 64), (10, 64)]
        for beam_size, batch in asked:
            yield captioning.row(
                run.name,
                stored,
                vectors,
                device=options.device,
                rounds=options.rounds,
                beam_size=beam_size,
                batch=batch,
                some=max(1, len(vectors) // 8),
            )


def from_files(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Caches, captions and whole commands."""
    paths = photos(options)
    for name in ENCODERS:
        encoder = CNNEncoder(name)
        encoder.load_pretrained()
        yield files.cache_row(name, encoder, paths, options.rounds)
    for run in options.runs:
        predictor = load(run, "cpu")
        for beam_size in (5, 1):
            yield files.folder_row(run.name, predictor, paths, options.rounds, beam_size)
    yield files.batching_row(run.name, predictor, paths, options.rounds)
    yield files.cold_row(paths[0], str(run), options.rounds)


def in_memory(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What captioning many photos and training for an epoch hold."""
    command = [sys.executable, "-m", "captioner"]
    records = read("flickr8k", options.root)
    for number in (1000, options.library):
        with tempfile.TemporaryDirectory() as folder:
            for place in range(number):
                original = records[place % len(records)].path
                link(original, Path(folder) / f"{place}.jpg")
            output = ["--output", str(Path(folder) / "captions.jsonl"), "--format", "jsonl"]
            asked = ["caption", folder, "--model", str(options.runs), *output]
            yield memory.row("memory: caption files", [*command, *asked], photos=number)
    for precision in ("32-true", "bf16-mixed"):
        with tempfile.TemporaryDirectory() as folder:
            config = ["fit", "--config", "configs/flickr8k.yaml", "--data.root", options.root]
            places = [
                f"--data.cache_dir={folder}/cache",
                f"--trainer.default_root_dir={folder}/run",
            ]
            asked = [*config, *places, "--trainer.max_epochs=1", f"--trainer.precision={precision}"]
            about = {"photos": len(records), "precision": precision}
            yield memory.row("memory: an epoch of training", [*command, *asked], **about)


def quality(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """From photos to scored captions, no annotation cached before."""
    for precision in options.precision:
        with tempfile.TemporaryDirectory() as folder:
            first = precision == options.precision[0]
            run = options.keep if first and options.keep else Path(folder, "run")
            command = [
                *("env", "OMP_NUM_THREADS=1", sys.executable, "-m", "captioner", "fit"),
                *("--config", "configs/flickr8k.yaml", "--data.root", options.root),
                *(f"--data.cache_dir={folder}/cache", f"--trainer.default_root_dir={run}"),
                *(f"--trainer.precision={precision}", f"--trainer.max_epochs={options.epochs}"),
                *("--trainer.devices=2", "--trainer.strategy=ddp", "--model.decoding.no_repeat=2"),
                "--model.val_beam_size=1",  # of the epochs; what counts is searched for at the end
            ]
            sizes = {"precision": precision, "epochs": options.epochs}
            taken = memory.row("quality: photos to scored captions", command, **sizes)
            file = run / "results" / "val-beam5.json"
            found = json.loads(file.read_text("utf-8"))["scores"]
            # Without Java there is no METEOR.
            told = {key: found[key] for key in ("bleu_4", "meteor", "cider") if found[key]}
            scores = {key: round(value, 1) for key, value in told.items()}
            yield {**taken, "minutes": round(taken["seconds"] / 60, 1), "scores": scores}


def link(original: str, name: Path) -> None:
    """The same file under another name."""
    try:
        os.link(original, name)
    except OSError:  # on another disk
        shutil.copyfile(original, name)


def photos(options: argparse.Namespace) -> list[str]:
    """Paths of development photos."""
    records = [r for r in read("flickr8k", options.root) if r.split == "val"]
    return [record.path for record in records[: options.photos]]


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(required=True)
    rows = {
        "train": train,
        "caption": caption,
        "files": from_files,
        "memory": in_memory,
        "quality": quality,
    }
    for name, measure in rows.items():
        part = parts.add_parser(name, help=str(measure.__doc__).splitlines()[0])
        part.set_defaults(measure=measure)
        part.add_argument("--output", type=Path, help="all rows in one file")
        if name not in ("memory", "quality"):
            part.add_argument("--rounds", type=int, default=7)
        if name in ("train", "caption"):
            part.add_argument("--device", default="cpu")
            part.add_argument("--grow", action="store_true", help="also how cost grows")
        if name not in ("train", "quality"):
            several = None if name == "memory" else "+"
            part.add_argument("--runs", type=Path, nargs=several, required=True)
        if name != "train":
            part.add_argument("--data.root", dest="root", required=True)
        if name in ("caption", "files"):
            part.add_argument("--photos", type=int, default=256)
        if name == "memory":
            part.add_argument("--library", type=int, default=10_000, metavar="PHOTOS")
        if name == "quality":
            part.add_argument("--epochs", type=int, default=5)
            part.add_argument(
                "--precision", nargs="+", default=["bf16-mixed"], help="a training for each"
            )
            part.add_argument(
                "--keep", type=Path, metavar="RUN", help="where the first run is kept"
            )
    options = parser.parse_args()
    keep_memory()  # as the package's commands do; the yardsticks are the faster for it, too
    found = []
    for row in options.measure(options):
        print(json.dumps(row), flush=True)
        found.append(row)
    if options.output:
        result = {"command": " ".join(["python", *sys.argv]), "rows": found, **provenance()}
        write_text(options.output, json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
