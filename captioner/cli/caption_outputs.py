"""Where ``captioner caption`` writes: a file, a folder, beside the photos, or a page.

Each ``write_`` function returns 0, or 1 if a photo could not be read or a caption could not be written.
"""

import argparse
import errno
import shutil
import sys
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import chain, islice, repeat
from pathlib import Path, PurePath
from typing import Any

from captioner.batch.inputs import Sources
from captioner.batch.output_folder import MANIFEST, Shards, refuse_foreign
from captioner.batch.rows import Row, encodable
from captioner.batch.sidecars import MAX_PHOTOS, PAGE, SHARDS, TABLE, Sidecars, check_page, signed
from captioner.cli.arguments import open_output
from captioner.cli.outputs import check_files, check_folder, model_files
from captioner.cli.progress import captioning, loading, report_failures
from captioner.cli.writers import WRITERS
from captioner.errors import DataError, UsageError, os_error, plural, printable
from captioner.files import write_text
from captioner.limits import SAMPLING
from captioner.photos import paths
from captioner.resources import HF

FEW = 128
"""With fewer photos than this, one process finishes before worker processes have started."""
GENERATION = (
    *("beam_size", "diverse_groups", "diversity", "min_length", *SAMPLING),
    *("num_captions", "confidence", "min_confidence"),
)


def write_file(options: argparse.Namespace, file_format: str) -> int:
    """Write all captions into one file, or to standard output."""
    photos = paths.find(options.inputs)
    if options.output is not None:
        inputs = [*photos, *model_files(options.model)]
        check_files([Path(options.output)], options.overwrite, inputs)
    failed = 0

    def results() -> Iterator[tuple[Path, Row]]:
        nonlocal failed
        rows = engine.rows(_batches(map(str, photos), options.batch_size))
        for path, row in zip(photos, rows, strict=True):
            failed += _reported(row)
            yield path, row
            advance()

    with (
        _engine(options, {}, len(photos) < FEW) as engine,
        captioning(lambda: len(photos)) as advance,
        open_output(options.output) as stream,
    ):
        WRITERS[file_format](results(), stream)
    return report_failures(failed, len(photos))


def write_folder(options: argparse.Namespace, file_format: str) -> int:
    """Write shards of captions and a manifest, and go on after an interruption."""
    sources = Sources(options.inputs)
    names = iter(sources)
    first = list(islice(names, 1))  # reports missing inputs before the model is loaded
    folder = Path(options.output)
    refuse_foreign(folder)
    check_folder(folder)
    settings = {k: v for k, v in vars(options).items() if k in ("shard_size", "retry")}

    def count() -> int | None:
        return None if sources.stores else sum(1 for _ in sources)

    with (
        _engine(options, {"sources": sources}) as engine,
        Shards(folder, file_format, engine.identity, **settings).opened() as shards,
        captioning(count, shards.images) as advance,
    ):
        pending = (name for name in chain(shards.retried, first, names) if shards.claim(name))
        for row in engine.rows(_batches(pending, options.batch_size)):
            _reported(row)
            shards.add(row)
            advance()
    print(f"{plural(shards.counts['captioned'], 'caption')} in {folder}")
    listing = f"; '{folder / MANIFEST}' lists them; try them again with --retry"
    return report_failures(shards.counts["failed"], shards.images, listing)


def write_sidecars(options: argparse.Namespace) -> int:
    """Write captions where the photos are; photos that keep their caption are not read."""
    settings = {k: v for k, v in vars(options).items() if k in ("existing", "prefix", "suffix")}
    sidecars, photos = Sidecars(options.write, **settings), paths.find(options.inputs)
    done: Counter[str] = Counter()
    pending: deque[Path] = deque()

    def report(error: Exception) -> None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise error  # it would also stop the other photos
        reason = os_error(error) if isinstance(error, OSError) else error
        print(f"captioner: {reason}", file=sys.stderr)
        done["refused"] += 1

    def unfinished() -> Iterator[str]:
        for photo in photos:
            try:
                finished = sidecars.is_finished(photo)
            except (DataError, OSError) as error:
                report(error)
                continue
            if finished:
                done["kept"] += 1
                continue
            pending.append(photo)
            yield str(photo)

    names = unfinished()
    first = list(islice(names, 1))
    if first:
        with (
            _engine(options, {}, len(photos) < FEW) as engine,
            captioning(lambda: len(photos), done.total()) as advance,
        ):
            shown = done.total()
            for row in engine.rows(_batches(chain(first, names), options.batch_size)):
                photo = pending.popleft()
                try:
                    if _reported(row):
                        done["failed"] += 1
                    elif row["caption"] and sidecars.write(photo, row["caption"]):
                        done["written"] += 1
                    else:
                        done["kept"] += 1
                except (DataError, OSError) as error:
                    report(error)
                advance(done.total() - shown)
                shown = done.total()
            advance(done.total() - shown)  # those that are kept after the last caption
    for notice in sidecars.notices:
        print(f"captioner: {notice}", file=sys.stderr)
    kept = f"{plural(done['kept'], 'photo')} left as {'it is' if done['kept'] == 1 else 'they are'}"
    print(f"{plural(done['written'], 'caption')} written, {kept}")
    status = report_failures(done["failed"], len(photos))
    refused = "captions could not be written for {}"
    return max(status, report_failures(done["refused"], len(photos), what=refused))


