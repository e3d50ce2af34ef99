"""Write files completely or not at all."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO, TextIO

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

_PART = ".captioner.part"


@contextmanager
def atomic(file: Path, keep_stat: bool = False) -> Iterator[BinaryIO]:
    """Open a stream whose file is on the disk when the block ends, unless it ends with an error.

    An existing file is unchanged until then, and the new one has its permissions, and with
    ``keep_stat`` its times. A link stays, and the file it leads to is replaced. The stream is a file of
    its own, so that two processes can write the same file: the last one that is complete stays.
    """
    target = Path(os.path.realpath(file))  # Path.resolve raises for links in circles
    part = None
    try:
        part, stream = _new_part(target.parent)
        with stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())  # otherwise a power cut could leave an empty file
        if target.exists():
            (shutil.copystat if keep_stat else shutil.copymode)(target, part)
        part.replace(target)
    except OSError as error:
        if not str(error.filename).endswith(_PART):
            raise
        # Name the file that the caller knows.
        raise OSError(error.errno, error.strerror, str(file)) from error
    finally:
        if part is not None:
            part.unlink(missing_ok=True)


def remove_parts(folder: Path) -> None:
    """Remove what killed processes left of files that they were writing into a folder."""
    for part in folder.glob(f".*{_PART}"):
        with suppress(OSError), part.open("rb") as stream:
            if fcntl is not None:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails if its process lives
                part.unlink()


def _new_part(folder: Path) -> tuple[Path, BinaryIO]:
    """Open a new file, locked so that ``remove_parts`` of other processes keeps it."""
    while True:
        part = folder / f".{secrets.token_hex(8)}{_PART}"
        stream = part.open("xb")
        with suppress(OSError):  # some network file systems cannot lock files
            if fcntl is not None:
                fcntl.flock(stream, fcntl.LOCK_EX)
        if part.exists():  # not removed before it was locked
            return part, stream
        stream.close()


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
