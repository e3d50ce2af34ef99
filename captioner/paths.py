"""Files, folders and globs → the paths of pictures."""

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from captioner.errors import UsageError, printable

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
"""The file name endings searched for in a folder, compared in lower case."""


def find(inputs: Sequence[str | Path]) -> list[Path]:
    """The picture files that files, folders and globs name, in the given order, each once.

    A name that exists is taken literally, even with ``[`` or ``*`` in it, and a file so named is
    kept whatever its suffix. Folders are searched recursively for `SUFFIXES`, sorted; hidden files
    are skipped and links to folders not followed. A glob (``**`` is recursive) gives the pictures
    and folders it matches, sorted; one that spells out its suffix (``*.jfif``) gives those files.

    An input that matches nothing is kept as it is, if others do: reading it will name it.

    Raises:
        UsageError: no input matches a picture; the message names one and the suffixes.
    """
    found: dict[Path, Path] = {}  # by absolute path: "a.jpg" and "/here/a.jpg" are one picture
    for path in stream(inputs):
        found.setdefault(path.absolute(), path)
    return list(found.values())


def stream(inputs: Sequence[str | Path]) -> Iterator[Path]:
    """The same one by one, while they are found; what two inputs name comes twice.

    Of a folder, the names in it and in the folders above it are all that is held in memory.
    """
    if isinstance(inputs, str):  # also a sequence of str, but never meant as one
        inputs = [inputs]
    held: list[Path] = []  # what matched nothing, until it is known whether anything does
    reasons = []
    matched = False
    for given in inputs:
        none = True
        reason = "no picture in it" if _exists(given) else "no such file or match"
        try:
            for path in _matches(given):
                none, matched = False, True
                yield from held
                held = []
                yield path
        except (OSError, ValueError) as error:  # no permission, name too long, NUL in the name
            reason = printable(str(error))
        if none:
            held.append(Path(given))
            reasons.append(
                f"{printable(str(given), limit=4096) or repr('')}: {reason}; expected a picture, a "
                f"folder of pictures or a glob ({' '.join(SUFFIXES)}); check the path"
            )
    if reasons and not matched:
        raise UsageError(reasons[0])
    yield from held


def _exists(given: str | Path) -> bool:
    try:
        return Path(given).exists()
    except (OSError, ValueError):
        return False


def _matches(given: str | Path) -> Iterator[Path]:
    path = Path(given)
    if path.exists():
        yield from _pictures(path) if path.is_dir() else [path]
        return
    spelt_out = path.suffix and not glob.has_magic(path.suffix)
    # Not Path.glob (PTH207): it refuses absolute patterns, and its * matches hidden files.
    for hit in sorted(map(Path, glob.glob(str(given), recursive=True))):  # noqa: PTH207
        if hit.is_dir():
            yield from _pictures(hit)
        elif spelt_out or hit.suffix.lower() in SUFFIXES:
            yield hit


def _pictures(folder: Path) -> Iterator[Path]:
    names, folders = [], set()
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.add(entry.name)
                elif not is_picture(entry.name) or not entry.is_file():
                    continue
                names.append(entry.name)
    except PermissionError:  # a folder that is not ours to read costs itself
        return
    for name in sorted(names):
        if name in folders:
            yield from _pictures(folder / name)
        else:
            yield folder / name


def is_picture(name: str) -> bool:
    """Whether a file's name ends like a picture's."""
    return os.path.splitext(name)[1].lower() in SUFFIXES  # noqa: PTH122 - also of objects in a store
