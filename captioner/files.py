"""Files that appear whole or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


def write_text(file: Path, text: str) -> None:
    """Writes a file whole or not at all, in UTF-8."""
    write_bytes(file, text.encode())


def write_bytes(file: Path, data: bytes) -> None:
    """Writes a file whole or not at all, and its folder if need be; it survives a power cut.

    Raises:
        OSError: the folder cannot be written, the disk is full. What was there before still is.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{file.name:.100}-", dir=file.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())  # or the name may reach the disk before the content
        os.chmod(name, 0o644)  # noqa: PTH101 - mkstemp makes it private
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def remove_unfinished(folder: Path, name: str) -> None:
    """Removes what `write_bytes` left of files of this name (a glob) if its process was killed."""
    for part in folder.glob(f".{name}-????????"):
        part.unlink(missing_ok=True)


@contextmanager
def whole(file: Path) -> Iterator[TextIO]:
    """A stream of text into a file that appears when all is written, or not at all."""
    part = file.with_name(f".{file.name}.part")
    try:
        # A file name may hold bytes that are no UTF-8; it must not cost the other pictures.
        with part.open("w", encoding="utf-8", errors="backslashreplace", newline="") as stream:
            yield stream
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
