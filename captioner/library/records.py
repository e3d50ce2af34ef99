"""The one form of a library's records, by row and by column."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from captioner.errors import CaptionerError

Record = dict[str, Any]

FIELDS = ("image", "caption", "words", "log_prob", "word_log_probs", "model", "error")
"""The columns of a library, and the order of a record's fields."""


def failure(name: str, error: CaptionerError) -> Record:
    """The record of a photo without a caption."""
    return {
        "image": text(name),
        "error": {"type": type(error).__name__, "message": str(error)},
    }


def rows(columns: Mapping[str, Sequence[Any]]) -> Iterator[Record]:
    """The records of a batch one by one, without the fields that they do not have."""
    for values in zip(*(columns[field] for field in FIELDS), strict=True):
        yield {
            field: value for field, value in zip(FIELDS, values, strict=True) if value is not None
        }


def text(name: str) -> str:
    """A name that any file can hold: bytes that are no UTF-8 are written as ``\\udcXX``."""
    return name.encode("utf-8", "backslashreplace").decode()
