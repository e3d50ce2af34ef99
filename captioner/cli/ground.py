"""Score attention against object masks.

captioner ground --model runs/shapes --scenes 20
captioner ground --instances instances_val2017.json --captions captions_val2017.json --images val2017
captioner ground --entities flickr30k_entities --data flickr8k --root DIR
captioner ground --data flickr8k --root DIR --limit 100
"""

import argparse
import json
import sys
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from captioner.cli.arguments import (
    add_method,
    add_model,
    add_overwrite,
    add_search,
    number,
    positive,
)
from captioner.cli.outputs import check_files, files_below, model_files
from captioner.cli.progress import stages
from captioner.errors import UsageError, plural
from captioner.files import write_text
from captioner.limits import SCENES, SEED

ADVANCED = ("batch_size", "beam_size", "seed", "scene_options", "split", "overwrite")
OPTIONS = {  # what each kind of images requires and allows
    "scenes": ((), ("scenes", "scene_options")),
    "COCO files": (("instances", "captions", "images"), ()),
    "Flickr30k Entities": (("entities", "data", "root"), ("split",)),
    "a data set": (("data", "root"), ("split",)),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ground``."""
    from captioner.data.readers import READERS

    add_model(parser)
    add_search(parser, batch_size=16)
    data = parser.add_argument_group(
        "photos",
        "COCO files with object masks; or a data set with the boxes of Flickr30k Entities; or a data "
        "set alone, for faithfulness only; or, by default, generated scenes",
    )
    data.add_argument("--instances", metavar="FILE", help="COCO instances JSON: the masks")
    data.add_argument("--captions", metavar="FILE", help="COCO captions JSON: the references")
    data.add_argument("--images", metavar="DIR", help="folder of the photos")
    scenes = "number of scenes to generate (default: 200)"
    data.add_argument("--scenes", type=number(SCENES), metavar="N", help=scenes)
    text = "options of the scenes, such as max_objects=5 (default: those of the training run)"
    data.add_argument("--scene-options", nargs="+", metavar="NAME=VALUE", help=text)
    text = "data set, as in data.name"
    data.add_argument("--data", metavar="NAME", choices=[*READERS], help=text)
    data.add_argument("--root", metavar="DIR", help="folder of that data set")
    splits = ("train", "val", "test")
    data.add_argument("--split", choices=splits, help="split of that data set (default: val)")
    boxes = "folder of Flickr30k Entities: the boxes of phrases in that data set's captions"
    data.add_argument("--entities", metavar="DIR", help=boxes)
    data.add_argument("--limit", type=positive, metavar="N", help="use only the first N photos")
    regimes = ("both", "forced", "generated")
    text = "captions to evaluate: the references, fed to the model (forced), or the model's own"
    parser.add_argument("--regime", choices=regimes, default="both", help=text)
    add_method(parser)
    text = "leave out how words depend on attended regions, which takes most of the time"
    parser.add_argument("--no-faithfulness", action="store_true", help=text)
    parser.add_argument("--seed", type=number(SEED), default=0, help="random seed")
    parser.add_argument("--full", action="store_true", help="print all tables of the report")
    parser.add_argument("--output", metavar="FILE", help="file for the report as JSON")
    add_overwrite(parser)


def run(options: argparse.Namespace) -> int:
    """Print the report and write it; return 0, or 1 if some images could not be read."""
    kind = _kind(options)
    if kind == "a data set" and options.no_faithfulness:
        raise UsageError(
            "--no-faithfulness leaves nothing to measure on a data set without boxes or masks; give "
            "--entities DIR as well"
        )
    if kind == "scenes" and options.scenes is None:
        print(
            "captioner: no photos named, so attention is scored on generated scenes; see --help for "
            "scoring on photos",
            file=sys.stderr,
        )
    from captioner.evaluation.image_statistics import ENDING, lines

    files = []
    if options.output is not None:
        files = [Path(options.output), Path(options.output).with_suffix(ENDING)]
        folders = (options.images, options.root, options.entities)
        inputs = files_below(options.instances, options.captions, *folders)
        check_files(files, options.overwrite, chain(inputs, model_files(options.model)))
    with TemporaryDirectory() as scratch, stages() as show:
        show("reading masks and captions")
        from captioner.cli.ground_images import READERS, evaluate
        from captioner.cli.ground_tables import page
        from captioner.fast.malloc import keep_memory
        from captioner.predict.load import load

        keep_memory()
        images = READERS[kind](options, Path(scratch))
        show("loading the model")
        model = load(options.model, options.device)
        model.decoding = model.decoding.with_options({"beam_size": options.beam_size})
        report, statistics = evaluate(model, images, options, show)
    print(page(report, options.full))
    if files:
        # The statistics first, so that a new report never has old statistics beside it.
        write_text(files[1], lines(statistics))
        write_text(files[0], json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    failed, messages = report["failed"], [*report["problems"], *report["failed"]]
    if failed:
        messages.append(f"{len(failed)} of {plural(images.number, 'photo')} left out")
    for message in messages:
        print(f"captioner: {message}", file=sys.stderr)
    return 1 if messages else 0


def _kind(options: argparse.Namespace) -> str:
    """Return the kind of images that the options name; UsageError for two, or for one in part."""
    given = {name for name, value in vars(options).items() if value is not None}
    named = sorted(given & {name for both in OPTIONS.values() for names in both for name in names})
    for kind, (needed, more) in OPTIONS.items():
        if set(needed) <= set(named) <= {*needed, *more}:
            return kind
    found = " ".join(f"--{name.replace('_', '-')}" for name in named)
    raise UsageError(
        "give --instances --captions --images together, or --data --root together, also with "
        f"--entities, or --scenes; got {found}"
    )
