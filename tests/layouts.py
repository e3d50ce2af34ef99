"""Tiny data sets, laid out as their authors distribute them."""

import csv
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

FLICKR8K_LISTS = {"train": "train", "val": "dev", "test": "test"}
Captions = Mapping[str, Iterable[str]]  # by file name


def picture(file: Path, seed: int = 0, size: tuple[int, int] = (48, 32)) -> Path:
    """A PNG of large flat patches that differs from its mirror image."""
    patches = np.random.default_rng(seed).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(patches).resize(size, Image.Resampling.NEAREST).save(file, "PNG")
    return file


def write(file: Path, text: str = "") -> Path:
    """Write a text; folders are made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def flickr8k(root: Path, splits: Mapping[str, Captions]) -> Path:
    """The original archives: Flicker8k_Dataset (their spelling) and Flickr8k_text, images empty."""
    lines = []
    for split, captions in splits.items():
        names = "".join(f"{name}\n" for name in captions)
        write(root / "Flickr8k_text" / f"Flickr_8k.{FLICKR8K_LISTS[split]}Images.txt", names)
        for name, texts in captions.items():
            write(root / "Flicker8k_Dataset" / name)
            lines += [f"{name}#{i}\t{caption} .\n" for i, caption in enumerate(texts)]
    write(root / "Flickr8k_text" / "Flickr8k.token.txt", "".join(lines))
    return root


def captions_txt(root: Path, captions: Captions) -> Path:
    """The repackaged archive: Images and captions.txt."""
    for name in captions:
        write(root / "Images" / name)
    rows = [[name, text] for name, texts in captions.items() for text in texts]
    write(root / "captions.txt", csv_text([["image", "caption"], *rows]))
    return root


def csv_text(rows: Iterable[Iterable[str]]) -> str:
    """Rows as CSV."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue()


def coco(root: Path, parts: Mapping[str, Captions], first_id: int = 1) -> Path:
    """annotations/captions_PART.json beside the folder PART; ids in order of the names."""
    image_id = first_id
    for part, captions in parts.items():
        images, annotations = [], []
        for name, texts in captions.items():
            write(root / part / name)
            images.append({"id": image_id, "file_name": name, "height": 1, "width": 1})
            annotations += [
                {"id": 100 * image_id + i, "image_id": image_id, "caption": text}
                for i, text in enumerate(texts)
            ]
            image_id += 1
        document = {"info": {}, "licenses": [], "images": images, "annotations": annotations}
        write(root / "annotations" / f"captions_{part}.json", json.dumps(document))
    return root


def karpathy(file: Path, images: list[dict]) -> Path:
    """One of Karpathy's files."""
    dataset = file.stem.removeprefix("dataset_")
    return write(file, json.dumps({"dataset": dataset, "images": images}))


def entry(number: int, name: str, split: str, *captions: str, **more) -> dict:
    """An image in Karpathy's files."""
    sentences = [
        {"tokens": c.split(), "raw": c, "imgid": number, "sentid": 5 * number + i}
        for i, c in enumerate(captions)
    ]
    return {"filename": name, "imgid": number, "split": split, "sentences": sentences, **more}
