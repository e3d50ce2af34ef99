"""Pictures as the world has them: every format, mode and orientation, and what breaks them."""

import io
import os
import random
import struct
import threading
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, PngImagePlugin

from captioner import images, paths
from captioner.errors import ImageError
from captioner.images import Geometry

HEIGHT, WIDTH = 24, 32


def blocks(seed=0, height=HEIGHT, width=WIDTH, block=8):
    """A colourful picture of flat squares: not symmetric, and lossy codecs hardly change it."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (height // block, width // block, 3), dtype=np.uint8)
    return small.repeat(block, 0).repeat(block, 1)


def encode(array_or_image, format, **options):
    image = array_or_image
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image)
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def pixels(source, **options):
    image = images.load(source, **options)
    assert image.mode == "RGB"
    return np.asarray(image).astype(int)


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width, height, depth, colour, rows=b"", extra=b""):
    """A PNG file by the specification, without Pillow."""
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress(rows)) if rows else b""
    signature = b"\x89PNG\r\n\x1a\n"
    return signature + chunk(b"IHDR", head) + extra + body + chunk(b"IEND", b"")


def one_line(error, *parts):
    text = str(error.value if hasattr(error, "value") else error)
    assert len(text.splitlines()) == 1
    assert text.isprintable()
    for part in parts:
        assert part in text
    return text


# ── formats ──────────────────────────────────────────────────────────────────────────────────────

LOSSLESS = {
    "png": ("PNG", {}),
    "png-interlaced-free-palette": ("PNG", {"optimize": True}),
    "webp": ("WEBP", {"lossless": True}),
    "bmp": ("BMP", {}),
    "tiff": ("TIFF", {}),
    "tiff-lzw": ("TIFF", {"compression": "tiff_lzw"}),
    "tiff-deflate": ("TIFF", {"compression": "tiff_adobe_deflate"}),
    "gif": ("GIF", {}),
}
LOSSY = {
    "jpeg": ("JPEG", {"quality": 95, "subsampling": 0}),
    "jpeg-progressive": ("JPEG", {"quality": 95, "subsampling": 0, "progressive": True}),
    "webp-lossy": ("WEBP", {"quality": 95}),
}


@pytest.mark.parametrize("name", LOSSLESS)
def test_lossless_formats_give_the_very_pixels(name, tmp_path):
    format, options = LOSSLESS[name]
    path = tmp_path / f"picture.{format.lower()}"
    path.write_bytes(encode(blocks(), format, **options))
    assert (pixels(path) == blocks()).all()


@pytest.mark.parametrize("name", LOSSY)
def test_lossy_formats_give_nearly_the_pixels(name, tmp_path):
    format, options = LOSSY[name]
    path = tmp_path / "picture"  # the content counts, not the suffix
    path.write_bytes(encode(blocks(), format, **options))
    assert abs(pixels(path) - blocks()).mean() < 10
    assert abs(pixels(path) - blocks(seed=1)).mean() > 50


def test_every_format_announced_is_covered_by_a_suffix_and_a_test():
    assert {format for format, _ in (LOSSLESS | LOSSY).values()} == set(images.FORMATS)
    Image.init()
    assert {Image.EXTENSION[suffix] for suffix in paths.SUFFIXES} == set(images.FORMATS)


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG", "TIFF", "MPO"])
def test_animations_and_pages_give_their_first_frame(format):
    frames = [Image.fromarray(blocks(seed)) for seed in range(3)]
    options = {"WEBP": {"lossless": True}, "MPO": {"quality": 95, "subsampling": 0}}.get(format, {})
    data = encode(frames[0], format, save_all=True, append_images=frames[1:], **options)
    with Image.open(io.BytesIO(data)) as opened:
        assert opened.format == format
        assert opened.n_frames == 3
    assert abs(pixels(data) - blocks(0)).mean() < (6 if format == "MPO" else 0.01)


def test_an_open_animation_is_taken_at_its_frame_and_stays_there():
    frames = [Image.fromarray(blocks(seed)) for seed in range(3)]
    data = encode(frames[0], "GIF", save_all=True, append_images=frames[1:])
    with Image.open(io.BytesIO(data)) as opened:
        opened.seek(2)
        assert (pixels(opened) == blocks(2)).all()
        assert opened.tell() == 2
        opened.seek(0)
        assert (pixels(opened) == blocks(0)).all()


# ── modes ────────────────────────────────────────────────────────────────────────────────────────


def over_white(colour, alpha):
    share = alpha[..., None].astype(float) / 255
    return colour * share + 255 * (1 - share)


def ramp(low, high, dtype):
    return np.linspace(low, high, HEIGHT * WIDTH).reshape(HEIGHT, WIDTH).astype(dtype)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "BMP", "TIFF", "GIF"])
def test_grey(format):
    grey = blocks()[..., 0]
    got = pixels(encode(grey, format))
    assert abs(got - grey[..., None]).max() <= (8 if format == "JPEG" else 0)
    assert (got.min(2) == got.max(2)).all()


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF", "GIF"])
def test_one_bit(format):
    bits = blocks()[..., 0] > 127
    assert (pixels(encode(Image.fromarray(bits), format)) == bits[..., None] * 255).all()


@pytest.mark.parametrize("format", ["PNG", "WEBP", "TIFF"])
def test_transparency_is_laid_over_white(format):
    colour, alpha = blocks(), ramp(0, 255, np.uint8)
    options = {"lossless": True, "exact": True} if format == "WEBP" else {}
    data = encode(np.dstack([colour, alpha]), format, **options)
    assert abs(pixels(data) - over_white(colour, alpha)).max() <= 1


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_grey_with_alpha(format):
    grey, alpha = blocks()[..., 0], ramp(0, 255, np.uint8)
    data = encode(Image.fromarray(np.dstack([grey, alpha])), format)
    with Image.open(io.BytesIO(data)) as opened:
        assert opened.mode == "LA"
    assert abs(pixels(data) - over_white(grey[..., None], alpha)).max() <= 1


def palette_picture():
    indices = (np.arange(HEIGHT * WIDTH) % 5).reshape(HEIGHT, WIDTH).astype(np.uint8)
    colours = np.array([[9, 8, 7], [255, 0, 0], [0, 255, 0], [0, 0, 255], [50, 60, 70]], np.uint8)
    image = Image.fromarray(indices).convert("L")
    image.putpalette(colours.tobytes())
    assert image.mode == "P"
    return image, colours[indices], indices


@pytest.mark.parametrize("format", ["PNG", "GIF", "BMP", "TIFF"])
def test_palette(format):
    image, truth, _ = palette_picture()
    assert (pixels(encode(image, format)) == truth).all()


@pytest.mark.parametrize("format", ["PNG", "GIF"])
def test_palette_with_one_transparent_entry(format):
    image, truth, indices = palette_picture()
    got = pixels(encode(image, format, transparency=3))
    assert (got[indices == 3] == 255).all()
    assert (got[indices != 3] == truth[indices != 3]).all()


def test_palette_with_alpha_for_every_entry():
    image, truth, indices = palette_picture()
    alphas = np.array([0, 64, 128, 200, 255], np.uint8)
    got = pixels(encode(image, "PNG", transparency=alphas.tobytes()))
    assert abs(got - over_white(truth, alphas[indices])).max() <= 1


def test_one_transparent_colour_of_a_png():
    colour = blocks()
    clear = tuple(int(c) for c in colour[0, 0])
    got = pixels(encode(colour, "PNG", transparency=clear))
    hit = (colour == colour[0, 0]).all(2)
    assert 0 < hit.sum() < hit.size
    assert (got[hit] == 255).all()
    assert (got[~hit] == colour[~hit]).all()


def test_cmyk_jpeg_is_not_inverted():
    inks = np.array(
        [
            [0, 0, 0, 0],
            [255, 0, 0, 0],
            [0, 255, 0, 0],
            [0, 0, 255, 0],
            [0, 0, 0, 255],
            [9, 99, 0, 40],
        ]
    )
    cmyk = inks.astype(np.uint8).repeat(16, 0)[None].repeat(16, 0)
    truth = ((255 - inks[:, :3]) * (255 - inks[:, 3:]) / 255).repeat(16, 0)[None]
    for format in ("JPEG", "TIFF"):
        data = encode(Image.frombytes("CMYK", cmyk.shape[1::-1], cmyk.tobytes()), format)
        with Image.open(io.BytesIO(data)) as opened:
            assert opened.mode == "CMYK"
        assert abs(pixels(data) - truth).max() <= 8


def test_other_colour_spaces_of_pillow():
    y, cb, cr = np.moveaxis(blocks().astype(float) / 4 + 96, 2, 0)  # inside the RGB cube
    array = np.dstack([y, cb, cr]).astype(np.uint8)
    y, cb, cr = np.moveaxis(array.astype(float), 2, 0)
    rec601 = np.dstack(  # ITU-R BT.601, full range as in JFIF
        [
            y + 1.402 * (cr - 128),
            y - 0.344136 * (cb - 128) - 0.714136 * (cr - 128),
            y + 1.772 * (cb - 128),
        ]
    )
    ycbcr = Image.frombytes("YCbCr", (WIDTH, HEIGHT), array.tobytes())
    assert abs(pixels(ycbcr) - rec601).max() <= 1.5
    lab = Image.frombytes("LAB", (2, 1), bytes([255, 0, 0, 0, 0, 0]))
    assert abs(pixels(encode(lab, "TIFF")) - [[[255] * 3, [0] * 3]]).max() <= 2
    opaque = Image.fromarray(blocks())
    assert (pixels(opaque.convert("RGBX")) == blocks()).all()
    assert (pixels(opaque.convert("RGBA").convert("RGBa")) == blocks()).all()
    assert abs(pixels(opaque.convert("HSV")) - blocks()).max() <= 6
    palette, truth, _ = palette_picture()
    assert (pixels(palette.convert("PA")) == truth).all()


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_sixteen_bit_grey_is_scaled_not_clipped(format):
    deep = ramp(0, 65535, np.uint16)
    data = encode(deep, format)
    with Image.open(io.BytesIO(data)) as opened:
        assert opened.mode.startswith("I;16")
    assert (pixels(data) == np.round(deep / 257)[..., None]).all()


def test_sixteen_bit_grey_keeps_its_exposure():
    dark = ramp(0, 5000, np.uint16)  # not stretched: a dark picture stays dark
    assert (pixels(encode(dark, "PNG")) == np.round(dark / 257)[..., None]).all()
    big_endian = Image.frombytes("I;16B", (WIDTH, HEIGHT), dark.astype(">u2").tobytes())
    assert (pixels(big_endian) == np.round(dark / 257)[..., None]).all()


def test_sixteen_bit_png_written_by_the_specification():
    deep = np.random.default_rng(1).integers(0, 65536, (HEIGHT, WIDTH, 3)).astype(">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in deep)
    assert abs(pixels(png(WIDTH, HEIGHT, 16, 2, rows)) - deep / 257.0).max() <= 1
    grey = deep[..., 0]
    rows = b"".join(b"\0" + row.tobytes() for row in grey)
    clear = chunk(b"tRNS", int(grey[3, 4]).to_bytes(2, "big"))
    got = pixels(png(WIDTH, HEIGHT, 16, 0, rows, clear))
    truth = np.where(grey == grey[3, 4], 255, np.round(grey / 257.0))
    assert (got == truth[..., None]).all()


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        (ramp(0, 200, np.int32), 0, 255),
        (ramp(0, 65000, np.int32), 0, 65535),
        (ramp(0, 1_000_000, np.int32), 0, 1_000_000),
        (ramp(70_000, 1_000_000, np.int32), 70_000, 1_000_000),
        (ramp(-50, 200, np.int32), -50, 200),
        (ramp(0, 0.8, np.float32), 0, 1),
        (ramp(0, 254, np.float32), 0, 255),
        (ramp(0, 60_000, np.float32), 0, 65535),
        (ramp(-3, 3, np.float32), -3, 3),
        (ramp(0, 1e38, np.float32), 0, 1e38),
    ],
)
def test_values_without_a_range_follow_the_stated_rule(values, low, high):
    truth = (values.astype(float) - low) / (high - low) * 255
    for source in (Image.fromarray(values), encode(Image.fromarray(values), "TIFF")):
        assert abs(pixels(source) - truth[..., None]).max() <= 0.51


def test_odd_floats():
    values = ramp(0, 1, np.float32)
    values[0, 0], values[0, 1], values[0, 2] = np.nan, np.inf, -np.inf
    got = pixels(Image.fromarray(values))
    assert (got[0, :3] == 0).all()
    assert got[-1, -1].tolist() == [255] * 3
    assert (pixels(Image.new("F", (3, 2), 0.0)) == 0).all()
    assert (pixels(Image.new("I", (3, 2), -7)) == 0).all()
    with pytest.raises(ImageError, match="finite"):
        images.load(Image.fromarray(np.full((2, 3), np.nan, np.float32)))


# ── orientation ──────────────────────────────────────────────────────────────────────────────────

# EXIF 2.32, 4.6.4 A, tag 274: the visual side on which stored row 0 and stored column 0 lie.
SIDES = {
    1: ("top", "left"),
    2: ("top", "right"),
    3: ("bottom", "right"),
    4: ("bottom", "left"),
    5: ("left", "top"),
    6: ("right", "top"),
    7: ("right", "bottom"),
    8: ("left", "bottom"),
}


def stand_up(stored, orientation):
    """Place every pixel of the stored array by the sides of the specification."""
    row_side, column_side = SIDES[orientation]
    shown = stored if row_side in ("top", "bottom") else stored.swapaxes(0, 1)
    if "bottom" in (row_side, column_side):
        shown = shown[::-1]
    if "right" in (row_side, column_side):
        shown = shown[:, ::-1]
    return shown


def exif(orientation):
    block = Image.Exif()
    block[0x0112] = orientation
    return block


@pytest.mark.parametrize("orientation", SIDES)
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_orientation(format, orientation, tmp_path):
    stored = blocks()
    options = {
        "JPEG": {"quality": 95, "subsampling": 0},
        "WEBP": {"lossless": True},
        "TIFF": {"compression": "tiff_lzw"},
    }.get(format, {})
    data = encode(stored, format, exif=exif(orientation), **options)
    truth = stand_up(stored, orientation)
    path = tmp_path / "turned"
    path.write_bytes(data)
    with Image.open(io.BytesIO(data)) as opened:
        for source in (path, data, opened):
            got = pixels(source)
            assert got.shape == truth.shape
            assert abs(got - truth).mean() < 3
    # What was loaded once is upright: nothing turns it again.
    once = images.load(data)
    assert (np.asarray(images.load(once)) == np.asarray(once)).all()


@pytest.mark.parametrize("orientation", SIDES)
def test_the_hot_corner_lands_where_the_specification_says(orientation):
    stored = np.zeros((3, 5, 3), np.uint8)
    stored[0, 0] = 255
    shown = pixels(encode(stored, "PNG", exif=exif(orientation)))
    sides = SIDES[orientation]
    height, width = shown.shape[:2]
    corner = (height - 1 if "bottom" in sides else 0, width - 1 if "right" in sides else 0)
    assert shown.sum(2).nonzero() == ([corner[0]], [corner[1]])
    assert (height, width) == ((3, 5) if orientation < 5 else (5, 3))


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_orientations_that_do_not_exist_change_nothing(orientation):
    assert (pixels(encode(blocks(), "PNG", exif=exif(orientation))) == blocks()).all()


def test_orientation_set_on_an_open_picture_and_in_xmp():
    image = Image.fromarray(blocks())
    image.getexif()[0x0112] = 6
    assert (pixels(image) == stand_up(blocks(), 6)).all()
    note = PngImagePlugin.PngInfo()
    note.add_itxt("XML:com.adobe.xmp", '<rdf:Description tiff:Orientation="8"/>')
    assert (pixels(encode(blocks(), "PNG", pnginfo=note)) == stand_up(blocks(), 8)).all()


@pytest.mark.parametrize(
    "block", [b"Exif\0\0garbage", b"Exif\0\0MM\0*\0\0\xff\xff", b"Exif\0\0II*\0"]
)
def test_a_broken_exif_block_does_not_cost_the_picture(block):
    data = encode(blocks(), "PNG", exif=block)
    assert (pixels(data) == blocks()).all()


def test_alpha_and_orientation_together():
    colour, alpha = blocks(), ramp(0, 255, np.uint8)
    data = encode(np.dstack([colour, alpha]), "PNG", exif=exif(6))
    assert abs(pixels(data) - stand_up(over_white(colour, alpha), 6)).max() <= 1


# ── sources ──────────────────────────────────────────────────────────────────────────────────────


class Pipe(io.BytesIO):
    """A stream that cannot go back, like a socket."""

    def seekable(self):
        return False

    def seek(self, *_):
        raise io.UnsupportedOperation("seek")


def test_every_kind_of_source_gives_the_same_picture(tmp_path):
    data = encode(blocks(), "PNG")
    path = tmp_path / "ünï [1] #.png"
    path.write_bytes(data)
    wound = io.BytesIO(data)
    wound.seek(50)
    with path.open("rb") as file, Image.open(path) as lazy:
        for source in (path, str(path), data, io.BytesIO(data), wound, Pipe(data), file, lazy):
            assert (pixels(source) == blocks()).all()
        assert not file.closed
    assert not wound.closed


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_named_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(encode(blocks(), "PNG"),))
    writer.start()
    assert (pixels(pipe) == blocks()).all()
    writer.join()


@pytest.mark.parametrize("name", [*LOSSLESS, *LOSSY])
def test_streams_stay_open(name):
    format, options = (LOSSLESS | LOSSY)[name]
    stream = io.BytesIO(encode(blocks(), format, **options))
    images.load(stream)
    assert not stream.closed


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files in /proc")
@pytest.mark.parametrize("name", [*LOSSLESS, *LOSSY])
def test_no_file_is_held(name, tmp_path):
    format, options = (LOSSLESS | LOSSY)[name]
    path = tmp_path / "picture"
    path.write_bytes(encode(blocks(), format, **options))
    broken = tmp_path / "broken"
    broken.write_bytes(path.read_bytes()[:100])
    before = len(list(Path("/proc/self/fd").iterdir()))
    image = images.load(path)
    with pytest.raises(ImageError):
        images.load(broken)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    path.write_bytes(b"")  # nor is it mapped: emptying it changes nothing
    assert np.asarray(image).std() > 10
    assert type(image) is Image.Image


def test_an_open_picture_is_left_as_it_is():
    image, _, _ = palette_picture()
    image.info.update(transparency=bytes([0, 64, 128, 200, 255]), note="mine")
    image.getexif()[0x0112] = 6

    def state():
        rgba = image.im.getpalette("RGBA", "RGBA")
        return (
            image.mode,
            image.size,
            image.tobytes(),
            dict(image.info),
            rgba,
            dict(image.getexif()),
        )

    before = state()
    result = images.load(image)
    assert state() == before
    assert result is not image
    rgb = Image.fromarray(blocks())
    images.load(rgb).putpixel((0, 0), (1, 2, 3))
    assert (np.asarray(rgb) == blocks()).all()


def test_nothing_global_changes_and_threads_agree():
    before = Image.MAX_IMAGE_PIXELS, list(warnings.filters)
    data = [encode(blocks(seed), format) for seed in range(12) for format in ("PNG", "TIFF", "BMP")]
    data.append(b"nothing")

    def read(item):
        try:
            return np.asarray(images.load(item)).tobytes()
        except ImageError:
            return None

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(read, data)) == [read(item) for item in data]
    assert (Image.MAX_IMAGE_PIXELS, list(warnings.filters)) == before


# ── what breaks ──────────────────────────────────────────────────────────────────────────────────

IMPOSTORS = {
    "empty": (b"", "an empty file"),
    "text": (b"This is not a picture.\n", "text"),
    "svg": (b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>', "SVG"),
    "html": (b"<!DOCTYPE html>\n<HTML><body>404</body>", "HTML"),
    "pdf": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3", "PDF"),
    "zip": (b"PK\x03\x04\x14\0\0\0", "ZIP"),
    "heic": (b"\0\0\0\x18ftypheic\0\0\0\0", "HEIC"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
    "noise": (bytes(range(1, 200)), "unknown data (01 02 03"),
    "zeros": (bytes(5000), "unknown data"),
    "jpeg header only": (b"\xff\xd8\xff\xe0", "a JPEG file"),
    "png signature only": (b"\x89PNG\r\n\x1a\n", "a PNG file"),
    "webp header only": (b"RIFF\x24\0\0\0WEBP", "a WebP file"),
    "gif header only": (b"GIF89a", "a GIF file"),
    "bmp header only": (b"BM\x10\0\0\0\0\0\0\0", "a BMP file"),
    "tiff header only": (b"II*\0\x08\0\0\0", "a TIFF file"),
    "ppm is not accepted": (b"P6 1 1 255\n\0\0\0", "unknown data"),
}


@pytest.mark.parametrize("name", IMPOSTORS)
def test_what_is_no_picture_is_named_for_what_it_is(name, tmp_path):
    data, found = IMPOSTORS[name]
    path = tmp_path / "photo.jpg"
    path.write_bytes(data)
    with pytest.raises(ImageError) as error:
        images.load(path)
    one_line(error, str(path), "found ", found, "expected", "JPEG")
    with pytest.raises(ImageError) as error:
        images.load(data)
    one_line(error, "<bytes>: ")
    with pytest.raises(ImageError) as error:
        images.load(io.BytesIO(data))
    one_line(error, "<stream>: ")


def test_paths_that_cannot_be_read(tmp_path):
    folder = tmp_path / "folder.jpg"
    folder.mkdir()
    for path, found in (
        (tmp_path / "missing.jpg", "no such file"),
        (tmp_path / "missing" / "a.jpg", "no such file"),
        (folder, "a folder"),
        ("https://example.org/a.jpg", "web addresses are not fetched"),
        ("nul\0byte.jpg", "null byte"),
        ("x" * 3000, "File name too long"),
    ):
        with pytest.raises(ImageError) as error:
            images.load(path)
        one_line(error, str(path).replace("\0", "\\x00"), found, "expected")


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read anything"
)
def test_a_file_without_permission(tmp_path):
    path = tmp_path / "secret.png"
    path.write_bytes(encode(blocks(), "PNG"))
    path.chmod(0)
    with pytest.raises(ImageError) as error:
        images.load(path)
    one_line(error, str(path), "ermission")


def test_names_cannot_break_the_line(tmp_path):
    path = tmp_path / "two\nlines\t\x1b[31m.jpg"
    path.write_bytes(b"no")
    with pytest.raises(ImageError) as error:
        images.load(path)
    one_line(error, "two\\nlines\\t\\x1b[31m.jpg")


def test_streams_and_pictures_that_cannot_be_read(tmp_path):
    closed = io.BytesIO(encode(blocks(), "PNG"))
    closed.close()
    gone = Image.fromarray(blocks())
    gone.close()
    for source in (closed, gone, Image.new("RGB", (0, 5)), Image.Image()):
        with pytest.raises(ImageError) as error:
            images.load(source)
        one_line(error, "<PIL image>" if isinstance(source, Image.Image) else "<stream>")
    path = tmp_path / "named.gif"
    path.write_bytes(b"GIF89a")
    with path.open("rb") as file, pytest.raises(ImageError) as error:
        images.load(file)
    one_line(error, str(path))
    path = tmp_path / "cut.bmp"
    path.write_bytes(encode(blocks(), "BMP")[:-200])
    with Image.open(path) as lazy, pytest.raises(ImageError) as error:
        images.load(lazy)
    one_line(error, "<PIL image>")


@pytest.mark.parametrize(
    "raised",
    [
        SyntaxError("bad"),
        ValueError("two\nlines"),
        struct.error("unpack"),
        EOFError(),
        IndexError("x"),
        KeyError("x"),
        ZeroDivisionError(),
        MemoryError(),
        RecursionError(),
        OSError("decoder error -2"),
        OSError(5, "Input/output error"),
        UserWarning("Corrupt EXIF"),
        Image.DecompressionBombWarning("big"),
        AssertionError(),
        OverflowError("y" * 5000),
    ],
    ids=repr,
)
def test_any_exception_of_pillow_becomes_one_line(raised, monkeypatch):
    def fail(*_, **__):
        raise raised

    monkeypatch.setattr(Image, "open", fail)
    with pytest.raises(ImageError) as error:
        images.load(b"\xff\xd8\xff\xe0")
    assert len(one_line(error, "<bytes>: found ", "; expected ")) < 500
    assert error.value.__cause__ is raised


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
def test_the_user_can_still_stop_it(raised, monkeypatch):
    def stop(*_, **__):
        raise raised

    monkeypatch.setattr(Image, "open", stop)
    with pytest.raises(raised):
        images.load(b"\xff\xd8\xff\xe0")


@pytest.mark.parametrize("side", [9000, 9500, 30000, 2**31 - 1])  # ours, Pillow's alarm, its limit
def test_a_bomb_is_refused_by_its_header(side):
    with pytest.raises(ImageError) as error:
        images.load(png(side, side, 8, 2, extra=chunk(b"IDAT", zlib.compress(bytes(1000)))))
    one_line(error, "too large", str(side * side))


def test_the_limit_can_be_set():
    data = encode(blocks(), "PNG")
    assert images.load(data, max_pixels=HEIGHT * WIDTH).size == (WIDTH, HEIGHT)
    for source in (data, images.load(data)):
        with pytest.raises(ImageError) as error:
            images.load(source, max_pixels=HEIGHT * WIDTH - 1)
        one_line(error, f"{WIDTH} x {HEIGHT}", str(HEIGHT * WIDTH - 1))


@pytest.mark.parametrize("name", [*LOSSLESS, *LOSSY])
def test_a_cut_file_is_an_error_or_complete_never_half_grey(name, tmp_path, capfd):
    format, options = (LOSSLESS | LOSSY)[name]
    data = encode(blocks(), format, **options)
    whole = pixels(data)
    path = tmp_path / "cut.jpg"
    failed = 0
    for kept in np.linspace(0, len(data) - 1, 60).astype(int):
        path.write_bytes(data[:kept])
        try:
            got = pixels(path)
        except ImageError as error:
            one_line(error, str(path))
            failed += 1
        else:
            assert (got == whole).all()  # only a trailer was cut
    assert failed >= 50


def mutate(data, rng):
    """A few bytes changed, most of them near the beginning, where the structure is."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        changed[min(int(rng.expovariate(6 / len(data))), len(data) - 1)] = rng.randrange(256)
    return bytes(changed)


