"""``captioner data check``: all that is wrong with a data set at once, and what is in it.

Nothing heavy is imported before ``run``; the command line's help needs the options only.
"""

import argparse
import json
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from captioner.options import positive

if TYPE_CHECKING:
    from captioner.data.readers.problems import Problems
    from captioner.data.statistics import Statistics

SHOWN = 10  # items of a kind in the text; the JSON has all


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``data check``, named as those of ``fit``."""
    parser.add_argument(
        "--data.name", dest="name", metavar="NAME", required=True, help="the kind of data set"
    )
    parser.add_argument(
        "--data.root", dest="root", metavar="DIR", required=True, help="its folder, as downloaded"
    )
    parser.add_argument(
        "--data.max_words",
        dest="max_words",
        metavar="N",
        type=positive,
        default=24,
        help="captions of more words are listed, because training cuts them",
    )
    parser.add_argument(
        "--data.min_count",
        dest="min_count",
        metavar="N",
        type=positive,
        default=5,
        help="how often a word must be said in training to be in the vocabulary",
    )
    parser.add_argument(
        "--workers",
        metavar="N",
        type=positive,
        default=os.cpu_count() or 1,
        help="processes that decode the images",
    )
    parser.add_argument("--format", choices=("text", "json"), default="text", help="of the report")


def run(options: argparse.Namespace, output: Any) -> int:
    """Writes the report; the exit status: 0 nothing is wrong, 1 problems were found.

    Args:
        options: of the command line.
        output: opens the stream to write to.

    Raises:
        DataError: there is no such data set.
    """
    from rich.console import Console
    from rich.progress import track

    from captioner.data.inspection import inspect
    from captioner.data.readers import nothing_in, scan
    from captioner.data.statistics import as_dict, statistics

    def progress(looks: Iterable[Any], total: int) -> Iterable[Any]:
        return track(looks, "decoding images", total, console=Console(stderr=True))

    records, problems = scan(options.name, options.root)
    if not records and not problems.found:
        raise nothing_in(options.root, options.name)
    inspect(records, problems, options.workers, progress)
    counted = statistics(records, problems, options.max_words, options.min_count)
    with output as stream:
        if options.format == "text":
            stream.write(_text(options, counted, problems))
        else:
            document = {
                "data": options.name,
                "root": str(options.root),
                **as_dict(counted),
                "problems": problems.as_list(),
            }
            json.dump(document, stream, indent=2, ensure_ascii=False)
            stream.write("\n")
    return 1 if problems.found else 0


def _text(options: argparse.Namespace, counted: "Statistics", problems: "Problems") -> str:
    from captioner.data.statistics import mean, quantile

    lengths, per_image = counted.caption_lengths, counted.captions_per_image
    lines = [f"{options.name} in {options.root}"]
    for split, images in counted.images.items():
        lines.append(f"  {split:5}  {images:9,} images  {counted.captions[split]:9,} captions")
    if lengths:
        lines += [
            f"  captions of an image: {min(per_image)} to {max(per_image)}, "
            f"{mean(per_image):.2f} on average",
            f"  words of a caption: {min(lengths)} to {max(lengths)}, {mean(lengths):.2f} on average, "
            f"median {quantile(lengths, 0.5)}",
        ]
    lines.append(
        f"  vocabulary: {counted.vocabulary:,} words said {counted.min_count} times or more in the "
        f"training captions, of {counted.different_words:,}"
    )
    for split, covered in counted.coverage.items():
        lines.append(
            f"    knows {covered.words:.1f} % of the words of {split}, and every word in "
            f"{covered.captions:.1f} % of its captions"
        )
    if not problems.found:
        lines += ["", "no problems found"]
    for problem in problems.as_list():
        lines += ["", f"{problem['count']:,} {problem['what']}"]
        lines += [f"  {item}" for item in problem["items"][:SHOWN]]
        if problem["count"] > SHOWN:
            lines.append(f"  … and {problem['count'] - SHOWN:,} more (--format json lists all)")
    return "\n".join(lines) + "\n"
