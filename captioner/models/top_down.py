"""The LSTM decoder of "Bottom-Up and Top-Down Attention": an attention LSTM and a language LSTM."""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from captioner.models.recurrent import (
    Cell,
    Embedded,
    LSTMState,
    RecurrentDecoder,
    StepOutput,
    append_mean,
    run_cell,
)


class TopDownDecoder(RecurrentDecoder):
    """Two LSTMs, with attention between them (Anderson et al. 2018, arXiv 1707.07998, §3.2).

    At step t, with E the word embeddings, a the annotations and ā their mean::

        h¹_t, c¹_t = LSTM([h²_{t-1}; E y_{t-1}; ā], h¹_{t-1}, c¹_{t-1})      the attention LSTM, eq. 2
        ẑ_t = A(h¹_t, a)                                                     eq. 3 to 5
        h²_t, c²_t = LSTM([ẑ_t; h¹_t], h²_{t-1}, c²_{t-1})                   the language LSTM, eq. 6
        p(y_t) = softmax(W_p h²_t)                                           eq. 7

    h²_0 = c²_0 = 0. W_p is the product of the output layer and a projection to an embedding's width.

    Args:
        options: as for ``RecurrentDecoder``; both LSTMs have the width ``hidden``.
    """

    def __init__(
        self, vocab_size: int, annotation_dim: int, *, hidden: int = 512, **options: Any
    ) -> None:
        width = annotation_dim + hidden
        super().__init__(vocab_size, annotation_dim, lambda m: width + m, hidden=hidden, **options)
        self.lstm = nn.LSTMCell(self.input_dim, hidden)
        self.language = nn.LSTMCell(width, hidden)
        self.output_hidden = nn.Linear(hidden, self.embedding.embedding_dim, bias=False)

    def advance(
        self, embedded: Embedded, state: LSTMState, cell: Cell
    ) -> tuple[StepOutput, LSTMState]:
        """Update the attention LSTM, attend, update the language LSTM."""
        language = state.memory.language  # h²_{t-1}, c²_{t-1}
        if language is None:
            language = (torch.zeros_like(state.memory.hidden),) * 2
        inputs = [language[0].to(embedded.dtype), append_mean(embedded, state.mean)]
        memory, past_weights = self.update(torch.cat(inputs, -1), state.memory, cell)  # h¹_t, c¹_t
        attention = self.attention(memory.hidden, state.keys, state.step)  # ẑ_t
        inputs = [attention.context.to(memory.hidden.dtype), memory.hidden]
        language = run_cell(self.language, torch.cat(inputs, -1), language)  # h²_t, c²_t
        memory = replace(memory, language=language)
        return StepOutput(language[0], attention, past_weights), state.after(memory)

    def read_out(self, embedded: Embedded, output: StepOutput) -> Float[Tensor, "*rows V"]:
        """Compute W_p h²_t (eq. 7)."""
        return self.output(self.output_hidden(self.dropout(output.hidden)))
