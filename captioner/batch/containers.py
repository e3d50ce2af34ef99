"""Read or replace the XMP packet in a JPEG, PNG, WebP or TIFF file, without changing any other byte.

Part 3 of the XMP specification (Adobe 2020) says where the packet is. Libraries change other bytes, too:
Exiv2 0.28 changes the byte order of EXIF and drops packets whose RDF has an unusual prefix.
"""

import re
import struct
import zlib
from collections.abc import Callable

from captioner.errors import DataError

_JPEG_NAME, _PNG_NAME = b"http://ns.adobe.com/xap/1.0/\0", b"XML:com.adobe.xmp\0"
# Some programs overwrite the first four bytes of the segment's name; ExifTool still reads such a packet.
_JPEG_NAMES = (_JPEG_NAME, b"XMP\0" + _JPEG_NAME[4:])
_EXTENSION = b"http://ns.adobe.com/xmp/extension/\0"  # of a packet that is too large for a segment
_RAW = (b"Raw profile type xmp\0", b"Raw profile type APP1\0")  # ImageMagick's form in PNG
_XMP_FLAG, _ALPHA_FLAG = 0x04, 0x10  # of the chunk VP8X
_TIFF_TAG, _TIFF_BYTES = 700, 1  # the tag of XMP, and its type


def read_packets(content: bytes) -> list[bytes]:
    """Return the XMP packets of a file: none or one, and of an invalid file several.

    Raises:
        DataError: a damaged JPEG, PNG, WebP or TIFF file.
    """
    found = _converted(content, None)
    if found is None:  # in other formats, such as HEIC and GIF, XMP is stored as it is
        return re.findall(rb"<x:xmpmeta.*?</x:xmpmeta>", content, re.DOTALL)
    return found[0]


def replace_packet(content: bytes, packet: bytes) -> bytes:
    """Return the file with another XMP packet.

    Raises:
        DataError: another format, a damaged file, or a packet that is too large for the format.
    """
    found = _converted(content, packet)
    if found is None:
        raise DataError("captions are embedded in JPEG, PNG, WebP and TIFF only; use --write xmp")
    packets, edited = found
    if len(packets) > 1:
        raise DataError("it has two XMP packets, which is not valid; use --write xmp")
    return edited


_Found = tuple[list[bytes], bytes]


def _converted(content: bytes, packet: bytes | None) -> _Found | None:
    """Return the packets in a file, and the file with another one; None for other formats."""
    for mark, convert in _FORMATS.items():
        if content.startswith(mark) and (mark != b"RIFF" or content[8:12] == b"WEBP"):
            try:
                return convert(content, packet)
            except (struct.error, IndexError, ValueError, zlib.error) as error:
                raise DataError(f"it is damaged ({error}); export it again") from error
    return None


def _jpeg(content: bytes, packet: bytes | None) -> _Found:
    old, before, after, at = list[bytes](), [content[:2]], list[bytes](), 2
    extension: dict[bytes, bytes] = {}
    while True:
        start = at
        # Skip fill bytes, and bytes that do not belong here.
        while content[at] != 0xFF or content[at + 1] == 0xFF:
            at += 1
        if content[at + 1] == 0xDA:  # start of scan
            at = start
            break
        end = at + 2 + struct.unpack_from(">H", content, at + 2)[0]
        kind, data, whole = content[at + 1], content[at + 4 : end], content[start:end]
        at = end
        if kind == 0xE1 and data.startswith(_JPEG_NAMES):
            old.append(data[len(_JPEG_NAME) :])
            if packet is not None and any(b"MPF\0" in other[4:12] for other in after):
                # Offsets to the further images in the file are counted from this segment.
                raise DataError(
                    "it holds further images, whose offsets depend on its XMP; use --write xmp"
                )
        elif not after and kind in (0xE0, 0xE1) and not data.startswith(_EXTENSION):
            before.append(whole)  # JFIF and EXIF stay in front
        else:
            after.append(whole)
            if data.startswith(_EXTENSION):  # its name, a digest, the full size, and an offset
                offset = len(_EXTENSION) + 36
                extension[data[offset : offset + 4]] = data[offset + 4 :]
    if packet is None:
        parts = b"".join(part for _, part in sorted(extension.items()))
        return ([*old, parts] if parts else old), content
    size = 2 + len(_JPEG_NAME) + len(packet)
    if size > 0xFFFF:
        raise DataError("its XMP is too large for a JPEG file; use --write xmp")
    new = b"\xff\xe1" + struct.pack(">H", size) + _JPEG_NAME + packet
    return old, b"".join([*before, new, *after, content[at:]])


