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
    weights, outside = values(caption, style), caption.outside
    entropy, grounding = entropies(maps(caption, style)), caption.visual_grounding
    return {
        "image": caption.image,
        "size": [caption.geometry.width, caption.geometry.height],
        "grid": list(caption.geometry.grid),
        **({} if caption.geometry.boxes is None else {"boxes": caption.geometry.boxes}),
        "caption": caption.text,
        "model": caption.model,
        "mechanism": describe_mechanism(caption, style),
        "method": caption.method,
        "words": [
            {
                "word": word,
                **({"unknown": True} if index in caption.unknown else {}),
                "log_prob": round(caption.word_log_probs[index], 4),
                **({} if outside is None else {"outside": round(float(outside[index]), 4)}),
                "entropy": round(float(entropy[index]), 4),
                **(
                    {}
                    if grounding is None
                    else {"visual_grounding": round(float(grounding[index]), 4)}
                ),
                # The shortest decimals that round to the same float32 values.
                "weights": [[float(str(value)) for value in row] for row in weights[index]],
            }
            for index, word in enumerate(caption.words)
        ],
    }


def npz(caption: Caption, style: Style = DEFAULT_STYLE) -> bytes:
    """Return an NPZ file with ``weights`` (T, rows, columns) float32 and ``words`` (T,).

    ``visual_grounding``, ``layers``, ``rollout`` and ``outside`` of ``Caption``, and the ``boxes`` of
    its geometry (columns, 4), are included, if the caption has them.
    """
    stream = BytesIO()
    names = ("visual_grounding", "layers", "rollout", "outside")
    more = {name: getattr(caption, name) for name in names}
    more["boxes"] = caption.geometry.boxes
    more = {name: values for name, values in more.items() if values is not None}
    words = np.array(caption.words, str)
    np.savez_compressed(stream, weights=values(caption, style), words=words, **more)
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
    stream = StringIO(newline="")
    writer, boxes = csv.writer(stream), caption.geometry.boxes
    box = ["left", "top", "right", "bottom"] if boxes else []
    writer.writerow(["index", "word", "row", "column", "weight", *box])
    for (index, row, column), weight in np.ndenumerate(values(caption, style)):
        # The shortest decimals that round to the same float32 values.
        line = [index, caption.words[index], row, column, str(weight)]
        writer.writerow([*line, *(boxes[column] if boxes else ())])
    return stream.getvalue().encode()
