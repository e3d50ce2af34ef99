"""Captions for batches of photos: what the processes of every engine run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from captioner.batch.inputs import Sources
from captioner.batch.rows import (
    CONFIDENCE,
    FIELDS,
    SEVERAL,
    THUMBNAILS,
    Row,
    encodable,
    failure,
    from_columns,
)
from captioner.errors import ImageError
from captioner.predict.load import load

FETCH_THREADS = 8
"""Concurrent downloads from an object store per process."""


class BatchCaptioner:
    """A model that captions batches of photos, for any engine that maps over batches.

        ray.data.from_items([{"image": path}, …]).map_batches(
            BatchCaptioner, fn_constructor_kwargs={"model": "runs/coco"}, batch_size=32,
            compute=ray.data.ActorPoolStrategy(size=4))

    Args:
        model, device: as ``captioner.load`` takes them.
        sources: where the photos are; None for files on this machine.
        confidence: rows also have a ``confidence``, from 0 to 1.
        min_confidence: captions below this confidence are left empty.
        thumbnails: rows also have what ``captioner.overlay.review.thumbnails`` returns, and a
            ``confidence`` if the model was calibrated.
        options: fields of ``Decoding`` that replace the model's own, or of ``WordSampling``; with
            ``num_captions`` above 1, rows also have the columns ``SEVERAL``.

    Raises:
        UsageError: an unknown device or option; confidence of a model that was not calibrated, or of
            another search than its own.
        CheckpointError: the model cannot be loaded.
    """

    def __init__(
        self,
        model: str | None = None,
        device: str = "auto",
        sources: Sources | None = None,
        confidence: bool = False,
        min_confidence: float | None = None,
        thumbnails: bool = False,
        **options: Any,
    ) -> None:
        self.predictor = load(model, device)
        self.thumbnails, self.min_confidence = thumbnails, min_confidence
        self.num_captions = options.get("num_captions") or 1
        self.decoding = self.predictor.search_options(options)
        needed = confidence or min_confidence is not None
        if needed:
            self.predictor.check_confidence(self.decoding)
        self.confidence = needed or (thumbnails and self.predictor.has_confidence(self.decoding))
        self.sources = sources or Sources([])

    def __call__(self, batch: Mapping[str, Sequence[str] | Any]) -> dict[str, list[Any]]:
        """Caption a batch of names, ``{"image": [B names]}``.

        Returns:
            The columns ``FIELDS``. A photo that cannot be read has an ``error`` with ``type`` and
            ``message``, and None in the columns of a caption; other photos have None as ``error``.
        """
        names = [str(name) for name in batch["image"]]
        with ThreadPoolExecutor(FETCH_THREADS) as threads:
            opened = list(threads.map(self.sources.open, names))
        images = [image for image in opened if not isinstance(image, ImageError)]
        results = self.predictor.captions(
            images,
            self.decoding,
            len(names),
            maps=self.num_captions > 1 or self.thumbnails,
            confidence=self.confidence,
        )
        rows = []
        for name, image in zip(names, opened, strict=True):
            result = image if isinstance(image, ImageError) else next(results)
            if isinstance(result, ImageError):
                rows.append(failure(name, result))
            else:
                rows.append({**result.to_dict(), "image": encodable(name)})
                if self.thumbnails and not isinstance(image, ImageError):
                    from captioner.overlay.review import thumbnails  # only a page draws

                    rows[-1]["thumbnails"] = thumbnails(result, image)
                if result.confidence is not None and result.confidence < (self.min_confidence or 0):
                    rows[-1] |= {"caption": "", "words": [], "word_log_probs": []}
                if self.num_captions > 1 and rows[-1]["caption"]:
                    found = [result, *result.alternatives][: self.num_captions]
                    rows[-1]["captions"] = [caption.text for caption in found]
                    rows[-1]["log_probs"] = [round(caption.log_prob, 4) for caption in found]
        fields = FIELDS + (SEVERAL if self.num_captions > 1 else ())
        fields += CONFIDENCE if self.confidence else ()
        fields += THUMBNAILS if self.thumbnails else ()
        return {field: [row.get(field) for row in rows] for field in fields}

    def rows(self, batches: Iterable[list[str]]) -> Iterator[Row]:
        """Yield the row of every photo in order; the method that all engines have."""
        for names in batches:
            yield from from_columns(self({"image": names}))

    @property
    def identity(self) -> dict[str, Any]:
        """The model's name and SHA-256 (configuration, vocabulary and weights), and the decoding."""
        model = {"name": self.predictor.name, "sha256": self.predictor.fingerprint()}
        more: dict[str, Any] = {"num_captions": self.num_captions} if self.num_captions > 1 else {}
        if self.confidence:
            assert self.predictor.calibration is not None
            more |= asdict(self.predictor.calibration) | {"min_confidence": self.min_confidence}
        return {"model": model, "decoding": asdict(self.decoding) | more}
