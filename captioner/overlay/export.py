"""The export formats. To add one, write its function in a new module and add a line to FORMATS.

This module imports nothing heavy; the function of a format is imported when it is first used.
"""

import importlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from captioner.errors import UsageError, unknown

if TYPE_CHECKING:
    from captioner.caption import Caption
    from captioner.images import Source
    from captioner.overlay.style import Style


class ExportFormat(NamedTuple):
    """A file that shows the attention of one caption."""

    name: str  # formats with the same name are written together
    suffix: str
    function: str  # ``module:function`` in this package, called by ``render``

    def render(self, caption: "Caption", image: "Source | None", style: "Style") -> bytes | None:
        """Return the content of the file, or None if the caption has nothing to show."""
        module, _, name = self.function.partition(":")
        function: Callable[..., bytes | None]
        function = getattr(importlib.import_module(f"captioner.overlay.{module}"), name)
        return function(caption, image, style)


FORMATS = (
    ExportFormat("png", ".png", "figures:figure_png"),
    ExportFormat("png", ".past.png", "figures:word_attention_png"),
    ExportFormat("svg", ".svg", "figures:figure_svg"),
    ExportFormat("pdf", ".pdf", "figures:figure_pdf"),
    ExportFormat("gif", ".gif", "gif:animation"),
    ExportFormat("html", ".html", "html:page_bytes"),
    ExportFormat("json", ".json", "numbers:json_bytes"),
    ExportFormat("csv", ".csv", "numbers:csv_bytes"),
    ExportFormat("npz", ".npz", "numbers:npz_bytes"),
)


def names() -> list[str]:
    """Return the names of all formats, in the order of FORMATS."""
    return list(dict.fromkeys(export.name for export in FORMATS))


def formats(chosen: Collection[str]) -> list[ExportFormat]:
    """Return the formats with these names, in the order of FORMATS."""
    return [export for export in FORMATS if export.name in chosen]


def save(caption: "Caption", file: str | Path, style: "Style | None" = None) -> None:
    """Write a caption's attention in the format of the suffix, e.g. ``.png``, ``.html`` or ``.npz``.

    Raises:
        UsageError: an unknown suffix, no such folder, the file is the photo itself, or the format
            shows the photo and the caption has no image path.
        ImageError: the photo cannot be read.
    """
    from captioner.files import write_bytes
    from captioner.overlay.style import Style

    if not isinstance(file, str | Path):
        raise UsageError(f"expected a path such as 'dog.png', got {type(file).__name__}")
    path, known = Path(file), {f".{export.name}": export for export in reversed(FORMATS)}
    if path.suffix.lower() not in known:
        raise UsageError(f"cannot write '{path}': {unknown('suffix', path.suffix, known)}")
    if caption.image is not None and path.exists() and path.samefile(caption.image):
        raise UsageError(f"'{path}' is the photo itself: save the caption to another file")
    if not path.parent.is_dir():
        raise UsageError(f"cannot write '{path}': the folder '{path.parent}' does not exist")
    write_bytes(path, known[path.suffix.lower()].render(caption, None, style or Style()) or b"")
