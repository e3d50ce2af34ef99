"""Which layer of a Vision Transformer tells objects apart best?

    python scripts/measure_layers.py COCO/annotations/instances_train2017.json COCO/train2017

Two measures, each a mean average precision of ranking the 256 patches of a photo by their cosine with a
vector, from which the mean over patches was subtracted:

- within: a patch of an object finds the patches of the same category in the same photo;
- across: the mean of the patches of a category in all other photos finds them in this one.

Patches count as the category's if its masks cover more than half of them.
"""

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from captioner.data.masks import read
from captioner.data.pixels import read_batches
from captioner.models import ViTEncoder

QUERIES = 4  # patches that are drawn from every object
LEAST, MOST = 4, 200  # patches of a category


def precision(scores: Tensor, relevant: np.ndarray) -> float:
    """Return the average precision of a ranking."""
    hits = relevant[scores.argsort(descending=True).numpy()]
    found = hits.cumsum() / np.arange(1, len(hits) + 1)
    return float((found * hits).sum() / hits.sum())


def main() -> None:
    """Print a line for every layer."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("instances", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--name", default="dinov2_small")
    parser.add_argument("--layers", type=int, nargs="+", default=[6, 7, 8, 9, 10])
    options = parser.parse_args()
    images = list(read(options.instances, options.folder).images)
    encoder = ViTEncoder(options.name, layers=options.layers)
    encoder.load_pretrained()
    vectors: list[Tensor] = []
    masks: dict[str, dict[int, np.ndarray]] = defaultdict(dict)
    for batch in read_batches([image.path for image in images], 8, encoder.preprocessing):
        with torch.inference_mode():
            encoded = encoder(batch.pixels)
        for index, row in zip(batch.indices, encoded.vectors, strict=True):
            for category in sorted(set(images[index].categories)):
                covered = images[index].truth(images[index].of(category), encoded.grid) > 0.5
                if LEAST <= covered.sum() <= MOST:
                    masks[category][len(vectors)] = covered
            vectors.append(row.unflatten(1, (len(options.layers), -1)))
    everything = torch.stack(vectors)  # (images, L, layers, width)
    print("layer  within  across")
    for number, layer in enumerate(options.layers):
        of_layer = everything[:, :, number]
        own = F.normalize(of_layer - of_layer.mean(1, keepdim=True), dim=-1)
        common = F.normalize(of_layer - of_layer.mean((0, 1)), dim=-1)
        rng = np.random.default_rng(0)
        within, across = [], []
        for found in masks.values():
            means = {
                image: common[image][torch.tensor(mask)].mean(0) for image, mask in found.items()
            }
            for image, mask in found.items():
                for query in rng.choice(np.flatnonzero(mask), QUERIES):
                    within.append(precision(own[image] @ own[image][query], mask))
                others = [mean for other, mean in means.items() if other != image]
                if len(others) > 1:
                    across.append(precision(common[image] @ torch.stack(others).mean(0), mask))
        print(f"{layer:5}  {np.mean(within):6.3f}  {np.mean(across):6.3f}")
    print(f"{len(images)} photos, {len(within)} queries within, {len(across)} across")


if __name__ == "__main__":
    main()
