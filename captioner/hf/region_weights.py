"""From the library's attention tensors to weights on image cells, and attention rollout."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from captioner.predict.explanations import attention_rollout


@dataclass(frozen=True)
class Attention:
    """Attention of one row of a batch, at the inputs that predict the tokens of its caption."""

    cells: Float[Tensor, "T layers heads L"]
    rollout: Float[Tensor, "T L"]


def cross_attention(
    cross: Sequence[Float[Tensor, "heads S I"]],
    past: Sequence[Float[Tensor, "heads S S"]],
    queries: slice,
    cells: Int[Tensor, " L"],
) -> Attention:
    """Return attention of a decoder with cross-attention, in its layers' order.

    Args:
        cross: weights of each layer on the image tokens.
        past: weights of each layer on the text.
        queries: the S inputs whose attention is returned.
        cells: the image tokens that are cells, in raster order.
    """
    stacked = torch.stack(list(cross), 1)[:, :, queries][..., cells]  # (h, l, T, L)
    rollout = attention_rollout(past, cross)
    return Attention(stacked.permute(2, 1, 0, 3), rollout[queries][:, cells])


def self_attention(
    weights: Sequence[Float[Tensor, "heads S S"]], queries: slice, cells: Int[Tensor, " L"]
) -> Attention:
    """Return attention of a decoder that reads image and text as one sequence of S tokens.

    The rollout is the product of ½ (A + I) over the layers (Abnar, Zuidema 2020, equation 1).
    """
    stacked = torch.stack([layer[:, queries][..., cells] for layer in weights], 1)
    rollout = torch.eye(weights[0].shape[-1], device=weights[0].device, dtype=weights[0].dtype)
    for layer in weights:
        rollout = (layer.mean(0) @ rollout + rollout) / 2
    return Attention(stacked.permute(2, 1, 0, 3), rollout[queries][:, cells])