def mutate_png(data, rng):
    """A PNG changed inside a chunk whose checksum is then made right, so that it is believed."""
    chunks, at = [], 8
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + size]))
        at += size + 12
    victim = rng.randrange(len(chunks) - 1)
    name, body = chunks[victim]
    chunks[victim] = (name, mutate(body, rng))
    return data[:8] + b"".join(chunk(name, body) for name, body in chunks)


@pytest.mark.parametrize("alarm", ["error", "ignore"])
@pytest.mark.parametrize("name", [*LOSSLESS, *LOSSY, "png-valid-sums"])
def test_damaged_files_give_a_picture_or_one_clear_error(name, alarm, tmp_path, capfd):
    format, options = (LOSSLESS | LOSSY).get(name, ("PNG", {}))
    if format in ("JPEG", "PNG", "WEBP", "TIFF"):
        options = options | {"exif": exif(6)}
    data = encode(blocks(), format, **options)
    rng = random.Random(name)
    change = mutate_png if name == "png-valid-sums" else mutate
    path = tmp_path / "damaged.jpg"
    outcomes = set()
    with warnings.catch_warnings():
        warnings.simplefilter(alarm)
        for _ in range(150 if alarm == "error" else 60):
            path.write_bytes(change(data, rng))
            try:
                image = images.load(path)
            except ImageError as error:
                one_line(error, str(path), "found", "expected")
                outcomes.add(False)
            else:
                assert image.mode == "RGB"
                assert np.asarray(image).shape == (image.height, image.width, 3)
                outcomes.add(True)
    assert False in outcomes


