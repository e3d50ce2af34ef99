"""The annotation cache: what a frozen encoder gives is computed once per picture."""

import hashlib
import json
import logging
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from captioner import images
from captioner.data.pixels import InputSize, PixelBatch, read_batches
from captioner.errors import DataError, ImageError

FORMAT_VERSION = 1
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


@dataclass(frozen=True)
class AnnotationCache:
    """Annotation vectors of many pictures in one memory-mapped file.

    Attributes:
        vectors: (N, L, D) float16, read from disk on use.
        rows: row of each picture's path.
        grid: (rows, columns) of the feature map.
        failed: message of each picture that could not be read, by path.
    """

    vectors: np.ndarray
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
        batch_size: int = 32,
        device: torch.device | str = "cpu",
        progress: Callable[[Iterable[Any], int], Iterable[Any]] | None = None,
    ) -> "AnnotationCache":
        """The cache of these pictures under this encoder, filled if it is not there yet.

        Args:
            folder: where caches live; each has a sub-folder named by its key.
            paths: the pictures.
            encoder: computes what is missing.
            batch_size: pictures per call of the encoder.
            device: where the encoder is.
            progress: wraps the iterator over batches; its second argument is their number.

        Raises:
            DataError: no picture could be read, or the disk is full.
        """
        place = folder / _key(paths, encoder)
        if _repaired(place):
            shutil.rmtree(place)
        if not (place / "meta.json").is_file():
            _fill(place, paths, encoder, batch_size, torch.device(device), progress)
        meta = json.loads((place / "meta.json").read_text(encoding="utf-8"))
        vectors = np.load(place / "annotations.npy", mmap_mode="r")
        rows = {path: row for row, path in enumerate(paths) if path not in meta["failed"]}
        for path, message in meta["failed"].items():
            _LOG.warning("left out: %s (%s)", path, message)
        return cls(vectors, rows, tuple(meta["grid"]), meta["failed"])

    def __getitem__(self, path: str) -> np.ndarray:
        """(L, D) float16 annotation vectors of a picture."""
        return np.asarray(self.vectors[self.rows[path]])


def _key(paths: Sequence[str], encoder: CachingEncoder) -> str:
    """Changes with the encoder, its weights and preprocessing, the list of files, or any file."""
    digest = hashlib.sha256(f"{FORMAT_VERSION} {encoder.fingerprint()}".encode())
    for path in paths:
        try:
            stat = os.stat(path)  # noqa: PTH116 - called for every picture of a data set
            whole = os.path.abspath(path)  # noqa: PTH100 - one cache, however the folder is written
            digest.update(f"{whole} {stat.st_size} {stat.st_mtime_ns}\n".encode())
        except OSError:
            digest.update(f"{path} missing\n".encode())
    return digest.hexdigest()[:24]


def _repaired(place: Path) -> bool:
    """Whether a picture that could not be read when the cache was filled can be read now.

    A disk that was away, or a missing permission, changes neither size nor time of a file.
    """
    try:
        failed = json.loads((place / "meta.json").read_text(encoding="utf-8"))["failed"]
    except OSError:  # no cache yet, or no place for one
        return False
    for path in failed:
        with suppress(ImageError):
            images.load(path)
            return True
    return False


def _fill(
    place: Path,
    paths: Sequence[str],
    encoder: CachingEncoder,
    batch_size: int,
    device: torch.device,
    progress: Callable[[Iterable[Any], int], Iterable[Any]] | None,
) -> None:
    """Writes a cache beside its place and moves it there when it is whole."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    except OSError as error:
        raise DataError(
            f"cannot write the annotation cache under '{place.parent}': {error}"
        ) from error
    try:
        meta = _write(work / "annotations.npy", paths, encoder, batch_size, device, progress)
        (work / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
        for file in work.iterdir():  # a power cut must not leave the names without the contents
            with file.open("rb") as written:
                os.fsync(written.fileno())
        try:
            work.chmod(0o755)  # mkdtemp's is for one user only; a cache may be shared
            work.rename(place)
        except OSError:
            # Another process filled the same cache meanwhile; both hold the same numbers.
            if not (place / "meta.json").is_file():
                raise
    except OSError as error:
        raise DataError(f"cannot write the annotation cache '{place}': {error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _write(
    file: Path,
    paths: Sequence[str],
    encoder: CachingEncoder,
    batch_size: int,
    device: torch.device,
    progress: Callable[[Iterable[Any], int], Iterable[Any]] | None,
) -> dict[str, Any]:
    """Encodes all pictures into ``file``; rows of unreadable ones stay zero."""
    failed: dict[str, str] = {}
    vectors: np.ndarray | None = None
    grid: tuple[int, int] = (0, 0)
    total = math.ceil(len(paths) / batch_size)
    batches: Iterable[PixelBatch] = read_batches(paths, batch_size, encoder.preprocessing)
    with torch.inference_mode():
        for batch in progress(batches, total) if progress else batches:
            failed |= {paths[row]: str(error) for row, error in batch.failed.items()}
            if not batch.indices:
                continue
            annotations = encoder(batch.pixels.to(device, non_blocking=True))
            if vectors is None:
                grid = annotations.grid
                shape = (len(paths), *annotations.vectors.shape[1:])
                _check_space(file, shape)
                vectors = np.lib.format.open_memmap(file, "w+", np.float16, shape)
            vectors[batch.indices] = annotations.vectors.to("cpu", torch.float16).numpy()
    if vectors is None:
        first = next(iter(failed.values()))
        raise DataError(f"none of {len(paths):,} pictures could be read; the first: {first}")
    vectors.flush()  # type: ignore[attr-defined]
    return {"format_version": FORMAT_VERSION, "grid": list(grid), "failed": failed}


def _check_space(file: Path, shape: tuple[int, ...]) -> None:
    """A memory map on a full disk dies by a signal, not by an error; so ask first."""
    needed = 2 * int(np.prod(shape))
    free = shutil.disk_usage(file.parent).free
    if needed > free:
        raise DataError(
            f"the annotation cache needs {needed / 1e9:.1f} GB, '{file.parent.parent}' has "
            f"{free / 1e9:.1f} GB free; choose another folder with --data.cache_dir"
        )
