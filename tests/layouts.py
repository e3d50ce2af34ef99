"""Tiny data sets, laid out as their authors distribute them."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

FLICKR8K_LISTS = {"train": "train", "val": "dev", "test": "test"}
Captions = Mapping[str, Iterable[str]]  # by file name


def picture(file: Path, seed: int = 0, size: tuple[int, int] = (48, 32)) -> Path:
    """A PNG of big flat patches, not the same mirrored."""
    patches = np.random.default_rng(seed).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(patches).resize(size, Image.Resampling.NEAREST).save(file, "PNG")
    return file


def flickr8k(root: Path, splits: Mapping[str, Captions]) -> Path:
    """The original archives: Flicker8k_Dataset (so spelled) and Flickr8k_text, pictures empty."""
    lines = []
    for split, captions in splits.items():
        names = "".join(f"{name}\n" for name in captions)
        _write(root / "Flickr8k_text" / f"Flickr_8k.{FLICKR8K_LISTS[split]}Images.txt", names)
        for name, texts in captions.items():
            _write(root / "Flicker8k_Dataset" / name)
            lines += [f"{name}#{i}\t{caption} .\n" for i, caption in enumerate(texts)]
    _write(root / "Flickr8k_text" / "Flickr8k.token.txt", "".join(lines))
    return root


def captions_txt(root: Path, captions: Captions) -> Path:
    """The repackaged archive: Images and captions.txt."""
    rows = ["image,caption\n"]
    for name, texts in captions.items():
        _write(root / "Images" / name)
        rows += [f"{name},{_quoted(text)}\n" for text in texts]
    _write(root / "captions.txt", "".join(rows))
    return root


def coco(root: Path, parts: Mapping[str, Captions], first_id: int = 1) -> Path:
    """annotations/captions_PART.json beside the folder PART; ids in order of the names."""
    image_id = first_id
    for part, captions in parts.items():
        images, annotations = [], []
        for name, texts in captions.items():
            _write(root / part / name)
            images.append({"id": image_id, "file_name": name, "height": 1, "width": 1})
            annotations += [
                {"id": 100 * image_id + i, "image_id": image_id, "caption": text}
                for i, text in enumerate(texts)
            ]
            image_id += 1
        document = {"info": {}, "licenses": [], "images": images, "annotations": annotations}
        _write(root / "annotations" / f"captions_{part}.json", json.dumps(document))
    return root


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if set(text) & set('",\n') else text


def _write(file: Path, text: str = "") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