# ── geometry ─────────────────────────────────────────────────────────────────────────────────────

SIZES = [
    (1, 1, 1, 1),
    (7, 5, 3, 2),
    (5, 7, 7, 5),
    (3, 2, 7, 7),
    (40, 31, 7, 7),
    (64, 48, 8, 4),
    (13, 1, 4, 9),
]


@pytest.mark.parametrize(("width", "height", "rows", "columns"), SIZES)
def test_to_grid_equals_counting_on_a_common_multiple(width, height, rows, columns):
    rng = np.random.default_rng(width)
    geometry = Geometry(width, height, (rows, columns))
    for mask in (
        rng.random((height, width)) < 0.4,
        rng.random((height, width)),
        rng.integers(0, 2, (height, width), dtype=np.uint8),
    ):
        # Each pixel cut into rows x columns parts: a cell holds height x width of them.
        fine = mask.astype(float).repeat(rows, 0).repeat(columns, 1)
        truth = fine.reshape(rows, height, columns, width).mean((1, 3))
        got = geometry.to_grid(mask)
        assert got.dtype == np.float64
        assert got.shape == (rows, columns)
        np.testing.assert_allclose(got, truth, rtol=0, atol=1e-12)
        np.testing.assert_allclose(got.mean(), mask.mean(), atol=1e-12)  # area is kept
        assert got.min() >= 0
        assert got.max() <= 1


