"""The LSTM decoder of "Show, Attend and Tell": attend, then update."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from captioner.models.attention import AttentionOutput
from captioner.models.decoder import map_tensors
from captioner.models.recurrent import (
    Cell,
    Embedded,
    LSTMState,
    RecurrentDecoder,
    StepOutput,
    expectation,
    mixture,
    over_candidates,
)


class LSTMDecoder(RecurrentDecoder):
    """Attend, then update (Xu et al. 2015 §3.1.2; Bahdanau et al. 2015).

    At step t, with h and c the LSTM's memory and E the word embeddings::

        ẑ_t = β_t · A(h_{t-1}, annotations)      β_t = σ(f_β(h_{t-1})), the gate of §4.2.1
        h_t, c_t = LSTM([E y_{t-1}; ẑ_t], h_{t-1}, c_{t-1})
        p(y_t) ∝ exp(L_o tanh(E y_{t-1} + L_h h_t + L_z ẑ_t))     eq. 7, the deep output

    Two MLPs of the mean annotation give h_0 and c_0. The tanh and the dropout in the deep output
    follow the authors' code; the paper has neither.

    Args:
        gate: scale the context vector by β_t.
        options: as for ``RecurrentDecoder``.
    """

    def __init__(
        self, vocab_size: int, annotation_dim: int, gate: bool = True, **options: Any
    ) -> None:
        super().__init__(vocab_size, annotation_dim, lambda m: m + annotation_dim, **options)
        self.gate = nn.Sequential(nn.Linear(self.hidden, 1), nn.Sigmoid()) if gate else None
        self.lstm = nn.LSTMCell(self.input_dim, self.hidden)
        self.output_hidden = nn.Linear(self.hidden, self.embedding.embedding_dim)
        self.output_context = nn.Linear(annotation_dim, self.embedding.embedding_dim, bias=False)

    def advance(
        self, embedded: Embedded, state: LSTMState, cell: Cell
    ) -> tuple[StepOutput, LSTMState]:
        """Attend with h_{t-1}, gate the context vector, update the memory."""
        memory = state.memory
        attention = self.attention(memory.hidden, state.keys, state.words)
        if self.gate is not None:
            attention = _scale(attention, self.gate(memory.hidden))  # β_t ẑ_t
        context, probs = attention.context, attention.candidate_probs
        if attention.candidate_values is not None:  # one update per candidate location
            context = attention.candidate_values
            embedded, memory = over_candidates((embedded, memory), context.shape[-2])
        inputs = torch.cat([embedded, context.to(embedded.dtype)], -1)  # [E y_{t-1}; ẑ_t]
        memory, past_weights = self.update(inputs, memory, cell)
        hidden = memory.hidden
        if probs is not None:  # the next step continues with the mean of the candidates
            memory = map_tensors(partial(expectation, probs=probs), memory)
        state = replace(state, memory=memory, words=state.words + 1)
        return StepOutput(hidden, attention, past_weights), state

    def read_out(self, embedded: Embedded, output: StepOutput) -> Float[Tensor, "*rows V"]:
        """Compute the deep output (eq. 7)."""
        context = output.attention.context
        if output.attention.candidate_values is not None:
            embedded, context = embedded.unsqueeze(-2), output.attention.candidate_values
        hidden = self.output_hidden(self.dropout(output.hidden))  # L_h h_t
        deep = torch.tanh(embedded + hidden + self.output_context(context))
        return mixture(self.output(self.dropout(deep)), output.attention.candidate_probs)


def _scale(attention: AttentionOutput, gate: Float[Tensor, "B R 1"]) -> AttentionOutput:
    """Multiply the context vector, and that of each candidate, by the gate."""
    candidates = attention.candidate_values
    candidates = None if candidates is None else gate.unsqueeze(-2) * candidates
    return replace(attention, context=gate * attention.context, candidate_values=candidates)
