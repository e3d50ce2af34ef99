"""Karpathy's splits of COCO, Flickr8k and Flickr30k (Karpathy & Fei-Fei 2015).

    dataset_coco.json   {"dataset": "coco", "images": [{"filepath": "val2014", "filename": "….jpg",
                         "imgid": 0, "cocoid": 391895, "split": "test", "sentences": [{"raw": "…"}]}]}
    train2014/ val2014/

Flickr's files have neither ``filepath`` nor ``cocoid``.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from captioner.data.readers import flickr, splits
from captioner.data.readers.files import as_id, find, image_folder, read_json, said
from captioner.data.readers.problems import Problems
from captioner.data.records import TRAIN, Record
from captioner.errors import DataError

_FOLDERS = {"flickr8k": flickr.FOLDERS_8K, "flickr30k": flickr.FOLDERS_30K}
SETS = ("coco", *_FOLDERS)


def read_karpathy(root: Path, problems: Problems, dataset: str = "") -> Iterator[Record]:
    """dataset_coco.json, dataset_flickr8k.json or dataset_flickr30k.json, beside the images.

    The file may lie in ``root`` or a folder of it. The images of COCO lie in ``train2014`` and
    ``val2014`` there, those of Flickr as in their own data sets. ``restval`` joins ``train``, as in the
    papers: 113,287, 5,000 and 5,000 images.

    Args:
        root: the folder.
        problems: what is wrong with single images.
        dataset: which of the three, where several are there.
    """
    file = find(root, f"dataset_{dataset}.json") if dataset else _only(root)
    if file is None:
        expected = dataset or f"{{{','.join(SETS)}}}"
        raise DataError(f"no 'dataset_{expected}.json' under '{root}'")
    problems.sources.append(file)
    try:
        rows = [_row(image) for image in read_json(file)["images"]]
    except DataError as error:
        problems.add("file", [error])
        return
    except (KeyError, TypeError, AttributeError) as error:
        problems.add(
            "file",
            [
                f"'{file}' is not one of Karpathy's files: expected images with filename, split, "
                f"imgid and sentences, each with raw ({type(error).__name__}: {error})"
            ],
        )
        return
    folder = root
    if rows and "/" not in rows[0][1]:  # COCO's names come with their folder
        known = _FOLDERS.get(file.stem.removeprefix("dataset_"), flickr.FOLDERS_30K)
        folder = image_folder(root, known, rows[0][1])
    for image_id, name, split, captions in rows:
        found = tuple(said(captions, name, problems))
        if not found:
            problems.add("no-captions", [name])
        if (known_split := splits.named(split)) is None:
            problems.add("no-split", [f"{name}: {split!r:.80}"])
        yield Record(image_id, str(folder / name), found, known_split or TRAIN)


def _only(root: Path) -> Path | None:
    """The one file there is; DataError if there are several."""
    found = [dataset for dataset in SETS if find(root, f"dataset_{dataset}.json")]
    if len(found) > 1:
        raise DataError(
            f"'{root}' holds Karpathy's files of {' and '.join(found)}; choose one with "
            f"--data.name {' or '.join(f'karpathy-{dataset}' for dataset in found)}"
        )
    return find(root, f"dataset_{found[0]}.json") if found else None


def _row(image: Any) -> tuple[int | str, str, object, list[str]]:
    """Id, name with its folder, split and captions of an image."""
    image_id = as_id(image["cocoid"] if "cocoid" in image else image["imgid"])
    name = Path(image.get("filepath", "")) / image["filename"]
    return image_id, name.as_posix(), image["split"], [s["raw"].strip() for s in image["sentences"]]
