"""Small libraries of photos for the tests, and their captions read back."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image

from captioner.library.records import FIELDS, rows


def draw(folder: Path, photos: int, broken: tuple[int, ...] = ()) -> list[str]:
    """Different pictures in two folders, some of them no pictures; their names."""
    names = []
    for number in range(photos):
        file = folder / f"{number % 2}" / f"{number:04}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        if number in broken:
            file.write_text("no picture")
        else:
            rng = np.random.default_rng(number)
            blocks = rng.integers(0, 256, (4, 6, 3), dtype=np.uint8).repeat(16, 0).repeat(16, 1)
            Image.fromarray(blocks).save(file, quality=80)
        names.append(str(file))
    return sorted(names)


def records(folder: Path) -> list[dict]:
    """All records of a folder of JSONL shards, in order."""
    return [
        json.loads(line)
        for shard in sorted(folder.glob("captions-*.jsonl"))
        for line in shard.read_text("utf-8").split("\n")[:-1]
    ]


def manifest(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text())


def whole(folder: Path, names: list[str]) -> None:
    """Every photo has exactly one record, and nothing unfinished is left."""
    assert sorted(record["image"] for record in records(folder)) == sorted(names)
    assert not [file for file in folder.iterdir() if file.name.startswith(".")]
    assert manifest(folder)["finished"]
    assert manifest(folder)["images"] == len(names)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "captioner", "caption", *map(str, arguments)]


def call(*arguments: object, **options) -> subprocess.CompletedProcess:
    """``captioner caption`` as its own process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **options.pop("env", {})}
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, check=False, env=environment, **options
    )


def serve(connection, options, threads) -> None:
    """A worker without a model, of which one photo kills the process, as a codec's segfault does, and
    one never ends."""
    connection.send({"identity": {}, "device": "cpu"})
    while True:
        try:
            names = connection.recv()
        except EOFError:
            return
        for name in names:
            if name == options.get("kills"):
                os.kill(os.getpid(), signal.SIGKILL)
            if name == options.get("hangs"):
                time.sleep(1000)
        columns = dict.fromkeys(FIELDS, [None] * len(names))
        connection.send({**columns, "image": names, "caption": ["a dog"] * len(names)})


class InProcess:
    """The engine that a test can afford many times: no process of its own."""

    def __init__(self, options):
        from captioner.library.batch import BatchCaptioner  # torch: not for the workers above

        self.captioner = BatchCaptioner(**options)
        self.identity = self.captioner.identity

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def __call__(self, batches):
        for names in batches:
            yield from rows(self.captioner({"image": names}))
