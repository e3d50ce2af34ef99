"""COCO's Java programs: Stanford's Penn Treebank tokenizer and METEOR 1.5, from pycocoevalcap.

Each call starts the program, feeds it, and is rid of it at the end, however that comes about: it
never outlives its time limit, and whatever goes wrong is one ``JavaError``.
"""

import contextlib
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from pycocoevalcap.meteor import meteor as meteor_module
from pycocoevalcap.tokenizer import ptbtokenizer as ptb_module

from captioner.errors import EvaluationError
from captioner.memory import give_back_memory

PTB_JAR = Path(ptb_module.__file__).with_name(ptb_module.STANFORD_CORENLP_3_4_1_JAR)
METEOR_JAR = Path(meteor_module.__file__).with_name(meteor_module.METEOR_JAR)
TIMEOUT = 300.0
# The collector of one thread needs half the memory of Java's choice, and no more time.
OPTIONS = ("-XX:+UseSerialGC", "-Dfile.encoding=UTF-8", "-Duser.language=en")


class JavaError(EvaluationError):
    """Java is missing, crashes, hangs or answers nonsense."""


# What Stanford's tokenizer takes for the end of a line, and str.splitlines() besides: one of these
# inside a caption would shift all captions after it.
_LINE_BREAK = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")


def ptb_words(captions: Sequence[str], timeout: float) -> list[str]:
    """What pycocoevalcap's PTBTokenizer gives, without its temporary file in site-packages."""
    if not captions:
        return []
    text = "\n".join(_LINE_BREAK.sub(" ", caption) for caption in captions)
    command = ("-cp", str(PTB_JAR), "edu.stanford.nlp.process.PTBTokenizer")
    limit = timeout * math.ceil(len(captions) / 1000)
    with _java("the PTB tokenizer", *command, "-preserveLines", "-lowerCase", limit=limit) as java:
        output, _ = java.communicate(text.encode(errors="replace"))
        lines = output.decode().split("\n")
        if len(lines) != len(captions):
            raise ValueError(f"{len(lines)} lines for {len(captions)} captions")
    dropped = frozenset(ptb_module.PUNCTUATIONS)
    return [
        " ".join(word for word in line.rstrip().split(" ") if word not in dropped) for line in lines
    ]


def meteor_score(
    given: Sequence[str], truth: Sequence[Sequence[str]], timeout: float
) -> tuple[float, list[tuple[float, ...]]]:
    """METEOR 1.5 of tokenized captions, 0-1: statistics of each image, then all scored together.

    The score of all, and the statistics of each.
    """
    # Most of what it makes is forgotten at once: little room for that leaves its tables the memory.
    command = (
        "-Xmx2G",
        "-Xmn48m",
        "-jar",
        str(METEOR_JAR),
        "-",
        "-",
        "-stdio",
        "-l",
        "en",
        "-norm",
    )
    limit = timeout * math.ceil(len(given) / 1000)
    with _java("METEOR", *command, limit=limit) as java:
        assert java.stdin is not None
        assert java.stdout is not None
        statistics = []
        for candidate, references in zip(given, truth, strict=True):
            captions = [caption.replace("|||", "") for caption in (*references, candidate)]
            java.stdin.write((" ||| ".join(["SCORE", *captions]) + "\n").encode())
            java.stdin.flush()
            statistics.append(java.stdout.readline().decode().strip())
            if not re.fullmatch(r"[-+.\dE ]+", statistics[-1]):
                raise ValueError(f"an unexpected answer, {statistics[-1]!r}")
        java.stdin.write((" ||| ".join(["EVAL", *statistics]) + "\n").encode())
        java.stdin.flush()
        for _ in statistics:
            java.stdout.readline()  # one score for each image, then that of all
        score = float(java.stdout.readline())
    return score, [tuple(map(float, line.split())) for line in statistics]


@contextlib.contextmanager
def _java(tool: str, *arguments: str, limit: float) -> Iterator[subprocess.Popen[bytes]]:
    """A running Java program, which is gone when the block ends, however it ends.

    It is killed after ``limit`` seconds. That, a bad exit status, and an ``OSError`` or
    ``ValueError`` of the block become a ``JavaError``.
    """
    give_back_memory()  # Java needs some, too
    problem, expired = "", threading.Event()
    with tempfile.TemporaryFile() as log:  # a pipe that nobody reads meanwhile could fill up
        try:
            java = subprocess.Popen(
                ["java", *OPTIONS, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # what _kill needs
            )
        except OSError as error:
            raise JavaError(f"java does not start ({error})") from error

        def expire() -> None:
            expired.set()
            _kill(java)

        watchdog = threading.Timer(limit, expire)
        watchdog.daemon = True
        watchdog.start()
        try:
            try:
                yield java
            except (OSError, ValueError) as error:
                problem = str(error)
            java.communicate()  # closes its input, at which it ends
        finally:
            watchdog.cancel()
            _kill(java)
            java.communicate()  # closes its pipes
        log.seek(0)
        said = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
    if expired.is_set():
        problem = f"not done after {limit:g} s"
    elif java.returncode != 0:
        telling = [line for line in said if re.search("error|exception|unable", line, re.I)]
        problem = next(iter(telling + said[-1:]), "") or f"exit status {java.returncode}"
    if problem:
        raise JavaError(f"{tool} failed in java: {problem}")


def _kill(java: subprocess.Popen[bytes]) -> None:
    """Ends ``java`` and, where that is a shell script, also the program it started."""
    if java.poll() is not None:
        return
    if sys.platform == "win32":
        java.kill()
    else:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(java.pid, signal.SIGKILL)
