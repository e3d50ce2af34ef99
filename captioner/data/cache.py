"""The annotation cache: annotation vectors, or resized pixels, computed once and kept on disk.

    CACHE/KEY/00000.safetensors    256 rows, with their grid, unreadable images and SHA-256 checksum;
                                   for an encoder of two streams also the keys and their grid
    CACHE/KEY/00000.lock           held while a process computes the shard

Each crop of the training images has a KEY of its own.

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
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from jaxtyping import UInt8
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor

from captioner.data.crops import FixedCrop
from captioner.data.pixels import PixelBatch, read_batches
from captioner.errors import DataError, ImageError, plural
from captioner.fast.malloc import give_back_memory
from captioner.files import atomic, remove_parts
from captioner.models.annotations import Annotations
from captioner.models.encoder import Preprocessing
from captioner.photos import images

FORMAT_VERSION = 3
SHARD_SIZE = 256  # images per file
_LOG = logging.getLogger(__name__)


class PixelEncoder:
    """Replaces a trainable encoder, so that the cache holds resized images instead of annotations."""

    def __init__(self, preprocessing: Preprocessing) -> None:
        self.preprocessing = preprocessing

    def fingerprint(self) -> str:
        """Identify the pixels in the key of the cache."""
        size = self.preprocessing
        return f"pixels of {size.height} × {size.width} {size.interpolation}"

    def __call__(self, images: UInt8[Tensor, "B 3 H W"]) -> UInt8[Tensor, "B 3 H W"]:
        """Return the pixels."""
        return images


def default_folder() -> Path:
    """The folder of all caches: ``$CAPTIONER_CACHE``, or ``captioner`` in the user's cache folder."""
    user_cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("CAPTIONER_CACHE") or f"{user_cache}/captioner").expanduser()


