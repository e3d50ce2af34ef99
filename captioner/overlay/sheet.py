"""All words of a caption: side by side in a figure, one after the other in an animation."""

from io import BytesIO

import numpy as np
from PIL import Image, ImageDraw

from captioner import images
from captioner.overlay import colours
from captioner.overlay.heat import lay, photo_of, tops
from captioner.overlay.lettering import Font, font, plain, shorten, wrap
from captioner.overlay.style import Style, entropies, maps, mechanism
from captioner.predictor import Caption

TILE, GAP, MARGIN, LABEL = 270, 18, 28, 30  # pixels
NARROW = 190  # the least width of a tile: that of what is written below it
LEGEND = 734  # and of all of them: that of the legend
COLUMNS = 5  # at most
FRAME = 480  # longest side of an animation's photo
MILLISECONDS = 900  # a word is shown
INK, SOFT, PAPER = "#1b1b1f", "#62626b", "#ffffff"
TEXT, SMALL, TITLE = 20, 14, 26
SPACE = 10  # between words that may be lit


def figure(
    caption: Caption,
    photo: images.Source | None = None,
    style: Style = Style(),  # noqa: B008 - frozen
) -> Image.Image:
    """The photo, then every word with its map, and below it how spread out that is.

    Args:
        caption: with or without details.
        photo: the picture, if the caption does not know its path.
        style: how to draw.

    Raises:
        ImageError: the photo cannot be read.
        UsageError: no such layer or head; no photo, or another one.
    """
    picture = photo_of(caption, photo, TILE)
    size = f"{caption.geometry.width} x {caption.geometry.height} pixels"
    tiles = [(picture, "photo", [size])]
    for index, word in enumerate(caption.words):
        tiles.append((lay(caption, index, picture, style), word, _notes(caption, index, style)))
    deep = -(-len(tiles) // COLUMNS)
    across = -(-len(tiles) // deep)  # as even as they come
    wide = max(picture.width, NARROW)
    high = LABEL + picture.height + 20 * max(len(notes) for *_, notes in tiles) + 22
    inner = max(across * (wide + GAP) - GAP, LEGEND)
    title = wrap(caption.text, font(TITLE, caption.text), inner)
    head = MARGIN + len(title) * (TITLE + 8) + 14
    canvas = Image.new("RGB", (inner + 2 * MARGIN, head + deep * high + 84), PAPER)
    draw = ImageDraw.Draw(canvas)
    draw.multiline_text(
        (MARGIN, MARGIN), "\n".join(title), INK, font(TITLE, caption.text), spacing=8
    )
    for number, (tile, word, notes) in enumerate(tiles):
        row, column = divmod(number, across)
        x, y = MARGIN + column * (wide + GAP), head + row * high
        letters = font(TEXT, word)
        draw.text((x, y), shorten(word, letters, wide), INK if number else SOFT, letters)
        canvas.paste(tile, (x, y + LABEL))
        note = "\n".join(notes)
        draw.multiline_text((x, y + LABEL + tile.height + 6), note, SOFT, font(SMALL), spacing=6)
    _legend(canvas, caption, style, (MARGIN, head + deep * high + 4))
    return canvas


def animation(
    caption: Caption,
    photo: images.Source | None = None,
    style: Style = Style(),  # noqa: B008 - frozen
) -> bytes:
    """An endless GIF: the photo, then a frame for every word, the sentence below with that word lit.

    Raises:
        ImageError: the photo cannot be read.
        UsageError: no such layer or head; no photo, or another one.
    """
    picture = photo_of(caption, photo, FRAME)
    letters = font(TEXT, caption.text)
    width = max(picture.width, 320)
    lines = _lines(caption.words, letters, width - 24)
    canvas = Image.new("RGB", (width, picture.height + 26 * len(lines) + 46), PAPER)
    frames = []
    for shown in range(-1, len(caption.words)):
        frame = canvas.copy()
        tile = picture if shown < 0 else lay(caption, shown, picture, style)
        frame.paste(tile, ((width - picture.width) // 2, 0))
        draw = ImageDraw.Draw(frame)
        for number, line in enumerate(lines):
            x = 12.0
            for index in line:
                word, y = caption.words[index], picture.height + 12 + 26 * number
                if index == shown:
                    box = (x - 4, y - 2, x + letters.getlength(word) + 4, y + 24)
                    draw.rounded_rectangle(box, 4, INK)
                draw.text((x, y), word, PAPER if index == shown else INK, letters)
                x += letters.getlength(word) + SPACE
        note = mechanism(caption, style) if shown < 0 else ", ".join(_notes(caption, shown, style))
        note = shorten(plain(note), font(SMALL), width - 24)
        draw.text((12, frame.height - 24), note, SOFT, font(SMALL))
        frames.append(frame)
    stream = BytesIO()
    first, *others = frames
    first.save(
        stream,
        "GIF",
        save_all=True,
        append_images=others,
        duration=MILLISECONDS,
        loop=0,
        disposal=1,
    )
    return stream.getvalue()


def _notes(caption: Caption, index: int, style: Style) -> list[str]:
    """How spread out a word's map is, and its scale if that is its own."""
    weights = maps(caption, style)
    entropy, total = float(entropies(weights)[index]), float(weights[index].sum())
    notes = [f"entropy {entropy:.2f} nats, {np.exp(entropy):.1f} cells"]
    if abs(total - 1) > 0.01:  # local attention as published multiplies after its softmax
        notes.append(f"weights sum to {total:.2g}")
    if style.scale == "own":
        notes.append(f"own scale, to {tops(caption, style)[index]:.2g}")
    return notes


def _lines(words: tuple[str, ...], letters: Font, width: float | int) -> list[list[int]]:
    """The words, by number, in lines that fit."""
    lines: list[list[int]] = [[]]
    room = float(width)
    for index, word in enumerate(words):
        length = letters.getlength(word)
        if lines[-1] and length > room:
            lines.append([])
            room = float(width)
        lines[-1].append(index)
        room -= length + SPACE
    return lines


def _legend(canvas: Image.Image, caption: Caption, style: Style, place: tuple[int, int]) -> None:
    """The colour bar with its numbers, and what wrote the caption."""
    (left, top), (width, height) = place, (TILE, 14)
    draw, letters = ImageDraw.Draw(canvas), font(SMALL)
    bar = colours.picture(np.tile(np.linspace(0, 1, width), (height, 1)), 1.0)
    canvas.paste(bar, (left, top + 2))
    rows, columns = caption.geometry.grid
    draw.text((left, top + 20), "0", SOFT, letters)
    greatest = "own" if style.scale == "own" else f"{tops(caption, style)[0]:.2g}"
    draw.text((left + width, top + 20), greatest, SOFT, letters, anchor="ra")
    even = 1 / (rows * columns)
    if style.scale == "shared" and 0.15 < even / tops(caption, style)[0] < 0.75:
        x = left + width * even / tops(caption, style)[0]
        draw.line([(x, top + 2), (x, top + 20)], PAPER)
        draw.line([(x, top + 16), (x, top + 20)], SOFT)
        draw.text((x, top + 20), f"even {even:.2g}", SOFT, letters, anchor="ma")
    scale = "one scale for all words" if style.scale == "shared" else "each word on its own scale"
    lines = [
        f"attention weight of a cell of the {rows} x {columns} grid; {scale}",
        f"{caption.model}: {plain(mechanism(caption, style))}; log-probability {caption.log_prob:.2f}",
    ]
    x = left + width + 24
    for number, line in enumerate(lines):
        line = shorten(plain(line), letters, canvas.width - MARGIN - x)
        draw.text((x, top - 1 + 20 * number), line, SOFT, letters)
