"""Where a model looks: for every word of given captions, many pictures and captions at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from captioner.data.masks import MaskedPicture
from captioner.data.pixels import read_batches
from captioner.models.annotations import Annotations
from captioner.models.captioner import Captioner
from captioner.models.decoder import Decoder
from captioner.models.refiners import Refiner
from captioner.models.registry import build
from captioner.text import PAD, START

Tokens = Sequence[Sequence[Sequence[int]]]
"""For every picture the ids of its captions' words, without start and end."""
Maps = list[list[Tensor]]
"""For every picture and caption a map for each word, (T, L)."""


@dataclass(frozen=True)
class Encoded:
    """Some pictures as the encoder gives them.

    Attributes:
        places: of the pictures in the list.
        annotations: of these pictures, not refined yet.
    """

    places: list[int]
    annotations: Annotations


def encoded(
    captioner: Captioner, pictures: Sequence[MaskedPicture], batch_size: int, failed: list[str]
) -> Iterator[Encoded]:
    """All pictures through the encoder; what is wrong with unusable ones goes to ``failed``."""
    device = next(captioner.parameters()).device
    paths = [picture.path for picture in pictures]
    sizes = [picture.size for picture in pictures]
    for batch in read_batches(paths, batch_size, captioner.encoder.preprocessing, sizes):
        failed += map(str, batch.failed.values())
        if batch.indices:
            # Not in inference mode: Grad-CAM needs the gradient with respect to these.
            with torch.no_grad():
                annotations = captioner.encode(batch.pixels.to(device))
            yield Encoded(batch.indices, annotations)


def forced(
    decoder: Decoder, annotations: Annotations, captions: Tokens
) -> tuple[Maps, Maps | None]:
    """Teacher forcing: where the decoder looks when it is to write each word.

    Args:
        decoder: in eval mode.
        annotations: refined.
        captions: of every picture, none empty.

    Returns:
        The weights, and where these are a choice, as of hard attention, the probabilities of what it
        was chosen from; None where nothing is chosen.
    """
    with torch.inference_mode():
        decoded = decoder(annotations, _inputs(captions, annotations.vectors.device))

    def apart(weights: Float[Tensor, "B R T L"] | None) -> Maps:
        assert weights is not None
        weights = weights.float().cpu()
        return [
            [weights[b, r, : len(caption)] for r, caption in enumerate(given)]
            for b, given in enumerate(captions)
        ]

    # An expectation has probabilities, which are its weights, and nothing chosen.
    chosen = decoded.log_prob is not None
    return apart(decoded.weights), apart(decoded.expected) if chosen else None


def gradients(
    decoder: Decoder,
    annotations: Annotations,
    captions: Tokens,
    asked: Sequence[Sequence[tuple[int, int]]],
) -> list[dict[tuple[int, int], Float[Tensor, " L"]]]:
    """Grad-CAM of words' logits on the annotation vectors (Selvaraju et al. 2017).

    ReLU(Σ_d w_d a_i,d), w being the mean over cells of the gradient of the word's logit: what in the
    annotations speaks for the word, whatever the attention says.

    Args:
        decoder: in eval mode.
        annotations: refined: what the decoder attends to.
        captions: of every picture, none empty.
        asked: for every picture the words asked about: (caption, place).
    """
    # Every caption gets its picture to itself, so that one pass back serves a word of each.
    rows = sorted({(b, r) for b, words in enumerate(asked) for r, _ in words})
    found: list[dict[tuple[int, int], Tensor]] = [{} for _ in captions]
    if not rows:
        return found
    pictures = [b for b, _ in rows]
    places = [sorted(t for own, t in asked[b] if own == r) for b, r in rows]
    mask = annotations.mask
    vectors = annotations.vectors.detach()[pictures].requires_grad_()
    alone = Annotations(vectors, annotations.grid, None if mask is None else mask[pictures])
    tokens = _inputs([[captions[b][r]] for b, r in rows], vectors.device)
    logits = decoder(alone, tokens, "none").logits
    for number in range(max(map(len, places))):
        asking = [i for i, own in enumerate(places) if number < len(own)]
        said = []
        for i in asking:
            (b, r), t = rows[i], places[i][number]
            said.append(logits[i, 0, t, captions[b][r][t]])
        (gradient,) = torch.autograd.grad(torch.stack(said).sum(), vectors, retain_graph=True)
        with torch.no_grad():
            cams = torch.einsum("nd,nld->nl", gradient.mean(1), vectors).relu().cpu()
        for i in asking:
            found[rows[i][0]][rows[i][1], places[i][number]] = cams[i]
    return found


def untrained(captioner: Captioner, seed: int = 0) -> tuple[Refiner, Decoder]:
    """Refiner and decoder with random weights: all that is trained on captions."""
    config = captioner.config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        refiner: Refiner = build("refiner", config["refiner"], in_dim=captioner.encoder.out_dim)
        sizes = {"vocab_size": len(captioner.vocabulary), "annotation_dim": refiner.out_dim}
        decoder: Decoder = build("decoder", config["decoder"], **sizes)
    device = next(captioner.parameters()).device
    return refiner.to(device).eval(), decoder.to(device).eval()


def _inputs(captions: Tokens, device: torch.device) -> Int[Tensor, "B R T"]:
    """``<start> words <pad> …`` without the last word of each: a step for every word to be written."""
    rows, length = max(map(len, captions)), max(len(c) for given in captions for c in given)
    tokens = torch.full((len(captions), rows, length), PAD)
    for b, given in enumerate(captions):
        for r, caption in enumerate(given):
            tokens[b, r, : len(caption)] = torch.tensor([START, *caption[:-1]])
    return tokens.to(device)
