"""Captions as one HTML file that needs nothing else: no server, no network, no other file."""

import base64
import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from jaxtyping import Float32
from markupsafe import Markup
from PIL import Image

from captioner import images
from captioner.errors import UsageError
from captioner.overlay import colours
from captioner.overlay.heat import MARK, even, marks, photo_of, smoothing_of, tops
from captioner.overlay.style import Style, entropies, maps, mechanism
from captioner.predictor import Caption

LONGEST = 1200  # of a photo in a page, in pixels
_HERE = Path(__file__).parent


def page(
    captions: Sequence[Caption],
    photos: Sequence[images.Source] | None = None,
    style: Style = Style(),  # noqa: B008 - frozen
) -> str:
    """A page on which pointing at a word lights up the photo; it can be mailed and opened anywhere.

    Whatever stands in a caption, a path or a model's name is text and never code, and the page's own
    policy lets no script run but its own.

    Args:
        captions: one or more, each shown with its photo.
        photos: the pictures in the same order, if the captions do not know their paths.
        style: opacity and scale are where the reader's controls begin.

    Raises:
        ImageError: a photo cannot be read.
        UsageError: no captions, another number of photos; no such layer or head.
    """
    if not captions:
        raise UsageError("a page needs one caption or more")
    if photos is not None and len(photos) != len(captions):
        raise UsageError(f"{len(captions)} captions need as many photos, got {len(photos)}")
    script = (_HERE / "page.js").read_text("utf-8")
    sheet = _sheet()
    return _encodable(
        _template().render(
            title=captions[0].text if len(captions) == 1 else f"{len(captions)} captions",
            items=[
                _item(caption, photos[number] if photos is not None else None, style)
                for number, caption in enumerate(captions)
            ],
            opacity=round(100 * style.opacity),
            scale=style.scale,
            colours={"table": colours.TABLE.tolist(), "sigma": colours.SIGMA, "mark": MARK},
            style=Markup(sheet),
            style_hash=_hash(sheet),
            script=Markup(script),
            script_hash=_hash(script),
        )
    )


def place(weights: Float32[np.ndarray, "rows columns"]) -> str:
    """Where a map is strongest, in words, for those who hear the page."""
    if float(entropies(weights[None])[0]) > math.log(0.95 * weights.size):
        return "almost evenly over the whole photo"
    row, column = np.unravel_index(int(weights.argmax()), weights.shape)
    down = ("top", "middle", "bottom")[int(3 * (row + 0.5) / weights.shape[0])]
    right = ("left", "centre", "right")[int(3 * (column + 0.5) / weights.shape[1])]
    return "most at the " + f"{down} {right}".replace("middle centre", "centre")


def _item(caption: Caption, photo: images.Source | None, style: Style) -> dict[str, Any]:
    """All that the template says about one caption."""
    picture = photo_of(caption, photo)
    picture.thumbnail((LONGEST, LONGEST), Image.Resampling.LANCZOS)
    rows, columns = caption.geometry.grid
    weights = maps(caption, style)
    words = []
    for index, (word, entropy) in enumerate(zip(caption.words, entropies(weights), strict=True)):
        cells = math.exp(float(entropy))
        words.append(
            {
                "word": word,
                "probability": f"{100 * math.exp(caption.word_log_probs[index]):.1f} %",
                "entropy": f"{entropy:.2f}",
                "cells": f"{cells:.1f} of {rows * columns}",
                "greatest": f"{weights[index].max():.3g}",
                "place": place(weights[index]),
            }
        )
    peaks = tops(caption, replace(style, scale="own"))
    drawn = [
        {
            "told": f"“{word['word']}”: looked {word['place']}; entropy {word['entropy']} nats, "
            f"as if at {word['cells']} cells; probability {word['probability']}.",
            "weights": [float(f"{value:.5g}") for value in weights[index].ravel()],
            "top": peaks[index],
            "lines": marks(caption, index, style)[0],
            "centre": marks(caption, index, style)[1],
        }
        for index, word in enumerate(words)
    ]
    return {
        "text": caption.text,
        "alt": f"The photo, of which the model wrote: {caption.text}",
        "photo": _data_url(picture),
        "size": picture.size,
        "grid": (rows, columns),
        "name": Path(caption.image).name if caption.image else "",
        "model": caption.model,
        "mechanism": mechanism(caption, style),
        "log_prob": f"{caption.log_prob:.2f} nats",
        "even": f"{even(caption):.2g}",
        "words": words,
        "data": {
            "rows": rows,
            "columns": columns,
            "size": picture.size,
            "smoothing": smoothing_of(caption, style),
            "words": drawn,
        },
    }


def _data_url(picture: Image.Image) -> str:
    stream = BytesIO()
    picture.save(stream, "JPEG", quality=88)
    return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode("ascii")


def _hash(text: str) -> str:
    """As a content security policy names the one script, or style sheet, that it lets through."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string((_HERE / "page.html").read_text("utf-8"))


@cache
def _sheet() -> str:
    knots = [colours.INFERNO[i : i + 3].hex() for i in range(0, len(colours.INFERNO), 3)]
    sheet = (_HERE / "page.css").read_text("utf-8")
    return sheet.replace("{{ gradient }}", ", ".join(f"#{knot}" for knot in knots))


def _encodable(text: str) -> str:
    """A file name may hold bytes that are no UTF-8; they must not cost the page."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
