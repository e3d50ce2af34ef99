"""Agreement of captions with samples, and whether they are right, for photos with references."""

from collections.abc import Callable, Sequence
from typing import Any

from captioner.data.cache import AnnotationCache
from captioner.data.records import Record
from captioner.evaluation.attention_maps import batches
from captioner.predict.confidence import is_right
from captioner.predict.predictor import Predictor

BATCH = 32  # photos


def measure(
    model: Predictor,
    records: Sequence[Record],
    cache: AnnotationCache | None,
    advance: Callable[[int], object],
) -> tuple[list[float], list[bool], list[str]]:
    """Return the agreement on each photo's caption, whether the caption is right, and errors.

    Photos that cannot be read are left out, with a message for each.

    Args:
        model: the model.
        records: the photos.
        cache: their annotations; None to compute them.
        advance: called with the number of photos done.

    Raises:
        EvaluationError: no photo can be read.
    """
    agreements: list[float] = []
    right: list[bool] = []
    failed: list[str] = []
    options: dict[str, Any] = {"cache": cache, "decoding": model.decoding, "advance": advance}
    for batch in batches(model.captioner, records, BATCH, failed, **options):
        captions = [hypothesis.tokens for hypothesis in batch.generated]
        agreements += model.agreements(batch.annotations, captions)
        for index, tokens in zip(batch.indices, captions, strict=True):
            right.append(is_right(model.vocabulary.decode(tokens), records[index].captions))
    return agreements, right, failed
