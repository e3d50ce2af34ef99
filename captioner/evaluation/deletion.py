"""Deletion and insertion curves: a word's log-probability as image regions are erased, or put back.

The image's mean vector replaces an erased annotation vector (``captioner.models.erasure``), at the
step of the word only: the decoder state before that step is that of the whole image. Attention is
recomputed. Samek et al. 2017 (arXiv 1509.06321) and Petsiuk, Das, Saenko 2018 (arXiv 1806.07421) use
deletion curves to test saliency maps of classifiers; the latter also insertion curves.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from captioner.language.vocabulary import PAD, START
from captioner.models.annotations import Annotations
from captioner.models.decoder import Decoded, Decoder
from captioner.models.erasure import Erasure
from captioner.models.tensors import index_batch

ORDERS = ("most", "random", "least")
"""Regions are erased by decreasing weight, in random order, or by increasing weight."""
SHARES = (0.05, 0.1, 0.2, 0.5)
"""Shares of an image's regions to erase; a single region is erased first."""
DRAWS = 3
"""Number of random orders that ``random`` is averaged over."""


class LogProbDrop(NamedTuple):
    """Deletion and insertion curves of the words of a caption, in nats."""

    log_probs: Float[Tensor, " T"]  # with nothing erased
    drops: Float[Tensor, "T 3 Q"]  # for each of ORDERS and number of erased regions
    shares: Float[Tensor, " Q"]  # of the regions that are erased, in (0, 1], increasing
    rises: Float[Tensor, "T 3 Q"]  # above no region, as as many regions are put back

    @property
    def areas(self) -> Float[Tensor, "T 3"]:
        """Area under the drop curve, divided by its width: the mean drop in nats."""
        return self._area(self.drops)

    @property
    def insertion_areas(self) -> Float[Tensor, "T 3"]:
        """The same for the curve of rises: the mean rise in nats."""
        return self._area(self.rises)

    def _area(self, curve: Float[Tensor, "T 3 Q"]) -> Float[Tensor, "T 3"]:
        shares = torch.nn.functional.pad(self.shares, (1, 0))
        return torch.trapezoid(torch.nn.functional.pad(curve, (1, 0)), shares) / self.shares[-1]


@torch.inference_mode()
def word_drops(
    decoder: Decoder,
    annotations: Annotations,
    captions: Sequence[Sequence[int]],
    shares: Sequence[float] = SHARES,
    draws: int = DRAWS,
    seed: int = 0,
    maps: Sequence[Float[Tensor, "T L"]] | None = None,
) -> list[LogProbDrop]:
    """Compute the deletion and insertion curves of all words of some captions.

    Args:
        decoder: deterministic, in eval mode.
        annotations: after the neck, of the image of each caption.
        captions: word ids without start and end, at least one word each.
        shares: of the regions to erase, increasing, in (0, 1], after a single region.
        draws: number of random orders.
        seed: of the random orders, and of the order of regions with equal weights.
        maps: of the words of each caption, which rank the regions; None for the attention weights.
    """
    # Longest captions first, so that captions drop out at the end of the batch.
    rows = sorted(range(len(captions)), key=lambda row: -len(captions[row]))
    device = annotations.vectors.device
    generator = torch.Generator(device).manual_seed(seed)
    annotations = index_batch(annotations, torch.tensor(rows, device=device))
    lengths = [len(captions[row]) for row in rows]
    tokens = pad_sequence(
        [torch.tensor([START, *captions[row]]) for row in rows], batch_first=True, padding_value=PAD
    ).to(device)
    mask = annotations.mask
    if mask is None:
        mask = torch.ones_like(annotations.vectors[..., 0], dtype=torch.bool)
    # Numbers of regions to erase in each image: one, then the shares.
    fractions = torch.tensor([0.0, *shares], dtype=torch.float64, device=device)
    numbers = (mask.sum(1, keepdim=True) * fractions).round().long().clamp(min=1)  # (B, Q)

    decoded = decoder(annotations, tokens[:, :-1])
    if maps is not None:
        weights = pad_sequence([maps[row] for row in rows], batch_first=True).to(device)
        decoded = replace(decoded, weights=weights, probs=None)
    erasure, state = Erasure(decoder, annotations), decoder.init_state(annotations)
    steps = []  # the first three arguments of ``curves``, for the captions that have not ended
    for step in range(lengths[0]):
        active = sum(length > step for length in lengths)
        images = torch.arange(active, device=device)
        state = index_batch(state, images)
        before, word = tokens[:active, step : step + 2].T
        ranks = _ranks(decoded, step, mask[:active], draws, generator)  # (active, N, L)
        chosen = ranks.unsqueeze(2) < numbers[:active, None, :, None]  # (active, N, Q, L)
        valid = mask[:active, None, None].expand_as(chosen)
        regions = torch.stack([chosen, ~chosen & valid], 1)  # erased; those not put back
        after = []
        for image in images:  # the copies of one image stay in the processor's cache
            without = regions[image].flatten(0, 2)
            copies = image.expand(len(without))
            erased = erasure.erase(state, copies, without)
            after.append(_log_probs(decoder.step(before[copies], erased)[0], word[copies]))
        erased = erasure.erase(state, images, mask[:active])
        nothing = _log_probs(decoder.step(before, erased)[0], word)
        logits, _, state = decoder.step(before, state)
        changed = torch.stack(after).view(regions.shape[:4])
        steps.append((_log_probs(logits, word), changed, nothing))
    results = {}
    for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        parts = zip(*steps[:length], strict=True)
        whole, changed, nothing = (
            torch.stack([part[i] for part in of_steps]) for of_steps in parts
        )
        erased_shares = numbers[i].double() / mask[i].sum()
        results[row] = curves(whole, changed, nothing, erased_shares)
    return [results[row] for row in range(len(captions))]