def _png(content: bytes, packet: bytes | None) -> _Found:
    old, pieces, at = list[bytes](), list[bytes](), 8
    while at < len(content):
        length, name = struct.unpack_from(">I4s", content, at)
        data, chunk = content[at + 8 : at + 8 + length], content[at : at + 12 + length]
        found = None
        if name == b"iTXt" and data.startswith(_PNG_NAME):
            # A flag of compression, its method, two texts that end with NUL, and the packet.
            text = data[len(_PNG_NAME) + 2 :].split(b"\0", 2)[2]
            found = zlib.decompress(text) if data[len(_PNG_NAME)] else text
        elif name in (b"tEXt", b"zTXt") and data.startswith(_RAW):
            text = data.split(b"\0", 1)[1]
            profile = raw_profile(zlib.decompress(text[1:]) if name == b"zTXt" else text)
            if data.startswith(_RAW[0]) or profile.startswith(_JPEG_NAME):  # otherwise, it is EXIF
                found = profile.removeprefix(_JPEG_NAME)
        if found is None:
            pieces.append(chunk)
        else:
            old.append(found)
        at += len(chunk)
        if name == b"IEND":
            break
    if packet is not None:
        body = b"iTXt" + _PNG_NAME + b"\0\0\0\0" + packet
        new = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
        pieces.insert(1, new)  # after the header
    return old, b"".join([content[:8], *pieces, content[at:]])


def raw_profile(text: bytes) -> bytes:
    """Return the bytes of a profile that ImageMagick stores as a name, a size and hexadecimal digits."""
    return bytes.fromhex(b"".join(text.split()[2:]).decode("ascii"))


def _webp(content: bytes, packet: bytes | None) -> _Found:
    end = 8 + struct.unpack_from("<I", content, 4)[0]
    old, chunks, at = list[bytes](), list[tuple[bytes, bytes]](), 12
    while at < min(end, len(content)):
        name, length = struct.unpack_from("<4sI", content, at)
        data = content[at + 8 : at + 8 + length]
        if len(data) != length:
            raise ValueError("a chunk is cut off")
        if name == b"XMP ":
            old.append(data)
        else:
            chunks.append((name, data))
        at += 8 + length + length % 2
    if packet is None:
        return old, content
    if chunks[0][0] != b"VP8X":
        chunks.insert(0, (b"VP8X", _extended(*chunks[0])))
    flags = chunks[0][1]
    chunks[0] = (b"VP8X", bytes([flags[0] | _XMP_FLAG]) + flags[1:])
    body = b"WEBP"
    for name, data in [*chunks, (b"XMP ", packet)]:
        body += name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)
    return old, b"RIFF" + struct.pack("<I", len(body)) + body + content[end:]


def _extended(name: bytes, data: bytes) -> bytes:
    """Return the header for further chunks of a file that has only an image."""
    flags = 0
    if name == b"VP8L":  # lossless: a mark, 14 bits each for the sides, and a bit for transparency
        (bits,) = struct.unpack_from("<I", data, 1)
        sides = [bits & 0x3FFF, bits >> 14 & 0x3FFF]
        flags = _ALPHA_FLAG * (bits >> 28 & 1)
    else:  # lossy: a frame tag and a start code, then the sides and scales that are ignored
        sides = [(side & 0x3FFF) - 1 for side in struct.unpack_from("<HH", data, 6)]
    return bytes([flags, 0, 0, 0]) + b"".join(side.to_bytes(3, "little") for side in sides)


def _tiff(content: bytes, packet: bytes | None) -> _Found:
    """The new directory and the packet are added at the end, so that no offset changes."""
    order = "<" if content[:2] == b"II" else ">"
    (first,) = struct.unpack_from(f"{order}I", content, 4)
    (count,) = struct.unpack_from(f"{order}H", content, first)
    entries = [content[first + 2 + 12 * i : first + 14 + 12 * i] for i in range(count)]
    following = content[first + 2 + 12 * count : first + 6 + 12 * count]
    old, kept = list[bytes](), list[bytes]()
    for entry in entries:
        tag, _, length, offset = struct.unpack(f"{order}HHII", entry)
        if tag == _TIFF_TAG:
            old.append(content[offset : offset + length])
        else:
            kept.append(entry)
    if packet is None:
        return old, content
    packet += b" " * (4 - len(packet))  # up to four bytes would be stored in the entry
    content += b"\0" * (len(content) % 2)  # a directory begins at an even byte
    end = len(content) + len(packet) + len(packet) % 2
    entry = struct.pack(f"{order}HHII", _TIFF_TAG, _TIFF_BYTES, len(packet), len(content))
    kept = sorted([*kept, entry], key=lambda entry: struct.unpack_from(f"{order}H", entry))
    directory = struct.pack(f"{order}H", len(kept)) + b"".join(kept) + following
    body = content[8:] + packet + b"\0" * (len(packet) % 2) + directory
    return old, content[:4] + struct.pack(f"{order}I", end) + body


_FORMATS: dict[bytes, Callable[[bytes, bytes | None], _Found]] = {
    b"\xff\xd8\xff": _jpeg,
    b"\x89PNG\r\n\x1a\n": _png,
    b"RIFF": _webp,
    b"II*\0": _tiff,
    b"MM\0*": _tiff,
}
