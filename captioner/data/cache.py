"""The annotation cache: annotation vectors, or resized pixels, computed once and kept on disk.

    CACHE/KEY/00000.safetensors    256 rows, with their grid, unreadable images and SHA-256 checksum;
                                   for an encoder of two streams also the keys and their grid
    CACHE/KEY/00000.lock           held while a process computes the shard

A shard is written under another name and renamed when it is complete. The operating system releases
the lock of a killed process, so a killed process loses only the shard that it was computing.
"""

import hashlib
import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from jaxtyping import UInt8
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor

from captioner import images
from captioner.data.pixels import PixelBatch, read_batches
from captioner.errors import DataError, ImageError, printable
from captioner.fast.malloc import give_back_memory
from captioner.files import atomic
from captioner.models.encoder import Preprocessing

FORMAT_VERSION = 3
SHARD_SIZE = 256  # images per file
_LOG = logging.getLogger(__name__)


class PixelEncoder:
    """Stands in for a trainable encoder, so that the cache holds resized images and not its output."""

    def __init__(self, preprocessing: Preprocessing) -> None:
        self.preprocessing = preprocessing

    def fingerprint(self) -> str:
        """A text that depends on the size and the interpolation only."""
        size = self.preprocessing
        return f"pixels {size.height} × {size.width} {size.interpolation}"

    def __call__(self, images: UInt8[Tensor, "B 3 H W"]) -> Any:
        """Return the pixels in place of annotation vectors; the grid (0, 0) marks them."""
        return SimpleNamespace(vectors=images, grid=(0, 0), keys=None)


@dataclass(frozen=True)
class AnnotationCache:
    """Annotation vectors, or pixels, of many images on disk."""

    folder: Path
    rows: dict[str, int]  # the row of each readable image, by path
    grid: tuple[int, int]  # (rows, columns) of the feature map; (0, 0) for pixels
    failed: dict[str, str]  # the error of each unreadable image, by path
    shard_size: int  # images per file
    key_grid: tuple[int, int] | None  # of the keys of a second stream

    @classmethod
    def open(
        cls,
        folder: Path,
        paths: Sequence[str],
        encoder: Any,
        *,
        batch_size: int = 64,
        device: torch.device | str = "cpu",
        progress: Callable[[Iterable[Any], int], Iterable[Any]] | None = None,
        verify: bool = False,
        shard_size: int = SHARD_SIZE,
    ) -> "AnnotationCache":
        """Open the cache of these images under this encoder, and compute what is missing.

        Any number of processes may call this at the same time, on any number of machines that share
        the folder. They share the work, and each returns when the cache is complete.

        Args:
            folder: the folder of all caches; each cache has a sub-folder named by its key.
            paths: the images.
            encoder: an ``Encoder`` or a `PixelEncoder`, which computes what is missing.
            progress: wraps the batches, given their number, to show the progress.
            verify: compute the shards again whose checksum is wrong.

        Raises:
            DataError: no image can be read, or the folder cannot be written.
        """
        folder /= _key(paths, encoder, shard_size)
        filler = _Filler(folder, paths, shard_size, encoder, batch_size, torch.device(device))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if verify:
                filler.delete_damaged()
            if missing := [shard for shard in filler.shards if not filler.is_finished(shard)]:
                total = sum(math.ceil(len(filler.span(shard)) / batch_size) for shard in missing)
                batches = filler.fill(missing)
                for _ in progress(batches, total) if progress else batches:
                    pass
                give_back_memory()
            for lock in folder.glob("*.lock"):
                lock.unlink(missing_ok=True)
        except OSError as error:
            raise DataError(f"cannot write the annotation cache '{folder}': {error}") from error
        notes = [n for shard in filler.shards if (n := _notes(_file(folder, shard))) is not None]
        if len(notes) < len(filler.shards):
            raise DataError(
                f"files of the annotation cache '{folder}' were deleted meanwhile; start again"
            )
        failed = {paths[int(row)]: message for n in notes for row, message in n["failed"].items()}
        if len(failed) == len(set(paths)):
            first = next(iter(failed.values()))
            raise DataError(f"none of {len(paths):,} photos could be read; the first: {first}")
        for path, message in failed.items():
            _LOG.warning("left out: %s (%s)", printable(path), message)
        rows = {path: row for row, path in enumerate(paths) if path not in failed}
        grids = next(n for n in notes if n["grid"] is not None)
        key_grid = grids.get("key_grid") and tuple(grids["key_grid"])
        return cls(folder, rows, tuple(grids["grid"]), failed, shard_size, key_grid)

    @property
    def bytes(self) -> int:
        """The size on disk."""
        return sum(file.stat().st_size for file in self.folder.glob("*.safetensors"))

    def __getitem__(self, path: str) -> np.ndarray:
        """Read the (L, D) float16 annotation vectors of an image, or its (3, H, W) uint8 pixels."""
        return self._read("values", path)

    def keys(self, path: str) -> np.ndarray | None:
        """Read the (L, K) float16 keys of an image; None without a second stream."""
        return self._read("keys", path) if self.key_grid else None

    def _read(self, name: str, path: str) -> np.ndarray:
        shard, index = divmod(self.rows[path], self.shard_size)
        with safe_open(_file(self.folder, shard), "np") as stored:
            values: np.ndarray = stored.get_slice(name)[index]
            return values


