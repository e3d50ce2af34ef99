"""Attention weights as numbers for other programs: JSON, NPZ and CSV."""

import csv
import json
from io import BytesIO, StringIO
from typing import Any

import numpy as np

from captioner.overlay.style import (
    DEFAULT_STYLE,
    Style,
    describe_mechanism,
    entropies,
    maps,
    values,
)
from captioner.photos import images
from captioner.predict.caption import Caption


def record(caption: Caption, style: Style = DEFAULT_STYLE) -> dict[str, Any]:
    """Return a caption and the weights of its grid cells, or of its boxes, as a JSON object.

    The weights of another method than attention are its values, which may be negative.
    """
    weights = values(caption, style)
    measures = {
        "outside": caption.outside,
        "entropy": entropies(maps(caption, style)),
        "visual_grounding": caption.visual_grounding,
    }
    words = []
    for index, word in enumerate(caption.words):
        entry: dict[str, Any] = {"word": word}
        if index in caption.unknown:
            entry["unknown"] = True
        entry["log_prob"] = round(caption.word_log_probs[index], 4)
        for name, measure in measures.items():
            if measure is not None:
                entry[name] = round(float(measure[index]), 4)
        # The shortest decimals that round to the same float32 values.
        entry["weights"] = [[float(str(value)) for value in row] for row in weights[index]]
        words.append(entry)
    geometry = caption.geometry
    return {
        "image": caption.image,
        "size": [geometry.width, geometry.height],
        "grid": list(geometry.grid),
        **({} if geometry.boxes is None else {"boxes": geometry.boxes}),
        "caption": caption.text,
        "model": caption.model,
        "mechanism": describe_mechanism(caption, style),
        "method": caption.method,
        "words": words,
    }


def npz(caption: Caption, style: Style = DEFAULT_STYLE) -> bytes:
    """Return an NPZ file with ``weights`` (T, rows, columns) float32 and ``words`` (T,).

    ``visual_grounding``, ``layers``, ``rollout`` and ``outside`` of ``Caption``, and the ``boxes`` of
    its geometry (columns, 4), are included, if the caption has them.
    """
    names = ("visual_grounding", "layers", "rollout", "outside")
    more = {name: getattr(caption, name) for name in names} | {"boxes": caption.geometry.boxes}
    arrays = {name: array for name, array in more.items() if array is not None}
    stream, words = BytesIO(), np.array(caption.words, str)
    np.savez_compressed(stream, weights=values(caption, style), words=words, **arrays)
    return stream.getvalue()


def json_bytes(caption: Caption, _: images.Source | None, style: Style) -> bytes:
    """Return ``record`` as a line of JSON; an export format."""
    return json.dumps(record(caption, style)).encode() + b"\n"


def npz_bytes(caption: Caption, _: images.Source | None, style: Style) -> bytes:
    """Return ``npz``; an export format."""
    return npz(caption, style)


def csv_bytes(caption: Caption, _: images.Source | None, style: Style) -> bytes:
    """Return a row for each word and cell of the grid, counted from 0, as CSV; an export format.

    With boxes, the column is the region, and four more columns hold its box in pixels.
    """
    stream, boxes = StringIO(newline=""), caption.geometry.boxes
    writer = csv.writer(stream)
    box = ["left", "top", "right", "bottom"] if boxes else []
    writer.writerow(["index", "word", "row", "column", "weight", *box])
    for (index, row, column), weight in np.ndenumerate(values(caption, style)):
        line = [index, caption.words[index], row, column, str(weight)]
        writer.writerow([*line, *(boxes[column] if boxes else ())])
    return stream.getvalue().encode()
