"""COCO's Java programs, as shipped with pycocoevalcap: the Penn Treebank tokenizer and METEOR 1.5."""

import math
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from pycocoevalcap.meteor import meteor as meteor_module
from pycocoevalcap.tokenizer import ptbtokenizer as ptb_module

from captioner.errors import EvaluationError
from captioner.fast.malloc import give_back_memory

PTB_JAR = Path(ptb_module.__file__).with_name(ptb_module.STANFORD_CORENLP_3_4_1_JAR)
METEOR_JAR = Path(meteor_module.__file__).with_name(meteor_module.METEOR_JAR)
TIMEOUT = 300.0  # seconds for each thousand captions
ADVICE = "repair or install Java, or score without it (java=False)"
# The serial garbage collector needs half as much memory as the default one and is as fast here.
OPTIONS = ("-XX:+UseSerialGC", "-Dfile.encoding=UTF-8", "-Duser.language=en")
PTB = ("-cp", str(PTB_JAR), "edu.stanford.nlp.process.PTBTokenizer", "-preserveLines", "-lowerCase")
# A small young generation leaves memory for METEOR's tables.
METEOR_OPTIONS = ("-", "-", "-stdio", "-l", "en", "-norm")
METEOR = ("-Xmx2G", "-Xmn48m", "-jar", str(METEOR_JAR), *METEOR_OPTIONS)

# A line break inside a caption would shift all following captions.
_LINE_BREAK = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")


class JavaError(EvaluationError):
    """Java is missing, crashes, exceeds its time limit, or gives an unexpected answer."""


def ptb_words(captions: Sequence[str]) -> list[str]:
    """Tokenize captions as pycocoevalcap's PTBTokenizer does; words are separated by spaces."""
    if not captions:
        return []
    text = "\n".join(_LINE_BREAK.sub(" ", caption) for caption in captions)
    lines = _run("the PTB tokenizer", PTB, text, len(captions))
    punctuation = frozenset(ptb_module.PUNCTUATIONS)
    words = [line.rstrip().split(" ") for line in lines]
    return [" ".join(word for word in caption if word not in punctuation) for caption in words]


def meteor_statistics(
    candidates: Sequence[str], references: Sequence[Sequence[str]]
) -> list[tuple[float, ...]]:
    """Return METEOR 1.5's statistics of each image; captions are tokenized."""
    text = ""
    for candidate, captions in zip(candidates, references, strict=True):
        cleaned = [caption.replace("|||", "") for caption in (*captions, candidate)]
        text += " ||| ".join(["SCORE", *cleaned]) + "\n"
    lines = _run("METEOR", METEOR, text, len(candidates) + 1)[:-1]
    try:
        return [tuple(map(float, line.split())) for line in lines]
    except ValueError as error:
        raise JavaError(f"METEOR gave an unexpected answer, {error}; {ADVICE}") from error


def _run(tool: str, arguments: Sequence[str], text: str, lines: int) -> list[str]:
    """Run ``java`` on a text and return its output, which must have this number of lines."""
    give_back_memory()  # leaves more memory to Java
    command, limit = ["java", *OPTIONS, *arguments], TIMEOUT * math.ceil(lines / 1000)
    try:
        done = subprocess.run(
            command, input=text.encode(errors="replace"), capture_output=True, timeout=limit
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaError(f"{tool} failed: {error}; {ADVICE}") from error
    printed = done.stdout.decode(errors="replace").split("\n")
    if done.returncode or len(printed) != lines:
        reported = " ".join(done.stderr.decode(errors="replace").split())[:500]
        found = f"exit status {done.returncode}, {len(printed)} lines for {lines}"
        raise JavaError(f"{tool} failed: {found}; {reported or 'no message'}; {ADVICE}")
    return printed
