"""The LSTM decoder of "Show, Attend and Tell": attend, then update."""

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from captioner.models.annotations import Annotations
from captioner.models.attention.attention import Attended, Attention, AttentionBase, Keys
from captioner.models.decoder import Decoded, Decoder


@runtime_checkable
class AttentionFactory(Protocol):
    """Makes an attention once the sizes are known."""

    def __call__(self, *, query_dim: int, memory_dim: int) -> AttentionBase:
        """An attention for queries of width ``query_dim`` over vectors of width ``memory_dim``."""
        ...


@dataclass(frozen=True)
class LSTMState:
    """Memory of the LSTM.

    Attributes:
        hidden: h_t, for every row of every picture.
        cell: c_t, likewise.
        keys: what the attention computed once per picture.
        words: how many words have been fed in.
    """

    hidden: Float[Tensor, "B *R n"]
    cell: Float[Tensor, "B *R n"]
    keys: Keys
    words: int = 0

    def select(self, rows: Int[Tensor, "B K"]) -> "LSTMState":
        """The state in which row k of picture b continues what row ``rows[b, k]`` remembered."""
        return LSTMState(
            gather_rows(self.hidden, rows), gather_rows(self.cell, rows), self.keys, self.words
        )


class LSTMDecoder(Decoder):
    """Attend, then update (Xu et al. 2015 §3.1.2; Bahdanau et al. 2015).

    At step t, with h and c the LSTM's memory and E the word embeddings::

        ẑ_t = β_t · A(h_{t-1}, annotations)      β_t = σ(f_β(h_{t-1})), the gate of §4.2.1
        h_t, c_t = LSTM([E y_{t-1}; ẑ_t], h_{t-1}, c_{t-1})
        p(y_t) ∝ exp(L_o tanh(E y_{t-1} + L_h h_t + L_z ẑ_t))     eq. 7, the deep output

    and h_0, c_0 from two MLPs of the mean annotation. The tanh and the dropout in the deep output are
    the authors' code's, not the paper's.

    Args:
        vocab_size: V.
        annotation_dim: D, the width of an annotation vector.
        attention: makes the attention, given ``query_dim`` and ``memory_dim``.
        hidden: n, the width of the LSTM's memory.
        embedding: m, the width of a word embedding.
        dropout: probability of dropping a component of the embeddings, of h before the output, and
            of the deep output.
        gate: whether β_t scales the context vector.
        tied: whether the output layer L_o is the embedding matrix E (Press, Wolf 2017,
            arXiv 1608.05859): fewer parameters, less overfitting on a small data set.
    """

    def __init__(
        self,
        vocab_size: int,
        annotation_dim: int,
        attention: AttentionFactory = Attention,
        hidden: int = 512,
        embedding: int = 384,
        dropout: float = 0.5,
        gate: bool = True,
        tied: bool = True,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embedding)
        self.attention = attention(query_dim=hidden, memory_dim=annotation_dim)
        self.gate = nn.Sequential(nn.Linear(hidden, 1), nn.Sigmoid()) if gate else None
        self.lstm = nn.LSTMCell(embedding + annotation_dim, hidden)
        self.start_hidden = nn.Sequential(nn.Linear(annotation_dim, hidden), nn.Tanh())
        self.start_cell = nn.Sequential(nn.Linear(annotation_dim, hidden), nn.Tanh())
        self.output_hidden = nn.Linear(hidden, embedding)
        self.output_context = nn.Linear(annotation_dim, embedding, bias=False)
        self.output = nn.Linear(embedding, vocab_size)
        self.dropout = nn.Dropout(dropout)
        if tied:
            # Unit variance, torch's choice for embeddings, would make the first logits enormous.
            nn.init.normal_(self.embedding.weight, std=0.05)
            self.output.weight = self.embedding.weight

    def start(self, annotations: Annotations) -> LSTMState:
        """h_0 and c_0 from the mean annotation; the keys, once per picture."""
        mean = annotations.mean()
        return LSTMState(
            self.start_hidden(mean), self.start_cell(mean), self.attention.prepare(annotations)
        )

    def step(
        self, tokens: Int[Tensor, "B *R"], state: LSTMState
    ) -> tuple[Float[Tensor, "B *R V"], Float[Tensor, "B *R L"], LSTMState]:
        """One word in, the scores of the next out: (logits, weights, state)."""
        embedded = self.dropout(self.embedding(tokens))
        attended, state = self._advance(embedded, state)
        return self._read_out(embedded, state.hidden, attended.context), attended.weights, state

    def forward(self, annotations: Annotations, tokens: Int[Tensor, "B *R T"]) -> Decoded:
        """Teacher forcing; the vocabulary is projected once, after the loop over time."""
        state = self.start(annotations)
        if tokens.ndim == 3:
            first = torch.zeros_like(tokens[:, :, 0])
            state = state.select(first)  # every caption begins from the picture's one start
        embedded = self.dropout(self.embedding(tokens))  # (B, *R, T, m)
        steps: list[Attended] = []
        hidden: list[Tensor] = []
        for word in embedded.unbind(-2):
            attended, state = self._advance(word, state)
            steps.append(attended)
            hidden.append(state.hidden)
        attended = Attended.stack(steps)
        return Decoded(
            self._read_out(embedded, torch.stack(hidden, -2), attended.context),
            attended.weights,
            attended.log_prob,
            attended.entropy,
        )

    def _advance(
        self, embedded: Float[Tensor, "B *R m"], state: LSTMState
    ) -> tuple[Attended, LSTMState]:
        """Attend with the previous memory, then update it. The context returned is gated."""
        attended = self.attention(state.hidden, state.keys, step=state.words)
        context = attended.context
        if self.gate is not None:
            context = self.gate(state.hidden) * context
        inputs = torch.cat([embedded, context.to(embedded.dtype)], -1)
        memory = (state.hidden.flatten(0, -2), state.cell.flatten(0, -2))
        hidden, cell = self.lstm(inputs.flatten(0, -2), memory)
        state = LSTMState(
            hidden.view_as(state.hidden), cell.view_as(state.cell), state.keys, state.words + 1
        )
        return replace(attended, context=context), state

    def _read_out(
        self,
        embedded: Float[Tensor, "B *R m"],
        hidden: Float[Tensor, "B *R n"],
        context: Float[Tensor, "B *R D"],
    ) -> Float[Tensor, "B *R V"]:
        """The deep output."""
        deep = embedded + self.output_hidden(self.dropout(hidden)) + self.output_context(context)
        return self.output(self.dropout(torch.tanh(deep)))


def gather_rows(
    memory: Float[Tensor, "B *R n"], rows: Int[Tensor, "B K"]
) -> Float[Tensor, "B K n"]:
    """Row k of picture b is what row ``rows[b, k]`` was; no axis R means one row."""
    memory = memory.reshape(len(memory), -1, memory.shape[-1])
    return memory.gather(1, rows.unsqueeze(-1).expand(-1, -1, memory.shape[-1]))
