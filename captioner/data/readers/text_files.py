"""Text, CSV and JSON files, image folders, ids and splits of data sets."""

import csv
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from captioner.data.records import SPLITS, TEST, TRAIN, VAL
from captioner.errors import DataError

MALFORMED = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError)
"""The exceptions that JSON with an unexpected structure can raise when it is used."""

IMAGE_FOLDERS = (
    *("Flicker8k_Dataset", "Flickr8k_Dataset"),
    *("flickr30k-images", "flickr30k_images", "Images", "images"),
)

# "restval" are the images of COCO's val2014 that Karpathy adds to the training split.
_SPLIT_ALIASES = {"restval": TRAIN, "dev": VAL, "valid": VAL, "validation": VAL}


def read_lines(file: Path) -> list[str]:
    """The lines of a text without surrounding white space; DataError if it is not UTF-8."""
    try:
        text = _read(file).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise DataError(f"'{file}' is not in UTF-8: save it as UTF-8") from error
    # Not splitlines(): captions may contain Unicode's rarer line separators.
    return [line.strip() for line in text.split("\n")]


def read_csv_rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    """The line number and fields of every row that is not empty; DataError if it is not CSV."""
    lines = read_lines(file)
    header = next(filter(None, lines), "")
    if ";" in header and "," not in header:  # Excel writes this in many languages
        raise DataError(
            f"'{file}': its columns are separated by semicolons, expected commas ({header!r:.80})"
        )
    # Strict, because an unclosed quotation mark would include the following lines.
    rows = csv.reader((f"{line}\n" for line in lines), strict=True, skipinitialspace=True)
    try:
        for row in rows:
            if row:
                yield rows.line_num, row
    except csv.Error as error:
        raise DataError(f"'{file}' line {rows.line_num}: expected CSV: {error}") from error


def read_json(file: Path) -> Any:
    """The contents of a JSON file; DataError if it is not JSON."""
    try:
        return parse_json(_read(file))
    except ValueError as error:
        raise DataError(f"'{file}' is not readable JSON: {error}") from error


def parse_json(text: str | bytes) -> Any:
    """Parse JSON like ``json.loads``, but every error is a ValueError."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataError(f"'{file}' cannot be read: {error.strerror}") from error


def parse_id(value: object) -> int | str:
    """Check an image id from JSON; TypeError if it is neither a whole number nor a text.

    A whole number may be written as 1.0 or as "1".
    """
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and value.isdecimal() and str(int(value)) == value:
        return int(value)
    if isinstance(value, int | str) and not isinstance(value, bool):
        return value
    raise TypeError(f"an image id is a whole number or a text, not {value!r:.80}")


def find_file(root: Path, *names: str) -> Path | None:
    """The first of these files that exists in ``root`` or one of its folders."""
    found = (file for name in names for at in (name, f"*/{name}") for file in sorted(root.glob(at)))
    return next(found, None)


def find_image_folder(root: Path, example: str) -> Path:
    """The image folder of Flickr8k or Flickr30k that contains the file ``example``.

    It may be nested in a folder of the same name, as some archives unpack. DataError if there is none.
    """
    folders = [
        folder
        for name in IMAGE_FOLDERS
        for pattern in (name, f"*/{name}", f"{name}/{name}", f"*/{name}/{name}")
        for folder in sorted(root.glob(pattern))
        if folder.is_dir()
    ]
    # Not Path.is_file, which raises if the name is too long.
    holding = [folder for folder in [*folders, root] if os.path.isfile(folder / example)]  # noqa: PTH113
    if not holding and not folders:
        names = ", ".join(IMAGE_FOLDERS)
        raise DataError(f"no image folder under '{root}'; expected one of: {names}")
    return [*holding, *folders][0]


def parse_split(name: object) -> str | None:
    """The split of a name that data sets use; None for any other value."""
    word = name.strip().lower() if isinstance(name, str) else ""
    return word if word in SPLITS else _SPLIT_ALIASES.get(word)


def hash_split(name: str) -> str:
    """A split for an image of a data set without splits: an eighth each for ``val`` and ``test``.

    It depends on the image's name only, so adding images does not change the split of others.
    """
    eighth = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()[0] % 8
    return {0: TEST, 1: VAL}.get(eighth, TRAIN)
