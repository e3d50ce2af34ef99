"""The photos that the app offers."""

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from captioner.app.served_models import Models
from captioner.data.scene_grammar import SHAPES
from captioner.data.shapes import scene
from captioner.errors import ImageError
from captioner.photos import images

HELD_OUT = 3  # a seed other than the default of training
FOLDER = Path(__file__).parent / "examples"
MOST = 24  # photos in the strip


class Example(NamedTuple):
    """A photo on disk, and what it shows and who made it, if that is known."""

    path: Path
    title: str
    credit: str
    thumbnail: str  # a small JPEG as a data URL


def _example(path: Path, title: str, credit: str = "") -> Example:
    image = images.load(path)
    image.thumbnail((176, 132))
    return Example(path, title, credit, images.data_url(image, quality=80))


def examples(models: Models, given: Sequence[Path], folder: Path) -> list[Example]:
    """Return the photos that the app offers: the given ones that can be read; others are reported.

    Without any, they are generated scenes if the first model knows the words of scenes, otherwise the
    bundled photos. Scenes are written into ``folder``.
    """
    found = []
    for path in given[:MOST]:
        try:
            found.append(_example(path, path.stem))
        except ImageError as error:
            print(f"captioner: left out: {error}", file=sys.stderr)
    if found:
        return found
    vocabulary = models.get(models.names[0]).vocabulary
    if vocabulary and set(SHAPES) <= set(vocabulary.words):
        for index in range(1, 7):
            file = folder / f"{index}.png"
            scene(HELD_OUT, index).image.save(file)
            found.append(_example(file, f"Scene {index}"))
        return found
    photos = tomllib.loads((FOLDER / "SOURCES.toml").read_text("utf-8"))["photo"]
    return [
        _example(FOLDER / p["file"], p["title"], f"{p['author']}, {p['licence']}") for p in photos
    ]
