"""Calibrate the confidence of captions on photos with references.

captioner calibrate runs/flickr8k/model --data flickr8k --root DIR
captioner calibrate model --data csv --root captions.csv --split test --check
"""

import argparse
import json
import sys

from captioner.cli.arguments import add_device
from captioner.cli.progress import stages
from captioner.errors import UsageError, plural
from captioner.resources import HF, bundled_models, find_model
from captioner.store.model_folder import CONFIG, NOT_CALIBRATED, find

MIN_PHOTOS = 50
"""With fewer photos, the standard error of the share of right captions can exceed 7.1 points."""
BATCH = 32  # photos


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``calibrate``."""
    from captioner.data.readers import READERS

    parser.add_argument("model", help="a model folder, a run folder or a bundled name")
    add_device(parser)
    add = parser.add_argument
    text = "data set, as in data.name"
    add("--data", metavar="NAME", choices=[*READERS], required=True, help=text)
    add("--root", metavar="DIR", required=True, help="folder of the data set")
    text = "split of the data set, on which the model was not trained (default: val)"
    add("--split", choices=("train", "val", "test"), default="val", help=text)
    text = "change nothing: report how well the model's own calibration fits these photos"
    add("--check", action="store_true", help=text)


def run(options: argparse.Namespace) -> int:
    """Write the calibration into the model folder, and print how well it fits the photos."""
    from captioner.data import readers

    folder = None if options.model.startswith(HF) else find(find_model(options.model))
    if folder is None or (options.model in bundled_models() and not options.check):
        raise UsageError(
            f"'{options.model}' cannot be calibrated: give a model folder that captioner fit or export "
            "wrote; --check tests a bundled model"
        )
    found = readers.read(options.data, options.root).of_split(options.split)
    records = [record for record in found if record.captions]
    if not records:
        raise UsageError(f"data set '{options.data}' has no photos in split '{options.split}'")
    with stages() as show:
        show("loading the model")
        from dataclasses import asdict

        from captioner.cli.ground_images import open_cache
        from captioner.evaluation.attention_maps import batches
        from captioner.files import write_text
        from captioner.predict.confidence import is_right
        from captioner.predict.load import load_own
        from captioner.store.calibration import calibrate, calibration_error, reliability

        model = load_own(folder, options.device)
        if options.check and model.calibration is None:
            raise UsageError(NOT_CALIBRATED.format(options.model))
        cache = open_cache(model, records, show)
        show("captioning photos", len(records))
        agreements: list[float] = []
        right: list[bool] = []
        failed: list[str] = []
        for batch in batches(
            model.captioner,
            records,
            BATCH,
            failed,
            cache=cache,
            decoding=model.decoding,
            advance=lambda done: show("captioning photos", len(records), done),
        ):
            captions = [hypothesis.tokens for hypothesis in batch.generated]
            agreements += model.agreements(batch.annotations, captions)
            for index, tokens in zip(batch.indices, captions, strict=True):
                right.append(is_right(model.vocabulary.decode(tokens), records[index].captions))
    if len(right) < MIN_PHOTOS and not options.check:
        number = plural(len(right), "photo")
        raise UsageError(
            f"{number} with captions cannot calibrate a model: give {MIN_PHOTOS} or more that can be "
            "read, or --check to change nothing"
        )
    calibration = model.calibration if options.check else calibrate(agreements, right)
    assert calibration is not None
    if not options.check:
        config = json.loads((folder / CONFIG).read_text("utf-8"))
        config["confidence"] = asdict(calibration)
        write_text(folder / CONFIG, json.dumps(config, indent=2, ensure_ascii=False) + "\n")
        print(f"calibration written to {folder / CONFIG}")
    bins = reliability([calibration(value) for value in agreements], right)
    print(f"{len(right):,} photos, {100 * sum(right) / len(right):.1f} % of the captions are right")
    print("| captions | mean confidence | right |\n|---|---|---|")
    for part in bins:
        print(f"| {part.captions:,} | {part.confidence:.0%} | {part.right:.0%} |")
    print(f"expected calibration error {100 * calibration_error(bins):.1f} points")
    for message in failed:
        print(f"captioner: {message}", file=sys.stderr)
    return 1 if failed else 0
