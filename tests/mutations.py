"""Damaged and hostile image files, from a seed."""

import io
import random
import struct
import zlib
from collections.abc import Iterator
from functools import cache

import numpy as np
from PIL import Image

FORMATS = {
    "jpg": ("JPEG", "RGB", {}),
    "progressive.jpg": ("JPEG", "CMYK", {"progressive": True}),
    "palette.png": ("PNG", "P", {}),
    "png": ("PNG", "RGB", {}),
    "deep.png": ("PNG", "I;16", {}),
    "webp": ("WEBP", "RGB", {}),
    "lossless.webp": ("WEBP", "RGBA", {"lossless": True}),
    "gif": ("GIF", "P", {}),
    "bmp": ("BMP", "RGB", {}),
    "lzw.tif": ("TIFF", "RGB", {"compression": "tiff_lzw"}),
    "jpeg.tif": ("TIFF", "RGB", {"compression": "jpeg"}),
    "deflate.tiff": ("TIFF", "F", {"compression": "tiff_adobe_deflate"}),
}


def mutants(count: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of ``count`` files, one in 50 of them a bomb."""
    rng = random.Random(seed)
    originals = {name: _image(name) for name in FORMATS}
    for number in range(count):
        if number % 50 == 49:
            name = [*BOMBS][number // 50 % len(BOMBS)]
            yield f"{number:05}-bomb-{name}", BOMBS[name]()
        else:
            name, kind = rng.choice(list(originals)), rng.choice((flip, cut, edit_header, grow))
            data = kind(rng, originals[name])
            twice = data and rng.random() < 0.3
            yield f"{number:05}-{kind.__name__}.{name}", kind(rng, data) if twice else data


def flip(rng: random.Random, data: bytes) -> bytes:
    """Flip some bits."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 3, 20, 200))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(rng: random.Random, data: bytes) -> bytes:
    """Drop the end, or the beginning."""
    at = rng.randrange(len(data) + 1)
    return data[:at] if rng.random() < 0.8 else data[at:]


def edit_header(rng: random.Random, data: bytes) -> bytes:
    """Write extreme numbers near the beginning, where sizes, counts and offsets are."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        width = rng.choice((1, 2, 4))
        at = rng.randrange(min(len(changed), 200) + 1)
        value = rng.choice((0, 1, 2 ** (8 * width - 1), 2 ** (8 * width) - 1))
        changed[at : at + width] = value.to_bytes(width, rng.choice(("big", "little")))
    return bytes(changed)


def grow(rng: random.Random, data: bytes) -> bytes:
    """Insert random bytes, up to the size of the file."""
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(rng.randrange(1, len(data) + 2)) + data[at:]


def _image(name: str) -> bytes:
    form, mode, options = FORMATS[name]
    rng = np.random.default_rng(len(name))
    blocks = rng.integers(0, 256, (6, 8, 3), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
    image = Image.fromarray(blocks)
    if mode == "I;16":
        image = Image.fromarray(blocks[..., 0].astype(np.uint16) * 257)
    elif mode != "RGB":
        image = image.convert(mode)
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def chunk(name: bytes, data: bytes) -> bytes:
    """A chunk of a PNG file."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(
    width: int, height: int, packed: bytes, depth: int = 1, colour: int = 0, extra: bytes = b""
) -> bytes:
    """A PNG file by the specification, without Pillow; ``packed`` are its compressed rows."""
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    body = chunk(b"IHDR", head) + extra + chunk(b"IDAT", packed) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@cache
def _zeros(megabytes: int) -> bytes:
    """Zeros, compressed a thousand to one."""
    compressor = zlib.compressobj(1)
    compressed = [compressor.compress(bytes(1 << 20)) for _ in range(megabytes)]
    return b"".join(compressed) + compressor.flush()


def _text() -> bytes:
    """Return a PNG whose comment unpacks to half a gigabyte."""
    plain = _image("png")
    return plain[:33] + chunk(b"zTXt", b"Comment\0\0" + _zeros(512)) + plain[33:]


def _patched(name: str, start: int | bytes, size: bytes) -> bytes:
    """Overwrite the size in the header of an image."""
    data = bytearray(_image(name))
    at = start if isinstance(start, int) else data.index(start) + 5
    data[at : at + len(size)] = size
    return bytes(data)


BOMBS = {
    "huge.png": lambda: png(2**31 - 1, 2**31 - 1, zlib.compress(b"\0")),
    "black.png": lambda: png(50_000, 50_000, _zeros(6)),
    "endless.png": lambda: png(64, 64, _zeros(50)),
    "text.png": _text,
    "wide.jpg": lambda: _patched("jpg", b"\xff\xc0", b"\xff" * 4),
    "wide.gif": lambda: _patched("gif", 6, b"\xff" * 4),
    "wide.bmp": lambda: _patched("bmp", 18, struct.pack("<ii", 2**31 - 1, 2**31 - 1)),
}
