"""The visual sentinel: what a decoder attends to instead of the image."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from captioner.models.distributions import block_masked


class Sentinel(nn.Module):
    """A vector of the LSTM's memory that competes with the regions (Lu et al. 2017, arXiv 1612.01887).

    With x_t the input of the LSTM, h_t and m_t its hidden state and memory cell, and ẑ_t the context
    vector of attention with the query h_t and scores e_i (eq. 9 to 13 of the paper)::

        g_t = σ(W_x x_t + W_h h_{t-1})
        s_t = W_s (g_t ⊙ tanh(m_t))                  the sentinel
        β_t = exp(e_s) / (exp(e_s) + Σ_i exp(e_i))    e_s is the score of s_t
        ĉ_t = β_t s_t + (1 - β_t) ẑ_t

    W_s gives the sentinel the width of an annotation, as in the authors' code, so that one score
    compares the query with both.
    """

    def __init__(self, input_dim: int, hidden: int, annotation_dim: int) -> None:
        super().__init__()
        self.input = nn.Linear(input_dim, hidden)
        self.hidden = nn.Linear(hidden, hidden, bias=False)
        self.output = nn.Linear(hidden, annotation_dim)

    def forward(
        self,
        inputs: Float[Tensor, "B R i"],
        hidden: Float[Tensor, "B R n"],
        cell: Float[Tensor, "B R n"],
    ) -> Float[Tensor, "B R D"]:
        """Return s_t from x_t, h_{t-1} and m_t."""
        gate = torch.sigmoid(self.input(inputs) + self.hidden(hidden))  # g_t
        return self.output(gate * torch.tanh(cell))


def sentinel_weight(
    score: Float[Tensor, "B *h T"],
    region_scores: Float[Tensor, "B *h T L"],
    mask: Bool[Tensor, "B *#h 1 L"] | None,
) -> Float[Tensor, "B *h T 1"]:
    """Return β, the softmax of the sentinel's score among those of the unmasked regions."""
    return torch.sigmoid(score - block_masked(region_scores, mask).logsumexp(-1)).unsqueeze(-1)


def mix(
    beta: Float[Tensor, "*rows 1"], sentinel: Float[Tensor, "*rows D"], context: Tensor
) -> Float[Tensor, "*rows D"]:
    """Compute ``ĉ = β s + (1 - β) ẑ``."""
    beta = beta.to(sentinel.dtype)
    return beta * sentinel + (1 - beta) * context
