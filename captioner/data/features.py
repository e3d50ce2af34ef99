"""What is computed once per picture and kept: annotation vectors, or pixels at the encoder's size."""

import hashlib
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from captioner import images
from captioner.data.pixels import InputSize, PixelBatch, read_batches
from captioner.data.shards import ROWS, Shards
from captioner.errors import DataError, ImageError
from captioner.memory import give_back_memory

FORMAT_VERSION = 2
_LOG = logging.getLogger(__name__)


@runtime_checkable
class CachingEncoder(Protocol):
    """What the cache needs of an encoder."""

    @property
    def preprocessing(self) -> InputSize:
        """The size of its input."""

    def fingerprint(self) -> str:
        """Changes with the weights, the architecture or the preprocessing."""
        ...

    def __call__(self, images: Tensor) -> Any:
        """(B, 3, H, W) uint8 → an object with ``vectors`` (B, L, D) and ``grid``."""
        ...


class Shown(NamedTuple):
    """Pictures as they are, where annotations are expected; no grid tells them apart."""

    vectors: UInt8[Tensor, "B 3 H W"]
    grid: tuple[int, int] = (0, 0)


class Resized:
    """In the place of an encoder: keeps the pictures at its size, for one that learns.

    Args:
        preprocessing: of the encoder.
    """

    def __init__(self, preprocessing: InputSize) -> None:
        self.preprocessing = preprocessing

    def fingerprint(self) -> str:
        """Of the size and the way to it, which is all that matters to pixels."""
        size = self.preprocessing
        return f"pixels {size.height} × {size.width} {size.interpolation}"

    def __call__(self, images: UInt8[Tensor, "B 3 H W"]) -> Shown:
        """The same."""
        return Shown(images)


@dataclass(frozen=True)
class AnnotationCache:
    """Annotation vectors, or pixels, of many pictures in files.

    Attributes:
        shards: (L, D) float16 a row, or (3, H, W) uint8, read from disk on use.
        rows: row of each picture's path.
        grid: (rows, columns) of the feature map; (0, 0) for pixels.
        failed: message of each picture that could not be read, by path.
    """

    shards: Shards
    rows: dict[str, int]
    grid: tuple[int, int]
    failed: dict[str, str]

    @classmethod
    def open(
        cls,
        folder: Path,
        paths: Sequence[str],
        encoder: CachingEncoder,
        *,
        batch_size: int = 64,
        device: torch.device | str = "cpu",
        progress: Callable[[Iterable[Any], int], Iterable[Any]] | None = None,
        verify: bool = False,
        shard: int = ROWS,
    ) -> "AnnotationCache":
        """The cache of these pictures under this encoder; what is not there yet is computed.

        Any number of processes, on any number of machines that share the folder, may ask for it at the
        same time: each computes what no other is at, and all return when it is whole.

        Args:
            folder: where caches live; each has a sub-folder named by its key.
            paths: the pictures.
            encoder: computes what is missing.
            batch_size: pictures per call of the encoder.
            device: where the encoder is.
            progress: wraps the iterator over batches; its second argument is their number.
            verify: whether to read all that is there, and compute again what lost its checksum.
            shard: pictures per file.

        Raises:
            DataError: no picture could be read, or the disk is full.
        """
        place = folder / _key(paths, encoder, shard)
        shards = Shards(place, len(paths), shard)
        filling = _Filling(shards, paths, encoder, batch_size, torch.device(device))
        try:
            place.mkdir(parents=True, exist_ok=True)
            if verify:
                for number in range(len(shards)):
                    if shards.notes(number) is not None and not shards.verify(number):
                        _LOG.warning("computed again: shard %05d of '%s' is damaged", number, place)
            missing = [number for number in range(len(shards)) if not filling.done(number)]
            if missing:
                total = sum(math.ceil(len(shards.span(n)) / batch_size) for n in missing)
                batches = filling.run(missing)
                for _ in progress(batches, total) if progress else batches:
                    pass
                give_back_memory()
            shards.tidy()  # also after one who was killed at it
        except OSError as error:
            raise DataError(f"cannot write the annotation cache '{place}': {error}") from error
        notes = [found for n in range(len(shards)) if (found := shards.notes(n)) is not None]
        if len(notes) < len(shards):
            raise DataError(
                f"somebody deleted files of the annotation cache '{place}'; start again"
            )
        failed = {paths[int(row)]: said for n in notes for row, said in n["failed"].items()}
        if len(failed) == len(set(paths)):
            first = next(iter(failed.values()))
            raise DataError(f"none of {len(paths):,} pictures could be read; the first: {first}")
        for path, message in failed.items():
            _LOG.warning("left out: %s (%s)", path, message)
        rows = {path: row for row, path in enumerate(paths) if path not in failed}
        grid = next(tuple(n["grid"]) for n in notes if n["grid"] is not None)
        return cls(shards, rows, grid, failed)

    def __getitem__(self, path: str) -> np.ndarray:
        """(L, D) float16 annotation vectors of a picture, or its (3, H, W) uint8 pixels."""
        return self.shards[self.rows[path]]