def test_to_grid_by_hand():
    mask = np.zeros((2, 3), bool)
    mask[0, 1] = True  # the middle pixel of the upper row; the cell border at x = 1.5 halves it
    assert Geometry(3, 2, (1, 2)).to_grid(mask).tolist() == [[1 / 6, 1 / 6]]
    assert Geometry(3, 2, (2, 3)).to_grid(mask).tolist() == mask.astype(float).tolist()
    full = Geometry(641, 479, (14, 14)).to_grid(np.ones((479, 641), bool))
    assert (full == 1).all()
    assert (Geometry(641, 479, (14, 14)).to_grid(np.zeros((479, 641))) == 0).all()


def test_a_cell_box_drawn_as_a_mask_fills_that_cell_only():
    geometry = Geometry(60, 40, (4, 6))
    for row in range(4):
        for column in range(6):
            left, top, right, bottom = (int(v) for v in geometry.cell_box(row, column))
            mask = np.zeros((40, 60), bool)
            mask[top:bottom, left:right] = True
            grid = geometry.to_grid(mask)
            assert grid[row, column] == pytest.approx(1)
            assert grid.sum() == pytest.approx(1)


def test_cell_at_is_the_inverse_of_cell_box():
    rng = np.random.default_rng(0)
    for width in range(1, 60):
        for columns in range(1, 17):
            geometry = Geometry(width, 100, (1, columns))
            for column in range(columns):
                left, top, right, bottom = geometry.cell_box(0, column)
                assert (top, bottom) == (0, 100)
                assert right - left == pytest.approx(width / columns)
                inside = float(left + (right - left) * rng.random() * 0.999)
                assert geometry.cell_at(left, 0) == (0, column)
                assert geometry.cell_at(inside, 50) == (0, column)
                assert geometry.cell_at(np.nextafter(right, 0).item(), 99.5) == (0, column)


