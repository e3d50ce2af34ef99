"""Measures what the results page claims about speed and sameness, and writes it as JSON.

python scripts/measure.py --data.root DIR --model RUN --output docs/results/speed.json

- filling the annotation cache against the bare CNN on the same tensors, already in memory;
- ``captioner --help`` and ``captioner caption`` from a cold start;
- a batch of 64 photos against one by one: the same sentences, and how much faster.

Times are medians; what is compared alternates within this one run.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import captioner
from captioner.data.features import AnnotationCache
from captioner.data.pixels import read_batches
from captioner.data.readers import read
from captioner.files import write_text
from captioner.models.encoder import CNNEncoder
from captioner.predictor import Predictor
from captioner.provenance import provenance

BATCH = 32
ENCODERS = ("efficientnet_lite0", "efficientnet_lite2")


def seconds(work: Callable[[], Any]) -> float:
    """How long a call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def cache_filling(name: str, paths: list[str], repeats: int = 5) -> dict[str, Any]:
    """Images per second from files to a cache on disk, and of the CNN alone, on slices of the data."""
    encoder = CNNEncoder(name)
    encoder.load_pretrained()
    size = len(paths) // repeats
    bare, filled = [], []
    for number in range(repeats):
        part = paths[number * size : (number + 1) * size]
        tensors = [batch.pixels for batch in read_batches(part, BATCH, encoder.preprocessing)]
        with torch.inference_mode():
            bare.append(seconds(lambda tensors=tensors: [encoder(pixels) for pixels in tensors]))
        with tempfile.TemporaryDirectory() as folder:
            filled.append(
                seconds(lambda part=part, f=folder: AnnotationCache.open(Path(f), part, encoder))
            )
    return {
        "photos": size * repeats,
        "bare_cnn_images_per_second": round(size / statistics.median(bare), 1),
        "cache_images_per_second": round(size / statistics.median(filled), 1),
        "ratio": round(statistics.median(b / f for b, f in zip(bare, filled, strict=True)), 3),
    }


def cold_start(photo: str, model: str, repeats: int = 5) -> dict[str, float]:
    """Seconds of whole commands in new processes."""
    command = [sys.executable, "-m", "captioner"]
    help_, caption = [], []
    for _ in range(repeats):
        for times, arguments in (
            (help_, ["--help"]),
            (caption, ["caption", photo, "--model", model]),
        ):
            run = [*command, *arguments]
            times.append(
                seconds(lambda run=run: subprocess.run(run, check=True, capture_output=True))
            )
    return {
        "help_seconds": round(statistics.median(help_), 3),
        "caption_seconds": round(statistics.median(caption), 2),
    }


def sameness(paths: list[str], predictor: Predictor) -> dict[str, Any]:
    """Captions of all photos in batches of 64 and one by one."""
    found: dict[int, list[str]] = {}
    times: dict[int, float] = {}
    for size in (64, 1):
        began = time.perf_counter()
        results = list(predictor.captions(paths, batch_size=size))
        times[size] = time.perf_counter() - began
        found[size] = [result.text for result in results if isinstance(result, captioner.Caption)]
    assert len(found[1]) == len(found[64]) == len(paths)
    return {
        "photos": len(paths),
        "same_sentences": sum(a == b for a, b in zip(found[1], found[64], strict=True)),
        "images_per_second_batch_64": round(len(paths) / times[64], 1),
        "images_per_second_batch_1": round(len(paths) / times[1], 1),
    }


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data.root", dest="root", required=True, help="Flickr8k as distributed")
    parser.add_argument("--model", required=True)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    records = read("flickr8k", options.root)
    dev = [record.path for record in records if record.split == "val"]
    result = {
        "command": " ".join(["python", *sys.argv]),
        "cold_start": cold_start(dev[0], options.model),
        "cache": {
            name: cache_filling(name, [record.path for record in records]) for name in ENCODERS
        },
        "batching": sameness(dev[:256], captioner.load(options.model)),
        **provenance(),
    }
    write_text(options.output, json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
