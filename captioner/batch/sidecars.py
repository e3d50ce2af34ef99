"""Captions where the photos are: in a text file or an XMP file beside each photo, or inside it.

    photo.jpg ─ txt ───▶ photo.txt, one caption per line, which the data set ``folder`` reads
              ─ xmp ───▶ photo.jpg.xmp, or photo.xmp if that exists
              ─ embed ─▶ photo.jpg with XMP; the image data and other metadata stay as they are

Every file is replaced in one step, so that an interruption leaves the old or the new one.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path, PurePath
from typing import Literal

from captioner.batch import xmp
from captioner.batch.containers import read_packets, replace_packet
from captioner.errors import DataError, UsageError
from captioner.files import atomic, remove_parts
from captioner.photos.paths import SUFFIXES

EXISTING = ("skip", "append", "overwrite")
FORMATS = ("txt", "xmp", "embed")
PAGE, SHARDS, TABLE = "captions.html", ".captions.html", "captions.csv"
"""The page to check captions in a folder of photos, the shards that it is made from, and the table that
it saves."""
MAX_PHOTOS = 2000  # of a page
SIGNATURE = len("<!--  -->\n") + 64
_RAW = (".arw", ".cr2", ".cr3", ".dng", ".nef", ".orf", ".pef", ".raf", ".raw", ".rw2", ".srw")


@dataclass(frozen=True)
class _Place:
    """A file that holds, or can hold, the caption of a photo.

    Attributes:
        file: the file.
        content: None if there is no such file.
        read: the content → the caption; DataError if it cannot be read.
        edit: the content and a new caption → the new content.
    """

    file: Path
    content: bytes | None
    read: Callable[[bytes], str]
    edit: Callable[[bytes | None, str], bytes]

    def caption(self) -> str:
        """Return the caption, an empty text if there is none."""
        with _naming(self.file):
            return "" if self.content is None else self.read(self.content)

    def holds(self, caption: str | None = None) -> bool:
        """Return whether the caption is this one; without one, whether there is any."""
        try:
            return bool(self.caption()) if caption is None else self.caption() == caption
        except DataError:  # it cannot be read, so something is there
            return caption is None


@dataclass(frozen=True)
class Sidecars:
    """Where and how captions are written.

    Attributes:
        kind: ``txt``, ``xmp`` or ``embed``; ``html`` reads all of them and writes none.
        existing: what happens to a photo that has a caption: ``skip`` leaves it, ``append`` adds a
            line, unless the caption is there already, and ``overwrite`` replaces the caption.
        prefix, suffix: are put around every caption.
        notices: sidecars that could belong to several photos, so that longer names are used.
    """

    kind: Literal["txt", "xmp", "embed", "html"]
    existing: Literal["skip", "append", "overwrite"] = "skip"
    prefix: str = ""
    suffix: str = ""
    notices: dict[str, None] = field(default_factory=dict)
    _folders: dict[Path, dict[str, list[str]]] = field(default_factory=dict)

    def is_finished(self, photo: Path) -> bool:
        """Return whether the photo has a caption that must stay.

        Raises:
            DataError: its metadata cannot be read.
            OSError: the file system refuses to read it.
        """
        return self.existing == "skip" and bool(self.words(photo))

    def words(self, photo: Path) -> str:
        """Return the words that a photo has, each line once, wherever programs look for a caption.

        ``txt`` reads its text files; ``xmp`` and ``embed`` its XMP files, and the XMP, EXIF, IPTC and
        PNG text inside the photo; ``html`` all of these.

        Raises:
            DataError: its metadata or, unless it only has to stay, its text file cannot be read.
            OSError: the file system refuses to read it.
        """
        lines: dict[str, None] = {}
        for place in self._places(photo):
            lines |= dict.fromkeys(place.caption().splitlines())
        if self.kind != "txt" and photo.is_file():
            with _naming(photo):
                lines |= dict.fromkeys(_inside(photo.read_bytes()).splitlines())
        return "\n".join(line.strip() for line in lines if line.strip())

    def write(self, photo: Path, caption: str) -> bool:
        """Write a caption, unless the photo has it or keeps another; return whether a file changed.

        Raises:
            DataError: its metadata cannot be edited, or its format cannot hold any.
            OSError: the file cannot be written, or the disk is full.
        """
        new = self.text(caption)
        if self.existing != "overwrite":
            old = self.words(photo)
            if old and (self.existing == "skip" or new in old.splitlines()):
                return False
            new = f"{old}\n{new}".strip()
        targets = [place for place in self._targets(photo) if not place.holds(new)]
        for place in targets:
            with _naming(place.file):
                data = place.edit(place.content, new)
            with atomic(place.file, keep_stat=True) as stream:
                stream.write(data)
        return bool(targets)

    def text(self, caption: str) -> str:
        """Return a caption with prefix and suffix; an empty one stays empty."""
        return f"{self.prefix}{caption}{self.suffix}".strip() if caption else ""

    def _targets(self, photo: Path) -> list[_Place]:
        """Return where a new caption belongs: every file that has one, or else one file."""
        if self.kind == "embed":
            return [_Place(photo, photo.read_bytes(), _packet_caption, _embed)]
        places = self._places(photo)
        if len(places) > 1:
            places = [place for place in places if place.holds()] or places[-1:]
        return places

    def _places(self, photo: Path) -> list[_Place]:
        """Return the files beside a photo that hold its caption, or the one to be made."""
        places = []
        if self.kind in ("txt", "html"):
            places += [
                _Place(file, content, self._read_text, lambda _, caption: f"{caption}\n".encode())
                for file, content in self._beside(photo, "txt")
            ]
        if self.kind != "txt":
            places += [
                _Place(file, content, xmp.caption_of, xmp.with_caption)
                for file, content in self._beside(photo, "xmp")
            ]
        return places

    def _read_text(self, content: bytes) -> str:
        try:
            return content.decode("utf-8-sig").strip()
        except UnicodeDecodeError as error:
            if self.existing != "skip":
                raise DataError("it is not UTF-8; save it as UTF-8") from error
            is_wide = content.startswith((b"\xff\xfe", b"\xfe\xff"))
            return content.decode("utf-16" if is_wide else "cp1252", "replace").strip()

    def _beside(self, photo: Path, suffix: str) -> list[tuple[Path, bytes | None]]:
        """Return the sidecars of a photo with this suffix and their contents, or the one to be made.

        Darktable and digiKam name them photo.jpg.xmp, Lightroom and data sets photo.xmp, in any letter
        case. A short name may belong to several photos; XMP can say to which.
        """
        names = self._names(photo.parent)
        found: list[tuple[Path, bytes | None]] = []
        for name in self._existing(names, f"{photo.name}.{suffix}"):
            found.append((photo.with_name(name), photo.with_name(name).read_bytes()))
        others = [other for other in names[f"{photo.stem.casefold()}.*"] if other != photo.name]
        raws = [other for other in others if PurePath(other).suffix.lower() in _RAW]
        others = [other for other in others if suffix == "xmp" or other not in raws]
        for name in self._existing(names, f"{photo.stem}.{suffix}"):
            file = photo.with_name(name)
            content = file.read_bytes()
            with _naming(file):
                extension = xmp.extension_of(content) if others and suffix == "xmp" else ""
            if not others or extension.casefold() == photo.suffix[1:].casefold():
                found.append((file, content))
            elif not extension:
                self._share(file, [photo.name, *others], suffix)
        if not found:
            long = suffix == "xmp" or bool(others)
            file = Path(f"{photo}.{suffix}") if long else photo.with_suffix(f".{suffix}")
            if others and suffix == "txt":
                self._share(photo.with_suffix(".txt"), [photo.name, *others], suffix)
            found.append((file, file.read_bytes() if file.exists() else None))
        return found

    def _share(self, file: Path, photos: list[str], suffix: str) -> None:
        names = " or ".join(sorted(photos))
        self.notices[
            f"'{file}' could belong to {names}: captions are in files such as "
            f"{min(photos)}.{suffix}"
        ] = None

    def _names(self, folder: Path) -> dict[str, list[str]]:
        """Return the names in a folder by their lower case, and the photos by their stem as well."""
        if folder not in self._folders:
            self._folders.clear()  # photos come folder by folder
            remove_parts(folder)
            names: dict[str, list[str]] = defaultdict(list)
            for file in folder.iterdir():
                names[file.name.casefold()].append(file.name)
                if file.suffix.lower() in (*SUFFIXES, *_RAW):
                    names[f"{file.stem.casefold()}.*"].append(file.name)
            self._folders[folder] = names
        return self._folders[folder]

    @staticmethod
    def _existing(names: dict[str, list[str]], name: str) -> list[str]:
        found = names[name.casefold()]
        return [name] if name in found else found


def signed(page: str) -> str:
    """Return a page with a digest at its end, by which ``check_page`` knows that nobody edited it."""
    return f"{page}<!-- {sha256(page.encode()).hexdigest()} -->\n"


def check_page(file: Path) -> None:
    """Raise ``UsageError`` if a file is not a page that this package wrote, or was edited since."""
    if file.exists():
        content = file.read_bytes() if file.is_file() else b""
        page = content[:-SIGNATURE].decode("utf-8", "replace")
        if signed(page).encode() != content:
            raise UsageError(
                f"'{file}' exists and is no page of captions, or somebody has edited it: give it another "
                "name, or --existing overwrite to replace it"
            )


def _inside(photo: bytes) -> str:
    """Return the lines of all captions inside a photo."""
    from captioner.batch.other_captions import other_captions  # imports Pillow

    captions = [*map(xmp.caption_of, read_packets(photo)), *other_captions(photo)]
    return "\n".join(captions)


def _packet_caption(photo: bytes) -> str:
    return "\n".join(map(xmp.caption_of, read_packets(photo)))


def _embed(content: bytes | None, caption: str) -> bytes:
    photo = content or b""
    packets = read_packets(photo)
    if any(map(xmp.caption_of, packets[1:])):
        raise DataError("it has two XMP packets, or one in two parts; use --write xmp")
    return replace_packet(photo, xmp.with_caption(packets[0] if packets else None, caption))


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    try:
        yield
    except DataError as error:
        raise DataError(f"{file}: found a file that cannot take a caption: {error}") from error
