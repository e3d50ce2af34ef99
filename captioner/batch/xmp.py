"""The caption of a photo in XMP, the metadata format of ISO 16684-1.

The caption is the default text of dc:description and of Iptc4xmpCore:AltTextAccessibility (IPTC Photo
Metadata Standard 2021.1). Only the bytes of these two properties change, so everything that other
programs have written stays as it is.
"""

import codecs
import re
from dataclasses import dataclass, field
from typing import Any
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from captioner.errors import DataError

_RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
_NAMESPACES = {
    "dc": "http://purl.org/dc/elements/1.1/",
    "Iptc4xmpCore": "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/",
}
_TAGS = {
    f"{_NAMESPACES['dc']} description": "dc:description",
    f"{_NAMESPACES['Iptc4xmpCore']} AltTextAccessibility": "Iptc4xmpCore:AltTextAccessibility",
}
_PHOTOSHOP = "http://ns.adobe.com/photoshop/1.0/ SidecarForExtension"
_LANG, _DEFAULT = "http://www.w3.org/XML/1998/namespace lang", "x-default"
_SETTINGS = {_LANG, *(f"{_RDF} {name}" for name in ("about", "datatype", "ID", "parseType"))}
_DECLARED = re.compile(r"(<\?xml\b[^>]*?\bencoding\s*=\s*[\"'])([\w.-]+)")
_EMPTY = (
    '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>\n'
    f'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="{_RDF}">\n'
    '</rdf:RDF></x:xmpmeta>\n<?xpacket end="w"?>\n'
).encode()


def caption_of(packet: bytes) -> str:
    """Return the different lines of both properties; an empty text if there are none.

    Of a text in several languages, the default counts, or the first one that is not empty. Of a property
    in another form than a text in languages, every piece of text in it is a line.

    Raises:
        DataError: the packet is not XMP.
    """
    if not packet.strip():
        return ""
    lines: dict[str, None] = {}
    for part in sorted(_Packet(utf8(packet)).parts, key=lambda part: [*_TAGS].index(part.name)):
        texts = [part.texts.get(_DEFAULT, ""), *part.texts.values()]
        found = [next(filter(str.strip, texts), "")] if part.is_plain else part.pieces
        lines |= dict.fromkeys(line.strip() for text in found for line in text.splitlines())
    return "\n".join(filter(None, lines))


def extension_of(packet: bytes) -> str:
    """Return the suffix of the photo that a sidecar says it belongs to, or an empty text."""
    return _Packet(utf8(packet)).extension if packet.strip() else ""


def with_caption(packet: bytes | None, caption: str) -> bytes:
    """Return a packet in UTF-8 with another caption; texts in other languages stay.

    Raises:
        DataError: the packet is not XMP, or has the caption in a form that cannot be replaced.
    """
    packet = utf8(packet if packet and packet.strip() else _EMPTY)
    parsed = _Packet(packet)
    if any(part.span is None for part in parsed.parts):
        raise DataError("its XMP has the caption as an attribute, which is not valid")
    properties = ""
    for name, tag in _TAGS.items():
        texts: dict[str, str] = {}
        for part in parsed.parts:
            texts |= part.texts if part.name == name and part.is_plain else {}
        items = "".join(
            f"<rdf:li xml:lang={quoteattr(language)}>{escape(text)}</rdf:li>"
            for language, text in ({_DEFAULT: ""} | texts | {_DEFAULT: caption}).items()
        )
        properties += f"<{tag}><rdf:Alt>{items}</rdf:Alt></{tag}>"
    declared = "".join(f' xmlns:{prefix}="{uri}"' for prefix, uri in _NAMESPACES.items())
    added = (
        f'<rdf:Description xmlns:rdf="{_RDF}"{declared} rdf:about={quoteattr(parsed.about)}>'
        f"{properties}</rdf:Description>\n"
    )
    edited = packet[: parsed.end] + added.encode() + packet[parsed.end :]
    for part in reversed(parsed.parts):  # they are before the added bytes
        if part.span is not None:
            edited = edited[: part.span[0]] + edited[part.span[1] :]
    if caption_of(edited) != caption:
        raise DataError("its XMP has a form that cannot be edited")
    return edited


def utf8(packet: bytes) -> bytes:
    """Return a packet of any encoding that XML allows in UTF-8, with the declaration of it changed."""
    marks = {
        codecs.BOM_UTF32_LE: "utf-32",
        codecs.BOM_UTF32_BE: "utf-32",
        codecs.BOM_UTF16_LE: "utf-16",
        codecs.BOM_UTF16_BE: "utf-16",
        b"<\0\0\0": "utf-32-le",
        b"\0\0\0<": "utf-32-be",
        b"<\0": "utf-16-le",
        b"\0<": "utf-16-be",
    }
    encoding = next((name for mark, name in marks.items() if packet.startswith(mark)), None)
    if encoding is None:
        declaration = _DECLARED.search(packet[:200].decode("latin-1"))
        encoding = declaration[2] if declaration else "utf-8"
    try:
        if codecs.lookup(encoding).name in ("utf-8", "ascii"):
            return packet
        return _DECLARED.sub(r"\1UTF-8", packet.decode(encoding), count=1).encode()
    except (LookupError, UnicodeError) as error:
        raise DataError(f"its XMP cannot be read ({error}); save it as UTF-8") from error


