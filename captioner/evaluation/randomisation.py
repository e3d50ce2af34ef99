"""Do maps depend on what a decoder has learned? (Adebayo et al. 2018, arXiv 1810.03292, §3.1)

The layers of a decoder are randomised one after another, from the output layer down to the embeddings.
A map that stays the same does not show what the model learned.
"""

import copy
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from captioner.evaluation.interventions import Tokens
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


def randomised(decoder: nn.Module, seed: int = 0) -> nn.Module:
    """Return a copy of a decoder in which every parameter keeps its values in a random order."""
    generator, decoder = torch.Generator().manual_seed(seed), copy.deepcopy(decoder)
    for parameter in decoder.parameters():
        _shuffle(parameter, generator)
    return decoder


def cascade(decoder: Decoder, seed: int) -> Iterator[tuple[str, Decoder]]:
    """Yield the name of each layer and the decoder in which it and all layers above are random.

    Every parameter keeps its values in a random order, and so its mean and its scale. The decoder
    is a copy, and every step yields the same object.
    """
    decoder, generator = copy.deepcopy(decoder), torch.Generator().manual_seed(seed)
    left = dict(decoder.named_parameters())
    numbers = reversed(range(len(getattr(decoder, "layers", ()))))
    layers = {f"layer {number + 1}": (f"layers.{number}",) for number in numbers}
    for layer, modules in (_TOP | layers | _BOTTOM).items():
        chosen = [n for n in left if any(n == m or n.startswith(f"{m}.") for m in modules)]
        for name in chosen:
            _shuffle(left.pop(name), generator)
        if chosen:
            yield layer, decoder
    assert not left, f"parameters of no layer: {sorted(left)}"


def _shuffle(parameter: nn.Parameter, generator: torch.Generator) -> None:
    values = parameter.data
    order = torch.randperm(values.numel(), generator=generator).to(values.device)
    values.copy_(values.flatten()[order].view_as(values))


@torch.no_grad()
def maps(decoder: Decoder, annotations: Annotations, tokens: Tokens) -> Float[Tensor, "C T L"]:
    """Return the maps of every step; for hard attention the probabilities of the regions."""
    decoded = decoder(annotations, tokens[:, :-1], sampling=Sampling("expectation"))
    return decoded.weights


def rank_correlation(
    one: Float[Tensor, "*maps L"], other: Float[Tensor, "*maps L"]
) -> Float[Tensor, "*maps"]:
    """Return Spearman's correlation of every pair of maps; 0 if all weights of a map are equal."""
    x, y = (ranks - ranks.mean(-1, keepdim=True) for ranks in (_ranks(one), _ranks(other)))
    scale = (x.square().sum(-1) * y.square().sum(-1)).sqrt()
    return torch.where(scale > 0, (x * y).sum(-1) / scale.clamp(min=1e-12), 0.0)


def _ranks(values: Float[Tensor, "*maps L"]) -> Float[Tensor, "*maps L"]:
    """Rank the weights of every map; equal ones share the mean of their ranks."""
    ordered, values = values.sort(-1).values.contiguous(), values.contiguous()
    below, up_to = (torch.searchsorted(ordered, values, right=right) for right in (False, True))
    return (below + up_to).double() / 2
