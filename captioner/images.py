"""Pictures in, pixels out, and the way back from a cell of the annotation grid to the picture.

    path, bytes, stream ── load ─▶ upright RGB picture ── to_tensor ─▶ uint8 (3, height, width)
                                          └─ Geometry: cell (row, column) ⇄ box in its pixels

The rest of the package sees pictures only in these forms, so whatever is peculiar about a file
(orientation, palette, inks, depth, damage) is dealt with here, once.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float64, Real, UInt8
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from captioner.errors import ImageError, printable

# BytesIO is a BinaryIO to mypy, but not to run-time checkers: it has no name and no mode.
Source = str | Path | bytes | BinaryIO | BytesIO | Image.Image
"""What `load` takes: a path, the bytes of a file, a binary stream, or a Pillow picture."""

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
"""The formats read, by Pillow's names. It opens MPO (phone JPEGs with a second view) as JPEG."""

MAX_PIXELS = 80_000_000
"""The most pixels read by default: any common camera's, and less than alarms Pillow (89 M)."""

# EXIF tag 0x0112: what makes the stored pixels stand upright. ImageOps.exif_transpose would do it
# too, but it also rewrites the EXIF block, which fails where the block is damaged.
_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# How files begin that are taken for pictures; only for the words of an error.
_KINDS = {
    rb"\xff\xd8\xff": "a JPEG file",
    rb"\x89PNG": "a PNG file",
    rb"RIFF....WEBP": "a WebP file",
    rb"GIF8": "a GIF file",
    rb"II\*\0|MM\0\*": "a TIFF file",
    rb"BM.{4}\0{4}": "a BMP file",
    rb"....ftyp": "HEIC, AVIF or a video",
    rb"%PDF": "a PDF document",
    rb"PK\x03\x04": "a ZIP archive",
    rb"version https://git-lfs": "a Git LFS pointer in place of the file (git lfs pull gets it)",
    rb".*<svg": "an SVG drawing",
    rb"(?i).*<(html|!doctype html)": "an HTML page",
    rb"[\t\r\n -~]+\Z": "text",
    rb"\Z": "an empty file",
}