@dataclass(frozen=True)
class _Filling:
    """Computes the shards of a cache that are missing."""

    shards: Shards
    paths: Sequence[str]
    encoder: CachingEncoder
    batch_size: int
    device: torch.device

    def done(self, number: int) -> bool:
        """Whether a shard is there, and no picture that it had to leave out can be read now.

        A disk that was away, or a missing permission, changes neither size nor time of a file.
        """
        notes = self.shards.notes(number)
        if notes is None:
            return False
        for row in notes["failed"]:
            with suppress(ImageError):
                images.load(self.paths[int(row)])
                return False
        return True

    def run(self, missing: Sequence[int]) -> Iterator[PixelBatch]:
        """Every batch, when it is computed. First what nobody is at, then what others left undone."""
        for wait in (False, True):
            for number in missing:
                if self.done(number):
                    continue
                with self.shards.claimed(number, wait) as mine:
                    if mine and not self.done(number):
                        yield from self._fill(number)

    def _fill(self, number: int) -> Iterator[PixelBatch]:
        """A shard; the rows of unreadable pictures stay zero."""
        span = self.shards.span(number)
        paths = self.paths[span.start : span.stop]
        failed: dict[int, str] = {}
        values: np.ndarray | None = None
        grid: tuple[int, int] | None = None
        for batch in read_batches(paths, self.batch_size, self.encoder.preprocessing):
            failed |= {span[row]: str(error) for row, error in batch.failed.items()}
            if batch.indices:
                rows, grid = self._compute(batch)
                if values is None:
                    self._check_space(rows)
                    values = np.zeros((len(span), *rows.shape[1:]), rows.dtype)
                values[batch.indices] = rows
            yield batch
        nothing = np.zeros((len(span), 0), np.float16)
        notes = {"grid": grid, "failed": failed}
        self.shards.write(number, nothing if values is None else values, notes)

    def _compute(self, batch: PixelBatch) -> tuple[np.ndarray, tuple[int, int]]:
        """What is kept of its pictures, and their grid."""
        with torch.inference_mode():
            found = self.encoder(batch.pixels.to(self.device, non_blocking=True))
        kind = torch.uint8 if found.vectors.dtype == torch.uint8 else torch.float16
        return found.vectors.to("cpu", kind).numpy(), found.grid

    def _check_space(self, rows: np.ndarray) -> None:
        """It is kinder to say so now than after hours."""
        missing = sum(
            len(self.shards.span(number))
            for number in range(len(self.shards))
            if self.shards.notes(number) is None
        )
        needed = missing * rows.nbytes // len(rows)
        free = shutil.disk_usage(self.shards.folder).free
        if needed > free:
            raise DataError(
                f"the annotation cache needs {needed / 1e9:.1f} GB, '{self.shards.folder.parent}' has "
                f"{free / 1e9:.1f} GB free; choose another folder with --data.cache_dir"
            )


def _key(paths: Sequence[str], encoder: CachingEncoder, shard: int) -> str:
    """Changes with the encoder, its weights and preprocessing, the list of files, or any file."""
    digest = hashlib.sha256(f"{FORMAT_VERSION} {shard} {encoder.fingerprint()}".encode())
    for path in paths:
        try:
            stat = os.stat(path)  # noqa: PTH116 - called for every picture of a data set
            whole = os.path.abspath(path)  # noqa: PTH100 - one cache, however the folder is written
            digest.update(f"{whole} {stat.st_size} {stat.st_mtime_ns}\n".encode())
        except OSError:
            digest.update(f"{path} missing\n".encode())
    return digest.hexdigest()[:24]
