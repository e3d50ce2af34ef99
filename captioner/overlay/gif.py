"""The words of a caption one after another, as an animation."""

from io import BytesIO

from PIL import Image, ImageDraw

from captioner import images
from captioner.caption import Caption
from captioner.overlay.heatmap import draw_map, font, load_image
from captioner.overlay.style import DEFAULT_STYLE, Style, content_words, describe_spread

SIDES = (420, 630)  # largest width and height of the photo in pixels
MIN_WIDTH = 240
TEXT, SMALL, LINE, LEFT = 20, 13, 30, 12
INK, GRAY, PAPER = "#1b1b1f", "#62626b", "#ffffff"
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
    # Finding the colours of a frame on fewer pixels takes a tenth of the time.
    palettes = [frame.reduce(4).quantize(256, Image.Quantize.MEDIANCUT) for frame in frames]
    frames = [frame.quantize(palette=p) for frame, p in zip(frames, palettes, strict=True)]
    stream = BytesIO()
    options = {"duration": times, "loop": 0, "disposal": 1, "optimize": False}
    frames[0].save(stream, "GIF", save_all=True, append_images=frames[1:], **options)
    return stream.getvalue()


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