@dataclass(frozen=True)
class AnnotationCache:
    """Annotation vectors, or pixels, of many images on disk."""

    folder: Path
    rows: dict[str, int]  # the row of each readable image, by path
    grid: tuple[int, int] | None  # (rows, columns) of the feature map; None for pixels
    failed: dict[str, str]  # the error of each unreadable image, by path
    shard_size: int  # images per file
    key_grid: tuple[int, int] | None  # of the keys of a second stream
    crop: FixedCrop | None = None  # how each image is cropped; None for whole images

    @classmethod
    def open(
        cls,
        folder: Path,
        paths: Sequence[str],
        encoder: Any,
        *,
        batch_size: int = 64,
        device: torch.device | str = "cpu",
        progress: Callable[[Iterable[Any], int], Iterable[Any]] = lambda batches, _: batches,
        verify: bool = False,
        shard_size: int = SHARD_SIZE,
        crop: FixedCrop | None = None,
    ) -> "AnnotationCache":
        """Open the cache of these images under this encoder, and compute what is missing.

        Any number of processes may call this at the same time, on any number of machines that share
        the folder. They share the work, and each returns when the cache is complete.

        Args:
            folder: the folder of all caches.
            encoder: an ``Encoder`` or a `PixelEncoder`.
            progress: wraps the batches, given their number.
            verify: compute the shards again whose checksum is wrong.
            crop: how each image is cropped before it is encoded; None encodes whole images.

        Raises:
            DataError: no image can be read, or the folder cannot be written.
        """
        folder /= _key(paths, encoder, shard_size, crop)
        shards = [
            _Shard(_file(folder, first // shard_size), first, paths[first : first + shard_size])
            for first in range(0, len(paths), shard_size)
        ]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for shard in shards if verify else ():
                shard.delete_if_damaged()
            if missing := [shard for shard in shards if not shard.is_finished()]:
                total = sum(math.ceil(len(shard.paths) / batch_size) for shard in missing)
                for _ in progress(_fill(missing, _Work(encoder, batch_size, device, crop)), total):
                    pass
                give_back_memory()
            for lock in folder.glob("*.lock"):
                lock.unlink(missing_ok=True)
            remove_parts(folder)
        except OSError as error:
            advice = "choose another folder with --data.cache_dir or the variable CAPTIONER_CACHE"
            message = f"cannot write the annotation cache '{folder}': {error}; {advice}"
            raise DataError(message) from error
        notes = [shard.notes() or {"grid": None, "failed": {}} for shard in shards]
        failed = {paths[int(row)]: message for n in notes for row, message in n["failed"].items()}
        if len(failed) == len(set(paths)):
            count, first = plural(len(paths), "photo"), next(iter(failed.values()))
            raise DataError(f"none of {count} could be read; the first: {first}")
        rows = {path: row for row, path in enumerate(paths) if path not in failed}
        # Pixels have no grid, and a shard without a readable image has none either.
        grids = next((n for n in notes if n["grid"]), {})
        grid, key_grid = (tuple(grids.get(name) or ()) or None for name in ("grid", "key_grid"))
        return cls(folder, rows, grid, failed, shard_size, key_grid, crop)

    @property
    def bytes(self) -> int:
        """The size on disk."""
        return sum(file.stat().st_size for file in self.folder.glob("*.safetensors"))

    def __getitem__(self, path: str) -> Annotations | UInt8[Tensor, "3 H W"]:
        """Read the annotations of one image in half precision, or its pixels."""
        shard, index = divmod(self.rows[path], self.shard_size)
        with safe_open(_file(self.folder, shard), "np") as stored:

            def row(name: str) -> Tensor:
                return torch.from_numpy(stored.get_slice(name)[index])

            if self.grid is None:
                return row("values")
            keys = Annotations(row("keys")[None], self.key_grid) if self.key_grid else None
            return Annotations(row("values")[None], self.grid, keys=keys)

    def annotations(self, paths: Sequence[str]) -> Annotations:
        """Read the annotations of readable images, as the encoder gives them; no pixels."""
        found: Annotations = stacked([self[path] for path in paths])
        return found.map(Tensor.float)


def stacked(images: Sequence[Any]) -> Any:
    """Batch the pixels of several images, or their annotations, each of which is a batch of one."""
    if isinstance(images[0], Tensor):
        return torch.stack(list(images))
    keys = [image.keys for image in images if image.keys is not None]
    vectors = torch.cat([image.vectors for image in images])
    return Annotations(vectors, images[0].grid, keys=stacked(keys) if keys else None)


@dataclass(frozen=True)
class _Shard:
    """One file of a cache: the images ``paths``, whose first row in the cache is ``first``."""

    file: Path
    first: int
    paths: Sequence[str]

    def notes(self) -> dict[str, Any] | None:
        """The metadata; None if the file is missing or truncated."""
        try:
            with safe_open(self.file, "np") as stored:
                notes: dict[str, Any] = json.loads(stored.metadata()["notes"])
                return notes
        except (OSError, SafetensorError):
            return None

    def delete_if_damaged(self) -> None:
        if (notes := self.notes()) is not None:
            with safe_open(self.file, "np") as stored:
                arrays = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
            if _sha256(arrays) != notes["sha256"]:
                self.file.unlink()
                _LOG.warning("computed again: the damaged shard '%s'", self.file)

    def is_finished(self) -> bool:
        """Whether the shard exists and the images that it left out are still unreadable.

        They are read again, because an offline disk or a missing permission changes neither size nor
        time of a file.
        """
        notes = self.notes()
        for row in notes["failed"] if notes is not None else ():
            with suppress(ImageError):
                images.load(self.paths[int(row) - self.first])
                return False
        return notes is not None


@dataclass(frozen=True)
class _Work:
    """How the images of a cache are read and encoded."""

    encoder: Any
    batch_size: int
    device: torch.device | str
    crop: FixedCrop | None

    def batches(self, paths: Sequence[str]) -> Iterator[PixelBatch]:
        for batch in read_batches(paths, self.batch_size, self.encoder.preprocessing):
            if self.crop is not None:
                for pixels, index in zip(batch.pixels, batch.indices, strict=True):
                    pixels.copy_(self.crop.of(paths[index]).of_pixels(pixels))
            yield batch

    def rows(self, pixels: Tensor, notes: dict[str, Any]) -> dict[str, np.ndarray]:
        """Encode a batch; return what is stored of it, and note the grids."""
        with torch.inference_mode():
            encoded = self.encoder(pixels.to(self.device, non_blocking=True))
        if isinstance(encoded, Tensor):
            return {"values": np.asarray(encoded.cpu())}
        stored = {"values": encoded.vectors}
        notes["grid"] = encoded.grid
        if encoded.keys is not None:
            stored["keys"] = encoded.keys.vectors
            notes["key_grid"] = encoded.keys.grid
        return {name: np.asarray(tensor.half().cpu()) for name, tensor in stored.items()}


def _fill(missing: Sequence[_Shard], work: _Work) -> Iterator[PixelBatch]:
    """Yield every computed batch: first of unlocked shards, then of those left unfinished."""
    for timeout in (0, -1):  # -1 waits until another process releases its lock
        for shard in missing:
            if shard.is_finished():
                continue
            with suppress(Timeout), FileLock(shard.file.with_suffix(".lock"), timeout=timeout):
                if not shard.is_finished():
                    yield from _fill_shard(shard, missing, work)


def _fill_shard(shard: _Shard, missing: Sequence[_Shard], work: _Work) -> Iterator[PixelBatch]:
    """Compute and write one shard; the rows of unreadable images are zeros.

    Raises:
        DataError: the ``missing`` shards will not fit on the disk.
    """
    size = len(shard.paths)
    notes: dict[str, Any] = {"grid": None, "failed": {}}
    arrays: dict[str, np.ndarray] = {}
    for batch in work.batches(shard.paths):
        for index, error in batch.failed.items():
            notes["failed"][shard.first + index] = str(error)
        if batch.indices:
            rows = work.rows(batch.pixels, notes)
            if not arrays:
                _check_free_space(missing, sum(array[0].nbytes for array in rows.values()))
                arrays = {n: np.zeros((size, *a.shape[1:]), a.dtype) for n, a in rows.items()}
            for name, array in rows.items():
                arrays[name][batch.indices] = array
        yield batch
    arrays = arrays or {"values": np.zeros((size, 0), np.float16)}  # no image can be read
    notes["sha256"] = _sha256(arrays)
    with atomic(shard.file) as stream:
        stream.write(save(arrays, {"notes": json.dumps(notes)}))


def _check_free_space(shards: Sequence[_Shard], row_bytes: int) -> None:
    """Raise DataError if the unfinished of these shards will not fit on the disk."""
    folder = shards[0].file.parent
    needed = row_bytes * sum(len(shard.paths) for shard in shards if shard.notes() is None)
    if needed > (free := shutil.disk_usage(folder).free):
        raise DataError(
            f"the annotation cache needs {needed / 1e9:.1f} GB, '{folder.parent}' has "
            f"{free / 1e9:.1f} GB free; choose another folder with --data.cache_dir"
        )


def _file(folder: Path, shard: int) -> Path:
    return folder / f"{shard:05d}.safetensors"


def _sha256(arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays, reverse=True):  # "values" first, then the keys
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def _key(paths: Sequence[str], encoder: Any, shard_size: int, crop: FixedCrop | None) -> str:
    """A hash of the encoder, the crop, the list of files, and the size and time of each file."""
    digest = hashlib.sha256(f"{FORMAT_VERSION} {shard_size} {encoder.fingerprint()}".encode())
    if crop is not None:
        digest.update(str(crop).encode())
    for path in paths:
        try:
            stat = os.stat(path)  # noqa: PTH116 - called for every image of a data set
            line = f"{os.path.abspath(path)} {stat.st_size} {stat.st_mtime_ns}\n"  # noqa: PTH100
        except (OSError, ValueError):
            line = f"{path} missing\n"
        digest.update(line.encode("utf-8", "surrogatepass"))  # file names need not be UTF-8
    return digest.hexdigest()[:24]
