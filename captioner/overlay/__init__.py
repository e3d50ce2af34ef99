"""Weights and a photo → heat maps, a figure, a GIF, a web page, and the numbers for other programs."""

from captioner.overlay.files import npz, record
from captioner.overlay.heat import blend
from captioner.overlay.matrix import past
from captioner.overlay.sheet import animation, figure
from captioner.overlay.style import Style, entropies, maps
from captioner.overlay.web import page

__all__ = [
    "Style",
    "animation",
    "blend",
    "entropies",
    "figure",
    "maps",
    "npz",
    "page",
    "past",
    "record",
]
