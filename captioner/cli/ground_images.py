"""The images of ``captioner ground``: COCO files, a data set without masks, or generated scenes."""

import argparse
import inspect
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from captioner import limits
from captioner.checkpoint import MODEL
from captioner.data import masks, readers, shapes, shapes_dataset
from captioner.data.readers.files import MALFORMED
from captioner.data.records import SPLITS, VAL, Record
from captioner.errors import UsageError
from captioner.evaluation.baselines import MaskPrior
from captioner.evaluation.metrics import read_references
from captioner.predictor import find_model

SCENES = 200  # size of the test split of configs/data/shapes.yaml
SCENE = {"image_size": 112}  # as in configs/data/shapes.yaml, for models without a run folder
TRAINING = 10_000  # number of training images for the mean masks


@dataclass(frozen=True)
class Images:
    """The images to evaluate."""

    records: list[Record]  # paths and reference captions
    source: str  # description for the report
    masked: masks.MaskedImages | None = None  # the same images with masks
    training: masks.MaskedImages | None = None  # the images of --train-instances

    def prior(self, grid: tuple[int, int]) -> MaskPrior:
        """Return the mean masks of the training images, or of the evaluated images."""
        if self.training is None:
            return MaskPrior(self.masked.images if self.masked else (), grid)
        return MaskPrior(self.training.images, grid, self.training.source)


def images(options: argparse.Namespace, kind: str, scratch: Path) -> Images:
    """Return the images of a kind; scenes are generated in ``scratch``.

    Raises:
        UsageError: the data set has no photos in the split.
        DataError: a file cannot be used.
    """
    if kind == "scenes":
        return _scenes(options, scratch / "scenes")
    return _coco(options) if kind == "COCO files" else _data_set(options)


def _coco(options: argparse.Namespace) -> Images:
    """Read images with COCO's files."""
    folder = Path(options.images)
    references = read_references(options.captions)
    masked = masks.read(Path(options.instances), folder, references, options.limit)
    if options.train_instances is None:
        return _with_masks(masked)
    file = Path(options.train_instances)
    # Does not open the images.
    return _with_masks(masked, masks.read(file, file.parent, limit=TRAINING))


def _scenes(options: argparse.Namespace, root: Path) -> Images:
    """Generate scenes of the test split with the options that the model was trained with."""
    parameters = inspect.signature(shapes_dataset.write).parameters
    general = {"root", "seed", "sizes", "progress"}
    # The options of a scene with their defaults.
    defaults = {name: p.default for name, p in parameters.items() if name not in general}
    trained = _trained_scenes(options.model)
    given = dict(pair.split("=", 1) for pair in options.scene_options or ())  # checked
    own = {name: type(defaults[name])(value) for name, value in given.items()}
    chosen = {**defaults, **SCENE, **trained, **own}
    count = options.scenes or SCENES
    count = min(count, options.limit or count)
    shapes_dataset.write(root, sizes={"train": 1, "val": 1, "test": count}, **chosen)
    annotations = root / "annotations"
    captions = read_references(annotations / "captions_test.json")
    masked = masks.read(annotations / "instances_test.json", root / "test", captions)
    text = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in sorted(chosen.items()))
    source = f"{count} generated scenes, seed 0, test split, {text}"
    return _with_masks(replace(masked, source=source))


def _trained_scenes(model: str | None) -> dict[str, Any]:
    """Read the scene options of the model's training run; empty if it had other data.

    A file of another program is left alone: the model may lie anywhere.
    """
    path = find_model(model).absolute()
    if path.is_file():  # RUN/checkpoints/best.ckpt
        path = path.parent.parent
    elif path.name == MODEL:
        path = path.parent
    file = path / "config.yaml"
    try:
        data = yaml.safe_load(file.read_text("utf-8"))["data"] if file.is_file() else {}
        found = data["shapes"] if data.get("name") == "shapes" else {}
        fits = {n: limits.SCENE[n].accepts(found.get(n)) for n in ("image_size", "max_objects")}
        fits["level"] = found.get("level") in shapes.LEVELS
    except (OSError, yaml.YAMLError, RecursionError, *MALFORMED):
        return {}
    return {name: found[name] for name, fit in fits.items() if fit}


def _with_masks(masked: masks.MaskedImages, training: masks.MaskedImages | None = None) -> Images:
    records = [Record(i.image_id, i.path, i.captions, "test") for i in masked.images]
    return Images(records, masked.source, masked, training)


def _data_set(options: argparse.Namespace) -> Images:
    """Read images of a data set without masks."""
    split = options.split or VAL
    records = list(readers.read(options.data, options.root).of_split(split))
    if not records:
        raise UsageError(
            f"data set '{options.data}' has no photos in split '{split}'; splits are "
            f"{', '.join(SPLITS)}"
        )
    return Images(records[: options.limit], f"{options.data}, split {split}")
