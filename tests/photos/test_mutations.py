"""Each damaged or hostile image file gives a caption or an error that names it."""

import io
import random
import zlib

import numpy as np
import pytest
from PIL import Image

from captioner.batch.batch_captioner import BatchCaptioner
from tests.photos.test_images import blocks, chunk, png

FORMATS = {
    "jpg": ("JPEG", "RGB", {}),
    "progressive.jpg": ("JPEG", "CMYK", {"progressive": True}),
    "palette.png": ("PNG", "P", {}),
    "deep.png": ("PNG", "I;16", {}),
    "lossless.webp": ("WEBP", "RGBA", {"lossless": True}),
    "gif": ("GIF", "P", {}),
    "bmp": ("BMP", "RGB", {}),
    "lzw.tif": ("TIFF", "RGB", {"compression": "tiff_lzw"}),
    "jpeg.tif": ("TIFF", "RGB", {"compression": "jpeg"}),
    "deflate.tiff": ("TIFF", "F", {"compression": "tiff_adobe_deflate"}),
}


def flip(rng, data):
    """Flip some bits."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 3, 20, 200))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(rng, data):
    """Drop the end, or the beginning."""
    at = rng.randrange(len(data) + 1)
    return data[:at] if rng.random() < 0.8 else data[at:]


def edit_header(rng, data):
    """Write extreme numbers near the beginning, where sizes, counts and offsets are."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        width = rng.choice((1, 2, 4))
        at = rng.randrange(min(len(changed), 200) + 1)
        value = rng.choice((0, 1, 2 ** (8 * width - 1), 2 ** (8 * width) - 1))
        changed[at : at + width] = value.to_bytes(width, rng.choice(("big", "little")))
    return bytes(changed)


def encoded(name):
    form, mode, options = FORMATS[name]
    image = Image.fromarray(blocks(len(name), 48, 64))
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image)[..., 0].astype(np.uint16) * 257)
    stream = io.BytesIO()
    (image if mode == "I;16" else image.convert(mode)).save(stream, form, **options)
    return stream.getvalue()


def bombs():
    """Files that unpack to hundreds of megabytes, or declare such a size."""
    zeros = zlib.compress(bytes(1 << 29), 1)
    plain = encoded("palette.png")
    return {
        "huge.png": png(2**31 - 1, 2**31 - 1, zlib.compress(b"\0")),
        "black.png": png(50_000, 50_000, zeros),
        "endless.png": png(64, 64, zeros),
        "comment.png": plain[:33] + chunk(b"zTXt", b"Comment\0\0" + zeros) + plain[33:],
    }


@pytest.mark.filterwarnings("ignore:::PIL")  # Pillow warns of what it ignores
def test_some_mutants(tiny_folder, tmp_path):
    rng = random.Random(0)
    originals = {name: encoded(name) for name in FORMATS}
    files = bombs()
    for number in range(300):
        name, kind = rng.choice([*FORMATS]), rng.choice((flip, cut, edit_header))
        files[f"{number}-{kind.__name__}.{name}"] = kind(rng, originals[name])
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    names = [str(file) for file in tmp_path.iterdir()]
    batches = [names[start : start + 32] for start in range(0, len(names), 32)]
    records = list(BatchCaptioner(str(tiny_folder), "cpu").rows(batches))
    assert sorted(record["image"] for record in records) == sorted(names)
    failed = [record for record in records if "error" in record]
    assert 50 < len(failed) < 280
    for record in failed:
        assert record["error"]["type"] == "ImageError"
        assert record["error"]["message"].isprintable()
        assert record["image"] in record["error"]["message"]
    assert all(record["caption"] for record in records if record not in failed)
