"""The words of a caption one after another, as an animation."""

from io import BytesIO

import numpy as np
from PIL import Image, ImageDraw

from captioner import images
from captioner.caption import Caption
from captioner.overlay.heatmap import draw_map, font, load_image
from captioner.overlay.style import DEFAULT_STYLE, Style, content_words, describe_spread

SIDES = (420, 630)  # largest width and height of the photo in pixels
MIN_WIDTH = 240
TEXT, SMALL, LINE, LEFT = 20, 13, 30, 12
INK, GRAY, PAPER = "#1b1b1f", "#62626b", "#ffffff"
DITHER = np.array([[0, 8, 2, 10], [12, 4, 14, 6], [3, 11, 1, 9], [15, 7, 13, 5]]) - 7.5  # Bayer's
WORD_MILLISECONDS, FADE_MILLISECONDS, FADE_FRAMES = 900, 90, 2


def animation(
    caption: Caption, photo: images.Source | None = None, style: Style = DEFAULT_STYLE
) -> bytes:
    """Return an endless GIF: the photo, then the map of each word, with cross-fades between them."""
    image = load_image(caption, photo, SIDES)
    words = content_words(caption) if style.content_words else range(len(caption.words))
    width = max(image.width, MIN_WIDTH)
    shown = [_frame(caption, index, image, width, style) for index in (None, *words)]
    frames, times = [], []
    for frame, following in zip(shown, [*shown[1:], shown[0]], strict=True):
        frames.append(frame)
        times.append(WORD_MILLISECONDS)
        for step in range(1, FADE_FRAMES + 1):
            frames.append(Image.blend(frame, following, step / (FADE_FRAMES + 1)))
            times.append(FADE_MILLISECONDS)
    # One palette for all frames, and a dither that depends on the place alone: what does not change
    # from frame to frame takes no space.
    colors = Image.fromarray(np.concatenate([np.asarray(frame) for frame in shown])).reduce(8)
    palette = colors.quantize(255, Image.Quantize.MAXCOVERAGE, kmeans=1)
    frames = [_quantized(frame, palette) for frame in frames]
    stream = BytesIO()
    options = {"duration": times, "loop": 0, "disposal": 1, "optimize": True}
    frames[0].save(stream, "GIF", save_all=True, append_images=frames[1:], **options)
    return stream.getvalue()


def _quantized(frame: Image.Image, palette: Image.Image) -> Image.Image:
    """Return a frame in the colours of a palette, with an ordered dither."""
    pixels, (y, x) = np.asarray(frame), np.ogrid[: frame.height, : frame.width]
    dithered = np.where(pixels < 255, pixels + DITHER[y % 4, x % 4, None], 255)  # white stays white
    frame = Image.fromarray(dithered.clip(0, 255).astype(np.uint8))
    return frame.quantize(palette=palette, dither=Image.Dither.NONE)


def _frame(
    caption: Caption, current: int | None, image: Image.Image, width: int, style: Style
) -> Image.Image:
    """Return the photo with the map of one word, or without, above the sentence."""
    word_font, positions = font(TEXT), []
    x, y = float(LEFT), image.height + LEFT
    for word in caption.words:
        length = word_font.getlength(word)
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
        draw.text((left, top), caption.words[index], color, word_font)
    note = "" if current is None else describe_spread(caption, current, style)
    draw.text((LEFT, frame.height - 24), note, GRAY, font(SMALL))
    return frame
