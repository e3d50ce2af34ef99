"""Captions as one HTML file that works without a server, a network or other files."""

import base64
import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace
from math import exp
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from captioner.overlay import heatmap
from captioner.overlay.style import (
    DEFAULT_STYLE,
    Style,
    content_words,
    describe_location,
    describe_measure,
    describe_mechanism,
    entropies,
    maps,
    sentence,
)
from captioner.photos import images
from captioner.predict.caption import Caption

LONGEST_SIDE = 1200  # of an embedded image, in pixels
FOLDER = Path(__file__).parent
TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(FOLDER), autoescape=True, trim_blocks=True,
    undefined=jinja2.StrictUndefined,
)  # fmt: skip


def page(
    captions: Sequence[Caption],
    photos: Sequence[images.Source] | None = None,
    style: Style = DEFAULT_STYLE,
) -> str:
    """Return an HTML page that shows the map of the word under the pointer.

    Captions, paths and model names are escaped, and the page runs only its own script. ``photos`` are
    the images in the order of the captions, if these have no paths.
    """
    sources = [None] * len(captions) if photos is None else photos
    items = [_item(*pair, style) for pair in zip(captions, sources, strict=True)]
    return render("page.html", items=items, drawing=style)


def render(template: str, **values: Any) -> str:
    """Return a template that extends ``base.html`` as a page; values are escaped."""
    html = TEMPLATES.get_template(template).render(values, sha256=_sha256)
    # A path may contain bytes that are not UTF-8.
    return html.encode("utf-8", "backslashreplace").decode("utf-8")


def page_bytes(caption: Caption, photo: images.Source | None, style: Style) -> bytes:
    """Return ``page`` for one caption; an export format."""
    return page([caption], None if photo is None else [photo], style).encode()


def fragment(caption: Caption, photo: images.Source | None, style: Style, badge: str) -> str:
    """Return one caption as HTML for a page that has ``map.js`` and ``map.css``.

    ``badge`` is a label, such as "Your sentence"; it may be empty.
    """
    item = _item(caption, photo, style) | {"badge": badge}
    item["data"]["drawn"] = time.monotonic_ns()  # the script starts anew if the data change
    return TEMPLATES.get_template("map.html").render(item=item)


def _item(caption: Caption, photo: images.Source | None, style: Style) -> dict[str, Any]:
    """Return what the template needs about one caption, and as ``data`` what the script needs."""
    image = heatmap.load_image(caption, photo)
    side = min(LONGEST_SIDE, max(image.size))
    image = heatmap.fit(image, side, side)
    geometry = caption.geometry
    own_peaks = heatmap.peaks(caption, replace(style, scale="own"))
    return {
        "caption": caption,
        "badge": "",
        "photo": images.data_url(image),
        "name": Path(caption.image).name if caption.image else "",
        "mechanism": describe_mechanism(caption, style),
        "shows": describe_measure(caption, style).capitalize(),
        "content": content_words(caption),
        "data": {
            "text": sentence(caption),
            "start": _first_shown(caption, style),
            "boxes": heatmap.relative_boxes(caption).tolist() if geometry.boxes else None,
            "rows": geometry.grid[0],
            "columns": geometry.grid[1],
            "size": image.size,
            "smoothing": heatmap.effective_smoothing(caption, style),
            "sigma": heatmap.SIGMA,
            "look": style.look,
            "table": heatmap.color_table(style.look).tolist(),
            "mark": heatmap.MARK_COLOR,
            "opacity": style.opacity,
            "own": style.scale == "own",
            "low": heatmap.lowest(caption, style),
            "peak": heatmap.peaks(caption, replace(style, scale="shared"))[0],
            "words": [_word(caption, index, peak, style) for index, peak in enumerate(own_peaks)],
        },
    }


def _first_shown(caption: Caption, style: Style) -> int:
    """Return the word with the sharpest attention, or with the strongest map of another method."""
    drawn = maps(caption, style)
    order = entropies(drawn) if caption.method == "attention" else -drawn.sum((1, 2))
    return min(content_words(caption), key=lambda index: float(order[index]))


def _word(caption: Caption, index: int, peak: float, style: Style) -> dict[str, Any]:
    """Return the table row of a word, and what the script needs to draw its map."""
    word, weights = caption.words[index], maps(caption, style)[index]
    entropy = float(entropies(weights[None])[0])
    location = description = describe_location(weights, caption.geometry)
    grounding, verb, share = "", "looked", "its attention went to"
    if caption.method != "attention":
        measure = describe_measure(caption, style).removeprefix("share of ").removeprefix("the ")
        verb, share = f"{measure},", "the map is in"
    if location not in ("everywhere", "nowhere"):
        descending = np.sort(weights, axis=None)[::-1]
        half = (1 + np.searchsorted(descending.cumsum(), weights.sum() / 2)) / weights.size
        part = "the regions" if caption.geometry.boxes else "the photo"
        description += f"; half or more of {share} {100 * half:.0f} % of {part}"
    if caption.visual_grounding is not None:
        grounding = f"{100 * caption.visual_grounding[index]:.0f} %"
        description = f"{grounding} at the photo, {description}"
    if index in caption.unknown:
        description += "; the model does not know this word and reads it as <unk>"
    return {
        "word": word,
        "probability": f"{100 * exp(caption.word_log_probs[index]):.1f} %",
        "entropy": f"{entropy:.2f}",
        "cells": f"{exp(entropy):.1f} of {weights.size}",
        "maximum": f"{weights.max():.3g}",
        "location": location,
        "grounding": grounding,
        "description": f"“{word}”: {verb} {description}",
        "weights": [float(f"{value:.5g}") for value in weights.ravel()],
        "peak": peak,
        "lines": heatmap.outlines(caption, index, style),
    }


def _sha256(text: str) -> str:  # by which a content security policy allows a script
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
