"""The LSTM decoder of "Show, Attend and Tell": attend, then update."""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from captioner.models.recurrent import Cell, Embedded, LSTMState, RecurrentDecoder, StepOutput


class LSTMDecoder(RecurrentDecoder):
    """Attend, then update (Xu et al. 2015 §3.1.2; Bahdanau et al. 2015).

    At step t, with h and c the LSTM's memory and E the word embeddings::

        ẑ_t = β_t · A(h_{t-1}, annotations)      β_t = σ(f_β(h_{t-1})), the gate of §4.2.1
        h_t, c_t = LSTM([E y_{t-1}; ẑ_t], h_{t-1}, c_{t-1})
        p(y_t) ∝ exp(L_o tanh(E y_{t-1} + L_h h_t + L_z ẑ_t))     eq. 7, the deep output

    The tanh and the dropout in the deep output follow the authors' code; the paper has neither.

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
        hidden = state.memory.hidden
        attention = self.attention(hidden, state.keys, state.step)  # ẑ_t
        if self.gate is not None:
            attention = replace(attention, context=self.gate(hidden) * attention.context)  # β_t ẑ_t
        inputs = torch.cat([embedded, attention.context.to(embedded.dtype)], -1)
        memory, past_weights = self.update(inputs, state.memory, cell)  # h_t, c_t
        return StepOutput(memory.hidden, attention, past_weights), state.after(memory)

    def read_out(self, embedded: Embedded, output: StepOutput) -> Float[Tensor, "*rows V"]:
        """Compute the deep output (eq. 7)."""
        hidden = self.output_hidden(self.dropout(output.hidden))  # L_h h_t
        context = self.output_context(output.attention.context)  # L_z ẑ_t
        return self.output(self.dropout(torch.tanh(embedded + hidden + context)))