@dataclass(frozen=True)
class _Filler:
    """Computes missing shards."""

    folder: Path
    paths: Sequence[str]
    shard_size: int
    encoder: Any
    batch_size: int
    device: torch.device

    @property
    def shards(self) -> range:
        return range(math.ceil(len(self.paths) / self.shard_size))

    def span(self, shard: int) -> range:
        """The rows of a shard; the last shard may be smaller."""
        return range(len(self.paths))[shard * self.shard_size : (shard + 1) * self.shard_size]

    def delete_damaged(self) -> None:
        """Delete the shards whose checksum is wrong."""
        for shard in self.shards:
            file = _file(self.folder, shard)
            if (notes := _notes(file)) is not None:
                with safe_open(file, "np") as stored:
                    arrays = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
                if _sha256(arrays) != notes["sha256"]:
                    file.unlink()
                    _LOG.warning("computed again: damaged shard %05d of '%s'", shard, self.folder)

    def is_finished(self, shard: int) -> bool:
        """Whether a shard exists and none of the images that it left out can be read by now.

        A disk that was offline, or a missing permission, changes neither size nor time of a file.
        """
        notes = _notes(_file(self.folder, shard))
        if notes is None:
            return False
        for row in notes["failed"]:
            with suppress(ImageError):
                images.load(self.paths[int(row)])
                return False
        return True

    def fill(self, missing: Sequence[int]) -> Iterator[PixelBatch]:
        """Yield every computed batch: first of unlocked shards, then of those whose process failed."""
        for timeout in (0, -1):  # -1 waits until another process releases its lock
            for shard in missing:
                if self.is_finished(shard):
                    continue
                lock = FileLock(self.folder / f"{shard:05d}.lock", timeout=timeout)
                with suppress(Timeout), lock:
                    if not self.is_finished(shard):
                        yield from self._fill_shard(shard)

    def _fill_shard(self, shard: int) -> Iterator[PixelBatch]:
        """Compute and write one shard; the rows of unreadable images are zeros."""
        span = self.span(shard)
        notes: dict[str, Any] = {"grid": None, "failed": {}}
        arrays = {"values": np.zeros((len(span), 0), np.float16)}
        paths = [self.paths[row] for row in span]
        for batch in read_batches(paths, self.batch_size, self.encoder.preprocessing):
            notes["failed"] |= {span[index]: str(error) for index, error in batch.failed.items()}
            if batch.indices:
                with torch.inference_mode():
                    encoded = self.encoder(batch.pixels.to(self.device, non_blocking=True))
                rows = {"values": _stored(encoded.vectors)}
                if encoded.keys is not None:
                    rows["keys"] = _stored(encoded.keys.vectors)
                    notes["key_grid"] = encoded.keys.grid
                if notes["grid"] is None:
                    self._check_free_space(sum(array[0].nbytes for array in rows.values()))
                    arrays = {
                        name: np.zeros((len(span), *array.shape[1:]), array.dtype)
                        for name, array in rows.items()
                    }
                    notes["grid"] = encoded.grid
                for name, array in rows.items():
                    arrays[name][batch.indices] = array
            yield batch
        notes["sha256"] = _sha256(arrays)
        with atomic(_file(self.folder, shard)) as stream:
            stream.write(save(arrays, {"notes": json.dumps(notes)}))

    def _check_free_space(self, row_bytes: int) -> None:
        """Raise DataError if the shards will not fit on the disk."""
        left = [s for s in self.shards if _notes(_file(self.folder, s)) is None]
        needed = sum(len(self.span(shard)) for shard in left) * row_bytes
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise DataError(
                f"the annotation cache needs {needed / 1e9:.1f} GB, '{self.folder.parent}' has "
                f"{free / 1e9:.1f} GB free; choose another folder with --data.cache_dir"
            )


def _stored(vectors: Tensor) -> np.ndarray:
    dtype = torch.uint8 if vectors.dtype == torch.uint8 else torch.float16
    return np.asarray(vectors.to("cpu", dtype))


def _file(folder: Path, shard: int) -> Path:
    return folder / f"{shard:05d}.safetensors"


def _notes(file: Path) -> dict[str, Any] | None:
    """The metadata of a shard; None if the file is missing or truncated."""
    try:
        with safe_open(file, "np") as stored:
            notes: dict[str, Any] = json.loads(stored.metadata()["notes"])
            return notes
    except (OSError, SafetensorError):
        return None


def _sha256(arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays, reverse=True):  # "values" first, then the keys
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def _key(paths: Sequence[str], encoder: Any, shard_size: int) -> str:
    """A hash of the encoder, the list of files, and the size and time of each file."""
    digest = hashlib.sha256(f"{FORMAT_VERSION} {shard_size} {encoder.fingerprint()}".encode())
    for path in paths:
        try:
            stat = os.stat(path)  # noqa: PTH116 - called for every image of a data set
            line = f"{os.path.abspath(path)} {stat.st_size} {stat.st_mtime_ns}\n"  # noqa: PTH100
        except (OSError, ValueError):
            line = f"{path} missing\n"
        digest.update(line.encode("utf-8", "surrogatepass"))  # names may not be UTF-8
    return digest.hexdigest()[:24]
