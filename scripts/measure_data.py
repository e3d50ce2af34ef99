"""Measures what a data set of COCO's size costs, and writes it as JSON.

python scripts/measure_data.py DIR --output docs/results/data.json

DIR gets a tree of COCO's layout (``scripts/coco_tree.py``) if it holds none. In processes of their own,
for workers that are forked and for spawned ones:

- how long the records take to list, and the training captions to become ids, in seconds of a CPU and
  on the clock, which differ where the machine has other work to do;
- how long four workers take to give their first batch, on the clock;
- the memory of the process and its workers after they have given every training picture, less that
  of the same processes on a tree of twenty images. It is the proportional set size: a page that several
  processes share counts once.
"""

import argparse
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import coco_tree
import torch

from captioner.data.module import CaptionDataModule
from captioner.data.readers import read
from captioner.files import write_text
from captioner.provenance import provenance

WORKERS = 4
SIDE = 8  # of the decoded pictures: their pixels are not what is measured
METHODS = ("fork", "spawn")


def proportional(processes: Iterable[int]) -> float:
    """MB (10⁶ bytes) that these processes hold, a shared page counted once."""
    total = 0
    for process in processes:
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return 1024 * total / 1e6


def since(began: tuple[float, float]) -> dict[str, float]:
    """Seconds of this process's CPU and of the clock."""
    cpu, clock = time.process_time() - began[0], time.perf_counter() - began[1]
    return {"cpu_seconds": round(cpu, 2), "seconds": round(clock, 2)}


def measure(root: Path, method: str) -> dict[str, Any]:
    """One epoch over the training pictures in this process and its workers."""
    torch.set_num_threads(1)
    began = time.process_time(), time.perf_counter()
    records = read("coco", root)
    listed = since(began)
    images, captions = len(records), sum(len(record.captions) for record in records)
    del records
    began = time.process_time(), time.perf_counter()
    data = CaptionDataModule("coco", str(root), cache=False, min_count=1, num_workers=WORKERS)
    preprocessing = SimpleNamespace(height=SIDE, width=SIDE, interpolation="bilinear")
    encoder = SimpleNamespace(
        preprocessing=preprocessing, trainable=True, load_pretrained=lambda: None
    )
    task = SimpleNamespace(
        captioner=SimpleNamespace(encoder=encoder), objective=SimpleNamespace(needs_masks=False)
    )
    progress = SimpleNamespace(batch_progress=SimpleNamespace(current=SimpleNamespace(ready=0)))
    data.trainer = SimpleNamespace(  # type: ignore[assignment]
        lightning_module=task, fit_loop=SimpleNamespace(epoch_loop=progress)
    )
    data.setup("fit")
    loader = data.train_dataloader()
    prepared = since(began)
    loader.multiprocessing_context = method
    began = time.process_time(), time.perf_counter()
    batches = iter(loader)
    seen = len(next(batches).image_ids)
    first = since(began)
    seen += sum(len(batch.image_ids) for batch in batches)
    workers = [child.pid for child in multiprocessing.active_children()]
    everybody = [pid for pid in [multiprocessing.current_process().pid, *workers] if pid]
    return {
        "images": images,
        "captions": captions,
        "training_images_read": seen,
        "listing": listed,
        "listing_and_words": prepared,
        "first_batch_seconds": first["seconds"],
        "processes": len(everybody),
        "all_megabytes": round(proportional(everybody)),
    }


def apart(root: Path, method: str) -> dict[str, Any]:
    """``measure`` in a fresh interpreter."""
    command = [sys.executable, __file__, str(root), "--only", method]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", type=Path)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--only", choices=METHODS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measure(options.root, options.only)))
        return
    if not (options.root / "annotations").is_dir():
        coco_tree.write(options.root, {"train": coco_tree.TRAIN, "val": coco_tree.VAL})
    result: dict[str, Any] = {"command": " ".join(["python", *sys.argv]), "workers": {}}
    with tempfile.TemporaryDirectory() as scratch:
        coco_tree.write(Path(scratch), {"train": 16, "val": 4})
        for method in METHODS:
            small, whole = apart(Path(scratch), method), apart(options.root, method)
            added = whole["all_megabytes"] - small["all_megabytes"]
            result["workers"][method] = {
                **whole,
                "megabytes_without_data": small["all_megabytes"],
                "megabytes_of_the_data": added,
            }
    result |= provenance()
    text = json.dumps(result, indent=2) + "\n"
    if options.output:
        write_text(options.output, text)
    print(text)


if __name__ == "__main__":
    main()
