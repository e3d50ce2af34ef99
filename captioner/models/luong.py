"""The LSTM decoder of Luong, Pham, Manning: update, then attend."""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from captioner.models.packing import Packing
from captioner.models.recurrent import (
    Cell,
    Embedded,
    LSTMState,
    Memory,
    RecurrentDecoder,
    StepOutput,
    append_mean,
)
from captioner.models.registry import require
from captioner.models.scores import Location
from captioner.models.sentinel import Sentinel
from captioner.models.tensors import map_tensors


class LuongDecoder(RecurrentDecoder):
    """Update, then attend (Luong, Pham, Manning 2015, arXiv 1508.04025, §3).

    At step t, with h and c the LSTM's memory, E the word embeddings, and a the annotations::

        h_t, c_t = LSTM([E y_{t-1}; h̃_{t-1}], h_{t-1}, c_{t-1})
        ẑ_t = A(h_t, a)
        h̃_t = tanh(W_c [ẑ_t; h_t])              eq. 5
        p(y_t) = softmax(W_s h̃_t)               eq. 6

    h̃_0 = 0. Without input feeding, teacher forcing computes all words at once, unless there is a
    sentinel, which needs every c_t.

    Args:
        input_feeding: make h̃_{t-1} part of the input (§3.3).
        sentinel: let a visual sentinel compete with the regions: adaptive attention (Lu et al. 2017),
            see ``Sentinel``.
        global_feature: make the mean annotation ā part of every input, as Lu et al. and Huang et al.
            (2019, AoANet) do.
        options: as for ``RecurrentDecoder``; ``embedding`` is also the width of h̃.
    """

    def __init__(
        self,
        vocab_size: int,
        annotation_dim: int,
        input_feeding: bool = True,
        sentinel: bool = False,
        global_feature: bool = False,
        **options: Any,
    ) -> None:
        def input_dim(m: int) -> int:
            return m * (2 if input_feeding else 1) + (annotation_dim if global_feature else 0)

        super().__init__(vocab_size, annotation_dim, input_dim, **options)
        self.input_feeding, self.global_feature = input_feeding, global_feature
        self.lstm = nn.LSTM(self.input_dim, self.hidden, batch_first=True)
        width = annotation_dim + self.hidden
        self.attentional = nn.Linear(width, self.embedding.embedding_dim, bias=False)
        self.sentinel = Sentinel(self.input_dim, self.hidden, annotation_dim) if sentinel else None
        positional = any(isinstance(part, Location) for part in self.attention.modules())
        require(
            not (sentinel and positional), "a sentinel needs a score that reads keys, not Location"
        )

    @property
    def mechanism(self) -> str:
        return super().mechanism + ("" if self.sentinel is None else ", visual sentinel")

    def train(self, mode: bool = True) -> "LuongDecoder":
        """Keep the LSTM, which has no dropout, in training mode: cuDNN requires it for gradients."""
        super().train(mode)
        self.lstm.train()
        return self

    def lstm_cell(self, inputs: Float[Tensor, "N i"], memory: Memory) -> Memory:
        hidden, cell = (part.to(inputs.dtype).unsqueeze(0) for part in memory)
        _, (hidden, cell) = self.lstm(inputs.unsqueeze(1), (hidden, cell))
        return hidden.squeeze(0), cell.squeeze(0)

    def advance(
        self, embedded: Embedded, state: LSTMState, cell: Cell
    ) -> tuple[StepOutput, LSTMState]:
        """Update the memory, attend with h_t, compute h̃_t."""
        inputs = embedded
        if self.global_feature:
            inputs = append_mean(inputs, state.mean)
        if self.input_feeding:
            feed = state.memory.attentional  # h̃_{t-1}
            feed = torch.zeros_like(embedded) if feed is None else feed.to(embedded.dtype)
            inputs = torch.cat([inputs, feed], -1)
        memory, past_weights = self.update(inputs, state.memory, cell)  # h_t, c_t
        sentinel = None
        if self.sentinel is not None:
            sentinel = self.sentinel(inputs, state.memory.hidden, memory.cell)  # s_t
        attention = self.attention(memory.hidden, state.keys, state.step, sentinel)  # ẑ_t
        attentional = self.combine(attention.context, memory.hidden)  # h̃_t
        if self.input_feeding:
            memory = replace(memory, attentional=attentional)
        return StepOutput(attentional, attention, past_weights), state.after(memory)

    def combine(
        self, context: Float[Tensor, "*rows D"], hidden: Float[Tensor, "*rows n"]
    ) -> Float[Tensor, "*rows m"]:
        """Compute h̃_t = tanh(W_c [ẑ_t; h_t]) (eq. 5)."""
        return torch.tanh(self.attentional(torch.cat([context.to(hidden.dtype), hidden], -1)))

    def read_out(self, embedded: Embedded, output: StepOutput) -> Float[Tensor, "*rows V"]:
        """Compute W_s h̃_t (eq. 6)."""
        return self.output(self.dropout(output.hidden))

    def unroll(
        self, embedded: Embedded, active: Bool[Tensor, "B R T"], state: LSTMState
    ) -> StepOutput:
        """Run all steps: at once if no step needs the attention of the one before."""
        if self.input_feeding or self.intra is not None or self.sentinel is not None:
            return super().unroll(embedded, active, state)
        if self.global_feature:
            embedded = append_mean(embedded, state.mean)
        memory = (state.memory.hidden, state.memory.cell)
        initial = tuple(part.flatten(0, 1).unsqueeze(0) for part in memory)
        hidden, _ = self.lstm(embedded.flatten(0, 1), initial)
        packing = Packing(active)
        hidden = packing.pack(hidden.view(*active.shape, -1))  # (N, n)
        step = torch.arange(active.shape[-1], device=hidden.device).expand(active.shape)
        queries, step = (packing.group_by_image(part) for part in (hidden, packing.pack(step)))
        attention = map_tensors(packing.ungroup, self.attention(queries, state.keys, step))
        attentional = self.combine(attention.context, hidden)
        # The output layer reads only h̃, so the contexts are not kept.
        attention = replace(attention, context=attention.context[..., :0])
        return map_tensors(packing.unpack, StepOutput(attentional, attention))
