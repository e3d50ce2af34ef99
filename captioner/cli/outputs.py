"""What a command may write: it replaces files only with ``--overwrite``, and its inputs never."""

import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from captioner.errors import UsageError
from captioner.resources import HF, find_model
from captioner.store.model_folder import BEST, CARD, CONFIG, MODEL, VOCABULARY, WEIGHTS

MODEL_FILES = (CONFIG, WEIGHTS, VOCABULARY, CARD)


def check_files(files: Iterable[Path], overwrite: bool, inputs: Iterable[Path] = ()) -> None:
    """Raise UsageError for a file that exists or is an input, or a folder that cannot be written."""
    files = list(files)
    existing = [file for file in files if file.exists()]
    identities = {_identity(file) for file in inputs if file.exists()} if existing else set()
    for file in existing:
        if not file.is_file():
            raise UsageError(f"cannot write '{file}': it is not a regular file; give another name")
        if _identity(file) in identities:  # also by way of a link
            raise UsageError(f"cannot write '{file}': it is an input; give another --output")
        if not overwrite:
            raise UsageError(
                f"'{file}' exists: give another --output, or --overwrite to replace it"
            )
    for folder in {file.parent for file in files}:
        _check_writable(folder)


def check_folder(folder: Path, inputs: Iterable[Path] = ()) -> None:
    """Raise UsageError for a folder that is an input, or that cannot be made or written."""
    if any(folder.is_dir() and path.is_dir() and folder.samefile(path) for path in inputs):
        raise UsageError(f"cannot write into '{folder}': it is an input; give another folder")
    parts = (folder, *folder.absolute().parents)
    _check_writable(next(path for path in parts if path.exists() or path.is_symlink()))


def files_below(*names: str | None) -> Iterator[Path]:
    """Yield the files that inputs name: a file itself, and of a folder all that it holds."""
    for name in filter(None, names):
        path = Path(name).expanduser()
        yield from path.rglob("*") if path.is_dir() else [path]


def model_files(name: str | None) -> list[Path]:
    """Return the files that may be read to load a model."""
    path = find_model(None if name is None else name.removeprefix(HF))
    inside = [folder / file for folder in (path, path / MODEL) for file in MODEL_FILES]
    return [path, path / "config.yaml", path / BEST, *inside]


def _identity(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_dev, status.st_ino


def _check_writable(folder: Path) -> None:
    """Fail before hours of work, not after."""
    try:
        with tempfile.TemporaryFile(dir=os.path.realpath(folder)):
            pass
    except OSError as error:
        raise UsageError(
            f"cannot write into '{folder}': {error.strerror}; check the path and its permissions"
        ) from error
