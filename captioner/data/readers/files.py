"""What all readers need of files: text, JSON, and where something lies."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from captioner.data.readers.problems import Problems
from captioner.errors import DataError


def lines(file: Path) -> list[str]:
    """The lines of a UTF-8 text, without white space around them.

    Raises:
        DataError: it cannot be read.
    """
    try:
        # Not splitlines(): a caption may hold one of the rarer line separators of Unicode.
        return [line.strip() for line in file.read_text(encoding="utf-8-sig").split("\n")]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"'{file}' cannot be read as UTF-8 text: {error}") from error


def read_json(file: Path) -> Any:
    """The contents of a JSON file.

    Raises:
        DataError: it cannot be read.
    """
    try:
        return json.loads(file.read_bytes())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"'{file}' is not readable JSON: {error}") from error


def as_id(value: object) -> int | str:
    """An image id as JSON has it; TypeError for what is none."""
    if isinstance(value, int | str) and not isinstance(value, bool):
        return value
    raise TypeError(f"an image id is a number or a text, not {value!r:.80}")


def find(root: Path, *names: str) -> Path | None:
    """The first of these files that is in ``root`` or in a folder of it; names may be patterns."""
    for name in names:
        if found := sorted([*root.glob(name), *root.glob(f"*/{name}")]):
            return found[0]
    return None


def image_folder(root: Path, names: Sequence[str], example: str) -> Path:
    """The folder with one of these names that holds the file ``example``.

    It may lie in ``root``, in a folder of it, or in one of its own name: archives are unpacked so.

    Raises:
        DataError: there is no folder of any of these names.
    """
    found = [
        folder
        for name in names
        for pattern in (name, f"*/{name}", f"{name}/{name}", f"*/{name}/{name}")
        for folder in sorted(root.glob(pattern))
        if folder.is_dir()
    ]
    if not found:
        raise DataError(f"no image folder under '{root}'; expected one of: {', '.join(names)}")
    return next((folder for folder in found if (folder / example).is_file()), found[0])


def said(captions: Iterable[str], owner: object, problems: Problems) -> Iterator[str]:
    """The captions that say anything: of one like "..." a model would learn to say nothing."""
    for caption in captions:
        if any(map(str.isalnum, caption)):
            yield caption.strip()
        else:
            problems.add("no-words", [f"{owner}: {caption!r:.80}"])
