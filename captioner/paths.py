"""Files, folders and globs → the paths of images."""

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from captioner.errors import UsageError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
"""The file name suffixes of images in a folder, compared in lower case."""


def find(inputs: Sequence[str | Path]) -> list[Path]:
    """Return the image files that files, folders and globs name, in the given order, each once.

    An existing name is taken literally, even with ``[`` or ``*`` in it; an existing file is kept
    whatever its suffix. Folders are searched recursively for ``SUFFIXES`` in sorted order; hidden
    files and links to folders are skipped. A glob (``**`` is recursive) gives the images and folders
    that it matches, sorted; a glob with a suffix (``*.jfif``) gives those files.

    An input without a match is kept if another input matches; reading it later reports the error. Pipes,
    devices and broken links are kept, too, if they have the suffix of an image.

    Raises:
        UsageError: no input matches an image.
    """
    found: dict[Path, Path] = {}  # by absolute path: "a.jpg" and "/here/a.jpg" are one image
    for path in iterate(inputs):
        found.setdefault(path.absolute(), path)
    return list(found.values())


def iterate(inputs: Sequence[str | Path]) -> Iterator[Path]:
    """Yield the paths of ``find`` one by one; an image that two inputs name is yielded twice.

    Only the names in the current folder and its parents are held in memory.
    """
    if isinstance(inputs, str):  # a str is a sequence of str, but never meant as one
        inputs = [inputs]
    unmatched: list[Path] = []  # held back until an input matches
    reasons = []
    any_match = False
    for name in inputs:
        match = False
        try:
            for path in _matches(name):
                match = any_match = True
                yield from unmatched
                unmatched = []
                yield path
            reason = "no photo in it" if Path(name).exists() else "no such file or match"
        except (OSError, ValueError) as error:  # no permission, name too long, NUL in the name
            reason = getattr(error, "strerror", None) or str(error)
        if not match:
            unmatched.append(Path(name))
            reasons.append(
                f"{str(name) or repr('')}: {reason}; expected a photo, a folder of photos or a glob "
                f"({' '.join(SUFFIXES)}); check the path"
            )
    if reasons and not any_match:
        raise UsageError(reasons[0])
    yield from unmatched


def has_image_suffix(name: str) -> bool:
    """Return whether a file name ends like that of an image."""
    return os.path.splitext(name)[1].lower() in SUFFIXES  # noqa: PTH122 - also for object stores


def _matches(name: str | Path) -> Iterator[Path]:
    path = Path(name)
    if path.exists():
        yield from walk(path) if path.is_dir() else [path]
        return
    names_suffix = path.suffix and not glob.has_magic(path.suffix)
    for match in sorted(_glob(path.parts)):
        if match.is_dir():
            yield from walk(match)
        elif names_suffix or has_image_suffix(match.name):
            yield match


def _glob(parts: Sequence[str]) -> set[Path]:
    """The matches of a glob; ``**`` follows no links to folders, which may lead in circles."""
    if "**" not in parts:
        # Not Path.glob (PTH207), which refuses absolute patterns and matches hidden files with *.
        return set(map(Path, glob.glob(os.path.join(*parts)))) if parts else {Path()}  # noqa: PTH118, PTH207
    at = parts.index("**")
    pending = list(_glob(parts[:at]))
    if at == len(parts) - 1:  # the folders are searched recursively anyway
        return set(pending)
    found: set[Path] = set()
    while pending:
        folder = pending.pop()
        found |= _glob((*Path(glob.escape(str(folder))).parts, *parts[at + 1 :]))
        pending += [path for path, is_folder in _entries(folder, ()) if is_folder]
    return found


def walk(folder: Path, suffixes: Sequence[str] = SUFFIXES) -> Iterator[Path]:
    """The files with these suffixes in a folder and its subfolders, sorted, however deep.

    Hidden files, links to folders and unreadable folders are skipped.
    """
    pending = [_entries(folder, suffixes)]
    while pending:
        path, is_folder = next(pending[-1], (None, False))
        if path is None:
            pending.pop()
        elif is_folder:
            pending.append(_entries(path, suffixes))
        else:
            yield path


def _entries(folder: Path, suffixes: Sequence[str]) -> Iterator[tuple[Path, bool]]:
    """The folders and the files with these suffixes in a folder, and whether each is a folder."""
    found: dict[str, bool] = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                is_folder = entry.is_dir(follow_symlinks=False)
                has_suffix = os.path.splitext(entry.name)[1].lower() in suffixes  # noqa: PTH122
                linked = entry.is_symlink() and os.path.isdir(entry.path)  # noqa: PTH112
                if not entry.name.startswith(".") and (is_folder or (has_suffix and not linked)):
                    found[entry.name] = is_folder
    except OSError:  # no permission, removed, or nested too deeply
        return
    for name in sorted(found):
        yield folder / name, found[name]
