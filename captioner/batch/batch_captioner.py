"""Captions for batches of photos: what the processes of every engine run."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.batch.rows import Row, record
from captioner.errors import ImageError
from captioner.photos.images import Photo
from captioner.predict.load import load

if TYPE_CHECKING:
    from captioner.batch.inputs import Sources

FETCH_THREADS = 8  # concurrent downloads from an object store per process
PAGE_BATCH = 8  # photos of a page that a process holds in memory, decoded in full size


class BatchCaptioner:
    """A model that captions batches of photos.

    Args:
        model, device: as ``captioner.load`` takes them.
        sources: where the photos are; None for files on this machine.
        confidence: rows also have a ``confidence``, from 0 to 1.
        min_confidence: captions below this confidence are left empty.
        thumbnails: rows also have what ``captioner.overlay.review.thumbnails`` returns, and a
            ``confidence`` if the model was calibrated.
        options: fields of ``Decoding`` that replace the model's own, or of ``WordSampling``; with
            ``num_captions`` above 1, rows also have ``captions`` and ``log_probs``.

    Raises:
        UsageError: an unknown device or option; confidence of a model that was not calibrated, or of
            another search than its own.
        CheckpointError: the model cannot be loaded.
    """

    def __init__(
        self,
        model: str | None = None,
        device: str = "auto",
        sources: "Sources | None" = None,
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
        self.sources = sources

    def __call__(self, names: Sequence[str]) -> list[Row]:
        """Return the row of each photo of a batch.

        A photo that cannot be read has an ``error`` with ``type`` and ``message`` instead of a caption.
        """
        if self.thumbnails and len(names) > PAGE_BATCH:
            return [*self(names[:PAGE_BATCH]), *self(names[PAGE_BATCH:])]
        with ThreadPoolExecutor(FETCH_THREADS) as threads:
            opened = list(threads.map(self._open, names))
        results = self.predictor.captions(
            [image for image in opened if not isinstance(image, ImageError)],
            self.decoding,
            len(names),
            maps=self.num_captions > 1 or self.thumbnails,
            confidence=self.confidence,
        )
        rows = []
        for name, image in zip(names, opened, strict=True):
            result = image if isinstance(image, ImageError) else next(results)
            row = record(name, result, self.num_captions)
            if self.thumbnails and not isinstance(result, ImageError):
                from captioner.overlay.review import thumbnails  # only a page draws

                row["thumbnails"] = thumbnails(result, image)
            if row.get("confidence", 1) < (self.min_confidence or 0):
                row |= {"caption": "", "words": [], "word_log_probs": []}
            rows.append(row)
        return rows

    def rows(self, batches: Iterable[Sequence[str]]) -> Iterator[Row]:
        """Yield the row of every photo in order; the method that all engines have."""
        for names in batches:
            yield from self(names)

    @property
    def identity(self) -> dict[str, Any]:
        """The model's name and SHA-256 (configuration, vocabulary and weights), and the decoding."""
        model = {"name": self.predictor.name, "sha256": self.predictor.fingerprint()}
        more: dict[str, Any] = {"num_captions": self.num_captions} if self.num_captions > 1 else {}
        if self.confidence:
            assert self.predictor.calibration is not None
            more |= asdict(self.predictor.calibration) | {"min_confidence": self.min_confidence}
        return {"model": model, "decoding": asdict(self.decoding) | more}

    def _open(self, name: str) -> Any:
        """Return what ``captioner.photos.images.load`` reads, or the error of a photo."""
        if not self.thumbnails:
            return Path(name) if self.sources is None else self.sources.open(name)
        try:
            return Photo.read(name)  # decoded once for its caption and its page
        except ImageError as error:
            return error
