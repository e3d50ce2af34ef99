"""The LSTM decoder of "Show, Attend and Tell": attend, then update."""

from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from captioner.models.annotations import Annotations
from captioner.models.attention.attention import Attended, Attention, with_rows
from captioner.models.decoder import (
    Decoded,
    Detail,
    mixture,
    repeat,
    rows_at_work,
    unfinished,
)
from captioner.models.linear import Linear
from captioner.models.packing import rounded
from captioner.models.recurrent import AttentionFactory, LSTMState, Memory, RecurrentDecoder


class LSTMDecoder(RecurrentDecoder):
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
        tied: whether the output layer L_o is the embedding matrix E.
        intra: whether the LSTM looks back at all its memories: ``IntraAttention``.
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
        intra: bool = False,
    ) -> None:
        inputs = embedding + annotation_dim
        super().__init__(
            *(vocab_size, annotation_dim, attention, hidden, embedding, dropout, tied),
            inputs if intra else None,
        )
        self.gate = nn.Sequential(nn.Linear(hidden, 1), nn.Sigmoid()) if gate else None
        self.lstm = nn.LSTMCell(inputs, hidden)
        self.output_hidden = Linear(hidden, embedding)
        self.output_context = Linear(annotation_dim, embedding, bias=False)

    def step(
        self, tokens: Int[Tensor, " B *R"], state: LSTMState
    ) -> tuple[Float[Tensor, "B *R V"], Float[Tensor, "B *R L"], LSTMState]:
        """One word in, the scores of the next out: (logits, weights, state)."""
        embedded = self.dropout(self.embedding(tokens))
        attended, hidden, _, state = self._advance(embedded, state, need_weights=True)
        logits = self._read_out(embedded, hidden, attended)
        assert attended.weights is not None
        return logits, attended.weights, state

    def teach(
        self, annotations: Annotations, tokens: Int[Tensor, "B R T"], detail: Detail
    ) -> Decoded:
        """The vocabulary is projected once, after the loop over time, for the words there are."""
        state = self.begin(annotations, tokens)
        embedded = self.dropout(self.embedding(tokens))  # (B, R, T, m)
        steps: list[Attended] = []
        hidden: list[Tensor] = []
        looked: list[Tensor] = []
        there = unfinished(tokens)
        for t, (word, rows) in enumerate(zip(embedded.unbind(2), rows_at_work(there), strict=True)):
            state = self.keep(state, rows)
            attended, now, looks, state = self._advance(
                word[:, :rows], state, detail != "none", there[:, :rows, t]
            )
            steps.append(attended.with_rows(tokens.shape[1]))
            hidden.append(with_rows(now, tokens.shape[1]))
            looked.append(with_rows(looks, tokens.shape[1]))
        attended, there = Attended.stack(steps), rounded(there)
        said = self._read_out(embedded[there], torch.stack(hidden, 2)[there], attended.at(there))
        return self.decoded(said, there, attended, looked, detail)

    def _advance(
        self,
        embedded: Float[Tensor, "B *R m"],
        state: LSTMState,
        need_weights: bool,
        wanted: Bool[Tensor, "B R"] | None = None,
    ) -> tuple[Attended, Float[Tensor, "B *R_k n"], Tensor, LSTMState]:
        """Attend with the previous memory, then update it: (gated context, h, looked, state).

        Where several positions are tried, h has an axis k, and the state goes on with their mean.
        """
        memory = state.memory
        attended = self.attention(memory.hidden, state.keys, state.words, need_weights)
        if self.gate is not None:
            attended = _scaled(attended, self.gate(memory.hidden))
        if attended.choices is None or attended.chances is None:
            inputs = _joined(embedded, attended.context)
            memory, looked = self.update(inputs, memory, state.recurrence, wanted)
            hidden = memory.hidden
        else:
            k, ways = attended.chances.shape[-1], attended.chances.unsqueeze(-1)  # (B, *R, k, 1)
            each, looked = self.update(
                _joined(repeat(embedded, k), attended.choices),
                Memory(repeat(memory.hidden, k), repeat(memory.cell, k)),
                state.recurrence,
                None if wanted is None else wanted.unsqueeze(-1).expand(*wanted.shape, k),
            )
            hidden = each.hidden
            memory = Memory((ways * each.hidden).sum(-2), (ways * each.cell).sum(-2))
        state = replace(state, memory=memory, words=state.words + 1)
        return attended, hidden, looked, state

    def _read_out(
        self,
        embedded: Float[Tensor, "B *R m"],
        hidden: Float[Tensor, "B *R_k n"],
        attended: Attended,
    ) -> Float[Tensor, "B *R V"]:
        """The deep output, mixed where several positions were tried."""
        context = attended.context
        if attended.choices is not None:
            embedded, context = embedded.unsqueeze(-2), attended.choices
        deep = embedded + self.output_hidden(self.dropout(hidden)) + self.output_context(context)
        logits = self.output(self.dropout(torch.tanh(deep)))
        return logits if attended.chances is None else mixture(logits, attended.chances)


def _joined(
    embedded: Float[Tensor, "*rows m"], context: Float[Tensor, "*rows D"]
) -> Float[Tensor, "*rows i"]:
    """What the LSTM is fed with."""
    return torch.cat([embedded, context.to(embedded.dtype)], -1)


def _scaled(attended: Attended, gate: Float[Tensor, "B *R 1"]) -> Attended:
    """With β times the context vector, and times each that is tried."""
    tried = attended.choices
    tried = None if tried is None else gate.unsqueeze(-2) * tried
    return replace(attended, context=gate * attended.context, choices=tried)
