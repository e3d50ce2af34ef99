"""Which pictures ``captioner ground`` asks about: COCO's files, a data set, or generated scenes."""

import argparse
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.errors import UsageError

if TYPE_CHECKING:
    from captioner.data.masks import MaskedPictures
    from captioner.data.records import Record

SCENES = 200  # as many as configs/data/shapes.yaml tests on
SCENE = {"image_size": 112}  # and of that size, where a model does not say what it was trained on
TRAINING = 10_000  # pictures are enough for a mean mask


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that name pictures."""
    data = parser.add_argument_group(
        "pictures",
        "COCO's files, with object masks; a data set, for faithfulness alone; or generated scenes where "
        "none are given",
    )
    data.add_argument("--instances", metavar="FILE", help="COCO instances JSON: the masks")
    data.add_argument("--captions", metavar="FILE", help="COCO captions JSON: the references")
    data.add_argument("--images", metavar="DIR", help="the folder of the pictures")
    data.add_argument(
        "--train-instances",
        metavar="FILE",
        help="instances JSON of the training split, for the category prior and the centre Gaussian; "
        "without it they come from the evaluated pictures, leaving out the one in question",
    )
    data.add_argument(
        "--scenes", type=int, metavar="N", help=f"how many scenes to generate ({SCENES})"
    )
    data.add_argument(
        "--scene-options",
        nargs="+",
        metavar="NAME=VALUE",
        help="how scenes are made, e.g. max_objects=5, where they are to differ from those that the "
        "run was trained on",
    )
    data.add_argument("--data", metavar="NAME", help="a data set without masks, as data.name")
    data.add_argument("--root", metavar="DIR", help="its folder")
    data.add_argument("--split", metavar="SPLIT", help="of it: train, val (the default) or test")
    data.add_argument("--limit", type=int, metavar="N", help="only the first N pictures")


@dataclass(frozen=True)
class Pictures:
    """What is asked about: with masks, or with reference captions alone.

    Attributes:
        records: paths and captions of all.
        source: what they are, for people.
        masked: the same with masks; None where there are none.
        training: the masks of the training split; None where they are not given.
    """

    records: "list[Record]"
    source: str
    masked: "MaskedPictures | None" = None
    training: "MaskedPictures | None" = None

    @property
    def sizes(self) -> list[tuple[int, int]] | None:
        """The (width, height) at which each was annotated; None where none was."""
        return None if self.masked is None else [picture.size for picture in self.masked.pictures]


def pictures(options: argparse.Namespace, scratch: Path) -> Pictures:
    """The pictures that the options name.

    Args:
        options: of the command line.
        scratch: a folder for scenes.

    Raises:
        UsageError: the options do not go together.
        DataError: a file cannot be used.
    """
    for name in ("scenes", "limit"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name} must be 1 or more, got {value}")
    if options.data is not None or options.root is not None:
        return _data_set(options)
    if options.split is not None:
        raise UsageError("--split is of the data set that --data and --root name")
    files = (options.instances, options.captions, options.images)
    if any(files) and not all(files):
        raise UsageError("give --instances, --captions and --images together, or none of them")
    if options.train_instances is not None and not all(files):
        raise UsageError("--train-instances is of the pictures of --instances, which are not given")
    for name in ("scenes", "scene_options"):
        if any(files) and getattr(options, name) is not None:
            raise UsageError(
                f"--{name.replace('_', '-')} is of generated scenes; leave it out, or the files of "
                "--instances"
            )
    if all(files):
        return _files(options, *map(Path, files))
    return _scenes(options, scratch / "scenes")


def _files(options: argparse.Namespace, instances: Path, captions: Path, folder: Path) -> Pictures:
    """Pictures with COCO's files."""
    from captioner.data.masks import read
    from captioner.evaluation.captions import read_references

    if not folder.is_dir():
        raise UsageError(f"--images '{folder}' is no folder; give that of the pictures")
    found = read(instances, folder, read_references(captions), options.limit)
    training = None
    if options.train_instances is not None:
        file = Path(options.train_instances)
        training = read(file, file.parent, limit=TRAINING)  # of which no picture is opened
    return _with_masks(found, training)


