"""The folder that a library's captions are written into: shards that are whole, and a manifest.

    manifest.json             the model, the decoding, how many photos, which could not be read
    captions-000000.jsonl     records, one a line; or captions-000000.parquet
    captions-000001.jsonl     …

The shards are the truth: a photo is finished when a shard holds its record, and a shard appears
with all its records or not at all. The manifest is made from them, anew at every start.
"""

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

from captioner import __version__
from captioner.errors import DataError, UsageError
from captioner.files import remove_unfinished, write_bytes, write_text
from captioner.library.records import Record, text

Form = Literal["jsonl", "parquet"]
FORMS: tuple[Form, ...] = ("jsonl", "parquet")
MANIFEST = "manifest.json"
VERSION = 1
LISTED = 1000
"""The most failures that the manifest lists; the shards hold all of them."""


class Shards:
    """A folder of captions, to be written or gone on with. Use `opened`, which keeps others out.

    Args:
        folder: empty, or with the captions of the same model and decoding.
        form: of the shards.
        identity: ``{"model": {"name", "sha256"}, "decoding": {…}}``.
        shard_size: records in a shard, the last one excepted.
        retry: whether to forget the photos that failed: they are no longer finished, and `retried`
            has their names.

    Raises:
        UsageError: the folder holds something else, or captions of another model, decoding or form.
        DataError: a shard or the manifest is damaged.
        OSError: the folder cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        form: Form,
        identity: Mapping[str, Any],
        shard_size: int = 1000,
        retry: bool = False,
    ) -> None:
        self.folder, self.form, self.shard_size = folder, form, shard_size
        self.identity = json.loads(json.dumps(identity))  # as the manifest gives it back
        if form == "parquet":
            _schema()  # says at once if pyarrow is missing
        self.counts: Counter[str] = Counter()
        self.failures: list[Record] = []
        self.retried: list[str] = []
        self._finished: set[bytes] = set()
        self._rows: list[Record] = []
        self._next = 0
        self._check()
        for name in (MANIFEST, f"captions-*.{form}"):
            remove_unfinished(folder, name)
        for file in self._files():
            self._resume(file, retry)
        self._write_manifest(finished=False)

    def claim(self, name: str) -> bool:
        """Whether a photo is neither finished nor claimed before; it is from now on."""
        # A digest, because paths of a million photos would fill the memory.
        key = blake2b(text(name).encode(), digest_size=12).digest()
        if key in self._finished:
            return False
        self._finished.add(key)
        return True

    def add(self, row: Record) -> None:
        """Takes one record; writes a shard when there are enough.

        Raises:
            OSError: the disk is full.
        """
        self._rows.append(row)
        if len(self._rows) >= self.shard_size:
            self.flush()
            self._write_manifest(finished=False)

    def flush(self) -> None:
        """Writes the records taken so far as a shard."""
        if self._rows:
            self._write(self.folder / f"captions-{self._next:06}.{self.form}", self._rows)
            self._next += 1
            self._count(self._rows)
            self._rows = []

    def finish(self) -> None:
        """Writes what is left, and into the manifest that all is done."""
        self.flush()
        self._write_manifest(finished=True)

    def _check(self) -> None:
        """Refuses captions of another model, decoding or form."""
        if not (self.folder / MANIFEST).is_file():
            return
        manifest = self._read_manifest()
        for what, own in (("format", self.form), *self.identity.items()):
            found = manifest.get(what)
            if what == "model" and isinstance(found, dict):
                same = found.get("sha256") == own["sha256"]  # whatever it is called
            else:
                same = found == own
            if not same:
                raise UsageError(
                    f"'{self.folder}' holds captions of another {what} ({_short(found)}, now "
                    f"{_short(own)}): give another --output folder"
                )

    def _resume(self, file: Path, retry: bool) -> None:
        rows = list(self._read(file))
        failed = [row for row in rows if "error" in row]
        if retry and failed:
            self.retried += [row["image"] for row in failed]
            rows = [row for row in rows if "error" not in row]
            if rows:
                self._write(file, rows)
            else:
                file.unlink()
        for row in rows:
            self.claim(row["image"])
        self._count(rows)
        self._next = _number(file) + 1

    def _files(self) -> list[Path]:
        name = re.compile(rf"captions-\d{{6,}}\.{self.form}")
        files = [file for file in self.folder.iterdir() if name.fullmatch(file.name)]
        return sorted(files, key=_number)

    def _count(self, rows: list[Record]) -> None:
        failed = [row for row in rows if "error" in row]
        self.counts.update(shards=1, captioned=len(rows) - len(failed), failed=len(failed))
        self.failures += failed[: LISTED - len(self.failures)]

    def _write_manifest(self, finished: bool) -> None:
        manifest = {
            "format_version": VERSION,
            "captioner_version": __version__,
            **self.identity,
            "format": self.form,
            "finished": finished,
            "images": self.counts["captioned"] + self.counts["failed"],
            "captioned": self.counts["captioned"],
            "failed": self.counts["failed"],
            "shards": self.counts["shards"],
            "failures": [{"image": row["image"], **row["error"]} for row in self.failures],
        }
        write_text(
            self.folder / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
        )

    def _read_manifest(self) -> dict[str, Any]:
        file = self.folder / MANIFEST
        try:
            manifest = json.loads(file.read_bytes())
            version = manifest["format_version"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"'{file}' cannot be read ({error}); give another folder") from error
        if version != VERSION:
            raise DataError(
                f"'{file}' has format version {version!r:.20}, this captioner ({__version__}) goes on "
                f"with {VERSION}: give another folder"
            )
        return dict(manifest)

    def _read(self, file: Path) -> Iterator[Record]:
        """What resuming needs of each record: all of it only where a shard may be written again."""
        try:
            if self.form == "parquet":
                from pyarrow import parquet

                for row in parquet.read_table(file).to_pylist():
                    yield {name: value for name, value in row.items() if value is not None}
            else:
                for line in filter(None, file.read_text("utf-8").split("\n")):
                    row = json.loads(line)
                    row["image"].encode()  # or it is no name
                    yield row
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(
                f"'{file}' cannot be read ({' '.join(str(error).split()):.200}); remove it to have its "
                "photos captioned again"
            ) from error

    def _write(self, file: Path, rows: list[Record]) -> None:
        if self.form == "parquet":
            import pyarrow
            from pyarrow import parquet

            stream = BytesIO()
            parquet.write_table(pyarrow.Table.from_pylist(rows, _schema()), stream)
            write_bytes(file, stream.getvalue())
        else:
            write_text(file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def refuse_foreign(folder: Path) -> None:
    """Refuses a folder that is not ours to write into; to be asked before the model is loaded.

    Raises:
        UsageError: it is a file, or holds something else than captions.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"cannot write into '{folder}': it is a file; give a folder")
    there = [file.name for file in folder.iterdir()] if folder.exists() else []
    # A process killed in its first moments leaves an unfinished manifest.
    others = [name for name in there if not name.startswith(f".{MANIFEST}-")]
    if others and MANIFEST not in others:
        raise UsageError(
            f"cannot write into '{folder}': it is not empty and holds no {MANIFEST}; give a new "
            "folder, or the one of an earlier call"
        )


