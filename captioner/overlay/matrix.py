"""How much each earlier word counted when a word was written: words against words."""

import numpy as np
from PIL import Image, ImageDraw

from captioner.errors import UsageError
from captioner.overlay import colours
from captioner.overlay.lettering import font
from captioner.overlay.style import Style, choose
from captioner.predictor import Caption

CELL, MARGIN, TEXT, SMALL = 44, 28, 18, 13
INK, SOFT, PAPER = "#1b1b1f", "#62626b", "#ffffff"


def past(caption: Caption, layer: int | None = None, head: int | None = None) -> Image.Image:
    """A heat map with a row for every word and a column for every word it could look back at.

    Args:
        caption: with details, of a decoder that attends to what it wrote.
        layer: from 0; None for the mean over layers.
        head: from 0; None for the mean over heads.

    Raises:
        UsageError: the caption says nothing of earlier words; no such layer or head.
    """
    if caption.past is None:
        raise UsageError(
            f"nothing is known of earlier words: {caption.mechanism or caption.model} does not attend "
            "to them, or was not asked for details=True"
        )
    Style(layer=layer, head=head)  # refuses what counts from below 0
    weights = choose(caption.past, layer, head)
    rows = caption.words
    columns = ("<start>", *caption.words[:-1])
    letters = font(TEXT, "".join(rows))
    left = MARGIN + max(letters.getlength(word) for word in rows) + 12
    top = MARGIN + 30 + max(letters.getlength(word) for word in columns) + 12
    size = len(rows) * CELL
    canvas = Image.new(
        "RGB", (round(left) + max(size, 330) + MARGIN, round(top) + size + 70), PAPER
    )
    draw = ImageDraw.Draw(canvas)
    draw.text((MARGIN, MARGIN - 8), "how much each earlier word counts", INK, letters)
    greatest = float(weights.max())
    for t, word in enumerate(rows):
        y = top + t * CELL
        draw.text((left - 12, y + CELL / 2), word, INK, letters, anchor="rm")
        for j in range(t + 1):
            x = left + j * CELL
            level = int(colours.levels(weights[t, j : j + 1], greatest)[0])
            colour = tuple(int(part) for part in colours.TABLE[level])
            draw.rectangle((x, y, x + CELL - 2, y + CELL - 2), colour)
            ink = "black" if level > 150 else "white"
            middle = (x + CELL / 2 - 1, y + CELL / 2 - 1)
            draw.text(middle, f"{weights[t, j]:.2f}", ink, font(SMALL), anchor="mm")
    for j, word in enumerate(columns):
        label = Image.new("RGB", (round(letters.getlength(word)) + 4, TEXT + 8), PAPER)
        ImageDraw.Draw(label).text((0, label.height / 2), word, INK, letters, anchor="lm")
        turned = label.transpose(Image.Transpose.ROTATE_90)
        x = left + j * CELL + (CELL - turned.width) / 2
        canvas.paste(turned, (round(x), round(top - 8 - turned.height)))
    which = ", ".join(
        f"{name} {number + 1}" if number is not None else f"mean of {there} {name}s"
        for name, number, there in zip(
            ("layer", "head"), (layer, head), np.shape(caption.past)[1:3], strict=True
        )
    )
    note = f"row: the word written; column: the word read\n{which}"
    draw.multiline_text((left, top + size + 12), note, SOFT, font(SMALL), spacing=6)
    return canvas
