"""Captions a library of generated photos, some of them broken, and says how fast and in what memory.

python scripts/measure_library.py --model RUN --photos 20000 --engine local --output library.json

Every photo is checked against what is known of it: the good ones have a caption, the broken ones a
named error, each once. Memory is that of all processes of the command, shared pages counted once for
each process that has them, sampled every second.
"""

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from speed.memory import watch

from captioner.data.shapes import scene
from captioner.files import write_text
from captioner.provenance import provenance

BROKEN = 100  # one photo in so many


def draw(folder: Path, photos: int) -> set[str]:
    """Small JPEGs in folders of a thousand; the names of those that are broken."""
    broken = set()
    for number in range(photos):
        file = folder / f"{number // 1000:03}" / f"{number:06}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        new = not file.is_file()
        if new:
            scene(7, number, image_size=128).image.save(file, quality=85)
        if number % BROKEN == BROKEN // 2:
            broken.add(str(file.resolve()))
            if new:
                damage(file, random.Random(number))
    return broken


def damage(file: Path, rng: random.Random) -> None:
    """What happens to files: cut, emptied, overwritten, replaced by an error page."""
    data = file.read_bytes()
    forms = [
        b"",
        data[: rng.randrange(1, len(data) // 2)],
        bytes(len(data)),
        b"<!doctype html><title>404</title>",
    ]
    file.write_bytes(rng.choice(forms))


def records(folder: Path) -> list[dict[str, Any]]:
    """All that stands in the shards."""
    return [
        json.loads(line)
        for shard in sorted(folder.glob("captions-*.jsonl"))
        for line in shard.read_text("utf-8").split("\n")[:-1]
    ]


def measure(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """One engine over the library."""
    broken = draw(work / "photos", options.photos)
    output = work / f"captions-{options.engine}"
    command = [sys.executable, "-m", "captioner", "caption", str(work / "photos"), "--output"]
    command += [str(output), "--model", options.model, "--engine", options.engine]
    command += [f"--workers={options.workers}", f"--beam-size={options.beam_size}"]
    seen = watch(command)
    memory = [(when, sum(kinds.values())) for when, kinds in seen.memory]
    found = records(output)
    images = [record["image"] for record in found]
    failed = {record["image"] for record in found if "error" in record}
    # The start, in which models are loaded, is no part of the course of the memory.
    course = [megabytes for when, megabytes in memory if when > seen.seconds / 5]
    half = len(course) // 2
    return {
        "engine": options.engine,
        "workers": options.workers,
        "photos": options.photos,
        "broken": len(broken),
        "exit_status": seen.status,
        "records": len(found),
        "each_photo_once": len(set(images)) == len(images) == options.photos,
        "broken_ones_named": failed == broken and all(name in seen.errors for name in broken),
        "seconds": round(seen.seconds, 1),
        "images_per_second": round(options.photos / seen.seconds, 1),
        "memory_mb": {
            "greatest": round(max(megabytes for _, megabytes in memory)),
            "first_half": round(sum(course[:half]) / max(1, half)),
            "second_half": round(sum(course[half:]) / max(1, len(course) - half)),
            "course": [
                [when, round(megabytes)] for when, megabytes in memory[:: max(1, len(memory) // 20)]
            ],
        },
    }


def main() -> None:
    """Writes the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--photos", type=int, default=20000)
    parser.add_argument("--engine", choices=("local", "ray"), default="local")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--beam-size", type=int, default=5)
    parser.add_argument("--work", help="folder to draw the photos in; a temporary one if not given")
    parser.add_argument("--output", required=True, help="the report, as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(options, Path(options.work or folder))
    report = {"command": " ".join(["python", *sys.argv]), **provenance(), **result}
    write_text(Path(options.output), json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
