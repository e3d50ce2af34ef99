"""Measure speed and memory: against a tutorial's code, and with and without captioner.fast.

python scripts/benchmark.py train --output docs/results/speed-train.json
python scripts/benchmark.py caption --runs RUN… --data.root DIR --output docs/results/speed-caption.json
python scripts/benchmark.py files --runs RUN… --data.root DIR --output docs/results/speed-files.json
python scripts/benchmark.py memory --runs RUN --data.root DIR --output docs/results/speed-memory.json
python scripts/benchmark.py gpu --data.root DIR --output docs/results/speed-gpu.json

DIR is Flickr8k as distributed; RUN is a run folder of a trained LSTM decoder. Every row
is one line of JSON; times are medians of rounds in which all variants take turns. ``train`` and
``caption`` compare with ``plain``, the same model as tutorials write it (speed/plain.py), after checking
that both compute the same. ``files`` compares with the CNN alone on decoded photos in memory. ``gpu``
measures larger steps and the default model in float32 and bfloat16.

Every other row is measured with the replacements of ``captioner.fast`` and without.
``--without NAME`` adds a variant that lacks one replacement; ``--without`` alone adds one for each.
The allocator's setting is the process's: measure it with a second run under ``--without-malloc``.
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
from speed import gpu, rows
from speed.measure import command_row, replacement_names

from captioner.data.pixels import read_batches
from captioner.data.readers import read
from captioner.fast.malloc import keep_memory
from captioner.files import write_text
from captioner.models.encoder import CNNEncoder
from captioner.predict.load import load_own
from captioner.provenance import provenance
from captioner.resources import DEFAULT_MODEL
from captioner.store import checkpoint
from captioner.training.precision import unsupported

ENCODERS = ("efficientnet_lite0", "efficientnet_lite2")
CAPTIONER = (sys.executable, "-m", "captioner")


def train(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure training steps at the sizes of the Flickr8k configuration."""
    for cells in (49, 196):
        for design in rows.DESIGNS:
            yield rows.training(design, options, cells=cells)


def caption(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure beam search and greedy search from annotation vectors."""
    for run in options.runs:
        stored = checkpoint.load(run)
        encoder = stored.captioner.encoder.to(options.device)
        with torch.inference_mode():
            batches = read_batches(photos(options), rows.BATCH, encoder.preprocessing)
            vectors = torch.cat([encoder(b.pixels.to(options.device)).vectors for b in batches])
        for beam_size, batch in ((5, 64), (1, 64), (5, 1)):
            yield rows.captioning(run.name, stored, vectors, options, beam_size, batch)


def from_files(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure caches, captions and commands from JPEG files."""
    paths = photos(options)
    for name in ENCODERS:
        encoder = CNNEncoder(name)
        encoder.load_pretrained()
        yield rows.cache(name, encoder, paths, options)
    for run in options.runs:
        predictor = load_own(run, "cpu")
        for beam_size in (5, 1):
            yield rows.folder(run.name, predictor, paths, options, beam_size)
        yield rows.cold(paths[0], str(run), options)


def memory(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure the memory of captioning many photos and of training for an epoch."""
    records = read("flickr8k", options.root)
    for number in (1000, 10_000):
        with tempfile.TemporaryDirectory() as folder:
            for place in range(number):
                shutil.copyfile(records[place % len(records)].path, Path(folder, f"{place}.jpg"))
            output = ["--output", str(Path(folder, "captions.jsonl")), "--format", "jsonl"]
            command = [*CAPTIONER, "caption", folder, "--model", str(options.runs[0]), *output]
            yield command_row("memory: caption files", command, photos=number)
    for precision in ("32-true", "bf16-mixed"):
        if unsupported(precision, "cpu"):
            continue
        with tempfile.TemporaryDirectory() as folder:
            fit = ["fit", "--config", "configs/flickr8k.yaml", "--data.root", options.root]
            fit += [f"--data.cache_dir={folder}/cache", f"--trainer.default_root_dir={folder}/run"]
            fit += ["--trainer.max_epochs=1", f"--trainer.precision={precision}"]
            about = {"photos": len(records), "precision": precision}
            yield command_row("memory: an epoch of training", [*CAPTIONER, *fit], **about)


def on_gpu(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure training steps and the default model on a GPU, in float32 and bfloat16."""
    for cells in (49, 256):
        yield from gpu.training(options, photos=128, cells=cells)
    yield gpu.captioning(DEFAULT_MODEL, photos(options), options, batch=256)


def photos(options: argparse.Namespace) -> list[str]:
    """Return paths of development photos."""
    records = list(read("flickr8k", options.root).of_split("val"))
    return [record.path for record in records[: options.photos]]


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(required=True)
    kinds = {
        "train": train,
        "caption": caption,
        "files": from_files,
        "memory": memory,
        "gpu": on_gpu,
    }
    names = replacement_names()
    for name, measure in kinds.items():
        part = parts.add_parser(name, help=str(measure.__doc__).splitlines()[0])
        part.set_defaults(measure=measure)
        part.add_argument("--output", type=Path, help="write all rows to this file")
        part.add_argument("--without-malloc", action="store_true", help="keep glibc's defaults")
        if name != "train":
            part.add_argument("--data.root", dest="root", required=True)
        if name not in ("train", "gpu"):
            part.add_argument("--runs", type=Path, nargs="+", required=True)
        if name != "memory":
            part.add_argument("--rounds", type=int, default=7)
            part.add_argument("--device", default="cuda" if name == "gpu" else "cpu")
            part.add_argument("--photos", type=int, default=256)
        if name not in ("memory", "gpu"):
            part.add_argument("--without", nargs="*", choices=names, metavar="NAME", default=[])
    options = parser.parse_args()
    if "--without" in sys.argv and not options.without:
        options.without = names
    return options


def main() -> None:
    """Measure, print and write."""
    options = parse()
    if not options.without_malloc and os.environ.get("CAPTIONER_FAST", "1") != "0":
        keep_memory()  # as the package's commands do
    found = []
    for row in options.measure(options):
        print(json.dumps(row), flush=True)
        found.append(row)
    if options.output:
        result = {"command": " ".join(["python", *sys.argv]), "rows": found, **provenance()}
        write_text(options.output, json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
