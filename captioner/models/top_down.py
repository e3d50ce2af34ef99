"""The LSTM decoder of "Bottom-Up and Top-Down Attention": an attention LSTM and a language LSTM."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from captioner.models.decoder import map_tensors
from captioner.models.recurrent import (
    Cell,
    Embedded,
    LSTMState,
    RecurrentDecoder,
    StepOutput,
    append_mean,
    expectation,
    mixture,
    over_candidates,
    run_cell,
)


class TopDownDecoder(RecurrentDecoder):
    """Two LSTMs, with attention between them (Anderson et al. 2018, arXiv 1707.07998, §3.2).

    At step t, with E the word embeddings, a the annotations and ā their mean::

        h¹_t, c¹_t = LSTM([h²_{t-1}; E y_{t-1}; ā], h¹_{t-1}, c¹_{t-1})      the attention LSTM, eq. 2
        ẑ_t = A(h¹_t, a)                                                     eq. 3 to 5
        h²_t, c²_t = LSTM([ẑ_t; h¹_t], h²_{t-1}, c²_{t-1})                   the language LSTM, eq. 6
        p(y_t) = softmax(W_p h²_t)                                           eq. 7

    Two MLPs of the mean annotation give h¹_0 and c¹_0, as in the other LSTM decoders; h²_0 = c²_0 = 0.
    W_p is the product of the output layer and a projection to the width of an embedding.

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
        memory = state.memory
        language = memory.language or (torch.zeros_like(memory.hidden),) * 2  # h²_{t-1}, c²_{t-1}
        inputs = append_mean(embedded, state.mean)  # [E y_{t-1}; ā]
        inputs = torch.cat([language[0].to(embedded.dtype), inputs], -1)
        memory, past_weights = self.update(inputs, memory, cell)  # h¹_t, c¹_t
        attention = self.attention(memory.hidden, state.keys, state.words)

        context, hidden, probs = attention.context, memory.hidden, attention.candidate_probs
        if attention.candidate_values is not None:  # one update per candidate location
            context = attention.candidate_values
            hidden, language = over_candidates((hidden, language), context.shape[-2])
        inputs = torch.cat([context.to(hidden.dtype), hidden], -1)
        language = run_cell(self.language, inputs, language)  # h²_t, c²_t
        output = StepOutput(language[0], attention, past_weights)
        if probs is not None:  # the next step continues with the mean of the candidates
            language = map_tensors(partial(expectation, probs=probs), language)
        memory = replace(memory, language=language)
        return output, replace(state, memory=memory, words=state.words + 1)

    def read_out(self, embedded: Embedded, output: StepOutput) -> Float[Tensor, "*rows V"]:
        """Compute W_p h²_t (eq. 7)."""
        logits = self.output(self.output_hidden(self.dropout(output.hidden)))
        return mixture(logits, output.attention.candidate_probs)
