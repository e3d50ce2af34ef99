"""Captions where the photos are: in a text file or an XMP file beside each photo, or inside it.

    photo.jpg ─ txt ───▶ photo.txt, one caption per line, which the data set ``folder`` reads
              ─ xmp ───▶ photo.jpg.xmp, or photo.xmp if that exists
              ─ embed ─▶ photo.jpg with XMP; the image data and other metadata stay as they are

Every file is replaced in one step, so that an interruption leaves the old or the new one.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from captioner.batch import xmp
from captioner.batch.containers import read_packet, replace_packet
from captioner.errors import DataError
from captioner.files import atomic

EXISTING = ("skip", "append", "overwrite")
PAGE, SHARDS, TABLE = "captions.html", ".captions.html", "captions.csv"
"""The page to check captions in a folder of photos, the shards that it is made from, and the table that
it saves."""
MAX_PHOTOS = 2000  # of a page


@dataclass(frozen=True)
class Sidecars:
    """Where and how captions are written.

    Attributes:
        kind: ``txt``, ``xmp`` or ``embed``.
        existing: what happens to a photo that has a caption: ``skip`` leaves it, ``append`` adds a
            line, unless the caption is there already, and ``overwrite`` replaces the caption.
        prefix, suffix: are put around every caption.
    """

    kind: Literal["txt", "xmp", "embed"]
    existing: Literal["skip", "append", "overwrite"] = "skip"
    prefix: str = ""
    suffix: str = ""

    def is_finished(self, photo: Path) -> bool:
        """Return whether the photo has a caption that must stay.

        Raises:
            DataError: its metadata or its text file cannot be read.
            OSError: the file system refuses to read it.
        """
        return self.existing == "skip" and bool(self._read(photo)[1])

    def write(self, photo: Path, caption: str) -> bool:
        """Write a caption, unless the photo has it or keeps another; return whether a file changed.

        Raises:
            DataError: its metadata cannot be edited, or its format cannot hold any.
            OSError: the file cannot be written, or the disk is full.
        """
        new = self.text(caption)
        content, old = self._read(photo)
        if old and self.existing == "append":
            new = old if new in old.splitlines() else f"{old}\n{new}"
        if new == old or (old and self.existing == "skip"):
            return False
        file = self._file(photo)
        with _naming(file):
            data = FORMATS[self.kind].edit(content, new)
        with atomic(file, keep_stat=True) as stream:
            stream.write(data)
        return True

    def text(self, caption: str) -> str:
        """Return a caption with prefix and suffix; an empty one stays empty."""
        return f"{self.prefix}{caption}{self.suffix}".strip() if caption else ""

    def _file(self, photo: Path) -> Path:
        if self.kind == "embed":
            return photo
        beside = photo.with_suffix(f".{self.kind}")
        # Most programs write a.jpg.xmp, so that a.jpg and a.png have their own; some write a.xmp.
        return beside if self.kind == "txt" or beside.exists() else Path(f"{photo}.xmp")

    def _read(self, photo: Path) -> tuple[bytes | None, str]:
        """Return the content of the file, None if there is none, and the caption in it."""
        file = self._file(photo)
        if not file.exists():
            return None, ""
        content = file.read_bytes()
        with _naming(file):
            return content, FORMATS[self.kind].read(content)


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    try:
        yield
    except (DataError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: found a file that cannot take a caption: {error}") from error


def _embed(content: bytes | None, caption: str) -> bytes:
    photo = content or b""
    return replace_packet(photo, xmp.with_caption(read_packet(photo), caption))


@dataclass(frozen=True)
class _Format:
    read: Callable[[bytes], str]  # the content of a file → the caption
    edit: Callable[[bytes | None, str], bytes]  # and a new caption → the new content


FORMATS = {
    "txt": _Format(
        lambda content: content.decode("utf-8-sig").strip(),
        lambda _, caption: f"{caption}\n".encode(),
    ),
    "xmp": _Format(xmp.caption_of, xmp.with_caption),
    "embed": _Format(lambda content: xmp.caption_of(read_packet(content)), _embed),
}
