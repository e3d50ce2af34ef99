"""The deletion curve of a word: what is left of its probability as regions are erased.

For the word at step t the decoder has the memory of the whole picture, and only step t sees the
erased one, in which the picture's mean annotation stands in for each erased annotation
(``captioner.models.erasure``). Attention is computed anew: it may look elsewhere, as it would had
the region shown nothing. Samek et al. 2017 (arXiv 1509.06321) and Petsiuk, Das, Saenko 2018
(arXiv 1806.07421) test maps of a classifier so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from captioner.models.annotations import Annotations
from captioner.models.decoder import Decoded, Decoder, of_pictures
from captioner.models.erasure import Erasure
from captioner.text import PAD, START

Order = Literal["most", "random", "least"]
ORDERS: tuple[Order, ...] = get_args(Order)
SHARES = (0.05, 0.1, 0.2, 0.5)
"""Of a picture's regions, erased one after the other; before them, one region alone."""


@dataclass(frozen=True)
class Falls:
    """What erasing regions costs each word of a caption.

    Attributes:
        log_probs: of each word, nothing erased, in nats.
        falls: how far the log-probability falls, for each of ``ORDERS`` and number of regions.
        shares: which share of the regions is erased, in (0, 1], increasing.
    """

    log_probs: Float[Tensor, " T"]
    falls: Float[Tensor, "T 3 Q"]
    shares: Float[Tensor, " Q"]

    @property
    def areas(self) -> Float[Tensor, "T 3"]:
        """The area over the curve: the mean fall on the way from nothing erased to the most; nats.

        By the trapezoidal rule, divided by the width, so that it does not grow with the last share.
        """
        start = self.shares.new_zeros(1)
        falls = torch.nn.functional.pad(self.falls, (1, 0))
        return torch.trapezoid(falls, torch.cat([start, self.shares])) / self.shares[-1]


@torch.inference_mode()
def word_falls(
    decoder: Decoder,
    annotations: Annotations,
    captions: Sequence[Sequence[int]],
    shares: Sequence[float] = SHARES,
    draws: int = 3,
    seed: int = 0,
) -> list[Falls]:
    """What erasing regions costs every word of some captions.

    Args:
        decoder: in eval mode; nothing in it draws.
        annotations: refined, as the decoder attends to them; of the picture of each caption.
        captions: the ids of each one's words, without start and end; at least one word each.
        shares: of a picture's regions to erase, increasing, above 0 and up to 1; at least one region
            is, and one region alone comes before them all.
        draws: over how many random choices of regions ``random`` is averaged.
        seed: of those, and of the order of regions whose weights are the same.
    """
    # The longest first: a caption that has ended is left out from there on.
    rows = sorted(range(len(captions)), key=lambda row: -len(captions[row]))
    device = annotations.vectors.device
    generator = torch.Generator(device).manual_seed(seed)
    annotations = of_pictures(annotations, torch.tensor(rows, device=device))
    lengths = [len(captions[row]) for row in rows]
    words = [[START, *captions[row]] + [PAD] * (lengths[0] - len(captions[row])) for row in rows]
    tokens = torch.tensor(words, device=device)
    there = annotations.mask
    if there is None:
        there = torch.ones_like(annotations.vectors[..., 0], dtype=torch.bool)
    numbers = _numbers(there.sum(1), shares)

    told = decoder(annotations, tokens[:, :-1])
    erasure, state = Erasure(decoder, annotations), decoder.start(annotations)
    whole, left = [], []
    for step in range(lengths[0]):
        alive = sum(length > step for length in lengths)
        first = _order(told, step, there[:alive], draws, generator)  # (alive, N, L)
        regions = first.unsqueeze(2) < numbers[:alive, None, :, None]  # (alive, N, Q, L)
        pictures = torch.arange(alive, device=device).repeat_interleave(regions[0, ..., 0].numel())
        erased = erasure.erase(state, pictures, regions.flatten(0, 2))
        of_erased, _, _ = decoder.step(tokens[pictures, step], erased)
        state = of_pictures(state, torch.arange(alive, device=device))
        of_whole, _, state = decoder.step(tokens[:alive, step], state)
        said = tokens[:alive, step + 1]
        whole.append(_log_prob(of_whole, said))
        left.append(_log_prob(of_erased, said[pictures]).view(regions.shape[:3]))
    found: list[Falls] = [None] * len(rows)  # type: ignore[list-item]
    for place, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        log_probs = torch.stack([step[place] for step in whole[:length]])
        falls = log_probs[:, None, None] - torch.stack([step[place] for step in left[:length]])
        most, least, random = falls[:, 0], falls[:, 1], falls[:, 2:].mean(1)
        found[row] = Falls(
            log_probs,
            torch.stack([most, random, least], 1),
            numbers[place].to(log_probs.dtype) / there[place].sum(),
        )
    return found


def _numbers(regions: Int[Tensor, " B"], shares: Sequence[float]) -> Int[Tensor, "B Q"]:
    """How many regions of each picture are erased: one, then the shares."""
    given = torch.tensor([0.0, *shares], dtype=torch.float64, device=regions.device)
    return (regions.unsqueeze(1) * given).round().long().clamp(min=1)


def _order(
    told: Decoded,
    step: int,
    there: Bool[Tensor, "P L"],
    draws: int,
    generator: torch.Generator,
) -> Int[Tensor, "P N L"]:
    """The place of each region in every order: the most looked at first, the least, and at random.

    Where hard attention looks at one region alone, the others follow by what it was drawn from.
    """
    assert told.weights is not None
    looked = told.weights[: len(there), step]
    chances = looked if told.expected is None else told.expected[: len(there), step]
    closed = (~there).to(looked.dtype)  # what cannot be attended comes last

    def noise() -> Tensor:
        return torch.rand(there.shape, generator=generator, device=there.device)

    orders = [
        _places(noise(), -chances, -looked, closed),
        _places(noise(), chances, looked, closed),
        *(_places(noise(), closed) for _ in range(draws)),
    ]
    return torch.stack(orders, 1)


def _places(*keys: Tensor) -> Int[Tensor, "P L"]:
    """The place of each region when they are sorted by the last key, within it by the one before …"""
    order = keys[0].argsort(-1)
    for key in keys[1:]:
        order = order.gather(-1, key.gather(-1, order).argsort(dim=-1, stable=True))
    return order.argsort(-1)


def _log_prob(logits: Float[Tensor, "P V"], words: Int[Tensor, " P"]) -> Float[Tensor, " P"]:
    """Of one word of each."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return wide.log_softmax(-1).gather(1, words.unsqueeze(1)).squeeze(1)