@contextmanager
def opened(
    folder: Path,
    form: Form,
    identity: Mapping[str, Any],
    shard_size: int = 1000,
    retry: bool = False,
) -> Iterator[Shards]:
    """`Shards` for this process alone. What was finished is kept if the work is interrupted.

    Raises:
        UsageError: another process is writing into the folder; and see `Shards`.
    """
    with _locked(folder):
        shards = Shards(folder, form, identity, shard_size, retry)
        try:
            yield shards
        except OSError:  # the disk is full: one more file would only say so again
            raise
        except BaseException:
            shards.flush()
            raise
        shards.finish()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keeps other processes of this machine out; the lock ends with the process, however it ends."""
    refuse_foreign(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if sys.platform == "win32":
        yield
        return
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"another captioner is writing into '{folder}'; wait for it, or give another folder"
            ) from error
        except OSError:  # some network file systems lock no folders
            pass
        yield
    finally:
        os.close(descriptor)


def _schema() -> Any:
    try:
        import pyarrow as pa
    except ImportError as error:
        raise UsageError("--format parquet needs pyarrow: pip install 'captioner[ray]'") from error
    return pa.schema(
        {
            "image": pa.string(),
            "caption": pa.string(),
            "words": pa.list_(pa.string()),
            "log_prob": pa.float64(),
            "word_log_probs": pa.list_(pa.float64()),
            "model": pa.string(),
            "error": pa.struct({"type": pa.string(), "message": pa.string()}),
        }
    )


def _number(file: Path) -> int:
    return int(file.stem.rpartition("-")[2])


def _short(value: Any) -> str:
    if isinstance(value, dict) and "sha256" in value:
        return f"{value.get('name')!s:.100}, sha256 {value['sha256']!s:.12}…"
    return f"{json.dumps(value):.120}"
