"""The text files of a model folder, read and checked without torch.

A folder may come from a stranger. It holds no code, and links, which could lead out of it, are refused.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from captioner import __version__
from captioner.errors import CaptionerError, CheckpointError, joined

FORMAT_VERSION = 2
CONFIG, WEIGHTS, VOCABULARY, CARD = "config.json", "model.safetensors", "vocab.json", "README.md"
BEST = Path("checkpoints") / "best.ckpt"
MODEL = "model"
NOT_CALIBRATED = (
    "'{0}' has no calibration, so the confidence of its captions is unknown: run captioner calibrate on "
    "its model folder"
)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Turn every error of loading a model into a CheckpointError of one line that names it."""
    try:
        yield
    except Exception as error:  # a damaged file or wrong options may raise anything
        kind = "" if isinstance(error, CaptionerError) else f"{type(error).__name__}: "
        reason = kind + joined(error, limit=600)
        if str(path) not in reason:
            reason = f"'{path}' cannot be loaded: {reason}"
        raise CheckpointError(reason) from error


def find(path: Path) -> Path | None:
    """Return the model folder at a path or, in a run folder, below it; None if there is none."""
    folders = (path, path / MODEL)
    return next((folder for folder in folders if (folder / CONFIG).is_file()), None)


def read(folder: Path) -> tuple[dict[str, Any], Any]:
    """Return the configuration and the words of a model folder; their content is not checked.

    Raises:
        CheckpointError: a file is missing, damaged or a link, or the format is another.
    """
    config = _read_json(folder / CONFIG)
    if (version := config.get("format_version")) != FORMAT_VERSION:
        raise CheckpointError(
            f"'{folder / CONFIG}' has format_version {version!r:.40}, this captioner ({__version__}) "
            f"reads {FORMAT_VERSION}: give another folder, or pip install --upgrade captioner"
        )
    check_file(folder / WEIGHTS)
    return config, _read_json(folder / VOCABULARY).get("words")


def check_file(file: Path) -> None:
    """Raise CheckpointError unless a path is a regular file, and not a link."""
    if file.is_symlink():
        raise CheckpointError(f"'{file}' is a link: copy the file itself into the folder")
    if not file.is_file():  # a pipe would never end
        raise CheckpointError(f"'{file}' is missing or no file: copy the whole folder again")


def read_text(file: Path) -> str:
    """Read a file of a model folder as UTF-8; raise CheckpointError if it is missing or a link."""
    check_file(file)
    return file.read_text("utf-8", errors="replace")


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_text(file))
    except ValueError as error:
        raise CheckpointError(f"'{file}' cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"'{file}' holds a {type(content).__name__}; expected an object")
    return content
