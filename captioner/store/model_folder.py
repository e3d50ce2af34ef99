"""The text files of a model folder, read and checked without torch.

A folder may come from a stranger. It is a broken one at worst: no code is in it, and links, which could
lead out of it, are not followed.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from captioner import __version__
from captioner.errors import CheckpointError, printable
from captioner.language.vocabulary import MAX_WORD, is_plain
from captioner.limits import SUPERVISION, Number

FORMAT_VERSION = 2
CONFIG, WEIGHTS, VOCABULARY, CARD = "config.json", "model.safetensors", "vocab.json", "README.md"
BEST = Path("checkpoints") / "best.ckpt"
MODEL = "model"
NOT_CALIBRATED = (
    "'{0}' has no calibration, so the confidence of its captions is unknown: run captioner calibrate on "
    "its model folder, which models of other libraries do not have"
)

WEIGHT = Number(-100, 100, whole=False)
# The fields that are read, and what they hold. The classes of the parts check the options in "model",
# and ``Decoding`` checks its own.
FIELDS: dict[str, Any] = {
    "model": {"encoder": {}, "neck": {}, "decoder": {}},
    "decoding": {},
    "supervision": SUPERVISION,
    "confidence": {"intercept": WEIGHT, "slope": WEIGHT},
    "vocabulary": {"fingerprint": str},
    "encoder_weights": {"sha256": str},
}
OPTIONAL = ("decoding", "supervision", "confidence")


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Turn every error of loading a model into a CheckpointError of one line that names it."""
    try:
        yield
    except Exception as error:  # the classes of the parts may raise anything for wrong options
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
        CheckpointError: a file is missing, damaged or a link; another format; a field of ``FIELDS`` is
            missing or wrong.
    """
    config = read_json(folder / CONFIG)
    if (version := config.get("format_version")) != FORMAT_VERSION:
        raise CheckpointError(
            f"'{folder / CONFIG}' has format_version {version!r:.40}, this captioner ({__version__}) "
            f"reads {FORMAT_VERSION}: give a model folder that its captioner export wrote, or pip "
            "install --upgrade captioner"
        )
    check(config)
    check_file(folder / WEIGHTS)
    return config, check_words(read_json(folder / VOCABULARY).get("words"))


def check(config: Any, fields: Mapping[str, Any] = FIELDS, where: str = CONFIG) -> None:
    """Raise CheckpointError if a field is missing, of another type, or out of range."""
    if not isinstance(config, Mapping):
        raise CheckpointError(f"{where} is {config!r:.80}, expected names and values")
    for name, field in fields.items():
        if name not in config:
            if name not in OPTIONAL:
                raise CheckpointError(f"{where} has no {name!r}")
        elif isinstance(field, Mapping):
            check(config[name], field, name)
        elif not (isinstance(config[name], str) if field is str else field.accepts(config[name])):
            expected = "text" if field is str else field
            raise CheckpointError(f"{name} is {config[name]!r:.80}, expected {expected}")


def check_words(words: Any) -> list[str]:
    """Return the words of a vocabulary; raise CheckpointError if they are not a list of words."""
    if not isinstance(words, list) or not all(isinstance(w, str) and is_plain(w) for w in words):
        raise CheckpointError(
            f"it has no list of words of at most {MAX_WORD} letters without control characters; its "
            "vocabulary is missing or damaged"
        )
    return words


def check_file(file: Path) -> None:
    """Raise CheckpointError unless a path is a regular file, and not a link."""
    if file.is_symlink():
        raise CheckpointError(f"'{file}' is a link: copy the file itself into the folder")
    if not file.is_file():  # a pipe would never end
        raise CheckpointError(f"'{file}' is missing or no file: copy the whole folder again")


def read_text(file: Path) -> str:
    """Read a file of a model folder as UTF-8; raise CheckpointError if that is not possible."""
    check_file(file)
    try:
        return file.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"'{file}' cannot be read: {error}") from error


def read_json(file: Path) -> dict[str, Any]:
    """Read the object in a JSON file; raise CheckpointError if it holds something else."""
    try:
        content = json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"'{file}' cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"'{file}' holds a {type(content).__name__}; expected an object")
    return content
