"""Rows on captioning from annotation vectors that are there already."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from captioner.checkpoint import Stored
from captioner.decoding import search
from captioner.models.annotations import Annotations
from captioner.models.linear import ONEDNN
from speed import plain
from speed.clock import KINDS, autocast, medians, ratios
from speed.floor import Floor, by_onednn, products
from speed.memory import peaks


def row(
    name: str,
    stored: Stored,
    vectors: Tensor,
    *,
    device: str,
    rounds: int,
    beam_size: int,
    batch: int,
    some: int,
) -> dict[str, Any]:
    """Captions of photos from their annotation vectors.

    Args:
        name: of the model.
        stored: a trained model.
        vectors: (N, L, D), of its encoder.
        device: where.
        rounds: of which the median is taken.
        beam_size: 1 is greedy.
        batch: photos searched together.
        some: of how many photos ``plain`` is asked, which takes one at a time.
    """
    captioner = stored.captioner.to(device).eval()
    # What tutorials do not have is not compared.
    decoding = stored.decoding.with_options({"beam_size": beam_size, "no_repeat": 0})
    side = int(vectors.shape[1] ** 0.5)

    @torch.inference_mode()
    def ours(dtype: torch.dtype = torch.float32) -> list[list[int]]:
        found = []
        for part in torch.split(vectors, batch):
            with autocast(device, dtype):
                annotations = captioner.refiner(Annotations(part, (side, side)))
                best = search(captioner.decoder, annotations, decoding)
            found += [hypotheses[0].tokens for hypotheses in best]
        return found

    def tutorial() -> list[list[int]]:
        return plain.beam(captioner, vectors[:some], decoding)

    written = ours()
    if tutorial() != written[:some]:
        raise AssertionError("the tutorial's captions are not ours")
    # A search must go on for a word after its best caption: what the longest of them needs.
    steps = [len(tokens) + 1 for tokens in written]
    rows = [beam_size * sum(size > t for size in steps) for t in range(max(steps))]
    bare = products(captioner, len(vectors), vectors.shape[1], rows)
    contestants: dict[str, Callable[[], Any]] = {"plain_float32": tutorial}
    for kind, dtype in KINDS.items():
        contestants[f"ours_{kind}"] = partial(ours, dtype)
        contestants[f"floor_{kind}"] = Floor(bare, dtype, device, backward=False)
    if ONEDNN and device == "cpu":
        contestants["floor_by_onednn"] = Floor(bare, torch.float32, device, False, by_onednn)
    taken = medians(contestants, rounds, device)
    held = peaks(contestants, device)
    taken["plain_float32"] *= len(vectors) / some
    other = ours(torch.bfloat16)
    return {
        "row": f"caption {name}",
        "beam": beam_size,
        "photos": len(vectors),
        "batch": batch,
        **ratios(taken),
        "images_per_second": {
            name: round(len(vectors) / value, 1) for name, value in taken.items()
        },
        "peak_megabytes": held,
        "same_in_bfloat16": sum(a == b for a, b in zip(written, other, strict=True)),
    }
