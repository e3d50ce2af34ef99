"""Picture files as a hostile or a failing world makes them, from a seed."""

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
    "progressive.jpg": ("JPEG", "RGB", {"progressive": True}),
    "cmyk.jpg": ("JPEG", "CMYK", {}),
    "png": ("PNG", "RGB", {}),
    "palette.png": ("PNG", "P", {}),
    "deep.png": ("PNG", "I;16", {}),
    "webp": ("WEBP", "RGB", {}),
    "lossless.webp": ("WEBP", "RGBA", {"lossless": True}),
    "gif": ("GIF", "P", {}),
    "bmp": ("BMP", "RGB", {}),
    "tif": ("TIFF", "RGB", {}),
    "lzw.tif": ("TIFF", "RGB", {"compression": "tiff_lzw"}),
    "jpeg.tif": ("TIFF", "RGB", {"compression": "jpeg"}),
    "deflate.tiff": ("TIFF", "F", {"compression": "tiff_adobe_deflate"}),
}


def mutants(count: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """``count`` different files: a name that ends like its format, and what is in it."""
    rng = random.Random(seed)
    seeds = {name: _picture(name) for name in FORMATS}
    kinds = (flip, cut, edit_header, swap, grow, repeat)
    bombs = [*BOMBS]
    for number in range(count):
        if number % 50 == 49:
            name = bombs[(number // 50) % len(bombs)]
            yield f"{number:05}-bomb-{name}", BOMBS[name]()
            continue
        name = rng.choice(list(seeds))
        data = seeds[name]
        kind = rng.choice(kinds)
        for _ in range(rng.choice((1, 1, 2))):
            data = kind(rng, data)
        yield f"{number:05}-{kind.__name__}.{name}", data


def flip(rng: random.Random, data: bytes) -> bytes:
    """Some bits turned over."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 3, 20, 200))):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(rng: random.Random, data: bytes) -> bytes:
    """The end, or the beginning, missing."""
    at = rng.randrange(len(data) + 1)
    return data[:at] if rng.random() < 0.8 else data[at:]


def edit_header(rng: random.Random, data: bytes) -> bytes:
    """Numbers near the beginning made extreme: sizes, counts, offsets."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        width = rng.choice((1, 2, 4))
        at = rng.randrange(min(len(changed), 200) + 1)
        value = rng.choice((0, 1, 2 ** (8 * width - 1), 2 ** (8 * width) - 1))
        changed[at : at + width] = value.to_bytes(width, rng.choice(("big", "little")))
    return bytes(changed)


def swap(rng: random.Random, data: bytes) -> bytes:
    """Two pieces exchanged."""
    places = sorted(rng.randrange(len(data) + 1) for _ in range(4))
    a, b, c, d = places
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def grow(rng: random.Random, data: bytes) -> bytes:
    """Something else put in, up to twice the file."""
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(rng.randrange(1, len(data) + 2)) + data[at:]


def repeat(rng: random.Random, data: bytes) -> bytes:
    """A piece there many times over."""
    a, b = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    return data[:b] + data[a:b] * rng.randrange(1, 6) + data[b:]


def _picture(name: str) -> bytes:
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


def _png(width: int, height: int, rows: bytes) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(name + data))
        return struct.pack(">I", len(data)) + name + data + checksum

    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    body = chunk(b"IDAT", rows)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + body + chunk(b"IEND", b"")


@cache
def _zeros(megabytes: int) -> bytes:
    """Zeros, packed a thousand to one."""
    packer = zlib.compressobj(1)
    packed = [packer.compress(bytes(1 << 20)) for _ in range(megabytes)]
    return b"".join(packed) + packer.flush()


def _text() -> bytes:
    """A PNG whose comment unpacks to half a gigabyte."""
    packed = _zeros(512)
    text = b"Comment\0\0" + packed
    chunk = struct.pack(">I", len(text)) + b"zTXt" + text
    chunk += struct.pack(">I", zlib.crc32(b"zTXt" + text))
    plain = _picture("png")
    return plain[:33] + chunk + plain[33:]


def _wide_jpeg() -> bytes:
    data = bytearray(_picture("jpg"))
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = b"\xff\xff\xff\xff"
    return bytes(data)


def _wide_gif() -> bytes:
    data = bytearray(_picture("gif"))
    data[6:10] = b"\xff\xff\xff\xff"
    return bytes(data)


def _wide_bmp() -> bytes:
    data = bytearray(_picture("bmp"))
    data[18:26] = struct.pack("<ii", 2**31 - 1, 2**31 - 1)
    return bytes(data)


BOMBS = {
    "huge.png": lambda: _png(2**31 - 1, 2**31 - 1, zlib.compress(b"\0")),
    "black.png": lambda: _png(50_000, 50_000, _zeros(6)),
    "endless.png": lambda: _png(64, 64, _zeros(50)),
    "text.png": _text,
    "wide.jpg": _wide_jpeg,
    "wide.gif": _wide_gif,
    "wide.bmp": _wide_bmp,
}
