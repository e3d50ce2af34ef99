"""An image captioner that shows which regions it attended to for each word.

    import captioner
    model = captioner.load("runs/shapes")
    result = model.caption("photo.png", beam_size=5)
    result.text, result.words, result.weights        # weights: (T, rows, columns) float32
    result.save("attention.png")                     # or .gif, .html, .json, .npz

Shapes use the same letters everywhere: B images, L annotation vectors (the regions of the feature
map in raster order), D their width, R captions per image, T words, V words of the vocabulary, n the
width of a decoder's state. A mask is True where a position may be attended.
"""

import importlib
from typing import TYPE_CHECKING, Any

from captioner.errors import (
    CaptionerError,
    CheckpointError,
    DataError,
    EvaluationError,
    ImageError,
    ModelError,
    UsageError,
)

__version__ = "0.1.0"

if TYPE_CHECKING:
    from captioner import models, overlay
    from captioner.overlay import Style
    from captioner.predict.adapter import Adapter, AdapterPredictor, Reading
    from captioner.predict.caption import Caption
    from captioner.predict.load import load
    from captioner.predict.predictor import Predictor
    from captioner.resources import bundled_models
    from captioner.search.options import Decoding

__all__ = [
    "Adapter",
    "AdapterPredictor",
    "Caption",
    "CaptionerError",
    "CheckpointError",
    "DataError",
    "Decoding",
    "EvaluationError",
    "ImageError",
    "ModelError",
    "Predictor",
    "Reading",
    "Style",
    "UsageError",
    "__version__",
    "bundled_models",
    "load",
    "models",
    "overlay",
]

# Imported at the first use, because importing torch takes seconds.
_LAZY = {
    "Adapter": "captioner.predict.adapter",
    "AdapterPredictor": "captioner.predict.adapter",
    "Reading": "captioner.predict.adapter",
    "Caption": "captioner.predict.caption",
    "Decoding": "captioner.search.options",
    "Predictor": "captioner.predict.predictor",
    "Style": "captioner.overlay",
    "bundled_models": "captioner.resources",
    "load": "captioner.predict.load",
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    if name in ("models", "overlay"):
        return importlib.import_module(f"captioner.{name}")
    raise AttributeError(f"module 'captioner' has no attribute {name!r}")
