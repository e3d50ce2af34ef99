"""The engine of Ray Data: the same batches on all processors of a machine or a cluster.

Ray moves names and records, never pixels: each actor reads its photos itself, so the paths must
mean the same on every machine. Ray is imported here only.
"""

import logging
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, cast

from captioner.errors import CaptionerError, UsageError
from captioner.library.batch import BatchCaptioner
from captioner.library.records import Record, rows
from captioner.library.sources import INSTALL

BLOCK = 8
"""Batches in a block: what an actor is given at a time, and the most that its death costs."""


class _Actor(BatchCaptioner):
    """A batch captioner for names as bytes: Arrow's strings hold no names that are no UTF-8."""

    def __call__(self, batch: Any) -> dict[str, list[Any]]:
        return super().__call__({"image": [os.fsdecode(name) for name in batch["image"]]})


class Cluster:
    """Ray Data over a BatchCaptioner; to be used in a ``with`` statement, which ends it.

    A cluster named by ``RAY_ADDRESS`` is used; without one, Ray is started on this machine.

    Args:
        options: of `captioner.library.batch.BatchCaptioner`.
        count: how many actors; None for one per CPU, or one per GPU if there are any.
        batch_size: photos computed together.

    Raises:
        UsageError: Ray is missing or cannot be started, or has no such device.

    Attributes:
        identity: `BatchCaptioner.identity`.
    """

    def __init__(self, options: dict[str, Any], count: int | None, batch_size: int) -> None:
        self._ray = _ray()
        # The actors have the device; here it is asked only who the model is.
        self.identity = BatchCaptioner(**{**options, "device": "cpu"}).identity
        self._options, self._count, self._batch_size = options, count, batch_size

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self._ray.shutdown()

    def __call__(self, batches: Iterable[list[str]]) -> Iterator[Record]:
        """The record of every photo, in the order in which they are done."""
        import pyarrow as pa
        from ray import data

        given = iter(batches)
        blocks = []
        while block := [name for names in islice(given, BLOCK) for name in names]:
            blocks.append(pa.table({"image": pa.array(map(os.fsencode, block), pa.binary())}))
        if not blocks:
            return
        with _one_line("Ray cannot be started"):
            _start(self._ray)
        count, gpus = self._resources()
        records = data.from_arrow(blocks).map_batches(
            _Actor,
            fn_constructor_kwargs=self._options,
            batch_size=self._batch_size,
            compute=data.ActorPoolStrategy(size=count),
            num_cpus=0 if gpus else 1,
            num_gpus=gpus,
        )
        with _one_line("Ray could not go on"):
            for table in records.iter_batches(batch_size=None, batch_format="pyarrow"):
                yield from rows(cast(pa.Table, table).to_pydict())

    def _resources(self) -> tuple[int, float]:
        """How many actors, and the GPUs of each."""
        resources = self._ray.cluster_resources()
        device = self._options.get("device", "auto")
        gpus = 0 if device == "cpu" else int(resources.get("GPU", 0))
        if not gpus and device not in ("auto", "cpu"):
            raise UsageError(f"device {device!r} cannot be used: Ray has no GPU; try --device cpu")
        count = self._count or gpus or max(1, int(resources.get("CPU", 1)))
        return count, min(1.0, gpus / count)


def _ray() -> Any:
    # What Ray says of itself is for its log files, unless it cannot go on.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import pyarrow  # noqa: F401
        import ray
        import ray.data
    except ImportError as error:
        raise UsageError(f"--engine ray needs Ray: {INSTALL}") from error
    return ray


def _start(ray: Any) -> None:
    from ray.data import DataContext

    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if "RAY_ADDRESS" not in os.environ:
        options |= {
            "include_dashboard": False,
            "object_store_memory": 256 * 2**20,  # names and records are small
            "_temp_dir": _short_folder(),
        }
    with _quiet():
        ray.init(ignore_reinit_error=True, **options)
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = DataContext.get_current()
    context.enable_progress_bars = False


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what Ray's own C++ says, in starting, past Python's standard error."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def _short_folder() -> str:
    """Where Ray keeps its sockets: a path to one must be under 108 bytes, whatever TMPDIR is."""
    folder = os.environ.get("RAY_TMPDIR") or os.path.join(tempfile.gettempdir(), "ray")  # noqa: PTH118
    return folder if len(os.fsencode(folder)) <= 40 else f"/tmp/ray-{os.getuid()}"


@contextmanager
def _one_line(what: str) -> Iterator[None]:
    """Ray's errors, which repeat the tracebacks of all processes on the way, in one line."""
    try:
        yield
    except CaptionerError:
        raise
    except Exception as error:
        cause = getattr(error, "cause", None) or error
        if isinstance(cause, CaptionerError):
            raise cause from error
        lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
        reason = lines[-1] if lines else type(cause).__name__
        raise CaptionerError(f"{what}: {reason:.300}; --engine local does without Ray") from error
