"""Measure what a data set of COCO's size costs in time and memory.

python scripts/measure_data.py DIR --output docs/results/data.json

If DIR holds no data set, a generated one with COCO's layout and size is written there: 82,783 + 40,504
images of a few pixels with five captions each, 10.5 words long on average, whose word frequencies follow
Zipf's law. A fresh process for each start method of workers then measures

- the seconds to list the records and to turn the training captions into token ids;
- the seconds until four workers deliver the first batch;
- the memory of the process and its workers after one epoch, minus that with a tree of twenty images.
  It is the proportional set size: a page that several processes share counts once.
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from itertools import accumulate
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from PIL import Image

from captioner.data.module import CaptionDataModule
from captioner.data.readers import read
from captioner.files import write_text
from captioner.provenance import provenance

SIZES = {"train": 82_783, "val": 40_504}
CAPTIONS = 5
WORDS = 27_000  # distinct words of COCO's training captions
WORKERS = 4
SIDE = 8  # of the decoded images: pixels are not what is measured
METHODS = ("fork", "spawn")


def write_tree(root: Path, sizes: dict[str, int]) -> None:
    """Write ``annotations/captions_PART2014.json`` and ``PART2014/`` for every part."""
    rng = Random(0)
    words = [f"w{rank}" for rank in range(WORDS)]  # frequent words are short
    weights = list(accumulate(1 / rank for rank in range(1, WORDS + 1)))
    (root / "annotations").mkdir(parents=True)
    ids = iter(rng.sample(range(1, 600_000), sum(sizes.values())))  # with gaps, as in COCO
    for part, size in sizes.items():
        (root / f"{part}2014").mkdir()
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for image_id in sorted(next(ids) for _ in range(size)):
            name = f"COCO_{part}2014_{image_id:012d}.jpg"
            patches = Image.frombytes("RGB", (4, 3), rng.randbytes(36)).resize((64, 48))
            patches.save(root / f"{part}2014" / name)
            images.append({"id": image_id, "file_name": name, "height": 48, "width": 64})
            for _ in range(CAPTIONS):
                length = max(8, round(rng.gammavariate(4, 0.6) + 8))
                text = " ".join(rng.choices(words, cum_weights=weights, k=length))
                caption = {"image_id": image_id, "id": len(annotations), "caption": f"{text}."}
                annotations.append(caption)
        file = root / "annotations" / f"captions_{part}2014.json"
        file.write_text(json.dumps({"images": images, "annotations": annotations}), "utf-8")


def proportional(processes: Iterable[int]) -> float:
    """Return the MB that these processes hold; a shared page counts once."""
    total = 0
    for process in processes:
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return 1024 * total / 1e6


def measure(root: Path, method: str) -> dict[str, Any]:
    """Run one epoch over the training images in this process and its workers."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    records = read("coco", root)
    listed = time.perf_counter()
    images, captions = len(records), sum(len(record.captions) for record in records)
    del records
    data = CaptionDataModule("coco", str(root), cache=False, min_count=1, num_workers=WORKERS)
    data.trainer = fake_trainer()
    begin = time.perf_counter()
    data.setup("fit")
    loader = data.train_dataloader()
    prepared = time.perf_counter()
    loader.multiprocessing_context = method
    batches = iter(loader)
    seen = len(next(batches).image_ids)
    first = time.perf_counter()
    seen += sum(len(batch.image_ids) for batch in batches)
    processes = [multiprocessing.current_process(), *multiprocessing.active_children()]
    return {
        "images": images,
        "captions": captions,
        "training_images_read": seen,
        "listing": {"seconds": round(listed - began, 2)},
        "listing_and_words": {"seconds": round(prepared - begin, 2)},
        "first_batch_seconds": round(first - prepared, 2),
        "processes": len(processes),
        "all_megabytes": round(proportional(p.pid for p in processes if p.pid)),
    }


def fake_trainer() -> Any:
    """Return as much of a Lightning trainer and a model as the data module reads."""
    trainer = mock.Mock()
    trainer.lightning_module.objective.needs_masks = False
    encoder = trainer.lightning_module.captioner.encoder
    encoder.trainable = True  # so that nothing is cached
    encoder.preprocessing = SimpleNamespace(height=SIDE, width=SIDE, interpolation="bilinear")
    trainer.fit_loop.epoch_loop.batch_progress.current.ready = 0
    return trainer


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path, metavar="DIR")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    options = parser.parse_args()
    if not (options.root / "annotations").is_dir():
        write_tree(options.root, SIZES)
    workers = {}
    # Every measurement has a fresh interpreter.
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as scratch,
        ProcessPoolExecutor(1, context, max_tasks_per_child=1) as pool,
    ):
        write_tree(Path(scratch), {"train": 16, "val": 4})
        for method in METHODS:
            small = pool.submit(measure, Path(scratch), method).result()["all_megabytes"]
            whole = pool.submit(measure, options.root, method).result()
            workers[method] = whole | {"megabytes_without_data": small}
            workers[method]["megabytes_of_the_data"] = whole["all_megabytes"] - small
    result = {"command": " ".join(["python", *sys.argv]), "workers": workers, **provenance()}
    write_text(options.output, json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
