"""Checks of a command's outputs, such as that none is an input and that each can be written."""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from captioner import paths
from captioner.errors import UsageError
from captioner.model_folder import BEST, CONFIG, MODEL

MODEL_FILES = (CONFIG, f"{MODEL}/{CONFIG}", str(BEST))
RAW = (".arw", ".cr2", ".cr3", ".dng", ".nef", ".orf", ".raf", ".raw", ".rw2")
OTHERS = (".eps", ".ico", ".jfif", ".jp2", ".jpe", ".jxl", ".psd")
PHOTOS = {*paths.SUFFIXES, ".svg", *RAW, *OTHERS}  # including formats that the package cannot read


def check_text(file: Path) -> None:
    """Check the file that a command writes text to."""
    problem = None
    if not file.parent.is_dir():
        problem = f"the folder '{file.parent}' does not exist"
    elif file.is_dir():
        problem = "it is a folder; give the name of a file"
    elif file.name == "-" or (file.exists() and not file.is_file()):
        problem = "it is not a regular file; leave --output out to write to standard output"
    elif file.suffix.lower() in PHOTOS:
        problem = "it is named like a photo; give a name that ends with .txt or .json"
    if problem:
        raise UsageError(f"cannot write '{file}': {problem}")
    _check_writable(file.parent)


def check_directory(folder: Path, inputs: Iterable[Path] = ()) -> None:
    """Check the folder that a command writes files into."""
    parts = (folder, *folder.absolute().parents)
    existing = next(path for path in parts if path.exists() or path.is_symlink())
    problem = None
    if not existing.is_dir():
        problem = f"'{existing}' is {'a file' if existing.exists() else 'a broken link'}"
    elif folder.exists() and any(path.is_dir() and folder.samefile(path) for path in inputs):
        problem = "it is an input or holds one"
    if problem:
        raise UsageError(f"cannot write into '{folder}': {problem}; give another folder")
    _check_writable(existing)


def check_export(folder: Path, model: Path, overwrite: bool) -> None:
    """Check the folder that a model is exported into."""
    check_directory(folder)
    files = [model, *(model / name for name in MODEL_FILES)]
    if any(file.is_file() and folder.resolve() in file.resolve().parents for file in files):
        raise UsageError(f"cannot write into '{folder}': it is an input; give another folder")
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise UsageError(
            f"'{folder}' exists and is not empty; give another folder, or --overwrite to replace a model"
        )


def check_overlap(output: Path, inputs: Iterable[Path]) -> None:
    """Refuse an existing output that is also an input, even by way of a link."""
    if not output.exists():
        return
    status = output.stat()
    for file in inputs:
        if file.exists() and os.path.samestat(status, file.stat()):
            raise UsageError(
                f"cannot write '{output}': it is an input ('{file}'); give another --output"
            )


def _check_writable(folder: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        advice = "check the path, its permissions and the disk"
        raise UsageError(f"cannot write into '{folder}': {error.strerror}; {advice}") from error
