"""``captioner caption``: pictures in, sentences out; as one text, or as a folder for a whole library.

Nothing heavy is imported before ``run``; the command line's help needs the options only.
"""

import argparse
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from captioner.errors import UsageError
from captioner.options import positive
from captioner.writers import WRITERS, Stream

if TYPE_CHECKING:
    from captioner.errors import ImageError
    from captioner.library.cluster import Cluster
    from captioner.library.shards import Form
    from captioner.library.sources import Sources
    from captioner.library.workers import Workers
    from captioner.predictor import Caption

FOLDER_FORMATS = ("jsonl", "parquet")
ONLY_FOLDER = ("engine", "workers", "shard_size", "retry")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that only ``caption`` has."""
    formats = sorted({*WRITERS, *FOLDER_FORMATS})
    parser.add_argument(
        "--format",
        choices=formats,
        default=argparse.SUPPRESS,
        help=f"of a file: {' '.join(sorted(WRITERS))} (default: text); of a folder: "
        f"{' '.join(FOLDER_FORMATS)} (default: jsonl)",
    )
    parser.add_argument(
        "--output",
        metavar="FILE|DIR",
        help="where to write; standard output if not given. A name that ends with / or is a folder is "
        "a folder of shards with a manifest, for a whole library: the same call goes on where it was "
        "interrupted. So it is with --format parquet and any option below",
    )
    library = parser.add_argument_group("only for a folder")
    library.add_argument(
        "--engine",
        choices=("local", "ray"),
        default=argparse.SUPPRESS,
        help="processes on this machine, or Ray Data on a cluster (default: local)",
    )
    library.add_argument(
        "--workers",
        type=positive,
        default=argparse.SUPPRESS,
        metavar="N",
        help="processes that each hold the model (default: one per CPU core; on a GPU one, with Ray one "
        "per GPU)",
    )
    library.add_argument(
        "--shard-size",
        type=positive,
        default=argparse.SUPPRESS,
        metavar="N",
        help="records in a shard, and the most that an interruption costs (default: 1000)",
    )
    library.add_argument(
        "--retry",
        action="store_true",
        default=argparse.SUPPRESS,
        help="caption those again that failed before",
    )


def run(
    options: argparse.Namespace, output: Callable[[str | None], AbstractContextManager[Stream]]
) -> int:
    """Writes the captions; the exit status: 0 done, 1 some pictures could not be read."""
    given = vars(options)
    form = given.get("format")
    folder = (
        form == "parquet"
        or any(name in given for name in ONLY_FOLDER)
        or (options.output is not None and _is_folder(options.output))
    )
    if not folder:
        return _write(options, form or "text", output)
    if options.output is None:
        what = "--format parquet" if form == "parquet" else "this engine"
        raise UsageError(f"{what} writes into a folder: give it with --output DIR")
    if form not in (None, *FOLDER_FORMATS):
        raise UsageError(
            f"cannot write '{options.output}': a folder holds {' or '.join(FOLDER_FORMATS)}, not "
            f"{form}; give --format, or the name of a file"
        )
    return _write_library(options, form or "jsonl")


def _is_folder(output: str) -> bool:
    return output.endswith(("/", os.sep)) or Path(output).is_dir()


def _write(
    options: argparse.Namespace,
    form: str,
    output: Callable[[str | None], AbstractContextManager[Stream]],
) -> int:
    from captioner import predictor
    from captioner.errors import ImageError
    from captioner.paths import find

    for given in options.inputs:
        if re.match(r"(s3|gs|gcs|abfss?|hdfs)://", given):
            raise UsageError(f"'{given}' is in an object store: give a folder with --output DIR/")
    paths = find(options.inputs)
    warnings.filterwarnings("ignore", module="PIL")  # what it overlooks in damaged files
    target = output(options.output)  # an impossible one is named before the work
    model = predictor.load(options.model, options.device)
    decoding = model.decoding.with_options(_search(options))
    failed = 0

    def results() -> Iterator["tuple[Path, Caption | ImageError]"]:
        nonlocal failed
        found = model.captions(paths, decoding, options.batch_size)
        for path, result in zip(paths, found, strict=True):
            if isinstance(result, ImageError):
                failed += 1
                print(f"captioner: {result}", file=sys.stderr)
            yield path, result

    with target as stream:
        WRITERS[form](results(), stream)
    if failed:
        print(f"captioner: {failed} of {len(paths)} pictures could not be read", file=sys.stderr)
    return 1 if failed else 0


def _write_library(options: argparse.Namespace, form: "Form") -> int:
    from captioner.library import shards
    from captioner.library.sources import Sources

    sources = Sources(options.inputs)
    names = iter(sources)
    first = list(islice(names, 1))  # nothing there: said before the model is loaded
    folder = Path(options.output)
    shards.refuse_foreign(folder)
    given = vars(options)
    settings = {name: given[name] for name in ("shard_size", "retry") if name in given}
    with (
        _engine(options, sources) as engine,
        shards.opened(folder, form, engine.identity, **settings) as out,
        _progress() as advance,
    ):
        wanted = (n for n in chain(out.retried, first, names) if out.claim(n))
        for record in engine(_batches(wanted, options.batch_size)):
            if "error" in record:
                print(f"captioner: {record['error']['message']}", file=sys.stderr)
            out.add(record)
            advance()
    captioned, failed = out.counts["captioned"], out.counts["failed"]
    print(f"{captioned} captions in {folder}")
    if failed:
        print(
            f"captioner: {failed} of {captioned + failed} pictures could not be read; "
            f"'{folder / shards.MANIFEST}' names them, --retry tries them again",
            file=sys.stderr,
        )
    return 1 if failed else 0


def _engine(options: argparse.Namespace, sources: "Sources") -> "Workers | Cluster":
    given = vars(options)
    model = {
        "model": options.model,
        "device": options.device,
        "sources": sources,
        **_search(options),
    }
    if given.get("engine") == "ray":
        from captioner.library.cluster import Cluster

        return Cluster(model, given.get("workers"), options.batch_size)
    from captioner.library.workers import Workers

    return Workers(model, given.get("workers"))


def _search(options: argparse.Namespace) -> dict[str, int]:
    return {name: value for name, value in vars(options).items() if name == "beam_size"}


def _batches(names: Iterator[str], size: int) -> Iterator[list[str]]:
    while batch := list(islice(names, size)):
        yield batch


@contextmanager
def _progress() -> "Iterator[Callable[[], None]]":
    """A bar for those who watch; a call per record moves it."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("captioning", total=None)
        yield lambda: progress.advance(task)
