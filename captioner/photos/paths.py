"""Files, folders and globs → the paths of images."""

import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from glob import has_magic
from pathlib import Path, PurePath

from captioner.errors import UsageError

SUFFIXES = (
    *(".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"),
    *(".heic", ".heif", ".avif"),
)
"""The file name suffixes of images in a folder, compared in lower case."""


def find(inputs: Sequence[str | Path]) -> list[Path]:
    """Return the image files that files, folders and globs name, in the given order, each once.

    A name that exists is not expanded, even with ``[`` or ``*`` in it, and a file that exists is kept
    with any suffix. Folders are searched recursively for ``SUFFIXES``, files before subfolders,
    each sorted; hidden files and links to folders are skipped; a folder that cannot be read is given
    itself, and reading it reports the error. A glob (``**`` is recursive) gives the images and folders
    that it matches, sorted; a glob with a suffix (``*.jfif``) gives those files.

    An input without a match is put last if another input matches; reading it reports the error. Pipes,
    devices and broken links are kept, too, if they have the suffix of an image.

    Raises:
        UsageError: no input matches an image.
    """
    # By absolute path: "a.jpg" and "/here/a.jpg" are one image.
    found: dict[Path, Path] = {}
    for path in iterate(inputs):
        found.setdefault(path.absolute(), path)
    return list(found.values())


def iterate(inputs: Sequence[str | Path]) -> Iterator[Path]:
    """Yield the paths of ``find`` one by one; an image that two inputs name is yielded twice.

    Only the names in the current folder and its parents are held in memory.
    """
    if isinstance(inputs, str):  # a str is a sequence, too, but is one name here
        inputs = [inputs]
    unmatched: dict[Path, str] = {}
    any_match = False
    for name in inputs:
        if str(name).startswith(("http://", "https://")):
            raise UsageError(f"'{name}' is a web address: download the photo and give the file")
        match = False
        try:
            for path in _matches(Path(name)):
                match = any_match = True
                yield path
            reason = "no photo in it" if Path(name).exists() else "no such file or match"
        except (OSError, ValueError) as error:  # no permission, name too long, NUL in the name
            reason = getattr(error, "strerror", None) or str(error)
        except RecursionError:
            reason = "its folders are nested too deep for a glob"
        if not match:
            unmatched[Path(name)] = reason
    if not any_match:
        for path, reason in unmatched.items():
            raise UsageError(
                f"{path}: {reason}; expected a photo, a folder of photos or a glob "
                f"({' '.join(SUFFIXES)}); check the path"
            )
    yield from unmatched


def _matches(path: Path) -> Iterator[Path]:
    if path.exists():
        yield from walk(path, unreadable=True) if path.is_dir() else [path]
        return
    names_suffix = path.suffix and not has_magic(path.suffix)
    for match in sorted(_glob(path)):
        if match.is_dir():
            yield from walk(match, unreadable=True)
        elif names_suffix or match.suffix.lower() in SUFFIXES:
            yield match


def _glob(pattern: Path) -> set[Path]:
    """The matches of a glob without hidden files, unless the pattern names them."""
    parts = list(pattern.relative_to(pattern.anchor).parts)
    while parts[-1:] == ["**"]:  # folders are searched recursively anyway
        parts.pop()
    root = Path(pattern.anchor)
    found = set(root.glob(os.path.join(*parts))) if parts else {root}  # noqa: PTH118
    named = [part for part in parts if _is_hidden(part)]
    return {
        path
        for path in found
        if all(
            any(fnmatchcase(name, part) for part in named)
            for name in filter(_is_hidden, path.parts)
        )
    }


def _is_hidden(name: str) -> bool:
    return name.startswith(".")


def walk(
    folder: Path, suffixes: Sequence[str] = SUFFIXES, unreadable: bool = False
) -> Iterator[Path]:
    """The files with these suffixes in a folder and its subfolders, sorted, however deep.

    Hidden files, links to folders and unreadable folders are skipped. With ``unreadable``, a folder
    that cannot be read is given itself, so that reading it reports the error.
    """
    pending = [folder]
    while pending:  # one folder at a time, because os.walk recurses in Python 3.11
        current = pending.pop()
        found = next(os.walk(current), None)  # None if the folder cannot be read
        if found is None:
            yield from [current] if unreadable else []
            continue
        parent, folders, files = found
        for name in sorted(files):
            if not _is_hidden(name) and PurePath(name).suffix.lower() in suffixes:
                yield Path(parent, name)
        subfolders = [Path(parent, name) for name in folders if not _is_hidden(name)]
        links = filter(os.path.islink, subfolders)  # Path.is_symlink refuses the longest paths
        pending += sorted(set(subfolders).difference(links), reverse=True)
