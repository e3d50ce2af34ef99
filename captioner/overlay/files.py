"""The numbers behind the pictures, for other programs."""

from io import BytesIO
from typing import Any

import numpy as np

from captioner.overlay.style import Style, entropies, maps, mechanism
from captioner.predictor import Caption


def record(caption: Caption, style: Style = Style()) -> dict[str, Any]:  # noqa: B008 - frozen
    """A caption and its weights as JSON holds them; weights are those of the native grid.

    Raises:
        UsageError: no such layer or head.
    """
    weights = maps(caption, style)
    words = zip(
        caption.words, caption.word_log_probs, entropies(weights).tolist(), weights, strict=True
    )
    return {
        "image": caption.image,
        "size": [caption.geometry.width, caption.geometry.height],
        "grid": list(caption.geometry.grid),
        "caption": caption.text,
        "model": caption.model,
        "mechanism": mechanism(caption, style),
        "words": [
            {
                "word": word,
                "log_prob": round(log_prob, 4),
                "entropy": round(entropy, 4),
                # The shortest decimals that give these very float32 back.
                "weights": [[float(str(value)) for value in row] for row in cells],
            }
            for word, log_prob, entropy, cells in words
        ],
    }


def npz(caption: Caption, style: Style = Style()) -> bytes:  # noqa: B008 - frozen
    """An NPZ file with ``weights`` (T, rows, columns) float32 and ``words``.

    Raises:
        UsageError: no such layer or head.
    """
    stream = BytesIO()
    np.savez_compressed(stream, weights=maps(caption, style), words=np.array(caption.words, str))
    return stream.getvalue()
