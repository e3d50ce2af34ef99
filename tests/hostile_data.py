"""Hostile data sets, made by mutating small ones of every format, and a process that reads them.

    python hostile_data.py data|images FOLDER COUNT SEED

prints one JSON line for every case that raises, blocks, needs too much memory or prints a bad line.
"""

import contextlib
import copy
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from captioner.cli.main import main
from captioner.data import masks
from captioner.data.readers import read
from captioner.errors import CaptionerError
from captioner.evaluation import metrics
from captioner.photos import images
from layouts import captions_txt, coco, csv_text, entry, flickr8k, karpathy, picture, write
from mutations import cut, flip, grow, mutants

SECONDS, KILOBYTES, LINE = 10, 1_000_000, 2100  # limits of a case
DIGITS = 5000  # Python does not print such integers
TEXTS = [
    "",
    " ",
    "\0",
    "a\0b.jpg",
    "\x1b[31mred\x1b]0;title\x07",
    "two\nlines\r.jpg",
    "\u202egpj.exe",
]
TEXTS += ["\ud800", "\udcff.jpg", "x" * 5000, "x" * 300 + ".jpg", "../" * 2000, "/dev/zero"]
TEXTS += ["/dev/stdin", "~nobody/a.jpg", "a" * 70_000, "'a " * 20_000, "*", "[", "-", "\u2028"]
TEXTS += ["%s{0}", "train", "\x9b2J"]
VALUES = [*TEXTS, 0, -1, 2**63, 10**4000, 1e400, -1e400, float("nan"), 1.5, None, True, [], {}]
VALUES += [[[]], [1] * 10_000, {"id": 1}, "@DIGITS@", "@DEEP@"]
IMAGES = {"1.jpg": ["a dog", "the dog"], "2.jpg": ["a cat"]}
BOX = [2, 2, 20, 2, 20, 20, 2, 20]


def _coco(root: Path) -> None:
    coco(root, {"train2017": IMAGES, "val2017": {"3.jpg": ["a cow"]}})
    counts = [{"size": [32, 48], "counts": c} for c in ([100, 36, 1400], "T3`0P;")]
    content = {
        "images": [
            {"id": i, "file_name": f"{i}.jpg", "height": 32, "width": 48} for i in range(1, 3)
        ],
        "categories": [{"id": 1, "name": "dog"}, {"id": 2, "name": "baseball glove"}],
        "annotations": [
            {"id": i, "image_id": 1 + i % 2, "category_id": 1 + i % 2, "segmentation": s}
            for i, s in enumerate(([BOX], *counts))
        ],
    }
    write(root / "annotations" / "instances_train2017.json", json.dumps(content))


def _karpathy(root: Path) -> None:
    entries = [entry(i, f"{i}.jpg", "train", "a", filepath="p", cocoid=i) for i in range(3)]
    karpathy(root / "dataset_coco.json", entries)


def _flickr30k(root: Path) -> None:
    header = "image_name| comment_number| comment"
    write(root / "results.csv", f"{header}\n1.jpg| 0| a dog\n2.jpg| 4   a cat\n")
    write(root / "train.txt", "1\n2\n")
    (root / "flickr30k-images").mkdir()


def _table(root: Path) -> None:
    rows = [["image", "caption", "split"], ["1.jpg", "a, b", "train"], ["2.jpg", "c", "val"]]
    write(root / "a.csv", csv_text(rows))


def _lines(root: Path) -> None:
    rows = ({"image": name, "captions": texts, "split": "val"} for name, texts in IMAGES.items())
    write(root / "a.jsonl", "\n".join(map(json.dumps, rows)))


def _folder(root: Path) -> None:
    for name, texts in IMAGES.items():
        write(root / "train" / name), write(root / "train" / name.replace("jpg", "txt"), texts[0])


FORMATS: dict[str, Callable[[Path], Any]] = {
    "coco": _coco,
    "karpathy": _karpathy,
    "flickr8k": lambda root: flickr8k(root, {"train": IMAGES, "val": {"3.jpg": ["a cow"]}}),
    "flickr30k": _flickr30k,
    "csv": _table,
    "jsonl": _lines,
    "folder": _folder,
}


def mutated(rng: random.Random, root: Path) -> tuple[str, str]:
    """Write a data set and damage it; return its format and what was done."""
    name = rng.choice(list(FORMATS))
    FORMATS[name](root)
    if name == "flickr8k" and rng.random() < 0.3:
        shutil.rmtree(root)
        captions_txt(root, IMAGES)
    for number, file in enumerate(sorted(root.rglob("*.jpg"))):
        picture(file, number % 3)
    files = sorted(file for file in root.rglob("*") if file.is_file())
    done = []
    for _ in range(rng.choice((1, 1, 2, 4))):
        file = rng.choice([f for f in files if f.suffix != ".jpg"] * 4 + files)
        kinds = [_bytes, _text, _replace] + 4 * [_json] * (file.suffix in (".json", ".jsonl"))
        kind = rng.choice(kinds)
        with contextlib.suppress(OSError):  # an earlier step replaced the file
            done.append(f"{file.relative_to(root)}: {kind(rng, file)}")
    return name, "; ".join(done)


def _bytes(rng: random.Random, file: Path) -> str:
    kind = rng.choice((flip, cut, grow))
    file.write_bytes(kind(rng, _content(file)))
    return kind.__name__


