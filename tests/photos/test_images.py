"""Images of every format, mode and orientation; damaged files; the geometry."""

import io
import os
import re
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from captioner.data.pixels import to_tensor
from captioner.errors import ImageError, notice
from captioner.overlay import Style, export
from captioner.photos import images
from captioner.photos.geometry import Geometry
from known_maps import make_caption, one_hot

HEIGHT, WIDTH = 24, 32


def blocks(seed=0, height=HEIGHT, width=WIDTH, block=8):
    """Flat coloured squares: not symmetric, and hardly changed by lossy codecs."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (height // block, width // block, 3), dtype=np.uint8)
    return small.repeat(block, 0).repeat(block, 1)


def encode(array_or_image, format, **options):
    image = array_or_image
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image)
    stream = io.BytesIO()
    if format == "HEIC":
        heif = pytest.importorskip("pillow_heif", reason="HEIC MISSING: pip install pillow-heif")
        heif.from_pillow(image).save(stream, quality=95, exif=options["exif"].tobytes())
    else:
        image.save(stream, format, **options)
    return stream.getvalue()


def pixels(source, **options):
    image = images.load(source, **options)
    assert image.mode == "RGB"
    return np.asarray(image).astype(int)


def chunk(name, data):
    """A chunk of a PNG file."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width, height, packed, depth=1, colour=0, extra=b""):
    """A PNG file by the specification, without Pillow; ``packed`` are its compressed rows."""
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    body = chunk(b"IHDR", head) + extra + chunk(b"IDAT", packed) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def refused(source, *parts, **options):
    """The error of a source: one line with these parts."""
    with pytest.raises(ImageError) as error:
        images.load(source, **options)
    text = str(error.value)
    assert text.isprintable()
    for part in parts:
        assert part in text
    return text


EXACT = {"quality": 95, "subsampling": 0}
VARIANTS = {
    "png": ("PNG", {}),
    "webp": ("WEBP", {"lossless": True}),
    "webp-lossy": ("WEBP", {"quality": 95}),
    "bmp": ("BMP", {}),
    "tiff-lzw": ("TIFF", {"compression": "tiff_lzw"}),
    "gif": ("GIF", {}),
    "jpeg": ("JPEG", EXACT),
    "jpeg-progressive": ("JPEG", {**EXACT, "progressive": True}),
    "avif": ("AVIF", {"quality": 95}),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_formats(name, tmp_path):
    format, options = VARIANTS[name]
    path = tmp_path / "image"  # the content counts, not the suffix
    path.write_bytes(encode(blocks(), format, **options))
    assert abs(pixels(path) - blocks()).mean() < (10 if "quality" in options else 1e-9)


def test_without_its_library_the_error_of_a_heic_photo_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif.as_plugin", None)
    refused(b"\0\0\0\x18ftypheic\0\0\0\0", "is a HEIC photo", "pip install 'captioner[heif]'")


def test_the_first_frame_of_a_file_and_the_current_one_of_an_open_image():
    frames = [Image.fromarray(blocks(seed)) for seed in range(3)]
    variants = {"GIF": {}, "WEBP": {"lossless": True}, "PNG": {}, "TIFF": {}, "MPO": EXACT}
    for format, options in variants.items():
        data = encode(frames[0], format, save_all=True, append_images=frames[1:], **options)
        with Image.open(io.BytesIO(data)) as opened:
            assert (opened.format, opened.n_frames) == (format, 3)
            assert abs(pixels(data) - blocks(0)).mean() < (6 if format == "MPO" else 0.01)
            if format == "GIF":
                opened.seek(2)
                assert (pixels(opened) == blocks(2)).all()
                assert opened.tell() == 2


def over_white(colour, alpha):
    share = alpha[..., None].astype(float) / 255
    return colour * share + 255 * (1 - share)


def ramp(low, high, dtype):
    return np.linspace(low, high, HEIGHT * WIDTH).reshape(HEIGHT, WIDTH).astype(dtype)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "BMP", "TIFF", "GIF"])
def test_grey_and_one_bit(format):
    if format != "JPEG":
        bits = blocks()[..., 0] > 127
        assert (pixels(encode(Image.fromarray(bits), format)) == bits[..., None] * 255).all()
    grey = blocks()[..., 0]
    loaded = pixels(encode(grey, format))
    assert abs(loaded - grey[..., None]).max() <= (8 if format == "JPEG" else 0)
    assert (loaded.min(2) == loaded.max(2)).all()


