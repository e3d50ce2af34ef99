"""Files, folders and globs → the paths of images."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
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
    with any suffix. Folders are searched recursively for ``SUFFIXES``, as ``walk`` describes; a folder
    that cannot be read is given itself, and reading it reports the error. A glob (``**`` is recursive)
    gives the images and folders that it matches, sorted; a glob with a suffix (``*.raw``) gives those
    files. A notice says how many files and folders were left out because of their names.

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
    left_out: Counter[str] = Counter()
    for name in inputs:
        if str(name).startswith(("http://", "https://")):
            raise UsageError(f"'{name}' is a web address: download the photo and give the file")
        match = False
        try:
            for path in _matches(Path(name), left_out):
                match = any_match = True
                yield path
            reason = "no photo in it" if Path(name).exists() else "no such file or match"
        except (OSError, ValueError) as error:  # no permission, name too long, NUL in the name
            reason = getattr(error, "strerror", None) or str(error)
        except RecursionError:
            reason = "its folders are nested too deep for a glob"
        if not match:
            unmatched[Path(name)] = reason
    if folders := left_out.pop("", 0):
        notice(f"left out {plural(folders, 'folder')} of programs, such as @eaDir and lost+found")
    if left_out:
        count, ends = plural(left_out.total(), "file"), [end for end, _ in left_out.most_common(8)]
        notice(f"left out {count} whose names are not those of photos ({' '.join(ends)})")
    if not any_match:
        for path, reason in unmatched.items():
            raise UsageError(
                f"{path}: {reason}; expected a photo, a folder of photos or a glob "
                f"({' '.join(SUFFIXES)}); check the path"
            )
    yield from unmatched


def _matches(path: Path, left_out: Counter[str]) -> Iterator[Path]:
    if path.exists():
        yield from _photos(path, left_out) if path.is_dir() else [path]
        return
    names_suffix = path.suffix and not has_magic(path.suffix)
    for match in sorted(_glob(path)):
        if match.is_dir():
            yield from _photos(match, left_out)
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


def walk(folder: Path, suffixes: Sequence[str] = SUFFIXES) -> Iterator[Path]:
    """The files with these suffixes in a folder and its subfolders, however deep.

    Files come before subfolders, each sorted, and linked folders last. No folder is read twice, and
    links to parents of ``folder`` are not followed. Hidden files, ``PROGRAM_FOLDERS`` and unreadable
    folders are skipped.
    """
    for current, files in _folders(folder, Counter()):
        names = sorted(files or [])
        yield from (Path(current, n) for n in names if PurePath(n).suffix.lower() in suffixes)


def _photos(folder: Path, left_out: Counter[str]) -> Iterator[Path]:
    """The images in a folder as in ``walk``, and its unreadable folders; count what is left out."""
    for current, files in _folders(folder, left_out):
        if files is None:
            yield current
        for name in sorted(files or []):
            suffix = PurePath(name).suffix.lower()
            if suffix in SUFFIXES:
                yield Path(current, name)
            elif suffix not in COMPANIONS:
                left_out[suffix or name] += 1


def _folders(folder: Path, left_out: Counter[str]) -> Iterator[tuple[Path, list[str] | None]]:
    """Yield a folder and its subfolders with the files in each; None if it cannot be read.

    The number of ``PROGRAM_FOLDERS`` is added to ``left_out`` under "".
    """
    top = Path(os.path.realpath(folder))
    seen: set[tuple[int, int]] = set()
    pending, links = [folder], list[Path]()
    while pending or links:  # one folder at a time, because os.walk recurses in Python 3.11
        current = pending.pop() if pending else links.pop(0)
        found = next(os.walk(current), None)  # None if the folder cannot be read
        if found is None:
            yield current, None
            continue
        status = current.stat()
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        _, folders, files = found
        yield current, [name for name in files if not is_hidden(name)]
        left_out[""] += sum(name.casefold() in PROGRAM_FOLDERS for name in folders)
        subfolders = sorted(Path(current, name) for name in folders if not is_hidden(name))
        linked = set(
            filter(os.path.islink, subfolders)
        )  # Path.is_symlink refuses the longest paths
        pending += [path for path in reversed(subfolders) if path not in linked]
        links += [p for p in sorted(linked) if not top.is_relative_to(os.path.realpath(p))]
