"""Records of captioned photos, as rows and as columns."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from captioner.errors import CaptionerError

Row = dict[str, Any]

FIELDS = ("image", "caption", "words", "log_prob", "word_log_probs", "model", "error")
"""The columns, and the order of a row's fields."""
SEVERAL = ("captions", "log_probs")
"""Further columns if several captions per photo are written, the best first."""
CONFIDENCE = ("confidence",)
"""A further column if it is requested."""
THUMBNAILS = ("thumbnails",)
"""A further column for a page: see ``captioner.overlay.review``."""


def failure(name: str, error: CaptionerError) -> Row:
    """Return the row of a photo that has no caption."""
    description = {"type": type(error).__name__, "message": str(error)}
    return {"image": encodable(name), "error": description}


def from_columns(columns: Mapping[str, Sequence[Any]]) -> Iterator[Row]:
    """Yield the rows of a batch without the fields that are None."""
    fields = [field for field in (*FIELDS, *SEVERAL, *CONFIDENCE, *THUMBNAILS) if field in columns]
    for values in zip(*(columns[field] for field in fields), strict=True):
        row = zip(fields, values, strict=True)
        yield {field: value for field, value in row if value is not None}


def encodable(name: str) -> str:
    """Return a file name that UTF-8 can hold: bytes that are not UTF-8 become ``\\udcXX``."""
    return name.encode("utf-8", "backslashreplace").decode()
