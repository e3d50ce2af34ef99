"""A tree of COCO's exact layout and size, without its photographs, to try readers and memory on.

python scripts/coco_tree.py DIR                      82,783 + 40,504 images, five captions each
python scripts/coco_tree.py DIR --train 90 --val 10  fewer

The JSON files have COCO's keys, and captions as long and words as frequent as COCO's (10.5 words on
average, of a vocabulary whose frequencies follow Zipf's law). Every image is a JPEG of a few pixels and
different from all others.
"""

import argparse
import io
import json
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

from PIL import Image

TRAIN, VAL = 82_783, 40_504
CAPTIONS = 5
WORDS = 27_000  # different ones in COCO's training captions
PICTURES = 64  # drawn; the others are copies of these with another comment


def write(root: Path, sizes: dict[str, int], seed: int = 0) -> None:
    """Writes ``annotations/captions_PART2014.json`` and ``PART2014/`` for every part.

    Args:
        root: a folder that is not there yet, or has none of these files.
        sizes: the number of images of every part.
        seed: another seed gives other captions and pictures.
    """
    rng = Random(seed)
    words, weights = vocabulary(rng)
    pictures = [jpeg(rng) for _ in range(PICTURES)]
    (root / "annotations").mkdir(parents=True)
    numbers = iter(rng.sample(range(1, 600_000), sum(sizes.values())))  # COCO's have gaps, too
    for part, size in sizes.items():
        (root / f"{part}2014").mkdir()
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for image_id in sorted(next(numbers) for _ in range(size)):
            name = f"COCO_{part}2014_{image_id:012d}.jpg"
            (root / f"{part}2014" / name).write_bytes(
                commented(pictures[image_id % PICTURES], name)
            )
            images.append(about(image_id, name, part))
            for _ in range(CAPTIONS):
                length = max(8, round(rng.gammavariate(4, 0.6) + 8))
                drawn = rng.choices(words, cum_weights=weights, k=length)
                caption = " ".join(drawn).capitalize() + "."
                annotations.append(
                    {"image_id": image_id, "id": len(annotations), "caption": caption}
                )
        document = {
            "info": {"description": "a generated tree of COCO's layout", "year": 2014},
            "images": images,
            "licenses": [],
            "annotations": annotations,
        }
        file = root / "annotations" / f"captions_{part}2014.json"
        file.write_text(json.dumps(document), encoding="utf-8")


def vocabulary(rng: Random) -> tuple[list[str], list[float]]:
    """Words made of syllables, the short ones frequent; their cumulative weights."""
    syllables = [c + v for c in "bdfghklmnprstvwz" for v in "aeiou"]
    words = {"a": None}
    while len(words) < WORDS:
        length = 1 + len(words) // 60 if len(words) < 120 else rng.randint(2, 4)
        words["".join(rng.choices(syllables, k=length))] = None
    return list(words), list(accumulate(1 / rank for rank in range(1, WORDS + 1)))


def jpeg(rng: Random) -> bytes:
    """A picture of a few flat patches."""
    patches = Image.frombytes("RGB", (4, 3), rng.randbytes(36))
    stream = io.BytesIO()
    patches.resize((64, 48), Image.Resampling.NEAREST).save(stream, "JPEG")
    return stream.getvalue()


def commented(picture: bytes, comment: str) -> bytes:
    """The same JPEG with a comment behind its start marker."""
    text = comment.encode()
    return picture[:2] + b"\xff\xfe" + (len(text) + 2).to_bytes(2) + text + picture[2:]


def about(image_id: int, name: str, part: str) -> dict[str, str | int]:
    """What COCO says of an image."""
    return {
        "license": 3,
        "file_name": name,
        "coco_url": f"http://images.cocodataset.org/{part}2014/{name}",
        "height": 48,
        "width": 64,
        "date_captured": "2013-11-14 11:18:45",
        "flickr_url": f"http://farm9.staticflickr.com/8186/{image_id:012d}_z.jpg",
        "id": image_id,
    }


def main() -> None:
    """Writes the tree."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path)
    parser.add_argument("--train", type=int, default=TRAIN)
    parser.add_argument("--val", type=int, default=VAL)
    options = parser.parse_args()
    write(options.root, {"train": options.train, "val": options.val})
    print(f"{options.train + options.val:,} images written to {options.root}")


if __name__ == "__main__":
    main()
