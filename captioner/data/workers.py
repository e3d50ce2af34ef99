"""A function of files, called in several processes, of which a file may kill one."""

import multiprocessing
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import TypeVar

CHUNK = 32  # files at a time, so that sending them costs nothing beside reading them

Result = TypeVar("Result")


def each(
    look: Callable[[str], Result], paths: Iterable[str], workers: int
) -> Iterator[Result | None]:
    """The results in the order of the paths; None for a file that killed the process.

    However many paths there are, only a few are on their way at a time.

    Args:
        look: a function of a module, which must not raise.
        paths: the files.
        workers: processes.
    """
    paths = iter(paths)
    chunks = iter(lambda: list(islice(paths, CHUNK)), [])
    waiting: deque[tuple[list[str], Future[list[Result]]]] = deque()
    pool = _pool(workers)
    try:
        while True:
            while len(waiting) < 2 * workers and (chunk := next(chunks, None)):
                waiting.append((chunk, pool.submit(_all, look, chunk)))
            if not waiting:
                return
            chunk, future = waiting.popleft()
            try:
                yield from future.result()
            except BrokenProcessPool:
                # One of the files on their way did it: those are looked at again, one by one.
                pool = _pool(workers)
                for suspects in [chunk, *(others for others, _ in waiting)]:
                    yield from _one_by_one(look, suspects)
                waiting.clear()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _one_by_one(look: Callable[[str], Result], paths: list[str]) -> Iterator[Result | None]:
    for path in paths:
        with _pool(1) as alone:
            try:
                yield from alone.submit(_all, look, [path]).result()
            except BrokenProcessPool:
                yield None


def _all(look: Callable[[str], Result], paths: list[str]) -> list[Result]:
    return [look(path) for path in paths]


def _pool(workers: int) -> ProcessPoolExecutor:
    # Not forked from this process, whose threads (of torch, of a progress bar) a fork would break.
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    context.set_forkserver_preload(["captioner.data.inspection"])
    return ProcessPoolExecutor(workers, context, initializer=_quiet)


def _quiet() -> None:
    warnings.simplefilter("ignore")  # Pillow's, of damaged side notes in a file