def test_boxes_tile_the_picture():
    geometry = Geometry(333, 250, (7, 9))
    assert geometry.cell_box(0, 0)[:2] == (0, 0)
    assert geometry.cell_box(6, 8)[2:] == (333, 250)
    for row in range(6):
        for column in range(8):
            _, _, right, bottom = geometry.cell_box(row, column)
            assert geometry.cell_box(row + 1, column + 1)[:2] == (right, bottom)
    assert geometry.cell_at(333, 250) == (6, 8)


def test_outside_is_an_error():
    geometry = Geometry(10, 20, (2, 3))
    for row, column in ((2, 0), (0, 3), (-1, 0), (0, -1)):
        with pytest.raises(IndexError, match="2 x 3"):
            geometry.cell_box(row, column)
    for x, y in ((-0.1, 0), (0, -1), (10.1, 0), (0, 20.5), (float("nan"), 0)):
        with pytest.raises(IndexError, match="10 x 20"):
            geometry.cell_at(x, y)
    for shape in ((10, 20), (20, 11), (2, 3)):
        with pytest.raises(ValueError, match=r"\(20, 10\)"):
            geometry.to_grid(np.zeros(shape))
    for width, height, grid in ((0, 1, (1, 1)), (1, -1, (1, 1)), (1, 1, (0, 1)), (1, 1, (1, 0))):
        with pytest.raises(ValueError, match="positive"):
            Geometry(width, height, grid)


