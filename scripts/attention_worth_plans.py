"""Other weights and other decoders for attention_worth.py: permuted plans, and random layers."""

import copy
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from captioner.evaluation.interventions import Plan, Tokens
from captioner.evaluation.randomisation import shuffle
from captioner.models.annotations import Annotations
from captioner.models.decoder import Decoder
from captioner.models.distributions import Sampling

_TOP = {"output layer": ("output", "norm", "output_hidden", "output_context", "attentional")}
_BOTTOM = {
    "LSTM": ("lstm", "gate", "language", "sentinel", "intra"),
    "attention": ("attention",),
    "initial memory": ("start_hidden", "start_cell", "memory"),
    "embeddings": ("embedding",),
}
"""Modules of decoders by layer, from the top down; the layers of a Transformer lie between the two.
Embeddings that are also the output layer are randomised last."""


def select(plan: Plan, captions: Int[Tensor, "K T"], steps: Int[Tensor, "K T"]) -> Plan:
    """Return the plan whose step t of caption k is step ``steps[k, t]`` of ``captions[k, t]``."""
    return tuple(part.movedim(-2, 1)[captions, steps].movedim(1, -2) for part in plan)


def own(plan: Plan, lengths: Sequence[int], steps: int) -> Plan:
    """Return the plan with a number of steps: after its last step, a caption starts again.

    ``lengths`` has the number of steps of each caption, its end included.
    """
    captions = torch.arange(len(lengths))
    return select(plan, *_cycled(captions, [torch.arange(length) for length in lengths], steps))


def between_words(
    plan: Plan, lengths: Sequence[int], steps: int, generator: torch.Generator
) -> Plan:
    """Permute the weights between the words of each caption; see ``own``."""
    captions = torch.arange(len(lengths))
    orders = [torch.randperm(length, generator=generator) for length in lengths]
    return select(plan, *_cycled(captions, orders, steps))


def between_photos(
    plan: Plan,
    lengths: Sequence[int],
    steps: int,
    generator: torch.Generator,
    photos: Sequence[int],
) -> Plan:
    """Give each caption the weights of a caption of another photo; see ``own``.

    The photos are put into a random order, and each takes the weights of the next. Caption r of a photo
    takes the weights of caption r of the other. ``photos`` has the number of each caption's photo.
    """
    members: list[list[int]] = [[] for _ in range(max(photos) + 1)]
    for caption, photo in enumerate(photos):
        members[photo].append(caption)
    ring = torch.randperm(len(members), generator=generator)
    other = torch.empty_like(ring).index_copy(0, ring, ring.roll(-1)).tolist()
    source = []
    for caption, photo in enumerate(photos):
        number, donors = members[photo].index(caption), members[other[photo]]
        source.append(donors[number % len(donors)])
    orders = [torch.arange(lengths[caption]) for caption in source]
    return select(plan, *_cycled(torch.tensor(source), orders, steps))


def _cycled(
    captions: Int[Tensor, " C"], orders: Sequence[Tensor], steps: int
) -> tuple[Int[Tensor, "C S"], Int[Tensor, "C S"]]:
    """Return the indices for ``select`` that repeat the given order of steps of each caption."""
    numbers = torch.arange(steps)
    chosen = torch.stack([order[numbers % len(order)] for order in orders])
    return captions.unsqueeze(1).expand(-1, steps), chosen


def cascade(decoder: Decoder, seed: int) -> Iterator[tuple[str, Decoder]]:
    """Yield the name of each layer and the decoder in which it and all layers above are random.

    Every parameter keeps its values in a random order. Every step yields the same copy.
    """
    decoder, generator = copy.deepcopy(decoder), torch.Generator().manual_seed(seed)
    left = dict(decoder.named_parameters())
    numbers = reversed(range(len(getattr(decoder, "layers", ()))))
    layers = {f"layer {number + 1}": (f"layers.{number}",) for number in numbers}
    for layer, modules in (_TOP | layers | _BOTTOM).items():
        chosen = [n for n in left if any(n == m or n.startswith(f"{m}.") for m in modules)]
        for name in chosen:
            shuffle(left.pop(name), generator)
        if chosen:
            yield layer, decoder
    assert not left, f"parameters of no layer: {sorted(left)}"


@torch.no_grad()
def maps(decoder: Decoder, annotations: Annotations, tokens: Tokens) -> Float[Tensor, "C T L"]:
    """Return the maps of every step; for hard attention the probabilities of the regions."""
    decoded = decoder(annotations, tokens[:, :-1], sampling=Sampling("expectation"))
    return decoded.weights
