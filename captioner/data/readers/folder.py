"""A folder of images, each with its captions in a text file of the same name."""

from collections.abc import Iterator
from pathlib import Path

from captioner import paths
from captioner.data.readers.files import hash_split, parse_split, read_lines
from captioner.data.readers.problems import Problems
from captioner.data.records import TRAIN, Record
from captioner.errors import UsageError


def read_folder(root: Path, problems: Problems) -> Iterator[Record]:
    """Images in this folder and below, each beside a .txt of the same name with one caption per line.

    If folders at the top are named after splits (``train``, ``val`` or ``dev``, ``test``), every image
    must be in one of them. Otherwise images are split by a hash of their paths. Hidden files are
    ignored.
    """
    try:
        files = {file: file.relative_to(root) for file in paths.find([root])}
    except UsageError:  # no image
        return
    problems.sources.append(root)
    by_hash = not any(parse_split(name.parts[0]) for name in files.values() if len(name.parts) > 1)
    for file, name in files.items():
        split = hash_split(name.as_posix()) if by_hash else parse_split(name.parts[0])
        if split is None:
            problems.add("no-split", name)
        text = file.with_suffix(".txt")
        captions: list[str] = []
        with problems.collect_file_errors():
            captions = [line for line in read_lines(text) if line] if text.is_file() else []
        yield problems.record(name.as_posix(), file, name, captions, split or TRAIN)
    known = {name.with_suffix(".txt") for name in files.values()}
    texts = (text.relative_to(root) for text in paths.walk(root, (".txt",)))
    problems.add("no-image", *(text for text in texts if text not in known))
