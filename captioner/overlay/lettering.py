"""Text in pictures: a font that has the letters, lines that fit."""

from functools import cache

from PIL import ImageFont

FALLBACKS = ("NotoSans-Regular.ttf", "DejaVuSans.ttf", "Arial Unicode.ttf", "arial.ttf")
"""Looked for among the system's fonts when Pillow's own, which has little beyond ASCII, will not do."""

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


@cache
def _sized(size: int, ascii_only: bool) -> Font:
    if not ascii_only:
        for name in FALLBACKS:
            try:
                return ImageFont.truetype(name, size)
            except OSError:
                continue
    return ImageFont.load_default(size)


def font(size: int, text: str = "") -> Font:
    """The font for a text: Pillow's own, the same everywhere, as long as it has the letters."""
    return _sized(size, text.isascii())


def wrap(text: str, letters: Font, width: float | int) -> list[str]:
    """Lines no longer than ``width`` pixels; a word that is longer stands alone."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and letters.getlength(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def shorten(text: str, letters: Font, width: float | int) -> str:
    """The text, or as much of its beginning as fits, and an ellipsis."""
    if letters.getlength(text) <= width:
        return text
    while text and letters.getlength(text + "...") > width:
        text = text[:-1]
    return text + "..."


def plain(text: str) -> str:
    """Our own signs as letters that Pillow's font has."""
    return text.replace("×", "x").replace("–", "-")
