"""Captions that people wrote into a photo with other fields than XMP: EXIF, IPTC and PNG text."""

import re
from collections.abc import Iterator
from io import BytesIO

from PIL import Image, ImageFile, IptcImagePlugin, UnidentifiedImageError
from PIL.ExifTags import Base

from captioner.batch.containers import raw_profile
from captioner.errors import DataError
from captioner.photos.images import FORMATS

_PNG_TEXTS = ("description", "comment", "caption")
_IPTC_CAPTION, _PHOTOSHOP_TAG = (2, 120), 34377
# What cameras and programs write as a description, apart from their own names.
_DEFAULTS = re.compile(
    r"(?i)(digital|still|camera|pictures?|image|dsc|dcf|dcim|exif|jpe?g|default|untitled|screenshot|my|"
    r"beautiful|olympus|sony|minolta|konica|kodak|samsung|digimax|kenox|pentax|nikon|canon|casio|sanyo|"
    r"fujifilm|panasonic|lumix|ricoh|hp|photosmart|vivitar|[\d\W_]+)+"
)
_PHONES = re.compile(r"(?i)huawei|honor")  # they write "oznor", "cof", "sdr" and other codes
_PROGRAMS = re.compile(r"(?i)created (with|by)\b|creator: |edited with\b|software: |<digimax ")


def other_captions(content: bytes) -> list[str]:
    """Return the captions in EXIF, IPTC and PNG text, without those of cameras and programs.

    Raises:
        DataError: one of these blocks is damaged.
    """
    try:
        with Image.open(BytesIO(content), formats=FORMATS) as image:
            found = [*_exif(image.getexif()), *_iptc(image), *_png(image)]
    except UnidentifiedImageError:  # HEIC, and what is not a photo
        block = re.search(rb"Exif\0\0(?=II\*\0|MM\0\*)", content)
        exif = Image.Exif()
        exif.load(content[block.start() : block.start() + (1 << 20)] if block else b"")
        found = list(_exif(exif))
    except Exception as error:  # Pillow's readers of metadata can raise anything
        raise DataError(
            f"its metadata cannot be read ({error!s:.100}); --existing overwrite does not read it"
        ) from error
    return [text.strip() for text in found if text.strip("\0 \t\r\n") and not _PROGRAMS.match(text)]


def _exif(exif: Image.Exif) -> Iterator[str]:
    description = exif.get(Base.ImageDescription)
    if isinstance(description, str):
        description = _decoded(description.encode("latin-1", "replace"))
        maker = " ".join(str(exif.get(tag, "")) for tag in (Base.Make, Base.Model, Base.Software))
        words = re.findall(r"\w+", description.casefold())
        is_code = len(words) == 1 and _PHONES.search(maker) is not None
        own = set(re.findall(r"\w+", maker.casefold()))
        if not is_code and not all(word in own or _DEFAULTS.fullmatch(word) for word in words):
            yield description
    comment = exif.get(Base.XPComment)
    if isinstance(comment, bytes | tuple):
        yield bytes(comment).decode("utf-16-le", "replace").rstrip("\0")


def _iptc(image: ImageFile.ImageFile) -> Iterator[str]:
    found = (IptcImagePlugin.getiptcinfo(image) or {}).get(_IPTC_CAPTION, [])
    for caption in found if isinstance(found, list) else [found]:
        yield _decoded(caption)
    block = image.getexif().get(_PHOTOSHOP_TAG) if image.format == "TIFF" else None
    if isinstance(block, bytes):
        yield from _iptc_in(block)


def _iptc_in(block: bytes) -> Iterator[str]:
    """Yield the captions in a block of IPTC, which may be inside Photoshop's image resources."""
    for field in re.finditer(rb"\x1c\x02\x78(?=([\0-\x7f].))", block, re.DOTALL):
        start = field.end() + 2
        yield _decoded(block[start : start + int.from_bytes(field[1], "big")])


def _png(image: ImageFile.ImageFile) -> Iterator[str]:
    if image.format != "PNG":
        return
    for name, text in image.text.items():  # type: ignore[attr-defined]
        if name.casefold() in _PNG_TEXTS:
            yield str(text)
        elif name.casefold() in ("raw profile type iptc", "raw profile type 8bim"):
            yield from _iptc_in(raw_profile(text.encode("latin-1")))
        elif name == "Raw profile type APP1":
            exif = Image.Exif()
            exif.load(raw_profile(text.encode("latin-1")))
            yield from _exif(exif)


def _decoded(data: bytes) -> str:
    """Decode what is UTF-8 today, and was Latin-1 in older programs."""
    try:
        return data.rstrip(b"\0").decode("utf-8")
    except UnicodeDecodeError:
        return data.rstrip(b"\0").decode("cp1252", "replace")