@dataclass
class _Part:
    """A property that holds a caption.

    Attributes:
        name: of the property.
        span: the first byte of its element, and the byte after it; None for an attribute.
        texts: by language.
        pieces: all texts in it, in any form.
        is_plain: whether it is a text, or an rdf:Alt with a text for each language.
    """

    name: str
    span: tuple[int, int] | None = None
    texts: dict[str, str] = field(default_factory=dict)
    pieces: list[str] = field(default_factory=list)
    is_plain: bool = True


class _Packet:
    """Both properties of a packet in UTF-8, and where they are in its bytes.

    A property is at the path rdf:RDF / rdf:Description / property, its texts at … / rdf:Alt / rdf:li.

    Attributes:
        parts: the properties that hold captions, in the order of the packet.
        end: the byte after the content of rdf:RDF.
        about: what the packet describes.
        extension: the suffix of the photo that a sidecar belongs to.

    Raises:
        DataError: the packet is not XMP.
    """

    def __init__(self, packet: bytes) -> None:
        self.parts: list[_Part] = []
        self.end, self.about, self.extension = -1, "", ""
        self._packet, self._path, self._start = packet, list[str](), 0
        self._text, self._language = "", _DEFAULT
        self._parser: Any = expat.ParserCreate(namespace_separator=" ")
        self._parser.StartDoctypeDeclHandler = _refuse_doctype
        self._parser.StartElementHandler = self._open
        self._parser.EndElementHandler = self._close
        self._parser.CharacterDataHandler = self._read
        try:
            self._parser.Parse(packet.rstrip(b"\0 \t\r\n"), True)
        except expat.ExpatError as error:
            raise DataError(f"its XMP cannot be read ({error})") from error
        if self.end < 0:
            raise DataError("its XMP has no rdf:RDF element")

    def _open(self, name: str, attributes: dict[str, str]) -> None:
        if self._in_property():
            self._finish_text()
        if self._inside() == []:
            self.about = attributes.get(f"{_RDF} about", self.about)
            self.extension = attributes.get(_PHOTOSHOP, self.extension)
            for tag in _TAGS.keys() & attributes.keys():
                self.parts.append(_Part(tag, texts={_DEFAULT: attributes[tag]}))
        self._path.append(name)
        inside = self._inside() or []
        if len(inside) == 2 and name in _TAGS:
            self._start, self._language = self._parser.CurrentByteIndex, _DEFAULT
            self.parts.append(_Part(name))
        if self._in_property():
            part, self._language = self.parts[-1], attributes.get(_LANG, _DEFAULT)
            further = {key: value for key, value in attributes.items() if key != _LANG}
            part.pieces += [text for key, text in further.items() if key not in _SETTINGS]
            expected = [part.name, f"{_RDF} Alt", f"{_RDF} li"][: len(inside) - 1]
            part.is_plain &= inside[1:] == expected and not further
        self._text = ""

    def _read(self, text: str) -> None:
        self._text += text

    def _close(self, name: str) -> None:
        at, inside = self._parser.CurrentByteIndex, self._inside() or []
        if self._in_property():
            self._finish_text()
            if len(inside) == 2:
                # After an empty element, such as <dc:title/>, the parser is already past its end.
                tag = re.split(rb"[\s/>]", self._packet[self._start + 1 : at], maxsplit=1)[0]
                closes = self._packet.startswith(b"</" + tag, at)
                end = self._packet.index(b">", at) + 1 if closes else at
                self.parts[-1].span = self._start, end
        elif len(inside) == 2 and name == _PHOTOSHOP:
            self.extension = self._text
        elif name == f"{_RDF} RDF":
            self.end = at
        self._path.pop()

    def _finish_text(self) -> None:
        """Keep the text since the last tag, if there is any, as a part of the current property."""
        text, self._text = self._text, ""
        if not text.strip():
            return
        part, inside = self.parts[-1], self._inside() or []
        part.pieces.append(text.strip())
        if len(inside) == 3 or self._language in part.texts:
            part.is_plain = False
        part.texts[self._language] = text if len(inside) == 4 else text.strip()

    def _inside(self) -> list[str] | None:
        """The path below rdf:RDF; None outside."""
        root = f"{_RDF} RDF"
        return self._path[self._path.index(root) + 1 :] if root in self._path else None

    def _in_property(self) -> bool:
        inside = self._inside() or []
        return len(inside) > 1 and inside[1] in _TAGS


def _refuse_doctype(*_: object) -> None:
    raise DataError("its XMP has a document type, which is not valid")