def write_page(options: argparse.Namespace) -> int:
    """Write a page of the captions of a folder; what it shows is kept in shards beside it."""
    folder = Path(options.inputs[0])
    if len(options.inputs) != 1 or not folder.is_dir():
        raise UsageError(
            f"--write html takes one folder of photos, got {' '.join(options.inputs)!r:.80}"
        )
    if vars(options).get("existing") == "append":
        raise UsageError(
            "--existing append cannot be used with --write html: edit the page instead"
        )
    check_folder(folder)
    photos = paths.find([folder])
    if len(photos) > MAX_PHOTOS:
        raise UsageError(
            f"a page holds at most {MAX_PHOTOS:,} photos, and '{folder}' has {len(photos):,}"
        )
    given = {k: v for k, v in vars(options).items() if k in ("existing", "prefix", "suffix")}
    sidecars, edited = Sidecars("html", **given), {}
    replaced = sidecars.existing == "overwrite"
    if replaced:
        shutil.rmtree(folder / SHARDS, ignore_errors=True)
    else:
        check_page(folder / PAGE)
        if (folder / TABLE).is_file():
            edited = _edited_captions(folder / TABLE)
    names = {encodable(photo.relative_to(folder).as_posix()): photo for photo in photos}
    failed = 0
    with (
        _engine(options, {"thumbnails": True}, len(photos) < FEW) as engine,
        Shards(
            folder / SHARDS,
            "jsonl",
            engine.identity,
            shard_size=options.batch_size,
            retry=True,
            advice="give --existing overwrite to caption all photos again",
        ).opened() as shards,
        captioning(lambda: len(photos), shards.counts["captioned"]) as advance,
    ):
        pending = [name for name in names if shards.claim(name)]
        batches = _batches((str(names[name]) for name in pending), options.batch_size)
        for name, row in zip(pending, engine.rows(batches), strict=True):
            failed += _reported(row)
            shards.add(row | {"image": name})
            advance()
    from captioner.overlay.review import page  # imports torch

    found = {row["image"]: row for row in shards.records() if "error" not in row}

    def text(name: str) -> str:
        if name in edited:
            return "\n".join(edited[name])
        words = ""
        if not replaced:
            try:
                words = sidecars.words(names[name])
            except (DataError, OSError) as error:  # the photo was captioned, so the page shows it
                print(f"captioner: {error}", file=sys.stderr)
        return words or sidecars.text(found[name]["caption"])

    shown = [
        {
            "name": name,
            "text": text(name),
            "confidence": found[name].get("confidence"),
            **found[name]["thumbnails"],
        }
        for name in names
        if name in found
    ]
    write_text(folder / PAGE, signed(page(folder.resolve().name, shown)))
    new = len(pending) - failed
    print(f"{plural(len(shown), 'caption')}, {new} of them new, in {folder / PAGE}")
    return report_failures(failed, len(photos))


def _edited_captions(table: Path) -> dict[str, list[str]]:
    """Read the captions that a person has saved from a page; DataError if a row cannot be read."""
    from captioner.data.readers.problems import Problems
    from captioner.data.readers.tables import csv_rows

    edited: dict[str, list[str]] = {}
    problems = Problems()
    problems.sources.append(table)
    for name, captions, _ in csv_rows(table, problems):
        edited.setdefault(PurePath(name.strip()).as_posix(), []).extend(captions)
    problems.check()
    return edited


@loading()
def _engine(options: argparse.Namespace, arguments: dict[str, Any], few: bool = False) -> Any:
    """Return a context manager of an object with ``rows(batches)`` and ``identity``."""
    given = vars(options)
    common = {name: given[name] for name in ("model", "device", *GENERATION)}
    arguments = common | arguments
    # A model of transformers is large, and slow on a CPU: one process with all cores, and more time.
    foreign = str(options.model).startswith(HF)
    workers = given.get("workers") or (1 if foreign else None)
    if given.get("engine") == "ray":
        from captioner.batch.ray_engine import RayEngine

        return RayEngine(arguments, workers, options.batch_size)
    if not few:
        from captioner.batch.local_engine import TIMEOUT, LocalEngine

        return LocalEngine(arguments, workers, 50 * TIMEOUT if foreign else None)
    import torch

    from captioner.batch.batch_captioner import BatchCaptioner
    from captioner.fast.malloc import keep_memory

    keep_memory()
    if not foreign:
        # On a busy machine, several threads wait for each other and take three times as long as one.
        torch.set_num_threads(1)
    return nullcontext(BatchCaptioner(**arguments))


def _reported(row: Row) -> bool:
    """Report the error of a photo, if it has one, or that its caption was left out."""
    if "error" in row:
        print(f"captioner: {row['error']['message']}", file=sys.stderr)
    elif not row["caption"]:
        reason = f": confidence {row['confidence']:.0%}" if "confidence" in row else ""
        print(f"captioner: '{printable(row['image'])}' has no caption{reason}", file=sys.stderr)
    return "error" in row


def _batches(names: Iterator[str], size: int) -> Iterator[list[str]]:
    """Yield batches that grow to a size, so that the first captions appear soon."""
    for count in chain((1, 2, 4, 8, 16, 32), repeat(size)):
        batch = list(islice(names, min(count, size)))
        if not batch:
            return
        yield batch
