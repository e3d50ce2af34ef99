"""Write files completely or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO, TextIO


@contextmanager
def atomic(file: Path, keep_stat: bool = False) -> Iterator[BinaryIO]:
    """Open a stream whose file is on the disk when the block ends, unless it ends with an error.

    An existing file is unchanged until then, and the new one has its permissions, and with
    ``keep_stat`` its times. A link stays, and the file it leads to is replaced. The next try replaces
    the file of a killed process.
    """
    target = Path(os.path.realpath(file))  # Path.resolve raises for links in circles
    part = target.with_name(f".{target.name}.part")
    try:
        with part.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())  # otherwise a power cut could leave an empty file
        if target.exists():
            (shutil.copystat if keep_stat else shutil.copymode)(target, part)
        part.replace(target)
    except OSError as error:
        if str(error.filename) != str(part):
            raise
        # Name the file that the caller knows.
        raise OSError(error.errno, error.strerror, str(file)) from error
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


def write_bytes(file: Path, data: bytes) -> None:
    """Write a whole file like ``atomic``; missing folders are made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic(file) as stream:
        stream.write(data)


def write_text(file: Path, text: str) -> None:
    """Write UTF-8 text like ``write_bytes``."""
    write_bytes(file, text.encode())
