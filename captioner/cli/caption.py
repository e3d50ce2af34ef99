"""Write captions for photos.

captioner caption photo.jpg holiday/ 'scans/*.tif'
captioner caption holiday/ --model transformer --format csv --output captions.csv
captioner caption library/ --output captions/    # any number of photos, resumable
"""

import argparse
import sys
import warnings
from collections.abc import Iterable, Iterator
from itertools import chain, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner import paths
from captioner.batch.output_folder import MANIFEST, Shards
from captioner.batch.rows import Row, encodable
from captioner.batch.sources import Sources
from captioner.cli.arguments import add_inputs, open_output, positive, writes_folder
from captioner.cli.progress import captioning, loading, report_failures
from captioner.cli.writers import WRITERS
from captioner.errors import UsageError

if TYPE_CHECKING:
    from captioner.batch.batch_captioner import InProcess
    from captioner.batch.local_engine import LocalEngine
    from captioner.batch.ray_engine import RayEngine

ADVANCED = ("batch_size", "engine", "workers", "shard_size", "retry")
FEW = 128
"""With fewer photos than this, one process finishes before worker processes have started."""
FOLDER_FORMATS = ("jsonl", "parquet")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``caption``."""
    add_inputs(parser)
    files, folders = " ".join(sorted(WRITERS)), " ".join(FOLDER_FORMATS)
    parser.add_argument(
        "--format",
        choices=sorted({*WRITERS, *FOLDER_FORMATS}),
        default=argparse.SUPPRESS,
        help=f"a file: {files} (default: text); a folder: {folders} (default: jsonl)",
    )
    parser.add_argument(
        "--output",
        metavar="FILE|DIR",
        help="file or folder to write (default: standard output). A folder, or a name that ends with /, "
        "gets shards and a manifest, and the same call resumes after an interruption. --format "
        "parquet and the options below always write a folder",
    )
    folder = parser.add_argument_group("options for a folder", argument_default=argparse.SUPPRESS)
    text = "processes on this machine, or Ray Data on a cluster (default: local)"
    folder.add_argument("--engine", choices=("local", "ray"), help=text)
    text = "processes that each load the model"
    default = "one per CPU core; on a GPU, one; with Ray, one per GPU"
    folder.add_argument(
        "--workers", type=positive, metavar="N", help=f"{text} (default: {default})"
    )
    text = "records per shard; an interruption loses at most one shard (default: 1000)"
    folder.add_argument("--shard-size", type=positive, metavar="N", help=text)
    text = "retry photos that failed in an earlier call"
    folder.add_argument("--retry", action="store_true", help=text)


def run(options: argparse.Namespace) -> int:
    """Write the captions; return 0, or 1 if some photos could not be read."""
    file_format = vars(options).get("format")
    if not writes_folder(options):
        return _write_file(options, file_format or "text")
    if options.output is None:
        raise UsageError("these options write into a folder: give it with --output DIR")
    if file_format not in (None, *FOLDER_FORMATS):
        raise UsageError(
            f"cannot write '{options.output}': a folder holds {' or '.join(FOLDER_FORMATS)}, not "
            f"{file_format}; give --format, or the name of a file"
        )
    return _write_folder(options, file_format or "jsonl")


def _write_file(options: argparse.Namespace, file_format: str) -> int:
    for name in options.inputs:
        if "://" in name:
            raise UsageError(f"'{name}' is in an object store: give a folder with --output DIR/")
    photos = paths.find(options.inputs)
    failed = 0

    def results() -> Iterator[tuple[Path, Row]]:
        nonlocal failed
        rows = engine(_batches(map(str, photos), options.batch_size))
        for path, row in zip(photos, _in_order(photos, rows), strict=True):
            failed += _reported(row)
            yield path, row
            advance()

    with (
        _engine(options, {}, few=len(photos) < FEW) as engine,
        captioning(lambda: len(photos)) as advance,
        open_output(options.output) as stream,
    ):
        WRITERS[file_format](results(), stream)
    return report_failures(failed, len(photos))


def _in_order(photos: Iterable[Path], rows: Iterator[Row]) -> Iterator[Row]:
    """Yield an engine's rows in the order of the photos; they arrive in the order of completion."""
    arrived: dict[str, Row] = {}
    for path in photos:
        name = encodable(str(path))
        while name not in arrived:
            row = next(rows)
            arrived[row["image"]] = row
        yield arrived.pop(name)


def _write_folder(options: argparse.Namespace, file_format: str) -> int:
    sources = Sources(options.inputs)
    names = iter(sources)
    first = list(islice(names, 1))  # reports missing inputs before the model is loaded
    folder = Path(options.output)
    settings = {k: v for k, v in vars(options).items() if k in ("shard_size", "retry")}

    def count() -> int | None:
        return None if sources.stores else sum(1 for _ in sources)

    with (
        _engine(options, {"sources": sources}) as engine,
        Shards(folder, file_format, engine.identity, **settings).opened() as shards,
        captioning(count, shards.counts["captioned"] + shards.counts["failed"]) as advance,
    ):
        pending = (name for name in chain(shards.retried, first, names) if shards.claim(name))
        for row in engine(_batches(pending, options.batch_size)):
            _reported(row)
            shards.add(row)
            advance()
    captioned, failed = shards.counts["captioned"], shards.counts["failed"]
    print(f"{captioned} captions in {folder}")
    listing = f"; '{folder / MANIFEST}' lists them; try them again with --retry"
    return report_failures(failed, captioned + failed, listing)


@loading()
def _engine(
    options: argparse.Namespace, arguments: dict[str, Any], few: bool = False
) -> "InProcess | LocalEngine | RayEngine":
    given = vars(options)
    common = {"model": options.model, "device": options.device, "beam_size": options.beam_size}
    arguments = common | arguments
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
    # On a busy machine, several threads wait for each other and take three times as long as one.
    torch.set_num_threads(1)
    return InProcess(arguments)


def _reported(row: Row) -> bool:
    """Report the error of a photo, if it has one."""
    if "error" in row:
        print(f"captioner: {row['error']['message']}", file=sys.stderr)
    return "error" in row


def _batches(names: Iterator[str], size: int) -> Iterator[list[str]]:
    """Yield batches that grow to a size, so that the first captions appear soon."""
    for count in chain((1, 2, 4, 8, 16, 32), repeat(size)):
        batch = list(islice(names, min(count, size)))
        if not batch:
            return
        yield batch
