"""Attention maps of given captions, for many images and captions at once."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from captioner.data.masks import MaskedImage
from captioner.data.pixels import read_batches
from captioner.data.records import Record
from captioner.decoding import Decoding, Hypothesis, search
from captioner.errors import EvaluationError
from captioner.models.annotations import Annotations
from captioner.models.captioner import Captioner
from captioner.models.decoder import Decoder, index_batch
from captioner.models.neck import Neck
from captioner.models.registry import build
from captioner.text import PAD, START

Tokens = Sequence[Sequence[Sequence[int]]]
"""For every image, the word ids of its captions without start and end."""
Maps = list[list[Tensor]]
"""For every image and caption, one map per word, (T, L)."""


class Batch(NamedTuple):
    """Encoded images with the model's captions."""

    indices: list[int]  # of the images in the data set
    encoded: Annotations  # output of the encoder
    annotations: Annotations  # output of the neck
    generated: list[Hypothesis]  # the captions; empty if none were requested
    seed: int  # of all random draws; differs between batches


def batches(
    captioner: Captioner,
    images: Sequence[MaskedImage | Record],
    batch_size: int,
    failed: list[str],
    *,
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
        decoding: how captions are generated; None generates none.
        seed: of sampled attention.
        advance: called after each batch with its number of images.

    Raises:
        EvaluationError: no image could be read.
    """
    device, done = next(captioner.parameters()).device, 0
    sizes = [image.size for image in images if isinstance(image, MaskedImage)] or None
    paths = [image.path for image in images]
    for batch in read_batches(paths, batch_size, captioner.encoder.preprocessing, sizes):
        failed += map(str, batch.failed.values())
        if batch.indices:
            # Not inference mode, because Grad-CAM computes gradients with these tensors.
            with torch.no_grad(), torch.random.fork_rng():
                torch.manual_seed(seed + done)  # hard attention may sample
                encoded = captioner.encode(batch.pixels.to(device))
                annotations = captioner.neck(encoded)
                beams = search(captioner.decoder, annotations, decoding) if decoding else []
            best = [beam[0] for beam in beams]
            yield Batch(batch.indices, encoded, annotations, best, seed + done)
        done += len(batch.indices)
        advance(len(batch.indices) + len(batch.failed))
    if not done:
        raise EvaluationError(f"none of the {len(images)} photos can be read; {failed[0]}")


def forced_maps(
    decoder: Decoder, annotations: Annotations, captions: Tokens
) -> tuple[Maps, Maps | None]:
    """Feed captions, none empty, to a decoder in eval mode.

    Returns:
        The attention weights of every word, and for hard attention the sampling probabilities of the
        cells; None for deterministic attention.
    """
    with torch.inference_mode():
        decoded = decoder(annotations, _inputs(captions, annotations.vectors.device))

    def split(weights: Float[Tensor, "B R T L"] | None) -> Maps:
        assert weights is not None
        weights = weights.float().cpu()
        return [
            [weights[b, r, : len(caption)] for r, caption in enumerate(of_image)]
            for b, of_image in enumerate(captions)
        ]

    # Hard attention at test time "expectation" chooses no cell: its probabilities are the weights.
    is_choice = decoded.log_prob is not None
    return split(decoded.weights), split(decoded.probs) if is_choice else None


def grad_cams(
    decoder: Decoder,
    annotations: Annotations,
    captions: Tokens,
    words: Sequence[Sequence[tuple[int, int]]],
) -> Maps:
    """Compute Grad-CAM of words' logits on the annotation vectors (Selvaraju et al. 2017).

    The map is ReLU(Σ_d w_d a_i,d), where w is the mean over cells of the gradient of the word's logit.

    ``words`` are the (caption, position) of the words of every image to explain; the maps of all other
    words are zeros.
    """
    cells = annotations.vectors.shape[1]
    cams = [[torch.zeros(len(caption), cells) for caption in of_image] for of_image in captions]
    # Each word gets a copy of its image and of the caption up to it, so that one backward pass serves
    # all words. Longest first: decoders skip captions that have ended.
    positions = [(t, b, r) for b, of_image in enumerate(words) for r, t in set(of_image)]
    positions.sort(reverse=True)
    if not positions:
        return cams
    images = torch.tensor([b for _, b, _ in positions], device=annotations.vectors.device)
    copies = index_batch(annotations.map(Tensor.detach), images)
    vectors = copies.vectors.requires_grad_()
    tokens = _inputs([[captions[b][r][: t + 1]] for t, b, r in positions], vectors.device)
    logits = decoder(copies, tokens, "none").logits
    total = torch.stack(
        [logits[i, 0, t, captions[b][r][t]] for i, (t, b, r) in enumerate(positions)]
    )
    (gradient,) = torch.autograd.grad(total.sum(), vectors)
    maps = torch.einsum("nd,nld->nl", gradient.mean(1), vectors.detach()).relu().cpu()
    for (t, b, r), cam in zip(positions, maps, strict=True):
        cams[b][r][t] = cam
    return cams


def untrained(captioner: Captioner, seed: int = 0) -> tuple[Neck, Decoder]:
    """Return a neck and a decoder of the same configuration with random weights."""
    config = captioner.config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        neck: Neck = build("neck", config["neck"], **captioner.encoder.widths)
        sizes = {"vocab_size": len(captioner.vocabulary), "annotation_dim": neck.out_dim}
        decoder: Decoder = build("decoder", config["decoder"], **sizes)
    device = next(captioner.parameters()).device
    return neck.to(device).eval(), decoder.to(device).eval()


def _inputs(captions: Tokens, device: torch.device) -> Int[Tensor, "B R T"]:
    """Shift captions right: ``<start>``, then all words but the last, then ``<pad>``."""
    longest = max(len(caption) for of_image in captions for caption in of_image)
    tokens = torch.full((len(captions), max(map(len, captions)), longest), PAD)
    for b, of_image in enumerate(captions):
        for r, caption in enumerate(of_image):
            tokens[b, r, : len(caption)] = torch.tensor([START, *caption[:-1]])
    return tokens.to(device)
