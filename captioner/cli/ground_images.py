"""What ``captioner ground`` evaluates: COCO files, a data set with or without boxes, or scenes."""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from captioner.data import entity_images, masks, readers, shapes_dataset
from captioner.data.cache import AnnotationCache, default_folder
from captioner.data.readers.text_files import MALFORMED
from captioner.data.records import VAL, Record
from captioner.errors import UsageError
from captioner.evaluation import adapted
from captioner.evaluation.adapted import AdapterBatch
from captioner.evaluation.attention_maps import Batch, batches
from captioner.evaluation.faithfulness import DeletionCurves
from captioner.evaluation.grounding import GroundingData
from captioner.evaluation.image_statistics import Evaluation, Regime
from captioner.evaluation.metrics import read_references
from captioner.limits import SCENE
from captioner.photos.region_files import RegionFiles
from captioner.predict.adapter import AdapterPredictor
from captioner.predict.base_predictor import BasePredictor
from captioner.predict.predictor import Predictor
from captioner.provenance import provenance
from captioner.resources import find_model
from captioner.store.model_folder import MODEL

SCENES = 200  # size of the test split of configs/data/shapes.yaml
OPTIONS = {"image_size": 112, "max_objects": 3}
"""The options of scenes for models without a run folder, as in configs/data/shapes.yaml."""


class Images(NamedTuple):
    """The images to evaluate."""

    photos: Sequence[Record] | Sequence[masks.MaskedImage]  # paths and reference captions
    source: str  # description for the report
    masked: masks.MaskedImages | None = None  # the same images with masks, if there are any
    problems: Sequence[str] = ()  # a line for each annotation that could not be used
    failed: Sequence[str] = ()  # a line for each photo whose annotations could not be read
    cached: bool = False  # whether the annotation cache is filled and read

    @property
    def number(self) -> int:
        """The number of photos, with those that were left out."""
        return len(self.photos) + len(self.failed)


def _coco(options: argparse.Namespace, _scratch: Path) -> Images:
    references = read_references(options.captions)
    file, folder = Path(options.instances), Path(options.images).expanduser()
    masked = masks.read(file, folder, references, options.limit)
    return Images(masked.images, masked.source, masked)


def _scenes(options: argparse.Namespace, scratch: Path) -> Images:
    """Generate scenes of the test split with the options that the model was trained with."""
    own = dict(map(_scene_option, options.scene_options or ()))
    chosen = OPTIONS | _trained_scenes(options.model) | own
    count = options.scenes or SCENES
    count = min(count, options.limit or count)
    root = scratch / "scenes"
    shapes_dataset.write(root, sizes={"train": 1, "val": 1, "test": count}, **chosen)
    captions = read_references(root / "annotations" / "captions_test.json")
    masked = masks.read(root / "annotations" / "instances_test.json", root / "test", captions)
    text = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in chosen.items())
    return Images(masked.images, f"{count} generated scenes, seed 0, test split, {text}", masked)


def _scene_option(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    if name not in OPTIONS or not value.isdecimal():
        raise UsageError(f"--scene-options takes {'=N, '.join(OPTIONS)}=N; got {text!r}")
    return name, int(value)


def _trained_scenes(model: str | None) -> dict[str, Any]:
    """Read the scene options of the model's training run; empty if it had other data."""
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
    """Read a data set, with the boxes of Flickr30k Entities if their folder is given."""
    split, cached = options.split or VAL, options.limit is None
    records = readers.read(options.data, options.root).of_split(split)[: options.limit]
    source = f"{options.data}, split {split}"
    if not records:
        raise UsageError(f"data set '{options.data}' has no photos in split '{split}'")
    if options.entities is None:
        return Images(records, source, cached=cached)
    masked = entity_images.read(Path(options.entities).expanduser(), records)
    source += f", boxes of {masked.source}"
    return Images(masked.images, source, masked, masked.problems, masked.failed, cached)


READERS: dict[str, Callable[[argparse.Namespace, Path], Images]] = {
    "scenes": _scenes,  # generated in the given folder
    "COCO files": _coco,
    "a data set": _data_set,
    "Flickr30k Entities": _data_set,
}
"""The readers by kind of images, as in ``captioner.cli.ground.OPTIONS``."""


def evaluate(
    model: BasePredictor, images: Images, options: argparse.Namespace, show: Callable[..., None]
) -> Evaluation:
    """Evaluate every regime and describe the model, the data and the settings."""
    both: tuple[Regime, ...] = ("forced", "generated")
    regimes = both if options.regime == "both" else (options.regime,)
    photos, method = images.photos, options.method
    failed = list(images.failed)
    given: dict[str, Any] = {
        "decoding": model.decoding if "generated" in regimes else None,
        "seed": options.seed,
        "advance": lambda done: show("measuring photos", len(photos), done),
    }
    captioner = None
    found: Iterator[Batch | AdapterBatch]
    if isinstance(model, Predictor):
        captioner = model.captioner
        cache = open_cache(model, photos, show) if images.cached else None
        found = batches(captioner, photos, options.batch_size, failed, cache=cache, **given)
    else:
        assert isinstance(model, AdapterPredictor)
        if method != "attention":
            raise UsageError(f"{model.name} is no model of this package: leave out --method")
        found = adapted.batches(model.adapter, photos, options.batch_size, failed, **given)
    collected: dict[Regime, list[GroundingData | DeletionCurves]] = {}
    for regime in regimes:
        collected[regime] = []
        if images.masked:
            collected[regime].append(GroundingData(captioner, images.masked, regime, method))
        if not options.no_faithfulness:
            collected[regime].append(DeletionCurves(model, photos, regime, method))
    show("measuring photos", len(photos))
    for batch in found:
        for of_regime in collected.values():
            for part in of_regime:
                part.add(batch)
    show("computing confidence intervals", len(photos))
    reports: dict[str, Any] = {}
    statistics = []
    for regime, of_regime in collected.items():
        reports[regime] = {}
        for part in of_regime:
            report, of_images = part.report(options.seed)
            faithful = isinstance(part, DeletionCurves)
            reports[regime] |= {"faithfulness": report} if faithful else report
            statistics += of_images
    record = {
        "command": " ".join(["captioner", *sys.argv[1:]]),
        "model": model.name,
        "mechanism": model.mechanism,
        "method": method,
        "supervised_by_masks": model.supervision,
        "data": images.source,
        "decoding": vars(model.decoding),
        "seed": options.seed,
        "regimes": reports,
        "failed": failed,
        "problems": list(images.problems),
        **provenance(),
    }
    return Evaluation(record, statistics)


def open_cache(
    model: Predictor, photos: Sequence[Any], show: Callable[..., None]
) -> AnnotationCache | None:
    """Open the annotation cache of the photos, and fill it; None for encoders without a cache."""
    encoder = model.captioner.encoder
    if encoder.trainable or isinstance(encoder.preprocessing, RegionFiles):
        return None

    def progress(found: Iterable[Any], total: int) -> Iterator[Any]:
        show("filling the annotation cache", total)
        for batch in found:
            show("filling the annotation cache", total, 1)
            yield batch

    return AnnotationCache.open(
        default_folder() / "annotations",
        [photo.path for photo in photos],
        encoder,
        device=model.device,
        progress=progress,
    )