def load(source: Source, *, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Read one picture as upright RGB, 8 bits a channel.

    - The EXIF or XMP orientation is applied; one that cannot be read counts as upright.
    - Transparency of any kind is laid over white; CMYK, YCbCr, LAB and palettes become RGB. Colour
      profiles are not applied.
    - 16-bit grey is scaled from 0…65535. 32-bit integers ("I") and floats ("F") name no range of
      their own: white is the smallest of 1 (floats only), 255 and 65535 that no value exceeds. If
      none is, or a value is negative, the smallest value becomes black and the largest white.
      Pixels that are not finite become black.
    - Of an animation or a multi-page file comes the first frame; of an open Pillow picture, the
      frame it stands at.

    A stream is read from its beginning and stays open. A Pillow picture stays as it is (a lazy one
    gets its pixels decoded). The result holds neither file nor metadata: loading it again changes
    nothing. The size is checked before any pixel is decoded; beyond 178 million pixels Pillow's own
    limit refuses, whatever `max_pixels` says.

    Raises:
        ImageError: no usable picture, for whatever reason; the one line names the source.
    """
    head: bytes | None = None
    try:
        if isinstance(source, Image.Image):
            _check_size(source, max_pixels)
            # A copy, because converting a palette with transparency writes to the palette.
            return _upright(_rgb(source.copy()), source)
        with _stream(source) as stream:
            head = bytes(memoryview(stream.read(512)))  # says so if the stream gives text
            # A stream, not a path: Pillow would map a path into memory, and a file that is cut
            # while it is mapped kills the process.
            with Image.open(stream, formats=FORMATS) as image:
                _check_size(image, max_pixels)
                image.load()
                return _upright(_rgb(image), image)
    except Exception as error:  # broken data leads Pillow's plugins into almost any exception
        found, advice = _diagnose(error, source, head)
        raise ImageError(
            f"{_name(source)}: found {found}; expected a whole picture "
            f"({', '.join(FORMATS[:-1])} or {FORMATS[-1]}); {advice}"
        ) from error


@dataclass(frozen=True)
class Geometry:
    """How the annotation grid lies on a picture.

    Pictures are only resized on the way to the encoder, never cropped or padded, so the grid covers
    the whole picture evenly: cell (r, c) spans c · width / columns … (c + 1) · width / columns from
    the left and r · height / rows … (r + 1) · height / rows from the top. The pixel in row i and
    column j covers the unit square from (j, i) to (j + 1, i + 1).

    Args:
        width: of the original upright picture, in pixels.
        height: of the original upright picture, in pixels.
        grid: rows and columns of the annotation map.

    Raises:
        ValueError: one of them is not positive.
    """

    width: int
    height: int
    grid: tuple[int, int]

    def __post_init__(self) -> None:
        if min(self.width, self.height, *self.grid) < 1:
            raise ValueError(f"width, height and grid must be positive, got {self}")

    def cell_box(self, row: int, column: int) -> tuple[float, float, float, float]:
        """The (left, top, right, bottom) of a cell in pixels of the picture.

        Raises:
            IndexError: the cell is outside the grid, as every negative index is.
        """
        rows, columns = self.grid
        if not (0 <= row < rows and 0 <= column < columns):
            raise IndexError(f"cell ({row}, {column}) is outside the {rows} x {columns} grid")
        xs, ys = _borders(self.width, columns), _borders(self.height, rows)
        return xs[column], ys[row], xs[column + 1], ys[row + 1]

    def cell_at(self, x: float | int, y: float | int) -> tuple[int, int]:
        """The (row, column) of the cell that holds a point, given in pixels of the picture.

        A border belongs to the cell on its right or below; the outermost, to the last cell.

        Raises:
            IndexError: the point is outside the picture.
        """
        if not (0 <= x <= self.width and 0 <= y <= self.height):
            raise IndexError(f"point ({x}, {y}) is outside {self.width} x {self.height} pixels")
        rows, columns = self.grid
        # Searching the very borders of cell_box makes the two exact inverses. Dividing would be off
        # by one cell where rounding puts a border on the wrong side.
        row = bisect_right(_borders(self.height, rows), y) - 1
        column = bisect_right(_borders(self.width, columns), x) - 1
        return min(row, rows - 1), min(column, columns - 1)

    def to_grid(
        self, mask: Bool[np.ndarray, "height width"] | Real[np.ndarray, "height width"]
    ) -> Float64[np.ndarray, "rows columns"]:
        """The mean of a mask over each cell; of a boolean mask, the fraction of its area covered.

        Exact where borders cut pixels: a pixel counts with the area it shares with the cell.
        Numbers are taken as they are; a mask of 0 and 255 gives means up to 255.

        Raises:
            ValueError: the mask is not (height, width).
        """
        if mask.shape != (self.height, self.width):
            raise ValueError(f"expected a mask of {(self.height, self.width)}, got {mask.shape}")
        rows, columns = self.grid
        values = mask.astype(np.float64)
        # The area that two boxes share is a product of lengths: one matrix for each axis.
        means = _shares(self.height, rows) @ values @ _shares(self.width, columns).T
        # A mean stays among its values; rounding must not make 1.0000000000000002 of a full cell.
        return np.asarray(np.clip(means, values.min(), values.max()))


def to_tensor(
    image: Image.Image,
    size: tuple[int, int],
    interpolation: Literal["bicubic", "bilinear"] = "bicubic",
) -> UInt8[Tensor, "3 height width"]:
    """Squash the whole picture to (height, width) pixels: RGB values 0…255, not normalised.

    Enlarging interpolates, shrinking averages (Pillow's antialiased resize); a picture that has the
    size already keeps its very pixels. The tensor owns its memory.

    Raises:
        ValueError: the picture is not RGB (see `load`), or the size is not positive.
    """
    if image.mode != "RGB":
        raise ValueError(f"expected an RGB picture, got {image.mode}; read it with images.load")
    height, width = size
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling[interpolation.upper()])
    # By numpy: torch's helpers would be many threads beside a network that wants the cores.
    return torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy())


def _check_size(image: Image.Image, max_pixels: int) -> None:
    width, height = image.size
    if width * height == 0:  # Pillow pictures can be; files cannot
        raise ValueError("it has no pixels")
    if width * height > max_pixels:
        raise Image.DecompressionBombError(
            f"{width} x {height} = {width * height} pixels, at most {max_pixels} are read"
        )


def _rgb(image: Image.Image) -> Image.Image:
    """A new RGB picture without metadata from one of any mode, not turned yet."""
    if image.mode == "F" or image.mode.startswith("I"):
        rgb = Image.fromarray(_grey(image)).convert("RGB")
    elif image.has_transparency_data:
        rgba = image.convert("RGBA")
        rgb = Image.new("RGB", image.size, "white")
        rgb.paste(rgba, mask=rgba)
    else:
        rgb = image.convert("RGB")
    rgb.info = {}  # an orientation left in here would be applied again by the next load
    return rgb


def _grey(image: Image.Image) -> UInt8[np.ndarray, "height width"]:
    """The pixels of a deep grey picture as 0…255, by the rule in `load`."""
    values = np.asarray(image, dtype=np.float64)
    finite = np.isfinite(values)
    if not finite.any():
        raise ValueError("no pixel is a finite number")
    low, high = float(values[finite].min()), float(values[finite].max())
    whites = [65535.0] if ";16" in image.mode else [255.0, 65535.0]
    if image.mode == "F":
        whites.insert(0, 1.0)
    if low >= 0 and high <= whites[-1]:
        low, high = 0.0, next(white for white in whites if high <= white)
    share = np.where(finite, values - low, 0.0) / ((high - low) or 1.0)
    grey = np.round(share * 255).astype(np.uint8)
    if isinstance(clear := image.info.get("transparency"), int):  # PNG: one grey is transparent
        grey[values == clear] = 255
    return grey


def _upright(rgb: Image.Image, original: Image.Image) -> Image.Image:
    try:
        turn = _UPRIGHT.get(original.getexif().get(_ORIENTATION, 1))
    except Exception:  # a picture with damaged side notes is still a picture
        turn = None
    return rgb if turn is None else rgb.transpose(turn)


@contextmanager
def _stream(source: str | Path | bytes | BinaryIO | BytesIO) -> Iterator[BinaryIO]:
    """A seekable stream, closed afterwards only if it was opened here; Pillow itself rewinds it."""
    if isinstance(source, str | Path):
        with Path(source).open("rb") as file:
            yield file if file.seekable() else BytesIO(file.read())  # a pipe cannot seek
    elif isinstance(source, bytes):
        yield BytesIO(source)
    elif source.seekable():
        source.seek(0)
        yield source
    else:
        yield BytesIO(source.read())


def _diagnose(error: Exception, source: Source, head: bytes | None) -> tuple[str, str]:
    """What was found and what to do about it; `head` is how the file begins, None if unread."""
    match error:
        case FileNotFoundError():
            return "no such file", "check the path (web addresses are not fetched)"
        case IsADirectoryError():
            return "a folder", "name the files in it"
        case Image.DecompressionBombError() | Image.DecompressionBombWarning():
            return f"too large a picture ({error})", "scale it down or raise max_pixels"
        case MemoryError():
            return "a picture too large for the memory", "scale it down"
        case UnidentifiedImageError():  # its own words only repeat the name
            kind = _kind(head or b"")
            return f"{kind} not recognisable as a picture", "check it, or convert it to JPEG or PNG"
        case OSError(errno=int(), strerror=str(reason)):
            return f"a file that cannot be read ({reason})", "check its permissions and its disk"
    if isinstance(source, Image.Image):
        kind = f"a Pillow picture of mode {source.mode!r} and size {source.size}"
    else:
        kind = "something" if head is None else _kind(head)
    reason = printable(f"{type(error).__name__}: {error}")
    return f"{kind} that cannot be decoded ({reason})", "download, copy or export it again"


def _kind(head: bytes) -> str:
    """What a file seems to be, by how it begins."""
    known = (kind for mark, kind in _KINDS.items() if re.match(mark, head, re.DOTALL))
    return next(known, f"unknown data ({head[:8].hex(' ')})")


def _name(source: Source) -> str:
    if isinstance(source, Image.Image):
        return "<PIL image>"
    name = str(source) if isinstance(source, str | Path) else getattr(source, "name", None)
    if isinstance(name, str):
        return printable(name, limit=4096) or "''"
    return "<bytes>" if isinstance(source, bytes) else "<stream>"


def _borders(length: int, cells: int) -> list[float]:
    """The borders that cut a length into equal cells, both ends included."""
    return [i * length / cells for i in range(cells + 1)]


def _shares(length: int, cells: int) -> Float64[np.ndarray, "cells length"]:
    """Which fraction of each cell lies in each pixel along one axis; rows sum to 1."""
    borders, pixels = np.array(_borders(length, cells)), np.arange(length)
    right = np.minimum(borders[1:, None], pixels + 1)
    left = np.maximum(borders[:-1, None], pixels)
    return np.asarray(np.clip(right - left, 0, None) * (cells / length))