@pytest.mark.parametrize("format", ["PNG", "WEBP", "TIFF"])
def test_transparency_is_laid_over_white(format):
    colour, alpha = blocks(), ramp(0, 255, np.uint8)
    options = {"lossless": True, "exact": True} if format == "WEBP" else {}
    data = encode(np.dstack([colour, alpha]), format, **options)
    assert abs(pixels(data) - over_white(colour, alpha)).max() <= 1


def palette_image():
    indices = (np.arange(HEIGHT * WIDTH) % 5).reshape(HEIGHT, WIDTH).astype(np.uint8)
    colours = np.array([[9, 8, 7], [255, 0, 0], [0, 255, 0], [0, 0, 255], [50, 60, 70]], np.uint8)
    image = Image.fromarray(indices).convert("L")
    image.putpalette(colours.tobytes())
    assert image.mode == "P"
    return image, colours[indices], indices


@pytest.mark.parametrize("format", ["PNG", "GIF", "BMP", "TIFF"])
def test_palette(format):
    """Without transparency, with one transparent entry, with a transparency of each entry."""
    image, truth, indices = palette_image()
    assert (pixels(encode(image, format)) == truth).all()
    if format in ("PNG", "GIF"):
        clear = np.where((indices == 3)[..., None], 255, truth)
        assert (pixels(encode(image, format, transparency=3)) == clear).all()
    if format == "PNG":
        alphas = np.array([0, 64, 128, 200, 255], np.uint8)
        data = encode(image, "PNG", transparency=alphas.tobytes())
        assert abs(pixels(data) - over_white(truth, alphas[indices])).max() <= 1


def test_cmyk_jpeg_is_not_inverted():
    pure = 255 * np.eye(5, 4, -1, dtype=int)  # no ink, then each alone
    inks = np.vstack([pure, [9, 99, 0, 40]])
    cmyk = inks.astype(np.uint8).repeat(16, 0)[None].repeat(16, 0)
    truth = ((255 - inks[:, :3]) * (255 - inks[:, 3:]) / 255).repeat(16, 0)[None]
    for format in ("JPEG", "TIFF"):
        data = encode(Image.frombytes("CMYK", cmyk.shape[1::-1], cmyk.tobytes()), format)
        with Image.open(io.BytesIO(data)) as opened:
            assert opened.mode == "CMYK"
        assert abs(pixels(data) - truth).max() <= 8


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_sixteen_bit_grey_is_scaled_not_clipped(format):
    for top in (65535, 5000):  # a dark photo stays dark
        deep = ramp(0, top, np.uint16)
        data = encode(deep, format)
        with Image.open(io.BytesIO(data)) as opened:
            assert opened.mode.startswith("I;16")
        big_endian = Image.frombytes("I;16B", (WIDTH, HEIGHT), deep.astype(">u2").tobytes())
        for source in (data, big_endian):
            assert (pixels(source) == np.round(deep / 257)[..., None]).all()


def test_sixteen_bit_png_written_by_the_specification():
    deep = np.random.default_rng(1).integers(0, 65536, (HEIGHT, WIDTH, 3)).astype(">u2")
    rows = zlib.compress(b"".join(b"\0" + row.tobytes() for row in deep))
    assert abs(pixels(png(WIDTH, HEIGHT, rows, 16, 2)) - deep / 257.0).max() <= 1


@pytest.mark.parametrize(
    "values",
    [ramp(70_000, 1_000_000, np.int32), ramp(-50, 200, np.int32), ramp(0, 0.8, np.float32)],
)
def test_values_without_a_fixed_range_are_scaled_to_black_and_white(values):
    truth = (values.astype(float) - values.min()) / np.ptp(values.astype(float)) * 255
    for source in (Image.fromarray(values), encode(Image.fromarray(values), "TIFF")):
        assert abs(pixels(source) - truth[..., None]).max() <= 0.51


