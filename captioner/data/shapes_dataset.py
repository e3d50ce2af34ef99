"""Generated scenes as a data set on disk, in COCO's layout.

The reader of COCO reads the records, and `captioner.data.masks.read` the masks and objects.
"""

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from pycocotools import mask as rle

from captioner.data.scene_grammar import SHAPES
from captioner.data.shapes import scene
from captioner.errors import DataError

FORMAT = 3  # of scenes and their folders; increase it when either changes
SERIAL = 500  # for fewer scenes, starting processes takes longer than drawing
SPLIT_ROOM = 1_000_000  # scene numbers per split, so that enlarging a split keeps the others


def write(
    root: Path,
    *,
    seed: int = 0,
    sizes: Mapping[str, int],
    image_size: int = 224,
    max_objects: int = 3,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> None:
    """Write a data set in COCO's layout, completely or not at all, unless ``root`` contains it.

        root/train/train_000001.png             scene(seed, image id)
        root/annotations/captions_train.json
        root/annotations/instances_train.json   run-length masks, boxes, and each SceneObject as "thing"
        root/shapes.json                        the arguments, which identify the data set

    Several processes may call it together. Splits never share a scene, and enlarging one does not
    change the others.

    Args:
        seed, image_size, max_objects: see `scene`.
        sizes: the number of scenes per split.
        progress: wraps the list of image ids.

    Raises:
        DataError: ``root`` contains something else.
    """
    options = {"image_size": image_size, "max_objects": max_objects}
    # The splits as pairs, because their order determines the scenes of each.
    splits = [list(item) for item in sizes.items()]
    stamp = {"format": FORMAT, "seed": seed, "splits": splits, "options": options}
    if _contains(root, stamp):
        return
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{root.name}-", dir=root.parent) as staging:
        # A folder inside the temporary folder, which only this user may read.
        target = Path(staging) / "unfinished"
        _write_files(target, sizes, seed, options, progress)
        (target / "shapes.json").write_text(json.dumps(stamp), "utf-8")
        try:
            target.replace(root)
        except OSError:  # another process may have written the same data set first
            if not _contains(root, stamp):
                raise


def _contains(root: Path, stamp: dict[str, Any]) -> bool:
    """True if the folder has this data set, False if it is missing or empty, otherwise DataError."""
    if not root.exists() or (root.is_dir() and not any(root.iterdir())):
        return False
    advice = "give another folder or remove this one"
    try:
        found = json.loads((root / "shapes.json").read_text("utf-8"))
    except (OSError, ValueError):
        raise DataError(f"{root} exists and is not a generated shapes data set: {advice}") from None
    if found != stamp:
        raise DataError(f"{root} holds shapes made with {found}, not with {stamp}: {advice}")
    return True


def _write_files(
    target: Path,
    sizes: Mapping[str, int],
    seed: int,
    options: dict[str, int],
    progress: Callable[[Iterable[int]], Iterable[int]],
) -> None:
    files: dict[int, Path] = {}  # by image id
    for position, (split, size) in enumerate(sizes.items()):
        (target / split).mkdir(parents=True)
        for number in range(1, size + 1):
            files[position * SPLIT_ROOM + number] = target / split / f"{split}_{number:06d}.png"
    draw = delayed(_draw)
    drawn = Parallel(n_jobs=-1 if len(files) > SERIAL else 1, return_as="generator")(
        draw(seed, image_id, options, file) for image_id, file in files.items()
    )
    annotations = dict(zip(progress(list(files)), drawn, strict=True))
    side = options["image_size"]
    categories = [{"id": i, "name": shape} for i, shape in enumerate(SHAPES, 1)]
    kinds: dict[str, dict[str, Any]] = {"captions": {}, "instances": {"categories": categories}}
    (target / "annotations").mkdir()
    for split in sizes:
        members = {i: file.name for i, file in files.items() if file.parent.name == split}
        images = [
            {"id": i, "file_name": name, "height": side, "width": side}
            for i, name in members.items()
        ]
        for kind, more in kinds.items():
            of_kind = [entry for i in members for entry in annotations[i][kind]]
            content = {"images": images, "annotations": of_kind, **more}
            file = target / "annotations" / f"{kind}_{split}.json"
            file.write_text(json.dumps(content), "utf-8")


def _draw(
    seed: int, image_id: int, options: dict[str, int], file: Path
) -> dict[str, list[dict[str, Any]]]:
    """Write the image of one scene; return its captions and instances as annotations."""
    drawn = scene(seed, image_id, **options)
    drawn.image.save(file, compress_level=1)
    captions: list[dict[str, Any]] = [{"caption": text} for text in drawn.captions]
    instances: list[dict[str, Any]] = []
    for scene_object, mask in zip(drawn.objects, drawn.masks, strict=True):
        encoded = rle.encode(np.asfortranarray(mask, np.uint8))
        instances.append(
            {
                "category_id": SHAPES.index(scene_object.shape) + 1,
                "segmentation": {**encoded, "counts": encoded["counts"].decode("ascii")},
                "bbox": rle.toBbox(encoded).tolist(),
                "area": int(mask.sum()),
                "iscrowd": 0,
                "thing": asdict(scene_object),
            }
        )
    for annotations in (captions, instances):
        for i, annotation in enumerate(annotations):
            annotation |= {"id": 10 * image_id + i, "image_id": image_id}
    return {"captions": captions, "instances": instances}
