"""A page on which a person checks and edits the captions of a folder of photos."""

from collections.abc import Sequence
from typing import Any

from captioner.overlay import heatmap
from captioner.overlay.html import render
from captioner.overlay.style import DEFAULT_STYLE, content_words, entropies, maps
from captioner.photos import images
from captioner.predict.caption import Caption

PHOTO_SIDE, MAP_SIDE = 320, 112  # longest sides of the thumbnails, in pixels
WEBP: Any = {"quality": 60, "kind": "webp"}  # two thirds of the size of JPEG


def thumbnails(caption: Caption, photo: images.Source | None = None) -> dict[str, Any]:
    """Return what the page shows of a photo, ready for JSON; the images are data URLs.

    Returns:
        ``photo``; ``size``, its width and height; and ``maps``, pairs of a content word and its map,
        for the three words with the sharpest maps, in their order.
    """
    image = heatmap.load_image(caption, photo)
    side = min(PHOTO_SIDE, max(image.size))
    large, small = (heatmap.fit(image, length, length) for length in (side, MAP_SIDE))
    entropy = entropies(maps(caption))
    sharpest = sorted(content_words(caption), key=lambda index: float(entropy[index]))[:3]
    shown = []
    for index in sorted(sharpest):
        drawn = heatmap.draw_map(caption, index, small, DEFAULT_STYLE)
        shown.append((caption.words[index], images.data_url(drawn, **WEBP)))
    return {"photo": images.data_url(large, **WEBP), "size": large.size, "maps": shown}


def page(title: str, photos: Sequence[dict[str, Any]]) -> str:
    """Return the page as HTML: one file that works offline and sends nothing.

    Its button saves a CSV table with the columns image and caption, which ``captioner fit`` reads from
    the folder of the photos. A photo whose field is empty has a row with an empty caption.

    Args:
        title: the heading of the page, such as the name of the folder.
        photos: dictionaries with ``name``, the path in the folder; ``text``, one caption per line;
            ``confidence``, from 0 to 1 or None; and what ``thumbnails`` returns.
    """
    return render("review.html", title=title, photos=photos)
