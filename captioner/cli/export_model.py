"""Write a model folder from a checkpoint or a run.

captioner export model --model runs/flickr8k
captioner export model --model runs/flickr8k/checkpoints/best.ckpt --half
"""

import argparse

from captioner.resources import find_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``export``."""
    add = parser.add_argument
    add("folder", help="the folder to write")
    add("--model", required=True, help="a .ckpt, a run folder, a model folder or a bundled name")
    add("--half", action="store_true", help="store float16 weights, which take half the space")
    add("--overwrite", action="store_true", help="replace the model folder if it exists")


def run(options: argparse.Namespace) -> int:
    """Write the model folder and return the exit status."""
    from captioner.store import checkpoint

    source = find_model(options.model)
    stored = checkpoint.load(source)
    card = checkpoint.read_card(source)
    checkpoint.save(
        stored.captioner,
        options.folder,
        card or f"# A captioner\n\nExported from {source.name}; not scored yet.\n",
        stored.decoding,
        stored.supervision,
        options.half,
        stored.calibration,
    )
    print(f"model written to {options.folder}")
    return 0