def _scenes(options: argparse.Namespace, root: Path) -> Pictures:
    """Scenes of the test split, such as the run was trained on unless the options say otherwise."""
    from captioner.data import shapes_folder
    from captioner.data.masks import read
    from captioner.evaluation.captions import read_references

    known = _scene_options()
    made = {**known, **SCENE, **_trained_on(options.model, known)}
    made |= _given(options.scene_options or (), known)
    # The numbers of the scenes of a split do not depend on how many there are.
    count = options.scenes or SCENES
    count = min(count, options.limit or count)
    shapes_folder.write(root, sizes={"train": 1, "val": 1, "test": count}, **made)
    instances, captions = (
        root / "annotations" / f"{kind}_test.json" for kind in ("instances", "captions")
    )
    how = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in sorted(made.items()))
    found = read(instances, root / "test", read_references(captions))
    return _with_masks(
        replace(found, source=f"{count} generated scenes, seed 0, test split, {how}")
    )


def _scene_options() -> dict[str, Any]:
    """What can be chosen about a scene, with its default: the options of ``shapes_folder.write``."""
    from captioner.data import shapes_folder

    about_all = {"root", "seed", "sizes", "progress"}
    parameters = inspect.signature(shapes_folder.write).parameters
    return {name: p.default for name, p in parameters.items() if name not in about_all}


def _trained_on(model: str | None, known: dict[str, Any]) -> dict[str, Any]:
    """How the scenes were made that a run was trained on; nothing for a model of anything else."""
    import yaml

    from captioner.checkpoint import MODEL
    from captioner.predictor import find_model

    place = find_model(model).absolute()
    if place.is_file():  # one of the run's checkpoints
        place = place.parents[1]
    elif place.name == MODEL:
        place = place.parent
    file = place / "config.yaml"
    data = yaml.safe_load(file.read_text("utf-8")).get("data", {}) if file.is_file() else {}
    if data.get("name") != "shapes":
        return {}
    return {name: value for name, value in data["shapes"].items() if name in known}


def _given(given: Sequence[str], known: dict[str, Any]) -> dict[str, Any]:
    """``NAME=VALUE`` as options, each of its default's kind."""
    import yaml

    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or name not in known:
            raise UsageError(
                f"--scene-options takes NAME=VALUE with one of {', '.join(known)}, got {text!r}"
            )
        found[name] = yaml.safe_load(value)
        kind = type(known[name])
        if type(found[name]) is not kind:
            raise UsageError(f"--scene-options {name} is of kind {kind.__name__}, got {value!r}")
    return found


def _with_masks(found: "MaskedPictures", training: "MaskedPictures | None" = None) -> Pictures:
    from captioner.data.records import Record

    records = [Record(p.image_id, p.path, p.captions, "test") for p in found.pictures]
    return Pictures(records, found.source, found, training)


def _data_set(options: argparse.Namespace) -> Pictures:
    """Pictures with reference captions alone."""
    from captioner.data.readers import read
    from captioner.data.records import SPLITS, VAL

    others = {"instances", "captions", "images", "train_instances", "scenes", "scene_options"}
    if options.data is None or options.root is None or any(getattr(options, o) for o in others):
        raise UsageError(
            "give --data NAME and --root DIR together, for pictures without masks, and none of "
            "--instances, --captions, --images, --train-instances, --scenes and --scene-options"
        )
    split = options.split or VAL
    records = [r for r in read(options.data, options.root) if r.split == split][: options.limit]
    if not records:
        raise UsageError(
            f"data set '{options.data}' has no pictures in split '{split}'; splits are "
            f"{', '.join(SPLITS)}"
        )
    return Pictures(records, f"{options.data}, split {split}")
