"""What ``captioner ground`` evaluates: COCO files, a data set without masks, or generated scenes."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from captioner.checkpoint import MODEL
from captioner.data import masks, readers, shapes_dataset
from captioner.data.readers.files import MALFORMED
from captioner.data.records import SPLITS, VAL, Record
from captioner.errors import UsageError
from captioner.evaluation.attention_maps import batches
from captioner.evaluation.faithfulness import DeletionCurves
from captioner.evaluation.grounding import GroundingData
from captioner.evaluation.image_statistics import Evaluation, Regime
from captioner.evaluation.metrics import read_references
from captioner.limits import SCENE
from captioner.predictor import Predictor
from captioner.provenance import provenance
from captioner.resources import find_model

SCENES = 200  # size of the test split of configs/data/shapes.yaml
OPTIONS = {"image_size": 112, "max_objects": 3}
"""The options of scenes for models without a run folder, as in configs/data/shapes.yaml."""


class Images(NamedTuple):
    """The images to evaluate."""

    photos: Sequence[Record] | Sequence[masks.MaskedImage]  # paths and reference captions
    source: str  # description for the report
    masked: masks.MaskedImages | None = None  # the same images with masks, if there are any


def _coco(options: argparse.Namespace, _scratch: Path) -> Images:
    references = read_references(options.captions)
    file, folder = Path(options.instances), Path(options.images).expanduser()
    masked = masks.read(file, folder, references, options.limit)
    return Images(masked.images, masked.source, masked)


def _scenes(options: argparse.Namespace, scratch: Path) -> Images:
    """Generate scenes of the test split with the options that the model was trained with."""
    given = dict(pair.split("=", 1) for pair in options.scene_options or ())  # checked
    own = {name: int(value) for name, value in given.items()}
    chosen = OPTIONS | _trained_scenes(options.model) | own
    count = options.scenes or SCENES
    count = min(count, options.limit or count)
    root = scratch / "scenes"
    shapes_dataset.write(root, sizes={"train": 1, "val": 1, "test": count}, **chosen)
    captions = read_references(root / "annotations" / "captions_test.json")
    masked = masks.read(root / "annotations" / "instances_test.json", root / "test", captions)
    text = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in chosen.items())
    return Images(masked.images, f"{count} generated scenes, seed 0, test split, {text}", masked)


def _trained_scenes(model: str | None) -> dict[str, Any]:
    """Read the scene options of the model's training run; empty if it had other data.

    A file of another program is left alone: the model may lie anywhere.
    """
    path = find_model(model).absolute()
    if path.is_file():  # RUN/checkpoints/best.ckpt
        path = path.parent.parent
    elif path.name == MODEL:
        path = path.parent
    try:
        data = yaml.safe_load((path / "config.yaml").read_text("utf-8"))["data"]
        found = data["shapes"] if data["name"] == "shapes" else {}
        return {name: found[name] for name in OPTIONS if SCENE[name].accepts(found.get(name))}
    except (OSError, yaml.YAMLError, *MALFORMED):
        return {}


def _data_set(options: argparse.Namespace, _scratch: Path) -> Images:
    split = options.split or VAL
    records = list(readers.read(options.data, options.root).of_split(split))
    if not records:
        raise UsageError(
            f"data set '{options.data}' has no photos in split '{split}'; splits are "
            f"{', '.join(SPLITS)}"
        )
    return Images(records[: options.limit], f"{options.data}, split {split}")


READERS: dict[str, Callable[[argparse.Namespace, Path], Images]] = {
    "scenes": _scenes,  # generated in the given folder
    "COCO files": _coco,
    "a data set": _data_set,
}
"""The readers by kind of images, as in ``captioner.cli.ground.OPTIONS``."""


def evaluate(
    model: Predictor, images: Images, options: argparse.Namespace, show: Callable[..., None]
) -> Evaluation:
    """Evaluate every regime and describe the model, the data and the settings."""
    both: tuple[Regime, ...] = ("forced", "generated")
    regimes = both if options.regime == "both" else (options.regime,)
    captioner, masked, total = model.captioner, images.masked, len(images.photos)
    maps = {regime: GroundingData(captioner, masked, regime) for regime in regimes if masked}
    curves = {regime: DeletionCurves(model, images.photos, regime) for regime in regimes}
    measures: list[GroundingData | DeletionCurves] = [*maps.values(), *curves.values()]
    failed: list[str] = []
    show("measuring photos", total)
    for batch in batches(
        captioner,
        images.photos,
        options.batch_size,
        failed,
        decoding=model.decoding if "generated" in regimes else None,
        seed=options.seed,
        advance=lambda done: show("measuring photos", total, done),
    ):
        for measure in measures:
            measure.add(batch)
    show("computing confidence intervals", total)
    reports: dict[str, Any] = {}
    statistics = []
    for regime in regimes:
        of_maps = maps[regime].report(options.seed) if maps else Evaluation({}, [])
        of_words = curves[regime].report(options.seed)
        reports[regime] = of_maps.report | {"faithfulness": of_words.report}
        statistics += of_maps.image_statistics + of_words.image_statistics
    report = {
        "command": " ".join(["captioner", *sys.argv[1:]]),
        "model": model.name,
        "mechanism": captioner.decoder.mechanism,
        "supervised_by_masks": model.supervision,
        "data": images.source,
        "decoding": vars(model.decoding),
        "seed": options.seed,
        "regimes": reports,
        "failed": failed,
        **provenance(),
    }
    return Evaluation(report, statistics)