def curves(
    whole: Float[Tensor, " T"],
    after: Float[Tensor, "T 2 N Q"],
    nothing: Float[Tensor, " T"],
    shares: Float[Tensor, " Q"],
) -> LogProbDrop:
    """Return the curves of T words.

    Args:
        whole: log-probability of each word, given all regions.
        after: those without some regions, and those with only these. The N orders are: by decreasing
            weight, by increasing weight, and random ones.
        nothing: those without any region.
        shares: of the regions, at Q points.
    """
    without, only = after.unbind(1)
    both = torch.stack([whole[:, None, None] - without, only - nothing[:, None, None]], 1)
    by_order = [both[:, :, 0], both[:, :, 2:].mean(2), both[:, :, 1]]
    drops, rises = torch.stack(by_order, 2).unbind(1)
    return LogProbDrop(whole, drops, shares.to(whole.dtype), rises)


def _ranks(
    decoded: Decoded, step: int, mask: Bool[Tensor, "P L"], draws: int, generator: torch.Generator
) -> Int[Tensor, "P N L"]:
    """Rank the regions by decreasing weight, by increasing weight, and in random orders.

    Ties in hard attention are broken by the sampling probabilities. Masked regions are last.
    """
    assert decoded.weights is not None
    weights = decoded.weights[: len(mask), step]
    probs = weights if decoded.choice is None else decoded.choice.probs[: len(mask), step]
    masked = (~mask).to(weights.dtype)

    def ranks(*keys: Tensor) -> Int[Tensor, "P L"]:
        """Rank by the last key; break ties by the keys before it, then at random."""
        order = torch.rand(mask.shape, generator=generator, device=mask.device).argsort(-1)
        for key in keys:
            order = order.gather(-1, key.gather(-1, order).argsort(dim=-1, stable=True))
        return order.argsort(-1)

    by_weight = [ranks(-probs, -weights, masked), ranks(probs, weights, masked)]
    return torch.stack(by_weight + [ranks(masked) for _ in range(draws)], 1)


def _log_probs(logits: Float[Tensor, "P V"], words: Int[Tensor, " P"]) -> Float[Tensor, " P"]:
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return wide.log_softmax(-1).gather(1, words.unsqueeze(1)).squeeze(1)
