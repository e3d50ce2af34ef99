"""The local engine: processes that each hold the model and caption whole batches.

On a CPU, processes with one thread each are faster than one process with many threads: the search
for words is Python between small products. And a picture whose decoder hangs or kills its process
costs that picture: its batch is done again one by one.
"""

import os
import signal
import time
from collections import deque
from collections.abc import Iterable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from captioner.errors import CaptionerError, ImageError, printable
from captioner.library.records import Record, failure, rows

PATIENCE = 60.0
"""Seconds that one photo may take; a batch may take that for every tenth of its photos begun."""


class Workers:
    """Processes that caption; to be used in a ``with`` statement, which ends them.

    Args:
        options: of `captioner.library.batch.BatchCaptioner`.
        count: how many processes; None for one per CPU core, or a single one if the model is not
            on the CPU.

    Raises:
        CaptionerError: the model cannot be loaded.

    Attributes:
        identity: `BatchCaptioner.identity`.
    """

    def __init__(self, options: dict[str, Any], count: int | None = None) -> None:
        cores = _cores()
        self._options, self._threads = options, max(1, cores // (count or cores))
        self._workers: list[_Worker] = []
        try:
            told = self._start().receive()
        except BaseException:
            self.close()
            raise
        self.identity: dict[str, Any] = told["identity"]
        self._count = count or (cores if told["device"] == "cpu" else 1)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the processes at once."""
        for worker in self._workers:
            worker.kill()

    def __call__(self, batches: Iterable[list[str]]) -> Iterator[Record]:
        """The record of every photo, in the order in which they are done."""
        given = iter(batches)
        waiting: deque[list[str]] = deque()  # the next batch, and photos whose batch broke
        while True:
            if not waiting:
                waiting.extend(names for names in [next(given, None)] if names is not None)
            idle = [w for w in self._workers if w.ready and w.names is None]
            if waiting and idle:
                idle[0].send(waiting.popleft())
                continue
            if waiting and len(self._workers) < self._count:
                self._start()
            if not waiting and not any(worker.names for worker in self._workers):
                return
            heard = wait([worker.connection for worker in self._workers], timeout=1.0)
            for worker in list(self._workers):
                if worker.connection in heard:
                    yield from self._hear(worker, waiting)
                elif worker.overdue:
                    worker.kill()  # it is heard of at once

    def _start(self) -> "_Worker":
        worker = _Worker(self._options, self._threads)
        self._workers.append(worker)
        return worker

    def _hear(self, worker: "_Worker", waiting: deque[list[str]]) -> Iterator[Record]:
        names, overdue = worker.names, worker.overdue
        try:
            answer = worker.receive()
        except EOFError:
            self._workers.remove(worker)
            worker.kill()
            if names is None:  # idle, and killed by somebody else
                return
            if len(names) > 1:
                waiting.extendleft([name] for name in reversed(names))
            else:
                what = f"takes more than {PATIENCE:g} seconds" if overdue else "ends the process"
                error = ImageError(
                    f"{printable(names[0], limit=4096)}: found a picture that {what} when it is "
                    "decoded; convert it to JPEG or PNG with another program"
                )
                yield failure(names[0], error)
            return
        if names is not None:
            yield from rows(answer)


class _Worker:
    """One process, and the names of the photos it has been given."""

    def __init__(self, options: dict[str, Any], threads: int) -> None:
        context = get_context("spawn")  # a fork of a process with threads may stand still
        self.connection, theirs = context.Pipe()
        arguments = (theirs, options, threads)
        self.process = context.Process(target=_serve, args=arguments, daemon=True)
        self.process.start()
        theirs.close()  # or its end would not be noticed
        self.names: list[str] | None = None
        self.ready = False
        self._began = 0.0

    @property
    def overdue(self) -> bool:
        """Whether it has had its photos for longer than they can take."""
        if self.names is None:
            return False
        return time.monotonic() - self._began > PATIENCE * (1 + (len(self.names) - 1) // 10)

    def send(self, names: list[str]) -> None:
        self.names, self._began = names, time.monotonic()
        self.connection.send(names)

    def receive(self) -> Any:
        """What it answers; its errors are raised here.

        Raises:
            EOFError: it ended over its photos.
            CaptionerError: it ended before it had any; or what it raised itself.
        """
        try:
            answer = self.connection.recv()
        except (EOFError, OSError) as error:
            if not self.ready:
                raise CaptionerError(
                    "a worker process ended while it loaded the model; is there enough memory for "
                    "--workers?"
                ) from error
            raise EOFError from error
        if isinstance(answer, Exception):
            raise answer
        self.names, self.ready = None, True
        return answer

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        # Not the connection: that its other end is closed is how the death is noticed.


def _serve(connection: Connection, options: dict[str, Any], threads: int) -> None:
    """What a process does until the other end of its connection closes, by whatever death."""
    # Codecs print what they make of damaged files, in C; errors go through the connection.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
    try:
        import torch

        from captioner.library.batch import BatchCaptioner

        torch.set_num_threads(threads)
        captioner = BatchCaptioner(**options)
        connection.send({"identity": captioner.identity, "device": captioner.predictor.device.type})
        while True:
            names = connection.recv()
            connection.send(captioner({"image": names}))
    except (EOFError, BrokenPipeError):
        return
    except Exception as error:  # raised again where somebody can say it
        connection.send(error)


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1
