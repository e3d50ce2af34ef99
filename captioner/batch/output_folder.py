"""The output folder of a library: shards of captions, and a manifest.

    manifest.json             the model, the decoding, counts, and photos that could not be read
    captions-000000.jsonl     one record per line; or captions-000000.parquet
    captions-000001.jsonl     …

A shard appears whole or not at all, and a photo is finished when a shard holds its record. The
manifest is written anew from the shards at every start.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import Any

from captioner import __version__
from captioner.batch.rows import Row, encodable
from captioner.errors import DataError, UsageError
from captioner.files import remove_parts, write_bytes, write_text

MANIFEST, LOCK = "manifest.json", ".lock"
VERSION = 1
PHOTOS = ("captioned", "empty", "failed")
MAX_LISTED = 1000  # failures in the manifest; the shards hold all of them


class Shards:
    """The shards of a folder, between the start and the end of ``opened``.

    Args:
        folder: new, empty, or with captions of the same model and decoding; see ``refuse_foreign``.
        file_format: of the shards, ``jsonl`` or ``parquet``.
        identity: ``{"model": {"name", "sha256"}, "decoding": {…}}``.
        shard_size: records per shard; the last shard may have fewer.
        retry: drop the records of photos that failed, and list these photos in ``retried``.
        advice: what to do if the folder holds captions of another model or decoding.

    Attributes:
        counts: number of ``shards``, and of photos: ``captioned``, ``empty`` (their caption was left
            out) and ``failed``.
        retried: photos whose failure was dropped, so that they are tried again.
    """

    def __init__(
        self,
        folder: Path,
        file_format: str,
        identity: Mapping[str, Any],
        shard_size: int = 1000,
        retry: bool = False,
        advice: str = "give another --output folder",
    ) -> None:
        self.folder, self.file_format, self.identity = folder, file_format, identity
        self.shard_size, self.retry, self.advice = shard_size, retry, advice
        self.counts: Counter[str] = Counter()
        self.retried: list[str] = []
        self._failures: list[Row] = []
        self._claimed: set[bytes] = set()
        self._rows: list[Row] = []
        self._next_number = 0

    @property
    def images(self) -> int:
        """The number of photos in the shards."""
        return sum(self.counts[name] for name in PHOTOS)

    @contextmanager
    def opened(self) -> Iterator["Shards"]:
        """Open the folder for this process alone; an interruption keeps the records added so far.

        Raises:
            UsageError: the folder holds something else, or captions of another model, decoding or
                format; or another process is writing into it.
            DataError: a shard or the manifest is damaged.
            OSError: the folder cannot be written, or the disk is full.
        """
        with _lock(self.folder):
            self._check_manifest()
            remove_parts(self.folder)
            for file in self._files():
                self._resume(file)
            self._write_manifest()
            try:
                yield self
            except OSError:  # the disk is full, so another write would fail too
                raise
            except BaseException:
                self._flush()
                raise
            self._flush()
            self._write_manifest(finished=True)

    def claim(self, name: str) -> bool:
        """Claim a photo; return False if it is finished or was claimed before."""
        # Digests take less memory than the paths of a million photos.
        key = blake2b(encodable(name).encode(), digest_size=12).digest()
        if key in self._claimed:
            return False
        self._claimed.add(key)
        return True

    def add(self, row: Row) -> None:
        """Add a record, and write the shard when it is full."""
        self._rows.append(row)
        if len(self._rows) >= self.shard_size:
            self._flush()
            self._write_manifest()

    def records(self) -> Iterator[Row]:
        """Yield the records of all shards, in order."""
        for file in self._files():
            yield from self._read(file)

    def _files(self) -> list[Path]:
        files = self.folder.glob(f"captions-*.{self.file_format}")
        shards = [file for file in files if file.stem.removeprefix("captions-").isdecimal()]
        return sorted(shards, key=_number)

    def _flush(self) -> None:
        """Write the pending records as a shard."""
        if self._rows:
            name = f"captions-{self._next_number:06}.{self.file_format}"
            self._write(self.folder / name, self._rows)
            self._next_number += 1
            self._count(self._rows)
            self._rows = []

    def _check_manifest(self) -> None:
        """Refuse captions of another model, decoding or format."""
        file = self.folder / MANIFEST
        if not file.is_file():
            return
        try:
            manifest = json.loads(file.read_bytes())
            found = (
                ("format version", manifest["format_version"], VERSION),
                ("model", manifest["model"]["sha256"], self.identity["model"]["sha256"]),
                ("format", manifest["format"], self.file_format),
                ("decoding", manifest["decoding"], self.identity["decoding"]),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"'{file}' is not what captioner writes into such a folder; give another folder"
            ) from error
        for what, there, now in found:
            if there != now:
                if what == "model":  # by name; the same name can have other weights or settings
                    there = f"'{manifest['model'].get('name')}'"
                    now = f"'{self.identity['model']['name']}'"
                raise UsageError(
                    f"{self.advice}: '{self.folder}' holds captions of another {what} (there "
                    f"{_difference(there, now)}, now {_difference(now, there)})"
                )

    def _resume(self, file: Path) -> None:
        rows = list(self._read(file))
        failed = [row["image"] for row in rows if "error" in row]
        if self.retry and failed:
            self.retried += failed
            rows = [row for row in rows if "error" not in row]
            if rows:
                self._write(file, rows)
            else:
                file.unlink()
        for row in rows:
            self.claim(row["image"])
        self._count(rows)
        self._next_number = _number(file) + 1

    def _count(self, rows: list[Row]) -> None:
        failed = [row for row in rows if "error" in row]
        captioned = sum(bool(row.get("caption")) for row in rows)
        empty = len(rows) - captioned - len(failed)
        self.counts.update(shards=1, captioned=captioned, empty=empty, failed=len(failed))
        self._failures += failed[: MAX_LISTED - len(self._failures)]

    def _write_manifest(self, finished: bool = False) -> None:
        manifest = {
            "format_version": VERSION,
            "captioner_version": __version__,
            **self.identity,
            "format": self.file_format,
            "finished": finished,
            "images": self.images,
            **{name: self.counts[name] for name in (*PHOTOS, "shards")},
            "failures": [{"image": row["image"], **row["error"]} for row in self._failures],
        }
        text = json.dumps(manifest, indent=1, ensure_ascii=False)
        write_text(self.folder / MANIFEST, f"{text}\n")

    def _read(self, file: Path) -> Iterator[Row]:
        try:
            if self.file_format == "parquet":
                from pyarrow import parquet

                for row in parquet.read_table(file).to_pylist():
                    yield {name: value for name, value in row.items() if value is not None}
            else:
                for line in filter(None, file.read_text("utf-8").split("\n")):
                    row = json.loads(line)
                    row["image"].encode()  # raises unless it is a file name
                    yield row
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(
                f"'{file}' cannot be read ({error!s:.200}); remove it to caption its photos again"
            ) from error

    def _write(self, file: Path, rows: list[Row]) -> None:
        if self.file_format == "parquet":
            import pyarrow
            from pyarrow import parquet

            stream = BytesIO()
            parquet.write_table(pyarrow.Table.from_pylist(rows, _schema()), stream)
            write_bytes(file, stream.getvalue())
        else:
            write_text(file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def refuse_foreign(folder: Path) -> None:
    """Raise ``UsageError`` for a file, or for a folder that holds something other than captions."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"cannot write into '{folder}': it is a file; give a folder")
    names = [file.name for file in folder.iterdir()] if folder.exists() else []
    # A process that is killed at its start leaves hidden files.
    if MANIFEST not in names and not all(name.startswith(".") for name in names):
        raise UsageError(f"'{folder}' is not empty and holds no {MANIFEST}; give a new folder")


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Lock the folder against other processes of this machine."""
    from filelock import FileLock, Timeout  # slow to import

    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise UsageError(
            f"another captioner is writing into '{folder}'; wait for it, or give another folder"
        ) from error
    except OSError:  # some network file systems cannot lock files
        pass
    try:
        yield
    finally:
        (folder / LOCK).unlink(missing_ok=True)
        lock.release()


def _schema() -> Any:
    import pyarrow as pa  # the command line checks that it is installed

    return pa.schema(
        {
            "image": pa.string(),
            "caption": pa.string(),
            "words": pa.list_(pa.string()),
            "log_prob": pa.float64(),
            "word_log_probs": pa.list_(pa.float64()),
            "model": pa.string(),
            "error": pa.struct({"type": pa.string(), "message": pa.string()}),
            "captions": pa.list_(pa.string()),
            "log_probs": pa.list_(pa.float64()),
            "confidence": pa.float64(),
        }
    )


def _difference(value: Any, other: Any) -> str:
    """Return a value of a manifest in words; of a decoding, the options that differ."""
    if not isinstance(value, dict):
        return str(value)
    names = [name for name in {**value, **other} if value.get(name) != other.get(name)]
    return ", ".join(f"--{name.replace('_', '-')} {value.get(name)}" for name in names)


def _number(file: Path) -> int:
    return int(file.stem.rpartition("-")[2])