def test_not_finite_and_constant_values():
    values = ramp(0, 1, np.float32)
    values[0, 0], values[0, 1], values[0, 2] = np.nan, np.inf, -np.inf
    loaded = pixels(Image.fromarray(values))
    assert (loaded[0, :3] == 0).all()
    assert loaded[-1, -1].tolist() == [255] * 3
    assert (pixels(Image.new("I", (3, 2), -7)) == 0).all()


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
    """Turn a stored array as the specification says."""
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


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF", "HEIC"])
def test_orientation(format, tmp_path):
    options = {"JPEG": EXACT, "WEBP": {"lossless": True}, "TIFF": {"compression": "tiff_lzw"}}
    path = tmp_path / "turned"
    for orientation in SIDES:
        data = encode(blocks(), format, exif=exif(orientation), **options.get(format, {}))
        truth = stand_up(blocks(), orientation)
        path.write_bytes(data)
        sources = [path, data]
        if format != "HEIC":  # which Pillow cannot open
            sources.append(Image.open(io.BytesIO(data)))
        for source in sources:
            loaded = pixels(source)
            assert loaded.shape == truth.shape
            assert abs(loaded - truth).mean() < (10 if format in ("AVIF", "HEIC") else 3)
        # A loaded image is upright: nothing turns it again.
        once = images.load(data)
        assert (np.asarray(images.load(once)) == np.asarray(once)).all()


def test_damaged_metadata_and_unknown_orientations():
    """Pillow cannot rewrite the last block, but it has an orientation, which is applied."""
    broken = (b"Exif\0\0garbage", b"Exif\0\0MM\0*\0\0\xff\xff", b"Exif\0\0II*\0")
    for block in (*broken, *map(exif, (0, 9, 65535))):
        assert (pixels(encode(blocks(), "PNG", exif=block)) == blocks()).all()
    entry = struct.pack("<HHII", 0x0112, 3, 1, 6) + struct.pack("<HHII", 0x8769, 4, 1, 2**31)
    block = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", 2) + entry + b"\0\0\0\0"
    assert (pixels(encode(blocks(), "PNG", exif=block)) == stand_up(blocks(), 6)).all()


class Pipe(io.BytesIO):
    """A stream that cannot seek, like a socket."""

    def seekable(self):
        return False

    def seek(self, *_):
        raise io.UnsupportedOperation("seek")


def test_every_kind_of_source_gives_the_same_image(tmp_path):
    data = encode(blocks(), "PNG")
    path = tmp_path / "ünï [1] #.png"
    path.write_bytes(data)
    advanced = io.BytesIO(data)
    advanced.seek(50)
    with path.open("rb") as file, Image.open(path) as lazy:
        for source in (path, str(path), data, io.BytesIO(data), advanced, Pipe(data), file, lazy):
            assert (pixels(source) == blocks()).all()
        assert not file.closed
    assert not advanced.closed
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    assert (pixels(f"/dev/fd/{reading}") == blocks()).all()  # as in `caption <(command)`
    os.close(reading)


def test_what_is_no_regular_file_is_refused_at_once(tmp_path):
    """Opening a pipe or reading a device would block for ever."""
    os.mkfifo(tmp_path / "pipe.jpg")
    for name, target in {"zero": "/dev/zero", "loop": "loop.jpg", "to-pipe": "pipe.jpg"}.items():
        (tmp_path / f"{name}.jpg").symlink_to(target)
    for name in ("pipe", "to-pipe", "zero"):
        refused(tmp_path / f"{name}.jpg", f"{name}.jpg is a pipe or a device, not an image")
    refused(tmp_path / "loop.jpg", "loop.jpg cannot be read (Too many levels of symbolic links)")


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_arrays_and_tensors(kind):
    array = np.ascontiguousarray(blocks()[:, ::-1])
    assert (pixels(kind(array)) == array).all()
    assert (pixels(kind(array.astype(np.float32) / 255)) == array).all()
    assert (pixels(kind(array)[::2]) == array[::2]).all()  # also a view
    alpha = np.dstack([array, ramp(0, 255, np.uint8)])
    assert abs(pixels(kind(alpha)) - over_white(array, alpha[..., 3])).max() <= 1
    for grey in (array[..., 0], array[..., 0].astype(np.float32) / 255):
        assert (pixels(kind(grey.copy())) == array[..., :1]).all()
    normalised = array.transpose(2, 0, 1).astype(np.float32) / 128 - 1
    for wrong, found in (
        (normalised, f"has shape (3, {HEIGHT}, {WIDTH}), type float32; expected"),
        (array[None], f"has shape (1, {HEIGHT}, {WIDTH}, 3)"),
        (array.astype(np.float32), "type float32"),
        (array.astype(np.int64), "type int64"),
        (array[:0], "has shape (0, 32, 3)"),
    ):
        expected = "expected (height, width), (height, width, 3) or", "several images as a list"
        refused(kind(wrong.copy()), found, *expected)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files in /proc")
