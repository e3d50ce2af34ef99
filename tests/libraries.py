"""Small libraries of photos, their captions, and engines without a model or processes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
from PIL import Image


def draw(folder: Path, photos: int, broken: tuple[int, ...] = ()) -> list[str]:
    """Write different images into two folders, some of them broken; return their names."""
    names = []
    for number in range(photos):
        file = folder / f"{number % 2}" / f"{number:04}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        if number in broken:
            file.write_text("not an image")
        else:
            rng = np.random.default_rng(number)
            blocks = rng.integers(0, 256, (4, 6, 3), dtype=np.uint8).repeat(16, 0).repeat(16, 1)
            Image.fromarray(blocks).save(file, quality=80)
        names.append(str(file))
    return sorted(names)


def records(folder: Path) -> list[dict]:
    """Return the records of a folder of JSONL shards in order."""
    return [
        json.loads(line)
        for shard in sorted(folder.glob("captions-*.jsonl"))
        for line in shard.read_text("utf-8").split("\n")[:-1]
    ]


def manifest(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text())


def whole(folder: Path, names: list[str]) -> None:
    """Assert that every photo has one record and that no unfinished file is left."""
    assert sorted(record["image"] for record in records(folder)) == sorted(names)
    assert not [file for file in folder.iterdir() if file.name.startswith(".")]
    assert manifest(folder)["finished"]
    assert manifest(folder)["images"] == len(names)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "captioner", "caption", *map(str, arguments)]


def call(*arguments: object, **options) -> subprocess.CompletedProcess:
    """Run ``captioner caption`` in a new process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **options.pop("env", {})}
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, check=False, env=environment, **options
    )


def on_terminal(command: list[str]) -> str:
    """Run a command on a terminal; return what it shows, without control sequences."""
    import pty

    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(command[0], command, {**os.environ, "TERM": "xterm", "COLUMNS": "300"})
    shown = b""
    with suppress(OSError):  # the terminal closes with the command
        while data := os.read(terminal, 65536):
            shown += data
    os.waitpid(pid, 0)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())


def serve(connection, options, threads) -> None:
    """Serve like a worker, without a model; ``options`` names photos that kill, hang or fail."""
    connection.send(options.get("greeting", {"identity": {}, "device": "cpu"}))
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
            if name == options.get("fails"):
                connection.send(OSError(f"{name}: the disk failed"))
                return
        connection.send(([{"image": name, "caption": "a dog"} for name in names], []))
