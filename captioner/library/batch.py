"""The names of some photos → their records: what every engine runs in each of its processes."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any

from captioner.errors import ImageError
from captioner.library.records import FIELDS, Record, failure, text
from captioner.library.sources import Sources
from captioner.predictor import load

FETCHES = 8
"""Objects fetched from a store at the same time by one process: it is the waiting that costs."""


class BatchCaptioner:
    """A model that captions batches of photos; knows nothing of the engine that calls it.

        ray.data.from_items([{"image": path}, …]).map_batches(
            BatchCaptioner, fn_constructor_kwargs={"model": "runs/coco"}, batch_size=32,
            compute=ray.data.ActorPoolStrategy(size=4))

    Args:
        model: as `captioner.load` takes it.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``.
        sources: where the names lead, if not to files on this machine.
        options: of `captioner.decoding.Decoding`, where not the model's own.

    Raises:
        UsageError: no such device or option.
        CheckpointError: the model cannot be loaded.
    """

    def __init__(
        self,
        model: str | None = None,
        device: str = "auto",
        sources: Sources | None = None,
        **options: Any,
    ) -> None:
        self.predictor = load(model, device)
        self.decoding = self.predictor.decoding.with_options(options)
        self.sources = sources or Sources([])

    def __call__(self, batch: Mapping[str, Sequence[str] | Any]) -> dict[str, list[Any]]:
        """A batch of names, ``{"image": [B names]}`` → a batch of records, by column.

        Columns are `FIELDS`. A photo that cannot be read has an ``error``, ``{"type", "message"}``,
        and None in the columns of a caption; another has None there.
        """
        names = [str(name) for name in batch["image"]]
        records = dict(self._records(names))
        return {
            field: [records[index].get(field) for index in range(len(names))] for field in FIELDS
        }

    @property
    def identity(self) -> dict[str, Any]:
        """What captions depend on: the model, by a SHA-256 over all that it is, and the decoding."""
        captioner = self.predictor.captioner
        digest = hashlib.sha256(json.dumps(captioner.config, sort_keys=True).encode())
        digest.update(captioner.vocabulary.fingerprint.encode())
        digest.update(captioner.encoder.fingerprint().encode())
        for name, tensor in sorted(captioner.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return {
            "model": {"name": self.predictor.name, "sha256": digest.hexdigest()},
            "decoding": asdict(self.decoding),
        }

    def _records(self, names: Sequence[str]) -> Iterator[tuple[int, Record]]:
        opened: dict[int, Path | BytesIO] = {}
        for index, source in enumerate(self._open(names)):
            if isinstance(source, ImageError):
                yield index, failure(names[index], source)
            else:
                opened[index] = source
        results = self.predictor.captions(list(opened.values()), self.decoding, len(names))
        for index, result in zip(opened, results, strict=True):
            if isinstance(result, ImageError):
                yield index, failure(names[index], result)
            else:
                yield index, {**result.record(), "image": text(names[index])}

    def _open(self, names: Sequence[str]) -> list[Path | BytesIO | ImageError]:
        def one(name: str) -> Path | BytesIO | ImageError:
            try:
                return self.sources.open(name)
            except ImageError as error:
                return error

        if not any(map(self.sources.is_remote, names)):
            return list(map(one, names))
        with ThreadPoolExecutor(FETCHES) as threads:
            return list(threads.map(one, names))
