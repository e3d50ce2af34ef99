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

from captioner.data.records import SPLITS
from captioner.data.scene_objects import FIGURES
from captioner.data.shapes import FORMAT, scene
from captioner.errors import DataError, UsageError

SERIAL = 500  # up to this many scenes, starting other processes does not pay
SPLIT_ROOM = 1_000_000  # scene numbers per split, so that enlarging a split keeps the others


def write(
    root: Path,
    *,
    seed: int = 0,
    sizes: Mapping[str, int],
    image_size: int = 224,
    max_objects: int = 3,
    level: str = "plain",
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> None:
    """Write a data set in COCO's layout, completely or not at all.

        root/train/train_000001.png             scene(seed, image id)
        root/annotations/captions_train.json
        root/annotations/instances_train.json   run-length masks, boxes, and each SceneObject as "thing"
        root/shapes.json                        the arguments, which identify the data set

    Returns at once if ``root`` contains this data set. Several processes may call it together.

    Args:
        root: the folder.
        seed, image_size, max_objects, level: see `scene`.
        sizes: the number of scenes per split. Splits never share a scene, and enlarging one does not
            change the others.
        progress: wraps the list of image ids, to show a progress bar.

    Raises:
        DataError: ``root`` contains something else.
        UsageError: an argument is outside its range.
    """
    if not sizes or not all(s in SPLITS and 0 < n < SPLIT_ROOM for s, n in sizes.items()):
        raise UsageError(
            f"cannot write splits {dict(sizes)}: expected {', '.join(SPLITS)}, each with 1 to "
            f"{SPLIT_ROOM - 1} scenes"
        )
    # The splits as pairs, because their order determines the scenes of each.
    options = {"image_size": image_size, "max_objects": max_objects, "level": level}
    splits = [list(pair) for pair in sizes.items()]
    stamp = {"format": FORMAT, "seed": seed, "splits": splits, "options": options}
    if _contains(root, stamp):
        return
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{root.name}-", dir=root.parent) as staging:
        # A folder inside the temporary folder, which only this user may read.
        target = Path(staging) / "unfinished"
        _write_files(target, stamp, progress)
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
        raise DataError(f"{root} exists and is no generated shapes data set: {advice}") from None
    if found != stamp:
        raise DataError(f"{root} holds shapes made with {found}, not with {stamp}: {advice}")
    for split, size in stamp["splits"]:
        files = [*root.glob(f"{split}/*.png"), *root.glob(f"annotations/*_{split}.json")]
        if len(files) < size + 2:
            raise DataError(f"{root} has lost files of its split {split!r}: {advice}")
    return True


def _write_files(
    target: Path, stamp: dict[str, Any], progress: Callable[[Iterable[int]], Iterable[int]]
) -> None:
    side = stamp["options"]["image_size"]
    files: dict[int, Path] = {}  # by image id
    documents: dict[str, dict[str, Any]] = {}  # by file name
    for position, (split, size) in enumerate(stamp["splits"]):
        (target / split).mkdir(parents=True)
        for number in range(1, size + 1):
            files[position * SPLIT_ROOM + number] = target / split / f"{split}_{number:06d}.png"
        for kind in ("captions", "instances"):
            info = {"description": "generated shapes", **stamp}
            documents[f"{kind}_{split}.json"] = {"info": info, "images": [], "annotations": []}
        documents[f"instances_{split}.json"]["categories"] = [
            {"id": i, "name": shape, "supercategory": "shape"} for i, shape in enumerate(FIGURES, 1)
        ]
    draw = delayed(_draw)
    drawn = Parallel(n_jobs=-1 if len(files) > SERIAL else 1, return_as="generator")(
        draw(stamp["seed"], stamp["options"], image_id, file) for image_id, file in files.items()
    )
    for image_id, annotations in zip(progress(list(files)), drawn, strict=True):
        file = files[image_id]
        image = {"id": image_id, "file_name": file.name, "height": side, "width": side}
        for kind, of_image in annotations.items():
            document = documents[f"{kind}_{file.parent.name}.json"]
            document["images"].append(image)
            document["annotations"] += [
                {"id": 10 * image_id + i, "image_id": image_id, **annotation}
                for i, annotation in enumerate(of_image)
            ]
    (target / "annotations").mkdir()
    for name, document in documents.items():
        (target / "annotations" / name).write_text(json.dumps(document), "utf-8")
    (target / "shapes.json").write_text(json.dumps(stamp), "utf-8")


def _draw(
    seed: int, options: dict[str, Any], image_id: int, file: Path
) -> dict[str, list[dict[str, Any]]]:
    """Write the image of one scene; return its captions and instances as annotations."""
    drawn = scene(seed, image_id, **options)
    drawn.image.save(file, compress_level=1)
    instances = []
    for scene_object, mask in zip(drawn.objects, drawn.masks, strict=True):
        encoded = rle.encode(np.asfortranarray(mask, np.uint8))
        counts = encoded["counts"].decode("ascii")
        instances.append(
            {
                "category_id": list(FIGURES).index(scene_object.shape) + 1,
                "segmentation": {"size": list(mask.shape), "counts": counts},
                "bbox": rle.toBbox(encoded).tolist(),
                "area": int(mask.sum()),
                "iscrowd": 0,
                "thing": asdict(scene_object),
            }
        )
    return {"captions": [{"caption": text} for text in drawn.captions], "instances": instances}
