"""Draw and export attention: heat maps, figures, GIFs, web pages, and the weights as numbers.

All functions raise ``ImageError`` if an image cannot be read, and ``UsageError`` if a word, layer or
head does not exist or an image does not fit its caption.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from captioner.overlay.export import save as save
    from captioner.overlay.figures import figure as figure
    from captioner.overlay.figures import word_attention as word_attention
    from captioner.overlay.gif import animation as animation
    from captioner.overlay.heatmap import blend as blend
    from captioner.overlay.html import page as page
    from captioner.overlay.numbers import npz as npz
    from captioner.overlay.numbers import record as record
    from captioner.overlay.style import Style as Style
    from captioner.overlay.style import entropies as entropies
    from captioner.overlay.style import maps as maps

_MODULES = {
    "animation": "gif", "figure": "figures", "word_attention": "figures", "blend": "heatmap",
    "page": "html", "npz": "numbers", "record": "numbers", "Style": "style", "entropies": "style",
    "maps": "style", "save": "export",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    # `captioner explain --help` reads the names of the export formats without importing torch.
    if name not in _MODULES:
        raise AttributeError(f"module 'captioner.overlay' has no attribute {name!r}")
    return getattr(importlib.import_module(f"captioner.overlay.{_MODULES[name]}"), name)
