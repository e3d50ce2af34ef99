"""The export formats. To add one, write its function in a new module and add a line to FORMATS."""

import importlib
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.errors import UsageError, unknown

if TYPE_CHECKING:
    from captioner.overlay.style import Style
    from captioner.photos.images import Source
    from captioner.predict.caption import Caption

# The suffix of each file, and the function ``module:function`` of this package that returns its content.
# The suffix after the last dot is the name of the format.
FORMATS = {
    ".png": "figures:figure_png",
    ".past.png": "figures:word_attention_png",
    ".svg": "figures:figure_svg",
    ".pdf": "figures:figure_pdf",
    ".gif": "gif:animation",
    ".html": "html:page_bytes",
    ".json": "numbers:json_bytes",
    ".csv": "numbers:csv_bytes",
    ".npz": "numbers:npz_bytes",
}


def names() -> list[str]:
    """Return the names of all formats, such as ``png``."""
    return list(dict.fromkeys(suffix.rpartition(".")[2] for suffix in FORMATS))


def suffixes(chosen: Collection[str]) -> list[str]:
    """Return the suffixes of the files of these formats."""
    return [suffix for suffix in FORMATS if suffix.rpartition(".")[2] in chosen]


def render(suffix: str, caption: "Caption", photo: "Source | None", style: "Style") -> bytes | None:
    """Return the content of a file, or None if the caption has nothing to show in it."""
    module, name = FORMATS[suffix].split(":")  # imported when it is first used
    function: Any = getattr(importlib.import_module(f"captioner.overlay.{module}"), name)
    content: bytes | None = function(caption, photo, style)
    return content


def save(
    caption: "Caption", file: str | Path, style: "Style | None" = None,
    photo: "Source | None" = None,
) -> None:  # fmt: skip
    """Write a caption's attention in the format of the suffix, e.g. ``.png``, ``.html`` or ``.npz``.

    ``photo`` is the captioned image, if the caption has no path.

    Raises:
        UsageError: an unknown suffix, the file is the photo itself, or there is no photo to show.
        ImageError: the photo cannot be read.
    """
    from captioner.files import write_bytes
    from captioner.overlay.style import DEFAULT_STYLE

    path, known = Path(file), [f".{name}" for name in names()]
    suffix = path.suffix.lower()
    if suffix not in known:
        raise UsageError(f"cannot write '{path}': {unknown('suffix', path.suffix, known)}")
    if caption.image is not None and path.exists() and path.samefile(caption.image):
        raise UsageError(f"'{path}' is the photo itself: save the caption to another file")
    write_bytes(path, render(suffix, caption, photo, style or DEFAULT_STYLE) or b"")
