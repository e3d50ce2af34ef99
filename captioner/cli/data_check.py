"""List all problems of a data set, and its size.

captioner data check --data.root DIR
captioner data check --data.name csv --data.root captions.csv --format json
"""

import argparse
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from captioner.cli.arguments import add_output, open_output, positive
from captioner.cli.outputs import check_files, files_below
from captioner.cli.progress import stages
from captioner.errors import one_line, plural

ADVANCED = ("max_words", "min_count", "workers", "overwrite")
MAX_ITEMS = 10  # per problem in the text; the JSON lists all


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``data check``; they have the names that ``fit`` uses."""
    from captioner.data.readers import READERS

    number: dict[str, Any] = {"metavar": "N", "type": positive}
    add = parser.add_argument
    words = "words of a caption that training keeps; longer captions are listed"
    count = "how often a word must occur in the training captions to be in the vocabulary"
    processes = "processes that decode the images"
    kinds = f"format of the data set (default: auto, which detects it): {', '.join(READERS)}"
    add("--data.name", dest="name", metavar="NAME", default="auto", choices=[*READERS], help=kinds)
    add("--data.root", dest="root", metavar="DIR", required=True, help="folder of the data set")
    add("--data.max_words", dest="max_words", default=24, help=words, **number)
    add("--data.min_count", dest="min_count", default=5, help=count, **number)
    add("--workers", default=os.cpu_count() or 1, help=processes, **number)
    add("--format", choices=("text", "json"), default="text", help="format of the report")
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Write the report; return 0, or 1 if there are problems; DataError if no data set is found."""
    from captioner.data.check import inspect, statistics
    from captioner.data.readers import Found, detect, scan

    def progress(images: Iterable[Any], total: int) -> Iterator[Any]:
        with stages() as show:
            show("decoding images", total)
            for image in images:
                yield image
                show("decoding images", total, 1)

    if options.output is not None:
        check_files([Path(options.output)], options.overwrite, files_below(options.root))
    found = Found(options.name, Path(options.root).expanduser(), [])
    if found.name == "auto" and found.source.exists():
        found = detect(found.source)
    records, problems = scan(found.name, found.source)
    inspect(records, problems, options.workers, progress)
    report = {
        "data": found.name,
        "root": str(found.source),
        "left_aside": found.left_aside,
        **statistics(records, problems, options.max_words, options.min_count),
        "problems": problems.as_list(),
    }
    text = json.dumps(report, indent=2, ensure_ascii=False)
    with open_output(options.output) as stream:
        print(text if options.format == "json" else "\n".join(_lines(report)), file=stream)
    return 1 if problems.found else 0


def _lines(report: dict[str, Any]) -> Iterator[str]:
    """The report as text."""
    from captioner.data.check import summary

    words, vocabulary = report["words_per_caption"], report["vocabulary"]
    yield f"{report['data']} in {one_line(report['root'])}"
    for split, images in report["images"].items():
        captions = plural(report["captions"][split], "caption")
        yield f"  {split:5}  {plural(images, 'image'):>16}  {captions:>18}"
    yield from (f"  left aside: {one_line(reason)}" for reason in report["left_aside"])
    if words["counts"]:
        per_image = summary(Counter(report["captions_per_image"]))
        average = "{least} to {most}, {mean:.2f} on average"
        yield f"  captions per image: {average.format(**per_image)}"
        yield f"  words per caption: {average.format(**words)}, median {words['median']}"
    yield (
        f"  vocabulary: {plural(vocabulary['words'], 'word')} of {vocabulary['different_words']:,}, "
        f"each {plural(vocabulary['min_count'], 'time')} or more in the training captions"
    )
    for split, covered in vocabulary["coverage"].items():
        yield (
            f"    covers {covered['words']:.1f} % of the words of {split}, and all words of "
            f"{covered['captions']:.1f} % of its captions"
        )
    if not report["problems"]:
        yield "\nno problems found"
    for problem in report["problems"]:
        yield f"\n{problem['what']}: {problem['count']:,}"
        yield from (f"  {one_line(item)}" for item in problem["items"][:MAX_ITEMS])
        if problem["count"] > MAX_ITEMS:
            yield f"  … and {problem['count'] - MAX_ITEMS:,} more (--format json lists all)"
