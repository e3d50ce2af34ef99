"""Write a model folder from a checkpoint or a run.

captioner export model --model runs/flickr8k
captioner export model --model runs/flickr8k/checkpoints/best.ckpt --half
"""

import argparse
from pathlib import Path

from captioner.cli.outputs import check_folder
from captioner.errors import UsageError
from captioner.resources import HF, find_model
from captioner.store import model_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``export``."""
    add = parser.add_argument
    add("folder", help="the folder to write")
    add("--model", required=True, help="a .ckpt, a run folder, a model folder or a bundled name")
    add("--half", action="store_true", help="store float16 weights, which take half the space")
    add("--overwrite", action="store_true", help="write into a folder that is not empty")


def run(options: argparse.Namespace) -> int:
    """Write the model folder and return the exit status."""
    if options.model.startswith(HF):
        raise UsageError(
            f"cannot export '{options.model}': model folders hold the package's own models"
        )
    folder, source = Path(options.folder), find_model(options.model)
    read = (model_folder.find(source) or source).resolve()
    check_folder(folder, [read, *read.parents])
    if folder.is_dir() and any(folder.iterdir()) and not options.overwrite:
        raise UsageError(f"'{folder}' exists and is not empty: give another folder, or --overwrite")
    from captioner.store import checkpoint

    stored = checkpoint.load(source)
    card = checkpoint.read_card(source) or f"# A captioner\n\nExported from {source.name}.\n"
    checkpoint.save(
        stored.captioner,
        options.folder,
        card,
        stored.decoding,
        stored.supervision,
        options.half,
        stored.calibration,
    )
    print(f"model written to {options.folder}")
    return 0
