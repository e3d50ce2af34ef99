"""``captioner ground``: does the model look at what it names, and does it matter where it looks?

Nothing heavy is imported before ``run``; the command line's help needs the options only.
"""

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.errors import UsageError

if TYPE_CHECKING:
    from captioner.data.records import Record
    from captioner.evaluation.masks import MaskedPictures

SCENES = 200  # as many as configs/data/shapes.yaml tests on, and of that size
SCENE_SIZE = 112
TRAINING = 10_000  # pictures are enough for a mean mask


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that only ``ground`` has."""
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
    data.add_argument("--data", metavar="NAME", help="a data set without masks, as data.name")
    data.add_argument("--root", metavar="DIR", help="its folder")
    data.add_argument("--split", metavar="SPLIT", help="of it: train, val (the default) or test")
    data.add_argument("--limit", type=int, metavar="N", help="only the first N pictures")
    parser.add_argument(
        "--regime",
        choices=("both", "forced", "generated"),
        default="both",
        help="whose captions: the references, fed in; or the model's own",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of shuffling, random weights, bootstrap"
    )


def run(options: argparse.Namespace, output: Any) -> int:
    """Prints the tables and writes the report; the exit status: 0 done, 1 some pictures failed.

    Args:
        options: of the command line.
        output: opens the file to write JSON into, or is None.
    """
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as scratch:
        pictures = _pictures(options, Path(scratch))
        report = _report(options, pictures)
    from captioner.ground_tables import markdown

    print(markdown(report))
    if output is not None:
        import json

        with output as stream:
            json.dump(report, stream, indent=2, ensure_ascii=False)
            stream.write("\n")
    for message in report["failed"]:
        print(f"captioner: {message}", file=sys.stderr)
    if report["failed"]:
        lost = f"{len(report['failed'])} of {len(pictures.records)} pictures left out"
        print(f"captioner: {lost}", file=sys.stderr)
    return 1 if report["failed"] else 0


@dataclass(frozen=True)
class _Pictures:
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


def _report(options: argparse.Namespace, pictures: _Pictures) -> dict[str, Any]:
    import torch
    from rich.console import Console
    from rich.progress import track

    from captioner import predictor
    from captioner.errors import EvaluationError
    from captioner.evaluation.faithfulness import measure
    from captioner.evaluation.grounding import grounding
    from captioner.evaluation.mentions import Regime
    from captioner.provenance import provenance

    model = predictor.load(options.model, options.device)
    given = {name: value for name, value in vars(options).items() if name == "beam_size"}
    model.decoding = decoding = model.decoding.with_options(given)
    preprocessing = model.captioner.encoder.preprocessing
    regimes: tuple[Regime, ...] = (
        ("forced", "generated") if options.regime == "both" else (options.regime,)
    )

    def progress(what: str, regime: str) -> Any:
        bar = Console(stderr=True)  # standard output is for the tables
        return lambda batches, total: track(
            batches, f"{what}, {regime} captions", total, console=bar
        )

    found: dict[str, Any] = {}
    failed: dict[str, None] = {}
    for regime in regimes:
        torch.manual_seed(options.seed)  # hard attention may draw
        part: dict[str, Any] = {}
        if pictures.masked is not None:
            try:
                part = grounding(
                    model.captioner,
                    pictures.masked,
                    regime,
                    decoding=decoding,
                    training=pictures.training,
                    batch_size=options.batch_size,
                    seed=options.seed,
                    progress=progress("grounding", regime),
                )
            except EvaluationError as error:  # a model may name nothing, and look well all the same
                part = {"error": str(error)}
        part["faithfulness"] = measure(
            model,
            pictures.records,
            regime,
            batch_size=options.batch_size,
            seed=options.seed,
            progress=progress("faithfulness", regime),
        ).as_dict()
        for one in (part, part["faithfulness"]):
            failed |= dict.fromkeys(one.pop("failed", ()))
        found[regime] = part
    return {
        "command": " ".join(["captioner", *sys.argv[1:]]),
        "model": model.name,
        "mechanism": model.captioner.decoder.mechanism,
        "data": pictures.source,
        "transform": f"whole pictures resized to {preprocessing.height} × {preprocessing.width}, "
        "nothing cropped; scored on the model's own grid, nothing smoothed",
        "decoding": vars(decoding),
        "seed": options.seed,
        "regimes": found,
        "failed": list(failed),
        **provenance(),
    }


def _pictures(options: argparse.Namespace, scratch: Path) -> _Pictures:
    """The pictures to score, and the masks of the training split if they are given."""
    from captioner.data import shapes_folder
    from captioner.data.records import Record
    from captioner.evaluation.captions import read_references
    from captioner.evaluation.masks import read

    files = (options.instances, options.captions, options.images)
    if options.seed < 0:
        raise UsageError(f"--seed must be 0 or more, got {options.seed}")
    for name in ("scenes", "limit"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name} must be 1 or more, got {value}")
    if options.data is not None or options.root is not None:
        return _data_set(options)
    if options.split is not None:
        raise UsageError("--split is of the data set that --data and --root name")
    if any(files) and not all(files):
        raise UsageError("give --instances, --captions and --images together, or none of them")
    if options.train_instances is not None and not all(files):
        raise UsageError("--train-instances is of the pictures of --instances, which are not given")
    if any(files) and options.scenes is not None:
        raise UsageError("--scenes are generated; leave it out, or the files of --instances")
    if all(files):
        instances, captions, folder = map(Path, files)
        if not folder.is_dir():
            raise UsageError(f"--images '{folder}' is no folder; give that of the pictures")
        source = None
    else:
        # The numbers of the scenes of a split do not depend on how many the others have.
        count = options.scenes or SCENES
        root = scratch / "scenes"
        shapes_folder.write(
            root, sizes={"train": 1, "val": 1, "test": count}, image_size=SCENE_SIZE
        )
        instances, captions = (
            root / "annotations" / f"{kind}_test.json" for kind in ("instances", "captions")
        )
        folder = root / "test"
        source = f"{count} generated scenes, seed 0, test split, {SCENE_SIZE} × {SCENE_SIZE} pixels"
    data = read(instances, folder, read_references(captions))
    data = replace(data, source=source or data.source, pictures=data.pictures[: options.limit])
    training = None
    if options.train_instances is not None:
        file = Path(options.train_instances)
        training = read(file, file.parent)  # of which no picture is opened
        training = replace(training, pictures=training.pictures[:TRAINING])
    records = [Record(p.image_id, p.path, p.captions, "test") for p in data.pictures]
    return _Pictures(records, data.source, data, training)


def _data_set(options: argparse.Namespace) -> _Pictures:
    """Pictures with reference captions alone."""
    from captioner.data.readers import read
    from captioner.data.records import SPLITS, VAL

    others = {"instances", "captions", "images", "train_instances", "scenes"}
    if options.data is None or options.root is None or any(getattr(options, o) for o in others):
        raise UsageError(
            "give --data NAME and --root DIR together, for pictures without masks, and none of "
            "--instances, --captions, --images, --train-instances and --scenes"
        )
    split = options.split or VAL
    records = [r for r in read(options.data, options.root) if r.split == split][: options.limit]
    if not records:
        raise UsageError(
            f"data set '{options.data}' has no pictures in split '{split}'; splits are "
            f"{', '.join(SPLITS)}"
        )
    return _Pictures(records, f"{options.data}, split {split}")
