"""Rows that begin with files: filling the annotation cache, captioning JPEGs, commands from cold."""

import copy
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from captioner.data.features import AnnotationCache
from captioner.data.pixels import PixelBatch, read_batches
from captioner.models.encoder import Encoder
from captioner.predictor import Caption, Predictor
from speed.clock import medians
from speed.memory import peaks

BATCH = 64


def cache_row(name: str, encoder: Encoder, paths: list[str], rounds: int) -> dict[str, Any]:
    """From files to a cache on disk, and the CNN alone on the same pictures in memory."""
    batches = list(read_batches(paths, BATCH, encoder.preprocessing))

    def fill() -> None:
        with tempfile.TemporaryDirectory() as folder:
            AnnotationCache.open(Path(folder), paths, encoder)

    return {"row": f"cache {name}", **_beside(encoder, batches, fill, rounds)}


def folder_row(
    name: str, predictor: Predictor, paths: list[str], rounds: int, beam_size: int
) -> dict[str, Any]:
    """From JPEG files to captions, and the CNN alone on the same pictures in memory."""
    encoder = predictor.captioner.encoder
    decoding = predictor.decoding.with_options({"beam_size": beam_size})
    batches = list(read_batches(paths, BATCH, encoder.preprocessing))

    def caption() -> None:
        for _ in predictor.captions(paths, decoding, BATCH):
            pass

    compared = _beside(encoder, batches, caption, rounds)
    return {"row": f"files {name}", "beam": beam_size, **compared}


def batching_row(name: str, predictor: Predictor, paths: list[str], rounds: int) -> dict[str, Any]:
    """Files captioned one by one, and together: how fast, and whether the sentences are the same."""
    sizes = (1, 16, 64)
    found: dict[int, list[str]] = {}

    def caption(size: int) -> None:
        results = predictor.captions(paths, batch_size=size)
        found[size] = [result.text for result in results if isinstance(result, Caption)]

    def of(size: int) -> Callable[[], None]:
        return lambda: caption(size)

    contestants = {f"batch_{size}": of(size) for size in sizes}
    taken = medians(contestants, rounds)
    return {
        "row": f"batching {name}",
        "photos": len(paths),
        "images_per_second": {key: round(len(paths) / value, 1) for key, value in taken.items()},
        "peak_megabytes": peaks(contestants),
        "same_sentences": sum(len(set(texts)) == 1 for texts in zip(*found.values(), strict=True)),
    }


def cold_row(photo: str, model: str, rounds: int) -> dict[str, Any]:
    """Whole commands in new processes."""

    def command(*arguments: str) -> Callable[[], Any]:
        line = [sys.executable, "-m", "captioner", *arguments]
        return lambda: subprocess.run(line, check=True, capture_output=True)

    commands = {"help": command("--help"), "caption": command("caption", photo, "--model", model)}
    taken = medians(commands, rounds)
    return {"row": "cold", "seconds": {name: round(value, 2) for name, value in taken.items()}}


def _bare(encoder: Encoder, pixels: list[torch.Tensor]) -> Callable[[], None]:
    """The CNN, its input in memory, in the batches that suit it best."""

    @torch.inference_mode()
    def run() -> None:
        for batch in pixels:
            encoder(batch)

    return run


def _as_built(encoder: Encoder) -> Encoder:
    """A copy whose network stays as its library builds it."""
    made = copy.deepcopy(encoder)
    made.trainable = True  # what learns is not folded
    return made


@contextmanager
def _elsewhere(encoder: Encoder, pixels: list[torch.Tensor]) -> Iterator[Callable[[], None]]:
    """The bare CNN in a process whose memory comes and goes as torch has it."""
    here, there = Pipe()
    copies = (
        copy.deepcopy(encoder),
        [batch.clone() for batch in pixels],
    )  # they become shared memory
    process = get_context("spawn").Process(target=_serve, args=(there, *copies), daemon=True)
    process.start()
    there.close()
    here.recv()  # it is there

    def run() -> None:
        here.send(True)
        here.recv()

    try:
        yield run
    finally:
        process.kill()
        process.join()


def _serve(there: Connection, encoder: Encoder, pixels: list[torch.Tensor]) -> None:
    run = _bare(encoder, pixels)
    there.send(True)
    while there.recv():
        run()
        there.send(True)


def _beside(
    encoder: Encoder, batches: list[PixelBatch], ours: Callable[[], None], rounds: int
) -> dict[str, Any]:
    pixels = [batch.pixels for batch in batches]
    sizes = sorted((size for batch in batches for size in batch.sizes), key=math.prod)
    photos = len(sizes)
    built = _as_built(encoder)
    contestants = {
        "bare_cnn": _bare(built, pixels),
        "folded_cnn": _bare(encoder, pixels),
        "ours": ours,
    }
    with _elsewhere(built, pixels) as run:
        taken = medians({**contestants, "as_torch_comes": run}, rounds)
    return {
        "photos": photos,
        "median_size": "{} × {}".format(*sizes[photos // 2]),
        "of_bare_cnn": round(taken["bare_cnn"] / taken["ours"], 3),
        "of_folded_cnn": round(taken["folded_cnn"] / taken["ours"], 3),
        "of_torch_cnn": round(taken["as_torch_comes"] / taken["ours"], 3),
        "images_per_second": {name: round(photos / value, 1) for name, value in taken.items()},
        "peak_megabytes": peaks(contestants),
    }
