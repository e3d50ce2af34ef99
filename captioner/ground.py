"""``captioner ground``: does the model look at what it names?

Nothing heavy is imported before ``run``; the command line's help needs the options only.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.errors import UsageError

if TYPE_CHECKING:
    from captioner.evaluation.masks import MaskedPictures

SCENES = 200  # as many as configs/data/shapes.yaml tests on, and of that size
SCENE_SIZE = 112
TRAINING = 10_000  # pictures are enough for a mean mask
COLUMNS = {
    "discrimination": "paired objects",
    "pointing": "pointing",
    "mass": "mass in mask",
    "gain": "gain",
    "average_precision": "AP",
    "iou": "IoU",
}
REGIMES = {"forced": "Reference captions, forced", "generated": "Captions the model generated"}
OBJECT_COLUMNS = {"f1_all": "F1-all", "f1_all_macro": "F1-all, macro", "f1_loc": "F1-loc"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that only ``ground`` has."""
    data = parser.add_argument_group(
        "pictures with object masks", "COCO's files, or generated scenes where none are given"
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
        data, training = _data(options, Path(scratch))
        report = _report(options, data, training)
    print(markdown(report))
    if output is not None:
        import json

        with output as stream:
            json.dump(report, stream, indent=2, ensure_ascii=False)
            stream.write("\n")
    failed = next(iter(report["regimes"].values()))["failed"]
    for message in failed:
        print(f"captioner: {message}", file=sys.stderr)
    if failed:
        print(
            f"captioner: {len(failed)} of {len(data.pictures)} pictures left out", file=sys.stderr
        )
    return 1 if failed else 0


def _report(
    options: argparse.Namespace, data: "MaskedPictures", training: "MaskedPictures | None"
) -> dict[str, Any]:
    from rich.console import Console
    from rich.progress import track

    from captioner import predictor
    from captioner.errors import EvaluationError
    from captioner.evaluation.grounding import grounding
    from captioner.evaluation.mentions import Regime
    from captioner.provenance import provenance

    model = predictor.load(options.model, options.device)
    given = {name: value for name, value in vars(options).items() if name == "beam_size"}
    decoding = model.decoding.with_options(given)
    preprocessing = model.captioner.encoder.preprocessing
    regimes: tuple[Regime, ...] = (
        ("forced", "generated") if options.regime == "both" else (options.regime,)
    )

    def progress(regime: str) -> Any:
        bar = Console(stderr=True)  # standard output is for the tables
        return lambda batches, total: track(batches, f"{regime} captions", total, console=bar)

    found: dict[str, Any] = {}
    for regime in regimes:
        try:
            found[regime] = grounding(
                model.captioner,
                data,
                regime,
                decoding=decoding,
                training=training,
                batch_size=options.batch_size,
                seed=options.seed,
                progress=progress(regime),
            )
        except EvaluationError as error:  # a model may name nothing, and look well all the same
            if not found:
                raise
            found[regime] = {"error": str(error)}
    return {
        "command": " ".join(["captioner", *sys.argv[1:]]),
        "model": model.name,
        "mechanism": model.captioner.decoder.mechanism,
        "data": data.source,
        "transform": f"whole pictures resized to {preprocessing.height} × {preprocessing.width}, "
        "nothing cropped; scored on the model's own grid, nothing smoothed",
        "decoding": vars(decoding),
        "seed": options.seed,
        "regimes": found,
        **provenance(),
    }


def _data(
    options: argparse.Namespace, scratch: Path
) -> "tuple[MaskedPictures, MaskedPictures | None]":
    """The pictures to score, and those of the training split if their masks are given."""
    from dataclasses import replace

    from captioner.data import shapes_folder
    from captioner.evaluation.captions import read_references
    from captioner.evaluation.masks import read

    files = (options.instances, options.captions, options.images)
    for name in ("scenes", "limit"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name} must be 1 or more, got {value}")
    if any(files) and not all(files):
        raise UsageError("give --instances, --captions and --images together, or none of them")
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
    if options.train_instances is None:
        return data, None
    file = Path(options.train_instances)
    training = read(file, file.parent)  # of which no picture is opened
    return data, replace(training, pictures=training.pictures[:TRAINING])


def markdown(report: Mapping[str, Any]) -> str:
    """The report as Markdown to read."""
    lines = [f"# Grounding of {report['model']}", "", f"{report['mechanism']}; {report['data']}."]
    lines += [
        f"{report['transform'].capitalize()}. Percent, with 95 % intervals over pictures.",
        "",
    ]
    for regime, part in report["regimes"].items():
        lines += [f"## {REGIMES[regime]}", ""]
        lines += [part["error"]] if "error" in part else _section(part)
    return "\n".join(lines).rstrip()


def _section(part: Mapping[str, Any]) -> list[str]:
    from captioner.evaluation.grounding import MAPS

    seen = part["coverage"]
    columns = list(COLUMNS.items())
    objects = part.get("objects")
    rows = [
        [label, *(_cell(part["scores"][name][metric]) for metric, _ in columns)]
        + [_cell(objects[name][metric]) for metric in OBJECT_COLUMNS if objects]
        for name, label in MAPS.items()
    ]
    delta = ["model − time-averaged", *(_cell(part["delta"][m], "+") for m, _ in columns)]
    rows.insert(2, delta + [""] * (len(rows[0]) - len(delta)))
    head = ["maps", *COLUMNS.values(), *(OBJECT_COLUMNS.values() if objects else ())]
    lines = [
        f"{part['images']:,} pictures, {seen['captions']:,} captions, {seen['words']:,} words, of which "
        f"{seen['words_naming_objects_percent']:.1f} % name objects; {seen['mentions_with_mask']:,} of "
        f"{seen['mentions']:,} mentions have a mask; {seen['pairs']:,} pairs of objects. "
        f"Grid {part['grid'][0]} × {part['grid'][1]}. Priors: {part['prior']}.",
        "",
        *_rows(head, rows),
        "",
        f"**Paired objects: {part['verdict']}.**",
        "",
    ]
    if objects:
        lines += [
            f"CHAIR: {_cell(objects['chair_i'])} % of the {objects['mentions']:,} objects named are "
            f"neither annotated nor in a reference; {_cell(objects['chair_s'])} % of the captions "
            "name such.",
            "",
        ]
    metrics = [(metric, label) for metric, label in columns if metric != "discrimination"]
    lines += _rows(
        ["the model on", "mentions", *(label for _, label in metrics), "gain − time-averaged"],
        [
            [name, f"{part['mentions']:,}"]
            + [_cell(part[metric]["model"]) for metric, _ in metrics]
            + [_cell(part["gain"]["delta"], "+")]
            for name, part in part["slices"].items()
        ],
    )
    return [*lines, ""]


def _cell(estimate: Mapping[str, float | None], sign: str = "") -> str:
    """An estimate with its interval."""
    value, low, high = (estimate[key] for key in ("value", "low", "high"))
    if value is None:
        return "–"
    return f"{value:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"


def _rows(head: list[str], rows: Iterable[list[str]]) -> list[str]:
    """A Markdown table whose columns line up in a terminal."""
    table = [head, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    lines = [
        "| "
        + " | ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        + " |"
        for row in table
    ]
    rule = [":" + "-" * (widths[0] + 1), *("-" * (width + 1) + ":" for width in widths[1:])]
    return [lines[0], "|" + "|".join(rule) + "|", *lines[1:]]
