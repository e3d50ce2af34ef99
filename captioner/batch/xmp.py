"""The caption of a photo in XMP, the metadata format of ISO 16684-1.

The caption is the default text of dc:description and of Iptc4xmpCore:AltTextAccessibility (IPTC Photo
Metadata Standard 2021.1). Only the bytes of these two properties change, so everything that other
programs have written stays as it is.
"""

import codecs
import re
from dataclasses import dataclass
from xml.etree.ElementTree import Element, TreeBuilder
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
_ALT = f"{_RDF} Alt"
_LANG, _DEFAULT = "http://www.w3.org/XML/1998/namespace lang", "x-default"
_SETTINGS = {_LANG, *(f"{_RDF} {name}" for name in ("about", "datatype", "ID", "parseType"))}
_NAME = re.compile(rb"[^\s/>]+")
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
        texts = [part.texts[_DEFAULT]] if _DEFAULT in part.texts else [*part.texts.values()]
        found = texts[:1] or part.pieces
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
    properties = ""
    for name, tag in _TAGS.items():
        texts = {_DEFAULT: ""}
        for part in parsed.parts:
            texts |= part.texts if part.name == name else {}
        items = "".join(
            f"<rdf:li xml:lang={quoteattr(language)}>{escape(text)}</rdf:li>"
            for language, text in (texts | {_DEFAULT: caption}).items()
        )
        properties += f"<{tag}><rdf:Alt>{items}</rdf:Alt></{tag}>"
    declared = "".join(f' xmlns:{prefix}="{uri}"' for prefix, uri in _NAMESPACES.items())
    added = (
        f'<rdf:Description xmlns:rdf="{_RDF}"{declared} rdf:about={quoteattr(parsed.about)}>'
        f"{properties}</rdf:Description>\n"
    )
    edited = packet[: parsed.end] + added.encode() + packet[parsed.end :]
    for part in reversed(parsed.parts):  # they are before the added bytes
        if part.span is None:
            raise DataError("its XMP has the caption as an attribute, which is not valid")
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
        texts: by language; none if the property is neither a text nor an rdf:Alt of texts.
        pieces: all texts in it, in any form.
        span: the first byte of its element, and the byte after it; None for an attribute.
    """

    name: str
    texts: dict[str, str]
    pieces: list[str]
    span: tuple[int, int] | None


class _Packet:
    """Both properties of a packet in UTF-8, and where they are in its bytes.

    A property is at the path rdf:RDF / rdf:Description / property, or an attribute of the description.

    Attributes:
        parts: the properties that hold captions, in the order of the packet.
        end: the byte after the content of rdf:RDF.
        about: what the packet describes.
        extension: the suffix of the photo that a sidecar belongs to.

    Raises:
        DataError: the packet is not XMP.
    """

    def __init__(self, packet: bytes) -> None:
        root, places = _parsed(packet)
        rdf = next(root.iter(f"{_RDF} RDF"), None)
        if rdf is None:
            raise DataError("its XMP has no rdf:RDF element")
        self.end = places[rdf][1]
        self.about = self.extension = ""
        self.parts: list[_Part] = []
        for description in rdf:
            self.about = description.get(f"{_RDF} about", self.about)
            self.extension = description.get(_PHOTOSHOP, self.extension)
            for name in _TAGS.keys() & description.keys():
                text = description.attrib[name]
                self.parts.append(_Part(name, {_DEFAULT: text}, [text], None))
            for element in description:
                if element.tag in _TAGS:
                    begin, _, end = places[element]
                    self.parts.append(_Part(element.tag, *_texts(element), (begin, end)))
                elif element.tag == _PHOTOSHOP:
                    self.extension = element.text or ""


def _parsed(packet: bytes) -> tuple[Element, dict[Element, tuple[int, int, int]]]:
    """Return the root, and where each element begins, where its content ends, and where it ends."""
    tree, begins = TreeBuilder(), list[int]()
    places: dict[Element, tuple[int, int, int]] = {}
    parser = expat.ParserCreate(namespace_separator=" ")

    def start(name: str, attributes: dict[str, str]) -> None:
        begins.append(parser.CurrentByteIndex)
        tree.start(name, attributes)

    def end(name: str) -> None:
        begin, at = begins.pop(), parser.CurrentByteIndex
        # After an empty element, such as <dc:title/>, the parser is already past its end.
        tag = _NAME.search(packet, begin + 1)
        closes = tag is not None and packet.startswith(b"</" + tag[0], at)
        places[tree.end(name)] = begin, at, packet.index(b">", at) + 1 if closes else at

    def refuse_doctype(*_: object) -> None:
        raise DataError("its XMP has a document type, which is not valid")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = tree.data
    parser.StartDoctypeDeclHandler = refuse_doctype
    try:
        parser.Parse(packet.rstrip(b"\0 \t\r\n"), True)
    except expat.ExpatError as error:
        raise DataError(f"its XMP cannot be read ({error})") from error
    return tree.close(), places


def _texts(element: Element) -> tuple[dict[str, str], list[str]]:
    """Return the texts of a property by language, unless it has another form, and all texts in it."""
    values = [
        value for node in element.iter() for key, value in node.items() if key not in _SETTINGS
    ]
    pieces = [text.strip() for text in (*values, *element.itertext()) if text.strip()]
    items = element[0] if [child.tag for child in element] == [_ALT] else [element]
    texts = {
        item.get(_LANG, _DEFAULT): item.text for item in items if item.text and item.text.strip()
    }
    is_plain = [text.strip() for text in texts.values()] == pieces
    return (texts if is_plain else {}), pieces