def test_no_file_is_held(tmp_path):
    path, broken = tmp_path / "image", tmp_path / "broken"
    for format, options in VARIANTS.values():
        path.write_bytes(encode(blocks(), format, **options))
        broken.write_bytes(path.read_bytes()[:100])
        before = len(list(Path("/proc/self/fd").iterdir()))
        image = images.load(path)
        refused(broken)
        assert len(list(Path("/proc/self/fd").iterdir())) == before
        path.write_bytes(b"")  # nor is it mapped: emptying it changes nothing
        assert np.asarray(image).std() > 10


def test_an_open_image_is_not_changed():
    image, _, _ = palette_image()
    image.info.update(transparency=bytes([0, 64, 128, 200, 255]), note="mine")
    image.getexif()[0x0112] = 6

    def state():
        palette = image.im.getpalette("RGBA", "RGBA")
        return image.mode, image.tobytes(), dict(image.info), palette, dict(image.getexif())

    before = state()
    images.load(image)
    assert state() == before
    rgb = Image.fromarray(blocks())
    images.load(rgb).putpixel((0, 0), (1, 2, 3))
    assert (np.asarray(rgb) == blocks()).all()


def test_a_file_that_is_no_photo_gets_one_sentence(tmp_path):
    path = tmp_path / "photo.jpg"
    pdf, svg = b"%PDF-1.7\n%\xe2\xe3", b'<svg xmlns="http://www.w3.org/2000/svg"/>'
    for data in (b"", b"This is not an image.\n", pdf, svg, bytes(range(1, 200))):
        path.write_bytes(data)
        for source, name in ((path, str(path)), (data, "<bytes>"), (io.BytesIO(data), "<BytesIO>")):
            refused(
                source, f"{name} is not an image; give a JPEG, PNG, WEBP, GIF, BMP, TIFF, AVIF or"
            )


def test_sources_that_cannot_be_read(tmp_path):
    folder = tmp_path / "folder.jpg"
    folder.mkdir()
    closed = io.BytesIO(encode(blocks(), "PNG"))
    closed.close()
    lines = tmp_path / "two\nlines\t\x1b[31m.jpg"
    lines.write_bytes(b"no")
    cut = tmp_path / "cut.bmp"
    cut.write_bytes(encode(blocks(), "BMP")[:-200])
    kinds = "is no image; give a path, bytes, an open binary file, a Pillow image, or an array"
    with Image.open(cut) as lazy, cut.open("rb") as named:
        for source, name, problem in (
            (tmp_path / "missing.jpg", str(tmp_path), "does not exist"),
            (folder, str(folder), "cannot be read (Is a directory)"),
            ("https://example.org/a.jpg", "https:", "web addresses are not fetched"),
            ("nul\0byte.jpg", "nul\\x00byte", "null byte"),
            ("x" * 3000 + "y", "xxx…xxx", "File name too long"),
            (lines, "two\\nlines\\t\\x1b[31m.jpg", "is not an image"),
            (closed, "<BytesIO>", ""),
            (Image.new("RGB", (0, 5)), "<Image>", "has no pixels"),
            (lazy, "<BmpImageFile>", ""),
            (named, str(cut), "cannot be decoded"),
            (None, "<NoneType>", kinds),
        ):
            assert len(refused(source, name, problem)) < 900


def test_an_image_of_too_many_pixels_is_refused_by_its_header():
    for side in (9000, 9500, 30000, 2**31 - 1):  # beyond our limit, Pillow's warning, its limit
        data = png(side, side, zlib.compress(bytes(1000)))
        assert re.search(r"is too large.* pixels.*; scale it down", refused(data))
    limit = HEIGHT * WIDTH - 1
    for source in (encode(blocks(), "PNG"), Image.fromarray(blocks())):
        assert images.load(source, max_pixels=limit + 1).size == (WIDTH, HEIGHT)
        refused(source, f"{WIDTH} × {HEIGHT}", str(limit), max_pixels=limit)


