"""Reading the text files of a model folder, without torch, so that errors in them are found at once."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from captioner import __version__
from captioner.errors import CaptionerError, CheckpointError, printable
from captioner.language.vocabulary import MAX_WORD, is_plain
from captioner.store import schema, untrusted

FORMAT_VERSION = 2
CONFIG, WEIGHTS, VOCABULARY, CARD = "config.json", "model.safetensors", "vocab.json", "README.md"
BEST = Path("checkpoints") / "best.ckpt"
MODEL = "model"
NOT_CALIBRATED = (
    "'{0}' has no calibration, so the confidence of its captions is unknown: run captioner calibrate on "
    "its model folder, which models of other libraries do not have"
)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Turn the errors of loading a model into a CheckpointError that names it."""
    try:
        yield
    except (CaptionerError, OSError, RecursionError, MemoryError, ArithmeticError) as error:
        reason = printable(str(error) or type(error).__name__, limit=600)
        if str(path) not in reason:
            reason = f"'{path}' cannot be loaded: {reason}"
        raise CheckpointError(reason) from error


def find(path: Path) -> Path | None:
    """Return the model folder at a path or, in a run folder, below it; None if there is none."""
    folders = (path, path / MODEL)
    return next((folder for folder in folders if (folder / CONFIG).is_file()), None)


def read(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the configuration and the words of a model folder.

    Raises:
        CheckpointError, ModelError: a file is missing, damaged, no regular file or too large; another
            format; a field outside ``schema.CONFIG``.
    """
    config = untrusted.read_json(folder / CONFIG)
    version = config.get("format_version")
    if type(version) is not int or version != FORMAT_VERSION:
        found = "no format_version" if version is None else f"format_version {version!r:.40}"
        raise CheckpointError(
            f"'{folder / CONFIG}' has {found}, this captioner ({__version__}) reads {FORMAT_VERSION}: "
            "give a model folder that its captioner export wrote, or pip install --upgrade captioner"
        )
    schema.check(config)
    untrusted.check_file(folder / WEIGHTS)
    return config, check_words(untrusted.read_json(folder / VOCABULARY).get("words"))


def check_words(words: Any) -> list[str]:
    """Return the words of a vocabulary; raise CheckpointError if they are not a list of words."""
    if not isinstance(words, list) or not all(isinstance(w, str) and is_plain(w) for w in words):
        raise CheckpointError(
            f"it has no list of words of at most {MAX_WORD} letters without control characters; its "
            "vocabulary is missing or damaged"
        )
    return words