# ── tensors ──────────────────────────────────────────────────────────────────────────────────────


def photo(height=120, width=200):
    """Smooth shapes with the statistics of a photo: something in every range of values."""
    y, x = np.mgrid[0:height, 0:width] / 20.0
    waves = [np.sin(x + 2 * c) * np.cos(y - c) * 90 + 128 for c in range(3)]
    return np.dstack(waves).round().astype(np.uint8)


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("size", [(64, 64), (224, 224), (33, 77)])
def test_to_tensor_equals_another_implementation(size, interpolation):
    tensor = images.to_tensor(Image.fromarray(photo()), size, interpolation)
    assert tensor.dtype == torch.uint8
    assert tensor.shape == (3, *size)
    reference = torch.nn.functional.interpolate(
        torch.from_numpy(photo()).permute(2, 0, 1)[None].float(),
        size=size, mode=interpolation, antialias=True, align_corners=False,
    )[0].clamp(0, 255)  # fmt: skip
    assert (tensor.float() - reference).abs().max() <= 1.5


def test_a_decoded_photo_is_not_black(tmp_path):
    path = tmp_path / "photo.jpg"
    path.write_bytes(encode(photo(), "JPEG", quality=95))
    tensor = images.to_tensor(images.load(path), (96, 96)).float()
    for channel in range(3):
        assert abs(tensor[channel].mean() - photo()[..., channel].mean()) < 2
        assert abs(tensor[channel].std() - photo()[..., channel].std()) < 3


