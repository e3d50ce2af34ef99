"""Options that several commands share, and opening the file that a command writes."""

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TextIO

from captioner.files import atomic_text
from captioner.limits import BATCH, DECODING, METHODS, WORD_SAMPLING, Number
from captioner.resources import bundled_models

FOLDER_OPTIONS = {"engine", "workers", "shard_size", "retry"}
"""The options of ``caption`` that only make sense for a folder."""


def number(expected: Number) -> Callable[[str], Any]:
    """Return a function that parses a number in a range; argparse reports anything else."""

    def parse(text: str) -> Any:
        if (value := expected.parse(text)) is None:
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r:.40}")
        return value

    return parse


positive = number(Number(1, 999_999_999))


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add the photos, the model and the search."""
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="photo, folder or glob")
    add_model(parser)
    add_search(parser, batch_size=64)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add ``--model`` and ``--device``."""
    default, *others = bundled_models()
    text = f"a bundled model ({', '.join(others)}), a model folder, a .ckpt, a run folder, "
    text += "or hf:NAME_OR_FOLDER for a model of transformers"
    parser.add_argument("--model", help=f"{text} (default: {default})")
    add_device(parser)


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add ``--device``."""
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps")


def add_search(parser: argparse.ArgumentParser, batch_size: int) -> None:
    """Add ``--beam-size`` and ``--batch-size``."""
    limit, add = DECODING["beam_size"], parser.add_argument
    text = f"hypotheses kept per photo, up to {limit.high}; 1 is greedy search"
    text += " (default: the model's own, usually 5)"
    add("--beam-size", type=number(limit), metavar="N", help=text)
    text = f"photos computed together, up to {BATCH.high}"
    add("--batch-size", type=number(BATCH), metavar="N", default=batch_size, help=text)


def add_method(parser: argparse.ArgumentParser) -> None:
    """Add ``--method``."""
    text = "how words are explained: by attention or, instead, by another method; gradients and erased "
    text += "regions take seconds a photo"
    parser.add_argument("--method", choices=tuple(METHODS), default="attention", help=text)


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add ``--num-captions`` and the options of sampling and of diverse beam search."""
    texts = {
        "num_captions": "captions per photo, in JSON lines: the best of the beam, or samples",
        "temperature": "sample words; below 1, probable words become more probable",
        "top_k": "sample among the k most probable words",
        "top_p": "sample among the words that together have this probability",
        "min_length": "least number of words",
        "seed": "sample; another seed gives other captions (default: 0)",
        "diverse_groups": "diverse beam search with this many groups, which avoid each other's words",
        "diversity": "how much they avoid them, in nats per word (default: 0.5)",
    }
    group, ranges = (
        parser.add_argument_group("several and varied captions"),
        DECODING | WORD_SAMPLING,
    )
    for name, text in texts.items():
        option, metavar = f"--{name.replace('_', '-')}", "N" if ranges[name].whole else "X"
        group.add_argument(option, type=number(ranges[name]), metavar=metavar, help=text)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add ``--output`` for a command that writes text."""
    parser.add_argument("--output", metavar="FILE", help="file to write (default: standard output)")
    add_overwrite(parser)


def add_overwrite(parser: argparse.ArgumentParser) -> None:
    """Add ``--overwrite`` for a command that replaces only its own files without it."""
    text = "replace existing files that this command has not written"
    parser.add_argument("--overwrite", action="store_true", help=text)


def open_output(file: str | None) -> AbstractContextManager[TextIO]:
    """Open standard output, or a text file that appears whole or not at all."""
    return nullcontext(sys.stdout) if file is None else atomic_text(Path(file))


def writes_folder(options: argparse.Namespace) -> bool:
    """Return whether ``caption`` writes a folder of shards."""
    given = vars(options)
    if given.get("format") == "parquet" or given.keys() & FOLDER_OPTIONS:
        return True
    output = options.output
    return output is not None and (output.endswith(("/", os.sep)) or Path(output).is_dir())
