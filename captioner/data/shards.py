"""Arrays of many rows in files of some hundred each: written by any number of processes, read by all.

    00000.npy    the rows, each at its place
    00000.json   written last: how long that file is, its SHA-256, and what whoever computed it notes

A shard is finished when both are there. Who fills one holds a lock, which the system takes away from a
process that dies, and writes under a name that the next holder of the lock writes over: so a fill that
was killed loses one shard, and what it left behind is gone after the next.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock, Timeout

ROWS = 256
_PIECE = 1 << 20


class _Form(NamedTuple):
    """How the rows of a shard lie in its file."""

    shape: tuple[int, ...]
    dtype: np.dtype
    offset: int


class Shards:
    """The shards of a folder.

    Args:
        folder: where they are, or will be.
        rows: how many rows all of them have.
        size: rows of a shard; the last may have fewer.
    """

    def __init__(self, folder: Path, rows: int, size: int = ROWS) -> None:
        self.folder, self.rows, self.size = folder, rows, size
        self._forms: dict[int, _Form] = {}

    def __len__(self) -> int:
        return -(-self.rows // self.size)

    def __getitem__(self, row: int) -> np.ndarray:
        """A row, read from disk on use.

        Read, not mapped: all that was read by map would count as memory of this process.
        """
        number, place = divmod(row, self.size)
        if number not in self._forms:
            whole = np.load(self._file(number), mmap_mode="r")  # its header
            self._forms[number] = _Form(whole.shape[1:], whole.dtype, whole.offset)
        shape, dtype, begin = self._forms[number]
        count = math.prod(shape)
        begin += place * count * dtype.itemsize
        return np.fromfile(self._file(number), dtype, count, offset=begin).reshape(shape)

    @property
    def bytes(self) -> int:
        """Size on disk."""
        return sum(self._file(number).stat().st_size for number in range(len(self)))

    def span(self, number: int) -> range:
        """The rows of a shard."""
        return range(number * self.size, min((number + 1) * self.size, self.rows))

    def notes(self, number: int) -> dict[str, Any] | None:
        """What is noted of a finished shard; None where it is not finished, or its file was cut."""
        try:
            notes: dict[str, Any] = json.loads(self._notes(number).read_text("utf-8"))
            whole = self._file(number).stat().st_size == notes["bytes"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return notes if whole else None

    def verify(self, number: int) -> bool:
        """Whether a finished shard still has its checksum; one that has not is no longer finished."""
        notes = self.notes(number)
        if notes is not None and _sha256(self._file(number)) == notes["sha256"]:
            return True
        self._notes(number).unlink(missing_ok=True)
        return False

    @contextmanager
    def claimed(self, number: int, wait: bool) -> Iterator[bool]:
        """Whether this process may fill the shard; while it may, no other may.

        Args:
            number: of the shard.
            wait: for whoever fills it now; False says no at once.
        """
        lock = FileLock(self.folder / f"{number:05d}.lock")
        try:
            lock.acquire(timeout=-1 if wait else 0)
        except Timeout:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()

    def write(self, number: int, values: np.ndarray, notes: Mapping[str, Any]) -> None:
        """Finishes a shard that this process has claimed.

        Raises:
            OSError: the disk is full, or gives back other bytes than it was given.
        """
        part = self._file(number).with_suffix(".part")
        try:
            with part.open("wb") as stream:
                np.save(stream, values)
                _settle(stream)
            digest = _sha256(part)
            if not np.array_equal(np.load(part, mmap_mode="r"), values):
                raise OSError(f"'{part}' does not hold what was written; the disk may be broken")
            noted = {**notes, "bytes": part.stat().st_size, "sha256": digest}
            self._notes(number).unlink(missing_ok=True)  # of a shard that is written anew
            self._forms.pop(number, None)
            part.replace(self._file(number))
            with part.open("w", encoding="utf-8") as text:
                json.dump(noted, text)
                _settle(text)
            part.replace(self._notes(number))
        finally:
            part.unlink(missing_ok=True)

    def tidy(self) -> None:
        """When all shards are finished, nobody needs their locks."""
        for lock in self.folder.glob("*.lock"):
            lock.unlink(missing_ok=True)

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:05d}.npy"

    def _notes(self, number: int) -> Path:
        return self.folder / f"{number:05d}.json"


def _settle(stream: Any) -> None:
    """A power cut must not leave the name without the contents."""
    stream.flush()
    os.fsync(stream.fileno())


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while piece := stream.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