@pytest.mark.parametrize("name", [name for name in VARIANTS if "jpeg" not in name])
def test_a_truncated_file_is_an_error_unless_only_its_trailer_is_missing(name, tmp_path, capfd):
    format, options = VARIANTS[name]
    data = encode(blocks(), format, **options)
    path = tmp_path / "cut.jpg"
    errors = []
    for length in np.linspace(0, len(data) - 1, 60).astype(int):
        path.write_bytes(data[:length])
        try:
            assert (pixels(path) == pixels(data)).all()
        except ImageError as error:
            errors.append(str(error))
    assert len(errors) >= 50
    assert all(str(path) in error for error in errors)


def with_fill_bytes(data):
    """Put fill bytes before each marker up to the first scan, as the standard allows (B.1.1.2)."""
    padded, at = data[:2], 2
    while data[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        padded, at = padded + b"\xff\xff" + data[at:end], end
    return padded + b"\xff" + data[at:-2] + b"\xff\xff\xff\xd9"


@pytest.mark.parametrize("name", ["jpeg", "jpeg-progressive"])
def test_a_jpeg_that_viewers_open_is_decoded(name, caplog):
    """Also without its end; only where pixels are missing, too, a line says so."""
    notice.cache_clear()
    data = encode(blocks(height=240, width=320), "JPEG", **VARIANTS[name][1])
    whole = pixels(data)
    for odd in (data[:-2], data[:-1], data[:-2] + b"junk", data + b"junk", with_fill_bytes(data)):
        assert (pixels(odd) == whole).all()
    assert caplog.messages == []
    for share in (0.9, 0.6):
        assert pixels(data[: int(share * len(data))]).shape == whole.shape
    assert caplog.messages == [
        "captioner: <bytes> is cut off, and its missing part is grey or blurred; copy the photo again"
    ]
    if name == "jpeg":
        assert (pixels(data[: int(0.6 * len(data))])[:96] == whole[:96]).all()
    refused(data[:100], "cannot be decoded")


def test_a_photo_is_decoded_once(tmp_path, monkeypatch):
    """On its way to files of all formats."""
    file = tmp_path / "photo.png"
    file.write_bytes(encode(blocks(), "PNG"))
    opened, original = [], Image.open
    monkeypatch.setattr(Image, "open", lambda *a, **k: (opened.append(a), original(*a, **k))[1])
    photo = images.Photo.read(file)
    assert images.load(photo) is photo.image
    caption = make_caption(one_hot([(0, 0)]), photo.image.size, image=str(file))
    before = photo.image.tobytes()
    for suffix in (".png", ".gif", ".html", ".json", ".pdf"):
        export.render(suffix, caption, photo, Style())
    assert len(opened) == 1
    assert photo.image.tobytes() == before


@pytest.mark.parametrize(
    ("width", "height", "rows", "columns"),
    [(1, 1, 1, 1), (7, 5, 3, 2), (3, 2, 7, 7), (40, 31, 7, 7), (64, 48, 8, 4), (13, 1, 4, 9)],
)
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
        np.testing.assert_allclose(geometry.to_grid(mask), truth, rtol=0, atol=1e-12)
    assert (geometry.to_grid(np.ones((height, width), bool)) == 1).all()  # exactly


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("size", [(224, 224), (33, 77)])
def test_to_tensor_equals_another_implementation(size, interpolation):
    y, x = np.mgrid[0:120, 0:200] / 20.0
    waves = [np.sin(x + 2 * c) * np.cos(y - c) * 90 + 128 for c in range(3)]
    smooth = np.dstack(waves).round().astype(np.uint8)
    tensor = to_tensor(Image.fromarray(smooth), size, interpolation)
    assert tensor.dtype == torch.uint8
    assert tensor.shape == (3, *size)
    reference = torch.nn.functional.interpolate(
        torch.from_numpy(smooth).permute(2, 0, 1)[None].float(),
        size=size, mode=interpolation, antialias=True, align_corners=False,
    )[0].clamp(0, 255)  # fmt: skip
    assert (tensor.float() - reference).abs().max() <= 1.5
