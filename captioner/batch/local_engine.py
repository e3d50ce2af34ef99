"""The local engine: worker processes that each load the model and caption whole batches.

On a CPU, several processes with one thread each are faster than one process with many threads,
because the search runs Python between small matrix products. If an image hangs or crashes its process,
the batch is repeated one image at a time, and only that image fails.
"""

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from math import ceil
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from captioner.batch.rows import Row, failure, from_columns
from captioner.errors import CaptionerError, ImageError

TIMEOUT = 60.0
"""Seconds allowed for one photo. A batch is allowed this time for every ten photos or part of ten."""


class LocalEngine:
    """Worker processes that caption batches; a context manager that ends them.

    Args:
        options: the arguments of ``BatchCaptioner``.
        count: number of processes; None for one per CPU core, or one if the model runs on a GPU.

    Raises:
        CaptionerError: the model cannot be loaded.

    Attributes:
        identity: ``BatchCaptioner.identity``.
    """

    def __init__(self, options: dict[str, Any], count: int | None = None) -> None:
        cores = _cores()
        self._options, self._threads = options, max(1, cores // (count or cores))
        self._workers: list[_Worker] = []
        greeting = self._start_worker().receive()
        self.identity: dict[str, Any] = greeting["identity"]
        self._count = count or (cores if greeting["device"] == "cpu" else 1)

    def __enter__(self) -> "LocalEngine":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.kill()

    def __call__(self, batches: Iterable[list[str]]) -> Iterator[Row]:
        """Yield the row of every photo, in the order of completion."""
        source = iter(batches)
        queue: deque[list[str]] = deque()  # the next batch, and photos of failed batches
        while True:
            if not queue:
                queue.extend(islice(source, 1))
            idle = [worker for worker in self._workers if worker.ready and not worker.names]
            if queue and idle:
                idle[0].send(queue.popleft())
            elif queue and len(self._workers) < self._count:
                self._start_worker()
            elif queue or any(worker.names for worker in self._workers):
                yield from self._finished(queue)
            else:
                return

    def _start_worker(self) -> "_Worker":
        worker = _Worker(self._options, self._threads)
        self._workers.append(worker)
        return worker

    def _finished(self, queue: deque[list[str]]) -> Iterator[Row]:
        """Wait for answers and yield their rows; photos of a dead worker go back to the queue."""
        readable = wait([worker.connection for worker in self._workers], timeout=1.0)
        for worker in list(self._workers):
            if worker.connection not in readable:
                if worker.overdue:
                    worker.kill()
                continue
            names, overdue = worker.names, worker.overdue
            try:
                answer = worker.receive()
            except EOFError:
                self._workers.remove(worker)
                worker.kill()
                if len(names) == 1:
                    yield _failed(names[0], overdue)
                else:
                    queue.extendleft([name] for name in reversed(names))
                continue
            if names:
                yield from from_columns(answer)


def _failed(name: str, overdue: bool) -> Row:
    effect = f"takes more than {TIMEOUT:g} seconds" if overdue else "ends the process"
    message = f"{name}: found a photo that {effect} when it is decoded; convert it to JPEG or PNG"
    return failure(name, ImageError(f"{message} with another program"))


class _Worker:
    """One process, and the names of the photos that it is working on."""

    def __init__(self, options: dict[str, Any], threads: int) -> None:
        context = get_context("spawn")  # forking a process with threads can deadlock
        self.connection, remote = context.Pipe()
        arguments = (remote, options, threads)
        self.process = context.Process(target=_serve, args=arguments, daemon=True)
        self.process.start()
        remote.close()  # so that the end of the process closes the connection
        self.names: list[str] = []
        self.ready = False
        self._sent_at = 0.0

    @property
    def overdue(self) -> bool:
        """Whether the current batch has exceeded its time."""
        limit = TIMEOUT * ceil(len(self.names) / 10)
        return bool(self.names) and time.monotonic() - self._sent_at > limit

    def send(self, names: list[str]) -> None:
        self.names, self._sent_at = names, time.monotonic()
        self.connection.send(names)

    def receive(self) -> Any:
        """Return the worker's answer or raise its error; EOFError if it died after loading."""
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
        self.names, self.ready = [], True
        return answer

    def kill(self) -> None:
        """Kill the process; its connection becomes readable and raises EOFError."""
        self.process.kill()
        self.process.join()


def _serve(connection: Connection, options: dict[str, Any], threads: int) -> None:
    """The main function of a worker; returns when the other end of the connection closes."""
    # Image codecs print warnings about damaged files; errors are sent through the connection.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
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
            names = connection.recv()
            connection.send(captioner({"image": names}))
    except (EOFError, BrokenPipeError):
        return
    except Exception as error:  # the parent raises it
        connection.send(error)


def _cores() -> int:
    """The cores that this process may use, if the system reports them, or those of the machine."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
