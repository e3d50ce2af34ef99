"""Write captions for photos.

captioner caption photo.jpg holiday/ 'scans/*.tif'
captioner caption holiday/ --model transformer --format csv --output captions.csv
captioner caption library/ --output captions/    # any number of photos, resumable
"""

import argparse
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.cli.arguments import add_inputs, open_output, positive, writes_folder
from captioner.cli.progress import captioning, loading, report_failures
from captioner.cli.writers import WRITERS
from captioner.errors import UsageError

if TYPE_CHECKING:
    from captioner.batch.batch_captioner import InProcess
    from captioner.batch.local_engine import LocalEngine
    from captioner.batch.ray_engine import RayEngine
    from captioner.batch.rows import Row

    Engine = InProcess | LocalEngine | RayEngine

ADVANCED = ("batch_size", "engine", "workers", "shard_size", "retry")
FEW = 128
"""With fewer photos than this, one process finishes before worker processes have started."""
FOLDER_FORMATS = ("jsonl", "parquet")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``caption``."""
    add_inputs(parser)
    parser.add_argument(
        "--format",
        choices=sorted({*WRITERS, *FOLDER_FORMATS}),
        default=argparse.SUPPRESS,
        help=f"a file: {' '.join(sorted(WRITERS))} (default: text); "
        f"a folder: {' '.join(FOLDER_FORMATS)} (default: jsonl)",
    )
    parser.add_argument(
        "--output",
        metavar="FILE|DIR",
        help="file or folder to write (default: standard output). A folder, or a name that ends with /, "
        "gets shards and a manifest, and the same call resumes after an interruption. --format "
        "parquet and the options below always write a folder",
    )
    folder = parser.add_argument_group("options for a folder", argument_default=argparse.SUPPRESS)
    folder.add_argument(
        "--engine",
        choices=("local", "ray"),
        help="processes on this machine, or Ray Data on a cluster (default: local)",
    )
    folder.add_argument(
        "--workers",
        type=positive,
        metavar="N",
        help="processes that each load the model (default: one per CPU core; on a GPU, one; "
        "with Ray, one per GPU)",
    )
    folder.add_argument(
        "--shard-size",
        type=positive,
        metavar="N",
        help="records per shard; an interruption loses at most one shard (default: 1000)",
    )
    folder.add_argument(
        "--retry", action="store_true", help="try photos again that failed in an earlier call"
    )


def run(options: argparse.Namespace) -> int:
    """Write the captions; return 0, or 1 if some photos could not be read."""
    file_format = vars(options).get("format")
    if not writes_folder(options):
        return _write_file(options, file_format or "text")
    if options.output is None:
        cause = "--format parquet" if file_format == "parquet" else "this engine"
        raise UsageError(f"{cause} writes into a folder: give it with --output DIR")
    if file_format not in (None, *FOLDER_FORMATS):
        raise UsageError(
            f"cannot write '{options.output}': a folder holds {' or '.join(FOLDER_FORMATS)}, not "
            f"{file_format}; give --format, or the name of a file"
        )
    return _write_folder(options, file_format or "jsonl")


def _write_file(options: argparse.Namespace, file_format: str) -> int:
    from captioner.paths import find

    for path in options.inputs:
        if re.match(r"(s3|gs|gcs|abfss?|hdfs)://", path):
            raise UsageError(f"'{path}' is in an object store: give a folder with --output DIR/")
    paths = find(options.inputs)
    failed = 0

    def results() -> "Iterator[tuple[Path, Row]]":
        nonlocal failed
        for path, row in zip(paths, _in_order(paths, engine(batches)), strict=True):
            failed += _reported(row)
            yield path, row
            advance()

    few = len(paths) < FEW
    batches = _batches(map(str, paths), options.batch_size)
    with (
        _engine(options, {}, few) as engine,
        captioning(lambda: len(paths)) as advance,
        open_output(options.output) as stream,
    ):
        WRITERS[file_format](results(), stream)
    return report_failures(failed, len(paths))


def _in_order(paths: Iterable[Path], rows: "Iterable[Row]") -> "Iterator[Row]":
    """Yield the rows of engines, which arrive in the order of completion, in the order of paths."""
    from captioner.batch.rows import encodable

    arrived: dict[str, Row] = {}
    source = iter(rows)
    for path in paths:
        name = encodable(str(path))
        while name not in arrived:
            row = next(source)
            arrived[row["image"]] = row
        yield arrived.pop(name)


def _write_folder(options: argparse.Namespace, file_format: str) -> int:
    from captioner.batch import output_folder
    from captioner.batch.sources import Sources

    sources = Sources(options.inputs)
    names = iter(sources)
    first = list(islice(names, 1))  # reports missing inputs before the model is loaded
    folder = Path(options.output)
    settings = {k: v for k, v in vars(options).items() if k in ("shard_size", "retry")}

    def count() -> int | None:
        return None if sources.stores else sum(1 for _ in sources)

    with (
        _engine(options, {"sources": sources}) as engine,
        output_folder.open_shards(folder, file_format, engine.identity, **settings) as shards,
        captioning(count, shards.counts["captioned"] + shards.counts["failed"]) as advance,
    ):
        pending = (name for name in chain(shards.retried, first, names) if shards.claim(name))
        for row in engine(_batches(pending, options.batch_size)):
            _reported(row)
            shards.add(row)
            advance()
    captioned, failed = shards.counts["captioned"], shards.counts["failed"]
    print(f"{captioned} captions in {folder}")
    listing = f"; '{folder / output_folder.MANIFEST}' lists them; try them again with --retry"
    return report_failures(failed, captioned + failed, listing)


@loading()
def _engine(
    options: argparse.Namespace, arguments: Mapping[str, Any], few: bool = False
) -> "Engine":
    given = vars(options)
    search = {"beam_size": given["beam_size"]} if "beam_size" in given else {}
    arguments = {"model": options.model, "device": options.device, **search, **arguments}
    if given.get("engine") == "ray":
        from captioner.batch.ray_engine import RayEngine

        return RayEngine(arguments, given.get("workers"), options.batch_size)
    if not few:
        from captioner.batch.local_engine import LocalEngine

        return LocalEngine(arguments, given.get("workers"))
    import torch

    from captioner.batch.batch_captioner import InProcess
    from captioner.fast.malloc import keep_memory

    warnings.filterwarnings("ignore", module="PIL")  # about damaged files that it can read
    keep_memory()
    # On a busy machine, several threads wait for each other, which takes three times as long.
    torch.set_num_threads(1)
    return InProcess(arguments)


def _reported(row: "Row") -> bool:
    """Report the error of a photo, if it has one."""
    if "error" in row:
        print(f"captioner: {row['error']['message']}", file=sys.stderr)
    return "error" in row


def _batches(names: Iterator[str], size: int) -> Iterator[list[str]]:
    """Yield batches that grow to a size, so that the first captions appear soon."""
    for count in chain((8, 16, 32), repeat(size)):
        batch = list(islice(names, min(count, size)))
        if not batch:
            return
        yield batch
