"""Generated scenes as a data set on disk, in COCO's layout.

    seed, sizes ─▶ write() ─▶ a folder ─▶ read_things() ─▶ things

Every reader of COCO reads it; `read_things` adds what only we know, for `grammar.true_of`.
"""

import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from joblib import Parallel, delayed
from pycocotools import mask as rle

from captioner.data.shapes import FORMAT, scene
from captioner.data.things import FIGURES, Thing
from captioner.errors import DataError, UsageError

SPLITS: Mapping[str, int] = MappingProxyType({"train": 2000, "val": 200, "test": 200})
FEW = 500  # scenes that are drawn sooner than other processes have started
SPLIT_ROOM = 1_000_000  # scene numbers kept for each split, so that one can grow and move no other


def write(
    root: Path,
    *,
    seed: int = 0,
    sizes: Mapping[str, int] = SPLITS,
    image_size: int = 224,
    max_objects: int = 3,
    level: str = "plain",
    progress: Callable[[Iterable[int]], Iterable[int]] | None = None,
) -> None:
    """Write a data set to `root` in COCO's layout, wholly or not at all.

        root/train/train_000001.png             scene(seed, image id)
        root/annotations/captions_train.json
        root/annotations/instances_train.json   run-length masks, boxes, and each Thing as "thing"
        root/shapes.json                        the arguments, to know the data set again

    `sizes` gives the number of scenes per split; splits never share a scene, and making one larger
    changes no other. `progress` may wrap the list of all image ids to show a bar.

    Returns at once when `root` holds this data set already; several processes may call it together.
    Raises DataError when `root` holds anything else, UsageError for impossible arguments.
    """
    names_fit = all(re.fullmatch(r"(?!annotations$)\w+", name) for name in sizes)
    if not sizes or not names_fit or not all(0 < size < SPLIT_ROOM for size in sizes.values()):
        raise UsageError(
            f"cannot write splits {dict(sizes)}: expected plain names, each with 1 to "
            f"{SPLIT_ROOM - 1} scenes"
        )
    # The splits as pairs: their order says which scenes each one gets.
    options = {"image_size": image_size, "max_objects": max_objects, "level": level}
    splits = [list(pair) for pair in sizes.items()]
    stamp = {"format": FORMAT, "seed": seed, "splits": splits, "options": options}
    if _holds(root, stamp):
        return
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{root.name}-", dir=root.parent) as staging:
        # A folder inside: the outer one is private to this user, which the data set is not.
        target = Path(staging) / "unfinished"
        _fill(target, stamp, progress or (lambda numbers: numbers))
        try:
            target.replace(root)
        except OSError:  # another process was faster: its data set is as good as this one
            if not _holds(root, stamp):
                raise


def _holds(root: Path, stamp: dict[str, Any]) -> bool:
    """True: the data set of `stamp` is there; False: nothing is; DataError: something else is."""
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
        # Written whole, but somebody may have deleted some of it since.
        if (
            len([*root.glob(f"{split}/*.png"), *root.glob(f"annotations/*_{split}.json")])
            < size + 2
        ):
            raise DataError(f"{root} has lost files of its split {split!r}: {advice}")
    return True


def _fill(
    target: Path, stamp: dict[str, Any], progress: Callable[[Iterable[int]], Iterable[int]]
) -> None:
    split_of = {
        place * SPLIT_ROOM + number: split
        for place, (split, size) in enumerate(stamp["splits"])
        for number in range(1, size + 1)
    }
    for folder in ("annotations", *dict(stamp["splits"])):
        (target / folder).mkdir(parents=True)
    images, captions, instances = (defaultdict[str, list[Any]](list) for _ in range(3))
    files = {
        key: target / split / f"{split}_{key % SPLIT_ROOM:06d}.png"
        for key, split in split_of.items()
    }
    paint = delayed(_paint)
    drawn = Parallel(n_jobs=-1 if len(files) > FEW else 1, return_as="generator")(
        paint(stamp["seed"], stamp["options"], key, file) for key, file in files.items()
    )
    for key, (said, seen) in zip(progress(list(files)), drawn, strict=True):
        split, side = split_of[key], stamp["options"]["image_size"]
        name = files[key].name
        images[split].append({"id": key, "file_name": name, "height": side, "width": side})
        captions[split] += [
            {"id": 10 * key + i, "image_id": key, "caption": caption}
            for i, caption in enumerate(said)
        ]
        instances[split] += [
            {"id": 10 * key + i, "image_id": key, **instance} for i, instance in enumerate(seen)
        ]
    categories = [{"id": i, "name": s, "supercategory": "shape"} for i, s in enumerate(FIGURES, 1)]
    for split in images:
        common = {"info": {"description": "generated shapes", **stamp}, "images": images[split]}
        for kind, document in {
            "captions": {**common, "annotations": captions[split]},
            "instances": {**common, "annotations": instances[split], "categories": categories},
        }.items():
            path = target / "annotations" / f"{kind}_{split}.json"
            path.write_text(json.dumps(document), "utf-8")
    (target / "shapes.json").write_text(json.dumps(stamp), "utf-8")


def _paint(
    seed: int, options: dict[str, Any], key: int, file: Path
) -> tuple[tuple[str, ...], list[dict[str, Any]]]:
    """Writes one scene; its captions and instances."""
    made = scene(seed, key, **options)
    made.image.save(file, compress_level=1)
    return made.captions, [
        _instance(thing, mask) for thing, mask in zip(made.things, made.masks, strict=True)
    ]


def _instance(thing: Thing, mask: npt.NDArray[np.bool_]) -> dict[str, Any]:
    encoded = rle.encode(np.asfortranarray(mask, np.uint8))
    return {
        "category_id": list(FIGURES).index(thing.shape) + 1,
        "segmentation": {"size": list(mask.shape), "counts": encoded["counts"].decode("ascii")},
        "bbox": rle.toBbox(encoded).tolist(),
        "area": int(mask.sum()),
        "iscrowd": 0,
        "thing": asdict(thing),
    }


def read_things(root: Path, split: str) -> dict[int, tuple[Thing, ...]]:
    """The things in every picture of one split that `write` made, by image id, for `true_of`.

    Raises DataError when the split's instances file is missing or was not written by this module.
    """
    path = root / "annotations" / f"instances_{split}.json"
    things: dict[int, list[Thing]] = defaultdict(list)
    try:
        for annotation in json.loads(path.read_text("utf-8"))["annotations"]:
            x, y = annotation["thing"]["centre"]
            thing = Thing(**{**annotation["thing"], "centre": (x, y)})
            things[annotation["image_id"]].append(thing)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is no instances file of generated shapes: {error!r}") from error
    return {image_id: tuple(listed) for image_id, listed in things.items()}
