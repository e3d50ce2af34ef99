"""Captions where the photos are: in a text file or an XMP file beside each photo, or inside it.

    photo.jpg ─ txt ───▶ photo.txt, one caption per line, which the data set ``folder`` reads
              ─ xmp ───▶ photo.jpg.xmp, or photo.xmp if that exists
              ─ embed ─▶ photo.jpg with XMP; the image data and other metadata stay as they are

Every file is replaced in one step, so that an interruption leaves the old or the new one.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path, PurePath
from typing import Literal
from unicodedata import normalize

from captioner.batch import xmp
from captioner.batch.containers import read_packets, replace_packet
from captioner.errors import DataError, UsageError
from captioner.files import atomic, remove_parts
from captioner.photos.paths import SUFFIXES

EXISTING = ("skip", "append", "overwrite")
FORMATS = ("txt", "xmp", "embed")
PAGE = "captions.html"  # to check the captions of a folder of photos; at most MAX_PHOTOS
SHARDS, TABLE = ".captions.html", "captions.csv"  # what a page is made from, and what it saves
MAX_PHOTOS = 2000
SIGNATURE = len("<!--  -->\n") + 64
_RAW = (".arw", ".cr2", ".cr3", ".dng", ".nef", ".orf", ".pef", ".raf", ".raw", ".rw2", ".srw")


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
        """Return whether the photo has a caption that must stay; errors as in ``words``."""
        return self.existing == "skip" and bool(self.words(photo))

    def words(self, photo: Path) -> str:
        """Return the captions that a photo has, each line once, wherever programs look for them.

        ``txt`` reads its text files; ``xmp`` and ``embed`` its XMP files, and the XMP, EXIF, IPTC and
        PNG text inside the photo; ``html`` all of these.

        Raises:
            DataError: its metadata cannot be read, or a text file to be extended is not UTF-8.
            OSError: the file system refuses to read it.
        """
        files = self._beside(photo) + ([photo] if self.kind != "txt" else [])
        lines = [line.strip() for file in files for line in self._caption(file).splitlines()]
        return "\n".join(dict.fromkeys(filter(None, lines)))

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
        changed = False
        for file in self.targets(photo):
            content = file.read_bytes() if file.exists() else None
            if content is not None and self._own_caption(file) == new:
                continue
            with _naming(file):
                data = _edited(file, content, new)
            with atomic(file, keep_stat=True) as stream:
                stream.write(data)
            changed = True
        return changed

    def text(self, caption: str) -> str:
        """Return a caption with prefix and suffix; an empty one stays empty."""
        return f"{self.prefix}{caption}{self.suffix}".strip() if caption else ""

    def targets(self, photo: Path) -> list[Path]:
        """Return where a new caption belongs: every sidecar that has one, or else one file."""
        if self.kind == "embed":
            return [photo]
        files = self._beside(photo)
        return [file for file in files if self._own_caption(file) != ""] or files[-1:]

    def _own_caption(self, file: Path) -> str | None:
        """Return what this package's fields of a file hold; None if it cannot be read."""
        try:
            return self._caption(file, others=False)
        except DataError:
            return None

    def _caption(self, file: Path, others: bool = True) -> str:
        """Return the caption in a text file, an XMP file or, with or without ``others``, a photo."""
        if not file.is_file():
            return ""
        content = file.read_bytes()
        with _naming(file):
            if file.suffix.lower() == ".txt":
                return self._decoded(content).strip()
            if file.suffix.lower() == ".xmp":
                return xmp.caption_of(content)
            found = list(map(xmp.caption_of, read_packets(content)))
            if others:
                from captioner.batch.other_captions import other_captions  # imports Pillow

                found += other_captions(content)
            return "\n".join(found)

    def _decoded(self, content: bytes) -> str:
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            if self.existing == "append":
                raise DataError("it is not UTF-8; save it as UTF-8") from error
            is_wide = content.startswith((b"\xff\xfe", b"\xfe\xff"))
            return content.decode("utf-16" if is_wide else "cp1252", "replace")

    def _beside(self, photo: Path) -> list[Path]:
        """Return the sidecars of a photo, of each kind those that exist, or the one to be made."""
        kinds = {"embed": ("xmp",), "html": ("txt", "xmp")}.get(self.kind, (self.kind,))
        return [file for kind in kinds for file in self._sidecars(photo, kind)]

    def _sidecars(self, photo: Path, kind: str) -> list[Path]:
        """Return the sidecars of a photo that exist, or the one to be made.

        Darktable and digiKam name them photo.jpg.xmp, Lightroom and data sets photo.xmp, in any letter
        case. A short name may belong to several photos; XMP can say to which.
        """
        names, suffixes = self._names(photo.parent), SUFFIXES + (_RAW if kind == "xmp" else ())
        others = [
            name
            for name in names[_key(f"{photo.stem}.*")]
            if name != photo.name and PurePath(name).suffix.lower() in suffixes
        ]
        found = self._existing(photo, f"{photo.name}.{kind}")
        for file in self._existing(photo, f"{photo.stem}.{kind}"):
            extension = ""
            if others and kind == "xmp":
                with _naming(file):
                    extension = xmp.extension_of(file.read_bytes())
            if not others or extension.casefold() == photo.suffix[1:].casefold():
                found.append(file)
            elif not extension:
                self._share(file, [photo.name, *others])
        if not found and others and kind == "txt":
            self._share(photo.with_suffix(".txt"), [photo.name, *others])
        long = kind == "xmp" or others
        return found or [Path(f"{photo}.{kind}") if long else photo.with_suffix(f".{kind}")]

    def _share(self, file: Path, photos: list[str]) -> None:
        if file.suffix[1:].lower() == self.kind:
            owners = " or ".join(sorted(photos))
            made = f"{min(photos)}.{self.kind}"
            notice = f"'{file}' could belong to {owners}: captions are in {made} and the like"
            self.notices[notice] = None

    def _names(self, folder: Path) -> dict[str, list[str]]:
        """Return the names in a folder by their keys, and those of photos by their stems as well."""
        if folder not in self._folders:
            self._folders.clear()  # photos come folder by folder
            remove_parts(folder)
            names: dict[str, list[str]] = defaultdict(list)
            for file in folder.iterdir():
                names[_key(file.name)].append(file.name)
                names[_key(f"{file.stem}.*")].append(file.name)
            self._folders[folder] = names
        return self._folders[folder]

    def _existing(self, photo: Path, name: str) -> list[Path]:
        """Return the files of this name: in any letter case, unless two photos differ in it alone."""
        names, exact = self._names(photo.parent), photo.with_name(name)
        if exact.exists() or len(names[_key(photo.name)]) > 1:
            return [exact] if exact.exists() else []
        return [photo.with_name(found) for found in names[_key(name)]]


def _key(name: str) -> str:
    return normalize("NFC", name).casefold()


def _edited(file: Path, content: bytes | None, caption: str) -> bytes:
    """Return the new content of a text file, an XMP file or a photo."""
    if file.suffix.lower() == ".txt":
        return f"{caption}\n".encode()
    if file.suffix.lower() == ".xmp":
        return xmp.with_caption(content, caption)
    photo = content or b""
    packets = read_packets(photo)
    if any(map(xmp.caption_of, packets[1:])):
        raise DataError("it has two XMP packets, or one in two parts; use --write xmp")
    return replace_packet(photo, xmp.with_caption(packets[0] if packets else None, caption))


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
                f"'{file}' exists and is no page of captions, or somebody has edited it: give it "
                "another name, or --existing overwrite to replace it"
            )


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    try:
        yield
    except DataError as error:
        raise DataError(f"{file}: found a file that cannot take a caption: {error}") from error
