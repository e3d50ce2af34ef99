"""A library of photos with the metadata of other programs: EXIF, IPTC, XMP and colour profiles."""

import hashlib
import itertools
import json
import shutil
import struct
import subprocess
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms, PngImagePlugin

REAL = Path("../shared/data")
PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
SUFFIXES = {7: ".png", 14: ".webp", 21: ".tif"}  # of 24 photos in a row; the others are JPEG
XMP = b"://ns.adobe.com/xap/1.0/\0"  # the end of the segment's name
OWN = ("XMP-dc:Description", "XMP-iptcCore:AltTextAccessibility")  # what a caption may change
RDF = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="another program">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about="" xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmp:Rating="{rating}"
   xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:lr="http://ns.adobe.com/lightroom/1.0/"
   xmlns:xmpMM="http://ns.adobe.com/xap/1.0/mm/" xmpMM:DocumentID="xmp.did:{number}">
   <dc:creator><rdf:Seq><rdf:li>Ü &amp; {number}</rdf:li></rdf:Seq></dc:creator>
   <lr:hierarchicalSubject><rdf:Bag><rdf:li>places|{number}</rdf:li></rdf:Bag></lr:hierarchicalSubject>
   <xmpMM:History><rdf:Seq><rdf:li rdf:parseType="Resource"/></rdf:Seq></xmpMM:History>{more}
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
{padding}<?xpacket end="w"?>"""
DESCRIPTION = (
    '<dc:description><rdf:Alt><rdf:li xml:lang="x-default">{}</rdf:li></rdf:Alt></dc:description>'
)


def sources(count: int) -> list[bytes]:
    """JPEG files: real photos if they are at hand, otherwise noise."""
    found = sorted(itertools.chain(REAL.glob("flickr8k/*/*.jpg"), REAL.glob("coco/*/*.jpg")))
    if found:
        return [file.read_bytes() for file in found[:: max(1, len(found) // count)]]
    print("REAL PHOTOS MISSING: noise takes their place")
    noise = np.random.default_rng(0).integers(0, 256, (16, 40, 56, 3), dtype=np.uint8)
    streams = [BytesIO() for _ in noise]
    for pixels, stream in zip(noise, streams, strict=True):
        Image.fromarray(pixels).save(stream, "JPEG")
    return [stream.getvalue() for stream in streams]


def write(folder: Path, count: int, sidecars: bool = False) -> tuple[list[Path], list[Path]]:
    """Write a library; return its photos, sorted, and those that have a caption of a person.

    With ``sidecars``, the XMP of every fifth photo is in a file beside it.
    """
    given, photos, described = sources(count), list[Path](), list[Path]()
    for number in range(count):
        photo = folder / f"{number % 10}" / f"{number:05}{SUFFIXES.get(number % 24, '.jpg')}"
        photo.parent.mkdir(parents=True, exist_ok=True)
        photos.append(photo)
        jpeg = given[number % len(given)]
        # A file must not have two packets; some real photos have one.
        packet = _packet(number) if number % 5 == 0 and XMP not in jpeg else None
        if packet and number % 25 == 0:
            described.append(photo)
        if sidecars and packet:
            name = f"{photo.stem}.xmp" if number % 2 else f"{photo.name}.xmp"
            photo.with_name(name).write_bytes(packet)
            packet = None
        _write(photo, jpeg, number, packet)
    return sorted(photos), described


def _packet(number: int) -> bytes:
    more = DESCRIPTION.format("a person's words") if number % 25 == 0 else ""
    padding = " " * 2000 if number % 3 == 0 else ""
    filled = RDF.format(rating=number % 5, number=number, more=more, padding=padding)
    return filled.encode()


def _write(photo: Path, jpeg: bytes, number: int, packet: bytes | None) -> None:
    exif = Image.Exif()
    exif.update({0x010E: "OLYMPUS", 0x010F: f"Maker {number}", 0x0112: number % 8 + 1})
    exif.get_ifd(0x8769).update({0x927C: b"note \0\1" + bytes([number % 256]), 0x829D: 2.8})
    exif.get_ifd(0x8825).update({1: "N", 2: (number % 90, 10.0, 0.5)})
    profile = PROFILE if number % 3 else None
    if photo.suffix == ".jpg":
        segments = [(0xE1, exif.tobytes())] if number % 7 else []
        if packet:
            segments.append((0xE1, b"http" + XMP + packet))
        if number % 2:
            segments.append((0xED, _iptc(number)))
        if profile:
            segments.append((0xE2, b"ICC_PROFILE\0\1\1" + profile))
        segments.append((0xFE, b"a comment"))
        added = (bytes([0xFF, kind]) + struct.pack(">H", len(s) + 2) + s for kind, s in segments)
        photo.write_bytes(b"".join([jpeg[:2], *added, jpeg[2:]]))
        return
    options = {"exif": exif} | ({"icc_profile": profile} if profile else {})
    if photo.suffix == ".png":
        options["pnginfo"] = PngImagePlugin.PngInfo()
        options["pnginfo"].add_text("Author", f"Me {number}")
        if packet:
            options["pnginfo"].add_itxt("XML:com.adobe.xmp", packet.decode(), zip=number % 2 == 0)
    elif photo.suffix == ".webp":
        options |= {"lossless": number % 2 == 0} | ({"xmp": packet} if packet else {})
        options = {} if number % 7 == 0 and not packet else options  # the simple form of WebP
    else:
        options["compression"] = "tiff_lzw" if number % 2 else "raw"
        if packet:
            exif[700] = packet
    Image.open(BytesIO(jpeg)).save(photo, **options)


def _iptc(number: int) -> bytes:
    """IPTC in Photoshop's image resources."""
    fields = {25: "keyword", 80: f"Author {number}", 105: "a headline in IPTC"}
    data = b"".join(
        b"\x1c\x02" + struct.pack(">BH", key, len(text)) + text.encode()
        for key, text in fields.items()
    )
    resource = b"8BIM\x04\x04\0\0" + struct.pack(">I", len(data)) + data + b"\0" * (len(data) % 2)
    return b"Photoshop 3.0\0" + resource


def tags(folder: Path) -> dict[str, dict[str, object]]:
    """Every tag that ExifTool finds in the photos and XMP files of a folder, by file."""
    program = shutil.which("exiftool")
    if program is None:
        pytest.skip("EXIFTOOL MISSING: apt install libimage-exiftool-perl")
    call = [program, "-j", "-G1", "-a", "-u", "-r", "-ext+", "xmp", "-charset", "utf8", str(folder)]
    found = json.loads(subprocess.run(call, capture_output=True, check=True).stdout)
    # What describes the file and its layout, such as "Extended WEBP"; XMPToolkit names the last writer.
    system = ("SourceFile", "ExifTool", "System", "XMP-x:XMPToolkit", "Composite")
    system += ("RIFF:WebP_Flags", "File:FileType")
    return {
        entry["SourceFile"]: {k: v for k, v in entry.items() if not k.startswith(system)}
        for entry in found
    }


def pixels(photo: Path) -> bytes:
    """The pixels of a photo as they are stored."""
    return Image.open(photo).tobytes()


def digests(photos: list[Path], read: Callable[[Path], bytes] = pixels) -> dict[Path, bytes]:
    """A digest of the pixels of every photo, or of what else is read from its file."""
    return {photo: hashlib.sha256(read(photo)).digest() for photo in photos}
