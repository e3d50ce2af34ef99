"""The local engine: worker processes that each load the model and caption whole batches.

On a CPU, several processes with one thread each are faster than one process with many threads,
because the search runs Python between small matrix products. If an image hangs or crashes its process,
the batch is repeated one image at a time, and only that image fails.
"""

import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from logging.handlers import BufferingHandler
from math import ceil
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, cast

from captioner.batch.rows import Row, record
from captioner.errors import CaptionerError, ImageError

TIMEOUT = 60.0
"""Seconds allowed for one photo, and for every ten photos, or part of ten, of a batch."""


class LocalEngine(AbstractContextManager["LocalEngine"]):
    """Worker processes that caption batches; a context manager that ends them.

    Args:
        options: the arguments of ``BatchCaptioner``.
        count: number of processes; None for one per CPU core, or one if the model runs on a GPU.
        timeout: seconds that ten photos may take; None for ``TIMEOUT``.

    Raises:
        CaptionerError: the model cannot be loaded.

    Attributes:
        identity: ``BatchCaptioner.identity``.
    """

    def __init__(
        self, options: dict[str, Any], count: int | None = None, timeout: float | None = None
    ) -> None:
        self._timeout = timeout or TIMEOUT
        cores = _cores()
        self._options, self._threads = options, max(1, cores // (count or cores))
        self._workers: list[_Worker] = []
        self._closed = False
        first = self._start_worker()
        self._idle = [first]
        self.identity: dict[str, Any] = first.greeting["identity"]
        self._count = count or (cores if first.greeting["device"] == "cpu" else 1)

    def __exit__(self, *_: object) -> None:
        self._closed = True
        for worker in list(self._workers):
            worker.end()

    def rows(self, batches: Iterable[list[str]]) -> Iterator[Row]:
        """Yield the row of every photo in order."""
        pending: deque[Future[list[Row]]] = deque()
        threads = ThreadPoolExecutor(self._count)  # each waits for the process of its batch
        try:
            for names in batches:
                pending.append(threads.submit(self._caption, names))
                if len(pending) > 2 * self._count:  # a fast process need not wait for a slow one
                    yield from pending.popleft().result()
            for future in pending:
                yield from future.result()
        finally:
            self.__exit__()
            threads.shutdown(cancel_futures=True)

    def _start_worker(self) -> "_Worker":
        worker = _Worker(self._options, self._threads)
        self._workers.append(worker)
        return worker

    def _caption(self, names: list[str]) -> list[Row]:
        if self._closed:
            return []
        try:
            worker = self._idle.pop()
        except IndexError:
            worker = self._start_worker()
        try:
            if self._closed:  # while the worker started
                raise EOFError
            worker.connection.send(names)
            answer = worker.receive(self._timeout * ceil(len(names) / 10))
        except (EOFError, OSError) as error:
            worker.end()
            worker.connection.close()
            self._workers.remove(worker)
            if self._closed:
                return []
            if len(names) > 1:
                return [row for name in names for row in self._caption([name])]
            is_slow = isinstance(error, TimeoutError)
            effect = f"takes more than {self._timeout:g} seconds" if is_slow else "ends the process"
            message = f"{names[0]}: found a photo that {effect} when it is decoded"
            advice = "convert it to JPEG or PNG with another program"
            return [record(names[0], ImageError(f"{message}; {advice}"))]
        rows, notices = _raised(answer)
        for notice in notices:
            logging.getLogger("captioner").handle(notice)
        self._idle.append(worker)
        return cast(list[Row], rows)


class _Worker:
    """A process that has loaded the model, and the connection to it."""

    def __init__(self, options: dict[str, Any], threads: int) -> None:
        context = get_context("spawn")  # forking a process with threads can deadlock
        self.connection, remote = context.Pipe()
        arguments = (remote, options, threads)
        self.process = context.Process(target=_serve, args=arguments, daemon=True)
        self.process.start()
        remote.close()  # so that the end of the process closes the connection
        try:
            answer = self.receive(None)
        except (EOFError, OSError) as error:
            raise CaptionerError(
                "a worker process ended while it loaded the model; is there enough memory for --workers?"
            ) from error
        self.greeting = _raised(answer)

    def receive(self, timeout: float | None) -> Any:
        """Return the next answer; raise TimeoutError, or EOFError or OSError if the process ended."""
        if not self.connection.poll(timeout):
            raise TimeoutError
        return self.connection.recv()

    def end(self) -> None:
        self.process.kill()
        self.process.join()


def _raised(answer: Any) -> Any:
    """Return the answer of a worker, or raise it if it is the worker's error."""
    if isinstance(answer, Exception):
        raise answer
    return answer


def _serve(connection: Connection, options: dict[str, Any], threads: int) -> None:
    """The main function of a worker; returns when the other end of the connection closes."""
    # Image codecs print warnings about damaged files; errors and notices are sent to the parent.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    notices = BufferingHandler(1000)
    logging.getLogger("captioner").addHandler(notices)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends its workers
    try:
        import torch

        from captioner.batch.batch_captioner import BatchCaptioner
        from captioner.fast.malloc import keep_memory

        keep_memory()
        torch.set_num_threads(threads)
        captioner = BatchCaptioner(**options)
        connection.send({"identity": captioner.identity, "device": captioner.predictor.device.type})
        while True:
            rows = captioner(connection.recv())
            connection.send((rows, notices.buffer))
            notices.flush()
    except (EOFError, BrokenPipeError):
        return
    except Exception as error:  # the parent raises it
        connection.send(error)


def _cores() -> int:
    """The cores that this process may use, if the system reports them, or those of the machine."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
