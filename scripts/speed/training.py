"""Rows on training steps: forward, loss and backward of one batch of cached annotations."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from captioner.models.annotations import Annotations
from captioner.models.captioner import Captioner
from captioner.models.linear import ONEDNN
from captioner.models.registry import build
from captioner.text import END, PAD, START, Vocabulary
from captioner.training.objectives import Objective
from speed import plain
from speed.clock import KINDS, autocast, medians, ratios
from speed.floor import Floor, by_onednn, products
from speed.memory import peaks

CONFIGS = Path(__file__).parents[2] / "configs" / "model"
WIDTH = 1280  # of an annotation vector of the encoder
CAPTIONS = 5  # of a picture
BASE = {"photos": 16, "cells": 49, "words": 2500, "longest": 20}  # Flickr8k's configuration
DESIGNS: dict[str, dict[str, Any]] = {
    "show-attend-tell": {},
    "luong-general": {"input_feeding": False},
    "transformer": {},
}
GROWTH = {"photos": (8, 32), "words": (5000, 10_000), "longest": (10, 40), "cells": (25, 100)}


def row(
    design: str, device: str, rounds: int, photos: int, cells: int, words: int, longest: int
) -> dict[str, Any]:
    """One training step of a design with untrained parameters.

    Args:
        design: a configuration of a model.
        device: where.
        rounds: of which the median is taken.
        photos: B, with five captions each.
        cells: L.
        words: V.
        longest: the greatest T that may be drawn.
    """
    torch.manual_seed(0)
    captioner, objective = _captioner(design, words)
    captioner.to(device)
    tokens = _captions(photos, len(captioner.vocabulary), longest).to(device)
    side = int(cells**0.5)
    vectors = torch.randn(photos, cells, WIDTH, device=device)
    annotations = Annotations(vectors, (side, cells // side))
    stochastic = getattr(objective, "doubly_stochastic", 0.0)

    def ours() -> Tensor:
        detail = "shown" if objective.needs_weights else "none"
        decoded = captioner(annotations, tokens[..., :-1], detail)
        return objective(decoded, tokens[..., 1:]).total

    def step(loss: Callable[[], Tensor], dtype: torch.dtype) -> None:
        with autocast(device, dtype):
            value = loss()
        torch.autograd.backward(value)
        captioner.zero_grad()  # the next one holds its own

    tutorial = partial(plain.loss, captioner, vectors, tokens, stochastic)
    torch.testing.assert_close(ours(), tutorial(), atol=1e-4, rtol=1e-4)
    there = (tokens[..., 1:] != PAD).flatten(0, 1)
    rows = [int(count) for count in there.sum(0) if count]
    bare = products(captioner, photos, cells, rows)
    contestants: dict[str, Callable[[], Any]] = {
        "plain_float32": partial(step, tutorial, torch.float32)
    }
    flops = 0
    for kind, dtype in KINDS.items():
        floor = Floor(bare, dtype, device, backward=True)
        contestants[f"ours_{kind}"] = partial(step, ours, dtype)
        contestants[f"floor_{kind}"], flops = floor, floor.flops
    if ONEDNN and device == "cpu":
        contestants["floor_by_onednn"] = Floor(bare, torch.float32, device, True, by_onednn)
    taken = medians(contestants, rounds, device)
    held = peaks(contestants, device)
    return {
        "row": f"train {design}",
        "captions": photos * CAPTIONS,
        "L": cells,
        "V": words,
        "T": tokens.shape[-1] - 1,
        "words": sum(rows),
        "gigaflop": round(flops / 1e9, 1),
        **ratios(taken),
        "milliseconds": {name: round(1000 * value, 1) for name, value in taken.items()},
        "peak_megabytes": held,
        "words_per_second": {kind: round(sum(rows) / taken[f"ours_{kind}"]) for kind in KINDS},
    }


def _captioner(design: str, words: int) -> tuple[Captioner, Objective]:
    """A design's untrained model without dropout, and its objective."""
    config = yaml.safe_load((CONFIGS / f"{design}.yaml").read_text("utf-8"))
    config["decoder"]["init_args"] |= DESIGNS[design]
    vocabulary = Vocabulary([f"w{i}" for i in range(words - 4)])
    made = Captioner.from_config(
        {part: config[part] for part in ("encoder", "refiner", "decoder")}, vocabulary
    )
    for module in made.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return made.train(), build("objective", config["objective"])


def _captions(photos: int, words: int, longest: int) -> Tensor:
    """Captions of random words, (B, R, T), as a batch has them: with start, end and padding, the
    longest caption of a picture first; with a longest of 20 words as long as Flickr8k's, 10.7 ± 3.7."""
    generator = torch.Generator().manual_seed(0)
    drawn = (10.7 + 3.7 * torch.randn(photos * CAPTIONS, generator=generator)) * longest / 20
    lengths = drawn.round().clamp(4, longest).long()
    sizes = lengths.view(photos, -1).sort(1, descending=True).values
    tokens = torch.full((*sizes.shape, int(sizes.max()) + 2), PAD)
    for row, size in zip(tokens.flatten(0, 1), sizes.flatten().tolist(), strict=True):
        row[0], row[size + 1] = START, END
        row[1 : size + 1] = torch.randint(END + 1, words, (size,), generator=generator)
    return tokens
