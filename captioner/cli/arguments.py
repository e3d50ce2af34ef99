"""Options that several commands share, and opening the file that a command writes."""

import argparse
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TextIO

from captioner.files import atomic_text
from captioner.limits import BATCH, DECODING, METHODS, WORD_SAMPLING, Number
from captioner.resources import bundled_models


def number(expected: Number) -> Callable[[str], Any]:
    """Return a function that parses a number in a range; argparse reports anything else."""

    def parse(given: str) -> Any:
        try:
            value = int(given) if expected.whole else float(given)
        except ValueError:
            value = None
        if not expected.accepts(value):
            raise argparse.ArgumentTypeError(f"expected {expected}, got {given!r:.40}")
        return value

    return parse


positive = number(Number(1))


def text(given: str) -> str:
    """Return a text; argparse reports bytes of a shell that are not UTF-8, which no file can hold."""
    try:
        given.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"expected text in UTF-8, got {given!r:.80}") from None
    return given


def add_inputs(parser: argparse.ArgumentParser, batch_size: int) -> None:
    """Add the photos, and the options of the model and the search."""
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="photo, folder or glob")
    add_model(parser)
    add_search(parser, batch_size)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add ``--model`` and ``--device``."""
    default, *others = bundled_models()
    help_text = (
        f"a bundled model ({', '.join(others)}), a model folder, a .ckpt, a run folder, or "
        f"hf:NAME_OR_FOLDER for a model of transformers (default: {default})"
    )
    parser.add_argument("--model", help=help_text)
    add_device(parser)


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add ``--device``."""
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps")


def add_search(parser: argparse.ArgumentParser, batch_size: int) -> None:
    """Add ``--beam-size`` and ``--batch-size``."""
    limit, add = DECODING["beam_size"], parser.add_argument
    help_text = (
        "hypotheses kept per photo; 1 is greedy search (default: the model's own, usually 5)"
    )
    add("--beam-size", type=number(limit), metavar="N", help=help_text)
    help_text = "photos computed together"
    add("--batch-size", type=number(BATCH), metavar="N", default=batch_size, help=help_text)


def add_method(parser: argparse.ArgumentParser) -> None:
    """Add ``--method``."""
    help_text = "how words are explained; gradients and erased regions take seconds a photo"
    parser.add_argument("--method", choices=tuple(METHODS), default="attention", help=help_text)


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
    group = parser.add_argument_group("several and varied captions")
    for name, help_text in texts.items():
        limit = (DECODING | WORD_SAMPLING)[name]
        option, metavar = f"--{name.replace('_', '-')}", "N" if limit.whole else "X"
        group.add_argument(option, type=number(limit), metavar=metavar, help=help_text)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add ``--output`` for a command that writes text."""
    parser.add_argument("--output", metavar="FILE", help="file to write (default: standard output)")
    add_overwrite(parser)


def add_overwrite(parser: argparse.ArgumentParser) -> None:
    """Add ``--overwrite``."""
    help_text = "replace files that exist; without it, they are left and the command ends"
    parser.add_argument("--overwrite", action="store_true", help=help_text)


def open_output(file: str | None) -> AbstractContextManager[TextIO]:
    """Open standard output, or a text file that appears whole or not at all."""
    return nullcontext(sys.stdout) if file is None else atomic_text(Path(file))
