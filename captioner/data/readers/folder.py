"""A folder of images, each with its captions in a text file of the same name.

train/dog.jpg
train/dog.txt    one caption a line
"""

from collections.abc import Iterator
from pathlib import Path

from captioner import paths
from captioner.data.readers import splits
from captioner.data.readers.files import lines, said
from captioner.data.readers.problems import Problems
from captioner.data.records import TRAIN, Record
from captioner.errors import DataError, UsageError


def read_folder(root: Path, problems: Problems) -> Iterator[Record]:
    """Images in this folder and those below it, each beside a .txt of its name, one caption a line.

    Where folders named after splits (``train``, ``val`` or ``dev``, ``test``) lie at the top, they are
    the splits and every image must lie in one; else images are split by a hash of their paths.
    Hidden files are not looked at.
    """
    try:
        files = paths.find([root])
    except UsageError:
        return
    problems.sources.append(root)
    names = [file.relative_to(root) for file in files]
    own = not any(splits.named(name.parts[0]) for name in names if len(name.parts) > 1)
    for file, name in zip(files, names, strict=True):
        split = splits.own(name.as_posix()) if own else splits.named(name.parts[0])
        if split is None:
            problems.add("no-split", [name])
        sidecar = file.with_suffix(".txt")
        found: list[str] = []
        try:
            found = [line for line in lines(sidecar) if line] if sidecar.is_file() else []
        except DataError as error:
            problems.add("file", [error])
        captions = tuple(said(found, name, problems))
        if not captions:
            problems.add("no-captions", [name])
        yield Record(name.as_posix(), str(file), captions, split or TRAIN)
    with_captions = {file.with_suffix("") for file in files}
    problems.add(
        "no-image",
        (
            text.relative_to(root)
            for text in sorted(root.rglob("*.txt"))
            if text.with_suffix("") not in with_captions
            and not any(part.startswith(".") for part in text.relative_to(root).parts)
        ),
    )
