"""Images in any form → upright RGB."""

import base64
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageChops, ImageOps, UnidentifiedImageError
from PIL.ExifTags import Base

from captioner.errors import NAME_LIMIT, ImageError, notice, printable

# By Pillow's names. MPO (JPEG with a second view, from phones) opens as JPEG.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
MAX_PIXELS = 80_000_000  # above the images of common cameras, below Pillow's warning at 89 million
MAX_PIPE = 1 << 28  # bytes of the largest file read from a pipe

_HEIC = re.compile(rb"....ftyp(hei[cfmsx]|hev[cx]|mif1|msf1)", re.DOTALL)  # its first bytes
JPEG_END = b"\xff\xd9"


@dataclass(frozen=True)
class Photo:
    """A photo file, decoded once to be captioned, explained and drawn."""

    path: str
    image: Image.Image  # upright RGB

    @classmethod
    def read(cls, path: str | Path) -> "Photo":
        """Decode a file; raise ``ImageError`` if it is not a readable image."""
        return cls(str(path), load(path))


if TYPE_CHECKING:
    from torch import Tensor

    Source = str | Path | bytes | BinaryIO | BytesIO | Image.Image | np.ndarray | Tensor | Photo
else:  # torch takes seconds to import
    Source = Any


def load(source: Source, *, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Read one image as upright RGB, 8 bits a channel.

    The source is a path, the bytes of a file, a binary stream, a Pillow image, or a NumPy array or
    tensor of shape (H, W) for grey, (H, W, 3) for RGB or (H, W, 4) for RGBA, with uint8 from 0 to 255
    or floats from 0 to 1.

    - The EXIF or XMP orientation is applied; one that cannot be read is ignored.
    - Transparency is laid over white, and other modes become RGB. Colour profiles are not applied.
    - 16-bit grey is scaled from 0…65535; of 32-bit grey ("I", "F"), the range of its values is scaled
      to black … white. Values that are not finite count as 0.
    - Animations and multi-page files give their first frame, an open Pillow image its current one.
    - A JPEG file that is cut off is decoded as far as it goes; a line on standard error says so.

    A stream is read from its beginning and stays open; a Pillow image is not changed. The size is
    checked before decoding. Pipes are read as ``/dev/stdin`` or ``/dev/fd/N`` only, and devices never,
    because reading them can block for ever.

    Raises:
        ImageError: the source is not a readable image; the message is one line that names it.
    """
    if isinstance(source, Photo):
        return source.image
    try:
        if isinstance(source, np.ndarray) or hasattr(source, "numpy"):
            return _rgb(_from_array(source))
        if isinstance(source, Image.Image):
            _check_size(source, max_pixels)
            # A copy, because converting a palette with transparency writes to the palette.
            return _upright(_rgb(source.copy()), source)
        # Pillow would map a path into memory; truncating the file then kills the process.
        with _stream(source) as stream, _open(stream) as image:
            _check_size(image, max_pixels)
            try:
                image.load()
            except OSError:
                if image.format not in ("JPEG", "MPO"):
                    raise
                completed = _completed(stream, name_of(source))
                return _upright(_rgb(completed), completed)
            return _upright(_rgb(image), image)
    except Exception as error:  # Pillow's plugins can raise anything
        raise ImageError(f"{name_of(source)} {_diagnose(error)}") from error


def upright_size(path: str) -> tuple[int, int]:
    """Return (width, height) of an upright image file, without decoding its pixels."""
    with Image.open(path, formats=FORMATS) as image:
        swapped = image.getexif().get(Base.Orientation, 1) >= 5
        return image.size[::-1] if swapped else image.size


def _open(stream: Any) -> Image.Image:
    """Open an image of one of the documented formats; its pixels are not decoded yet."""
    head = stream.read(16)
    stream.seek(0)
    if not _HEIC.match(head):
        return Image.open(stream, formats=FORMATS)
    try:
        # Registering the plugin would change Pillow for the whole process.
        from pillow_heif.as_plugin import HeifImageFile
    except ImportError as error:
        text = "is a HEIC photo, which needs a further library: pip install 'captioner[heif]'"
        raise ImageError(text) from error
    image: Image.Image = HeifImageFile(stream)  # type: ignore[no-untyped-call]
    return image  # the library turns it upright


def _completed(stream: Any, name: str) -> Image.Image:
    """Decode a JPEG file whose end is missing, as viewers do; say so if pixels are missing, too."""
    stream.seek(0)
    data = stream.read()
    # A header of a scan, or its Huffman tables, that is cut off would swallow the end.
    last = max(data.rfind(b"\xff\xc4"), data.rfind(b"\xff\xda"))
    if len(data) - last - 2 <= int.from_bytes(data[last + 2 : last + 4], "big"):
        data = data[:last]
    # Other data in place of the missing end change the image only where it is not complete.
    image, probe = (
        Image.open(BytesIO(data + filler + JPEG_END), formats=("JPEG",))
        for filler in (b"", bytes(range(1, 64)))
    )
    if ImageChops.difference(image, probe).getbbox() is not None:
        notice(f"{name} is cut off, and its missing part is grey or blurred; copy the photo again")
    return image


def _check_size(image: Image.Image, max_pixels: int) -> None:
    width, height = image.size
    if width * height == 0:  # only possible for Pillow images
        raise ImageError("is empty: it has no pixels")
    if width * height > max_pixels:
        raise ImageError(
            f"is too large: {width:,} × {height:,} pixels, and at most {max_pixels:,} pixels are "
            "read; scale it down"
        )


def _from_array(array: Any) -> Image.Image:
    """Return a new image from an array or tensor of the shapes in ``load``."""
    if hasattr(array, "numpy"):
        array = array.detach().cpu()
        array = (array.float() if array.is_floating_point() else array).numpy()
    if array.size and (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))):
        if np.issubdtype(array.dtype, np.floating) and array.min() >= 0 and array.max() <= 1:
            array = (array * 255).round().astype(np.uint8)
        if array.dtype == np.uint8:
            return Image.fromarray(np.ascontiguousarray(array))
    raise ImageError(
        f"has shape {array.shape}, type {array.dtype}; expected (height, width), (height, width, 3) or "
        "(height, width, 4) with uint8 from 0 to 255 or floats from 0 to 1, and several images as a list"
    )


def _rgb(image: Image.Image) -> Image.Image:
    """Convert any mode to a new RGB image without metadata."""
    if image.mode == "F" or image.mode.startswith("I"):
        rgb = Image.fromarray(_grey(image)).convert("RGB")
    elif image.has_transparency_data:
        rgba = image.convert("RGBA")
        rgb = Image.new("RGB", image.size, "white")
        rgb.paste(rgba, mask=rgba)
    else:
        rgb = image.convert("RGB")
    rgb.info = {}  # so that the next load does not apply the orientation again
    return rgb


def _grey(image: Image.Image) -> UInt8[np.ndarray, "height width"]:
    """Scale the values of a deep grey image to 0…255 as described in ``load``."""
    values = np.nan_to_num(np.asarray(image, np.float64), posinf=0, neginf=0)
    low, high = (0, 65535) if ";16" in image.mode else (values.min(), values.max())
    return np.round((values - low) / ((high - low) or 1) * 255).astype(np.uint8)


def _upright(rgb: Image.Image, original: Image.Image) -> Image.Image:
    """Apply the orientation of the original; damaged metadata is ignored."""
    with suppress(Exception):
        # Only the orientation is copied, because Pillow fails to rewrite a damaged block.
        rgb.getexif()[Base.Orientation] = original.getexif().get(Base.Orientation, 1)
        ImageOps.exif_transpose(rgb, in_place=True)
    return rgb


@contextmanager
def _stream(source: Any) -> Iterator[BinaryIO]:
    """Open the source as a seekable stream; only files opened here are closed."""
    if isinstance(source, str | Path):
        path = Path(source)
        opened = str(source).startswith(("/dev/fd/", "/dev/stdin"))  # by the calling process
        if path.exists() and not (path.is_file() or path.is_dir() or (opened and path.is_fifo())):
            raise ImageError("is a pipe or a device, not an image; give a file")
        with path.open("rb") as file:
            yield file if file.seekable() else BytesIO(file.read(MAX_PIPE))  # a pipe cannot seek
    elif isinstance(source, bytes):
        yield BytesIO(source)
    elif not hasattr(source, "read"):
        expected = "a path, bytes, an open binary file, a Pillow image, or an array"
        raise ImageError(f"is no image; give {expected}")
    elif source.seekable():
        source.seek(0)
        yield source
    else:
        yield BytesIO(source.read(MAX_PIPE))


def _diagnose(error: Exception) -> str:
    reason = printable(str(error)) or type(error).__name__
    match error:
        case ImageError():
            return str(error)
        case UnidentifiedImageError():
            return f"is not an image; give a {', '.join(FORMATS)} or HEIC file"
        case FileNotFoundError():
            return "does not exist; check the path (web addresses are not fetched)"
        case Image.DecompressionBombError() | Image.DecompressionBombWarning() | MemoryError():
            return f"is too large ({reason}); scale it down"
        case OSError(errno=int(), strerror=str(cause)):
            return f"cannot be read ({printable(cause)}); check its name and permissions"
    return f"cannot be decoded ({reason}); download, copy or export it again"


def data_url(image: Image.Image, quality: int = 88, kind: str = "jpeg") -> str:
    """Return an image as a JPEG or ``webp`` in a data URL."""
    stream = BytesIO()
    image.save(stream, kind, quality=quality)
    return f"data:image/{kind};base64," + base64.b64encode(stream.getvalue()).decode("ascii")


def path_of(source: Source) -> str | None:
    """Return the path of a source that is a file by its name; None for all others."""
    if isinstance(source, Photo):
        return source.path
    return str(source) if isinstance(source, str | Path) else None


def name_of(source: Source) -> str:
    """Return the printable name with which the messages of ``load`` begin."""
    name = path_of(source) or getattr(source, "name", None)
    return printable(str(name), NAME_LIMIT) if name else f"<{type(source).__name__}>"
