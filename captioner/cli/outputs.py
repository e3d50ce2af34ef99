"""Checks of a command's outputs, such as that none is an input and that each can be written."""

import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

from captioner.errors import UsageError
from captioner.photos import paths
from captioner.store.model_folder import BEST, CONFIG, MODEL

MODEL_FILES = (CONFIG, f"{MODEL}/{CONFIG}", str(BEST))
RAW = (".arw", ".cr2", ".cr3", ".dng", ".nef", ".orf", ".raf", ".raw", ".rw2")
OTHERS = (".eps", ".ico", ".jfif", ".jp2", ".jpe", ".jxl", ".psd")
SPECIAL = re.compile(r"/(proc|dev(?!/shm/))/")  # devices and open files, such as /dev/stdout
PHOTOS = {*paths.SUFFIXES, ".svg", *RAW, *OTHERS}  # including formats that the package cannot read

GENERATOR = '<meta name="generator" content="captioner">'  # in captioner/overlay/base.html
PNG = r"\x89PNG.*tEXtSoftware\0captioner"
# Patterns of the files that captioner writes, by what they hold, for their beginning and their end,
# where PDF files name their creator. In captions as text, a photo may have another suffix; its line is
# then recognised by a caption of several words, rare in tables.
_PATTERNS = {
    "captions": (
        rf"[^\t\n]+({'|'.join(map(re.escape, paths.SUFFIXES))})\t",
        r"[^\t\n]+\t[^\t\n]+ [^\t\n]+\n",
        r'\{"image": "',
        r"image,caption,log_prob,error\r?\n",
        r'\[\n \{\n  "image_id": |\[\]\n',
    ),
    "scores": (r'\{\n  "bleu_1": ',),
    "a report of captioner ground": (r'\{\n  "command": "[^\n]+\n  "model": ',),
    "the statistics of a report": (r'\{"image_id": [^\n]{1,300}?, "ratios": \{',),
    "a report of captioner data check": (
        r'\{\n  "data": "[^\n]+\n  "root": ',
        r"[\w-]+ in [^\n]+\n.*\n  vocabulary: [\d,]+ words? of ",
    ),
    "a comparison": (
        r"\|[^\n]+\n\|[-: |]+\n\| \*\*(captions|grounding|faithfulness|speed|size)\b",
        r"section,setting,measure,run,",
        r'\{\n "runs": \[',
        PNG,
    ),
    "a map": (
        PNG,
        r"<\?xml.*<svg.*<dc:title>captioner</dc:title>",
        r"%PDF.*/Creator \(captioner\)",
        r"GIF8.*captioner",
        rf"<!doctype html>.*{GENERATOR}",
        r'\{"image": "(\\.|[^"\\])*", "size": \[',
        r"index,word,row,column,weight\b",
        r"PK\x03\x04.{26}weights\.npy",
    ),
}
_OWN = {
    kind: re.compile("|".join(patterns).encode(), re.IGNORECASE | re.DOTALL)
    for kind, patterns in _PATTERNS.items()
}


def check_replaced(file: Path, kind: str, overwrite: bool = False) -> None:
    """Refuse a file that exists and is not like captioner's files of this kind.

    Raises:
        UsageError: the file holds something else, or it is a folder or a device.
    """
    if file.exists() and not file.is_file():
        raise UsageError(f"cannot write '{file}': it is not a regular file; give another --output")
    if overwrite or not file.exists():
        return
    with file.open("rb") as stream:
        content = stream.read(8192)
        stream.seek(max(8192, file.stat().st_size - 65536))
        content += stream.read()
    if content and not _OWN[kind].match(content):
        raise UsageError(
            f"'{file}' exists and holds something other than {kind}: give another --output, or "
            "--overwrite to replace it"
        )


def check_text(file: Path) -> None:
    """Check the file that a command writes text to."""
    problem = None
    target = Path(os.path.realpath(file))  # Path.resolve raises for links in circles
    special = any(map(SPECIAL.match, (str(file.absolute()), str(target))))
    if special or file.name == "-" or (file.exists() and not file.is_file() and not file.is_dir()):
        problem = "it is not a regular file; leave --output out to write to standard output"
    elif not target.parent.is_dir():
        problem = f"the folder '{target.parent}' does not exist"
    elif file.is_dir():
        problem = "it is a folder; give the name of a file"
    elif file.exists() and not os.access(file, os.W_OK):
        problem = "it is read-only; give the name of another file"
    elif file.suffix.lower() in PHOTOS:
        problem = "it is named like a photo; give a name that ends with .txt or .json"
    if problem:
        raise UsageError(f"cannot write '{file}': {problem}")
    _check_writable(target.parent)


def check_directory(folder: Path, inputs: Iterable[Path] = ()) -> None:
    """Check the folder that a command writes files into."""
    parts = (folder, *folder.absolute().parents)
    existing = next(path for path in parts if path.exists() or path.is_symlink())
    problem = None
    if not existing.is_dir():
        problem = f"'{existing}' is {'a file' if existing.exists() else 'a broken link'}"
    elif folder.exists() and any(path.is_dir() and folder.samefile(path) for path in inputs):
        problem = "it is an input or holds one"
    if problem:
        raise UsageError(f"cannot write into '{folder}': {problem}; give another folder")
    _check_writable(existing)


def check_export(folder: Path, model: Path, overwrite: bool) -> None:
    """Check the folder that a model is exported into."""
    check_directory(folder)
    files = [model, *(model / name for name in MODEL_FILES)]
    if any(file.is_file() and folder.resolve() in file.resolve().parents for file in files):
        raise UsageError(f"cannot write into '{folder}': it is an input; give another folder")
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise UsageError(
            f"'{folder}' exists and is not empty; give another folder, or --overwrite to replace a model"
        )


def check_overlap(output: Path, inputs: Iterable[Path]) -> None:
    """Refuse an existing output that is also an input, even by way of a link."""
    if not output.exists():
        return
    status = output.stat()
    for file in inputs:
        if file.exists() and os.path.samestat(status, file.stat()):
            raise UsageError(
                f"cannot write '{output}': it is an input ('{file}'); give another --output"
            )


def _check_writable(folder: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        advice = "check the path, its permissions and the disk"
        raise UsageError(f"cannot write into '{folder}': {error.strerror}; {advice}") from error