def test_the_whole_picture_is_kept_and_upright():
    stored = np.zeros((60, 100, 3), np.uint8)
    stored[:6, :10] = (255, 0, 0)  # with orientation 6 the upper right corner
    tensor = images.to_tensor(images.load(encode(stored, "PNG", exif=exif(6))), (10, 10))
    red = torch.zeros(3, 10, 10)
    red[0, 0, 9] = 255
    assert (tensor.float() - red).abs().max() < 64
    assert tensor[0, 0, 9] > 192


def test_the_right_size_is_not_resampled_and_memory_is_owned():
    array = np.random.default_rng(0).integers(0, 256, (17, 23, 3), dtype=np.uint8)
    image = Image.fromarray(array)
    tensor = images.to_tensor(image, (17, 23))
    assert (tensor.permute(1, 2, 0).numpy() == array).all()
    assert tensor.is_contiguous()
    tensor.zero_()  # would warn or crash on memory that is not its own
    assert (np.asarray(image) == array).all()


def test_to_tensor_refuses_what_load_did_not_make():
    with pytest.raises(ValueError, match=r"images\.load"):
        images.to_tensor(Image.new("L", (4, 4)), (2, 2))
    with pytest.raises(ValueError, match="0"):
        images.to_tensor(Image.new("RGB", (4, 4)), (0, 2))