def _text(rng: random.Random, file: Path) -> str:
    """Insert a text, or repeat or replace a line."""
    text, hostile = _content(file), rng.choice(TEXTS).encode("utf-8", "surrogatepass")
    at = rng.randrange(len(text) + 1)
    lines = text.split(b"\n")
    number = rng.randrange(len(lines))
    changed = rng.choice((lines[number] * 2, hostile, lines[number] + b"\n" + lines[number]))
    inserted = text[:at] + hostile + text[at:]
    with_line = b"\n".join([*lines[:number], changed, *lines[number + 1 :]])
    file.write_bytes(rng.choice((inserted, with_line)))
    return f"text {hostile[:30]!r} at {at} or line {number}"


def _json(rng: random.Random, file: Path) -> str:
    """Replace, remove or repeat a value."""
    lines = [_content(file)] if file.suffix == ".json" else _content(file).split(b"\n")
    number = rng.randrange(len(lines))
    try:
        document = json.loads(lines[number])
        parent, key = rng.choice(list(_nodes(document)))
    except (ValueError, IndexError, RecursionError):
        return "nothing"
    value = rng.choice([*VALUES, "@REMOVE@", "@REPEAT@"])
    if value == "@REMOVE@":
        del parent[key]
    elif value == "@REPEAT@" and isinstance(parent, list):
        parent.append(copy.deepcopy(parent[key]))
    else:
        parent[key] = value
    numbers = '"@DIGITS@"', "7" * DIGITS
    text = json.dumps(document).replace("1" + "0" * 4000, numbers[1][:4000]).replace(*numbers)
    lines[number] = text.replace('"@DEEP@"', "[" * 900 + "]" * 900).encode()
    file.write_bytes(b"\n".join(lines))
    return f"{key!r} = {value!r:.40}"


def _nodes(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a JSON document."""
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in list(items):
        yield node, key
        if isinstance(value, list | dict):
            yield from _nodes(value)


def _replace(rng: random.Random, file: Path) -> str:
    """Put something else in the place of a file, or give it another name."""
    kind = rng.choice(("pipe", "folder", "circle", "/dev/zero", "gone", "nowhere", "renamed"))
    if kind == "renamed":
        name = rng.choice(TEXTS).encode("utf-8", "surrogatepass")[:240].replace(b"/", b"_")
        file.rename(file.with_name(os.fsdecode(name.replace(b"\0", b"") + b".jpg")))
        return f"renamed {name[:30]!r}"
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    elif kind != "gone":
        file.symlink_to(file.name if kind == "circle" else kind)
    return kind


def _content(file: Path) -> bytes:
    if not file.is_file():
        raise FileNotFoundError
    return file.read_bytes()


class TooSlow(BaseException):
    """Not an Exception, because those of decoders are caught."""


def _too_slow(*_: object) -> None:
    raise TooSlow


def problem_of(use: Callable[[], str]) -> str | None:
    """What is wrong with the lines that a call returns, or with the call."""
    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        printed = use()
    except TooSlow:
        return f"more than {SECONDS} s: {traceback.format_exc()[-700:]}"
    except BaseException:
        return traceback.format_exc()[-1500:]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start > KILOBYTES:
        return "more than 1 GB"
    lines = printed.splitlines() if printed.isascii() else printed.split("\n")
    wrong = [line for line in lines if not line.isprintable() or len(line) > LINE]
    return f"unusable line: {wrong[0]!r:.300}" if wrong else None


def used(name: str, root: Path) -> str:
    """Read a data set by the command, for training and with its masks; return all that is printed."""
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        command = ["data", "check", "--data.name", name, "--data.root", str(root), "--workers=1"]
        assert main(command) in (0, 1, 2)
    assert "Traceback" not in error.getvalue()
    messages = [out.getvalue(), error.getvalue(), refusal(read, name, root)]
    for file in [*root.glob("annotations/*"), root / "a.jsonl"]:
        if file.is_file():
            uses = (read_masks, metrics.read_references, metrics.read_captions)
            messages += [refusal(use, file) for use in uses]
    return "\n".join(messages)


def refusal(use: Callable[..., Any], *arguments: Any) -> str:
    """The error of a call; empty without one."""
    try:
        use(*arguments)
    except CaptionerError as refused:
        return str(refused)
    return ""


def read_masks(file: Path) -> None:
    """Read all masks of a file, and decode them."""
    for image in masks.read(file, file.parent).images:
        if image.masks:
            image.truth(range(len(image.masks)), (7, 7))


def loaded(data: bytes, file: Path) -> str:
    """Load an image from memory and from a file; return the errors."""
    file.write_bytes(data)
    return "\n".join(refusal(images.load, source) for source in (data, file))


def run(kind: str, folder: Path, count: int, seed: int) -> None:
    """Run all cases and print the problems."""
    signal.signal(signal.SIGALRM, _too_slow)
    resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, 4 << 30))  # spares the machine
    if kind == "images":
        for name, data in mutants(count, seed):
            if problem := problem_of(lambda: loaded(data, folder / "image")):  # noqa: B023
                print(json.dumps({"case": name, "problem": problem}), flush=True)
        return
    for number in range(count):
        root = folder / "data"
        root.mkdir()
        name, done = mutated(random.Random(f"{seed} {number}"), root)
        if problem := problem_of(lambda: used(name, root)):  # noqa: B023
            print(json.dumps({"case": number, "done": done, "problem": problem}), flush=True)
        shutil.rmtree(root)


if __name__ == "__main__":
    began = time.monotonic()
    run(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    print(f"{time.monotonic() - began:.1f} s", file=sys.stderr)
