"""Files, folders and globs → the paths of images."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from glob import has_magic
from pathlib import Path, PurePath

from captioner.errors import UsageError, notice, plural

SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".jif", ".mpo", ".png", ".apng", ".webp", ".gif"),
    *(".bmp", ".dib", ".tif", ".tiff", ".heic", ".heif", ".hif", ".avif"),
)
"""The file name suffixes of images in a folder, compared in lower case."""
COMPANIONS = (".txt", ".xmp", ".csv", ".json", ".jsonl", ".html")
"""The suffixes of captions beside images, which are not reported as left out."""
PROGRAM_FOLDERS = {
    *("@eadir", "#recycle", "#snapshot", "@recycle", "@recently-snapshot", ".@__thumb"),
    *("$recycle.bin", "system volume information", "lost+found", "__macosx"),
    *(".trash", ".trashes", ".thumbnails", ".spotlight-v100", ".fseventsd"),
}
"""Folders of thumbnails, deleted files and indexes of file managers and disks, in lower case."""


def find(inputs: Sequence[str | Path]) -> list[Path]:
    """Return the image files that files, folders and globs name, in the given order, each once.

    A name that exists is not expanded, even with ``[`` or ``*`` in it, and a file that exists is kept
    with any suffix. Folders are searched as ``walk`` describes; one that cannot be read is given itself,
    and reading it reports the error. A glob (``**`` is recursive) gives the images and folders that it
    matches, sorted; a glob with a suffix (``*.raw``) gives those files. A notice says how many files and
    folders were left out because of their names.

    An input without a match is put last if another input matches; reading it reports the error.

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
    unmatched: list[Path] = []
    any_match = False
    left_out: Counter[str] = Counter()
    for name in inputs:
        if str(name).startswith(("http://", "https://")):
            raise UsageError(f"'{name}' is a web address: download the photo and give the file")
        match = False
        with suppress(OSError, ValueError):  # no permission, name too long, NUL in the name
            for path in _matches(Path(name), left_out):
                match = any_match = True
                yield path
        if not match:
            unmatched.append(Path(name))
    if folders := left_out.pop("", 0):
        notice(f"left out {plural(folders, 'folder')} of programs, such as @eaDir and lost+found")
    if left_out:
        count, ends = plural(left_out.total(), "file"), [end for end, _ in left_out.most_common(8)]
        notice(f"left out {count} whose names are not those of photos ({' '.join(ends)})")
    if unmatched and not any_match:
        raise UsageError(
            f"{unmatched[0]}: no such file, or no photo in it; expected photos, folders or globs "
            f"({' '.join(SUFFIXES)}); check the path"
        )
    yield from unmatched


def _matches(path: Path, left_out: Counter[str]) -> Iterator[Path]:
    if path.exists():
        yield from walk(path, left_out=left_out) if path.is_dir() else [path]
        return
    names_suffix = path.suffix and not has_magic(path.suffix)
    for match in sorted(_glob(path)):
        if match.is_dir():
            yield from walk(match, left_out=left_out)
        elif names_suffix or match.suffix.lower() in SUFFIXES:
            yield match


def _glob(pattern: Path) -> set[Path]:
    """The matches of a glob without hidden files, unless the pattern names them."""
    parts = list(pattern.relative_to(pattern.anchor).parts)
    while parts[-1:] == ["**"]:  # folders are searched recursively anyway
        parts.pop()
    root = Path(pattern.anchor)
    found = set(root.glob(os.path.join(*parts))) if parts else {root}  # noqa: PTH118
    named = [part for part in parts if is_hidden(part)]
    return {
        path
        for path in found
        if all(
            any(fnmatchcase(name, part) for part in named) for name in filter(is_hidden, path.parts)
        )
    }


def is_hidden(name: str) -> bool:
    """Return whether a file or folder of this name is left out when a folder is searched."""
    return name.startswith(".") or name.casefold() in PROGRAM_FOLDERS


def walk(
    folder: Path, suffixes: Sequence[str] = SUFFIXES, left_out: Counter[str] | None = None
) -> Iterator[Path]:
    """Yield the files with these suffixes in a folder and its subfolders, however deep.

    Files come before subfolders, each sorted, and linked folders last. No folder is read twice, and
    links to parents of ``folder`` are not followed. Hidden files, ``PROGRAM_FOLDERS`` and unreadable
    folders are skipped.

    With ``left_out``, unreadable folders are yielded, too. It counts other files by their suffix, except
    ``COMPANIONS``, and ``PROGRAM_FOLDERS`` under "".
    """
    top = Path(os.path.realpath(folder))
    seen: set[tuple[int, int]] = set()
    pending, links = [folder], list[Path]()
    while pending or links:  # one folder at a time, because os.walk recurses in Python 3.11
        current = pending.pop() if pending else links.pop(0)
        found = next(os.walk(current), None)  # None if the folder cannot be read
        if found is None:
            if left_out is not None:
                yield current
            continue
        status = current.stat()
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        _, folders, files = found
        for name in sorted(files):
            suffix = PurePath(name).suffix.lower()
            if suffix in suffixes and not is_hidden(name):
                yield Path(current, name)
            elif left_out is not None and suffix not in COMPANIONS and not is_hidden(name):
                left_out[suffix or name] += 1
        if left_out is not None:
            left_out[""] += sum(name.casefold() in PROGRAM_FOLDERS for name in folders)
        subfolders = sorted(Path(current, name) for name in folders if not is_hidden(name))
        # Path.is_symlink refuses the longest paths.
        linked = {path for path in subfolders if os.path.islink(path)}  # noqa: PTH114
        pending += [path for path in reversed(subfolders) if path not in linked]
        links += [p for p in sorted(linked) if not top.is_relative_to(os.path.realpath(p))]
