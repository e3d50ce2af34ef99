"""Attention maps of given captions, for many images and captions at once."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from captioner.data.cache import AnnotationCache
from captioner.data.masks import MaskedImage
from captioner.data.pixels import check_upright, read_batches
from captioner.data.records import Record
from captioner.errors import EvaluationError, ImageError
from captioner.language.vocabulary import PAD, START
from captioner.models.annotations import Annotations
from captioner.models.captioner import Captioner
from captioner.models.decoder import Decoder
from captioner.models.tensors import map_tensors
from captioner.photos.images import upright_size
from captioner.predict.explanations import explain
from captioner.search.beam import search
from captioner.search.hypotheses import Hypothesis
from captioner.search.options import Decoding

Images = Sequence[MaskedImage | Record]
Read = tuple[list[int], Tensor | Annotations | None, list[str]]
"""Indices of the readable images of a batch, their pixels or annotations, and the others' errors."""
Maps = list[list[Tensor]]
"""For every image and caption, one map per word, (T, L)."""


class Batch(NamedTuple):
    """Encoded images with the model's captions."""

    indices: list[int]  # of the images in the data set
    annotations: Annotations  # output of the neck
    generated: list[Hypothesis]  # the captions; empty if none were requested
    seed: int  # of all random choices; differs between batches


def batches(
    captioner: Captioner,
    images: Images,
    batch_size: int,
    failed: list[str],
    *,
    cache: AnnotationCache | None = None,
    decoding: Decoding | None = None,
    seed: int = 0,
    advance: Callable[[int], object] = lambda _: None,
) -> Iterator[Batch]:
    """Encode and caption images.

    Args:
        captioner: in eval mode.
        images: an image that was rotated after annotation counts as unreadable.
        batch_size: images computed together.
        failed: a message for each unreadable image is appended to this list.
        cache: annotations of these images; None reads and encodes the files.
        decoding: how captions are generated; None generates none.
        seed: of sampled attention.
        advance: called after each batch with its number of images.

    Raises:
        EvaluationError: no image could be read.
    """
    device, done = next(captioner.parameters()).device, 0
    if cache is None:
        read = _from_files(captioner, images, batch_size)
    else:
        read = _from_cache(cache, images, batch_size)
    for indices, inputs, errors in read:
        failed += errors
        if inputs is not None:
            with torch.inference_mode(), torch.random.fork_rng():
                torch.manual_seed(seed + done)  # hard attention may sample
                annotations = captioner.annotate(map_tensors(lambda x: x.to(device), inputs))
                beams = search(captioner.decoder, annotations, decoding) if decoding else []
            yield Batch(indices, annotations, [beam[0] for beam in beams], seed + done)
        done += len(indices)
        advance(len(indices) + len(errors))
    if not done:
        raise EvaluationError(f"no photo can be read; {failed[0]}")


def _from_files(captioner: Captioner, images: Images, batch_size: int) -> Iterator[Read]:
    sizes = [image.size for image in images if isinstance(image, MaskedImage)] or None
    paths = [image.path for image in images]
    for batch in read_batches(paths, batch_size, captioner.encoder.preprocessing, sizes):
        pixels = batch.pixels if batch.indices else None
        yield batch.indices, pixels, [str(error) for error in batch.failed.values()]


def _from_cache(cache: AnnotationCache, images: Images, batch_size: int) -> Iterator[Read]:
    for start in range(0, len(images), batch_size):
        indices, errors = [], []
        for index, image in enumerate(images[start : start + batch_size], start):
            try:
                if image.path in cache.failed:
                    raise ImageError(cache.failed[image.path])
                if isinstance(image, MaskedImage):
                    check_upright(image.path, upright_size(image.path), image.size)
                indices.append(index)
            except ImageError as error:
                errors.append(str(error))
        paths = [images[index].path for index in indices]
        yield indices, cache.annotations(paths) if paths else None, errors


def forced_maps(
    decoder: Decoder,
    annotations: Annotations,
    captions: Sequence[Sequence[Sequence[int]]],
    method: str = "attention",
) -> tuple[Maps, Maps | None]:
    """Feed captions to a decoder in eval mode, and explain their words.

    ``captions`` holds the captions of every image, each as the ids of its words, at least one.

    Returns:
        The attention weights of every word, or the positive part of its map by another method; and for
        hard attention the sampling probabilities of the cells, None for deterministic attention.
    """
    if method != "attention":

        def positive(b: int, caption: Sequence[int]) -> Tensor:
            return explain(decoder, annotations.of(b), caption, method).clamp(min=0)

        return [[positive(b, one) for one in written] for b, written in enumerate(captions)], None
    longest = max(len(caption) for of_image in captions for caption in of_image)
    tokens = torch.full((len(captions), max(map(len, captions)), longest), PAD)
    for b, of_image in enumerate(captions):
        for r, caption in enumerate(of_image):
            tokens[b, r, : len(caption)] = torch.tensor([START, *caption[:-1]])
    with torch.inference_mode():
        decoded = decoder(annotations, tokens.to(annotations.vectors.device))

    def split(weights: Float[Tensor, "B R T L"] | None) -> Maps:
        assert weights is not None
        weights = weights.float().cpu()
        return [
            [weights[b, r, : len(caption)] for r, caption in enumerate(of_image)]
            for b, of_image in enumerate(captions)
        ]

    # Hard attention at test time "expectation" chooses no cell: its probabilities are the weights.
    choice = decoded.choice
    if choice is None or choice.log_prob is None:
        return split(decoded.weights), None
    return split(decoded.weights), split(choice.probs)
