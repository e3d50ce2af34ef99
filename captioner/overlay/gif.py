"""The words of a caption one after another, as an animation."""

from functools import cache
from io import BytesIO

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from captioner.overlay.heatmap import draw_map, fit, load_image
from captioner.overlay.style import DEFAULT_STYLE, Style, content_words, describe_spread
from captioner.photos import images
from captioner.predict.caption import Caption

WIDTH, HEIGHT = 420, 630  # largest size of the photo in pixels
MIN_WIDTH = 240
TEXT, SMALL, LINE, LEFT = 20, 13, 30, 12
INK, GRAY, PAPER = "#1b1b1f", "#62626b", "#ffffff"
WORD_MILLISECONDS, FADE_MILLISECONDS, FADE_FRAMES = 900, 90, 2


def animation(
    caption: Caption, photo: images.Source | None = None, style: Style = DEFAULT_STYLE
) -> bytes:
    """Return an endless GIF: the photo, then the map of each word, with cross-fades between them."""
    image = fit(load_image(caption, photo), WIDTH, HEIGHT)
    words = content_words(caption) if style.content_words else range(len(caption.words))
    shown = [_frame(caption, index, image, style) for index in (None, *words)]
    frames, times = [], []
    for frame, following in zip(shown, [*shown[1:], shown[0]], strict=True):
        for step in range(FADE_FRAMES + 1):
            frames.append(Image.blend(frame, following, step / (FADE_FRAMES + 1)))
            times.append(FADE_MILLISECONDS if step else WORD_MILLISECONDS)
    # All frames share one palette, so that unchanged pixels take no space.
    colors = Image.fromarray(np.concatenate([np.asarray(frame) for frame in shown])).reduce(8)
    palette = colors.quantize(255, Image.Quantize.MAXCOVERAGE, kmeans=1)
    first, *others = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    stream = BytesIO()
    options = {"duration": times, "loop": 0, "disposal": 1, "optimize": True}
    first.save(stream, "GIF", save_all=True, append_images=others, **options)
    return stream.getvalue()


def _frame(caption: Caption, current: int | None, image: Image.Image, style: Style) -> Image.Image:
    """Return the photo, with the map of one word or without, above the sentence."""
    width, positions = max(image.width, MIN_WIDTH), []
    x, y = float(LEFT), image.height + LEFT
    for word in caption.words:
        length = _font(TEXT).getlength(word)
        if x > LEFT and x + length > width - LEFT:
            x, y = float(LEFT), y + LINE
        positions.append((x, y, x + length))
        x += length + 10
    frame = Image.new("RGB", (width, y + LINE + 24), PAPER)
    map_or_photo = image if current is None else draw_map(caption, current, image, style)
    frame.paste(map_or_photo, ((width - image.width) // 2, 0))
    draw = ImageDraw.Draw(frame)
    for index, (left, top, right) in enumerate(positions):
        if index == current:
            draw.rounded_rectangle((left - 4, top - 2, right + 4, top + 25), 4, INK)
        color = PAPER if index == current else INK
        draw.text((left, top), caption.words[index], color, _font(TEXT))
    note = "" if current is None else describe_spread(caption, current, style)
    draw.text((LEFT, frame.height - 24), note, GRAY, _font(SMALL))
    return frame


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    """Return DejaVu Sans, which comes with matplotlib, in this size in pixels."""
    from matplotlib import font_manager

    return ImageFont.truetype(font_manager.findfont("DejaVu Sans"), size)
