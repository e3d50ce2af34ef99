"""Files that appear whole or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO, TextIO


def write_text(file: Path, text: str) -> None:
    """Write UTF-8 text like ``write_bytes``."""
    write_bytes(file, text.encode())


def write_bytes(file: Path, data: bytes) -> None:
    """Write a file atomically and flush it to the disk; missing folders are made.

    Raises:
        OSError: the folder is not writable or the disk is full. An existing file is unchanged.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{file.name:.100}-", dir=file.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())  # otherwise a power cut could leave an empty file
        os.chmod(name, 0o644)  # noqa: PTH101 - mkstemp creates private files
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def remove_unfinished(folder: Path, name: str) -> None:
    """Remove what killed calls of ``write_bytes`` left behind; ``name`` is a glob."""
    for part in folder.glob(f".{name}-????????"):
        part.unlink(missing_ok=True)


@contextmanager
def atomic(file: Path) -> Iterator[BinaryIO]:
    """Open a stream whose file is on the disk when the block ends, unless it ends with an error."""
    part = file.with_name(f".{file.name}.part")
    try:
        with part.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def atomic_text(file: Path) -> Iterator[TextIO]:
    """Open a text stream like ``atomic``."""
    with atomic(file) as stream:
        # File names may hold bytes that are not UTF-8; escape them instead of failing.
        text = TextIOWrapper(stream, "utf-8", "backslashreplace", newline="")
        yield text
        text.detach()
