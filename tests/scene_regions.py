"""Perfect region features of generated scenes: one vector with a box for each object."""

import json
from pathlib import Path

import numpy as np

from captioner.data.scene_grammar import COLOURS, SHAPES, SIZES

DIM = len(SHAPES) + len(COLOURS) + len(SIZES) + 4
EMPTY = 2  # regions without an object in each scene, as detectors have them


def write(scenes: Path, folder: Path) -> None:
    """Write ``NAME.npz`` for every scene: the objects' attributes as one-hot vectors, and boxes."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for file in sorted((scenes / "annotations").glob("instances_*.json")):
        content = json.loads(file.read_text())
        objects = {image["id"]: [] for image in content["images"]}
        for instance in content["annotations"]:
            objects[instance["image_id"]].append(instance)
        for image in content["images"]:
            side = image["width"]
            vectors, boxes = [], []
            for instance in objects[image["id"]]:
                thing, (left, top, width, height) = instance["thing"], instance["bbox"]
                boxes.append([left, top, left + width, top + height])
                vectors.append(
                    [float(thing["shape"] == name) for name in SHAPES]
                    + [float(thing["colour"] == name) for name in COLOURS]
                    + [float(thing["size"] == name) for name in SIZES]
                )
            for _ in range(EMPTY):
                left, top = rng.uniform(0, 0.7 * side, 2)
                boxes.append([left, top, left + 0.3 * side, top + 0.3 * side])
                vectors.append([0.0] * (DIM - 4))
            order = rng.permutation(len(boxes))
            fractions = np.array(boxes)[order] / side
            features = np.concatenate([np.array(vectors)[order], fractions], 1)
            stem = Path(image["file_name"]).stem
            arrays = {"features": features.astype(np.float32), "boxes": np.array(boxes)[order]}
            np.savez(folder / f"{stem}.npz", **arrays)
