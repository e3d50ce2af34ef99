"""Training steps and captions on a GPU, and the share of its peak that a step reaches."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from captioner import fast
from captioner.data.pixels import read_batches
from captioner.models.annotations import Annotations
from captioner.predict.load import load_own
from captioner.search.beam import search
from speed.measure import Contestant, medians
from speed.rows import CAPTIONS, WIDTH, random_captions, untrained

DESIGNS = ("show-attend-tell", "luong-dot", "multi-head", "adaptive", "transformer")
PRECISIONS: dict[str, Callable[[str], AbstractContextManager[Any]]] = {
    # cuDNN's convolutions and LSTMs compute float32 in TensorFloat-32 unless told not to.
    "float32": lambda _: torch.backends.cudnn.flags(enabled=True, allow_tf32=False),
    "bfloat16": lambda device: torch.autocast(torch.device(device).type, torch.bfloat16),
}
# Teraflop/s of dense matrix products according to NVIDIA's data sheets; float32 without TF32.
PEAKS = {
    name: {"float32": 66.9, "bfloat16": 989.4} for name in ("NVIDIA H100 80GB HBM3", "NVIDIA H200")
}


def training(options: Any, photos: int, cells: int, words: int = 2500) -> Iterator[dict[str, Any]]:
    """Measure a step from annotation vectors, (B, L, D) = (``photos``, ``cells``, 1280)."""
    vectors = torch.randn(photos, cells, WIDTH, device=options.device)
    side = math.isqrt(cells)
    annotations = Annotations(vectors, (side, cells // side))
    tokens = random_captions(photos, words, 20).to(options.device)
    for design in DESIGNS:
        captioner, objective = untrained(design, words)
        captioner.to(options.device)
        fast.accelerate(captioner)

        def step(captioner: Any = captioner, objective: Any = objective) -> None:
            decoded = captioner.decoder(captioner.neck(annotations), tokens[..., :-1])
            torch.autograd.backward(objective(decoded, tokens[..., 1:]).total)
            captioner.zero_grad()

        flops = operations(step)
        seconds = medians(_in_each_precision(step, options.device), options.rounds)
        yield {
            "row": f"train {design}",
            "photos": photos,
            "captions": photos * CAPTIONS,
            "L": cells,
            "V": words,
            "teraflop": round(flops / 1e12, 3),
            "milliseconds": {name: round(1000 * value, 1) for name, value in seconds.items()},
            "captions_per_second": {
                name: round(photos * CAPTIONS / value) for name, value in seconds.items()
            },
            "share_of_peak": shares(flops, seconds, options.device),
        }


def captioning(name: str, paths: list[str], options: Any, batch: int) -> dict[str, Any]:
    """Measure a bundled model on photos, decoded and in memory, and on JPEG files."""
    predictor = load_own(name, options.device)
    captioner, decoding = predictor.captioner, predictor.decoding
    batches = list(read_batches(paths, batch, captioner.encoder.preprocessing))
    pixels = [read.pixels.to(options.device) for read in batches]

    @torch.inference_mode()
    def in_memory() -> list[list[int]]:
        annotations = (captioner.neck(captioner.encoder(part)) for part in pixels)
        beams = (beam for part in annotations for beam in search(captioner.decoder, part, decoding))
        return [best[0].tokens for best in beams]

    def from_files() -> list[Any]:
        return list(predictor.captions(paths, decoding, batch))

    contestants = _in_each_precision(in_memory, options.device)
    contestants["from JPEG files"] = Contestant(from_files)
    seconds = medians(contestants, options.rounds)
    with torch.autocast(torch.device(options.device).type, torch.bfloat16):
        half = in_memory()
    return {
        "row": f"caption {name}",
        "photos": len(paths),
        "batch": batch,
        "beam": decoding.beam_size,
        "captions_per_second": {n: round(len(paths) / value, 1) for n, value in seconds.items()},
        "same_in_bfloat16": sum(a == b for a, b in zip(in_memory(), half, strict=True)),
    }


def _in_each_precision(work: Callable[[], Any], device: str) -> dict[str, Contestant]:
    return {name: Contestant(work, partial(chosen, device)) for name, chosen in PRECISIONS.items()}


def operations(work: Callable[[], Any]) -> int:
    """Return the floating-point operations of matrix products, convolutions and cuDNN's LSTM."""

    def lstm(rows: Any, weights: Any, *_: Any, **__: Any) -> int:
        matrices = sum(math.prod(shape) for shape in weights if len(shape) == 2)
        return int(2 * math.prod(rows[:-1]) * matrices)

    aten = torch.ops.aten
    own = {aten._cudnn_rnn: lstm, aten._cudnn_rnn_backward: lambda *a, **k: 2 * lstm(*a, **k)}
    with FlopCounterMode(display=False, custom_mapping=own) as counter:
        work()
    return int(counter.get_total_flops())


def shares(flops: int, seconds: dict[str, float], device: str) -> dict[str, float]:
    """Return the share of the GPU's peak in each precision; empty for an unknown device or a CPU."""
    known = torch.device(device).type == "cuda"
    peaks = PEAKS.get(torch.cuda.get_device_name(device), {}) if known else {}
    return {
        kind: round(flops / value / 1e12 / peaks[kind], 4)
        for kind, value in seconds.items()
        if kind in peaks
    }
