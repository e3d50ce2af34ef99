"""The Ray Data engine: the same batches on all processors of a machine or a cluster.

Ray moves names and rows, never pixels. Each actor reads its own photos, so the paths must be valid
on every machine. Only this module imports Ray.
"""

import logging
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from typing import Any, cast

from captioner.batch.batch_captioner import BatchCaptioner
from captioner.batch.rows import Row
from captioner.errors import CaptionerError, UsageError

BLOCK = 8  # batches that an actor receives at a time, and loses at most when it dies
_COLUMNS = (
    *("image", "caption", "words", "log_prob", "word_log_probs", "model", "confidence"),
    *("error", "captions", "log_probs"),
)


class RayCaptioner(BatchCaptioner):
    """A batch captioner for ``ray.data.Dataset.map_batches``, from columns to columns.

    Names are bytes, because Arrow strings must be UTF-8.
    """

    def __call__(self, batch: Any) -> Any:
        """Return the same columns for every batch, with None for what a row does not have."""
        rows = super().__call__([os.fsdecode(name) for name in batch["image"]])
        return {name: [row.get(name) for row in rows] for name in _COLUMNS}


class RayEngine(AbstractContextManager["RayEngine"]):
    """Ray Data with ``BatchCaptioner``; a context manager that disconnects from Ray.

    The cluster at ``RAY_ADDRESS`` is used; without that variable, Ray is started on this machine.

    Args:
        options: the arguments of ``BatchCaptioner``.
        count: number of actors; None for one per GPU, or one per CPU if there is no GPU.
        batch_size: photos computed together.

    Raises:
        UsageError: Ray cannot be started, or does not have the device.

    Attributes:
        identity: ``BatchCaptioner.identity``.
    """

    def __init__(self, options: dict[str, Any], count: int | None, batch_size: int) -> None:
        # Ray logs to files; only fatal errors go to the terminal.
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray  # the command line checks that it is installed
        import ray.data

        self._ray = ray
        # Loaded on the CPU for its identity; the actors load it on the device.
        self.identity = BatchCaptioner(**{**options, "device": "cpu"}).identity
        self._options, self._count, self._batch_size = options, count, batch_size

    def __exit__(self, *_: object) -> None:
        self._ray.shutdown()

    def rows(self, batches: Iterable[list[str]]) -> Iterator[Row]:
        """Yield the row of every photo, in the order of completion."""
        import pyarrow as pa
        from ray import data

        source = iter(batches)
        blocks = []
        while block := [name for names in islice(source, BLOCK) for name in names]:
            blocks.append(pa.table({"image": pa.array(map(os.fsencode, block), pa.binary())}))
        if not blocks:
            return
        with _short_errors():
            _start(self._ray)
            count, gpus = self._resources()
            results = data.from_arrow(blocks).map_batches(
                RayCaptioner,
                fn_constructor_kwargs=self._options,
                batch_size=self._batch_size,
                compute=data.ActorPoolStrategy(size=count),
                num_cpus=0 if gpus else 1,
                num_gpus=gpus,
            )
            for table in results.iter_batches(batch_size=None, batch_format="pyarrow"):
                for row in cast(pa.Table, table).to_pylist():
                    yield {name: value for name, value in row.items() if value is not None}

    def _resources(self) -> tuple[int, float]:
        """Return the number of actors and the GPUs of each."""
        resources = self._ray.cluster_resources()  # type: ignore[no-untyped-call]
        device = self._options.get("device", "auto")
        gpus = 0 if device == "cpu" else int(resources.get("GPU", 0))
        if not gpus and device not in ("auto", "cpu"):
            raise UsageError(f"device {device!r} cannot be used: Ray has no GPU; try --device cpu")
        count = self._count or gpus or max(1, int(resources.get("CPU", 1)))
        return count, min(1.0, gpus / count)


def _start(ray: Any) -> None:
    """Start Ray, and hide what its C++ code writes to standard error."""
    from ray.data import DataContext

    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if "RAY_ADDRESS" not in os.environ:
        # Names and rows are small, and the paths of Ray's sockets must be shorter than 108 bytes.
        options |= {"include_dashboard": False, "object_store_memory": 256 * 2**20}
        if "RAY_TMPDIR" not in os.environ and len(os.fsencode(tempfile.gettempdir())) > 36:
            options["_temp_dir"] = f"/tmp/ray-{os.getuid()}"
    sys.stderr.flush()
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        ray.init(ignore_reinit_error=True, **options)
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    DataContext.get_current().enable_progress_bars = False


@contextmanager
def _short_errors() -> Iterator[None]:
    """Shorten errors of Ray, which contain tracebacks of several processes, to one line."""
    try:
        yield
    except Exception as error:
        cause = getattr(error, "cause", None) or error
        if isinstance(cause, CaptionerError):
            raise cause from error
        reason = (str(cause).strip() or type(cause).__name__).splitlines()[-1]
        raise CaptionerError(
            f"Ray failed: {reason:.300}; use --engine local to work without Ray"
        ) from error
