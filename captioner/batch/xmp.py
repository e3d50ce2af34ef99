"""The caption of a photo in XMP, the metadata format of ISO 16684-1.

The caption is the default text of dc:description and of Iptc4xmpCore:AltTextAccessibility (IPTC Photo
Metadata Standard 2021.1). Only the bytes of these two properties change, so everything that other
programs have written stays as it is.
"""

import re
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
_LANG, _DEFAULT = "http://www.w3.org/XML/1998/namespace lang", "x-default"
_EMPTY = (
    '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>\n'
    f'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="{_RDF}">\n'
    '</rdf:RDF></x:xmpmeta>\n<?xpacket end="w"?>\n'
).encode()

Texts = dict[str, str]  # by language


def caption_of(packet: bytes) -> str:
    """Return the different lines of both properties; an empty text if there are none.

    Without a default text, the text in the first language counts.

    Raises:
        DataError: the packet is not XMP.
    """
    texts = _Packet(packet).texts if packet else {}
    lines: dict[str, None] = {}
    for name in _TAGS:
        languages = texts.get(name, {})
        text = languages.get(_DEFAULT) or next(iter(languages.values()), "")
        lines |= dict.fromkeys(line.strip() for line in text.splitlines() if line.strip())
    return "\n".join(lines)


def with_caption(packet: bytes | None, caption: str) -> bytes:
    """Return a packet with another caption; texts in other languages stay.

    Raises:
        DataError: the packet is not XMP, or has the caption in a form that cannot be replaced.
    """
    packet = packet or _EMPTY
    parsed = _Packet(packet)
    if parsed.end is None:
        raise DataError("its XMP has no rdf:RDF element")
    texts = parsed.texts
    properties = "".join(_element(tag, texts.get(name, {}), caption) for name, tag in _TAGS.items())
    declared = "".join(f' xmlns:{prefix}="{uri}"' for prefix, uri in _NAMESPACES.items())
    added = (
        f'<rdf:Description xmlns:rdf="{_RDF}"{declared} rdf:about={quoteattr(parsed.about)}>'
        f"{properties}</rdf:Description>\n"
    )
    edited = packet[: parsed.end] + added.encode() + packet[parsed.end :]
    for start, end in reversed(parsed.spans):  # they are before the added bytes
        edited = edited[:start] + edited[end:]
    if caption_of(edited) != caption:
        raise DataError("its XMP has a form that cannot be edited")
    return edited


def _element(tag: str, texts: Texts, caption: str) -> str:
    items = "".join(
        f"<rdf:li xml:lang={quoteattr(language)}>{escape(text)}</rdf:li>"
        for language, text in ({_DEFAULT: ""} | texts | {_DEFAULT: caption}).items()
    )
    return f"<{tag}><rdf:Alt>{items}</rdf:Alt></{tag}>"


class _Packet:
    """The texts of both properties, and where they are in the bytes of a packet.

    A property is at the path rdf:RDF / rdf:Description / property, its texts at … / rdf:Alt / rdf:li.

    Attributes:
        texts: of each property.
        spans: the first byte of each property's element, and the byte after it.
        end: the byte after the content of rdf:RDF.
        about: what the packet describes.
    """

    def __init__(self, packet: bytes) -> None:
        self.texts: dict[str, Texts] = {}
        self.spans: list[tuple[int, int]] = []
        self.end: int | None = None
        self.about = ""
        self._packet, self._path, self._start = packet, list[str](), 0
        self._language = _DEFAULT
        self._parser: Any = expat.ParserCreate(namespace_separator=" ")
        self._parser.StartDoctypeDeclHandler = _refuse_doctype
        self._parser.StartElementHandler = self._open
        self._parser.EndElementHandler = self._close
        self._parser.CharacterDataHandler = self._read
        try:
            self._parser.Parse(packet.rstrip(b"\0 \t\r\n"), True)
        except expat.ExpatError as error:
            raise DataError(f"its XMP cannot be read ({error})") from error

    def _open(self, name: str, attributes: dict[str, str]) -> None:
        if self._inside() == [] and name == f"{_RDF} Description":
            self.about = attributes.get(f"{_RDF} about", self.about)
            if not _TAGS.keys().isdisjoint(attributes):
                raise DataError("its XMP has the caption as an attribute, which is not valid")
        self._path.append(name)
        if self._property() == name:
            self._start, self._language = self._parser.CurrentByteIndex, _DEFAULT
            self.texts[name] = {}
        elif self._property() and name == f"{_RDF} li":
            self._language = attributes.get(_LANG, _DEFAULT)
            self.texts[self._property()][self._language] = ""

    def _read(self, text: str) -> None:
        inside, name = self._inside(), self._property()
        # A property can also hold its text itself, without languages.
        if name and inside and (len(inside) == 4 or (len(inside) == 2 and text.strip())):
            texts = self.texts[name]
            texts[self._language] = texts.get(self._language, "") + text

    def _close(self, name: str) -> None:
        at = self._parser.CurrentByteIndex
        if self._property() == name:
            # After an empty element, such as <dc:title/>, the parser is already past its end.
            tag = re.split(rb"[\s/>]", self._packet[self._start + 1 : at], maxsplit=1)[0]
            closes = self._packet.startswith(b"</" + tag, at)
            self.spans.append((self._start, self._packet.index(b">", at) + 1 if closes else at))
        elif name == f"{_RDF} RDF":
            self.end = at
        self._path.pop()

    def _inside(self) -> list[str] | None:
        """The path below rdf:RDF; None outside."""
        root = f"{_RDF} RDF"
        return self._path[self._path.index(root) + 1 :] if root in self._path else None

    def _property(self) -> str:
        """The property that contains the current element, or is it; an empty text otherwise."""
        inside = self._inside() or []
        return inside[1] if len(inside) > 1 and inside[1] in _TAGS else ""


def _refuse_doctype(*_: object) -> None:
    raise DataError("its XMP has a document type, which is not valid")
