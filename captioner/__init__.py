"""An attention-based image captioner that shows where it looked for each word.

    import captioner
    model = captioner.load("runs/shapes")
    result = model.caption("photo.png", beam_size=5)
    result.text, result.words, result.weights        # weights: (T, rows, columns) float32
    captioner.overlay.figure(result).save("looked.png")

Shapes are written with the same letters everywhere: B pictures, L annotation vectors (rows ×
columns of the feature map, raster order), D their width, R captions of a picture, T words, V words
of the vocabulary, n the width of a decoder's state. A mask is True where a position may be attended.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from captioner import overlay
    from captioner.predictor import Caption, Predictor, load

__all__ = ["Caption", "Predictor", "__version__", "load", "overlay"]


def __getattr__(name: str) -> Any:
    # torch takes seconds to import; ``captioner --help`` does not need it.
    if name in ("Caption", "Predictor", "load"):
        from captioner import predictor

        return getattr(predictor, name)
    if name == "overlay":
        return importlib.import_module("captioner.overlay")
    raise AttributeError(f"module 'captioner' has no attribute {name!r}")
