"""The exceptions of this package.

Each message is one line that says what was given, what was expected and what to do. The command
line prints only that line, and the traceback with ``--debug``.
"""

import difflib
import logging
import re
from collections.abc import Iterable
from functools import cache

NAME_LIMIT = 300  # longer names are cut in the middle in messages


class CaptionerError(Exception):
    """Base class of all errors of this package; their text is one printable line."""

    def __str__(self) -> str:
        return one_line(super().__str__())


class UsageError(CaptionerError):
    """A wrong call: an option, a combination of options, or a missing argument."""


class DataError(CaptionerError):
    """A data set cannot be used: files missing, broken JSON, an empty split."""


class ImageError(CaptionerError):
    """One image cannot be read; the rest of a batch is unaffected."""


class ModelError(CaptionerError):
    """A model cannot be built: an unknown class, encoder or option, or sizes that do not match."""


class CheckpointError(CaptionerError):
    """A stored model cannot be loaded: missing, truncated, too new, or for another vocabulary."""


class EvaluationError(CaptionerError):
    """Captions cannot be scored: wrong ids, nothing to score, a broken tool."""


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Return a message about an unknown name that lists the known names, the most similar first."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=8, cutoff=0.4)
    ordered = near + [n for n in names if n not in near]
    listed = ", ".join(ordered[:16]) + (", …" if len(ordered) > 16 else "")
    return f"unknown {kind} {name!r}; known: {listed or 'none'}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question about the most similar known name, ``(did you mean --model?)``, or nothing."""
    near = difflib.get_close_matches(name, list(known), 1, 0.6)
    return f" (did you mean {near[0]}?)" if near else ""


def printable(text: str, limit: int = 200) -> str:
    """Return text as one line of printable characters, with escapes for others, cut in the middle.

    >>> printable("a\\nb"), printable("0123456789", limit=5)
    ('a\\\\nb', '01…89')
    """
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    half = (limit - 1) // 2
    return line if len(line) <= limit else f"{line[:half]}…{line[half + 1 - limit :]}"


def one_line(text: str) -> str:
    """Return a message as one printable line; names in it may come from hostile files."""
    shorter = re.sub(rf"\S{{{NAME_LIMIT},}}", lambda name: printable(name[0], NAME_LIMIT), text)
    return printable(shorter, limit=2000)


def joined(error: Exception, limit: int = 300) -> str:
    """Return the message of another library's exception as one printable line."""
    return printable(" ".join(str(error).split()), limit)


def os_error(error: OSError) -> str:
    """Return an error of the file system without its number: ``'a.txt': Permission denied``."""
    reason = error.strerror or str(error)
    return one_line(reason if error.filename is None else f"'{error.filename}': {reason}")


def plural(count: int, noun: str) -> str:
    """Return for example ``1 photo`` or ``1,200 photos``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


@cache
def notice(message: str) -> None:
    """Say once what was left out or is missing, as a warning of the logger ``captioner``."""
    logging.getLogger("captioner").warning("captioner: %s", one_line(message))
