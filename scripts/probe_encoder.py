"""What a vector of the encoder still knows of the thing in its cell: its colour, shape and size.

    python scripts/probe_encoder.py --output docs/results/probe-encoder.json

Scenes are generated; a small network learns from the first things, and is asked for the last 1,000.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captioner.data.shapes import scene
from captioner.models import CNNEncoder
from captioner.provenance import provenance

LEVELS: tuple[tuple[int, ...], ...] = ((), (8,), (8, 4))


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--encoder", default="efficientnet_lite0", help="name of the CNN")
    parser.add_argument("--image-size", type=int, default=112, help="side of a scene in pixels")
    parser.add_argument("--stride", type=int, default=16, help="pixels per cell")
    parser.add_argument("--scenes", type=int, default=4000)
    parser.add_argument(
        "--things", type=int, default=1500, help="to learn from; 1,000 are asked for"
    )
    parser.add_argument("--output", type=Path, help="JSON file")
    options = parser.parse_args()

    made = [scene(1, i, image_size=options.image_size) for i in range(options.scenes)]
    things = [(i, thing) for i, s in enumerate(made) for thing in s.things]
    pixels = torch.from_numpy(np.stack([np.asarray(s.image) for s in made])).permute(0, 3, 1, 2)
    rows = []
    for finer in LEVELS:
        encoder = CNNEncoder(options.encoder, options.image_size, options.stride, finer=finer)
        encoder.load_pretrained()
        with torch.inference_mode():
            found = [encoder(part.contiguous()) for part in torch.split(pixels, 64)]
        side = found[0].grid[0]
        grids = torch.unflatten(torch.cat([a.vectors for a in found]), 1, (side, side))
        cell = options.image_size / side
        places = [(i, *(min(int(c // cell), side - 1) for c in t.centre[::-1])) for i, t in things]
        vectors = torch.stack([grids[place] for place in places])
        rows.append(
            {
                "finer": list(finer),
                "width": encoder.out_dim,
                **{
                    what: round(100 * read(vectors, names(what, things), options.things), 2)
                    for what in ("colour", "shape", "size")
                },
            }
        )
        print(json.dumps(rows[-1]))
    if options.output:
        command = f"python scripts/probe_encoder.py --output {options.output}"
        report = {"command": command, "things": options.things, "levels": rows, **provenance()}
        options.output.write_text(json.dumps(report, indent=2) + "\n", "utf-8")


def names(what: str, things: Sequence[tuple[int, object]]) -> Tensor:
    """The number of each thing's name."""
    said = [getattr(thing, what) for _, thing in things]
    return torch.tensor([sorted(set(said)).index(name) for name in said])


def read(vectors: Tensor, labels: Tensor, learned: int) -> float:
    """The part of the last 1,000 things that a network with one hidden layer reads rightly."""
    torch.manual_seed(0)
    vectors = vectors.clone()
    vectors = (vectors - vectors[:learned].mean(0)) / (vectors[:learned].std(0) + 1e-6)
    network = nn.Sequential(
        nn.Linear(vectors.shape[1], 256), nn.ReLU(), nn.Linear(256, int(labels.max()) + 1)
    )
    optimizer = torch.optim.AdamW(network.parameters(), 2e-3, weight_decay=1e-2)
    for _ in range(1200):
        batch = torch.randint(learned, (256,))
        loss = F.cross_entropy(network(vectors[batch]), labels[batch])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    return (network(vectors[-1000:]).argmax(1) == labels[-1000:]).float().mean().item()


if __name__ == "__main__":
    main()
