"""Every error this package raises on purpose.

CaptionerError
├── UsageError        the call itself is wrong: an option, a combination, a missing argument
├── DataError         a data set cannot be used: files missing, broken JSON, an empty split
├── ImageError        one picture cannot be read; a batch goes on without it
├── ModelError        a model cannot be built: an unknown class, encoder or option, sizes that disagree
├── CheckpointError   a stored model cannot be loaded: missing, cut, too new, of another vocabulary
└── EvaluationError   captions cannot be scored: wrong ids, nothing to score, a broken tool

A message is one line that says what was given, what was expected and what to do. The command line
prints just that line; the traceback comes with ``--debug``.
"""

import difflib
from collections.abc import Iterable


class CaptionerError(Exception):
    """Base of all errors above: catch it to catch them all."""


class UsageError(CaptionerError):
    """The call itself is wrong: an option, a combination of options, a missing argument."""


class DataError(CaptionerError):
    """A data set cannot be used: files missing, broken JSON, an empty split."""


class ImageError(CaptionerError):
    """One picture cannot be read; a batch goes on without it."""


class ModelError(CaptionerError):
    """A model cannot be built: an unknown class, encoder or option, sizes that disagree."""


class CheckpointError(CaptionerError):
    """A stored model cannot be loaded: missing, cut, too new, or of another vocabulary."""


class EvaluationError(CaptionerError):
    """Captions cannot be scored: wrong ids, nothing to score, a broken tool."""


def unknown(kind: str, name: str, known: Iterable[str], limit: int = 8) -> str:
    """A message for a name that does not exist, the nearest known names first.

    >>> unknown("decoder", "LSTMDecode", ["TransformerDecoder", "LSTMDecoder"])
    "unknown decoder 'LSTMDecode'; known: LSTMDecoder, TransformerDecoder"
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=limit, cutoff=0.4)
    ordered = near + [n for n in names if n not in near]
    listed = ", ".join(ordered[:limit]) + (", …" if len(ordered) > limit else "")
    return f"unknown {kind} {name!r}; known: {listed}"


def printable(text: str, limit: int = 200) -> str:
    """One line of printable characters: names and the messages of others may hold anything.

    >>> printable("a\\nb")
    'a\\\\nb'
    """
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return line if len(line) <= limit else line[: limit - 1] + "…"
